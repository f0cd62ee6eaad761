// Package filelock is a lock on a file, taken with flock(2): the kernel releases
// it with its holder, so no crash leaves it held. The file stays; it holds a line
// that tells people who has it.
package filelock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/strictjson"
)

// noticeAfter is when a waiting command says whom it waits for.
const noticeAfter = time.Second

// Lock is a held lock. It is not safe for concurrent use.
type Lock struct {
	file *os.File
}

// holder is the line in the lock file, for people (home: Claim, "Lock order").
type holder struct {
	Command string `json:"command"`
	Pid     int    `json:"pid"`
	Since   string `json:"since"`
}

// Acquire takes the lock on the file name in dir, a checked private directory,
// creating it with mode 0600, and writes command into it. It waits until ctx
// ends; waiting, if not nil, is told after a second whom for. Two locks on one
// file exclude each other in one process too. Once ctx is canceled it takes no
// lock, not even a free one: who told this process to stop may count on that.
// When its time is over it still tries once.
//
// Everything is done below the open directory, wherever its path leads by then;
// and a lock in a directory that is no longer at its path, since a home was
// restored over this one for instance, is not taken: it would exclude nobody.
//
// Errors: lock-unavailable when ctx ended first, naming the holder, and for a
// directory that was moved or removed; the cause of a ctx that was canceled
// before; link-unsafe, owner-mismatch; io.
func Acquire(ctx context.Context, dir *dirfd.Dir, name, command string, waiting func(line string)) (*Lock, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, context.Cause(ctx)
	}
	for {
		file, err := openFile(dir, name)
		if err == nil {
			err = wait(ctx, file, dir, name, waiting)
		}
		if gone := checkInPlace(dir, name); gone != nil {
			err = gone
		}
		var same bool
		if err == nil {
			same, err = isNamed(file, dir, name)
		}
		if err == nil && same {
			l := &Lock{file}
			l.announce(command)
			return l, nil
		}
		if file != nil {
			_ = file.Close()
		}
		if err != nil {
			return nil, err
		}
		if ctx.Err() != nil { // somebody removes the file again and again
			return nil, unavailable(dir, name)
		}
	}
}

func openFile(dir *dirfd.Dir, name string) (*os.File, error) {
	if err := mend(dir, name); err != nil {
		return nil, err
	}
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(dir.Fd(), name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) {
		return nil, fault.New(fault.LinkUnsafe, "%s is not a regular file; move it away", path(dir, name))
	}
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot lock %s", path(dir, name))
	}
	file := os.NewFile(uintptr(fd), filepath.Join(dir.Path(), name))
	if err := mend(dir, name); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// path is the lock file's path for a message.
func path(dir *dirfd.Dir, name string) string { return fault.Path(filepath.Join(dir.Path(), name)) }

func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// wait takes the flock. The wait is the kernel's, not a loop of tries: a
// released lock passes on at once. A wait that was given up works on a descriptor
// of its own, and lets go of the lock should it still come.
func wait(ctx context.Context, file *os.File, dir *dirfd.Dir, name string, waiting func(string)) error {
	fd := int(file.Fd())
	err := retry(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err != unix.EWOULDBLOCK {
		return fault.Wrap(fault.IO, err, "cannot lock %s", path(dir, name))
	}
	if ctx.Err() != nil {
		return unavailable(dir, name)
	}
	own, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot lock %s", path(dir, name))
	}
	got := make(chan error, 1)
	go func() {
		got <- retry(func() error { return unix.Flock(own, unix.LOCK_EX) })
		_ = unix.Close(own) // the lock is file's as well, while that is open
	}()
	notice := time.NewTimer(noticeAfter)
	defer notice.Stop()
	for {
		select {
		case err := <-got:
			return fault.Wrap(fault.IO, err, "cannot lock %s", path(dir, name))
		case <-notice.C:
			if waiting != nil {
				waiting("waiting for the lock " + path(dir, name) + ", held by " + describeHolder(dir, name))
			}
		case <-ctx.Done():
			return unavailable(dir, name)
		}
	}
}

func unavailable(dir *dirfd.Dir, name string) error {
	return fault.New(fault.LockUnavailable, "the lock %s is held by %s; try again when it is done, or with a longer --lock-timeout", path(dir, name), describeHolder(dir, name))
}

// checkInPlace refuses a directory that is not at its path any more.
func checkInPlace(dir *dirfd.Dir, name string) error {
	info, err := dir.Info()
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(dir.Path()))
	}
	var st unix.Stat_t
	err = retry(func() error { return unix.Lstat(dir.Path(), &st) })
	if err != nil || uint64(st.Dev) != info.Dev || st.Ino != info.Ino {
		return fault.New(fault.LockUnavailable, "the lock %s cannot be taken: its directory was moved or replaced meanwhile; run the command again", path(dir, name))
	}
	return nil
}

// mend gives the lock file its exact mode, whatever the umask was under which it
// was made: one that its own user cannot open would lock everybody out.
func mend(dir *dirfd.Dir, name string) error {
	info, err := dir.Lstat(name)
	if err != nil || !info.IsRegular() || info.Perm() == 0o600 || int(info.UID) != os.Geteuid() {
		return nil // absent or as it must be; what else it is, the others tell
	}
	err = unix.Fchmodat(dir.Fd(), name, 0o600, 0)
	return fault.Wrap(fault.IO, err, "cannot set the mode of %s", path(dir, name))
}

// isNamed reports whether the locked file is the one that has the name now, a
// regular file of ours: one that somebody removed or replaced excludes nobody.
func isNamed(file *os.File, dir *dirfd.Dir, name string) (bool, error) {
	locked, err := file.Stat()
	if err != nil {
		return false, fault.Wrap(fault.IO, err, "cannot read %s", path(dir, name))
	}
	named, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fault.Wrap(fault.IO, err, "cannot read %s", path(dir, name))
	}
	switch {
	case !named.IsRegular() || named.Nlink > 1:
		return false, fault.New(fault.LinkUnsafe, "%s is not a regular file with one link; move it away", path(dir, name))
	case int(named.UID) != os.Geteuid():
		return false, fault.New(fault.OwnerMismatch, "%s belongs to uid %d, not to you; move it away", path(dir, name), named.UID)
	}
	st, ok := locked.Sys().(*syscall.Stat_t)
	return ok && uint64(st.Dev) == named.Dev && st.Ino == named.Ino, nil
}

// lineSize is the length of the holder's line, padded with spaces: it is written
// over, never truncated, which would make the file system flush it on close.
const lineSize = 512

// announce writes the holder's line. It is for people only: a failure to write
// it is no reason to refuse.
func (l *Lock) announce(command string) {
	line, err := strictjson.Canonical(holder{command, os.Getpid(), time.Now().UTC().Format(time.RFC3339)})
	if err == nil && len(line) < lineSize {
		l.write(line)
	}
}

func (l *Lock) write(line []byte) {
	padded := bytes.Repeat([]byte{' '}, lineSize)
	copy(padded, line)
	padded[lineSize-1] = '\n'
	_, _ = l.file.WriteAt(padded, 0)
}

const unknownHolder = "another command"

var holderDoc = strictjson.Doc{Name: "lock holder", Limit: 65_536}

func describeHolder(dir *dirfd.Dir, name string) string {
	file, _, err := dir.OpenFile(name)
	if err != nil {
		return unknownHolder
	}
	defer file.Close()
	line, err := holderDoc.Read(file)
	if err != nil {
		return unknownHolder
	}
	return sayHolder(line)
}

// sayHolder puts the holder's line into words for a message.
func sayHolder(line []byte) string {
	v, err := holderDoc.Decode(line)
	if err != nil {
		return unknownHolder
	}
	v.Members("command", "pid", "since")
	command, pid, since := v.Get("command").String(nil), v.Get("pid").Int(1, strictjson.MaxInt), v.Get("since").String(nil)
	if v.Err() != nil {
		return unknownHolder
	}
	return fmt.Sprintf("process %d (%s) since %s", pid, fault.Path(command), fault.Path(since))
}

// Release gives the lock up. A nil lock, and a second call, do nothing.
func (l *Lock) Release() {
	if l == nil || l.file == nil {
		return
	}
	l.write(nil)
	_ = l.file.Close()
	l.file = nil
}
