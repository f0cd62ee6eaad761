// Package faulttest makes every mutating system call of a program its last, or
// makes it fail, one run of the program a call.
//
// Its one idea: a first run under strace lists the calls that change something
// on disk; then the program runs once for each of them, on a fresh copy of what
// it works on, and strace kills it right before the call (so that what is left
// is what the calls before it did), or fails that one call with an error.
//
// strace counts calls a thread, and follows one here. So the program keeps its
// work on its main thread ([OneThread]) and on one processor; what it starts,
// and threads of the runtime, run untraced and at full speed.
package faulttest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// threadVariable tells a test binary that it is a program under test.
const threadVariable = "FAULTTEST_ONE_THREAD"

// OneThread binds the main goroutine to the main thread if this process is a
// program under test. Call it in an init function: TestMain may be too late.
func OneThread() {
	if os.Getenv(threadVariable) != "" {
		runtime.LockOSThread()
	}
}

// Require skips the test where a process cannot be traced.
func Require(t testing.TB) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("faults are injected with strace, which is for Linux")
	}
	if out, err := exec.Command("strace", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		t.Skipf("strace cannot trace a process here: %v: %s", err, bytes.TrimSpace(out))
	}
}

// Call is one mutating system call of a program: the Nth of its kind in the
// thread that is followed.
type Call struct {
	Kind string // "renameat2"
	Nth  int    // from 1
	Text string // as strace prints it
}

func (c Call) String() string { return fmt.Sprintf("%s-%d", c.Kind, c.Nth) }

// Allocates reports whether the call can fail for want of space.
func (c Call) Allocates() bool {
	return c.Kind != "unlinkat" && c.Kind != "fchmod" && c.Kind != "fchmodat"
}

// kinds are the calls that can change what is on disk, or make it durable.
var kinds = []string{
	"openat", "mkdirat", "renameat", "renameat2", "unlinkat", "symlinkat", "linkat",
	"fchmod", "fchmodat", "write", "pwrite64", "copy_file_range", "fsync", "fdatasync", "syncfs", "ftruncate",
}

// toFile matches the writing calls whose descriptor, as strace -y prints it, is
// a file: pipes and the runtime's own eventfd change nothing on disk.
var toFile = regexp.MustCompile(`^[a-z0-9_]+\([0-9]+</`)

func mutates(kind, text string) bool {
	switch kind {
	case "openat":
		return strings.Contains(text, "O_CREAT") || strings.Contains(text, "O_TRUNC") || strings.Contains(text, "O_TMPFILE")
	case "write", "pwrite64":
		return toFile.MatchString(text) && !strings.Contains(text, "</dev/")
	}
	return true
}

// Mutations runs the program once, without a fault, and lists its calls that
// change something on disk.
func Mutations(t testing.TB, program *exec.Cmd) []Call {
	t.Helper()
	return Calls(t, program, kinds, mutates)
}

// Calls is Mutations for calls of other kinds: those that are wanted, by their
// text as strace -y prints it.
func Calls(t testing.TB, program *exec.Cmd, kinds []string, wanted func(kind, text string) bool) []Call {
	t.Helper()
	r := run(t, program, "-y", "-e", "trace="+strings.Join(kinds, ","))
	if r.Err != nil {
		t.Fatalf("without a fault: %v\n%s", r.Err, r.Stderr)
	}
	counts := map[string]int{}
	var calls []Call
	for line := range strings.Lines(r.trace) {
		kind, _, ok := strings.Cut(line, "(")
		if !ok || !slices.Contains(kinds, kind) {
			continue
		}
		counts[kind]++
		if wanted(kind, line) {
			calls = append(calls, Call{kind, counts[kind], strings.TrimSpace(line)})
		}
	}
	if len(calls) == 0 {
		t.Fatalf("the program makes no such call:\n%s", r.trace)
	}
	return calls
}

// Result is what a program under test did.
type Result struct {
	Stdout, Stderr string
	Err            error // of exec.Cmd.Run
	// Hit says that the fault came: a run may go another way than the one that
	// listed the calls.
	Hit bool

	trace string
}

// Killed reports that the program was killed.
func (r Result) Killed() bool {
	exit, ok := errors.AsType[*exec.ExitError](r.Err)
	return ok && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

// RuntimeHit reports that the fault came to a write of the Go runtime to its own
// eventfd, which it does not survive: how many of those a thread makes differs
// from run to run, so the counting cannot avoid them. The program was killed.
func (r Result) RuntimeHit() bool {
	return strings.Contains(r.Stderr, "runtime: netpollBreak write failed")
}

// ExitCode is the program's, -1 if a signal ended it.
func (r Result) ExitCode() int {
	if exit, ok := errors.AsType[*exec.ExitError](r.Err); ok {
		return exit.ExitCode()
	}
	return 0
}

// Kill runs the program and kills it right before the call.
func (c Call) Kill(t testing.TB, program *exec.Cmd) Result {
	t.Helper()
	r := run(t, program, "-e", "trace="+c.Kind, "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", c.Kind, c.Nth))
	r.Hit = r.Killed()
	return r
}

// Fail runs the program and fails the call with an error, such as "ENOSPC".
func (c Call) Fail(t testing.TB, program *exec.Cmd, errno string) Result {
	t.Helper()
	r := run(t, program, "-e", "trace="+c.Kind, "-e", fmt.Sprintf("inject=%s:error=%s:when=%d", c.Kind, errno, c.Nth))
	r.Hit = strings.Contains(r.trace, "(INJECTED)")
	return r
}

// run runs the program under strace.
func run(t testing.TB, program *exec.Cmd, options ...string) Result {
	t.Helper()
	if program.Err != nil {
		t.Fatal(program.Err)
	}
	trace := filepath.Join(t.TempDir(), "trace")
	args := append([]string{"-q", "-o", trace}, options...)
	cmd := exec.Command("strace", append(append(args, program.Path), program.Args[1:]...)...)
	cmd.Dir = program.Dir
	env := program.Env
	if env == nil {
		env = os.Environ()
	}
	cmd.Env = append(env, threadVariable+"=1", "GOMAXPROCS=1")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	r := Result{Err: cmd.Run()}
	r.Stdout, r.Stderr = stdout.String(), stderr.String()
	text, err := os.ReadFile(trace)
	if err != nil {
		t.Fatalf("strace left no trace: %v: %v: %s", err, r.Err, r.Stderr)
	}
	r.trace = string(text)
	return r
}
