package procevent

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// onClockSet calls set, on a goroutine of its own, each time the machine's clock
// jumps: set by a person or by the network, or after the pause of a virtual
// machine. Waiting for that costs a descriptor and no thread. After stop
// it is not called any more; where a jump cannot be told, it never is.
func onClockSet(set func()) (stop func()) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return func() {}
	}
	timer := os.NewFile(uintptr(fd), "timerfd")
	if armForJumps(timer) != nil {
		timer.Close()
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var expirations [8]byte
		for {
			// A timer that is never due is read with ECANCELED when the clock jumps
			// (timerfd_create(2): TFD_TIMER_CANCEL_ON_SET).
			if _, err := timer.Read(expirations[:]); !errors.Is(err, unix.ECANCELED) || armForJumps(timer) != nil {
				return
			}
			set()
		}
	}()
	return func() {
		timer.Close()
		<-done
	}
}

func armForJumps(timer *os.File) error {
	conn, err := timer.SyscallConn()
	if err != nil {
		return err
	}
	never := unix.ItimerSpec{Value: unix.Timespec{Sec: 1 << 33}}
	var armErr error
	err = conn.Control(func(fd uintptr) {
		armErr = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &never, nil)
	})
	return errors.Join(err, armErr)
}
