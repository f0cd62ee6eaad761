package process

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hawser/internal/fault"
	"hawser/invoke/process/internal/barrier"
)

// The times of stopping and of the proof after it (wire: Limits; processes: An
// operation, step by step).
const (
	// TermToKill is how long a group has to end after TERM.
	TermToKill = 250 * time.Millisecond
	// KillToGivingUp is how long the proof may take after KILL.
	KillToGivingUp = 2 * time.Second
	// LeakGrace is how long members may outlive the leader's exit.
	LeakGrace = 100 * time.Millisecond
	// OutputGrace is how long a stream may be held open after the group is empty.
	OutputGrace = 200 * time.Millisecond
)

// Spec says what to start.
type Spec struct {
	Path string   // absolute; executed as it is, never by a shell
	Argv []string // with argument zero; at least one
	Env  []string // the whole environment, "name=value", no name twice
	Dir  *os.File // the working directory; required

	// Stdin, Stdout and Stderr become descriptors 0, 1 and 2. Where one is nil
	// it is a pipe, and the Group's field of that name is our end of it.
	Stdin, Stdout, Stderr *os.File

	Policy Policy
}

// Policy is how far the end of a group reaches.
type Policy int

const (
	// PolicyGroup ends exactly the process group. Leaving it is outside the guarantee.
	PolicyGroup Policy = iota
	// PolicyDescendants ends whatever the program started, in sessions of its own
	// too. A wrapper of ours leads the group, so Pid and Identity are the
	// wrapper's, and the program leads another. Elsewhere than on Linux it is
	// PolicyGroup.
	PolicyDescendants
)

// Group is a process group of ours, from its launch barrier to the proof that
// it is gone. One goroutine drives it; Ended, Pid and Identity may be used from
// any. It must be closed, whatever happened.
type Group struct {
	// Our ends of the pipes of Spec, nil where the Spec gave a file. They are
	// non-blocking, take deadlines, and are closed by Close.
	Stdin          *os.File
	Stdout, Stderr *os.File

	path     string
	leader   *leader
	identity Identity
	control  *os.File // our end of the barrier's socket
	tether   *tether  // to the wrapper, under PolicyDescendants

	settling sync.Mutex
	settled  bool
	ending   Ending
}

// Start starts a launch barrier for spec in a process group of its own (package
// barrier). Nothing of spec runs before Release: publish a record of Pid and
// Identity first. When this process dies before that, the barrier exits; a
// record of it then names a group that never ran anything.
//
// The first Start makes this process a child subreaper, for good.
//
// Start fails with io, platform-unsupported, or internal for a Spec that is not
// complete. It leaves nothing behind when it fails.
func Start(spec Spec) (*Group, error) {
	if !filepath.IsAbs(spec.Path) || len(spec.Argv) == 0 || spec.Dir == nil {
		return nil, fault.New(fault.Internal, "cannot start %s: path, argument vector and directory are required", fault.Path(spec.Path))
	}
	becomeSubreaper()
	g := &Group{path: spec.Path}
	if err := g.start(spec); err != nil {
		g.closeFiles()
		return nil, fault.Wrap(startCode(err), err, "cannot start the launch barrier of %s", fault.Path(spec.Path))
	}
	return g, nil
}

func startCode(err error) fault.Code {
	if fault.Is(err, fault.PlatformUnsupported) {
		return fault.PlatformUnsupported
	}
	return fault.IO
}

func (g *Group) start(spec Spec) error {
	var far descriptors // the child's; ours to close once it has its own
	defer far.close()
	streams := []stream{ // in the order of the barrier's descriptors
		{spec.Stdin, &g.Stdin, pipeToChild},
		{spec.Stdout, &g.Stdout, pipeFromChild},
		{spec.Stderr, &g.Stderr, pipeFromChild},
		{nil, &g.control, socket},
		{spec.Dir, nil, nil},
	}
	word := barrier.Word
	if spec.Policy == PolicyDescendants && haveWrapper {
		g.tether = newTether()
		streams = append(streams, stream{nil, &g.tether.socket, socket})
		word = barrier.WrapperWord
	}
	for _, stream := range streams {
		if stream.given != nil {
			far.lend(stream.given)
			continue
		}
		near, fd, err := stream.open()
		if err != nil {
			return err
		}
		*stream.near = near
		far.own(fd)
	}
	path, err := self()
	if err != nil {
		return err
	}
	argv := append([]string{word, spec.Path}, spec.Argv...)
	g.leader, err = fork(path, argv, barrier.Shield(spec.Env), far.fds)
	runtime.KeepAlive(spec) // its files were only numbers since lend
	if err != nil {
		return err
	}
	if g.tether != nil {
		go g.tether.listen()
	}
	g.identity, err = identityOfChild(g.leader.pid)
	if err != nil {
		g.Stop()
		g.leader.release()
	}
	return err
}

// stream is one descriptor of a child: a file that was given, or a new one with
// an end that stays here.
type stream struct {
	given *os.File
	near  **os.File
	open  func() (near *os.File, far int, err error)
}

// Pid is the pid of the group's leader, which is the group's number.
func (g *Group) Pid() int { return g.leader.pid }

// Identity is the identity of the leader. It is the same at the barrier and
// after it: execve keeps a process's start time.
func (g *Group) Identity() Identity { return g.identity }

// Release lets the barrier execute the program, and waits until it did or
// failed. It fails with an *ExecError when nothing was executed, a barrier or
// wrapper that died included, or with the context's error when that ended first;
// the group is then still to be settled or closed.
func (g *Group) Release(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = g.control.SetDeadline(longAgo) })()
	if _, err := g.control.Write([]byte{barrier.Release}); err != nil {
		return g.controlError(ctx, err)
	}
	reply, err := io.ReadAll(g.control) // to its end, by execve or an exit
	if err != nil {
		return g.controlError(ctx, err)
	}
	failure, executing := bytes.CutPrefix(reply, []byte{barrier.Executing})
	switch {
	case len(failure) == barrier.FailureSize:
		return diagnose(g.path, barrier.Decode([barrier.FailureSize]byte(failure)))
	case executing:
		return nil
	}
	return &ExecError{Path: g.path, Reason: ExecNotReached}
}

// longAgo, as a deadline, ends reads and writes that wait, with os.ErrDeadlineExceeded.
var longAgo = time.Unix(1, 0)

func (g *Group) controlError(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return context.Cause(ctx)
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		return &ExecError{Path: g.path, Reason: ExecNotReached}
	}
	return fault.Wrap(fault.IO, err, "cannot release the launch barrier of %s", fault.Path(g.path))
}

// Ended is closed when the program has exited; what it started may still run.
func (g *Group) Ended() <-chan struct{} {
	if g.tether != nil {
		return g.tether.ended
	}
	return g.leader.exited
}

// StdoutClosed reports whether nothing holds the pipe of Stdout open for writing
// any more, read to its end or not.
func (g *Group) StdoutClosed() (closed bool) {
	conn, err := g.Stdout.SyscallConn()
	if err != nil {
		return true // closed here
	}
	_ = conn.Control(func(fd uintptr) {
		pipe := []unix.PollFd{{Fd: int32(fd)}} // POLLHUP needs not to be asked for
		for {
			_, err := unix.Poll(pipe, 0)
			if err != unix.EINTR {
				break
			}
		}
		closed = pipe[0].Revents&unix.POLLHUP != 0
	})
	return closed
}

// Close stops what still runs, as Stop does, and frees the group's descriptors.
func (g *Group) Close() {
	g.Stop()
	g.leader.release()
	g.closeFiles()
}

func (g *Group) closeFiles() {
	for _, file := range []*os.File{g.Stdin, g.Stdout, g.Stderr, g.control} {
		if file != nil {
			_ = file.Close()
		}
	}
	if g.tether != nil {
		g.tether.close()
	}
}

// descriptors are those a child gets, in its own order.
type descriptors struct {
	fds   []uintptr
	owned []int
}

// lend passes on a file that stays open here. Its description becomes blocking,
// as every program expects its standard streams to be.
func (d *descriptors) lend(file *os.File) { d.fds = append(d.fds, file.Fd()) }

func (d *descriptors) own(fd int) {
	d.fds = append(d.fds, uintptr(fd))
	d.owned = append(d.owned, fd)
}

func (d *descriptors) close() {
	for _, fd := range d.owned {
		_ = unix.Close(fd)
	}
}

// pipeToChild and pipeFromChild make a pipe whose near end is in the runtime's
// poller and whose far end blocks. os.Pipe would leave both non-blocking.
func pipeToChild() (near *os.File, far int, err error) {
	read, write, err := pipe()
	if err != nil {
		return nil, -1, err
	}
	return pollable(write, "stdin"), read, nil
}

func pipeFromChild() (near *os.File, far int, err error) {
	read, write, err := pipe()
	if err != nil {
		return nil, -1, err
	}
	return pollable(read, "output"), write, nil
}

func socket() (near *os.File, far int, err error) {
	syscall.ForkLock.RLock() // until close-on-exec is set, where that takes two calls
	defer syscall.ForkLock.RUnlock()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, -1, os.NewSyscallError("socketpair", err)
	}
	unix.CloseOnExec(pair[0])
	unix.CloseOnExec(pair[1])
	return pollable(pair[0], "socket"), pair[1], nil
}

func pipe() (read, write int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	var pair [2]int
	if err := unix.Pipe(pair[:]); err != nil {
		return -1, -1, os.NewSyscallError("pipe", err)
	}
	unix.CloseOnExec(pair[0])
	unix.CloseOnExec(pair[1])
	return pair[0], pair[1], nil
}

func pollable(fd int, name string) *os.File {
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), name)
}
