package lifecycle

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/wire"
)

// openSource opens a package directory that an operator named, under the rules
// of home: Where a package may come from. What happens below the descriptor it
// returns is the tree's to check.
//
// Errors: package-missing, path-unsafe, io.
func (h *Host) openSource(path string) (*dirfd.Dir, error) {
	abs, err := absolute(path)
	if err != nil {
		return nil, err
	}
	if crossesLink(abs) {
		return nil, linkOnTheWay(abs)
	}
	if abs, err = clean(abs); err != nil {
		return nil, err
	}
	dir, err := openReal(abs)
	if err != nil {
		return nil, err
	}
	err = h.outsideHome(abs)
	if err == nil {
		err = outsideProjects(abs)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// absolute makes a path absolute by the directory as the kernel names it: $PWD
// may hold a link that the operator never typed.
func absolute(path string) (string, error) {
	if path == "" {
		return "", fault.New(fault.Usage, "the package root is empty; name a directory")
	}
	if filepath.IsAbs(path) {
		return path, nil
	}
	cwd, err := unix.Getwd()
	if err != nil {
		return "", fault.Wrap(fault.IO, err, "cannot tell the current directory; give the package root as an absolute path")
	}
	return cwd + "/" + path, nil
}

// crossesLink reports whether an absolute path leaves a link by a "..": cleaned,
// it would no longer show.
func crossesLink(path string) bool {
	at := "/"
	for part := range strings.SplitSeq(path, "/") {
		if part == ".." {
			if info, err := os.Lstat(at); err == nil && info.Mode()&fs.ModeSymlink != 0 {
				return true
			}
		}
		at = filepath.Join(at, part)
	}
	return false
}

func clean(path string) (string, error) {
	path = filepath.Clean(path)
	if must := wire.CheckBindingPath(path); must != "" {
		return "", fault.New(fault.PathUnsafe, "package root %s: must be %s", fault.Path(path), must)
	}
	return path, nil
}

func openReal(abs string) (*dirfd.Dir, error) {
	dir, err := dirfd.Open(abs)
	switch {
	case err == nil:
		return dir, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.New(fault.PackageMissing, "no package directory %s", fault.Path(abs))
	case errors.Is(err, dirfd.ErrLink):
		return nil, linkOnTheWay(abs)
	case errors.Is(err, syscall.ENOTDIR):
		return nil, fault.New(fault.PathUnsafe, "package root %s: not a directory", fault.Path(abs))
	}
	return nil, fault.Wrap(fault.IO, err, "cannot open package root %s", fault.Path(abs))
}

func linkOnTheWay(abs string) error {
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return fault.New(fault.PathUnsafe, "package root %s: there is a link on the way; give the real path", fault.Path(abs))
	}
	return fault.New(fault.PathUnsafe, "package root %s: there is a link on the way; give the real path %s", fault.Path(abs), fault.Path(real))
}

// outsideHome refuses the home, what is below it, and what it is below: a copy
// of such a tree would hold itself.
func (h *Host) outsideHome(abs string) error {
	if contains(h.Home.Path, abs) || contains(abs, h.Home.Path) {
		return fault.New(fault.PathUnsafe, "package root %s: it is, holds or is in the home %s; copy the package elsewhere first", fault.Path(abs), fault.Path(h.Home.Path))
	}
	if contains(h.Home.State, abs) || contains(abs, h.Home.State) {
		return fault.New(fault.PathUnsafe, "package root %s: it is, holds or is in the state root %s; copy the package elsewhere first", fault.Path(abs), fault.Path(h.Home.State))
	}
	return nil
}

// contains reports whether path is dir or below it; both are clean.
func contains(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// outsideProjects refuses a directory that is, or is below, a Git work tree or
// a bare repository: project-local code is never bound.
func outsideProjects(abs string) error {
	for dir := abs; ; dir = filepath.Dir(dir) {
		git, err := exists(dir, ".git")
		if err == nil && !git {
			git, err = isBareRepository(dir)
		}
		if err != nil {
			return fault.Wrap(fault.IO, err, "cannot tell whether %s is a Git project", fault.Path(dir))
		}
		if git {
			return fault.New(fault.PathUnsafe, "package root %s: %s is a Git project; copy the package out of it first", fault.Path(abs), fault.Path(dir))
		}
		if dir == "/" {
			return nil
		}
	}
}

// isBareRepository looks for what git itself looks for.
func isBareRepository(dir string) (bool, error) {
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if ok, err := exists(dir, name); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

func exists(dir, name string) (bool, error) {
	_, err := os.Lstat(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
