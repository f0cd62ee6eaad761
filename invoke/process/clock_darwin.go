package process

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// BootTime returns when this machine started, by its own clock as it is set
// now. It fails with io.
func BootTime() (time.Time, error) {
	at, err := unix.SysctlTimeval("kern.boottime")
	if err != nil {
		return time.Time{}, os.NewSyscallError("sysctl kern.boottime", err)
	}
	return time.Unix(at.Unix()), nil
}

// Started returns when the process that runs under pid now was started, and
// whether there is one: a zombie is not running.
func Started(pid int) (time.Time, bool) {
	id, err := Of(pid)
	if err != nil {
		return time.Time{}, unix.Kill(pid, 0) == unix.EPERM
	}
	return time.UnixMicro(int64(id.Start)), true
}
