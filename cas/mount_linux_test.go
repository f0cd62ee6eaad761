package cas

import (
	"testing"

	"golang.org/x/sys/unix"
)

func mountTmpfs(at, options string) error { return unix.Mount("tmpfs", at, "tmpfs", 0, options) }

func unmount(t *testing.T, at string) {
	t.Helper()
	must(t, unix.Unmount(at, unix.MNT_DETACH))
}
