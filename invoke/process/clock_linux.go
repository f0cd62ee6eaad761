package process

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ticks is USER_HZ, which is 100 wherever Linux shows times to programs.
const ticks = 100

// BootTime returns when this machine started, by its own clock as it is set
// now: correct to the clock's tick, and moved with the clock when that is set.
// It fails with io.
func BootTime() (time.Time, error) {
	var since unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &since); err != nil {
		return time.Time{}, os.NewSyscallError("clock_gettime", err)
	}
	return time.Now().Add(-time.Duration(since.Nano())), nil
}

// Started returns when the process that runs under pid now was started, in the
// terms of BootTime, and whether there is one: a zombie is not running. A
// process that exists but cannot be looked at is running since the boot.
func Started(pid int) (time.Time, bool) {
	boot, err := BootTime()
	if err != nil {
		return time.Time{}, exists(pid)
	}
	now, err := readStat(pid)
	switch {
	case errors.Is(err, unix.ESRCH) && !exists(pid):
		return time.Time{}, false
	case err != nil:
		return boot, true
	case now.dead():
		return time.Time{}, false
	}
	return boot.Add(time.Duration(now.start) * (time.Second / ticks)), true
}
