package home

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
)

// ReadPrivate reads the file name in dir, which must be a regular file of the
// current user with mode 0600 and a single link, checked on what was opened.
// At most limit+1 bytes are read, so that the caller can tell an oversized
// document by its length.
//
// Errors: one that is fs.ErrNotExist when there is none; link-unsafe,
// owner-mismatch, mode-unsafe, io.
func ReadPrivate(dir *dirfd.Dir, name string, limit int) ([]byte, error) {
	file, err := OpenPrivate(dir, name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, int64(limit)+1))
	return data, fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(file.Name()))
}

// OpenPrivate opens what ReadPrivate reads.
func OpenPrivate(dir *dirfd.Dir, name string) (*os.File, error) {
	path := filepath.Join(dir.Path(), name)
	file, info, err := dir.OpenFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, err
	case errors.Is(err, dirfd.ErrLink), errors.Is(err, dirfd.ErrNotRegular):
		return nil, fault.New(fault.LinkUnsafe, "%s is not a regular file; move it away", fault.Path(path))
	case errors.Is(err, fs.ErrPermission):
		// Perhaps a mode that keeps us out too.
		if info, statErr := dir.Lstat(name); statErr == nil {
			if unsafe := checkPrivateFile(path, info); unsafe != nil {
				return nil, unsafe
			}
		}
		return nil, fault.Wrap(fault.IO, err, "cannot open %s", fault.Path(path))
	case err != nil:
		return nil, fault.Wrap(fault.IO, err, "cannot open %s", fault.Path(path))
	}
	if err := checkPrivateFile(path, info); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func checkPrivateFile(path string, info dirfd.Info) error {
	switch {
	case int(info.UID) != os.Geteuid():
		return fault.New(fault.OwnerMismatch, "%s belongs to uid %d, not to you (uid %d); move it away", fault.Path(path), info.UID, os.Geteuid())
	case info.Perm() != 0o600:
		return fault.New(fault.ModeUnsafe, "%s has mode %04o instead of 0600; run: chmod 0600 %[1]s", fault.Path(path), info.Perm())
	case info.Nlink != 1:
		return fault.New(fault.LinkUnsafe, "%s has %d links instead of one; move the others away", fault.Path(path), info.Nlink)
	}
	return nil
}

// PublishNew makes data the durable content of a new private file dst/name,
// which appears whole in one step and replaces nothing. The temporary is made
// in temps, which belongs to the same home.
//
// A crash before the rename leaves a ".hawser." file in temps, cleared by the
// next holder of the lifecycle lock; after it, the file is there, and durable
// once dst is synced, which the caller does.
//
// Errors: one that is fs.ErrExist when the name is taken; io.
func PublishNew(temps, dst *dirfd.Dir, name string, data []byte) error {
	if file, err := unnamed(temps, dst); err != nil || file != nil {
		if err != nil {
			return fault.Wrap(fault.IO, err, "cannot create a file in %s", fault.Path(dst.Path()))
		}
		return linkUnnamed(file, dst, name, data)
	}
	temp, err := writeTemp(temps, data)
	if err != nil {
		return err
	}
	if err := temps.RenameNoReplace(temp, dst, name); err != nil {
		_ = temps.Remove(temp)
		if errors.Is(err, fs.ErrExist) {
			return err
		}
		return fault.Wrap(fault.IO, err, "cannot publish %s", fault.Path(filepath.Join(dst.Path(), name)))
	}
	return nil
}

// writeTemp writes a synced private temporary and returns its name.
func writeTemp(temps *dirfd.Dir, data []byte) (name string, err error) {
	temp := TempName()
	file, err := temps.Create(temp, 0o600)
	if err == nil {
		_, err = file.Write(data)
		if err == nil {
			err = file.Sync()
		}
		err = errors.Join(err, file.Close())
		if err != nil {
			_ = temps.Remove(temp)
		}
	}
	return temp, fault.Wrap(fault.IO, err, "cannot write a file in %s", fault.Path(temps.Path()))
}

// WriteVisible makes data the content of the private file dst/name, replacing
// what is there, in one visible step that is not synced: what a power cut may
// take (invocation records, runner files; processes: Invocation record).
// temp is the temporary's name in temps, so that its owner can be told later.
//
// Errors: io.
func WriteVisible(temps *dirfd.Dir, temp string, dst *dirfd.Dir, name string, data []byte) error {
	path := filepath.Join(dst.Path(), name)
	file, err := temps.Create(temp, 0o600)
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot write %s", fault.Path(path))
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Close())
	if err == nil {
		err = temps.Rename(temp, dst, name)
	}
	if err != nil {
		_ = temps.Remove(temp)
	}
	return fault.Wrap(fault.IO, err, "cannot write %s", fault.Path(path))
}

// MoveNew moves the private file src/name to dst/newName without replacing
// anything. Between two file systems it copies first: a crash between leaves
// both, with equal bytes, which is for the caller to recognize. Temporaries are
// made in temps, as for PublishNew.
//
// Errors: one that is fs.ErrExist when newName is taken; io.
func MoveNew(temps, src *dirfd.Dir, name string, dst *dirfd.Dir, newName string) error {
	err := src.RenameNoReplace(name, dst, newName)
	if errors.Is(err, unix.EXDEV) {
		data, err := ReadPrivate(src, name, 1<<20)
		if err != nil {
			return err
		}
		if err := PublishNew(temps, dst, newName, data); err != nil {
			return err
		}
		if err := dst.Sync(); err != nil {
			return fault.Wrap(fault.IO, err, "cannot make %s durable", fault.Path(dst.Path()))
		}
		return fault.Wrap(fault.IO, src.Remove(name), "cannot remove %s", fault.Path(filepath.Join(src.Path(), name)))
	}
	if errors.Is(err, fs.ErrExist) {
		return err
	}
	return fault.Wrap(fault.IO, err, "cannot move %s to %s", fault.Path(filepath.Join(src.Path(), name)), fault.Path(filepath.Join(dst.Path(), newName)))
}

// ClearTemporaries removes everything of ours from dir that is temporary, files
// and whole directories, except names that begin with keep, if that is not "".
// Only the holder of the lifecycle lock may call it, on a directory in which
// temporaries are made under that lock, so that what is found has no maker any
// more.
//
// Errors: io.
func ClearTemporaries(dir *dirfd.Dir, keep string) error {
	names, err := dir.Names()
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(dir.Path()))
	}
	for _, name := range names {
		if strings.HasPrefix(name, TempPrefix) && (keep == "" || !strings.HasPrefix(name, keep)) {
			if err := dir.RemoveAll(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fault.Wrap(fault.IO, err, "cannot clear the leftover %s", fault.Path(filepath.Join(dir.Path(), name)))
			}
		}
	}
	return nil
}

// ReplaceDurable makes data the durable content of the private file dst/name,
// replacing what is there, in one step. temp is the temporary's name in temps,
// on the same file system.
//
// Errors: io.
func ReplaceDurable(temps *dirfd.Dir, temp string, dst *dirfd.Dir, name string, data []byte) error {
	path := filepath.Join(dst.Path(), name)
	file, err := temps.Create(temp, 0o600)
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot write %s", fault.Path(path))
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = temps.Rename(temp, dst, name)
	}
	if err != nil {
		_ = temps.Remove(temp)
		return fault.Wrap(fault.IO, err, "cannot write %s", fault.Path(path))
	}
	return fault.Wrap(fault.IO, dst.Sync(), "cannot make %s durable", fault.Path(dst.Path()))
}
