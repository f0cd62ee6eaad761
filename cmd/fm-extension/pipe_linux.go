package main

import (
	"os"

	"golang.org/x/sys/unix"

	"hawser/transfer"
)

// widen makes room for a whole envelope in a pipe, so that its writer does not
// take turns with us for every 64 KiB. What is no pipe stays what it is.
func widen(file *os.File) {
	conn, err := file.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, transfer.MaxEnvelopeBytes) })
}
