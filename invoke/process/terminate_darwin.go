package process

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Terminate asks the one process that runs under pid with this start time to
// end: TERM, then KILL after grace. Here the start time is compared right before
// each signal, which is as near as this system gets to pinning a process. It
// reports whether the process is gone, at most KillToGivingUp after KILL.
func Terminate(pid int, start uint64, grace time.Duration) bool {
	for _, step := range []struct {
		signal unix.Signal
		span   time.Duration
	}{{unix.SIGTERM, grace}, {unix.SIGKILL, KillToGivingUp}} {
		for end := time.Now().Add(step.span); ; time.Sleep(5 * time.Millisecond) {
			id, err := Of(pid)
			if err != nil {
				return errors.Is(err, unix.ESRCH)
			}
			if id.Start != start {
				return true
			}
			if step.signal != 0 {
				_ = unix.Kill(pid, step.signal)
				step.signal = 0
			}
			if time.Now().After(end) {
				break
			}
		}
	}
	return false
}
