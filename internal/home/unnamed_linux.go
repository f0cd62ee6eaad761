package home

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
)

// unnamed returns an open file without a name on dst's file system when temps
// is on another one, so that a rename could not publish it (home: where config
// is another file system), and nil when it is on the same.
func unnamed(temps, dst *dirfd.Dir) (*os.File, error) {
	from, err := temps.Info()
	if err != nil {
		return nil, err
	}
	to, err := dst.Info()
	if err != nil || from.Dev == to.Dev {
		return nil, err
	}
	fd, err := unix.Openat(dst.Fd(), ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "O_TMPFILE", Path: dst.Path(), Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Join(dst.Path(), "(unnamed)")), nil
}

// linkUnnamed gives the file its content and then its name. A crash before the
// link leaves nothing; EEXIST replaces nothing.
func linkUnnamed(file *os.File, dst *dirfd.Dir, name string, data []byte) error {
	defer file.Close()
	_, err := file.Write(data)
	if err == nil {
		err = file.Chmod(0o600)
	}
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", file.Fd()), dst.Fd(), name, unix.AT_SYMLINK_FOLLOW)
	}
	if errors.Is(err, os.ErrExist) {
		return err
	}
	return fault.Wrap(fault.IO, err, "cannot publish %s", fault.Path(filepath.Join(dst.Path(), name)))
}
