package process

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Terminate asks the one process that runs under pid with this start time to
// end: TERM, then KILL after grace, each through a pidfd that was opened before
// the start time was read again, so that no other process can be hit. It
// reports whether the process is gone, at most KillToGivingUp after KILL. Its
// group is another matter (StopGroup).
func Terminate(pid int, start uint64, grace time.Duration) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer unix.Close(fd)
	now, err := readStat(pid)
	if err != nil || now.dead() || now.start != start {
		return !errors.Is(err, unix.EACCES)
	}
	for _, step := range []struct {
		signal unix.Signal
		span   time.Duration
	}{{unix.SIGTERM, grace}, {unix.SIGKILL, KillToGivingUp}} {
		if err := unix.PidfdSendSignal(fd, step.signal, nil, 0); errors.Is(err, unix.ESRCH) {
			return true
		}
		if exitedWithin(fd, step.span) {
			return true
		}
	}
	return false
}

// exitedWithin waits for a pidfd to become readable: its process is dead.
func exitedWithin(fd int, span time.Duration) bool {
	end := time.Now().Add(span)
	for {
		left := time.Until(end)
		if left < 0 {
			left = 0
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left/time.Millisecond))
		if err == nil {
			return n > 0
		}
		if err != unix.EINTR {
			return false
		}
	}
}
