package process

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hawser/internal/fault"
)

// Without /proc nothing can be started, and /proc is what the error names.
func TestStartWithoutProc(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	host := exec.Command(os.Args[0])
	host.Env = []string{childVariable + "=host without proc"}
	host.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	out, err := host.Output()
	if err != nil {
		t.Skip("needs a mount namespace: ", err)
	}
	if got := string(out); !strings.HasPrefix(got, "platform-unsupported: ") || !strings.Contains(got, "/proc is not mounted") {
		t.Errorf("got %q", got)
	}
}

func init() {
	children["host without proc"] = func() {
		fail(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		fail(unix.Mount("none", "/proc", "tmpfs", 0, ""))
		dir, err := os.Open("/")
		fail(err)
		_, err = Start(Spec{Path: "/bin/true", Argv: []string{"true"}, Dir: dir})
		fmt.Printf("%s: %v\n", fault.CodeOf(err), err)
	}
}
