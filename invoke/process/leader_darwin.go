package process

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func self() (string, error) { return os.Executable() }

func becomeSubreaper() {}

// leader is the child that leads a group. Nothing pins its number once it is
// reaped: this is ordinary process-group handling (processes: The two policies).
type leader struct {
	pid    int
	exited chan struct{} // closed when the leader is dead and reaped
	exit   Exit          // once gone said so
	status unix.WaitStatus
}

func fork(path string, argv, env []string, files []uintptr) (*leader, error) {
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Env:   env,
		Files: files,
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return nil, err
	}
	l := &leader{pid: pid, exited: make(chan struct{}), exit: Exit{Code: -1}}
	go func() {
		for {
			_, err := unix.Wait4(pid, &l.status, 0, nil)
			if err != unix.EINTR {
				break
			}
		}
		close(l.exited)
	}()
	return l, nil
}

func (l *leader) hasExited() bool {
	select {
	case <-l.exited:
		return true
	default:
		return false
	}
}

func (l *leader) signal(sig unix.Signal) (pinned bool) {
	_ = unix.Kill(-l.pid, sig)
	return false
}

// gone reports whether the leader is dead and no process has its group number.
func (l *leader) gone(bool) bool {
	if !l.hasExited() {
		return false
	}
	l.exit = exitOf(l.status)
	return errors.Is(unix.Kill(-l.pid, 0), unix.ESRCH) || onlyZombies(l.pid)
}

func (l *leader) release() {}
