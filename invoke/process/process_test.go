package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// children are the programs that tests start: this test binary, told by
// childVariable which of them to be.
var children = map[string]func(){}

const childVariable = "PROCESS_TEST_CHILD"

func TestMain(m *testing.M) {
	if child, ok := children[os.Getenv(childVariable)]; ok {
		child()
		os.Exit(0)
	}
	before := openDescriptors()
	code := m.Run()
	if left := remainingChildren(); code == 0 && len(left) > 0 {
		fmt.Fprintln(os.Stderr, "tests left processes behind:", left)
		code = 1
	}
	if after := openDescriptors(); code == 0 && after > before+2 { // the poller's own stay
		fmt.Fprintf(os.Stderr, "tests left descriptors behind: %d before, %d after\n", before, after)
		code = 1
	}
	os.Exit(code)
}

func openDescriptors() int {
	names, _ := os.ReadDir("/proc/self/fd")
	return len(names)
}

// remainingChildren lists the children of this process, adopted and dead ones too.
func remainingChildren() (pids []int) {
	if runtime.GOOS != "linux" {
		return nil
	}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		text, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if fields[1] == strconv.Itoa(os.Getpid()) {
			pid, _ := strconv.Atoi(entry.Name())
			pids = append(pids, pid)
		}
	}
	return pids
}

// bounds are the limits of tests that are about something else.
var bounds = Limits{Timeout: time.Minute, Stdout: 1 << 16, Stderr: 1 << 13, KeepStderr: true}

func directory(t testing.TB, path string) *os.File {
	t.Helper()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

// shell is the Spec of a shell script.
func shell(t testing.TB, script string) Spec {
	t.Helper()
	return Spec{
		Path: "/bin/sh",
		Argv: []string{"sh", "-c", script},
		Env:  []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"},
		Dir:  directory(t, t.TempDir()),
	}
}

func start(t testing.TB, spec Spec) *Group {
	t.Helper()
	g, err := Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

func startReleased(t testing.TB, spec Spec) *Group {
	t.Helper()
	g := start(t, spec)
	if err := g.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	return g
}

// eventually waits for a condition, long enough for any machine.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// bothPins runs a test with each way of pinning a group, where there are two.
func bothPins(t *testing.T, test func(t *testing.T)) {
	for _, way := range []struct {
		name  string
		pidfd bool
	}{{"pidfd", true}, {"zombie", false}} {
		t.Run(way.name, func(t *testing.T) {
			pinWith(t, way.pidfd)
			test(t)
		})
	}
}

func TestExchange(t *testing.T) {
	bothPins(t, func(t *testing.T) {
		g := startReleased(t, shell(t, `cat; echo note >&2; exit 3`))
		r := g.Exchange(context.Background(), []byte("question"), bounds)
		if string(r.Stdout) != "question" || string(r.Stderr) != "note\n" || r.StderrBytes != 5 {
			t.Errorf("stdout %q, stderr %q (%d)", r.Stdout, r.Stderr, r.StderrBytes)
		}
		r.Stdout, r.Stderr, r.StderrBytes = nil, nil, 0
		if want := (Result{Ending: Ending{Exit: Exit{Code: 3}}}); !equal(r, want) {
			t.Errorf("got %+v", r)
		}
	})
}

func equal(a, b Result) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) }

func TestExchangeOutcomes(t *testing.T) {
	const untilReady = `: > ready; ` // from here on the test may cancel
	for _, test := range []struct {
		name, script string
		want         func(Result) bool
	}{
		{"exit code", `exit 77`, func(r Result) bool { return r.Exit == Exit{Code: 77} }},
		{"signal", `kill -KILL $$`, func(r Result) bool { return r.Exit == Exit{-1, unix.SIGKILL} && r.Cause == nil }},
		{"request unread", `exec <&-; exit 0`, func(r Result) bool { return r.Exit.OK() && r.Cause == nil }},
		{"hang", `sleep 100 & ` + untilReady + `wait`, func(r Result) bool {
			return r.Cancelled && r.Exit.Signal == unix.SIGTERM
		}},
		{"ignores TERM", `trap "" TERM; ` + untilReady + `while :; do sleep 100; done`, func(r Result) bool {
			return r.Cancelled && r.Exit.Signal == unix.SIGKILL
		}},
		{"ends by itself on TERM", `trap "exit 9" TERM; sleep 100 & ` + untilReady + `wait`, func(r Result) bool {
			return r.Cancelled && r.Exit == Exit{Code: 9}
		}},
		{"stopped", untilReady + `kill -STOP $$`, func(r Result) bool { return r.Cancelled && r.Exit.Signal != 0 }},
		{"forks for ever", `trap "" TERM; ` + untilReady + `while :; do sh -c : & sh -c : & wait; done`, func(r Result) bool {
			return r.Cancelled && r.Exit.Signal == unix.SIGKILL
		}},
		{"stdout closed, lingers", `exec >&- 2>&-; ` + untilReady + `sleep 100`, func(r Result) bool { return r.Cancelled }},
		{"flood on stdout", `exec cat /dev/zero`, func(r Result) bool {
			return r.StdoutOver && !r.Cancelled && len(r.Stdout) == bounds.Stdout
		}},
		{"flood on stderr", `trap "" TERM; cat /dev/zero >&2`, func(r Result) bool {
			return r.StderrOver && !r.StdoutOver && r.StderrBytes == int64(bounds.Stderr)+1 && len(r.Stderr) == bounds.Stderr
		}},
		{"stdout at its limit", `head -c 65536 /dev/zero`, func(r Result) bool {
			return !r.StdoutOver && len(r.Stdout) == 65536 && r.Exit.OK()
		}},
		{"stdout one over", `head -c 65537 /dev/zero`, func(r Result) bool {
			return r.StdoutOver && len(r.Stdout) == 65536
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bothPins(t, func(t *testing.T) {
				r := exchange(t, shell(t, test.script), bounds)
				if !test.want(r) || r.Leaked || r.TimedOut {
					t.Errorf("got %+v", brief(r))
				}
			})
		})
	}
}

func TestExchangeLeaks(t *testing.T) {
	for _, test := range []struct {
		name, script string
		grace        time.Duration
		leaked       bool
	}{
		{"one that stays", `echo yes; sleep 100 & exit 0`, LeakGrace, true},
		{"one that ignores TERM", `echo yes; trap "" TERM; sleep 100 & exit 0`, LeakGrace, true},
		{"one that ends in time", `echo yes; sleep 0.02 & exit 0`, time.Minute, false},
		{"several that end in time", `echo yes; for i in 1 2 3 4 5 6 7 8; do sleep 0.0$i & done; exit 0`, time.Minute, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			bothPins(t, func(t *testing.T) {
				leakGrace = test.grace
				defer func() { leakGrace = LeakGrace }()
				r := exchange(t, shell(t, test.script), bounds)
				if r.Leaked != test.leaked || !r.Exit.OK() || string(r.Stdout) != "yes\n" || r.Cause != nil {
					t.Errorf("got %+v", brief(r))
				}
			})
		})
	}
}

func TestExchangeTimeout(t *testing.T) {
	for name, limits := range map[string]Limits{
		"short": {Timeout: time.Millisecond}, // may pass before the program is there
		"long":  {Timeout: 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			r := exchange(t, shell(t, `sleep 100`), limits)
			if !r.TimedOut || r.Cancelled || r.Leaked || r.Exit.OK() {
				t.Errorf("got %+v", brief(r))
			}
		})
	}
}

// exchange runs spec to its end, cancels it when the program has made a file
// "ready", and insists that nothing is left.
func exchange(t testing.TB, spec Spec, limits Limits) Result {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(spec.Dir.Name(), "ready")); err == nil {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	g := startReleased(t, spec)
	r := g.Exchange(ctx, []byte("question"), limits)
	cancel()
	<-watching
	if r.NotProvedGone || r.HeldOutput {
		t.Errorf("got %+v", brief(r))
	}
	if err := unix.Kill(-g.Pid(), 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the group is still there: %v", err)
	}
	return r
}

// brief is a result fit to print.
func brief(r Result) Result {
	r.Stdout, r.Stderr = nil, nil
	return r
}

// A grandchild in a session of its own is outside the group, and not ours to
// stop; its hold on our pipe must neither hang us nor pass.
func TestExchangeHeldOutput(t *testing.T) {
	bothPins(t, func(t *testing.T) {
		spec := shell(t, `setsid sh -c 'echo $$ > pid; while [ ! -e done ]; do sleep 0.01; done' & while [ ! -s pid ]; do sleep 0.01; done; exit 0`)
		g := startReleased(t, spec)
		r := g.Exchange(context.Background(), nil, bounds)
		if !r.HeldOutput || r.Leaked || r.NotProvedGone || !r.Exit.OK() {
			t.Errorf("got %+v", r)
		}
		escaped := readPid(t, filepath.Join(spec.Dir.Name(), "pid"))
		if unix.Kill(escaped, 0) != nil {
			t.Error("a process outside the group was stopped")
		}
		if err := os.WriteFile(filepath.Join(spec.Dir.Name(), "done"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the escaped process was reaped", func() bool { return reapAdopted(escaped) })
	})
}

func readPid(t testing.TB, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// reapAdopted reports whether the process, which this subreaper inherits, is gone.
func reapAdopted(pid int) bool {
	_, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
	return errors.Is(unix.Kill(pid, 0), unix.ESRCH) || errors.Is(err, unix.ECHILD) && runtime.GOOS != "linux"
}

// A request larger than a pipe holds, to a program that never reads it.
func TestExchangeRequestNeverRead(t *testing.T) {
	limits := bounds
	limits.Timeout = 50 * time.Millisecond
	g := startReleased(t, shell(t, `sleep 100`))
	if r := g.Exchange(context.Background(), make([]byte, 1<<20), limits); !r.TimedOut {
		t.Errorf("got %+v", brief(r))
	}
}

func TestBarrierWaits(t *testing.T) {
	spec := shell(t, `echo > ran`)
	g := start(t, spec)
	id, err := Of(g.Pid())
	if err != nil || id != g.Identity() {
		t.Errorf("identity %v, %v; want %v", id, err, g.Identity())
	}
	if group, err := unix.Getpgid(g.Pid()); err != nil || group != g.Pid() {
		t.Errorf("group %d, %v; want %d", group, err, g.Pid())
	}
	if e := g.Stop(); e.NotProvedGone || e.Exit.OK() {
		t.Errorf("got %+v", e)
	}
	if _, err := os.Stat(filepath.Join(spec.Dir.Name(), "ran")); err == nil {
		t.Error("the program ran without a release")
	}
}

// What a program may see of its host: nothing.
func TestChildSeesDefaults(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	// A host that ignores and blocks signals, has more descriptors open, and a
	// descriptor limit that Go raises.
	host := exec.Command("sh", "-c", `trap "" HUP INT PIPE TSTP TTIN TTOU USR1; ulimit -S -n 123; exec 7</dev/null 9</dev/zero; exec "$0"`, os.Args[0])
	host.Env = []string{"PATH=" + os.Getenv("PATH"), childVariable + "=block signals"}
	out, err := host.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"SigBlk:\t0000000000000000\n", "SigIgn:\t0000000000000000\n",
		"descriptors: 0 1 2 3\n", // 3 is that of the listing itself
		"limit: 123\n",
		"environment: A=1 \n",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("not found: %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

func init() {
	children["block signals"] = func() {
		runtime.LockOSThread()
		blockSignals()
		fail(syscall.Exec("/proc/self/exe", os.Args, []string{"PATH=" + os.Getenv("PATH"), childVariable + "=host of defaults"}))
	}
	children["host of defaults"] = func() {
		dir, err := os.Open("/")
		fail(err)
		g, err := Start(Spec{
			Path: "/bin/bash",
			Argv: []string{"bash", "--norc", "-c", `grep Sig /proc/self/status; echo descriptors: $(ls /proc/self/fd); echo "limit: $(ulimit -S -n)"; echo "environment: $(tr '\0' ' ' < /proc/$$/environ)"`},
			Env:  []string{"A=1"},
			Dir:  dir,
		})
		fail(err)
		fail(g.Release(context.Background()))
		r := g.Exchange(context.Background(), nil, bounds)
		g.Close()
		os.Stdout.Write(r.Stdout)
		os.Stdout.Write(r.Stderr)
		if !r.Exit.OK() {
			os.Exit(1)
		}
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestExecFailures(t *testing.T) {
	dir := t.TempDir()
	elf := func(machine byte) string {
		return "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00" + string(machine) + "\x00" + strings.Repeat("\x00", 100)
	}
	for _, test := range []struct {
		name, content string
		mode          os.FileMode
		want          ExecReason
	}{
		{"missing", "", 0, ExecMissing},
		{"no interpreter", "#!/nonexistent/interpreter\n", 0o755, ExecNoInterpreter},
		{"no execute bit", "#!/bin/sh\n", 0o644, ExecNotExecutable},
		{"no first line", "echo hello\n", 0o755, ExecNoProgram},
		{"empty", "", 0o755, ExecNoProgram},
		{"wrong machine", elf(8), 0o755, ExecWrongArchitecture},
		{"CR LF", "#!/bin/sh\r\necho\r\n", 0o755, ExecCRLF},
		{"CR LF alone", "#!\r\n", 0o755, ExecCRLF},
		{"CR elsewhere", "#!/nonexistent\necho\r\n", 0o755, ExecNoInterpreter},
		{"no name", "#!", 0o755, ExecNoneNamed},
		{"no name but blanks", "#! \t\n/bin/sh\n", 0o755, ExecNoneNamed},
		{"directory", "", os.ModeDir | 0o755, ExecNotRegular},
		{"FIFO", "", os.ModeNamedPipe | 0o755, ExecNotRegular},
		{"damaged program", elf(62), 0o755, map[string]ExecReason{"amd64": ExecNoProgram, "arm64": ExecWrongArchitecture}[runtime.GOARCH]},
	} {
		t.Run(test.name, func(t *testing.T) {
			if runtime.GOOS != "linux" {
				t.Skip("error numbers of Linux")
			}
			path := filepath.Join(dir, test.name)
			switch test.mode.Type() {
			case os.ModeDir:
				fatal(t, os.Mkdir(path, test.mode.Perm()))
			case os.ModeNamedPipe:
				fatal(t, unix.Mkfifo(path, uint32(test.mode.Perm())))
			}
			if test.mode != 0 && test.mode.IsRegular() {
				writeProgram(t, path, test.content, test.mode)
			}
			spec := shell(t, "")
			spec.Path = path
			g := start(t, spec)
			err := g.Release(context.Background())
			var failure *ExecError
			if !errors.As(err, &failure) || failure.Reason != test.want || failure.Path != path {
				t.Errorf("got %v, want %v", err, test.want)
			}
			if e := g.Stop(); e.NotProvedGone {
				t.Errorf("got %+v", e)
			}
		})
	}
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// writeProgram writes a file that is executed right after, and is never open
// for writing while another goroutine forks.
func writeProgram(t testing.TB, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// A file that was just written may be held open for a moment by a child that
// another goroutine forked; the barrier waits it out, but not for ever.
func TestExecBusy(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("ETXTBSY for scripts is Linux's")
	}
	path := filepath.Join(t.TempDir(), "program")
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	writeProgram(t, path, string(program), 0o755)
	held, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	spec := shell(t, "")
	spec.Path = path

	g := start(t, spec)
	var failure *ExecError
	if err := g.Release(context.Background()); !errors.As(err, &failure) || failure.Reason != ExecBusy || !errors.Is(err, unix.ETXTBSY) {
		t.Errorf("got %v", err)
	}

	g = start(t, spec)
	released := make(chan error)
	go func() { released <- g.Release(context.Background()) }()
	held.Close()
	if err := <-released; err != nil {
		t.Errorf("got %v", err)
	}
	if r := g.Exchange(context.Background(), nil, bounds); !r.Exit.OK() {
		t.Errorf("got %+v", r)
	}
}

func TestReleaseCancelled(t *testing.T) {
	g := start(t, shell(t, `exit 0`))
	if err := unix.Kill(g.Pid(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := g.Release(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if e := g.Stop(); e.NotProvedGone || e.Exit.Signal == 0 {
		t.Errorf("got %+v", e)
	}
}

func TestStartRefuses(t *testing.T) {
	whole := shell(t, "")
	for name, change := range map[string]func(*Spec){
		"relative path":   func(s *Spec) { s.Path = "bin/sh" },
		"no arguments":    func(s *Spec) { s.Argv = nil },
		"no directory":    func(s *Spec) { s.Dir = nil },
		"NUL in argument": func(s *Spec) { s.Argv = []string{"a\x00b"} },
		"NUL in variable": func(s *Spec) { s.Env = []string{"A=\x00"} },
	} {
		t.Run(name, func(t *testing.T) {
			spec := whole
			change(&spec)
			before := openDescriptors()
			if g, err := Start(spec); err == nil {
				g.Close()
				t.Error("started")
			}
			if after := openDescriptors(); after != before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
		})
	}
}

func TestDirectory(t *testing.T) {
	spec := shell(t, `pwd -P`)
	g := startReleased(t, spec)
	want, err := filepath.EvalSymlinks(spec.Dir.Name())
	if err != nil {
		t.Fatal(err)
	}
	if r := g.Exchange(context.Background(), nil, bounds); string(r.Stdout) != want+"\n" {
		t.Errorf("ran in %q, want %q", r.Stdout, want)
	}
}

// The streams as files, for a caller that speaks a protocol of its own.
func TestInteractive(t *testing.T) {
	g := startReleased(t, shell(t, `while read line; do echo "got $line"; done`))
	reply := make([]byte, 64)
	for _, word := range []string{"one", "two"} {
		fmt.Fprintln(g.Stdin, word)
		n, err := g.Stdout.Read(reply)
		if err != nil || string(reply[:n]) != "got "+word+"\n" {
			t.Fatalf("got %q, %v", reply[:n], err)
		}
	}
	g.Stdin.Close()
	<-g.Ended()
	if e := g.Settle(context.Background()); e != (Ending{}) {
		t.Errorf("got %+v", e)
	}
}

func TestManyAtOnce(t *testing.T) {
	goroutines, descriptors := runtime.NumGoroutine(), openDescriptors()
	const many = 64
	results := make(chan Result, many)
	for i := range many {
		spec := shell(t, `read line; echo "$line"`)
		go func() {
			g, err := Start(spec)
			if err == nil {
				defer g.Close()
				err = g.Release(context.Background())
			}
			if err != nil {
				t.Error(err)
				results <- Result{}
				return
			}
			results <- g.Exchange(context.Background(), fmt.Appendln(nil, i), bounds)
		}()
	}
	for range many {
		if r := <-results; len(r.Stdout) == 0 || !r.Exit.OK() || r.NotProvedGone {
			t.Errorf("got %+v", r)
		}
	}
	eventually(t, "all goroutines ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	// The working directories are closed at the end of the test.
	eventually(t, "all other descriptors closed", func() bool { return openDescriptors() <= descriptors+many+2 })
	if left := remainingChildren(); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
}

// A barrier that dies is told from a program that ran: before its release, and
// between the release and the execution.
func TestReleaseOfTheDead(t *testing.T) {
	for name, die := range map[string]func(t *testing.T, g *Group) error{
		"before the release": func(t *testing.T, g *Group) error {
			kill(t, g.Pid(), unix.SIGKILL)
			<-g.Ended()
			return g.Release(context.Background())
		},
		"after the release": func(t *testing.T, g *Group) error {
			kill(t, g.Pid(), unix.SIGSTOP) // it may not have read it
			released := make(chan error)
			go func() { released <- g.Release(context.Background()) }()
			eventually(t, "it is released", func() bool { return unread(g.control) > 0 })
			kill(t, g.Pid(), unix.SIGKILL)
			return <-released
		},
	} {
		t.Run(name, func(t *testing.T) {
			if runtime.GOOS != "linux" {
				t.Skip("a socket's unread bytes are asked for in the way of Linux")
			}
			spec := shell(t, `echo > ran`)
			wantNotReached(t, spec, die(t, start(t, spec)))
		})
	}
}

// unread is the memory, in bytes, of what the far end of a socket has not read.
func unread(socket *os.File) (bytes int) {
	conn, err := socket.SyscallConn()
	if err == nil {
		_ = conn.Control(func(fd uintptr) { bytes, _ = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) })
	}
	return bytes
}

func kill(t testing.TB, pid int, signal unix.Signal) {
	t.Helper()
	if err := unix.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
}

func wantNotReached(t *testing.T, spec Spec, err error) {
	t.Helper()
	if failure, ok := errors.AsType[*ExecError](err); !ok || failure.Reason != ExecNotReached || failure.Path != spec.Path {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(spec.Dir.Name(), "ran")); err == nil {
		t.Error("the program ran")
	}
}

// The variables of the runtime are the program's, and mean nothing to what is
// between the host and the program.
func TestEnvironmentIsThePrograms(t *testing.T) {
	env := []string{
		"GOMEMLIMIT=abc", "GODEBUG=inittrace=1", "GOTRACEBACK=wer", "GOGC=1", "LD_PRELOAD=/nonexistent", "@=", "@A=1", "B", "C=", "LC_ALL=C",
	}
	for name, policy := range map[string]Policy{"group": PolicyGroup, "descendants": PolicyDescendants} {
		t.Run(name, func(t *testing.T) {
			if runtime.GOOS != "linux" {
				t.Skip("reads /proc")
			}
			spec := shell(t, "")
			spec.Path, spec.Argv, spec.Env, spec.Policy = "/bin/cat", []string{"cat", "/proc/self/environ"}, env, policy
			g := startReleased(t, spec)
			r := g.Exchange(context.Background(), nil, bounds)
			if got := strings.Split(strings.TrimSuffix(string(r.Stdout), "\x00"), "\x00"); !slices.Equal(got, env) || !r.Exit.OK() {
				t.Errorf("got %q, %v, want %q", got, r.Exit, env)
			}
			// The program's own loader may complain of its own variables.
			if lines := strings.Count(string(r.Stderr), "\n"); lines > 1 || strings.Contains(string(r.Stderr), "init") {
				t.Errorf("stderr: %q", r.Stderr)
			}
		})
	}
}
