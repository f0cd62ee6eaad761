package lifecycle

import (
	"context"
	"time"

	"hawser/internal/dirfd"
	"hawser/internal/home"
	"hawser/lifecycle/filelock"
	"hawser/lifecycle/linklock"
)

const (
	lockName = "lifecycle.flock"
	// foreignLock is how other hosts of the contract lock the lifecycle. It is
	// taken after ours, for as long as ours, so ours alone decides among us.
	foreignLock = ".extension-binding-lifecycle.lock"

	// DefaultLockTimeout is how long a command waits for a lock.
	DefaultLockTimeout = 60 * time.Second
)

// lock is the held lifecycle lock of a home (home: Claim, "Lock order"). The
// kernel releases our part with its holder, so no crash leaves it held; the link
// lock for foreign hosts is judged by the pid in it.
type lock struct {
	ours    *filelock.Lock
	foreign *linklock.Lock
	data    *dirfd.Dir // data/extensions
	state   *dirfd.Dir // state/procevent
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
	if l.ours, err = filelock.Acquire(ctx, data, lockName, command, h.Waiting); err == nil {
		l.state, err = h.Home.Make(nil, home.Procevent)
	}
	if err == nil {
		l.foreign, err = linklock.AcquireAlone(ctx, l.state, foreignLock, h.Waiting)
	}
	if err == nil {
		err = linklock.Sweep(l.state, foreignLock)
	}
	if err != nil {
		l.release()
		return nil, err
	}
	return l, nil
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
	l.ours.Release()
	if l.data != nil {
		l.data.Close()
		l.data = nil
	}
}
