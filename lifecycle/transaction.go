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
// cleared, and what killed commands did and did not say is known.
type transaction struct {
	*Host
	*lock
	left map[change]string // notes of killed commands, by name
	note string            // this command's own, and the change it is of
	made change
}

// transact takes the lock for a command about one extension, whose directories are
// checked before anything is written, and clears what crashes left. "" is none.
//
// Errors: those of lock and home.Open; io.
func (h *Host) transact(ctx context.Context, command, id string) (*transaction, error) {
	if id != "" {
		if err := h.checkExtension(id); err != nil {
			return nil, err
		}
		command += " " + id
	}
	l, err := h.lock(ctx, command)
	if err != nil {
		return nil, err
	}
	t := &transaction{Host: h, lock: l, left: map[change]string{}}
	if err = t.readNotes(); err == nil {
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
// themselves (home.ClearMade, invoke.ClearTemporaries).
func (t *transaction) clearLeftovers() error {
	if err := t.Home.ClearMade(); err != nil {
		return err
	}
	if err := home.ClearTemporaries(t.data, notePrefix); err != nil {
		return err
	}
	for _, place := range []string{home.Packages, home.Staging} { // which have one layout
		if err := t.collect(place); err != nil {
			return err
		}
	}
	return invoke.ClearTemporaries(t.Home)
}

func (t *transaction) collect(place string) error {
	dir, err := t.Home.Open(place)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return cas.Collect(dir)
}
