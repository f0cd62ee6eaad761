package forge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"hawser/invoke/process"
)

// world is one session in memory: an exchange against a plugin that is a
// function, in a bubble of fake time.
type world struct {
	ctx     context.Context
	request Request
	options Options
	plugin  func(*fakeProcess) int // returns its exit status

	late   time.Duration // after the plugin's exit, and the end of its output, until the host hears of it
	deep   bool          // stdout takes what nobody has read yet, as a pipe of the kernel does
	held   time.Duration // stdout stays open for so long after the plugin's exit, or until the host stops it
	left   bool          // something cannot be stopped
	onStop func()        // called when the host stops the plugin
	chunk  int           // bytes that a read of the host or the plugin gets at most; 0 for any
	onIO   func()        // called before each read and write of the host
}

// fakeProcess is the plugin's side of the streams.
type fakeProcess struct {
	stdin          io.Reader
	stdout, stderr *io.PipeWriter
	killed         chan struct{}
}

// run executes the session as Run does, without a process.
func (w *world) run() (Result, error) {
	if w.options.Timeout == 0 {
		w.options.Timeout = time.Hour
	}
	w.options.Argv = []string{"/plugin"}
	w.options.setDefaults(&w.request)
	session, err := w.options.session(w.request)
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithTimeout(w.ctx, w.options.Timeout)
	defer cancel()
	x := newExchange(ctx, session, w.start(), w.options.OutputBudget)
	x.progress, x.log = w.options.Progress, w.options.Stderr
	return w.options.conclude(x, x.run())
}

func (w *world) start() peer {
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	errRead, errWrite := io.Pipe()
	exited, killed, status := make(chan struct{}), make(chan struct{}), -1
	var closed atomic.Bool
	go func() {
		status = w.plugin(&fakeProcess{w.slow(inRead, nil), outWrite, errWrite, killed})
		inRead.Close()
		errWrite.Close()
		if w.held == 0 {
			closed.Store(true)
			time.AfterFunc(w.late, func() { outWrite.Close() })
		}
		close(exited)
		select {
		case <-time.After(w.held):
		case <-killed:
		}
		closed.Store(true)
		time.AfterFunc(w.late, func() { outWrite.Close() })
	}()
	heard := make(chan struct{})
	go func() {
		<-exited
		time.AfterFunc(w.late, func() { close(heard) })
	}()
	limit := func() {
		for _, pipe := range []*io.PipeReader{inRead, outRead, errRead} {
			pipe.CloseWithError(errors.New("stopped"))
		}
		for _, pipe := range []*io.PipeWriter{inWrite, outWrite, errWrite} {
			pipe.CloseWithError(errors.New("stopped"))
		}
	}
	var stdout io.Reader = outRead
	if w.deep {
		stdout = deepen(outRead)
	}
	return peer{
		stdin:        hookedWriter{inWrite, w.onIO},
		stdout:       w.slow(stdout, w.onIO),
		stderr:       errRead,
		exited:       heard,
		outputClosed: closed.Load,
		stop: sync.OnceValue(func() process.Ending {
			if w.onStop != nil {
				w.onStop()
			}
			close(killed)
			select {
			case <-exited:
				return process.Ending{Exit: process.Exit{Code: status}, NotProvedGone: w.left}
			default:
				limit()
				<-exited
				return process.Ending{Exit: process.Exit{Code: -1}, Cause: errors.New("stopped"), NotProvedGone: w.left}
			}
		}),
		limit: limit,
	}
}

// deepen reads ahead of its reader, up to a thousand writes.
func deepen(source io.Reader) io.Reader {
	chunks := make(chan []byte, 1000)
	go func() {
		defer close(chunks)
		for {
			chunk := make([]byte, 4096)
			n, err := source.Read(chunk)
			if err != nil {
				return
			}
			chunks <- chunk[:n]
		}
	}()
	return &deepPipe{chunks, nil}
}

type deepPipe struct {
	chunks <-chan []byte
	rest   []byte // of the last one
}

func (d *deepPipe) Read(p []byte) (int, error) {
	if len(d.rest) == 0 {
		var ok bool
		if d.rest, ok = <-d.chunks; !ok {
			return 0, io.EOF
		}
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

func (w *world) slow(r io.Reader, hook func()) io.Reader { return slowReader{r, w.chunk, hook} }

type slowReader struct {
	io.Reader
	chunk int
	hook  func()
}

func (r slowReader) Read(p []byte) (int, error) {
	if r.hook != nil {
		r.hook()
	}
	if r.chunk > 0 && len(p) > r.chunk {
		p = p[:r.chunk]
	}
	return r.Reader.Read(p)
}

type hookedWriter struct {
	io.WriteCloser
	hook func()
}

func (w hookedWriter) Write(p []byte) (int, error) {
	if w.hook != nil {
		w.hook()
	}
	return w.WriteCloser.Write(p)
}

// Plugins.

// say reads a frame before each of the texts and sends it, with the session's id
// for testID.
func (p *fakeProcess) say(texts ...string) *Reader {
	frames := NewReader(p.stdin)
	for _, text := range texts {
		frame, _ := frames.Next()
		fmt.Fprint(p.stdout, strings.ReplaceAll(text, testID, frame.ID))
	}
	return frames
}

// script is a plugin that says first after initialize and second after execute,
// and ends when its input does.
func script(status int, first, second string) func(*fakeProcess) int {
	return func(p *fakeProcess) int {
		_, _ = p.say(first, second).Next()
		return status
	}
}

// quit is a script that does not wait for the end of its input.
func quit(status int, first, second string) func(*fakeProcess) int {
	return func(p *fakeProcess) int {
		p.say(first, second)
		return status
	}
}

const (
	initializedLine = head + `"initialized","capabilities":["text","progress","cancel"]}` + "\n"
	resultLine      = head + `"result","output":"HELLO"}` + "\n"
	failureLine     = head + `"failure","category":"execution_failed"}` + "\n"
)

func progressLine(n int) string {
	return fmt.Sprintf(head+`"progress","sequence":%d,"stage":"working","text":"t"}`+"\n", n)
}

// serve is a plugin of this package.
func serve(handle ProgressHandler) func(*fakeProcess) int {
	return serveCapabilities(capabilities, handle)
}

func serveCapabilities(can []Capability, handle ProgressHandler) func(*fakeProcess) int {
	return func(p *fakeProcess) int {
		err := ServeWithProgress(Plugin{Capabilities: can, In: p.stdin, Out: p.stdout, Log: io.Discard}, handle)
		if err != nil {
			return 1
		}
		return 0
	}
}

func upper(_ context.Context, r Request, progress ProgressFunc) (Result, error) {
	progress(Started, "one")
	progress(Working, "two")
	return Result{Output: strings.ToUpper(r.Input)}, nil
}

// obedient works until its context ends.
func obedient(ctx context.Context, _ Request, _ ProgressFunc) (Result, error) {
	<-ctx.Done()
	return Result{}, ctx.Err()
}

// deaf says that it can be cancelled, and does not end before it is killed.
func deaf(p *fakeProcess) int {
	p.say(initializedLine, progressLine(1))
	_, _ = io.Copy(io.Discard, p.stdin)
	<-p.killed
	return 9
}

var hello = Request{Operation: CapText, Input: "hello"}

func outcome(err error) Outcome {
	if err == nil {
		return OutcomeResult
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Outcome
	}
	return -1
}

func TestExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []Progress
		w := world{
			ctx: t.Context(), request: hello, plugin: serve(upper),
			options: Options{Progress: func(p Progress) { got = append(got, p) }},
		}
		result, err := w.run()
		if err != nil || result.Output != "HELLO" {
			t.Errorf("got %+v, %v", result, err)
		}
		if want := []Progress{{1, Started, "one"}, {2, Working, "two"}}; !slices.Equal(got, want) {
			t.Errorf("progress %+v", got)
		}
	})
}

// Every breach of a session has its rule, and the host says which.
func TestProtocolViolations(t *testing.T) {
	for _, c := range []struct {
		name   string
		plugin func(*fakeProcess) int
		rule   Rule
		frame  int
	}{
		{"no output", func(*fakeProcess) int { return 3 }, RuleTerminal, 0},
		{"a banner", script(0, "hello\n", ""), RuleJSON, 1},
		{"a foreign id", script(0, strings.Replace(initializedLine, "0", "1", 1), ""), RuleID, 1},
		{"an undue first frame", script(0, resultLine, ""), RuleOrder, 1},
		{"an unoffered selection", script(0, head+`"initialized","capabilities":["text","commit_subject"]}`+"\n", ""), RuleCapabilities, 1},
		{"a selection without the operation", script(0, head+`"initialized","capabilities":["workspace_edit"]}`+"\n", ""), RuleCapabilities, 1},
		{"initialized twice", script(0, initializedLine, initializedLine), RuleOrder, 2},
		{"no terminal frame", quit(0, initializedLine, progressLine(1)), RuleTerminal, 0},
		{"half a terminal frame", quit(0, initializedLine, strings.TrimSuffix(resultLine, "\n")), RuleUnterminated, 2},
		{"progress from 2", script(0, initializedLine, progressLine(2)+resultLine), RuleProgress, 2},
		{"progress with a gap", script(0, initializedLine, progressLine(1)+progressLine(3)+resultLine), RuleProgress, 3},
		{"progress not negotiated", script(0, head+`"initialized","capabilities":["text"]}`+"\n", progressLine(1)+resultLine), RuleProgress, 2},
		{"the result of the other operation", script(0, initializedLine, head+`"result"}`+"\n"), RuleMissingMember, 2},
		{"two terminal frames", script(0, initializedLine, resultLine+failureLine), RuleTrailing, 3},
		{"trailing progress", script(0, initializedLine, resultLine+progressLine(1)), RuleTrailing, 3},
		{"a trailing byte", script(0, initializedLine, resultLine+"x"), RuleTrailing, 3},
		{"a trailing line end", script(0, initializedLine, resultLine+"\n"), RuleTrailing, 3},
		{"a frame after progress", script(0, initializedLine, progressLine(1)+resultLine+resultLine), RuleTrailing, 4},
		{"a foreign frame", script(0, initializedLine, resultLine+strings.Replace(resultLine, "0", "1", 1)), RuleTrailing, 3},
		{"nonzero exit", script(1, initializedLine, resultLine), RuleExit, 0},
		{"nonzero exit after failure", script(1, initializedLine, failureLine), RuleExit, 0},
		{"late exit", func(p *fakeProcess) int {
			script(0, initializedLine, resultLine)(p)
			time.Sleep(ClosingTime + HostDelay + time.Millisecond)
			return 0
		}, RuleExit, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := world{ctx: t.Context(), request: hello, plugin: c.plugin}
				_, err := w.run()
				v, ok := errors.AsType[*Violation](err)
				if outcome(err) != OutcomeProtocol || !ok || v.Rule != c.rule || v.Frame != c.frame {
					t.Errorf("got %v (%v), want rule %s in frame %d", err, outcome(err), c.rule, c.frame)
				}
			})
		})
	}
}

// A plugin that is slow to end, but in time, is well; and so is one whose child
// is slow to let go of stdout.
func TestClosingTimeIsGranted(t *testing.T) {
	const almost = ClosingTime - time.Millisecond
	for _, w := range []world{
		{plugin: func(p *fakeProcess) int {
			script(0, initializedLine, resultLine)(p)
			time.Sleep(almost)
			return 0
		}},
		{plugin: script(0, initializedLine, resultLine), held: almost},
		{plugin: quit(0, initializedLine, resultLine), held: almost},
	} {
		synctest.Test(t, func(t *testing.T) {
			w.ctx, w.request = t.Context(), hello
			began := time.Now()
			if _, err := w.run(); err != nil || time.Since(began) != almost {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
		})
	}
}

// What a busy host hears of late is judged by when it was: an exit and an end of
// output in time are well however late the news, and what is wrong stays wrong.
func TestLateNews(t *testing.T) {
	for name, c := range map[string]struct {
		plugin func(*fakeProcess) int
		held   time.Duration
		want   Outcome
		what   string
	}{
		"in time":                    {script(0, initializedLine, resultLine), 0, OutcomeResult, ""},
		"in time, before its input":  {quit(0, initializedLine, resultLine), 0, OutcomeResult, ""},
		"a failure in time":          {script(0, initializedLine, failureLine), 0, OutcomeFailure, ""},
		"nonzero exit":               {script(7, initializedLine, resultLine), 0, OutcomeProtocol, "exit 7"},
		"trailing output":            {quit(0, initializedLine, resultLine+"x"), 0, OutcomeProtocol, "output came after"},
		"no terminal frame":          {quit(0, initializedLine, ""), 0, OutcomeProtocol, "the output ended"},
		"output is held":             {script(0, initializedLine, resultLine), time.Hour, OutcomeProtocol, "held its output open"},
		"output is held for a while": {script(0, initializedLine, resultLine), ClosingTime - time.Millisecond, OutcomeResult, ""},
		"it ends late": {func(p *fakeProcess) int {
			script(0, initializedLine, resultLine)(p)
			time.Sleep(ClosingTime + HostDelay + time.Millisecond)
			return 0
		}, 0, OutcomeProtocol, "still ran"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := world{ctx: t.Context(), request: hello, plugin: c.plugin, held: c.held, deep: true, late: 10 * ClosingTime}
				_, err := w.run()
				if outcome(err) != c.want || err != nil && !strings.Contains(err.Error(), c.what) {
					t.Errorf("got %v (%v), want %v, %q", err, outcome(err), c.want, c.what)
				}
			})
		})
	}
}

// A plugin that has said everything and exited is not late because its host is
// slow to take it; nor does a host that is slow wait longer for a pipe that is
// held open.
func TestSlowProgressCallback(t *testing.T) {
	const slow, frames = 100 * time.Millisecond, MaxProgressFrames
	var lines strings.Builder
	for n := range frames {
		lines.WriteString(progressLine(n + 1))
	}
	for _, c := range []struct {
		name string
		last string // after the progress
		held time.Duration
		want Outcome
		rule Rule
	}{
		{"a result", resultLine, 0, OutcomeResult, ""},
		{"a result, and stdout is held", resultLine, time.Hour, OutcomeProtocol, RuleExit},
		{"a failure", failureLine, 0, OutcomeFailure, ""},
		{"no terminal frame", "", 0, OutcomeProtocol, RuleTerminal},
		{"no terminal frame, and stdout is held", "", time.Hour, OutcomeProtocol, RuleExit},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := 0
				w := world{
					ctx: t.Context(), request: hello, plugin: quit(0, initializedLine, lines.String()+c.last), deep: true, held: c.held,
					options: Options{Progress: func(Progress) { got++; time.Sleep(slow) }},
				}
				began := time.Now()
				_, err := w.run()
				v, _ := errors.AsType[*Violation](err)
				if outcome(err) != c.want || c.rule != "" && (v == nil || v.Rule != c.rule) {
					t.Errorf("got %v (%v), want %v by rule %q", err, outcome(err), c.want, c.rule)
				}
				if took := time.Since(began); took != frames*slow || got != frames {
					t.Errorf("%d frames in %v, want %v", got, took, frames*slow)
				}
			})
		})
	}
}

// A callback that blocks does not keep the plugin from being cancelled and
// stopped in time; and after a cancellation it is not called again.
func TestBlockedProgressCallback(t *testing.T) {
	const second = time.Second
	twice := progressLine(1) + progressLine(2)
	for _, c := range []struct {
		name   string
		after  string // execute, on stdout
		budget int64
		want   Outcome
		took   time.Duration // to the stop
		calls  int
	}{
		{"cancellation", twice, 0, OutcomeCancelled, second + DrainTime, 1},
		{"timeout", twice, 0, OutcomeTimeout, second + DrainTime, 1},
		{"budget", twice, 1000, OutcomeBudget, 0, 2},
		{"violation", twice + "x\n", 0, OutcomeProtocol, 0, 2},
		{"late exit", twice + resultLine, 0, OutcomeProtocol, ClosingTime + HostDelay, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				called, stopped, calls := make(chan struct{}), make(chan struct{}), 0
				began, took := time.Now(), time.Duration(-1)
				var frames []string
				w := world{
					ctx: ctx, request: hello, deep: true,
					plugin: watched(&frames, func(p *fakeProcess) int {
						p.say(initializedLine, c.after)
						<-called
						synctest.Wait() // the host has read everything
						_, _ = p.stderr.Write(make([]byte, c.budget))
						_, _ = io.Copy(io.Discard, p.stdin)
						<-p.killed
						return 9
					}),
					options: Options{OutputBudget: c.budget, Progress: func(Progress) {
						if calls++; calls == 1 {
							close(called)
						}
						<-stopped
					}},
					onStop: func() { took = time.Since(began); close(stopped) },
				}
				switch c.want {
				case OutcomeTimeout:
					w.options.Timeout = second
				case OutcomeCancelled:
					time.AfterFunc(second, cancel)
				}
				_, err := w.run()
				if outcome(err) != c.want || took != c.took || calls != c.calls {
					t.Errorf("got %v (%v) after %v and %d calls, want %v after %v and %d", err, outcome(err), took, calls, c.want, c.took, c.calls)
				}
				synctest.Wait()
				if got := slices.Contains(frames, "cancel"); got != (c.calls == 1) {
					t.Errorf("the plugin got %v", frames)
				}
			})
		})
	}
}

// A callback that does not return to its caller takes the plugin along, and
// leaves no goroutine: a bubble does not end before all of its goroutines.
func TestProgressCallbackThatEndsItsGoroutine(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("callback") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stopped, returned := false, false
				var panicked any
				w := world{
					ctx: t.Context(), request: hello, plugin: deaf,
					options: Options{Progress: func(Progress) { end() }},
					onStop:  func() { stopped = true },
				}
				over := make(chan struct{})
				go func() {
					defer close(over)
					defer func() { panicked = recover() }()
					_, _ = w.run()
					returned = true
				}()
				<-over
				if !stopped || returned || (panicked == "callback") != (name == "panic") {
					t.Errorf("stopped %v, returned %v, panicked with %v", stopped, returned, panicked)
				}
			})
		})
	}
}

func TestFailure(t *testing.T) {
	for _, category := range []Category{InvalidRequest, Incompatible, ExecutionFailed, Cancelled} {
		synctest.Test(t, func(t *testing.T) {
			w := world{ctx: t.Context(), request: hello, plugin: serve(func(context.Context, Request, ProgressFunc) (Result, error) {
				return Result{}, fmt.Errorf("wrapped: %w", Failure{category})
			})}
			_, err := w.run()
			if f, ok := errors.AsType[Failure](err); !ok || outcome(err) != OutcomeFailure || f.Category != category {
				t.Errorf("got %v (%v), want %s", err, outcome(err), category)
			}
		})
	}
}

// watched notes the types of the frames that a plugin gets. They are complete
// after synctest.Wait.
func watched(types *[]string, plugin func(*fakeProcess) int) func(*fakeProcess) int {
	return func(p *fakeProcess) int {
		read, write := io.Pipe()
		defer read.Close()
		go func() {
			defer write.Close()
			frames := NewReader(io.TeeReader(p.stdin, write))
			for {
				frame, err := frames.Next()
				if err != nil {
					return
				}
				*types = append(*types, frame.Message.kind())
			}
		}()
		return plugin(&fakeProcess{read, p.stdout, p.stderr, p.killed})
	}
}

func TestCancellation(t *testing.T) {
	const second = time.Second // of fake time
	initialize, execute, cancel := "initialize", "execute", "cancel"
	for _, c := range []struct {
		name     string
		plugin   func(*fakeProcess) int
		withhold []Capability
		at       time.Duration // of the cancellation
		frames   []string      // that the plugin gets
		took     time.Duration
	}{
		{"before execute", func(p *fakeProcess) int { <-p.killed; return 1 }, nil, second, nil, second},
		{"an obedient plugin", serve(obedient), nil, second, []string{initialize, execute, cancel}, second},
		{"a plugin that is deaf", deaf, nil, second, []string{initialize, execute, cancel}, second + DrainTime},
		{"cancel withheld", serve(obedient), []Capability{CapCancel}, second, []string{initialize, execute}, second},
		{"success that comes too late", serve(func(ctx context.Context, _ Request, _ ProgressFunc) (Result, error) {
			<-ctx.Done()
			return Result{Output: "done all the same"}, nil
		}), nil, second, []string{initialize, execute, cancel}, second},
		{"a violation after it", func(p *fakeProcess) int {
			script(0, initializedLine, "")(p) // until the cancel frame
			fmt.Fprint(p.stdout, "no frame\n", "and more\n")
			return 1
		}, nil, second, []string{initialize, execute, cancel}, second},
		{"a flood after it", func(p *fakeProcess) int {
			script(0, initializedLine, "")(p)
			for {
				if _, err := p.stdout.Write(make([]byte, 1<<16)); err != nil {
					return 1
				}
			}
		}, nil, second, []string{initialize, execute, cancel}, second},
		{"while the plugin ends", func(p *fakeProcess) int {
			script(0, initializedLine, resultLine)(p)
			<-p.killed
			return 9
		}, nil, 100 * time.Millisecond, []string{initialize, execute}, 100 * time.Millisecond},
	} {
		for _, deadline := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/deadline=%v", c.name, deadline), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, stop := context.WithCancel(t.Context())
					defer stop()
					var frames []string
					w := world{ctx: ctx, request: hello, plugin: watched(&frames, c.plugin), options: Options{Withhold: c.withhold}}
					want, cause := OutcomeCancelled, context.Canceled
					if deadline {
						w.options.Timeout = c.at
						want, cause = OutcomeTimeout, context.DeadlineExceeded
					} else {
						time.AfterFunc(c.at, stop)
					}
					began := time.Now()
					_, err := w.run()
					if outcome(err) != want || !errors.Is(err, cause) {
						t.Errorf("got %v (%v), want %v", err, outcome(err), want)
					}
					if took := time.Since(began); took != c.took {
						t.Errorf("took %v, want %v", took, c.took)
					}
					if synctest.Wait(); !slices.Equal(frames, c.frames) {
						t.Errorf("the plugin got %v, want %v", frames, c.frames)
					}
				})
			})
		}
	}
}

// flood writes bytes on stderr after the request, then waits to be killed.
func flood(bytes int) func(*fakeProcess) int {
	return func(p *fakeProcess) int {
		p.say(initializedLine, "")
		_, _ = p.stderr.Write(make([]byte, bytes))
		<-p.killed
		return 9
	}
}

func TestBudget(t *testing.T) {
	const budget = 1000
	frames := initializedLine + resultLine
	for _, c := range []struct {
		name   string
		plugin func(*fakeProcess) int
		want   Outcome
	}{
		{"stderr alone", flood(budget), OutcomeBudget}, // with initialized it is over
		{"a line without end", func(p *fakeProcess) int {
			_, _ = p.stdout.Write(make([]byte, budget+1))
			<-p.killed
			return 9
		}, OutcomeBudget},
		{"exactly the budget", func(p *fakeProcess) int {
			_, _ = p.stderr.Write(make([]byte, budget-len(frames)))
			return script(0, initializedLine, resultLine)(p)
		}, OutcomeResult},
		{"a byte more", func(p *fakeProcess) int {
			_, _ = p.stderr.Write(make([]byte, budget-len(frames)+1))
			return script(0, initializedLine, resultLine)(p)
		}, OutcomeBudget},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := world{ctx: t.Context(), request: hello, plugin: c.plugin, options: Options{OutputBudget: budget}}
				if _, err := w.run(); outcome(err) != c.want {
					t.Errorf("got %v (%v), want %v", err, outcome(err), c.want)
				}
			})
		})
	}
}

// That something may be left is told beside every outcome; no result is one.
func TestNotProvedGone(t *testing.T) {
	for name, c := range map[string]struct {
		world
		want Outcome
	}{
		"result":    {world{plugin: script(0, initializedLine, resultLine)}, OutcomeProtocol},
		"failure":   {world{plugin: script(0, initializedLine, failureLine)}, OutcomeProtocol},
		"violation": {world{plugin: script(0, initializedLine, "x\n")}, OutcomeProtocol},
		"exit":      {world{plugin: script(1, initializedLine, resultLine)}, OutcomeProtocol},
		"no output": {world{plugin: func(*fakeProcess) int { return 1 }}, OutcomeProtocol},
		"budget":    {world{plugin: flood(1000), options: Options{OutputBudget: 1000}}, OutcomeBudget},
		"timeout":   {world{plugin: deaf}, OutcomeTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := c.world
				w.ctx, w.request, w.left = t.Context(), hello, true
				_, err := w.run()
				e, ok := errors.AsType[*Error](err)
				if !ok || e.Outcome != c.want || !e.NotProvedGone || strings.Count(err.Error(), "may still run") != 1 {
					t.Errorf("got %v (%v), want %v and what may be left", err, outcome(err), c.want)
				}
			})
		})
	}
}

// Two outcomes at once have the one answer of the contract. Orders are forced:
// the host stands still in the progress callback, or in stopping the plugin,
// until both have happened.
func TestRaces(t *testing.T) {
	var inProgress chan struct{} // closed when the host is in the progress callback
	floodThen := func(p *fakeProcess) int {
		p.say(initializedLine, progressLine(1))
		<-inProgress
		_, _ = p.stderr.Write(make([]byte, 2000))
		<-p.killed
		return 9
	}
	for _, c := range []struct {
		name   string
		plugin func(*fakeProcess) int
		at     string // when the context ends: in the progress callback, or in stopping the plugin
		want   Outcome
	}{
		{"cancellation and success", script(0, initializedLine, progressLine(1)+resultLine), "progress", OutcomeCancelled},
		{"cancellation and a violation", quit(0, initializedLine, progressLine(1)+"x\n"), "progress", OutcomeCancelled},
		{"cancellation and the plugin's end", quit(1, initializedLine, progressLine(1)), "progress", OutcomeCancelled},
		{"cancellation ready before a budget is seen", floodThen, "progress", OutcomeCancelled},
		{"a budget seen before the cancellation", floodThen, "stop", OutcomeBudget},
		{"success, then cancellation during the cleanup", script(0, initializedLine, progressLine(1)+resultLine), "stop", OutcomeCancelled},
		{"failure, then cancellation during the cleanup", script(0, initializedLine, progressLine(1)+failureLine), "stop", OutcomeCancelled},
		{"a violation, then cancellation during the cleanup", script(0, initializedLine, progressLine(2)), "stop", OutcomeCancelled},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 20 { // select chooses at random among what is ready
				synctest.Test(t, func(t *testing.T) {
					ctx, stop := context.WithCancel(t.Context())
					defer stop()
					w := world{ctx: ctx, request: hello, plugin: c.plugin, options: Options{OutputBudget: 2000}}
					inProgress = make(chan struct{})
					w.options.Progress = func(Progress) {
						if c.at == "progress" {
							stop()
						}
						close(inProgress)
						synctest.Wait() // everything else has come as far as it can
					}
					if c.at == "stop" {
						w.onStop = stop
					}
					if _, err := w.run(); outcome(err) != c.want {
						t.Errorf("got %v (%v), want %v", err, outcome(err), c.want)
					}
				})
			}
		})
	}
}

// The context may end at any read or write of the host: the outcome is the
// cancellation, and the plugin got at most one cancel frame, after execute.
func TestEveryCancellationPoint(t *testing.T) {
	for point, cancelled := 1, true; cancelled; point++ {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var count atomic.Int64
			var frames []string
			w := world{
				ctx: ctx, request: hello, plugin: watched(&frames, serve(upper)), chunk: 7,
				onIO: func() {
					if count.Add(1) == int64(point) {
						stop()
					}
				},
			}
			result, err := w.run()
			synctest.Wait()
			if cancelled = ctx.Err() != nil; !cancelled {
				if err != nil || result.Output != "HELLO" {
					t.Errorf("without a cancellation: %+v, %v", result, err)
				}
				return
			}
			if outcome(err) != OutcomeCancelled {
				t.Errorf("point %d: got %+v, %v", point, result, err)
			}
			if order := strings.Join(frames, " "); !strings.HasPrefix("initialize execute cancel", order) {
				t.Errorf("point %d: the plugin got %q", point, order)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// TestBothEnds holds every session that both sides can have against a model.
func TestBothEnds(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		request := genRequest().Draw(r, "request")
		can := genCapabilities().Draw(r, "capabilities")
		withhold := rapid.SliceOfDistinct(rapid.SampledFrom(capabilities[2:]), func(c Capability) Capability { return c }).Draw(r, "withheld")
		texts := rapid.SliceOfN(rapid.String(), 0, MaxProgressFrames+3).Draw(r, "progress texts")
		returned := Result{
			Output:        rapid.StringN(-1, -1, MaxTextBytes+2).Draw(r, "output"),
			CommitSubject: rapid.OneOf(genLine(MaxCommitSubjectBytes), rapid.Just("")).Draw(r, "commit subject"),
			Report:        genReport().Draw(r, "report"),
		}
		var failure error
		if rapid.IntRange(0, 3).Draw(r, "fails") == 0 {
			failure = Failure{rapid.SampledFrom([]Category{InvalidRequest, Incompatible, ExecutionFailed, Cancelled}).Draw(r, "category")}
		}
		chunk := rapid.IntRange(0, 50).Draw(r, "chunk")

		// The model.
		var offer []Capability
		for _, c := range append([]Capability{request.Operation}, request.Operation.Options()...) {
			if !slices.Contains(withhold, c) && slices.Contains(can, c) {
				offer = append(offer, c)
			}
		}
		selected := func(c Capability) bool { return slices.Contains(offer, c) }
		want, wantOutcome := Result{Operation: request.Operation}, OutcomeResult
		switch {
		case !selected(request.Operation):
			wantOutcome = OutcomeProtocol
		case failure != nil:
			wantOutcome = OutcomeFailure
		case request.Operation == CapText:
			want.Output = returned.Output
			if len(want.Output) > MaxTextBytes {
				wantOutcome = OutcomeFailure
			}
			returned.CommitSubject, returned.Report = "", nil
		default:
			if selected(CapCommitSubject) {
				want.CommitSubject = returned.CommitSubject
			}
			if selected(CapAgentReport) {
				want.Report = returned.Report
			}
			returned.Output = ""
		}
		servedRequest := request
		servedRequest.Selected = offer
		wantProgress := 0
		if selected(request.Operation) && selected(CapProgress) {
			wantProgress = min(len(texts), MaxProgressFrames)
		}

		var problem string
		synctest.Test(t, func(t *testing.T) {
			var got []Progress
			var served Request
			w := world{
				ctx: t.Context(), request: request, chunk: chunk,
				options: Options{Withhold: withhold, Progress: func(p Progress) { got = append(got, p) }},
				plugin: serveCapabilities(can, func(_ context.Context, request Request, progress ProgressFunc) (Result, error) {
					served = request
					for _, text := range texts {
						progress(Working, text)
					}
					return returned, failure
				}),
			}
			result, err := w.run()
			switch {
			case outcome(err) != wantOutcome:
				problem = fmt.Sprintf("got %v (%v), want %v", err, outcome(err), wantOutcome)
			case err == nil && !reflect.DeepEqual(result, want):
				problem = fmt.Sprintf("got %+v, want %+v", result, want)
			case selected(request.Operation) && !reflect.DeepEqual(served, servedRequest):
				problem = fmt.Sprintf("served %+v, want %+v", served, servedRequest)
			case len(got) != wantProgress:
				problem = fmt.Sprintf("got %d progress frames, want %d", len(got), wantProgress)
			}
			for i, p := range got {
				if p.Sequence != i+1 || p.Text != cut(texts[i], MaxProgressTextBytes) {
					problem = fmt.Sprintf("progress %d is %+v", i, p)
				}
			}
		})
		if problem != "" {
			r.Fatal(problem)
		}
	})
}
