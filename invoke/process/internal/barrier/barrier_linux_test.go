package barrier

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Both ways mark a descriptor that is inherited, however high its number.
func TestCloseOnExec(t *testing.T) {
	for name, mark := range map[string]func(){"close_range": closeOnExec, "each": closeOnExecEach} {
		t.Run(name, func(t *testing.T) {
			var fds [3]int
			for i, number := range []int{10, 100, 900} {
				fd, err := unix.FcntlInt(0, unix.F_DUPFD, number)
				if err != nil {
					t.Fatal(err)
				}
				defer syscall.Close(fd)
				fds[i] = fd
			}
			mark()
			for _, fd := range fds {
				if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
					t.Errorf("descriptor %d stays open over execve (%v)", fd, err)
				}
			}
			if flags, err := unix.FcntlInt(0, unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
				t.Errorf("descriptor 0 was marked (%v)", err)
			}
		})
	}
}

func TestArguments(t *testing.T) {
	if got := arguments(); !slices.Equal(got, os.Args) {
		t.Errorf("got %q, want %q", got, os.Args)
	}
	long := strings.Repeat("x", 5000)
	for text, want := range map[string][]string{
		"":                      nil,
		"a\x00":                 {"a"},
		"a\x00\x00b\x00":        {"a", "", "b"},
		"a\x00" + long + "\x00": {"a", long},
		"cut":                   nil,
	} {
		if got := split([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestDecimal(t *testing.T) {
	for text, want := range map[string]int{"": 0, "0": 0, "7": 7, "1024": 1024, "x": -1, "1x": -1, "99999999999999999999": -1} {
		if got := decimal(text); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
}
