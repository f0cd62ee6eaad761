package cas

import (
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/wire"
	"hawser/tree"
)

// Package is an installed package that was verified: its directory, held open,
// and what is in it. It is safe for concurrent use, except that Close must come
// after every other call.
type Package struct {
	dir  *dirfd.Dir
	tree *tree.Tree
}

// installedRules are the modes that an installed package has.
func installedRules() tree.Rules {
	return tree.Rules{Dir: []uint32{dirMode}, File: []uint32{fileMode, execMode}}
}

// Open opens the package with the digest in the open directory <id>/<version>
// and verifies all of it: owner, modes and links of every entry, and the tree
// digest. The caller closes it.
//
// Refusals: package-missing; path-unsafe when the name is a link; mode-unsafe,
// link-unsafe, owner-mismatch, package-invalid, package-oversized naming the
// entry; integrity-mismatch when the content is not what the name says; io.
func Open(versions *dirfd.Dir, digest wire.Digest) (*Package, error) {
	dir, err := versions.Sub(digest.Hex())
	if errors.Is(err, fs.ErrPermission) {
		// A mode that keeps its owner out is told as any other wrong one.
		if info, statErr := versions.Lstat(digest.Hex()); statErr == nil && info.Perm() != dirMode {
			return nil, fault.New(fault.ModeUnsafe, "%s has mode %04o instead of %04o", fault.Path(filepath.Join(versions.Path(), digest.Hex())), info.Perm(), dirMode)
		}
	}
	if err != nil {
		return nil, openFault(err, filepath.Join(versions.Path(), digest.Hex()))
	}
	verified, err := tree.Verify(dir, installedRules(), digest)
	if err != nil {
		dir.Close()
		return nil, err
	}
	return &Package{dir, verified}, nil
}

// hold makes a Package of what this process has just written and published.
func hold(versions *dirfd.Dir, installed *tree.Tree) (*Package, error) {
	dir, err := versions.Sub(installed.Digest().Hex())
	if err != nil {
		return nil, openFault(err, filepath.Join(versions.Path(), installed.Digest().Hex()))
	}
	return &Package{dir, installed}, nil
}

func openFault(err error, path string) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.PackageMissing, "there is no package %s", fault.Path(path))
	case errors.Is(err, dirfd.ErrLink):
		return fault.New(fault.PathUnsafe, "%s is a symbolic link or below one", fault.Path(path))
	case errors.Is(err, syscall.ENOTDIR):
		return fault.New(fault.PackageInvalid, "%s is no directory", fault.Path(path))
	}
	return fault.Wrap(fault.IO, err, "cannot open the package %s", fault.Path(path))
}

// Root returns the absolute path of the package.
func (p *Package) Root() string { return p.dir.Path() }

// Dir returns the open root, which stays p's.
func (p *Package) Dir() *dirfd.Dir { return p.dir }

// Tree returns the entries of the package, as they were verified.
func (p *Package) Tree() *tree.Tree { return p.tree }

// Close closes the root.
func (p *Package) Close() error { return p.dir.Close() }

// Verify verifies the whole package again, and that its path still leads to it,
// because a program is started by its path. What is provably the same as when it
// was hashed (tree.Tree.Unchanged) is not hashed again; all else is. Refusals:
// those of Open.
func (p *Package) Verify() error {
	if err := p.checkPath(); err != nil {
		return err
	}
	if p.tree.Unchanged(p.dir) {
		return nil
	}
	_, err := tree.Verify(p.dir, installedRules(), p.tree.Digest())
	return err
}

// CheckFile verifies one file of the package again, by its path below the root,
// and that the root's path still leads to it: a program is started by its path.
// Refusals: those of Open and of tree.Tree.CheckFile.
func (p *Package) CheckFile(path string) error {
	if err := p.checkPath(); err != nil {
		return err
	}
	return p.tree.CheckFile(p.dir, installedRules(), path)
}

// ReadFile is CheckFile, and returns the content, at most limit bytes.
func (p *Package) ReadFile(path string, limit int64) ([]byte, error) {
	if err := p.checkPath(); err != nil {
		return nil, err
	}
	return p.tree.ReadFile(p.dir, installedRules(), path, limit)
}

// checkPath refuses a path that does not lead to the directory that is held
// open: it was renamed, or a directory on the way replaced.
func (p *Package) checkPath() error {
	there, err := dirfd.Open(p.Root())
	if err != nil {
		return openFault(err, p.Root())
	}
	defer there.Close()
	want, err := p.dir.Info()
	if err != nil {
		return openFault(err, p.Root())
	}
	got, err := there.Info()
	if err != nil {
		return openFault(err, p.Root())
	}
	if !got.Same(want) {
		return fault.New(fault.PathUnsafe, "%s is no longer the directory that was verified", fault.Path(p.Root()))
	}
	return nil
}
