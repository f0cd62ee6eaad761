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

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/strictjson"
)

// noticeAfter is when a waiting command says whom it waits for.
const noticeAfter = time.Second

// Lock is a held lock. It is not safe for concurrent use.
type Lock struct {
	flock *flock.Flock
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
// Errors: lock-unavailable when ctx ended first, naming the holder; the cause of
// one that was canceled before; link-unsafe, owner-mismatch; io.
func Acquire(ctx context.Context, dir *dirfd.Dir, name, command string, waiting func(line string)) (*Lock, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, context.Cause(ctx)
	}
	path := filepath.Join(dir.Path(), name)
	for {
		if err := mend(dir, name); err != nil {
			return nil, err
		}
		f := flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW), flock.SetPermissions(0o600))
		if err := wait(ctx, f, path, waiting); err != nil {
			return nil, err
		}
		if err := mend(dir, name); err != nil {
			_ = f.Close()
			return nil, err
		}
		same, err := isNamed(f, dir, name)
		if err == nil && same {
			l := &Lock{f}
			l.announce(command)
			return l, nil
		}
		_ = f.Close()
		if err != nil {
			return nil, err
		}
	}
}

// wait takes the flock. The wait is the kernel's, not a loop of tries: a
// released lock passes on at once. A wait that was given up lets go of the lock
// should it still come.
func wait(ctx context.Context, f *flock.Flock, path string, waiting func(string)) error {
	held, err := f.TryLock()
	if err != nil {
		return lockFault(err, path)
	}
	if held {
		return nil
	}
	if ctx.Err() != nil {
		return unavailable(path)
	}
	got := make(chan error, 1)
	go func() { got <- f.Lock() }()
	notice := time.NewTimer(noticeAfter)
	defer notice.Stop()
	for {
		select {
		case err := <-got:
			return lockFault(err, path)
		case <-notice.C:
			if waiting != nil {
				waiting("waiting for the lock " + fault.Path(path) + ", held by " + describeHolder(path))
			}
		case <-ctx.Done():
			go func() {
				if <-got == nil {
					_ = f.Close()
				}
			}()
			return unavailable(path)
		}
	}
}

func unavailable(path string) error {
	return fault.New(fault.LockUnavailable, "the lock %s is held by %s; try again when it is done, or with a longer --lock-timeout", fault.Path(path), describeHolder(path))
}

func lockFault(err error, path string) error {
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EISDIR) {
		return fault.New(fault.LinkUnsafe, "%s is not a regular file; move it away", fault.Path(path))
	}
	return fault.Wrap(fault.IO, err, "cannot lock %s", fault.Path(path))
}

// mend gives the lock file its exact mode, whatever the umask was under which it
// was made: one that its own user cannot open would lock everybody out.
func mend(dir *dirfd.Dir, name string) error {
	info, err := dir.Lstat(name)
	if err != nil || !info.IsRegular() || info.Perm() == 0o600 || int(info.UID) != os.Geteuid() {
		return nil // absent or as it must be; what else it is, the others tell
	}
	err = unix.Fchmodat(dir.Fd(), name, 0o600, 0)
	return fault.Wrap(fault.IO, err, "cannot set the mode of %s", fault.Path(filepath.Join(dir.Path(), name)))
}

// isNamed reports whether the locked file is the one that has the name now, a
// regular file of ours: one that somebody removed or replaced excludes nobody.
func isNamed(f *flock.Flock, dir *dirfd.Dir, name string) (bool, error) {
	path := filepath.Join(dir.Path(), name)
	locked, err := f.Stat()
	if err != nil {
		return false, fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(path))
	}
	named, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(path))
	}
	switch {
	case !named.IsRegular() || named.Nlink > 1:
		return false, fault.New(fault.LinkUnsafe, "%s is not a regular file with one link; move it away", fault.Path(path))
	case int(named.UID) != os.Geteuid():
		return false, fault.New(fault.OwnerMismatch, "%s belongs to uid %d, not to you; move it away", fault.Path(path), named.UID)
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
	file, err := os.OpenFile(l.flock.Path(), os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer file.Close()
	padded := bytes.Repeat([]byte{' '}, lineSize)
	copy(padded, line)
	padded[lineSize-1] = '\n'
	_, _ = file.Write(padded)
}

const unknownHolder = "another command"

var holderDoc = strictjson.Doc{Name: "lock holder", Limit: 65_536}

func describeHolder(path string) string {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
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
	if l == nil || l.flock == nil {
		return
	}
	l.write(nil)
	_ = l.flock.Close()
	l.flock = nil
}
