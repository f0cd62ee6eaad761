package barrier

import (
	"syscall"
	"unsafe"
)

// arguments reads the argument vector from the kernel. The os package has it
// too, but importing os would put its initialization, and everything that
// sorts between, in front of ours.
func arguments() []string {
	fd, err := syscall.Open("/proc/self/cmdline", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	text := make([]byte, 0, 4096)
	for {
		if len(text) == cap(text) {
			text = append(make([]byte, 0, 4*cap(text)), text...)
		}
		n, err := syscall.Read(fd, text[len(text):cap(text)])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return nil
		}
		if n == 0 {
			return split(text)
		}
		text = text[:len(text)+n]
	}
}

// split cuts NUL-terminated strings.
func split(text []byte) []string {
	var words []string
	for start, i := 0, 0; i < len(text); i++ {
		if text[i] == 0 {
			words = append(words, string(text[start:i]))
			start = i + 1
		}
	}
	return words
}

// resetSignals gives every signal its default disposition and empties the
// signal mask of the main thread, on which init functions run and which execs.
// Handlers would be reset by execve; ignored signals and the mask would not.
func resetSignals() {
	const (
		lastSignal   = 64
		maskSize     = 8 // of the kernel's sigset_t
		sigSetmask   = 2
		sizeOfAction = 32 // of the kernel's struct sigaction, or more
	)
	var action [sizeOfAction]byte // SIG_DFL, no flags, no mask
	for signal := uintptr(1); signal <= lastSignal; signal++ {
		if signal == uintptr(syscall.SIGKILL) || signal == uintptr(syscall.SIGSTOP) {
			continue
		}
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, signal, uintptr(unsafe.Pointer(&action)), 0, maskSize, 0, 0)
	}
	var mask [maskSize]byte
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sigSetmask, uintptr(unsafe.Pointer(&mask)), 0, maskSize, 0, 0)
}

// closeOnExec marks every descriptor but 0, 1 and 2 close-on-exec: the host may
// have been started with any number of others, and its children inherit them.
func closeOnExec() {
	const (
		sysCloseRange     = 436 // the same on every architecture
		closeRangeCloexec = 4   // Linux 5.11
	)
	_, _, errno := syscall.RawSyscall(sysCloseRange, 3, uintptr(^uint32(0)), closeRangeCloexec)
	if errno != 0 {
		closeOnExecEach()
	}
}

// closeOnExecEach is closeOnExec before Linux 5.11: it asks which descriptors
// there are, because the limit says nothing about those opened before it was
// lowered.
func closeOnExecEach() {
	dir, err := syscall.Open("/proc/self/fd", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer syscall.Close(dir)
	entries := make([]byte, 4096)
	for {
		n, err := syscall.ReadDirent(dir, entries)
		if err != nil || n <= 0 {
			return
		}
		_, _, names := syscall.ParseDirent(entries[:n], -1, nil)
		for _, name := range names {
			if fd := decimal(name); fd > 2 {
				syscall.CloseOnExec(fd)
			}
		}
	}
}

// decimal reads a descriptor number, or returns -1.
func decimal(name string) int {
	number := 0
	for i := 0; i < len(name); i++ {
		if name[i] < '0' || name[i] > '9' || number > 1<<27 {
			return -1
		}
		number = 10*number + int(name[i]-'0')
	}
	return number
}

// putStreamsAside moves the descriptors 0, 1 and 2 to Streams, close-on-exec, and
// puts /dev/null in their place. The runtime has descriptors of its own already, so
// that the new ones get the numbers that are free. Where there is none left they
// stay where they are.
func putStreamsAside() {
	var aside [3]int
	for fd := range aside {
		moved, _, errno := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 3)
		if errno != 0 {
			return
		}
		aside[fd] = int(moved)
	}
	null, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	for fd := range aside {
		_ = syscall.Dup3(null, fd, 0)
	}
	_ = syscall.Close(null)
	Streams = aside
}

func pause(milliseconds int64) {
	span := syscall.NsecToTimespec(milliseconds * 1e6)
	_ = syscall.Nanosleep(&span, nil)
}
