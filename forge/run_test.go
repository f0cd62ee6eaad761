package forge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hawser/internal/fault"
	"hawser/invoke/process"
)

// pluginVariable tells this test binary which plugin to be.
const pluginVariable = "FORGE_TEST_PLUGIN"

var testPlugins = map[string]ProgressHandler{
	"upper":    upper,
	"obedient": obedient,
	"failing": func(context.Context, Request, ProgressFunc) (Result, error) {
		return Result{}, Failure{InvalidRequest}
	},
	"deaf": func(context.Context, Request, ProgressFunc) (Result, error) {
		select {}
	},
	"chatty": func(ctx context.Context, _ Request, _ ProgressFunc) (Result, error) {
		for ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, strings.Repeat("chatter ", 100))
		}
		return Result{}, ctx.Err()
	},
}

func TestMain(m *testing.M) {
	if handle, ok := testPlugins[os.Getenv(pluginVariable)]; ok {
		if err := ServeWithProgress(Plugin{Capabilities: capabilities}, handle); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if left := children(); code == 0 && len(left) > 0 {
		fmt.Fprintln(os.Stderr, "tests left processes behind:", left)
		code = 1
	}
	os.Exit(code)
}

// children lists the children of this process, which as a subreaper inherits
// whatever escapes. Where there is no /proc it sees none.
func children() (pids []string) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if fields[1] == strconv.Itoa(os.Getpid()) {
			pids = append(pids, filepath.Base(filepath.Dir(path)))
		}
	}
	return pids
}

// plugin is one of testPlugins, run by a shell that does something first. What
// the shell starts notes its pid in a file pid.<n> of the directory.
func plugin(t testing.TB, name, before string) Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	options := Options{
		Argv: []string{self},
		Env: []string{
			"PATH=/usr/local/bin:/usr/bin:/bin", pluginVariable + "=" + name,
			"GORACE=atexit_sleep_ms=0", // a program of the race detector exits a second late otherwise
		},
		Dir:     dir,
		Timeout: time.Minute,
	}
	if before != "" {
		options.Argv = []string{"/bin/sh", "-c", before + ` exec "$0"`, self}
	}
	return options
}

// What plugins leave behind. The storm ends by itself, should nobody end it.
const (
	ordinaryChild = `sh -c 'echo $$ > pid.$$; exec sleep 1000' </dev/null >/dev/null 2>&1 & `
	setsidChild   = `setsid sh -c 'echo $$ > pid.$$; exec sleep 1000' </dev/null >/dev/null 2>&1 & `
	doubleFork    = `(setsid sh -c 'echo $$ > pid.$$; (sh -c "echo \$\$ > pid.\$\$; exec sleep 1000" &) ; exec sleep 1000' </dev/null >/dev/null 2>&1 &) ; `
	holdsStdout   = `setsid sh -c 'echo $$ > pid.$$; exec sleep 1000' & `
	holdsIt       = `setsid sh -c 'trap "" TERM HUP INT; echo $$ > pid.$$; while :; do sleep 1; done' & ` // and ignores TERM
	ignoresTERM   = `setsid sh -c 'trap "" TERM HUP INT; echo $$ > pid.$$; while :; do sleep 1; done' </dev/null >/dev/null 2>&1 & `
	forkStorm     = `setsid sh -c 'trap "" TERM; echo $$ > pid.$$; n=0; while [ $n -lt 500 ]; do (setsid sleep 30 &) ; sleep 0.01; n=$((n+1)); done' </dev/null >/dev/null 2>&1 & `
)

// awaitPids waits until n processes have noted their pids.
func awaitPids(n int) string {
	return fmt.Sprintf(`while [ "$(cat pid.* 2>/dev/null | wc -l)" -lt %d ]; do sleep 0.01; done; `, n)
}

func needLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("what leaves its group is followed on Linux only")
	}
}

// Nothing of a plugin is left when Run returns, however it ended and whatever it
// started; and what the plugin started, not how we ended it, makes the outcome.
func TestNothingSurvives(t *testing.T) {
	needLinux(t)
	const held = OutcomeProtocol
	for name, c := range map[string]struct {
		script string
		pids   int
		want   Outcome
	}{
		"an ordinary child":                          {ordinaryChild, 1, OutcomeResult},
		"a child in its own session":                 {setsidChild, 1, OutcomeResult},
		"a double fork":                              {doubleFork, 2, OutcomeResult},
		"a child that ignores TERM":                  {ignoresTERM, 1, OutcomeResult},
		"a fork storm":                               {forkStorm, 1, OutcomeResult},
		"a child that holds stdout":                  {holdsStdout, 1, held},
		"a child that holds stdout and ignores TERM": {holdsIt, 1, held},
	} {
		t.Run(name, func(t *testing.T) { testNothingSurvives(t, "upper", c.want, c.script, c.pids) })
	}
	for handler, want := range map[string]Outcome{
		"failing": held, "obedient": OutcomeCancelled, "deaf": OutcomeCancelled,
	} {
		t.Run("all of them, "+handler, func(t *testing.T) {
			testNothingSurvives(t, handler, want, ordinaryChild+setsidChild+doubleFork+holdsStdout+ignoresTERM+forkStorm, 7)
		})
	}
}

func testNothingSurvives(t *testing.T, handler string, want Outcome, script string, processes int) {
	t.Parallel()
	var err error
	for range 10 { // again when the plugin ended too late; see run
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		options := plugin(t, handler, script+awaitPids(processes))
		if want == OutcomeCancelled {
			go cancelWhen(cancel, func() bool { return len(pids(options.Dir)) >= processes })
		}
		_, err = Run(ctx, hello, options)
		noted := pids(options.Dir)
		if len(noted) < processes {
			t.Errorf("%d of %d processes started", len(noted), processes)
		}
		for _, pid := range noted {
			if runs(pid, options.Dir) {
				t.Errorf("process %s still runs", pid)
			}
		}
		if !endedLate(err) {
			break
		}
	}
	if outcome(err) != want {
		t.Errorf("got %v (%v), want %v", err, outcome(err), want)
	}
	if v, ok := errors.AsType[*Violation](err); ok && (v.Rule != RuleExit || !strings.Contains(v.What, "held its output open")) {
		t.Errorf("got %v, want it told that stdout was held", err)
	}
}

// A plugin whose wrapper is killed may leave something, and is told as what it is.
func TestWrapperKilled(t *testing.T) {
	needLinux(t)
	options := plugin(t, "upper", setsidChild+awaitPids(1)+`kill -KILL $PPID; exec sleep 1000; `)
	_, err := Run(t.Context(), hello, options)
	e, ok := errors.AsType[*Error](err)
	if !ok || !e.NotProvedGone || !strings.Contains(err.Error(), "its wrapper process was killed") || !strings.Contains(err.Error(), "may still run") {
		t.Errorf("got %v", err)
	}
	// What is left is now a child of this process, which has to end it.
	for len(children()) > 0 {
		for _, child := range children() {
			pid, _ := strconv.Atoi(child)
			_ = syscall.Kill(pid, syscall.SIGKILL)
			_, _ = syscall.Wait4(pid, nil, 0, nil)
		}
	}
}

func cancelWhen(cancel func(), condition func() bool) {
	for !condition() {
		time.Sleep(time.Millisecond)
	}
	cancel()
}

// pids are those that were noted in the directory.
func pids(dir string) (noted []string) {
	paths, _ := filepath.Glob(filepath.Join(dir, "pid.*"))
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
			noted = append(noted, strings.TrimSpace(string(text)))
		}
	}
	return noted
}

// runs reports whether the pid is a process that works in the directory: the
// number may have a new owner by now.
func runs(pid, dir string) bool {
	cwd, err := os.Readlink("/proc/" + pid + "/cwd")
	return err == nil && cwd == dir
}

// run is Run, again when the plugin ended too late: the contract counts the time
// of the clock, and a machine that tests in parallel may not give a process its
// turn in that time.
func run(t *testing.T, request Request, options Options) (result Result, err error) {
	t.Helper()
	for range 10 {
		result, err = Run(t.Context(), request, options)
		if !endedLate(err) {
			break
		}
	}
	return result, err
}

func endedLate(err error) bool {
	v, ok := errors.AsType[*Violation](err)
	return ok && v.Rule == RuleExit && strings.Contains(v.What, "still ran")
}

func TestRun(t *testing.T) {
	var progress []Progress
	options := plugin(t, "upper", "")
	options.Progress = func(p Progress) { progress = append(progress[:p.Sequence-1], p) }
	result, err := run(t, hello, options)
	if err != nil || result.Output != "HELLO" || len(progress) != 2 {
		t.Errorf("got %+v, %v, progress %+v", result, err, progress)
	}
}

func TestRunLargest(t *testing.T) {
	input := strings.Repeat("\x01", MaxTextBytes) // 393,216 bytes on the wire
	result, err := run(t, Request{Operation: CapText, Input: input}, plugin(t, "upper", ""))
	if err != nil || result.Output != input {
		t.Errorf("got %d bytes, %v", len(result.Output), err)
	}
}

func TestRunFailure(t *testing.T) {
	_, err := run(t, hello, plugin(t, "failing", ""))
	if f, ok := errors.AsType[Failure](err); !ok || f.Category != InvalidRequest || outcome(err) != OutcomeFailure || !fault.Is(err, fault.ProcessFailed) {
		t.Errorf("got %v", err)
	}
}

// A panic of the callback reaches Run's caller, and nothing of the plugin is left.
func TestRunProgressPanics(t *testing.T) {
	options := plugin(t, "upper", ordinaryChild+awaitPids(1))
	options.Progress = func(Progress) { panic("callback") }
	func() {
		defer func() {
			if p := recover(); p != "callback" {
				t.Errorf("recovered %v", p)
			}
		}()
		_, err := Run(t.Context(), hello, options)
		t.Errorf("Run returned %v", err)
	}()
	if left := children(); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

func TestRunStderr(t *testing.T) {
	var log strings.Builder
	options := plugin(t, "upper", `echo private >&2; `)
	options.Stderr = &log
	if _, err := Run(t.Context(), hello, options); err != nil && !endedLate(err) || log.String() != "private\n" {
		t.Errorf("got %q, %v", log.String(), err)
	}
}

// What a plugin says last is not lost.
func TestRunLastWords(t *testing.T) {
	var log strings.Builder
	options := plugin(t, "upper", `seq 1 5000 >&2; exit 1; `)
	options.Stderr = &log
	if _, err := Run(t.Context(), hello, options); outcome(err) != OutcomeProtocol || !strings.HasSuffix(log.String(), "\n5000\n") {
		t.Errorf("got %d bytes, %v", log.Len(), err)
	}
}

func TestRunBudget(t *testing.T) {
	options := plugin(t, "chatty", "")
	_, err := Run(t.Context(), hello, options)
	if outcome(err) != OutcomeBudget || !fault.Is(err, fault.ResponseOversized) || !strings.Contains(err.Error(), "8388608 bytes") {
		t.Errorf("got %v", err)
	}
}

func TestRunTimeout(t *testing.T) {
	options := plugin(t, "deaf", "")
	options.Timeout = 200 * time.Millisecond
	_, err := Run(t.Context(), hello, options)
	if outcome(err) != OutcomeTimeout || !errors.Is(err, context.DeadlineExceeded) || !fault.Is(err, fault.Timeout) {
		t.Errorf("got %v", err)
	}
}

func TestRunCancelledBefore(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the lease was lost")
	cancel(cause)
	_, err := Run(ctx, hello, plugin(t, "upper", ""))
	if outcome(err) != OutcomeCancelled || !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

func TestRunProtocol(t *testing.T) {
	for script, want := range map[string]struct {
		rule    Rule
		code    fault.Code
		message string
	}{
		`exit 3`:                   {RuleTerminal, fault.HandshakeInvalid, "it ended with exit 3 and broke the protocol: the output ended before initialized (rule terminal)"},
		`kill -9 $$`:               {RuleTerminal, fault.HandshakeInvalid, "it ended with signal 9 (killed) and broke the protocol: the output ended before initialized (rule terminal)"},
		`echo hello; sleep 1000`:   {RuleJSON, fault.HandshakeInvalid, "it broke the protocol: frame 1: the frame is not valid JSON (rule json)"},
		`exec >&-; sleep 1000`:     {RuleTerminal, fault.HandshakeInvalid, "it broke the protocol: the output ended before initialized (rule terminal)"},
		`"$0"; code=$?; echo done`: {RuleTrailing, fault.ResponseInvalid, "it broke the protocol: frame 5: output came after the terminal frame (rule trailing)"},
		`"$0"; exit 7`:             {RuleExit, fault.ResponseInvalid, "it broke the protocol: exit 7 followed the terminal frame, not exit 0 (rule exit)"},
		`"$0"; sleep 1000`:         {RuleExit, fault.ResponseInvalid, "it broke the protocol: the plugin still ran 250ms after its last frame (rule exit)"},
	} {
		t.Run(script, func(t *testing.T) {
			options := plugin(t, "upper", script+"; ")
			_, err := Run(t.Context(), hello, options)
			for tries := 0; endedLate(err) && !strings.Contains(want.message, "still ran") && tries < 10; tries++ {
				_, err = Run(t.Context(), hello, options)
			}
			v, ok := errors.AsType[*Violation](err)
			if !ok || outcome(err) != OutcomeProtocol || v.Rule != want.rule || !fault.Is(err, want.code) {
				t.Fatalf("got %v (%v), want rule %s", err, fault.CodeOf(err), want.rule)
			}
			if got := strings.TrimPrefix(err.Error(), "plugin /bin/sh: "); want.message != "" && got != want.message {
				t.Errorf("got  %s\nwant %s", got, want.message)
			}
		})
	}
}

func TestRunDoesNotStart(t *testing.T) {
	dir := t.TempDir()
	notProgram := filepath.Join(dir, "text")
	if err := os.WriteFile(notProgram, []byte("just text\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	good := func(change func(*Options)) Options {
		options := plugin(t, "upper", "")
		change(&options)
		return options
	}
	for name, c := range map[string]struct {
		request Request
		options Options
		code    fault.Code
	}{
		"no arguments":           {hello, good(func(o *Options) { o.Argv = nil }), fault.Usage},
		"65 arguments":           {hello, good(func(o *Options) { o.Argv = append(o.Argv, strings.Split(strings.Repeat("a", 64), "")...) }), fault.Usage},
		"an empty argument":      {hello, good(func(o *Options) { o.Argv = append(o.Argv, "") }), fault.Usage},
		"a long argument":        {hello, good(func(o *Options) { o.Argv = append(o.Argv, strings.Repeat("a", 4097)) }), fault.Usage},
		"a NUL":                  {hello, good(func(o *Options) { o.Argv = append(o.Argv, "a\x00") }), fault.Usage},
		"no UTF-8":               {hello, good(func(o *Options) { o.Argv = append(o.Argv, "\xff") }), fault.Usage},
		"no timeout":             {hello, good(func(o *Options) { o.Timeout = 0 }), fault.Usage},
		"a name without =":       {hello, good(func(o *Options) { o.Env = append(o.Env, "A") }), fault.Usage},
		"a name twice":           {hello, good(func(o *Options) { o.Env = append(o.Env, "PATH=") }), fault.Usage},
		"no operation":           {Request{}, good(func(*Options) {}), fault.Usage},
		"a relative path":        {Request{Operation: CapWorkspaceEdit, Workspace: "a", Instruction: "i"}, good(func(*Options) {}), fault.Usage},
		"no file":                {hello, good(func(o *Options) { o.Argv[0] = filepath.Join(dir, "none") }), fault.ProcessFailed},
		"not in PATH":            {hello, good(func(o *Options) { o.Argv[0] = "no-such-plugin-anywhere" }), fault.ProcessFailed},
		"this directory":         {hello, good(func(o *Options) { o.Argv[0] = "." }), fault.ProcessFailed},
		"no program":             {hello, good(func(o *Options) { o.Argv[0] = notProgram }), fault.ProcessFailed},
		"no directory":           {hello, good(func(o *Options) { o.Dir = filepath.Join(dir, "none") }), fault.IO},
		"a file for a directory": {hello, good(func(o *Options) { o.Dir = notProgram }), fault.IO},
		"a FIFO for a directory": {hello, good(func(o *Options) { o.Dir = fifo }), fault.IO},
	} {
		_, err := Run(t.Context(), c.request, c.options)
		if outcome(err) != OutcomeNotStarted || !fault.Is(err, c.code) {
			t.Errorf("%s: %v (%v, %v), want %v", name, err, outcome(err), fault.CodeOf(err), c.code)
		}
		if name == "this directory" && !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The plugin is told the timeout of the whole unless the request has its own.
func TestRunTimeoutMS(t *testing.T) {
	for _, c := range []struct {
		request int64
		timeout time.Duration
		want    int64
	}{{0, time.Minute, 60_000}, {0, time.Microsecond, 1}, {5, time.Minute, 5}} {
		request := Request{Operation: CapWorkspaceEdit, TimeoutMS: c.request}
		(&Options{Timeout: c.timeout}).setDefaults(&request)
		if request.TimeoutMS != c.want {
			t.Errorf("%+v: told %d ms", c, request.TimeoutMS)
		}
	}
}

// A hundred at once: each has its own answer, and no process, descriptor or
// goroutine is left.
func TestRunSideBySide(t *testing.T) {
	const sessions = 100
	if _, err := run(t, hello, plugin(t, "upper", "")); err != nil { // what stays for good is made
		t.Fatal(err)
	}
	descriptors, goroutines := openDescriptors(), runtime.NumGoroutine()
	options := plugin(t, "upper", "")
	var group sync.WaitGroup
	for i := range sessions {
		group.Go(func() {
			input := fmt.Sprintf("session %d", i)
			result, err := Run(t.Context(), Request{Operation: CapText, Input: input}, options)
			if (err != nil || result.Output != strings.ToUpper(input)) && !endedLate(err) {
				t.Errorf("%s: %+v, %v", input, result, err)
			}
		})
	}
	group.Wait()
	if left := children(); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	// A goroutine that has done its work may take a moment to be gone.
	for end := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > goroutines || openDescriptors() > descriptors; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d descriptors before, %d after; %d goroutines before, these after:\n%s",
				descriptors, openDescriptors(), goroutines, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func openDescriptors() int {
	names, _ := os.ReadDir("/dev/fd")
	return len(names)
}

// BenchmarkRun is a whole text session; BenchmarkRunStarts is what its two
// processes, wrapper and plugin, cost by themselves.
func BenchmarkRun(b *testing.B) {
	options := plugin(b, "upper", "")
	for b.Loop() {
		if _, err := Run(b.Context(), hello, options); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRunStarts(b *testing.B) {
	options := plugin(b, "upper", "")
	dir, err := os.Open(options.Dir)
	if err != nil {
		b.Fatal(err)
	}
	defer dir.Close()
	for b.Loop() {
		g, err := process.Start(process.Spec{
			Path: options.Argv[0], Argv: options.Argv, Env: options.Env, Dir: dir, Policy: process.PolicyDescendants,
		})
		if err != nil {
			b.Fatal(err)
		}
		if err := g.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
		g.Stdin.Close() // a plugin without a host ends by itself
		_, _ = io.Copy(io.Discard, g.Stdout)
		<-g.Ended()
		g.Close()
	}
}
