package dirfd

import "golang.org/x/sys/unix"

// openStep opens a directory on the way.
const openStep = unix.O_SEARCH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// openWhole resolves the path in one call (macOS 11).
func openWhole(path string) (fd int, err error) {
	return openat(unix.AT_FDCWD, path, openDir&^unix.O_NOFOLLOW|unix.O_NOFOLLOW_ANY, 0)
}

func renameNoReplace(olddir int, old string, newdir int, new string) error {
	return unix.RenameatxNp(olddir, old, newdir, new, unix.RENAME_EXCL)
}

// syncFS has no syncfs to call. F_FULLFSYNC flushes the drive's own cache; what
// the caller wrote must have been handed to the drive by an fsync of each file.
func syncFS(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_FULLFSYNC, 0); err == nil {
		return nil
	}
	return unix.Fsync(fd)
}
