package forge

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"hawser/invoke/process"
)

// The times of a session (contract: Transport and session; Operations and
// terminals).
const (
	// ClosingTime is how long a plugin has from its terminal frame to the end of
	// its output and exit 0.
	ClosingTime = 250 * time.Millisecond
	// DrainTime is how long it has after a cancellation.
	DrainTime = 250 * time.Millisecond
	// HostDelay is granted after ClosingTime for what a host is late to see.
	HostDelay = 5 * time.Millisecond
)

// phase is where an exchange is.
//
//	initializing ── initialized ──▶ executing ── result, failure ──▶ closing ──▶ ended
//	     │                              │                               │
//	     └── the context ended ─▶ ended └── ended ──▶ draining ──▶ ended └── ended ──▶ ended
//
// A violation, a budget that is used up and a time that has passed lead to ended
// from everywhere.
type phase int

const (
	initializing phase = iota // initialize was sent
	executing                 // execute was sent, so the context's end is told by a cancel frame
	closing                   // stdin is closed; the end of output and of the program are due
	draining                  // the context ended; what still comes is read and dropped
	ended                     // nothing is waited for any more
)

// peer is a plugin that runs, as an exchange sees it.
type peer struct {
	stdin          io.WriteCloser
	stdout, stderr io.Reader
	exited         <-chan struct{} // closed when the plugin itself has ended
	// outputClosed says that no process holds stdout open, whether or not all of it
	// was read.
	outputClosed func() bool
	// stop ends whatever is left of the plugin, and returns how it ended; a second
	// call returns the same.
	stop func() process.Ending
	// limit ends soon every read and write of the streams. What was written last is
	// still read, to the end of each pipe; a process that escaped, or was not proved
	// gone, may hold one open.
	limit func()
}

// exchange is one session with a running plugin: it moves frames between the
// peer and the Session, and decides what the end of each side means. One
// goroutine, drive's, makes every decision; the others only read, write and call
// back.
type exchange struct {
	ctx      context.Context // with the timeout over everything
	session  *Session
	peer     peer
	progress func(Progress)
	log      io.Writer // of the plugin's stderr; may be nil

	phase      phase
	violation  *Violation // the first one
	overBudget bool       // seen while the context was live
	outputDone bool
	exited     bool
	timer      *time.Timer

	outgoing  chan []byte   // frames for stdin; closed to close it
	incoming  chan incoming // from stdout
	budget    *budget
	reports   chan Progress // for the callback; has room for all that a session may have
	done      chan struct{} // closed when nobody takes from incoming any more
	abandoned chan struct{} // closed when run's caller waits for no outcome
	streaming sync.WaitGroup
}

// incoming is one thing that came from stdout: a frame, or an error.
type incoming struct {
	frame Frame
	err   error // io.EOF, a *Violation, or the stream's own
}

// mostFrames is how many frames a host sends: initialize, execute, cancel.
const mostFrames = 3

func newExchange(ctx context.Context, session *Session, peer peer, budget int64) *exchange {
	return &exchange{
		ctx:       ctx,
		session:   session,
		peer:      peer,
		timer:     time.NewTimer(time.Hour),
		outgoing:  make(chan []byte, mostFrames),
		incoming:  make(chan incoming),
		budget:    newBudget(budget),
		reports:   make(chan Progress, MaxProgressFrames),
		done:      make(chan struct{}),
		abandoned: make(chan struct{}),
	}
}

// run is the whole exchange, from initialize to the proof that the plugin is
// gone. It leaves no goroutine.
//
// Only the callback runs on the caller's goroutine. One that blocks holds up
// neither the timeout nor a cancellation; one that panics, or ends the goroutine,
// takes the plugin along.
func (x *exchange) run() (ending process.Ending) {
	over := make(chan struct{})
	go func() {
		defer close(over)
		ending = x.converse()
	}()
	defer func() {
		close(x.abandoned)
		<-over
	}()
	for p := range x.reports {
		if x.ctx.Err() == nil {
			x.progress(p)
		}
	}
	return
}

func (x *exchange) converse() process.Ending {
	defer close(x.reports)
	defer x.timer.Stop()
	x.timer.Stop()
	outgoing := x.outgoing
	x.streaming.Go(func() { x.writeFrames(outgoing) })
	x.streaming.Go(x.readFrames)
	x.streaming.Go(x.readStderr)

	x.send(x.session.Initialize())
	x.drive()

	close(x.done)
	x.closeStdin()
	ending := x.peer.stop()
	x.peer.limit()
	x.streaming.Wait()
	if x.violation == nil && x.ctx.Err() == nil && x.budget.isExceeded() {
		x.overBudget = true // by the last bytes, which nobody waited for
	}
	return ending
}

// drive takes one event after the other until nothing is waited for.
//
// When several are ready, select takes any. The context's end is therefore
// looked at once more after each choice: a cancellation that is ready wins over
// whatever was chosen, a budget used up included (contract: Operations and
// terminals).
func (x *exchange) drive() {
	contextDone, exited := x.ctx.Done(), x.peer.exited
	for x.phase != ended {
		event := func() {}
		select {
		case <-contextDone:
		case in := <-x.incoming:
			event = func() { x.receive(in) }
		case <-x.budget.exceeded:
			event = x.exceed
		case <-exited:
			exited = nil
			event = x.exit
		case <-x.timer.C:
			event = x.expire
		case <-x.abandoned:
			return
		}
		if contextDone != nil && x.ctx.Err() != nil {
			contextDone = nil
			x.cancel()
		}
		if x.phase != ended {
			event()
		}
	}
}

// cancel is the end of the context. Before execute was sent the plugin has
// nothing to stop; after the terminal frame there is nothing left to say.
func (x *exchange) cancel() {
	if x.phase != executing {
		x.phase = ended
		return
	}
	x.phase = draining
	x.timer.Reset(DrainTime)
	if x.session.Selected(CapCancel) {
		x.send(x.session.Cancel())
		return
	}
	// A plugin that does not understand cancel still sees its input end.
	x.closeStdin()
}

// receive is a frame, or the end of stdout.
func (x *exchange) receive(in incoming) {
	if in.err == io.EOF {
		x.endOfOutput()
		return
	}
	err := in.err
	if err == nil {
		err = x.session.Receive(in.frame)
	}
	switch {
	case x.phase == draining:
		if x.session.State() == Finished {
			x.closeStdin()
		}
	case x.phase == closing:
		x.fail(trailing(err))
	case err != nil:
		x.fail(err)
	case x.phase == initializing:
		x.phase = executing
		x.send(x.session.Execute())
	case x.session.State() == Finished:
		x.close()
	default:
		if x.progress != nil {
			x.reports <- in.frame.Message.(Progress)
		}
	}
}

// trailing is the violation of whatever came after the terminal frame, a good
// frame or a bad one.
func trailing(err error) error {
	if v, ok := errors.AsType[*Violation](err); ok {
		return &Violation{RuleTrailing, v.Frame, "output came after the terminal frame"}
	}
	return err
}

// close gives the plugin its time to end.
func (x *exchange) close() {
	x.phase = closing
	x.closeStdin()
	x.grant()
	x.endIfGone()
}

// grant starts ClosingTime, from now.
func (x *exchange) grant() {
	x.timer.Reset(ClosingTime + HostDelay)
}

// endOfOutput is the end of stdout. When a frame was still due, the exchange
// goes on to the plugin's exit, whose status says more to a person.
func (x *exchange) endOfOutput() {
	x.outputDone = true
	if x.phase == initializing || x.phase == executing {
		x.note(x.session.End())
		x.close()
		return
	}
	x.endIfGone()
}

// exit is the end of the plugin's process. Up to MaxProgressFrames of its frames
// may still be in the pipe, and some other process may hold the pipe open for
// ever: so output has ClosingTime to come.
func (x *exchange) exit() {
	x.exited = true
	if x.phase == initializing || x.phase == executing {
		x.grant()
	}
	x.endIfGone()
}

func (x *exchange) endIfGone() {
	if x.outputDone && x.exited {
		x.phase = ended
	}
}

// expire is the end of the time that a plugin had to end by itself.
//
// On a busy machine it comes before the news of an end that was in time. So the
// plugin is judged by what was, not by what was heard: whether it had to be
// stopped, and whether something held its output open until then.
func (x *exchange) expire() {
	closed := x.peer.outputClosed()
	switch {
	case x.phase == draining:
	case !x.exited && x.peer.stop().Cause != nil:
		x.note(violation(RuleExit, "the plugin still ran %v after its last frame", ClosingTime))
	case !closed:
		x.note(violation(RuleExit, "the plugin has exited, and some process held its output open for %v", ClosingTime))
	default: // everything is over, and output comes to its end
		x.exited = true
		x.endIfGone()
		return
	}
	x.phase = ended
}

// exceed is the byte budget used up.
func (x *exchange) exceed() {
	x.overBudget = x.phase != draining
	x.phase = ended
}

func (x *exchange) fail(err error) {
	x.note(err)
	x.phase = ended
}

// note keeps the first violation. An error of the stream itself ends the output.
func (x *exchange) note(err error) {
	v, ok := errors.AsType[*Violation](err)
	if !ok {
		v = violation(RuleTerminal, "the output cannot be read: %v", err)
	}
	if x.violation == nil {
		x.violation = v
	}
}

// send hands a frame to writeFrames; it never waits. Run has encoded every
// frame once before it started the plugin, so that none can fail here.
func (x *exchange) send(text []byte, err error) {
	if err != nil {
		x.fail(err)
		return
	}
	x.outgoing <- text
}

func (x *exchange) closeStdin() {
	if x.outgoing != nil {
		close(x.outgoing)
		x.outgoing = nil
	}
}

// writeFrames writes frames in their order and then closes stdin. A plugin that
// does not read is no failure by itself: what it sends, or its exit, tells.
func (x *exchange) writeFrames(outgoing <-chan []byte) {
	defer x.peer.stdin.Close()
	for text := range outgoing {
		if _, err := x.peer.stdin.Write(text); err != nil {
			return
		}
	}
}

// readFrames reads stdout to its end. After a violation the rest is read too,
// and dropped: a plugin that is to end must not hang in a write.
func (x *exchange) readFrames() {
	stdout := x.budget.meter(x.peer.stdout)
	reader := NewReader(stdout)
	for {
		frame, err := reader.Next()
		if !x.deliver(incoming{frame, err}) || err == io.EOF {
			return
		}
		if err != nil {
			break
		}
	}
	if _, err := io.Copy(io.Discard, stdout); err == nil {
		x.deliver(incoming{err: io.EOF})
	}
}

func (x *exchange) deliver(in incoming) bool {
	if in.err == errBudget {
		return false // told by budget.exceeded
	}
	select {
	case x.incoming <- in:
		return true
	case <-x.done:
		return false
	}
}

// readStderr reads stderr to its end, also when nobody takes it any more.
func (x *exchange) readStderr() {
	stderr := x.budget.meter(x.peer.stderr)
	if x.log != nil {
		_, _ = io.Copy(x.log, stderr)
	}
	_, _ = io.Copy(io.Discard, stderr)
}

// budget counts the bytes of several streams together.
type budget struct {
	left     atomic.Int64
	exceeded chan struct{} // closed with the first byte too many
	once     sync.Once
}

var errBudget = errors.New("the byte budget is used up")

func newBudget(bytes int64) *budget {
	b := &budget{exceeded: make(chan struct{})}
	b.left.Store(bytes)
	return b
}

func (b *budget) isExceeded() bool {
	select {
	case <-b.exceeded:
		return true
	default:
		return false
	}
}

// meter returns source, of which everything that is read counts. What passes the
// budget is dropped, and fails.
func (b *budget) meter(source io.Reader) io.Reader { return &meter{b, source} }

type meter struct {
	budget *budget
	source io.Reader
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.source.Read(p)
	if m.budget.left.Add(-int64(n)) < 0 {
		m.budget.once.Do(func() { close(m.budget.exceeded) })
		return 0, errBudget
	}
	return n, err
}
