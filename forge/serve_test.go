package forge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

const (
	initializeLine = head + `"initialize","capabilities":["text","progress","cancel"],"limits":{"frame_bytes":1048576,"progress_frames":128,"text_bytes":65536,"progress_text_bytes":1024,"commit_subject_bytes":256}}` + "\n"
	executeLine    = head + `"execute","operation":"text","input":"hello"}` + "\n"
	cancelLine     = head + `"cancel"}` + "\n"
)

// output collects what a plugin writes.
type output struct {
	mu sync.Mutex
	bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Buffer.Write(p)
}

// serveLines serves one session whose host sends this and then nothing, with
// stdin open; ended closes stdin too.
func serveLines(t *testing.T, lines string, ended bool, handle ProgressHandler) (string, string, error) {
	t.Helper()
	read, write := io.Pipe()
	defer read.Close()
	go func() {
		_, _ = io.WriteString(write, lines)
		if ended {
			write.Close()
		}
	}()
	var out, log output
	err := ServeWithProgress(Plugin{
		Capabilities: []Capability{CapText, CapProgress, CapCancel}, In: read, Out: &out, Log: &log,
	}, handle)
	return out.String(), log.String(), err
}

func TestServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, _, err := serveLines(t, initializeLine+executeLine, false, upper)
		want := initializedLine +
			head + `"progress","sequence":1,"stage":"started","text":"one"}` + "\n" +
			head + `"progress","sequence":2,"stage":"working","text":"two"}` + "\n" +
			resultLine
		if err != nil || out != want {
			t.Errorf("got %s, %v", out, err)
		}
	})
}

// A handler that ends its goroutine has failed, and does not keep its host waiting.
func TestServeGoexit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, log, err := serveLines(t, initializeLine+executeLine, false, func(context.Context, Request, ProgressFunc) (Result, error) {
			runtime.Goexit()
			panic("not reached")
		})
		if want := initializedLine + failureLine; err != nil || out != want || log != "the handler ended its goroutine\n" {
			t.Errorf("got %s, %q, %v", out, log, err)
		}
	})
}

// A frame without a message is refused, and breaks nothing.
func TestFrameWithoutMessage(t *testing.T) {
	session := NewSession(testID, hello, []Capability{CapText})
	err := session.Receive(Frame{ID: testID})
	if v, ok := errors.AsType[*Violation](err); !ok || v.Rule != RuleOrder {
		t.Errorf("got %v", err)
	}
}

// A bad first frame is answered with nothing, a bad second one with exactly the
// initialized frame before it.
func TestServeRejects(t *testing.T) {
	foreign := func(line string) string { return strings.Replace(line, "0123", "1123", 1) }
	for _, c := range []struct {
		name, lines string
		ended       bool
		out         string
		rule        Rule
		frame       int
	}{
		{"nothing", "", true, "", RuleOrder, 0},
		{"a blank line", "\n" + initializeLine, false, "", RuleBlankLine, 1},
		{"no LF", strings.TrimSuffix(initializeLine, "\n"), true, "", RuleUnterminated, 1},
		{"execute first", executeLine, false, "", RuleOrder, 1},
		{"no operation of ours", strings.Replace(initializeLine, `"text",`, `"workspace_edit",`, 1), false, "", RuleCapabilities, 1},
		{"no execute", initializeLine, true, initializedLine, RuleOrder, 0},
		{"initialize twice", initializeLine + initializeLine, false, initializedLine, RuleOrder, 2},
		{"cancel before execute", initializeLine + cancelLine, false, initializedLine, RuleOrder, 2},
		{"another id", initializeLine + foreign(executeLine), false, initializedLine, RuleID, 2},
		{"an operation not negotiated", initializeLine + head + `"execute","operation":"workspace_edit","workspace":"/","instruction":"i","timeout_ms":1}` + "\n", false, initializedLine, RuleOperation, 2},
		{"half of execute", initializeLine + executeLine[:40], true, initializedLine, RuleUnterminated, 2},
		{"execute twice", initializeLine + executeLine + executeLine, false, initializedLine, RuleOrder, 3},
		{"cancel twice", initializeLine + executeLine + cancelLine + cancelLine, false, initializedLine, RuleOrder, 4},
		{"a foreign cancel", initializeLine + executeLine + foreign(cancelLine), false, initializedLine, RuleID, 3},
		{"half a cancel", initializeLine + executeLine + cancelLine[:40], true, initializedLine, RuleUnterminated, 3},
		{"a cancel not negotiated", strings.Replace(initializeLine, `,"cancel"`, "", 1) + executeLine + cancelLine, false, strings.Replace(initializedLine, `,"cancel"`, "", 1), RuleCapabilities, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stubborn := func(ctx context.Context, _ Request, _ ProgressFunc) (Result, error) {
					<-ctx.Done()
					time.Sleep(10 * time.Millisecond) // the violation after it comes first
					return Result{}, nil
				}
				out, _, err := serveLines(t, c.lines, c.ended, stubborn)
				v, ok := errors.AsType[*Violation](err)
				if !ok || v.Rule != c.rule || v.Frame != c.frame {
					t.Errorf("got %v, want rule %s in frame %d", err, c.rule, c.frame)
				}
				if out != c.out {
					t.Errorf("wrote %q, want %q", out, c.out)
				}
			})
		})
	}
}

// A violation ends the plugin even when its handler does not end.
func TestServeDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		began := time.Now()
		out, _, err := serveLines(t, initializeLine+executeLine+executeLine, false, func(context.Context, Request, ProgressFunc) (Result, error) {
			<-release
			return Result{}, nil
		})
		if err == nil || out != initializedLine || time.Since(began) != violationGrace {
			t.Errorf("after %v: %q, %v", time.Since(began), out, err)
		}
	})
}

// After a violation nothing more is written, by a handler either that never looks
// at its context: what it reports is dropped from then on.
func TestServeDropsProgressAfterViolation(t *testing.T) {
	for name, violation := range map[string]string{
		"execute twice": executeLine, "cancel twice": cancelLine + cancelLine, "no frame": "\n", "half a frame, then the end": "{",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				read, write := io.Pipe()
				defer read.Close()
				first, release := make(chan struct{}), make(chan struct{})
				go func() {
					_, _ = io.WriteString(write, initializeLine+executeLine)
					<-first
					_, _ = io.WriteString(write, violation)
					write.Close()
				}()
				var out output
				err := ServeWithProgress(Plugin{Capabilities: []Capability{CapText, CapProgress, CapCancel}, In: read, Out: &out, Log: io.Discard},
					func(_ context.Context, _ Request, progress ProgressFunc) (Result, error) {
						progress(Started, "one")
						close(first)
						synctest.Wait() // the violation has been read
						for range 10 {
							progress(Working, "two")
						}
						<-release
						progress(Finalizing, "three")
						return Result{}, nil
					})
				close(release)
				synctest.Wait()
				want := initializedLine + head + `"progress","sequence":1,"stage":"started","text":"one"}` + "\n"
				if _, ok := errors.AsType[*Violation](err); !ok || out.String() != want {
					t.Errorf("wrote %s, %v", out.String(), err)
				}
			})
		})
	}
}

// A host that breaks the protocol and reads nothing does not keep the plugin.
func TestServeViolationDoesNotWaitForAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, write := io.Pipe()
		defer read.Close()
		out, outWrite := io.Pipe()
		go func() {
			_, _ = io.WriteString(write, initializeLine)
			_, _ = io.ReadFull(out, make([]byte, len(initializedLine)))
			_, _ = io.WriteString(write, executeLine)
			synctest.Wait() // the plugin is in the middle of a progress frame
			_, _ = io.WriteString(write, executeLine)
		}()
		began := time.Now()
		err := ServeWithProgress(Plugin{Capabilities: []Capability{CapText, CapProgress, CapCancel}, In: read, Out: outWrite, Log: io.Discard}, upper)
		if _, ok := errors.AsType[*Violation](err); !ok || time.Since(began) != violationGrace {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		out.Close()
	})
}

func TestServeCancelled(t *testing.T) {
	for name, c := range map[string]struct {
		lines string
		ended bool
	}{
		"by a frame":           {initializeLine + executeLine + cancelLine, false},
		"by the end of stdin":  {initializeLine + executeLine, true},
		"by a frame, then end": {initializeLine + executeLine + cancelLine, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out, _, err := serveLines(t, c.lines, c.ended, obedient)
				if err != nil || out != initializedLine+head+`"failure","category":"cancelled"}`+"\n" {
					t.Errorf("%q, %v", out, err)
				}
			})
		})
	}
}

func TestServeFailures(t *testing.T) {
	for _, c := range []struct {
		err    error
		result Result
		want   Category
		log    string
	}{
		{err: errors.New("disk full"), want: ExecutionFailed, log: "disk full\n"},
		{err: fmt.Errorf("not ours: %w", Failure{InvalidRequest}), want: InvalidRequest, log: "not ours: the operation failed: invalid_request\n"},
		{err: Failure{"nonsense"}, want: ExecutionFailed, log: "the operation failed: nonsense\n"},
		{err: context.Canceled, want: ExecutionFailed, log: "context canceled\n"}, // ours did not end
		{result: Result{Output: strings.Repeat("a", MaxTextBytes+1)}, want: ExecutionFailed, log: "the result is not one of the protocol: output is longer than 65536 bytes (rule payload)\n"},
		{result: Result{Output: "\xff"}, want: ExecutionFailed, log: "the result is not one of the protocol: a text is not valid UTF-8 (rule utf-8)\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			out, log, err := serveLines(t, initializeLine+executeLine, false, func(context.Context, Request, ProgressFunc) (Result, error) {
				return c.result, c.err
			})
			if err != nil || out != initializedLine+head+`"failure","category":"`+string(c.want)+`"}`+"\n" || log != c.log {
				t.Errorf("%v: %q, %q, %v", c.err, out, log, err)
			}
		})
	}
}

// Progress may come from anywhere, until the handler has returned, and always is
// a sequence.
func TestServeProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late ProgressFunc
		out, log, err := serveLines(t, initializeLine+executeLine, false, func(_ context.Context, _ Request, progress ProgressFunc) (Result, error) {
			late = progress
			progress("no stage", "") // dropped, and takes no number
			var group sync.WaitGroup
			for range 50 {
				group.Go(func() {
					for range 5 {
						progress(Working, strings.Repeat("é", 600)+"\xff")
					}
				})
			}
			group.Wait()
			return Result{}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		late(Finalizing, "too late")
		if !strings.Contains(log, "rule progress") {
			t.Errorf("log %q", log)
		}
		session := NewSession(testID, hello, []Capability{CapText, CapProgress, CapCancel})
		frames := NewReader(strings.NewReader(out))
		for {
			frame, err := frames.Next()
			if err == io.EOF {
				break
			}
			if err == nil {
				err = session.Receive(frame)
			}
			if err != nil {
				t.Fatal(err)
			}
			if p, ok := frame.Message.(Progress); ok && p.Text != strings.Repeat("é", 512) {
				t.Fatalf("text of %d bytes", len(p.Text))
			}
		}
		if session.progress != MaxProgressFrames || session.State() != Finished {
			t.Errorf("%d frames, state %v", session.progress, session.State())
		}
	})
}

func TestServeProgressNotNegotiated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, _, err := serveLines(t, strings.Replace(initializeLine, `,"progress"`, "", 1)+executeLine, false, upper)
		if err != nil || out != strings.Replace(initializedLine, `,"progress"`, "", 1)+resultLine {
			t.Errorf("%q, %v", out, err)
		}
	})
}

func TestServeWithoutAReader(t *testing.T) {
	broken := errors.New("broken pipe")
	err := Serve(Plugin{
		Capabilities: []Capability{CapText}, In: strings.NewReader(initializeLine + executeLine),
		Out: writerFunc(func([]byte) (int, error) { return 0, broken }), Log: io.Discard,
	}, nil)
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestCut(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "abcd": "abcd", "abcde": "abcd", "abcé": "abc", "ab€": "ab", "a\U0001F600": "a", "a\xffbc": "a\uFFFD",
	} {
		if got := cut(text, 4); got != want || !utf8.ValidString(got) {
			t.Errorf("cut(%q) = %q, want %q", text, got, want)
		}
	}
}
