package process

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// groupSignals reports whether pidfd_send_signal takes PIDFD_SIGNAL_PROCESS_GROUP
// (Linux 6.9). Tests replace it to take the older way.
var groupSignals = sync.OnceValue(func() bool {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	// ESRCH is an answer too: this process need not lead a group.
	err = signalGroup(fd, 0)
	return err == nil || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EPERM)
})

// signalGroup signals the process group whose leader the pidfd names. The
// leader may be dead and reaped: the kernel's identity of a process is also the
// identity of the group it founded. ESRCH says that no member is left, zombies
// counted; with signal 0 it is the proof of that.
func signalGroup(pidfd int, sig unix.Signal) error {
	return unix.PidfdSendSignal(pidfd, sig, nil, unix.PIDFD_SIGNAL_PROCESS_GROUP)
}

// signalExactly signals the process that s was read from, if it still is that
// process and pred still holds for it. The pidfd is opened first and the
// process read again after, so the number cannot change its meaning between.
func signalExactly(s stat, sig unix.Signal, pred func(stat) bool) {
	fd, err := unix.PidfdOpen(s.pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	now, err := readStat(s.pid)
	if err != nil || now.start != s.start || !pred(now) {
		return
	}
	_ = unix.PidfdSendSignal(fd, sig, nil, 0)
}
