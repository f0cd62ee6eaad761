// Command forge-plugin-conformance judges a plugin of the Agent Forge plugin
// protocol v1: PASS or FAIL and a name for each scenario, one a line, and why on
// stderr. It exits 1 on any FAIL, 2 on wrong usage and when it cannot judge.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"hawser/forge"
	"hawser/forge/conformance"
	"hawser/internal/cli"
	"hawser/internal/fault"
)

const usage = `Usage: forge-plugin-conformance [flags] plugin [argument…]

Judges a plugin of the Agent Forge plugin protocol v1. Each scenario is a session
with a fresh process of the plugin, which inherits this environment.

Flags:
  -operation text|workspace_edit   what the plugin does (default text); for
                                   workspace_edit each session gets a Git work tree,
                                   and the plugin starts in one, not here, and without
                                   GIT_DIR and its like: an argument that names a file
                                   here is made absolute
  -run REGEXP                      only the scenarios whose name matches
  -list                            lists the scenarios, and what the host does in them
  -json                            one JSON object a line instead of text
  -v                               shows what the plugin writes on stderr
  -timeout DURATION                how long a valid operation may take (default 1m)
  -version                         says which release this is

Examples:
  forge-plugin-conformance ./my-plugin
  forge-plugin-conformance -operation workspace_edit python3 my-plugin.py
  forge-plugin-conformance -run '^execute/.*utf8' ./my-plugin
  forge-plugin-conformance -json ./my-plugin | jq -c 'select(.result == "fail")'
  forge-plugin-conformance -list
`

// The exit statuses.
const (
	exitPassed = 0
	exitFailed = 1
	exitUsage  = 2
)

// main ends with 128 and the signal's number when one ends the run, after the
// plugins that run have been stopped and the work trees removed. A signal that
// was ignored from outside (nohup) stays ignored. SIGPIPE, which by default kills
// a program whose reader has gone (| head), becomes an error of the write, so that
// this too is cleaned up after.
func main() {
	ctx, stop := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go func() { stop(interrupted{(<-signals).(syscall.Signal)}) }()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

type interrupted struct{ signal syscall.Signal }

func (i interrupted) Error() string { return "interrupted by " + i.signal.String() }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return exitPassed
	case err == nil && c.version:
		_, err = fmt.Fprintln(stdout, "forge-plugin-conformance", cli.Version())
		err = fault.Wrap(fault.IO, err, "cannot write to stdout")
	case err == nil && c.list:
		err = c.printList(stdout)
	case err == nil:
		var failed int
		failed, err = c.judge(ctx, stdout, stderr)
		if err == nil && failed > 0 {
			return exitFailed
		}
	}
	if sig, ok := errors.AsType[interrupted](err); ok {
		fmt.Fprintln(stderr, "forge-plugin-conformance:", sig)
		return 128 + int(sig.signal)
	}
	if err != nil {
		fmt.Fprintln(stderr, fault.Line(err))
		return exitUsage
	}
	return exitPassed
}

// command is what the arguments ask for.
type command struct {
	suite     conformance.Suite
	scenarios []conformance.Scenario
	list      bool
	version   bool
	json      bool
}

func parse(args []string) (*command, error) {
	flags := flag.NewFlagSet("forge-plugin-conformance", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	operation := flags.String("operation", string(forge.CapText), "")
	pattern := flags.String("run", "", "")
	timeout := flags.Duration("timeout", time.Minute, "")
	c := &command{}
	flags.BoolVar(&c.list, "list", false, "")
	flags.BoolVar(&c.json, "json", false, "")
	flags.BoolVar(&c.version, "version", false, "")
	verbose := flags.Bool("v", false, "")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, fault.New(fault.Usage, "%v; see forge-plugin-conformance -h", err)
	}
	if c.version {
		return c, nil
	}
	c.suite = conformance.Suite{
		Operation: forge.Capability(*operation), Argv: flags.Args(), Env: environment(), Timeout: *timeout,
	}
	if *verbose {
		c.suite.Stderr = os.Stderr
	}
	matches, err := regexp.Compile(*pattern)
	switch {
	case err != nil:
		return nil, fault.New(fault.Usage, "-run: %v", err)
	case !c.suite.Operation.IsOperation():
		return nil, fault.New(fault.Usage, "-operation is text or workspace_edit")
	case *timeout <= 0:
		return nil, fault.New(fault.Usage, "-timeout is more than 0, such as 90s")
	}
	for _, s := range conformance.Scenarios(c.suite.Operation) {
		if matches.MatchString(s.Name) {
			c.scenarios = append(c.scenarios, s)
		}
	}
	if len(c.scenarios) == 0 {
		return nil, fault.New(fault.Usage, "-run matches no scenario; see -list")
	}
	if c.list {
		return c, nil
	}
	if flags.NArg() == 0 {
		return nil, fault.New(fault.Usage, "name the plugin to judge; see forge-plugin-conformance -h")
	}
	if c.suite.Operation == forge.CapWorkspaceEdit {
		absolute(c.suite.Argv[1:])
	}
	c.suite.Path, err = find(flags.Arg(0))
	return c, err
}

// absolute makes absolute paths of the arguments that name files here, because
// the plugin starts elsewhere: "python3 my-plugin.py" is meant.
func absolute(args []string) {
	for i, argument := range args {
		if info, err := os.Stat(argument); err != nil || !info.Mode().IsRegular() {
			continue
		}
		if path, err := filepath.Abs(argument); err == nil {
			args[i] = path
		}
	}
}

// find returns the absolute path of the plugin.
func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	return path, fault.Wrap(fault.Usage, err, "cannot execute the plugin %s", fault.Path(name))
}

// environment is this process's, without names that stand in it twice: the last
// one counts, as for most programs.
func environment() (env []string) {
	seen := map[string]bool{}
	all := os.Environ()
	for i := len(all) - 1; i >= 0; i-- {
		if name, _, _ := strings.Cut(all[i], "="); name != "" && !seen[name] {
			seen[name] = true
			env = append(env, all[i])
		}
	}
	return env
}

// scenarioJSON and verdictJSON are the lines of -json.
type scenarioJSON struct {
	Name    string     `json:"name"`
	Rule    forge.Rule `json:"rule,omitzero"`
	Summary string     `json:"summary"`
}

type verdictJSON struct {
	scenarioJSON
	Result     string `json:"result"` // pass, fail
	BrokenRule string `json:"broken_rule,omitzero"`
	Frame      int    `json:"frame,omitzero"`
	Message    string `json:"message,omitzero"`
	Tries      int    `json:"tries,omitzero"` // when there was more than one
	MS         int64  `json:"ms"`
}

func (c *command) printList(stdout io.Writer) error {
	for _, s := range c.scenarios {
		var err error
		if c.json {
			err = printJSON(stdout, scenarioJSON{s.Name, s.Rule, s.Summary})
		} else {
			_, err = fmt.Fprintf(stdout, "%s\t%s\n", s.Name, s.Summary)
		}
		if err != nil {
			return fault.Wrap(fault.IO, err, "cannot write to stdout")
		}
	}
	return nil
}

// judge runs the scenarios and returns how many the plugin failed.
func (c *command) judge(ctx context.Context, stdout, stderr io.Writer) (failed int, err error) {
	err = c.suite.Run(ctx, c.scenarios, func(v conformance.Verdict) error {
		if !v.Passed() {
			failed++
		}
		return fault.Wrap(fault.IO, c.print(v, stdout, stderr), "cannot write to stdout")
	})
	if err != nil {
		return failed, err
	}
	if !c.json {
		fmt.Fprintf(stderr, "%d passed, %d failed\n", len(c.scenarios)-failed, failed)
	}
	return failed, nil
}

func (c *command) print(v conformance.Verdict, stdout, stderr io.Writer) error {
	s, f := v.Scenario, v.Finding
	if c.json {
		line := verdictJSON{scenarioJSON: scenarioJSON{s.Name, s.Rule, s.Summary}, Result: "pass", MS: v.Took.Milliseconds()}
		if v.Tries > 1 {
			line.Tries = v.Tries
		}
		if f != nil {
			line.Result, line.BrokenRule, line.Frame, line.Message = "fail", string(f.Rule), f.Frame, f.What
		}
		return printJSON(stdout, line)
	}
	word := "PASS"
	if f != nil {
		word = "FAIL"
	}
	_, err := fmt.Fprintln(stdout, word, s.Name)
	if f == nil && v.Tries > 1 {
		fmt.Fprintf(stderr, "    it was late, and in time when tried again (%d tries)\n", v.Tries)
	}
	if f != nil {
		fmt.Fprintf(stderr, "    the host: %s\n    %v\n", s.Summary, f)
	}
	return err
}

func printJSON(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err == nil {
		_, err = w.Write(append(line, '\n'))
	}
	return err
}
