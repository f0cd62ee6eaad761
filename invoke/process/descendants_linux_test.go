package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hawser/invoke/process/internal/barrier"
)

// wrapped is the Spec of a script under PolicyDescendants. The processes that a
// script leaves behind note their pid in a file pid.<pid>.
func wrapped(t testing.TB, script string) Spec {
	spec := shell(t, script)
	spec.Policy = PolicyDescendants
	if !groupSignals() {
		spec.Env = append(spec.Env, pinVariable+"=zombie")
	}
	return spec
}

// noted returns the pids that a script's processes noted.
func noted(t testing.TB, spec Spec) (pids []int) {
	t.Helper()
	paths, _ := filepath.Glob(filepath.Join(spec.Dir.Name(), "pid.*"))
	for _, path := range paths {
		if readable([]string{path}) { // it may have been killed in the middle
			pids = append(pids, readPid(t, path))
		}
	}
	return pids
}

// readable reports that every file has its content.
func readable(paths []string) bool {
	for _, path := range paths {
		if text, err := os.ReadFile(path); err != nil || len(text) == 0 {
			return false
		}
	}
	return true
}

const (
	inSession   = `setsid sh -c 'echo $$ > pid.$$; exec sleep 100' & `
	doubleFork  = `(setsid sh -c 'echo $$ > pid.$$; (trap "" TERM; echo > second; exec sleep 100) & exec sleep 100' &) ; `
	inGroup     = `sh -c 'trap "" TERM; echo $$ > pid.$$; sleep 100; sleep 100' & `
	stoppedOne  = `setsid sh -c 'echo $$ > pid.$$; kill -STOP $$' & `
	holding     = `setsid sh -c 'trap "" TERM; echo $$ > pid.$$; while :; do sleep 1; done' & `
	awaitOne    = `while [ -z "$(cat pid.* 2>/dev/null)" ]; do sleep 0.01; done; `
	awaitSecond = `while [ ! -e second ]; do sleep 0.01; done; `
)

func TestDescendants(t *testing.T) {
	const untilReady = `: > ready; ` // from here on the test cancels
	for _, test := range []struct {
		name, script string
		want         func(Result) bool
	}{
		{"nothing left", `cat; exit 5`, func(r Result) bool {
			return r.Exit == Exit{Code: 5} && !r.Leaked && string(r.Stdout) == "question"
		}},
		{"signal", `kill -USR1 $$`, func(r Result) bool { return r.Exit == Exit{-1, unix.SIGUSR1} && !r.Leaked }},
		{"kills its own group", `trap "" TERM; kill -TERM 0; exit 4`, func(r Result) bool { return r.Exit == Exit{Code: 4} }},
		{"left in its group", inGroup + awaitOne + `exit 0`, func(r Result) bool { return r.Exit.OK() && r.Leaked }},
		{"left in a session", inSession + awaitOne + `exit 0`, func(r Result) bool { return r.Exit.OK() && r.Leaked }},
		{"left by a double fork", doubleFork + awaitSecond + `exit 3`, func(r Result) bool { return r.Exit == Exit{Code: 3} && r.Leaked }},
		{"left stopped", stoppedOne + awaitOne + `exit 0`, func(r Result) bool { return r.Exit.OK() && r.Leaked }},
		{"left holding stdout", holding + awaitOne + `exit 0`, func(r Result) bool { return r.Exit.OK() && r.Leaked }},
		{"hangs", inSession + inGroup + untilReady + `sleep 100; sleep 100`, func(r Result) bool {
			return r.Cancelled && !r.Leaked && r.Exit.Signal == unix.SIGTERM
		}},
		{"ignores TERM", `trap "" TERM; ` + doubleFork + inGroup + untilReady + `while :; do sleep 1; done`, func(r Result) bool {
			return r.Cancelled && !r.Leaked && r.Exit.Signal == unix.SIGKILL
		}},
		{"forks for ever", `trap "" TERM; ` + untilReady + `while :; do sh -c : & sh -c : & wait; done`, func(r Result) bool { return r.Cancelled }},
		{"forks sessions for ever", `trap "" TERM; ` + untilReady + `while :; do setsid sh -c 'sleep 100' & sleep 0.005; done`, func(r Result) bool { return r.Cancelled }},
	} {
		t.Run(test.name, func(t *testing.T) {
			bothPins(t, func(t *testing.T) {
				spec := wrapped(t, test.script)
				r := exchange(t, spec, bounds)
				if !test.want(r) {
					t.Errorf("got %+v", brief(r))
				}
				for _, pid := range noted(t, spec) {
					if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
						t.Errorf("process %d is left: %v", pid, err)
					}
				}
			})
		})
	}
}

func TestDescendantsAtTheBarrier(t *testing.T) {
	spec := wrapped(t, `echo > ran`)
	g := start(t, spec)
	if e := g.Stop(); e.NotProvedGone || e.Exit.OK() {
		t.Errorf("got %+v", e)
	}
	if _, err := os.Stat(filepath.Join(spec.Dir.Name(), "ran")); err == nil {
		t.Error("the program ran without a release")
	}
}

func TestDescendantsExecFailure(t *testing.T) {
	spec := wrapped(t, "")
	spec.Path = "/nonexistent/program"
	g := start(t, spec)
	var failure *ExecError
	if err := g.Release(context.Background()); !errors.As(err, &failure) || failure.Reason != ExecMissing {
		t.Errorf("got %v", err)
	}
	if e := g.Settle(context.Background()); e.NotProvedGone || e.Exit.OK() {
		t.Errorf("got %+v", e)
	}
}

// What the program left runs on after its end, until the group is settled: a
// host may first see who holds a stream open.
func TestDescendantsEnded(t *testing.T) {
	spec := wrapped(t, `setsid sh -c 'echo $$ > pid.$$; while [ ! -e ended ]; do sleep 0.01; done; : > lives; exec sleep 100' & `+awaitOne+`exit 0`)
	g := startReleased(t, spec)
	<-g.Ended()
	if err := os.WriteFile(filepath.Join(spec.Dir.Name(), "ended"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what is left runs on", func() bool {
		_, err := os.Stat(filepath.Join(spec.Dir.Name(), "lives"))
		return err == nil
	})
	if e := g.Settle(context.Background()); !e.Leaked || !e.Exit.OK() || e.NotProvedGone {
		t.Errorf("got %+v", e)
	}
}

func TestDescendantsWrapperKilled(t *testing.T) {
	spec := wrapped(t, `echo $$ > pid.$$; sleep 100`)
	g := startReleased(t, spec)
	eventually(t, "the program runs", func() bool {
		paths, _ := filepath.Glob(filepath.Join(spec.Dir.Name(), "pid.*"))
		return len(paths) == 1 && readable(paths)
	})
	if err := unix.Kill(g.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := g.Settle(context.Background()); !e.NotProvedGone || !e.WrapperLost || e.Exit.OK() {
		t.Errorf("got %+v", e)
	}
	program := noted(t, spec)[0]
	eventually(t, "the program died with the wrapper", func() bool { return reapAdopted(program) })
	eventually(t, "its child is gone", func() bool { // our child now, outside of every guarantee
		left := remainingChildren()
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
			reapOne(pid)
		}
		return len(left) == 0
	})
}

func init() {
	children["host of descendants"] = func() {
		dir, err := os.Open(".")
		fail(err)
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		fail(err)
		g, err := Start(Spec{
			Path: "/bin/sh", Argv: []string{"sh", "-c", os.Getenv("SCRIPT")}, Env: []string{"PATH=" + os.Getenv("PATH")}, Dir: dir,
			Stdin: null, Stdout: null, Stderr: null, Policy: PolicyDescendants,
		})
		fail(err)
		fail(g.Release(context.Background()))
		fmt.Println(g.Pid())
		select {}
	}
}

// A host that is killed outright takes everything along.
func TestDescendantsHostKilled(t *testing.T) {
	becomeSubreaper()
	host := exec.Command(os.Args[0])
	host.Dir = t.TempDir()
	host.Stderr = os.Stderr
	host.Env = []string{"PATH=" + os.Getenv("PATH"), childVariable + "=host of descendants", "SCRIPT=" + doubleFork + inGroup + `wait; sleep 100`}
	out, err := host.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	var wrapper int
	if _, err := fmt.Fscan(bufio.NewReader(out), &wrapper); err != nil {
		t.Fatal(err)
	}
	spec := Spec{Dir: directory(t, host.Dir)}
	eventually(t, "the descendants run", func() bool {
		_, err := os.Stat(filepath.Join(host.Dir, "second"))
		paths, _ := filepath.Glob(filepath.Join(host.Dir, "pid.*"))
		return err == nil && len(paths) == 2 && readable(paths)
	})
	_ = host.Process.Kill()
	_ = host.Wait()
	eventually(t, "the wrapper ends", func() bool { return reapAdopted(wrapper) })
	for _, pid := range noted(t, spec) {
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("process %d is left: %v", pid, err)
		}
	}
}

// A program below a wrapper never ran when its barrier, or the wrapper, died
// before the release.
func TestDescendantsReleaseOfTheDead(t *testing.T) {
	for name, die := range map[string]func(g *Group, barrier int){
		"barrier": func(g *Group, barrier int) {
			kill(t, barrier, unix.SIGKILL)
			<-g.Ended() // the wrapper has reaped it
		},
		"wrapper": func(g *Group, barrier int) {
			kill(t, g.Pid(), unix.SIGKILL)
			eventually(t, "the barrier died with the wrapper", func() bool { return reapAdopted(barrier) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := wrapped(t, `echo > ran`)
			g := start(t, spec)
			barrier := 0
			eventually(t, "the wrapper has a barrier", func() bool {
				_ = everyProcess(func(s stat) {
					if s.parent == g.Pid() {
						barrier = s.pid
					}
				})
				return barrier != 0
			})
			die(g, barrier)
			wantNotReached(t, spec, g.Release(context.Background()))
		})
	}
}

// A program that has ended was not stopped, whatever comes first to whoever
// waits: the end of the context, or the wrapper's news of the exit.
func TestDescendantsLateNews(t *testing.T) {
	spec := wrapped(t, `echo $$ > pid.$$; while [ ! -e go ]; do sleep 0.01; done; exit 3`)
	g := startReleased(t, spec)
	eventually(t, "the program runs", func() bool { return len(noted(t, spec)) == 1 })
	program := noted(t, spec)[0]
	kill(t, g.Pid(), unix.SIGSTOP) // it may hear of nothing
	if err := os.WriteFile(filepath.Join(spec.Dir.Name(), "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the program has ended", func() bool {
		s, err := readStat(program)
		return err == nil && s.dead()
	})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	e := g.Settle(causeAsked{ctx, func() { kill(t, g.Pid(), unix.SIGCONT) }})
	if want := (Ending{Exit: Exit{Code: 3}}); e != want {
		t.Errorf("got %+v, want %+v", e, want)
	}
}

// causeAsked is a context that has ended, and calls back when somebody asks why.
type causeAsked struct {
	context.Context
	asked func()
}

func (c causeAsked) Value(key any) any {
	c.asked()
	return c.Context.Value(key)
}

// StdoutClosed is about who holds a pipe open, not about what was read.
func TestStdoutClosed(t *testing.T) {
	g := startReleased(t, wrapped(t, holding+awaitOne+`echo last words`))
	<-g.Ended()
	if g.StdoutClosed() {
		t.Error("a pipe that a child holds open is said to be closed")
	}
	g.Stop()
	if !g.StdoutClosed() {
		t.Error("a pipe that nobody holds open is said to be open")
	}
	if text, err := io.ReadAll(g.Stdout); err != nil || string(text) != "last words\n" {
		t.Errorf("then read %q, %v", text, err)
	}
}

// A package of the host that reads and prints as it initializes does so in the
// wrapper, too; the program's streams are not there.
var _ = func() bool {
	if os.Args[0] == barrier.WrapperWord {
		fmt.Println("printed by the host")
		fmt.Fprintln(os.Stderr, "printed by the host")
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	return true
}()

func TestDescendantsHostInitializes(t *testing.T) {
	spec := wrapped(t, `cat; ls -l /proc/self/fd >&2`)
	r := exchange(t, spec, bounds)
	if string(r.Stdout) != "question" || strings.Contains(string(r.Stderr), "printed") || strings.Count(string(r.Stderr), "->") != 4 {
		t.Errorf("stdout %q, stderr %q", r.Stdout, r.Stderr)
	}
}
