package process

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"hawser/internal/fault"
)

// self is the path that executes this very program again, even after its file
// was replaced or removed.
func self() (string, error) { return "/proc/self/exe", nil }

// becomeSubreaper makes orphans of the groups we start our own children, so
// that they can be reaped here: elsewhere they wait for pid 1, which in a
// container may reap late or never, and a group of unreaped zombies still
// exists for the kernel.
var becomeSubreaper = sync.OnceFunc(func() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // without it onlyZombies has to prove more often
})

// leader is the child that leads a group, and what pins the group's identity
// for as long as we hold it. There are two ways:
//
//   - By pidfd (Linux 6.9). The leader's pidfd signals the group by the
//     kernel's own identity, after the leader was reaped too, and answers
//     ESRCH when no member is left.
//   - By zombie. A dead leader that nobody reaped keeps its number, so kill
//     with the negative number reaches this group only. Nobody but us can reap
//     it; we do so last.
type leader struct {
	pid     int
	pidfd   int
	file    *os.File // of pidfd, in the runtime's poller: a waiting group costs no thread
	byPidfd bool

	exited chan struct{} // closed when the leader is dead
	reaped bool
	exit   Exit // once reaped, if it was us who did
}

// fork starts the program with the descriptors given, leading a group of its
// own. Signal dispositions and mask are the host's: the barrier resets them.
func fork(path string, argv, env []string, files []uintptr) (*leader, error) {
	l, err := forkWith(&syscall.SysProcAttr{}, path, argv, env, files)
	if errors.Is(err, unix.ENOENT) {
		if _, missing := os.Lstat("/proc/self"); missing != nil {
			return nil, fault.New(fault.PlatformUnsupported, "/proc is not mounted, and is needed to start and watch processes; mount it")
		}
	}
	return l, err
}

func forkWith(attr *syscall.SysProcAttr, path string, argv, env []string, files []uintptr) (*leader, error) {
	pidfd := -1
	attr.Setpgid, attr.PidFD = true, &pidfd
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{Env: env, Files: files, Sys: attr})
	if err != nil {
		return nil, err
	}
	if pidfd < 0 {
		_ = unix.Kill(pid, unix.SIGKILL) // our own child, not reaped yet: the number is still its own
		_, _ = wait4(pid, 0)
		return nil, fault.New(fault.PlatformUnsupported, "this kernel gives no pidfd for a child; Linux 5.10 or newer is needed")
	}
	_ = unix.SetNonblock(pidfd, true)
	l := &leader{
		pid:     pid,
		pidfd:   pidfd,
		file:    os.NewFile(uintptr(pidfd), "pidfd"),
		byPidfd: groupSignals(),
		exited:  make(chan struct{}),
		exit:    Exit{Code: -1},
	}
	go l.watch()
	return l, nil
}

// watch closes exited when the leader dies, without reaping it. It ends with
// the leader, or when the leader is let go.
func (l *leader) watch() {
	conn, err := l.file.SyscallConn()
	if err != nil {
		return
	}
	if conn.Read(func(uintptr) bool { return l.hasExited() }) == nil {
		close(l.exited)
	}
}

// hasExited looks without reaping.
func (l *leader) hasExited() bool {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PIDFD, l.pidfd, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
		if err != unix.EINTR {
			return err != nil || info.Signo != 0 // ECHILD: there is no such child any more
		}
	}
}

// reap takes the exit status of a leader that is dead.
func (l *leader) reap() {
	if l.reaped {
		return
	}
	l.reaped = true
	if status, err := wait4(l.pid, 0); err == nil {
		l.exit = exitOf(status)
	}
}

// signal signals every member of the group, and the leader even if it went to
// another group. It reports false when nothing pins the group any more. ESRCH and
// EPERM change nothing for the caller, who asks gone.
func (l *leader) signal(sig unix.Signal) (pinned bool) {
	switch {
	case l.byPidfd:
		_ = signalGroup(l.pidfd, sig)
	case !l.reaped:
		_ = unix.Kill(-l.pid, sig)
	default:
		return false
	}
	if sig == unix.SIGKILL {
		_ = unix.PidfdSendSignal(l.pidfd, sig, nil, 0)
	}
	return true
}

// gone reports whether the leader is dead and the group has no member left that
// runs. Zombies do not count; those that are our children are reaped on the
// way. The answer true is a proof. With thorough it also walks the process
// table, exactly for this group, to tell zombies of others from the living.
func (l *leader) gone(thorough bool) bool {
	if !l.reaped && !l.hasExited() {
		return false
	}
	if l.byPidfd {
		return l.goneByPidfd(thorough)
	}
	return l.goneByZombie()
}

func (l *leader) goneByPidfd(thorough bool) bool {
	l.reap()
	if l.reapOrphans() {
		return true
	}
	if !thorough {
		return false
	}
	// The group still had members, so the walk sees this group under its number,
	// unless the last one goes first: then the number is free, and the probe after
	// the walk says so. Members that died since the last reaping are reaped, too.
	nothingRuns := onlyZombies(l.pid)
	return l.reapOrphans() || nothingRuns
}

// reapOrphans reaps the members that became our children, and reports whether
// the group is empty.
//
// Waiting for a group number is safe only while the number means this group.
// The probe says that it does; the fork lock keeps this process from starting a
// child that could be given the number in the instant between the two.
func (l *leader) reapOrphans() (empty bool) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	for {
		if errors.Is(signalGroup(l.pidfd, 0), unix.ESRCH) {
			return true
		}
		if !reapOne(-l.pid) {
			return false
		}
	}
}

// goneByZombie proves the same with the leader's zombie as the pin. It walks
// the process table each time, because the zombie itself keeps the number in
// use: kill cannot tell.
func (l *leader) goneByZombie() bool {
	if l.reaped {
		return l.noneLeft()
	}
	running, zombies, err := members(l.pid)
	for _, z := range zombies {
		if z.parent == os.Getpid() && z.pid != l.pid {
			reapOne(z.pid) // our own child's number is its own until we reap it
		}
	}
	if err != nil || len(running) > 0 {
		return false
	}
	// The walk is not atomic. A member born behind its back dies here, while
	// the number is still pinned; after that the pin is not needed any more.
	l.signal(unix.SIGKILL)
	l.reap()
	return l.noneLeft()
}

// noneLeft proves a group empty whose number is not pinned: ESRCH does, and so
// do zombies only.
func (l *leader) noneLeft() bool {
	return errors.Is(unix.Kill(-l.pid, 0), unix.ESRCH) || onlyZombies(l.pid)
}

// release gives the pidfd back. A leader that could not be killed stays our
// child and is reaped by whoever inherits it from this process.
func (l *leader) release() { _ = l.file.Close() }

func wait4(pid, options int) (unix.WaitStatus, error) {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, options, nil)
		if err != unix.EINTR {
			return status, err
		}
	}
}

// reapOne reaps one dead child, pid as in wait4, and reports whether there was one.
func reapOne(pid int) bool {
	for {
		reaped, err := unix.Wait4(pid, nil, unix.WNOHANG|unix.WALL, nil)
		if err != unix.EINTR {
			return err == nil && reaped > 0
		}
	}
}
