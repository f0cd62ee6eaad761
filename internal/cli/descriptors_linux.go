package cli

import "golang.org/x/sys/unix"

// sealDescriptors keeps what this process inherited beside 0, 1 and 2 from what
// it starts: a runner outlives its command, and would hold the caller's locks
// and pipes open for as long.
func sealDescriptors() {
	const first = 3
	if unix.CloseRange(first, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) == nil { // Linux 5.11
		return
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return
	}
	for fd := first; fd < int(min(limit.Cur, 65_536)); fd++ {
		unix.CloseOnExec(fd)
	}
}
