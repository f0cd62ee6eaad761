package barrier

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

func arguments() []string { return os.Args }

// resetSignals installs the runtime's handler for every signal, ignored ones
// too, so that execve resets them all. The signal mask stays as inherited: the
// system library that could change it is out of reach here.
func resetSignals() {
	signal.Notify(make(chan os.Signal, 1))
}

// closeOnExec marks every possible descriptor but 0, 1 and 2 close-on-exec.
func closeOnExec() {
	const most = 10240 // OPEN_MAX, the limit's own limit
	for fd := 3; fd < most; fd++ {
		syscall.CloseOnExec(fd)
	}
}

func putStreamsAside() {} // there is no wrapper

func pause(milliseconds int64) { time.Sleep(time.Duration(milliseconds) * time.Millisecond) }
