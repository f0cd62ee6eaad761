package home

import (
	"crypto/rand"
	"errors"
	"io/fs"
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
// directory that ClearTemporaries removes; the final name never appears with a
// mode (umask, inherited set-group bit) that a reader would refuse. Two
// processes at once: the second rename finds the name taken and uses it; a
// cleaner that removes the empty temporary makes the rename fail, and it is
// tried again.
func (m *Made) mkdir(parent *dirfd.Dir, name string) (*dirfd.Dir, error) {
	for {
		temp := TempName()
		dir, err := parent.Mkdir(temp, 0o700)
		if err != nil {
			return nil, fault.Wrap(fault.IO, err, "cannot create a directory in %s", fault.Path(parent.Path()))
		}
		dir.Close()
		err = parent.RenameNoReplace(temp, parent, name)
		if err != nil {
			_ = parent.RemoveDir(temp)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
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
