package process

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"hawser/internal/fault"
	"hawser/invoke/process/internal/barrier"
)

// ExecReason is why a program could not be executed.
type ExecReason int

const (
	ExecFailed            ExecReason = iota // another reason: see the error number
	ExecMissing                             // there is no such file
	ExecNotExecutable                       // no execute permission, or a file system mounted noexec
	ExecNotRegular                          // a directory, a FIFO, a device
	ExecNoInterpreter                       // the file is there; the interpreter it names is missing or cannot run
	ExecNoneNamed                           // a "#!" line that names no interpreter
	ExecCRLF                                // a "#!" line that ends with CR LF, so that the CR belongs to the name
	ExecNoProgram                           // neither a program nor a script with a "#!" line
	ExecWrongArchitecture                   // a program for another machine
	ExecBusy                                // still open for writing somewhere
	ExecDirectory                           // the working directory cannot be entered
	ExecNotReached                          // the barrier, or the wrapper above it, died first
)

var execReasons = [...]string{
	ExecFailed:            "it cannot be executed",
	ExecMissing:           "the file is missing",
	ExecNotExecutable:     "it is not executable; check its mode, and the mount for noexec",
	ExecNotRegular:        "it is not a regular file",
	ExecNoInterpreter:     "the interpreter it needs is missing or cannot run; install it",
	ExecNoneNamed:         "its #! line names no interpreter",
	ExecCRLF:              "its #! line ends with CR LF; end its lines with LF alone",
	ExecNoProgram:         "it is neither a program of this system nor a script that starts with #!",
	ExecWrongArchitecture: "it is a program for another architecture than " + runtime.GOARCH,
	ExecBusy:              "another process still holds it open for writing",
	ExecDirectory:         "its working directory cannot be entered",
	ExecNotReached:        "the process that was to become it ended first; was it killed, or is this user's limit of processes (ulimit -u) or memory reached?",
}

func (r ExecReason) String() string { return execReasons[r] }

// ExecError says that nothing was executed, and why.
type ExecError struct {
	Path   string
	Reason ExecReason
	Errno  syscall.Errno // 0 where the kernel refused nothing
}

func (e *ExecError) Error() string {
	if e.Errno == 0 {
		return fmt.Sprintf("cannot execute %s: %v", fault.Path(e.Path), e.Reason)
	}
	return fmt.Sprintf("cannot execute %s: %v (%v)", fault.Path(e.Path), e.Reason, e.Errno)
}

func (e *ExecError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// diagnose tells apart what execve reports with one number. It looks at the
// file only after the fact and says no byte of it.
func diagnose(path string, failure barrier.Failure) error {
	return &ExecError{Path: path, Reason: execReason(path, failure), Errno: failure.Errno}
}

func execReason(path string, failure barrier.Failure) ExecReason {
	switch failure.Stage {
	case barrier.StageChdir:
		return ExecDirectory
	case barrier.StageFork:
		return ExecFailed
	}
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return ExecNotRegular
	}
	switch failure.Errno {
	case unix.ENOENT, unix.ENOTDIR:
		if err != nil {
			return ExecMissing
		}
		return formatReason(path, ExecNoInterpreter)
	case unix.EACCES:
		if unix.Access(path, unix.X_OK) == nil {
			return formatReason(path, ExecNoInterpreter)
		}
		return ExecNotExecutable
	case unix.ENOEXEC:
		return formatReason(path, ExecNoProgram)
	case unix.ETXTBSY:
		return ExecBusy
	}
	return ExecFailed
}

// formatReason looks at the first bytes of a file for what execve did not like
// about it, and returns otherwise when they do not tell.
func formatReason(path string, otherwise ExecReason) ExecReason {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return otherwise
	}
	defer file.Close()
	head := make([]byte, 256) // what Linux reads, too
	n, _ := file.Read(head)
	head = head[:n]
	if line, ok := bytes.CutPrefix(head, []byte("#!")); ok {
		line, _, _ = bytes.Cut(line, []byte("\n"))
		switch {
		case bytes.HasSuffix(line, []byte("\r")):
			return ExecCRLF
		case len(bytes.Trim(line, " \t")) == 0:
			return ExecNoneNamed
		}
		return ExecNoInterpreter
	}
	if len(head) >= elfHead && string(head[:4]) == "\x7fELF" && elfMachine(head) != machines[runtime.GOARCH] {
		return ExecWrongArchitecture
	}
	return otherwise
}

// machines are the e_machine numbers of ELF for the architectures we build for.
var machines = map[string]uint16{"amd64": 62, "arm64": 183}

// elfHead is how many bytes of a header elfMachine needs.
const elfHead = 20

// elfMachine returns e_machine in the byte order that the header itself names.
func elfMachine(head []byte) uint16 {
	const order, bigEndian, machine = 5, 2, 18
	if head[order] == bigEndian {
		return binary.BigEndian.Uint16(head[machine:])
	}
	return binary.LittleEndian.Uint16(head[machine:])
}
