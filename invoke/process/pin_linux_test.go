package process

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"hawser/invoke/process/internal/barrier"
)

// pinWith selects how groups started from here on are pinned.
func pinWith(t *testing.T, pidfd bool) {
	kernel := groupSignals
	if pidfd && !kernel() {
		t.Skip("this kernel has no PIDFD_SIGNAL_PROCESS_GROUP")
	}
	groupSignals = func() bool { return pidfd }
	t.Cleanup(func() { groupSignals = kernel })
}

// blockSignals blocks what can be blocked on this thread.
func blockSignals() {
	var all unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	fail(unix.PthreadSigmask(unix.SIG_SETMASK, &all, nil))
}

// pinVariable tells a wrapper, which is a process of its own, how to pin. Package
// variables are ready before the init function that becomes the wrapper, which
// sees its program's variables shielded.
const pinVariable = "PROCESS_TEST_PIN"

var _ = func() bool {
	if os.Getenv(barrier.Shield([]string{pinVariable})[0]) == "zombie" {
		groupSignals = func() bool { return false }
	}
	return true
}()
