package process

import (
	"context"
	"errors"
	"os"
	"time"
)

// Limits bound an exchange.
type Limits struct {
	Timeout time.Duration // from Exchange to the program's exit; 0 for none
	Stdout  int           // bytes that are kept; one more ends the exchange
	Stderr  int           // bytes that may come; one more ends the exchange

	// KeepStderr returns what came on stderr. Otherwise it is counted and
	// dropped as it comes.
	KeepStderr bool
}

// Result is what came of an exchange. Nothing in it is an error of ours: which
// of its findings is a refusal, and of what, is the caller's to say.
type Result struct {
	Ending

	Stdout      []byte // at most Limits.Stdout bytes
	Stderr      []byte // with KeepStderr, at most Limits.Stderr bytes
	StdoutOver  bool   // more than its limit came; the group was stopped at once
	StderrOver  bool
	StderrBytes int64 // bytes counted, at most one more than the limit

	TimedOut  bool // Limits.Timeout ended it
	Cancelled bool // the caller's context ended it
	// HeldOutput says that stdout was still held open OutputGrace after the group
	// was empty: by a process outside the group.
	HeldOutput bool
}

// The reasons why Exchange itself stops a group.
var (
	errTimeout    = errors.New("the time limit has passed")
	errStdoutOver = errors.New("stdout passed its limit")
	errStderrOver = errors.New("stderr passed its limit")
)

// Exchange is one request and one response (processes: An operation, step by
// step): after Release it writes the request, closes stdin, reads stdout and
// stderr against their limits, waits, and settles the group. A program that
// does not read its request is no failure by itself. It is called once, and not
// together with Settle.
//
// It is bounded in time whatever the program does: by the timeout or ctx, then
// LeakGrace or the times of Stop, then OutputGrace. The proof that the group is
// gone is in the result. Streams that the Spec directed to files are not read.
func (g *Group) Exchange(ctx context.Context, request []byte, limits Limits) Result {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if limits.Timeout > 0 {
		timer := time.AfterFunc(limits.Timeout, func() { stop(errTimeout) })
		defer timer.Stop()
	}

	written := g.write(request)
	stdout := collect(g.Stdout, limits.Stdout, true, func() { stop(errStdoutOver) })
	stderr := collect(g.Stderr, limits.Stderr, limits.KeepStderr, func() { stop(errStderrOver) })

	r := Result{Ending: g.Settle(ctx)}
	g.limitStreams(r.NotProvedGone)
	<-written
	out, errs := <-stdout, <-stderr

	r.Stdout, r.StdoutOver, r.HeldOutput = out.kept, out.over, out.held
	r.Stderr, r.StderrOver, r.StderrBytes = errs.kept, errs.over, errs.count
	r.TimedOut = errors.Is(r.Cause, errTimeout)
	r.Cancelled = r.Cause != nil && !r.TimedOut && !errors.Is(r.Cause, errStdoutOver) && !errors.Is(r.Cause, errStderrOver)
	return r
}

// limitStreams ends what still reads and writes OutputGrace from now. The group
// is gone, so only a process outside it can hold a pipe open; if it is not
// proved gone, nothing is waited for.
func (g *Group) limitStreams(now bool) {
	end := time.Now().Add(OutputGrace)
	if now {
		end = longAgo
	}
	for _, stream := range []*os.File{g.Stdin, g.Stdout, g.Stderr} {
		if stream != nil {
			_ = stream.SetDeadline(end)
		}
	}
}

// write writes the request and closes stdin. Its failure says nothing that the
// program's exit and answer do not say better: EPIPE, or the end of the wait.
func (g *Group) write(request []byte) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if g.Stdin != nil {
			_, _ = g.Stdin.Write(request)
			_ = g.Stdin.Close()
		}
	}()
	return done
}

// collected is what came from one stream.
type collected struct {
	kept  []byte
	count int64
	over  bool // one byte more than the limit came
	held  bool // it was still open when the wait for its end was over
}

// collect reads a stream to its end or one byte past its limit, and then calls
// over. What it holds is bounded by the limit, and is nothing unless keep.
func collect(stream *os.File, limit int, keep bool, over func()) <-chan collected {
	done := make(chan collected, 1)
	if stream == nil {
		done <- collected{}
		return done
	}
	go func() {
		c := read(stream, limit, keep)
		if c.over {
			over()
		}
		done <- c
	}()
	return done
}

func read(stream *os.File, limit int, keep bool) (c collected) {
	buffer := make([]byte, 4096)
	for {
		n, err := stream.Read(buffer)
		if c.count += int64(n); c.count > int64(limit) {
			c.over = true
			n -= int(c.count - int64(limit))
			c.count = int64(limit) + 1
		}
		if keep {
			c.kept = append(c.kept, buffer[:n]...)
		}
		if c.over {
			return c
		}
		if err != nil {
			c.held = errors.Is(err, os.ErrDeadlineExceeded)
			return c
		}
	}
}
