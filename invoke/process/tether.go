package process

import (
	"context"
	"encoding/binary"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The wrapper of PolicyDescendants is this program, executed again, and leads
// the group. It is the child subreaper of everything below it, starts the
// launch barrier in a group of its own, reports the program's end, and stops and
// reaps what is left when the host lets go of it or dies: not earlier, so that
// what the host sees of the streams is the program's doing and never ours.
//
// Its arguments are those of a barrier but for the first; tetherFD is its socket,
// after the descriptors of a barrier.
const tetherFD = 5

// wrapperMargin is what the wrapper may take beyond its own times before it is
// killed (processes: An operation: a margin over the inner stop budget).
const wrapperMargin = 750 * time.Millisecond

// The wrapper's messages: a letter and a number of four bytes.
const (
	programEnded   byte = 'e' // wait status, of an end that nobody asked for
	programStopped byte = 's' // wait status, of an end after the wrapper began to stop it
	programsGone   byte = 'g' // number of descendants that had to be stopped, besides the program
	notProvedGone  byte = 'n' // the same, but some are left
)

const messageSize = 5

// tether is our end of the socket to a wrapper. The wrapper reports on it; when
// our end closes, or stops writing, the wrapper stops the program: so it ends
// with its host, whatever becomes of pids.
type tether struct {
	socket *os.File
	ended  chan struct{} // closed when the program has ended, or the wrapper

	// Valid once the socket has ended: finished is closed.
	finished chan struct{}
	program  Exit
	byItself bool // the program ended before the wrapper signalled anything
	reported bool // what became of the descendants:
	stopped  uint32
	gone     bool // all are proved gone
}

func newTether() *tether {
	return &tether{
		ended:    make(chan struct{}),
		finished: make(chan struct{}),
		program:  Exit{Code: -1},
	}
}

// listen reads the wrapper's messages until it ends.
func (t *tether) listen() {
	defer close(t.finished)
	ended := false
	for {
		var text [messageSize]byte
		if _, err := io.ReadFull(t.socket, text[:]); err != nil {
			if !ended {
				close(t.ended)
			}
			return
		}
		number := binary.BigEndian.Uint32(text[1:])
		switch {
		case (text[0] == programEnded || text[0] == programStopped) && !ended:
			t.program, t.byItself = exitOf(unix.WaitStatus(number)), text[0] == programEnded
			ended = true
			close(t.ended)
		case text[0] == programsGone || text[0] == notProvedGone:
			t.reported, t.stopped, t.gone = true, number, text[0] == programsGone
		}
	}
}

// letGo tells the wrapper to stop the program, if it still runs, and whatever it left.
func (t *tether) letGo() {
	conn, err := t.socket.SyscallConn()
	if err == nil {
		_ = conn.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
}

func (t *tether) close() {
	if t.socket != nil {
		_ = t.socket.Close()
	}
}

// settleWrapped lets the wrapper do what it is for, within its times and a
// margin, and then ends the wrapper's own group. A wrapper that does not report
// proves nothing.
func (g *Group) settleWrapped(ctx context.Context) (e Ending) {
	if !g.awaitEnd(ctx) {
		e.Cause = context.Cause(ctx)
	}
	g.tether.letGo()
	e.Exit = Exit{Code: -1}
	e.NotProvedGone, e.WrapperLost = true, true
	select {
	case <-g.tether.finished:
		e.Exit = g.tether.program
		if g.tether.byItself {
			e.Cause = nil // it had ended, and only the news of it came late
		}
		e.Leaked = g.tether.stopped > 0 && e.Cause == nil
		e.NotProvedGone = !g.tether.gone
		e.WrapperLost = !g.tether.reported
	case <-time.After(TermToKill + KillToGivingUp + wrapperMargin):
	}
	if !g.awaitGone(context.Background(), leakGrace) && !g.stop() {
		e.NotProvedGone = true
	}
	return e
}
