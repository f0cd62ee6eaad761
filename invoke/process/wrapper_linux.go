package process

import (
	"encoding/binary"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hawser/invoke/process/internal/barrier"
)

const haveWrapper = true

func init() {
	if len(os.Args) < 3 || os.Args[0] != barrier.WrapperWord {
		return
	}
	var st unix.Stat_t
	if unix.Fstat(tetherFD, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return
	}
	wrap(os.Args[1:])
	syscall.Exit(0) // at once: whatever the host runs or waits for at its exit is not ours
}

// wrapper is the process between the host and a program whose descendants are
// to end with it. Its other goroutines only wait; one starts, signals and reaps,
// so that no child's number can be given away between a look and a signal.
type wrapper struct {
	program  *leader
	tether   *os.File
	children chan os.Signal // SIGCHLD
	stopping bool           // something was signalled
	stopped  map[int]bool   // the pids of descendants that were signalled, the program's not among them
}

// wrap is the wrapper's whole life. A crash or kill of it takes the program
// along (the parent-death signal); the program's own children then become the
// host's, which reports that nothing is proved.
func wrap(target []string) {
	// The parent-death signal is sent when the thread ends that forked. Init
	// functions run on the main thread, which lasts.
	runtime.LockOSThread()
	w := &wrapper{
		tether:   os.NewFile(tetherFD, "tether"),
		children: make(chan os.Signal, 1),
		stopped:  map[int]bool{},
	}
	unix.CloseOnExec(tetherFD)
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	signal.Notify(w.children, unix.SIGCHLD)
	told := make(chan os.Signal, 1)
	signal.Notify(told, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)

	if !w.start(target) {
		_, _ = w.tether.Write(message(programsGone, 0))
		return
	}
	let := make(chan struct{})
	go func() {
		_, _ = w.tether.Read(make([]byte, 1))
		close(let)
	}()
	// The program's end is no reason to stop what it left: only the host knows
	// whether it still wants to see who holds a stream open.
	for held := true; held; {
		select {
		case <-w.children:
			w.reap()
		case <-let:
			held = false
		case <-told:
			held = false
		}
	}
	word := notProvedGone
	if w.stop() {
		word = programsGone
	}
	_, _ = w.tether.Write(message(word, uint32(len(w.stopped))))
}

// start starts the launch barrier with the descriptors that the host made for
// it, and keeps none of them: a stream ends when the program and what it
// started are done with it.
func (w *wrapper) start(target []string) bool {
	var err error
	argv := append([]string{barrier.Word}, target...)
	var files []uintptr
	for _, fd := range append(barrier.Streams[:], barrier.ControlFD, barrier.DirFD) {
		files = append(files, uintptr(fd))
	}
	w.program, err = forkWith(&syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
		"/proc/self/exe", argv, syscall.Environ(), files)
	if err != nil {
		errno := unix.EIO
		_ = errors.As(err, &errno)
		failure := barrier.Failure{Stage: barrier.StageFork, Errno: errno}.Encode()
		_, _ = unix.Write(barrier.ControlFD, failure[:])
		return false
	}
	for _, fd := range files {
		_ = unix.Close(int(fd))
	}
	return true
}

func message(word byte, number uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{word}, number)
}

// reap reaps every dead child, reports the program's end when it is among them,
// and says whether no child is left: for a subreaper that is the proof that it
// has no descendant, because an orphan would be its child.
func (w *wrapper) reap() (none bool) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WALL, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return true // ECHILD
		case pid == 0:
			return false
		case pid == w.program.pid:
			w.program.reaped = true
			word := programEnded
			if w.stopping {
				word = programStopped
			}
			_, _ = w.tether.Write(message(word, uint32(status)))
		}
	}
}

// stop stops all descendants and reports whether they are proved gone: TERM,
// TermToKill, KILL, at most KillToGivingUp. It signals children only: as they
// die, their children become ours. The program's group is signalled at once,
// which no fork within it escapes.
func (w *wrapper) stop() bool {
	for _, step := range []struct {
		signal unix.Signal
		span   time.Duration
	}{{unix.SIGTERM, TermToKill}, {unix.SIGKILL, KillToGivingUp}} {
		if w.reap() {
			return true
		}
		w.stopping = true
		wholeGroup := w.program.signal(step.signal)
		end := time.Now().Add(step.span)
		for seen := map[int]uint64{}; time.Now().Before(end); {
			for _, child := range ownChildren() {
				if child.pid != w.program.pid {
					w.stopped[child.pid] = true
				}
				if step.signal == unix.SIGTERM && (seen[child.pid] == child.start || wholeGroup && child.group == w.program.pid) {
					continue // TERM comes once: a second one may mean more to a program
				}
				seen[child.pid] = child.start
				signalExactly(child, step.signal, func(now stat) bool { return now.parent == os.Getpid() })
			}
			if w.reap() {
				return true
			}
			select {
			case <-w.children:
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	return w.reap()
}

// ownChildren lists the children of this process that run. An adopted child may
// hang on any of its threads.
func ownChildren() (children []stat) {
	lists, _ := filepath.Glob("/proc/self/task/*/children") // CONFIG_PROC_CHILDREN
	if len(lists) == 0 {
		_ = everyProcess(func(s stat) {
			if s.parent == os.Getpid() && !s.dead() {
				children = append(children, s)
			}
		})
		return children
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended, and its children hang on another
		}
		for _, word := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				continue
			}
			if s, err := readStat(pid); err == nil && !s.dead() {
				children = append(children, s)
			}
		}
	}
	return children
}
