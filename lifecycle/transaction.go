package lifecycle

import (
	"context"
	"errors"
	"io/fs"

	"hawser/cas"
	"hawser/internal/home"
	"hawser/invoke"
)

// transaction is a mutating command under the lifecycle lock: leftovers are
// cleared, and the note that a killed command left is known.
type transaction struct {
	*Host
	*lock
	left note
}

// transact takes the lock and clears what crashes left.
//
// Errors: those of lock; io.
func (h *Host) transact(ctx context.Context, command string) (*transaction, error) {
	l, err := h.lock(ctx, command)
	if err != nil {
		return nil, err
	}
	t := &transaction{Host: h, lock: l}
	if t.left, err = readNote(l.data); err == nil {
		err = t.clearLeftovers()
	}
	if err != nil {
		l.release()
		return nil, err
	}
	return t, nil
}

// clearLeftovers removes everything temporary of ours. All of it is made under
// this lock, so what is found here has no maker any more; the exceptions say so
// themselves (home.Made, invoke.ClearTemporaries).
func (t *transaction) clearLeftovers() error {
	if err := home.ClearTemporaries(t.data, noteName); err != nil {
		return err
	}
	packages, err := t.Home.Open(home.Packages)
	if err == nil {
		defer packages.Close()
		err = cas.Collect(packages)
		if err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return invoke.ClearTemporaries(t.Home)
}
