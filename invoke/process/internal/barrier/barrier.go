package barrier

import "syscall"

// Argument zero of a barrier, and of a wrapper (package process).
const (
	Word        = "hawser-launch-barrier"
	WrapperWord = "hawser-process-wrapper"
)

// Streams are where a wrapper has its program's descriptors 0, 1 and 2. It has
// put them aside before the host's other packages initialize: what these read
// and print is not the program's.
var Streams = [3]int{0, 1, 2}

// The descriptors of a barrier beside 0, 1 and 2.
const (
	ControlFD = 3
	DirFD     = 4
)

// Release is the byte that lets the barrier execute its target.
const Release byte = 'r'

// Executing is the byte with which the barrier says that execve is next.
const Executing byte = 'e'

// shield goes before each variable on its way to the barrier. No runtime and no
// loader reads such a name: a GOMEMLIMIT, GODEBUG or LD_PRELOAD that is meant for
// the target does not stop the barrier, or write into the target's streams.
const shield = "@"

// Shield returns the environment that a barrier is to be started with.
func Shield(env []string) []string {
	shielded := make([]string, len(env))
	for i, variable := range env {
		shielded[i] = shield + variable
	}
	return shielded
}

// unshield returns to each variable its name.
func unshield(env []string) {
	for i := range env {
		env[i] = env[i][len(shield):]
	}
}

// exitUnreleased is the status of a barrier that ran nothing.
const exitUnreleased = 125

// Stage is what the barrier was doing when it failed.
type Stage byte

const (
	StageFork  Stage = 'f' // starting the barrier itself, below a wrapper
	StageChdir Stage = 'd' // entering the working directory
	StageExec  Stage = 'x' // executing the target
)

// Failure is what failed in a barrier, and how: nothing was executed.
type Failure struct {
	Stage Stage
	Errno syscall.Errno
}

// FailureSize is the length of an encoded Failure.
const FailureSize = 3

// Encode makes the three bytes of f: the stage, the errno in big-endian order.
func (f Failure) Encode() [FailureSize]byte {
	return [FailureSize]byte{byte(f.Stage), byte(f.Errno >> 8), byte(f.Errno)}
}

// Decode reads what Encode made.
func Decode(b [FailureSize]byte) Failure {
	return Failure{Stage(b[0]), syscall.Errno(b[1])<<8 | syscall.Errno(b[2])}
}

func init() {
	if !isSocket(ControlFD) { // the cheap question first: every start of every program asks it
		return
	}
	args := arguments()
	if len(args) < 3 {
		return
	}
	switch args[0] {
	case Word:
		run(args[1], args[2:])
		syscall.Exit(exitUnreleased)
	case WrapperWord:
		putStreamsAside()
	}
}

// run is the barrier. It returns only when nothing was executed.
//
// Everything that takes time comes before the wait, which overlaps with the
// host publishing its record. A crash before the release leaves a process that
// never ran the target; the host's record of it is removed like any reserved one.
func run(path string, argv []string) {
	resetSignals()
	closeOnExec()
	if err := syscall.Fchdir(DirFD); err != nil {
		report(StageChdir, err)
		return
	}
	if !released() || !announced() {
		return
	}
	report(StageExec, exec(path, argv))
}

// released waits for the host's word. Anything else than the release byte, or
// the end of the socket, means that the host is gone or is not a host.
func released() bool {
	var word [1]byte
	for {
		n, err := syscall.Read(ControlFD, word[:])
		if err == syscall.EINTR {
			continue
		}
		return err == nil && n == 1 && word[0] == Release
	}
}

// announced tells the host that execve is next. A host that is gone cannot be
// told, and nothing runs for it.
func announced() bool {
	n, err := syscall.Write(ControlFD, []byte{Executing})
	return err == nil && n == 1
}

// exec executes the target in place and returns only its failure.
//
// ETXTBSY says that some process still holds the file open for writing. Right
// after a package was written that can be a child of any concurrent fork, which
// holds the descriptor until its own exec: wait it out, half a second in all.
// A file that is no program by itself (ENOEXEC) is not handed to a shell.
func exec(path string, argv []string) error {
	env := syscall.Environ()
	unshield(env)
	for milliseconds := int64(1); ; milliseconds *= 2 {
		err := syscall.Exec(path, argv, env)
		if err != syscall.ETXTBSY || milliseconds > 256 {
			return err
		}
		pause(milliseconds)
	}
}

// report tells the host what failed. A host that is gone cannot be told.
func report(stage Stage, err error) {
	errno, ok := err.(syscall.Errno)
	if !ok {
		errno = syscall.EINVAL
	}
	message := Failure{stage, errno}.Encode()
	_, _ = syscall.Write(ControlFD, message[:])
}

func isSocket(fd int) bool {
	var st syscall.Stat_t
	return syscall.Fstat(fd, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFSOCK
}
