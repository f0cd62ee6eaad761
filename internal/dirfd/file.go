package dirfd

import (
	"io"

	"golang.org/x/sys/unix"
)

// File is the bare descriptor of a regular file: what an os.File is, without
// the poller's system calls and the finalizer, for the thousands of files of a
// package tree. Its errors are bare errnos; the caller knows the name. It must
// be closed, once.
type File struct{ fd int }

// Read is io.Reader's, except that the end of the file is 0 and no error.
func (f File) Read(p []byte) (n int, err error) {
	for {
		if n, err = unix.Read(f.fd, p); err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// Write writes all of p or fails.
func (f File) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		n, err := unix.Write(f.fd, p[done:])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return done, err
		case n == 0:
			return done, io.ErrShortWrite
		default:
			done += n
		}
	}
	return len(p), nil
}

// Info describes the file as it is now.
func (f File) Info() (Info, error) { return fstat(f.fd) }

// Close closes the descriptor.
func (f File) Close() error { return closeFD(f.fd) }
