package home

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
)

// TempPrefix starts the name of everything temporary of ours.
const TempPrefix = ".hawser."

// TempName returns a fresh name for a temporary file or directory.
func TempName() string { return TempPrefix + strings.ToLower(rand.Text()) }

// Made remembers the parents of the directories that Make created, so that
// they can be made durable at the step where durability is due, in one go. The
// zero value is ready; it is not safe for concurrent use.
type Made struct {
	parents []*dirfd.Dir
}

// mkdir creates parent/name with mode 0700 in one visible step.
//
// States: (1) an empty directory with a temporary name; (2) the same with its
// exact mode; (3) renamed. A crash after 1 or 2 leaves an empty ".hawser."
// directory that ClearMade removes; the final name never appears with a mode
// (umask, inherited set-group bit) that a reader would refuse. Two processes at
// once: the second rename finds the name taken and uses it; a cleaner that
// removes the empty temporary makes the next step fail, and it is tried again.
func (m *Made) mkdir(parent *dirfd.Dir, name string) (*dirfd.Dir, error) {
	for tries := 100; ; tries-- {
		temp := TempName()
		dir, err := parent.Mkdir(temp, 0o700)
		if err == nil {
			dir.Close()
			err = parent.RenameNoReplace(temp, parent, name)
			if err != nil {
				_ = parent.RemoveDir(temp)
			}
		}
		switch {
		case errors.Is(err, fs.ErrNotExist) && tries > 0: // else it is the parent that is gone
			continue
		case err != nil && !errors.Is(err, fs.ErrExist):
			return nil, fault.Wrap(fault.IO, err, "cannot create %s/%s", fault.Path(parent.Path()), fault.Path(name))
		}
		if err == nil {
			if kept, err := parent.Dup(); err == nil {
				m.parents = append(m.parents, kept)
			} else {
				return nil, fault.Wrap(fault.IO, err, "cannot keep %s open", fault.Path(parent.Path()))
			}
		}
		return parent.Sub(name)
	}
}

// ClearMade removes what crashes of Make left, wherever Make makes directories:
// empty ones under temporary names. It needs no lock: whoever is about to make a
// directory under such a name tries again (see mkdir).
//
// Errors: those of Open; io.
func (h *Home) ClearMade() error {
	for _, at := range []struct {
		open  func() (*dirfd.Dir, error)
		depth int // of the directories below in which some are made
	}{
		{func() (*dirfd.Dir, error) { return dirfd.Open(h.Path) }, 0},
		{func() (*dirfd.Dir, error) { return dirfd.Open(filepath.Dir(h.State)) }, 0},
		{h.opener(Config), 0},
		{h.opener("data"), 0},
		{h.opener(Packages), 1},
		{h.opener(Staging), 1},
		{h.opener(RetiredBindings), 0},
		{h.opener(RetiredStaging), 1},
		{h.opener(State), 0},
		{h.opener(ExtensionState), 0},
	} {
		dir, err := at.open()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = clearMade(dir, at.depth)
			dir.Close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (h *Home) opener(place string) func() (*dirfd.Dir, error) {
	return func() (*dirfd.Dir, error) { return h.Open(place) }
}

func clearMade(dir *dirfd.Dir, depth int) error {
	entries, err := dir.Entries(-1)
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(dir.Path()))
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name, TempPrefix) {
			_ = dir.RemoveDir(e.Name) // what is no empty directory has another maker
			continue
		}
		if depth == 0 {
			continue
		}
		sub, err := dir.Sub(e.Name)
		if err != nil {
			continue // nothing of ours
		}
		err = clearMade(sub, depth-1)
		sub.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// Sync makes the directories durable that were made since the last Sync or
// Forget.
//
// Errors: io.
func (m *Made) Sync() error {
	for len(m.parents) > 0 {
		dir := m.parents[0]
		if err := dir.Sync(); err != nil {
			return fault.Wrap(fault.IO, err, "cannot make %s durable", fault.Path(dir.Path()))
		}
		dir.Close()
		m.parents = m.parents[1:]
	}
	return nil
}

// Forget drops the memory without syncing: a sync of the whole file system made
// it needless, or nothing depends on it.
func (m *Made) Forget() {
	for _, dir := range m.parents {
		dir.Close()
	}
	m.parents = nil
}
