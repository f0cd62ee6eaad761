package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"hawser/tests/hometest"
)

// TestScripts runs testdata/script: what each command prints, how it exits, and
// what it leaves. A script has a home of its own, $FM_HOME, with the package of
// procevent/testdata/adapter at pkg, a root with an empty bin, $FM_ROOT_OVERRIDE,
// a claim root, and these commands besides testscript's and bind:
//
//	refused CODE COMMAND  runs a command that must be refused: exit 1 (2 for
//	                      usage), an empty stdout, and one line with the code
//	status N COMMAND      runs a command that must exit with N
//	until COMMAND         runs a command again and again until it exits with 0
//	grab NAME REGEXP      sets a variable to what the group in REGEXP matches in
//	                      the last stdout
//	modes MODE PATH...    checks permissions
//	snapshot FILE DIR     writes what is below a directory to a file
//	builtin NAME FILE     installs a script as a built-in adapter, or, as
//	                      "hold", as fm-captain-hold.sh
//
// After a script its home is swept, and nothing that it started is left.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:       "testdata/script",
		Condition: condition,
		Setup:     setUp,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"refused":  scriptRefused,
			"status":   scriptStatus,
			"until":    scriptUntil,
			"grab":     scriptGrab,
			"modes":    scriptModes,
			"snapshot": scriptSnapshot,
			"builtin":  scriptBuiltin,
		},
	})
}

func setUp(env *testscript.Env) error {
	r := &rig{home: filepath.Join(env.WorkDir, "home"), root: filepath.Join(env.WorkDir, "root"), claims: filepath.Join(env.WorkDir, "claims")}
	env.Vars = append(env.Vars, r.env()...)
	env.Setenv("GORACE", os.Getenv("GORACE"))
	env.Setenv("CLAIMS", r.claims)
	env.Setenv("NONE", "sha256:"+strings.Repeat("0", 64))
	env.Setenv("STATE", filepath.Join(r.home, "state"))
	env.Setenv("INBOX", filepath.Join(r.home, "state/procevent-inbox"))
	env.Setenv("REG", filepath.Join(r.home, "state/procevent"))
	env.Defer(func() { r.end(env.T().(testing.TB)) })
	pkg, err := feed()
	if err != nil {
		return err
	}
	return errors.Join(os.Mkdir(r.home, 0o700), os.MkdirAll(filepath.Join(r.root, "bin"), 0o755), pkg.Write(filepath.Join(env.WorkDir, "pkg")))
}

func condition(name string) (bool, error) {
	if name == "root" {
		return os.Geteuid() == 0, nil
	}
	return false, fmt.Errorf("no such condition")
}

func positive(ts *testscript.TestScript, neg bool, args []string, least int, usage string) {
	if neg || len(args) < least {
		ts.Fatalf("usage: %s", usage)
	}
}

// exitStatus runs a command and returns its status.
func exitStatus(ts *testscript.TestScript, args []string) int {
	err := ts.Exec(args[0], args[1:]...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	ts.Check(err)
	return 0
}

func scriptStatus(ts *testscript.TestScript, neg bool, args []string) {
	positive(ts, neg, args, 2, "status N COMMAND [ARG...]")
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := exitStatus(ts, args[1:]); got != want {
		ts.Fatalf("exit status %d, not %d", got, want)
	}
}

func scriptRefused(ts *testscript.TestScript, neg bool, args []string) {
	positive(ts, neg, args, 2, "refused CODE COMMAND [ARG...]")
	want := 1
	if args[0] == "usage" {
		want = 2
	}
	if got := exitStatus(ts, args[1:]); got != want {
		ts.Fatalf("exit status %d, not %d", got, want)
	}
	if out := ts.ReadFile("stdout"); out != "" {
		ts.Fatalf("a refusal prints nothing to stdout, but: %q", out)
	}
	line, rest, ended := strings.Cut(ts.ReadFile("stderr"), "\n")
	if !strings.HasPrefix(line, "error["+args[0]+"]: ") || rest != "" || !ended {
		ts.Fatalf("not one line error[%s], but: %q", args[0], ts.ReadFile("stderr"))
	}
}

func scriptUntil(ts *testscript.TestScript, neg bool, args []string) {
	positive(ts, neg, args, 1, "until COMMAND [ARG...]")
	if !becomes(func() bool { return ts.Exec(args[0], args[1:]...) == nil }) {
		ts.Fatalf("never became true: %q", args)
	}
}

func scriptGrab(ts *testscript.TestScript, neg bool, args []string) {
	positive(ts, neg, args, 2, "grab NAME REGEXP")
	re, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	match := re.FindStringSubmatch(ts.ReadFile("stdout"))
	if len(match) != 2 {
		ts.Fatalf("no match for one group of %s in %q", args[1], ts.ReadFile("stdout"))
	}
	ts.Setenv(args[0], match[1])
}

func scriptModes(ts *testscript.TestScript, neg bool, args []string) {
	positive(ts, neg, args, 2, "modes MODE PATH...")
	want, err := strconv.ParseUint(args[0], 8, 12)
	ts.Check(err)
	for _, path := range args[1:] {
		info, err := os.Lstat(ts.MkAbs(path))
		ts.Check(err)
		if got := info.Mode() & (fs.ModePerm | fs.ModeSetgid | fs.ModeSetuid | fs.ModeSticky); got != fs.FileMode(want) {
			ts.Fatalf("%s has mode %v, not %04o", path, got, want)
		}
	}
}

func scriptSnapshot(ts *testscript.TestScript, neg bool, args []string) {
	positive(ts, neg, args, 2, "snapshot FILE DIR")
	text, err := hometest.Snapshot(ts.MkAbs(args[1]))
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

func scriptBuiltin(ts *testscript.TestScript, neg bool, args []string) {
	positive(ts, neg, args, 2, "builtin NAME FILE")
	name := "fm-procevent-" + args[0] + ".sh"
	if args[0] == "hold" {
		name = "fm-captain-hold.sh"
	}
	ts.Check(os.WriteFile(filepath.Join(ts.Getenv("FM_ROOT_OVERRIDE"), "bin", name), []byte(ts.ReadFile(args[1])), 0o755))
}
