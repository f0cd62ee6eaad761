package dirfd

import "golang.org/x/sys/unix"

// openStep opens a directory on the way: O_PATH needs only the permission to
// search it, as resolving a path does.
const openStep = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// openWhole resolves the path in one call (Linux 5.6).
func openWhole(path string) (fd int, err error) {
	how := unix.OpenHow{Flags: openDir, Resolve: unix.RESOLVE_NO_SYMLINKS}
	for {
		if fd, err = unix.Openat2(unix.AT_FDCWD, path, &how); err != unix.EINTR {
			return fd, err
		}
	}
}

func renameNoReplace(olddir int, old string, newdir int, new string) error {
	return unix.Renameat2(olddir, old, newdir, new, unix.RENAME_NOREPLACE)
}

func syncFS(fd int) error { return unix.Syncfs(fd) }
