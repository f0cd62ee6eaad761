//go:build !linux

package cli

import "golang.org/x/sys/unix"

// sealDescriptors keeps what this process inherited beside 0, 1 and 2 from what
// it starts: a runner outlives its command, and would hold the caller's locks
// and pipes open for as long.
func sealDescriptors() {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return
	}
	for fd := 3; fd < int(min(limit.Cur, 65_536)); fd++ {
		unix.CloseOnExec(fd)
	}
}
