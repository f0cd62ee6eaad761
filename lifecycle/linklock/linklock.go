// Package linklock takes the locks that other programs of the contract take
// (home: Wake queue, and the lifecycle lock of other hosts): a symbolic link to
// a private directory that holds the holder's pid.
//
// # States
//
// To take <name>: (1) a private directory beside it, <name>.hawser-<pid>-<random>,
// with a file pid; (2) the link <name> to that directory, by its absolute path: held.
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
	// noticeAfter is when a waiting command says whom it waits for.
	noticeAfter = time.Second
	// pidGrace is how long a link may have no readable pid.
	pidGrace = 2 * time.Second
	// clockSlack absorbs the rounding between the clock of the file system and
	// that of the process table before a holder counts as younger than its lock.
	clockSlack = 2 * time.Second

	ours           = ".hawser-"
	standingSuffix = ".hawser"
	stealSuffix    = ".steal"
)

// Lock is a held lock. It is not safe for concurrent use.
type Lock struct {
	dir      *dirfd.Dir
	name     string
	holder   string // the private directory's name in dir
	standing bool   // the private directory stays
}

// Acquire takes the lock name in dir, waiting until ctx ends; waiting, if not
// nil, is told after a second whom for. dir must stay open until Release. Once
// ctx is canceled it takes no lock, not even a free one; when its time is over it
// still tries once.
//
// Errors: lock-unavailable when ctx ended first, naming the holder; the cause of
// one that was canceled before; path-unsafe when something stands there that is no
// lock; io.
func Acquire(ctx context.Context, dir *dirfd.Dir, name string, waiting func(line string)) (*Lock, error) {
	return acquire(ctx, dir, name, waiting)
}

// AcquireAlone is Acquire for a lock that programs of ours take only under
// another lock, which the caller holds. The private directory may then stay
// where it is between two holders: a free lock is taken and given up without
// creating a file but the link, which a file system feels in a short command.
func AcquireAlone(ctx context.Context, dir *dirfd.Dir, name string, waiting func(line string)) (*Lock, error) {
	if lock := tryStanding(dir, name); lock != nil {
		return lock, nil
	}
	return acquire(ctx, dir, name, waiting)
}

func acquire(ctx context.Context, dir *dirfd.Dir, name string, waiting func(string)) (*Lock, error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, context.Cause(ctx)
	}
	began := time.Now()
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
			if waiting != nil && time.Since(began) > noticeAfter {
				waiting("waiting for the lock " + fault.Path(filepath.Join(dir.Path(), name)) + ", held by " + holderName(dir, name))
				waiting = nil
			}
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
		return fault.New(fault.LockUnavailable, "the lock %s is held by %s; try again when it is done, or with a longer --lock-timeout", fault.Path(filepath.Join(dir.Path(), name)), holderName(dir, name))
	}
}

func holderName(dir *dirfd.Dir, name string) string {
	if target, err := readTarget(dir, name); err == nil {
		if pid, err := readPid(target); err == nil {
			return "process " + strconv.Itoa(pid)
		}
	}
	return "another program"
}

// privateName is a fresh name of ours beside the lock. It holds our pid, so that
// what a crash leaves can be told at once, before there is a pid file in it.
func privateName(name string) string {
	return name + ours + strconv.Itoa(os.Getpid()) + "-" + strings.TrimPrefix(home.TempName(), home.TempPrefix)
}

// makerPid is the pid in a private name, 0 for any other name.
func makerPid(private string) int {
	_, rest, _ := strings.Cut(private, ours)
	digits, _, _ := strings.Cut(rest, "-")
	pid, err := strconv.Atoi(digits)
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

// prepare makes the private directory with our pid in it.
func prepare(dir *dirfd.Dir, name string) (*Lock, error) {
	lock := &Lock{dir: dir, name: name, holder: privateName(name)}
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

// tryStanding takes a free lock with the private directory that stays. It
// returns nil when the lock is not free, or anything is not as it must be: the
// long way then finds out.
//
// Somebody who clears a stale lock of ours removes the directory that its link
// pointed to. It could be the standing one, in use again by us; but they hold
// the steal lock until they are done, so a lock that was taken while there is a
// steal lock is given back.
func tryStanding(dir *dirfd.Dir, name string) *Lock {
	if _, err := dir.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock := &Lock{dir: dir, name: name, holder: name + standingSuffix, standing: true}
	if !lock.writeStanding() || unix.Symlinkat(lock.target(), dir.Fd(), name) != nil {
		return nil
	}
	if _, err := dir.Lstat(name + stealSuffix); !errors.Is(err, fs.ErrNotExist) {
		lock.Release()
		return nil
	}
	return lock
}

func (l *Lock) writeStanding() bool {
	private, err := l.dir.Sub(l.holder)
	if errors.Is(err, fs.ErrNotExist) {
		private, err = l.dir.Mkdir(l.holder, 0o700)
	}
	if err != nil {
		return false
	}
	defer private.Close()
	fd, err := unix.Openat(private.Fd(), "pid", unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return false
	}
	file := os.NewFile(uintptr(fd), "pid")
	defer file.Close()
	// Written over and cut, not truncated first, which would make the file
	// system flush it on close. Nobody reads it before the link is there.
	text := strconv.Itoa(os.Getpid()) + "\n"
	if _, err := file.WriteString(text); err != nil || file.Chmod(0o600) != nil {
		return false
	}
	return file.Truncate(int64(len(text))) == nil
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
	steal, err := prepare(l.dir, l.name+stealSuffix)
	if err != nil {
		return err
	}
	err = unix.Symlinkat(steal.target(), l.dir.Fd(), steal.name)
	if errors.Is(err, unix.EEXIST) {
		steal.discard()
		// Somebody is at it, or died at it: then that lock is cleared the way
		// a stale one is, except that nothing guards it but the rename.
		if target, stale, err := judge(l.dir, l.name+stealSuffix); err != nil || !stale {
			return err
		} else {
			return removeLink(l.dir, l.name+stealSuffix, target)
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
	aside := privateName(name)
	if err := dir.RenameNoReplace(name, dir, aside); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fault.Wrap(fault.IO, err, "cannot clear the stale lock %s", fault.Path(filepath.Join(dir.Path(), name)))
	}
	if got, err := readTarget(dir, aside); err != nil || got != target {
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
	if target, err := readTarget(l.dir, l.name); err == nil && target == l.target() {
		_ = l.dir.Remove(l.name)
	}
	l.discard()
}

func (l *Lock) discard() {
	if !l.standing {
		_ = l.dir.RemoveAll(l.holder)
	}
}

// Sweep removes the private directories of ours in dir, made for the lock name,
// whose makers are dead: what a crash before taking the lock, or after giving
// it up, leaves. A stale lock itself is left to who wants it.
//
// Errors: io.
func Sweep(dir *dirfd.Dir, name string) error {
	names, err := dir.Names()
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(dir.Path()))
	}
	for _, entry := range names {
		mine := strings.HasPrefix(entry, name+ours) || strings.HasPrefix(entry, name+stealSuffix+ours)
		if !mine || pointedTo(dir, name, entry) || pointedTo(dir, name+stealSuffix, entry) || !abandoned(dir, entry) {
			continue
		}
		if err := dir.RemoveAll(entry); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fault.Wrap(fault.IO, err, "cannot clear the leftover %s", fault.Path(filepath.Join(dir.Path(), entry)))
		}
	}
	return nil
}

func pointedTo(dir *dirfd.Dir, lock, entry string) bool {
	target, err := readTarget(dir, lock)
	return err == nil && target == filepath.Join(dir.Path(), entry)
}

// abandoned reports whether a private directory, or a link moved aside, has no
// maker that could still need it.
func abandoned(dir *dirfd.Dir, entry string) bool {
	info, err := dir.Lstat(entry)
	if err != nil {
		return false
	}
	return isGone(makerPid(entry), time.Unix(0, info.Mtime))
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
	target, err = readTarget(dir, name)
	if err != nil {
		return "", false, nil // released in between
	}
	pid, err := readPid(target)
	if err != nil {
		pid = makerPid(filepath.Base(target))
	}
	return target, isGone(pid, time.Unix(0, info.Mtime)), nil
}

// isGone reports whether the holder, who had something at the time taken, is
// gone: its pid is dead, or belongs to a process that is younger; or the time is
// before the boot. Of a holder without a pid, 0, the time decides, and one in the
// future was taken when the clock was ahead: long ago.
func isGone(pid int, taken time.Time) bool {
	if pid == 0 {
		age := time.Since(taken)
		return age > pidGrace || age < -clockSlack
	}
	boot, err := process.BootTime()
	if err == nil && taken.Add(clockSlack).Before(boot) {
		return true
	}
	started, alive := process.Started(pid)
	return !alive || taken.Add(clockSlack).Before(started)
}

// readTarget returns the absolute path of what a link points to.
func readTarget(dir *dirfd.Dir, name string) (string, error) {
	buf := make([]byte, 4097)
	n, err := unix.Readlinkat(dir.Fd(), name, buf)
	if err != nil {
		return "", err
	}
	target := string(buf[:n])
	if !filepath.IsAbs(target) {
		target = filepath.Join(dir.Path(), target)
	}
	return target, nil
}

// readPid reads the pid file in a private directory, by its path as the link
// gives it and as the lock's other users do.
func readPid(private string) (int, error) {
	fd, err := unix.Open(filepath.Join(private, "pid"), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
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
	if err != nil {
		return 0, err
	}
	return pid, nil
}
