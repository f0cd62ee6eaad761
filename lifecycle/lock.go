package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/strictjson"
	"hawser/lifecycle/linklock"
)

const (
	lockName = "lifecycle.flock"
	// foreignLock is how other hosts of the contract lock the lifecycle. It is
	// taken after ours, for as long as ours, so ours alone decides among us.
	foreignLock = ".extension-binding-lifecycle.lock"

	// DefaultLockTimeout is how long a command waits for a lock.
	DefaultLockTimeout = 60 * time.Second
	// waitNotice is when a waiting command says whom it waits for.
	waitNotice = time.Second
)

// lock is the held lifecycle lock of a home (home: Claim, "Lock order"). The
// kernel releases the flock with its holder, so no crash leaves it held; the
// link lock for foreign hosts is judged by the pid in it.
type lock struct {
	flock   *flock.Flock
	foreign *linklock.Lock
	data    *dirfd.Dir // data/extensions
	state   *dirfd.Dir // state/procevent
}

// holder is the line in the lock file, for people.
type holder struct {
	Command string `json:"command"`
	Pid     int    `json:"pid"`
	Since   string `json:"since"`
}

// lock takes the lifecycle lock for a command, after checking every directory
// of the home, so that an unsafe home is refused before anything is written.
//
// Errors: lock-unavailable after the lock timeout; those of home.Open; io.
func (h *Host) lock(ctx context.Context, command string) (*lock, error) {
	if err := h.checkPlaces(); err != nil {
		return nil, err
	}
	data, err := h.Home.Make(nil, home.Data)
	if err != nil {
		return nil, err
	}
	l := &lock{data: data}
	ctx, cancel := context.WithTimeout(ctx, h.lockTimeout())
	defer cancel()
	if err := l.takeOurs(ctx, h); err != nil {
		l.release()
		return nil, err
	}
	l.announce(command)
	if l.state, err = h.Home.Make(nil, home.Procevent); err == nil {
		l.foreign, err = linklock.Acquire(ctx, l.state, foreignLock)
	}
	if err == nil {
		err = linklock.Sweep(l.state, l.foreign)
	}
	if err != nil {
		l.release()
		return nil, err
	}
	return l, nil
}

// takeOurs takes the flock and makes sure that it is on the file that has the
// name now: a file that somebody removed or replaced excludes nobody.
func (l *lock) takeOurs(ctx context.Context, h *Host) error {
	path := filepath.Join(l.data.Path(), lockName)
	for {
		f := flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW), flock.SetPermissions(0o600))
		if err := h.waitFlock(ctx, f, path); err != nil {
			return err
		}
		same, err := isNamed(f, l.data)
		if err != nil || !same {
			_ = f.Close()
		}
		if err != nil {
			return err
		}
		if same {
			l.flock = f
			return nil
		}
	}
}

// waitFlock takes the flock. The wait is the kernel's, not a loop of tries: a
// released lock passes on at once. A wait that was given up lets go of the lock
// should it still come.
func (h *Host) waitFlock(ctx context.Context, f *flock.Flock, path string) error {
	held, err := f.TryLock()
	if err != nil {
		return lockFault(err, path)
	}
	if held {
		return nil
	}
	got := make(chan error, 1)
	go func() { got <- f.Lock() }()
	notice := time.After(waitNotice)
	for {
		select {
		case err := <-got:
			return lockFault(err, path)
		case <-notice:
			if h.Waiting != nil {
				h.Waiting("waiting for the home's lifecycle lock, held by " + describeHolder(path))
			}
		case <-ctx.Done():
			go func() {
				if <-got == nil {
					_ = f.Close()
				}
			}()
			return fault.New(fault.LockUnavailable, "the lifecycle lock %s is held by %s; try again when it is done, or with a longer --lock-timeout", fault.Path(path), describeHolder(path))
		}
	}
}

func lockFault(err error, path string) error {
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EISDIR) {
		return fault.New(fault.LinkUnsafe, "%s is not a regular file; move it away", fault.Path(path))
	}
	return fault.Wrap(fault.IO, err, "cannot lock %s", fault.Path(path))
}

// isNamed reports whether the locked file is the one named in dir, a private
// regular file.
func isNamed(f *flock.Flock, dir *dirfd.Dir) (bool, error) {
	path := filepath.Join(dir.Path(), lockName)
	locked, err := f.Stat()
	if err != nil {
		return false, fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(path))
	}
	named, err := dir.Lstat(lockName)
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

// announce writes the holder's line. It is for people only: a failure to write
// it is no reason to refuse.
func (l *lock) announce(command string) {
	line, err := strictjson.Canonical(holder{command, os.Getpid(), time.Now().UTC().Format(time.RFC3339)})
	if err != nil {
		return
	}
	l.writeHolder(append(line, '\n'))
}

func (l *lock) writeHolder(line []byte) {
	file, err := os.OpenFile(l.flock.Path(), os.O_WRONLY|os.O_TRUNC|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer file.Close()
	_, _ = file.Write(line)
}

func describeHolder(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return "another command"
	}
	defer file.Close()
	doc := strictjson.Doc{Name: "lock holder", Limit: 65_536}
	data, err := doc.Read(file)
	if err != nil {
		return "another command"
	}
	v, err := doc.Decode(data)
	if err != nil {
		return "another command"
	}
	v.Members("command", "pid", "since")
	command, pid, since := v.Get("command").String(nil), v.Get("pid").Int(1, strictjson.MaxInt), v.Get("since").String(nil)
	if v.Err() != nil {
		return "another command"
	}
	return fmt.Sprintf("process %d (%s) since %s", pid, fault.Path(command), fault.Path(since))
}

// release gives the lock up, in the reverse order. It may be called twice.
func (l *lock) release() {
	if l.foreign != nil {
		l.foreign.Release()
		l.foreign = nil
	}
	if l.state != nil {
		l.state.Close()
		l.state = nil
	}
	if l.flock != nil {
		l.writeHolder(nil)
		_ = l.flock.Close()
		l.flock = nil
	}
	if l.data != nil {
		l.data.Close()
		l.data = nil
	}
}
