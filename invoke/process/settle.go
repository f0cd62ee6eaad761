package process

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Exit is how a program ended.
type Exit struct {
	Code   int         // of exit; -1 when a signal ended it, or when its end is not known
	Signal unix.Signal // 0 unless a signal ended it
}

// OK reports exit 0.
func (e Exit) OK() bool { return e == Exit{} }

// String is for messages: "exit 3", "signal 9 (killed)", "no known end".
func (e Exit) String() string {
	switch {
	case e.Signal != 0:
		return fmt.Sprintf("signal %d (%v)", int(e.Signal), e.Signal)
	case e.Code < 0:
		return "no known end"
	}
	return fmt.Sprintf("exit %d", e.Code)
}

func exitOf(status unix.WaitStatus) Exit {
	if status.Signaled() {
		return Exit{Code: -1, Signal: status.Signal()}
	}
	return Exit{Code: status.ExitStatus()}
}

// Ending is how a group ended.
type Ending struct {
	Exit Exit // of the program

	// Cause is why we stopped the group while the program ran: the cause of the
	// context that ended. It is nil when the program ended by itself, also when a
	// busy machine had not told us yet.
	Cause error
	// Leaked says that the program ended by itself and something was left that
	// had to be stopped: members of its group LeakGrace after its exit, or, under
	// PolicyDescendants, any descendant. Zombies do not count.
	Leaked bool
	// NotProvedGone says that the group could not be proved empty. Whoever keeps
	// a record of it must keep it on.
	NotProvedGone bool
	// WrapperLost says that the wrapper of PolicyDescendants was killed, or hung,
	// before it told what became of the descendants: nothing is proved then, and
	// Exit may not be known.
	WrapperLost bool
}

// Settle waits for the program to exit and the group to be empty, and proves
// it. When ctx ends first, or members outlive the program by LeakGrace, it stops
// the group: TERM, TermToKill, KILL, at most KillToGivingUp. A second call
// returns what the first found.
func (g *Group) Settle(ctx context.Context) Ending {
	g.settling.Lock()
	defer g.settling.Unlock()
	if !g.settled {
		g.ending = g.settle(ctx)
		g.settled = true
	}
	return g.ending
}

// Stop is Settle for a context that has ended.
func (g *Group) Stop() Ending {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return g.Settle(ctx)
}

func (g *Group) settle(ctx context.Context) (e Ending) {
	if g.tether != nil {
		return g.settleWrapped(ctx)
	}
	if g.awaitEnd(ctx) {
		if g.awaitGone(ctx, leakGrace) {
			e.Exit = g.leader.exit
			return e
		}
		e.Leaked = ctx.Err() == nil
	}
	if !e.Leaked {
		e.Cause = context.Cause(ctx)
	}
	e.NotProvedGone = !g.stop()
	e.Exit = g.leader.exit
	return e
}

// leakGrace is LeakGrace, but for tests of what happens within it.
var leakGrace = LeakGrace

// awaitEnd waits for the program to end, and reports whether it did before ctx.
func (g *Group) awaitEnd(ctx context.Context) bool {
	select {
	case <-g.Ended():
		return true
	case <-ctx.Done():
	}
	select { // an exit that came first stays an exit
	case <-g.Ended():
		return true
	default:
		return g.tether == nil && g.leader.hasExited() // a wrapper tells it in its report
	}
}

// stop ends the group, whoever of it is left, and reports whether it is proved
// gone. A crash of the host within leaves a group that its record names.
func (g *Group) stop() bool {
	g.leader.signal(unix.SIGTERM)
	if g.awaitGone(context.Background(), TermToKill) {
		return true
	}
	g.leader.signal(unix.SIGKILL)
	return g.awaitGone(context.Background(), KillToGivingUp)
}

// awaitGone waits until the leader is dead and the group empty, at most for
// span and not longer than ctx. There is no event for a group that empties, so
// it asks, often at first; the thorough question only when it waited a little
// and at the end, because it walks the process table.
func (g *Group) awaitGone(ctx context.Context, span time.Duration) bool {
	const first, longest = 200 * time.Microsecond, 16 * time.Millisecond
	end := time.Now().Add(span)
	exited := g.leader.exited
	for pause := first; ; pause = min(2*pause, longest) {
		if g.leader.gone(pause == longest) {
			return true
		}
		left := time.Until(end)
		if left <= 0 || ctx.Err() != nil {
			return g.leader.gone(true)
		}
		timer := time.NewTimer(min(pause, left))
		select {
		case <-timer.C:
		case <-exited:
			exited = nil // asked once more at once; from then on by time
			pause = first / 2
		case <-ctx.Done():
		}
		timer.Stop()
	}
}
