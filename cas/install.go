package cas

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/tree"
)

// The modes of what is installed (the contract: Discovery and package
// installation).
const (
	dirMode  = 0o555
	execMode = 0o555
	fileMode = 0o444
)

// sealAfterRename: macOS renames no directory that may not be written, not even
// within its parent. There the root of a package becomes read-only right after
// the rename instead of before it.
var sealAfterRename = runtime.GOOS == "darwin"

// Install copies the scanned source into the open directory <id>/<version>,
// durably, and returns the package, for the caller to close. One that stands
// there already under the same digest is verified whole and used.
//
// What a crash right after each step leaves:
//
//	the copy begins    a part of the package under a temporary name; the next
//	                   Install or Collect removes it
//	sync of the file   a whole package under a temporary name; the same
//	system
//	rename             the package: after a loss of power it is there or not, but
//	                   whole; the next Install uses it and syncs the directory.
//	                   (On macOS its root may still be 0700; the next Install
//	                   makes it read-only.)
//	sync of the        the package
//	directory
//
// The one sync of the file system also makes the directories on the way durable,
// if the caller has just made them. Nothing temporary is left behind by a
// refusal: integrity-mismatch when something else stands under the digest, io
// with the system's own words, and those of tree.Scanned.CopyTo.
func Install(versions *dirfd.Dir, source *tree.Scanned) (*Package, error) {
	if err := home.ClearTemporaries(versions, ""); err != nil {
		return nil, err
	}
	temp := home.TempName()
	defer versions.RemoveAll(temp) // after the rename there is nothing of that name

	installed, err := write(versions, temp, source)
	if err != nil {
		return nil, err
	}
	name := installed.Digest().Hex()
	err = versions.RenameNoReplace(temp, versions, name)
	stood := errors.Is(err, fs.ErrExist)
	if err != nil && !stood {
		return nil, fault.Wrap(fault.IO, err, "cannot publish the package in %s", fault.Path(versions.Path()))
	}
	if sealAfterRename {
		if err := seal(versions, name); err != nil {
			return nil, err
		}
	}
	var pkg *Package
	if stood {
		pkg, err = openStanding(versions, installed.Digest())
	} else {
		pkg, err = hold(versions, installed)
	}
	if err != nil {
		return nil, err
	}
	// Also for a package that stood: its maker may have died before this.
	if err := versions.Sync(); err != nil {
		pkg.Close()
		return nil, fault.Wrap(fault.IO, err, "cannot make the package in %s durable", fault.Path(versions.Path()))
	}
	return pkg, nil
}

// write makes the whole package under a temporary name, and makes it durable.
func write(versions *dirfd.Dir, temp string, source *tree.Scanned) (*tree.Tree, error) {
	dir, err := versions.Mkdir(temp, 0o700)
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot install into %s", fault.Path(versions.Path()))
	}
	defer dir.Close()
	installed, err := source.CopyTo(dir, tree.Modes{Dir: dirMode, File: fileMode, Executable: execMode})
	if err != nil {
		return nil, err
	}
	if !sealAfterRename {
		err = dir.Chmod(dirMode)
	}
	if err == nil {
		err = dir.SyncFS()
	}
	return installed, fault.Wrap(fault.IO, err, "cannot make the package in %s durable", fault.Path(versions.Path()))
}

// seal makes the root of a package read-only that was published with the mode
// it was written with.
func seal(versions *dirfd.Dir, name string) error {
	dir, err := versions.Sub(name)
	if err != nil {
		return nil // nothing of ours; verifying says what it is
	}
	defer dir.Close()
	info, err := dir.Info()
	if err == nil && info.Perm() == 0o700 {
		if err = dir.Chmod(dirMode); err == nil {
			err = dir.Sync()
		}
	}
	return fault.Wrap(fault.IO, err, "cannot make %s read-only", fault.Path(dir.Path()))
}

// openStanding uses what stands under the digest already, if it is the package.
func openStanding(versions *dirfd.Dir, digest wire.Digest) (*Package, error) {
	pkg, err := Open(versions, digest)
	if err == nil || fault.Is(err, fault.IO) {
		return pkg, err
	}
	return nil, fault.Wrap(fault.IntegrityMismatch, err, "a damaged package stands in the way (to move it aside: mv %s %s)",
		fault.Path(filepath.Join(versions.Path(), digest.Hex())), fault.Path(filepath.Join(versions.Path(), asideName(digest, 1))))
}

// MoveAside renames what stands under the digest to .damaged.<hex>.<n>, with the
// first n that is free, so that the package can be installed again. Nothing of
// it is lost, and nothing standing there is no error. io.
//
// A crash right after the rename leaves the damaged package under either name;
// moving aside again does what is left to do.
func MoveAside(versions *dirfd.Dir, digest wire.Digest) error {
	name := digest.Hex()
	if sealAfterRename {
		if err := unseal(versions, name); err != nil {
			return err
		}
	}
	for n := 1; ; n++ {
		err := versions.RenameNoReplace(name, versions, asideName(digest, n))
		switch {
		case errors.Is(err, fs.ErrExist):
			continue
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err == nil:
			err = versions.Sync()
		}
		return fault.Wrap(fault.IO, err, "cannot move aside %s", fault.Path(filepath.Join(versions.Path(), name)))
	}
}

func asideName(digest wire.Digest, n int) string {
	return fmt.Sprintf(".damaged.%s.%d", digest.Hex(), n)
}

// unseal makes a package's root writable, so that it can be renamed.
func unseal(versions *dirfd.Dir, name string) error {
	dir, err := versions.Sub(name)
	if err != nil {
		return nil // no directory: renaming it needs nothing
	}
	defer dir.Close()
	return fault.Wrap(fault.IO, dir.Chmod(0o700), "cannot move aside %s", fault.Path(dir.Path()))
}

// Collect removes the leftovers of crashes below the open packages directory.
// Whatever is not a directory of ours is left alone. io.
func Collect(packages *dirfd.Dir) error {
	return eachDir(packages, func(id *dirfd.Dir) error {
		return eachDir(id, func(versions *dirfd.Dir) error {
			return home.ClearTemporaries(versions, "")
		})
	})
}

func eachDir(dir *dirfd.Dir, visit func(*dirfd.Dir) error) error {
	entries, err := dir.Entries(-1)
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(dir.Path()))
	}
	for _, e := range entries {
		sub, err := dir.Sub(e.Name)
		if err != nil {
			continue
		}
		err = visit(sub)
		sub.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
