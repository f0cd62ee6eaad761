// Package linklock takes the locks that other programs of the contract take
// (home: Wake queue, and the lifecycle lock of other hosts): a symbolic link to
// a private directory that holds the holder's pid.
//
// # States
//
// To take <name>: (1) a private directory beside it, <name>.<suffix>, with a
// file pid; (2) the link <name> to that directory, by its absolute path: held.
// To release: (3) the link goes, if it still points there; (4) the directory
// goes. A crash after 1 or 3 leaves a directory that nobody points to, removed
// by Sweep; after 2, a stale lock: its pid is dead, or belongs to a process
// younger than the link, or the link is older than the boot. A link without a
// readable pid is stale after two seconds. A stale lock is taken over only by
// the holder of <name>.steal, a lock of the same kind, after looking again.
//
// Two processes at once: symlinkat is the arbiter. A stale link is never
// unlinked by its name, since that could hit its successor: it is renamed to a
// private name, read again there, and put back if it was not the stale one.
package linklock

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/invoke/process"
)

const (
	// pollEvery is how often a waiter looks again: nothing can wake it.
	pollEvery = 20 * time.Millisecond
	// pidGrace is how long a link may have no readable pid.
	pidGrace = 2 * time.Second
	// clockSlack absorbs the rounding between the clock of the file system and
	// that of the process table before a holder counts as younger than its lock.
	clockSlack = 2 * time.Second

	ours = ".hawser-"
)

// Lock is a held lock. It is not safe for concurrent use.
type Lock struct {
	dir    *dirfd.Dir
	name   string
	holder string // the private directory's name in dir
}

// Acquire takes the lock name in dir, waiting until ctx ends. dir must stay
// open until Release.
//
// Errors: lock-unavailable when ctx ended first, naming the holder; path-unsafe
// when something stands there that is no lock; io.
func Acquire(ctx context.Context, dir *dirfd.Dir, name string) (*Lock, error) {
	lock, err := prepare(dir, name)
	if err != nil {
		return nil, err
	}
	for {
		held, err := lock.try(ctx)
		if held {
			return lock, nil
		}
		if err == nil {
			err = wait(ctx, dir, name)
		}
		if err != nil {
			lock.discard()
			return nil, err
		}
	}
}

func wait(ctx context.Context, dir *dirfd.Dir, name string) error {
	select {
	case <-time.After(pollEvery):
		return nil
	case <-ctx.Done():
		path := filepath.Join(dir.Path(), name)
		if pid, err := readPid(dir, name); err == nil {
			return fault.New(fault.LockUnavailable, "%s is held by process %d; try again when it is done", fault.Path(path), pid)
		}
		return fault.New(fault.LockUnavailable, "%s is held; try again when its holder is done", fault.Path(path))
	}
}

// prepare makes the private directory with our pid in it.
func prepare(dir *dirfd.Dir, name string) (*Lock, error) {
	lock := &Lock{dir, name, name + ours + strings.TrimPrefix(home.TempName(), home.TempPrefix)}
	private, err := dir.Mkdir(lock.holder, 0o700)
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot prepare the lock %s", fault.Path(filepath.Join(dir.Path(), name)))
	}
	defer private.Close()
	file, err := private.Create("pid", 0o600)
	if err == nil {
		_, err = file.WriteString(strconv.Itoa(os.Getpid()) + "\n")
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		lock.discard()
		return nil, fault.Wrap(fault.IO, err, "cannot prepare the lock %s", fault.Path(filepath.Join(dir.Path(), name)))
	}
	return lock, nil
}

func (l *Lock) target() string { return filepath.Join(l.dir.Path(), l.holder) }

// try takes the lock if it is free or stale.
func (l *Lock) try(ctx context.Context) (bool, error) {
	err := unix.Symlinkat(l.target(), l.dir.Fd(), l.name)
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, unix.EEXIST) {
		return false, fault.Wrap(fault.IO, err, "cannot take the lock %s", fault.Path(filepath.Join(l.dir.Path(), l.name)))
	}
	target, stale, err := judge(l.dir, l.name)
	if err != nil || !stale {
		return false, err
	}
	return false, l.clearStale(ctx, target)
}

// clearStale removes the stale lock that points to target, under the steal lock.
func (l *Lock) clearStale(ctx context.Context, target string) error {
	steal, err := prepare(l.dir, l.name+".steal")
	if err != nil {
		return err
	}
	err = unix.Symlinkat(steal.target(), l.dir.Fd(), steal.name)
	if errors.Is(err, unix.EEXIST) {
		steal.discard()
		// Somebody is at it, or died at it: then that lock is cleared the way
		// a stale one is, except that nothing guards it but the rename.
		if target, stale, err := judge(l.dir, l.name+".steal"); err != nil || !stale {
			return err
		} else {
			return removeLink(l.dir, l.name+".steal", target)
		}
	}
	if err != nil {
		steal.discard()
		return fault.Wrap(fault.IO, err, "cannot take the lock %s", fault.Path(filepath.Join(l.dir.Path(), steal.name)))
	}
	defer steal.Release()
	again, stale, err := judge(l.dir, l.name)
	if err != nil || !stale || again != target {
		return err
	}
	return removeLink(l.dir, l.name, target)
}

// removeLink removes the link name if it points to target, and the directory it
// points to if that is one of ours.
func removeLink(dir *dirfd.Dir, name, target string) error {
	aside := name + ours + strings.TrimPrefix(home.TempName(), home.TempPrefix)
	if err := dir.RenameNoReplace(name, dir, aside); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fault.Wrap(fault.IO, err, "cannot clear the stale lock %s", fault.Path(filepath.Join(dir.Path(), name)))
	}
	if got, err := readLink(dir, aside); err != nil || got != target {
		// Not the one that was judged: its holder got it in between.
		if err := dir.RenameNoReplace(aside, dir, name); err != nil && !errors.Is(err, fs.ErrExist) {
			return fault.Wrap(fault.IO, err, "cannot put back the lock %s", fault.Path(filepath.Join(dir.Path(), name)))
		}
		return nil
	}
	if err := dir.Remove(aside); err != nil {
		return fault.Wrap(fault.IO, err, "cannot clear the stale lock %s", fault.Path(filepath.Join(dir.Path(), name)))
	}
	if filepath.Dir(target) == dir.Path() && strings.HasPrefix(filepath.Base(target), name+".") {
		// A lock directory of any host of the contract is named after its lock.
		_ = dir.RemoveAll(filepath.Base(target))
	}
	return nil
}

// Release gives the lock up. A lock that somebody took over meanwhile stays
// theirs.
func (l *Lock) Release() {
	if target, err := readLink(l.dir, l.name); err == nil && target == l.target() {
		_ = l.dir.Remove(l.name)
	}
	l.discard()
}

func (l *Lock) discard() { _ = l.dir.RemoveAll(l.holder) }

// Sweep removes the private directories of ours in dir that no link of that
// lock points to. Only for locks that are taken under another lock of ours,
// which the caller holds, together with the lock name itself.
func Sweep(dir *dirfd.Dir, held *Lock) error {
	names, err := dir.Names()
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(dir.Path()))
	}
	for _, name := range names {
		mine := strings.HasPrefix(name, held.name+ours) || strings.HasPrefix(name, held.name+".steal"+ours)
		if mine && name != held.holder {
			if err := dir.RemoveAll(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fault.Wrap(fault.IO, err, "cannot clear the leftover %s", fault.Path(filepath.Join(dir.Path(), name)))
			}
		}
	}
	return nil
}

// judge reads who holds the lock and whether that holder is gone.
func judge(dir *dirfd.Dir, name string) (target string, stale bool, err error) {
	path := filepath.Join(dir.Path(), name)
	info, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fault.Wrap(fault.IO, err, "cannot read the lock %s", fault.Path(path))
	}
	if !info.IsLink() {
		return "", false, fault.New(fault.PathUnsafe, "%s is no lock (not a link); move it away", fault.Path(path))
	}
	target, err = readLink(dir, name)
	if err != nil {
		return "", false, nil // released in between
	}
	taken := time.Unix(0, info.Mtime)
	pid, err := readPid(dir, name)
	if err != nil {
		return target, time.Since(taken) > pidGrace, nil
	}
	boot, err := process.BootTime()
	if err == nil && taken.Add(clockSlack).Before(boot) {
		return target, true, nil
	}
	started, alive := process.Started(pid)
	return target, !alive || taken.Add(clockSlack).Before(started), nil
}

func readLink(dir *dirfd.Dir, name string) (string, error) {
	buf := make([]byte, 4097)
	n, err := unix.Readlinkat(dir.Fd(), name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// readPid reads the pid file through the link, as its other users do.
func readPid(dir *dirfd.Dir, name string) (int, error) {
	target, err := readLink(dir, name)
	if err != nil {
		return 0, err
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(dir.Path(), target)
	}
	fd, err := unix.Open(filepath.Join(target, "pid"), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	file := os.NewFile(uintptr(fd), "pid")
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, 32))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err == nil && pid <= 0 {
		err = syscall.EINVAL
	}
	return pid, err
}
