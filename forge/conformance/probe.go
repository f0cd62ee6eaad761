package conformance

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"hawser/forge"
	"hawser/internal/fault"
	"hawser/invoke/process"
)

// Finding is why a plugin failed a scenario.
type Finding struct {
	Rule  forge.Rule // that the plugin broke, or did not hold the host to
	Frame int        // of the plugin, from 1; 0 when it is about no single frame
	What  string     // what came, and what was wanted

	late bool // nothing but time was wrong
}

func (f *Finding) String() string {
	if f.Frame == 0 {
		return fmt.Sprintf("rule %s: %s", f.Rule, f.What)
	}
	return fmt.Sprintf("rule %s, frame %d: %s", f.Rule, f.Frame, f.What)
}

func finding(rule forge.Rule, format string, args ...any) *Finding {
	return &Finding{Rule: rule, What: fmt.Sprintf(format, args...)}
}

// plugin is a process of the plugin. Its streams take deadlines.
type plugin struct {
	stdin, stdout *os.File
	settle        func(context.Context) process.Ending // as process.Group's
	close         func()
}

// launch starts the plugin. Stderr is for its author, and not judged.
func (s *Suite) launch(ctx context.Context) (*plugin, error) {
	stderr := s.Stderr
	if stderr == nil {
		null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		if err != nil {
			return nil, fault.Wrap(fault.IO, err, "cannot start the plugin")
		}
		defer null.Close()
		stderr = null
	}
	start := "."
	if s.scratch != nil {
		start = s.scratch.dir
	}
	dir, err := os.Open(start)
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot start the plugin")
	}
	defer dir.Close()
	group, err := process.Start(process.Spec{
		Path: s.Path, Argv: s.Argv, Env: s.Env, Dir: dir, Stderr: stderr, Policy: process.PolicyDescendants,
	})
	if err != nil {
		return nil, err
	}
	if err := group.Release(ctx); err != nil {
		group.Close()
		return nil, fault.Wrap(fault.ProcessFailed, err, "cannot start the plugin")
	}
	return &plugin{group.Stdin, group.Stdout, group.Settle, group.Close}, nil
}

// probe is this side of a plugin's pipes.
type probe struct {
	*plugin
	ctx    context.Context
	id     string // of the session
	frames *forge.Reader
	number int // of the line that was read last, a frame or none; 0 before the first

	uninterruptible func() bool // takes the context's hand off the streams
}

func newProbe(ctx context.Context, plugin *plugin) *probe {
	p := &probe{plugin: plugin, ctx: ctx, id: newID(), frames: forge.NewReader(plugin.stdout)}
	p.uninterruptible = context.AfterFunc(ctx, func() { // a run that is interrupted waits for no deadline
		_ = plugin.stdin.Close()
		_ = plugin.stdout.Close()
	})
	return p
}

func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	return hex.EncodeToString(id[:])
}

// stop stops whatever is left of the plugin.
func (p *probe) stop() {
	p.uninterruptible()
	p.close()
}

// send writes the bytes until the deadline. That a plugin does not take them is
// no finding by itself: it may have rejected already.
func (p *probe) send(text string, deadline time.Time) {
	_ = p.stdin.SetWriteDeadline(deadline)
	_, _ = io.WriteString(p.stdin, text)
}

func (p *probe) closeStdin() { _ = p.stdin.Close() }

// next reads the plugin's next frame. When there is none, the finding says what
// came instead of what was due.
func (p *probe) next(due string, deadline time.Time) (forge.Frame, *Finding) {
	frame, err := p.read(deadline)
	if err == nil {
		return frame, nil
	}
	if v, ok := errors.AsType[*forge.Violation](err); ok {
		return frame, broken(v)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return frame, finding(forge.RuleTerminal, "nothing came in time where %s is due", due)
	}
	if exit, ended := p.end(time.Now().Add(forge.ClosingTime)); ended {
		return frame, finding(forge.RuleTerminal, "the plugin ended with %v where %s is due", exit, due)
	}
	return frame, finding(forge.RuleTerminal, "stdout ended where %s is due", due)
}

// end waits for the plugin to end by itself, and stops it at the deadline.
func (p *probe) end(deadline time.Time) (exit process.Exit, ended bool) {
	ctx, cancel := context.WithDeadline(p.ctx, deadline)
	defer cancel()
	ending := p.settle(ctx)
	return ending.Exit, ending.Cause == nil
}

func (p *probe) read(deadline time.Time) (forge.Frame, error) {
	_ = p.stdout.SetReadDeadline(deadline)
	frame, err := p.frames.Next()
	if v, ok := errors.AsType[*forge.Violation](err); ok {
		p.number = v.Frame
	} else if err == nil {
		p.number++
	}
	return frame, err
}

// late is a finding of what did not come in time.
func late(rule forge.Rule, format string, args ...any) *Finding {
	f := finding(rule, format, args...)
	f.late = true
	return f
}

// found is a finding about the line that was read last.
func (p *probe) found(rule forge.Rule, format string, args ...any) *Finding {
	f := finding(rule, format, args...)
	f.Frame = p.number
	return f
}

// broken is a finding of what the plugin itself broke.
func broken(v *forge.Violation) *Finding { return &Finding{Rule: v.Rule, Frame: v.Frame, What: v.What} }

// a puts the article before a type of frame.
func a(kind string) string {
	if strings.ContainsAny(kind[:1], "aeiou") {
		return "an " + kind + " frame"
	}
	return "a " + kind + " frame"
}
