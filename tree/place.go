package tree

import (
	"errors"
	"io/fs"
	"syscall"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
)

// place is a name in an open directory, or with "" the directory itself. It is
// how an entry is passed about: its path is put together only for a message.
type place struct {
	dir  *dirfd.Dir
	name string
}

// String returns the path as it stands in a message.
func (p place) String() string {
	if p.name == "" {
		return fault.Path(p.dir.Path())
	}
	return fault.Path(p.dir.Path() + "/" + p.name)
}

func changed(at place) error {
	return fault.New(fault.IntegrityMismatch, "%s changed while it was being read: try again when nothing writes to it", at)
}

// openFault says why an entry that its directory listed cannot be opened; a
// link has the code given.
func openFault(err error, link fault.Code, at place) error {
	switch {
	case errors.Is(err, dirfd.ErrLink):
		return fault.New(link, "%s is now a symbolic link", at)
	case errors.Is(err, dirfd.ErrNotRegular), errors.Is(err, syscall.ENOTDIR):
		return fault.New(fault.IntegrityMismatch, "%s is now something else than it was", at)
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.IntegrityMismatch, "%s is gone", at)
	}
	return ioFault(err, "cannot open %s", at)
}

// ioFault makes the refusal of a failed system call: what was attempted where,
// and the system's own words, without the path that a *fs.PathError would
// repeat.
func ioFault(err error, attempt string, at place) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return fault.Wrap(fault.IO, err, attempt, at)
}
