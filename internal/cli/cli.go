// Package cli is what the commands share: one way from an error to a line and
// an exit status, signals, output that is checked, and facts as lines or JSON
// (wire: Errors and exits; commands).
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/strictjson"
)

// Exit statuses of the contract.
const (
	ExitDone    = 0
	ExitRefused = 1
	ExitUsage   = 2
)

// version is what the build is of; the Makefile sets it.
var version = "development"

// Version returns what this build is of.
func Version() string { return version }

// TellArguments is for a program that takes no arguments: it answers --help and
// --version, refuses any others, and returns the exit status.
func TellArguments(name, help string, args []string) int {
	text := ""
	switch {
	case len(args) == 1 && (args[0] == "-h" || args[0] == "--help"):
		text = help
	case len(args) == 1 && args[0] == "--version":
		text = name + " " + version + "\n"
	default:
		Complain(os.Stderr, fault.New(fault.Usage, "%s takes no arguments; see %[1]s --help", name))
		return ExitUsage
	}
	if _, err := os.Stdout.WriteString(text); err != nil {
		Complain(os.Stderr, fault.Wrap(fault.IO, err, "standard output"))
		return ExitRefused
	}
	return ExitDone
}

// Status is an error that is an exit status and nothing else: whatever had to
// be said has been said.
type Status int

func (s Status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Main runs the command tree and exits. It must be called from main.
//
// SIGHUP, SIGINT and SIGTERM end the context that the commands get; they clean
// up, and the exit is 128 and the signal's number. A signal that was ignored
// from outside (nohup) stays ignored. SIGPIPE becomes a write error.
func Main(root *cobra.Command) {
	sealDescriptors()
	collectLate()
	ctx, stop := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go func() {
		stop(interrupted{(<-signals).(syscall.Signal)})
	}()
	os.Exit(Run(ctx, root, os.Stderr))
}

// collectLate doubles the heap that is collected first, to 8 MB: a command that
// never needs more ends before a collection would have paid.
func collectLate() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200)
	}
}

// interrupted is the cause of a context that a signal ended.
type interrupted struct{ signal syscall.Signal }

func (i interrupted) Error() string { return "interrupted by " + unix.SignalName(i.signal) }

// Run executes the command tree and returns the exit status, having written the
// refusal, if any, to stderr.
func Run(ctx context.Context, root *cobra.Command, stderr io.Writer) int {
	prepare(root)
	root.Version = version
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetHelpCommand(helpCommand())
	started := false
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	err := root.ExecuteContext(ctx)
	if sig, ok := context.Cause(ctx).(interrupted); ok && err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", root.Name(), sig)
		return 128 + int(sig.signal)
	}
	if err == nil {
		return ExitDone
	}
	if status, ok := errors.AsType[Status](err); ok {
		return int(status)
	}
	if _, ok := errors.AsType[*fault.Error](err); !ok && !started {
		err = fault.New(fault.Usage, "%s; see %s --help", firstLine(err), root.Name())
	}
	Complain(stderr, err)
	if fault.Is(err, fault.Usage) {
		return ExitUsage
	}
	return ExitRefused
}

// Complain writes one refusal as its line.
func Complain(stderr io.Writer, err error) {
	fmt.Fprintln(stderr, fault.Line(err))
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// prepare sets what every command of ours has in common.
func prepare(cmd *cobra.Command) {
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.DisableAutoGenTag = true
	cmd.CompletionOptions.HiddenDefaultCmd = false
	for _, sub := range cmd.Commands() {
		prepare(sub)
	}
}

// helpCommand is the library's, except that asking about nothing there is is a
// mistake.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return fault.New(fault.Usage, "there is no such command; see %s --help", cmd.Root().Name())
			}
			about.InitDefaultHelpFlag()
			about.InitDefaultVersionFlag()
			return about.Help()
		},
	}
}

// Args checks the number of positional arguments and says which are wanted. An
// empty one, as of a variable that is not set, is none.
func Args(lo, hi int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < lo || len(args) > hi {
			want := names
			if want == "" {
				want = "no arguments"
			}
			return fault.New(fault.Usage, "%s takes %s, not %d argument(s); see %[1]s --help", cmd.CommandPath(), want, len(args))
		}
		if i := slices.Index(args, ""); i >= 0 {
			return fault.New(fault.Usage, "argument %d of %s is empty; see %[2]s --help", i+1, cmd.CommandPath())
		}
		return nil
	}
}

// Home finds the effective home of this process.
//
// Errors: home-invalid.
func Home() (*home.Home, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fault.Wrap(fault.HomeInvalid, err, "the program's own path is unknown; set FM_HOME")
	}
	return home.Locate(os.Getenv, exe)
}

// Print writes to the command's standard output and reports a failed write as
// io: the work stands, and the message says so.
func Print(cmd *cobra.Command, text []byte) error {
	_, err := cmd.OutOrStdout().Write(text)
	return fault.Wrap(fault.IO, err, "standard output; the work itself was done and stands")
}

// Await is read, unless the context ends first: a read from standard input may
// wait for ever, and a signal must end the command all the same.
func Await[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	got := make(chan answer, 1)
	go func() {
		value, err := read()
		got <- answer{value, err}
	}()
	select {
	case a := <-got:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// Fact is one printed line, "name: value"; in JSON the name's dashes are
// underscores.
type Fact struct{ Name, Value string }

// Seconds is an option's value for a time: a Go duration ("90s", "2m"), or a
// plain number of seconds. It must be positive.
type Seconds time.Duration

func (s *Seconds) String() string { return time.Duration(*s).String() }

// Type is the word that help shows for the value.
func (s *Seconds) Type() string { return "duration" }

// Set reads the value.
func (s *Seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		d, err = time.ParseDuration(text + "s")
	}
	if err != nil || d <= 0 {
		return errors.New("must be a positive time, such as 90s or 2m")
	}
	*s = Seconds(d)
	return nil
}

// Facts renders facts as lines, or as one pretty JSON object.
func Facts(asJSON bool, facts ...Fact) ([]byte, error) {
	if asJSON {
		object := map[string]any{}
		for _, f := range facts {
			object[strings.ReplaceAll(f.Name, "-", "_")] = f.Value
		}
		return strictjson.Pretty(object)
	}
	var b strings.Builder
	for _, f := range facts {
		b.WriteString(f.Name + ": " + f.Value + "\n")
	}
	return []byte(b.String()), nil
}

// Interactive reports whether human extras may go to f: it is a terminal, and
// neither NO_COLOR nor CI is set (commands).
func Interactive(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ) // only a terminal has a size
	return err == nil && os.Getenv("NO_COLOR") == "" && os.Getenv("CI") == ""
}
