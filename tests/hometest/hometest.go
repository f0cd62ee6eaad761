// Package hometest is what tests of whole commands stand on: a throwaway home,
// packages to bind in it, and what must hold of a home when nothing runs.
//
// The packages are one of each kind found in the field (bash with jq and curl,
// Node, Python, and a shell script that is all there is to it), and one whose
// behaviour is a Go function of the test that binds it (see [Behaviours]).
package hometest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Dir returns a directory of the test's own, by its canonical path. It is
// removed after the test, read-only packages in it too.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { writable(dir) })
	return dir
}

// Remove removes dir and what is below it, read-only packages too.
func Remove(dir string) error {
	writable(dir)
	return os.RemoveAll(dir)
}

// writable lets directories be removed that an installation made read-only.
func writable(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
}

// New returns an empty home.
func New(t testing.TB) string {
	t.Helper()
	home := filepath.Join(Dir(t), "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	return home
}

// standingLock is what may stay of a lock between its holders, or not.
const standingLock = ".extension-binding-lifecycle.lock.hawser"

// Snapshot says what is below dir: one line an entry, with its mode, its path,
// and a file's digest or a link's target. Two equal snapshots are of equal trees,
// but for what stays of a lock.
func Snapshot(dir string) (string, error) {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == standingLock {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content := ""
		switch info.Mode().Type() {
		case 0:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = fmt.Sprintf(" %x", sha256.Sum256(data))
		case fs.ModeSymlink:
			if content, err = os.Readlink(path); err != nil {
				return err
			}
			content = " -> " + content
		}
		rel, err := filepath.Rel(dir, path)
		fmt.Fprintf(&b, "%v %s%s\n", info.Mode(), rel, content)
		return err
	})
	return b.String(), err
}

// Diff tells two snapshots apart: the lines that only one of them has, with a
// "+" those of got, with a "-" those of want. It is "" for equal ones.
func Diff(got, want string) string {
	count := map[string]int{}
	for line := range strings.Lines(want) {
		count[line]++
	}
	var b strings.Builder
	for line := range strings.Lines(got) {
		if count[line]--; count[line] < 0 {
			b.WriteString("+ " + line)
		}
	}
	for line := range strings.Lines(want) {
		if count[line] > 0 {
			count[line]--
			b.WriteString("- " + line)
		}
	}
	return b.String()
}

// Leftovers lists what no command may leave in a home when it is over and no
// crash was before it: temporaries, notes, records and locks.
func Leftovers(home string) ([]string, error) {
	var left []string
	err := filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the home is in use
		}
		if err != nil {
			return err
		}
		name := d.Name()
		switch {
		case name == standingLock:
		case strings.HasPrefix(name, ".damaged."): // moved aside for a person to look at, as it was
			return fs.SkipDir
		case strings.HasPrefix(name, ".hawser."),
			strings.HasPrefix(name, ".extension-binding-lifecycle.lock"),
			filepath.Base(filepath.Dir(path)) == "extension-invocations":
			left = append(left, path)
		}
		return nil
	})
	return left, err
}

// CheckAtRest fails the test for whatever a home holds that no command may
// leave in it.
func CheckAtRest(t testing.TB, home string) {
	t.Helper()
	left, err := Leftovers(home)
	if err != nil {
		t.Error(err)
	}
	for _, path := range left {
		t.Errorf("left in the home: %s", path)
	}
}

// Restore makes dst a copy of the tree src, with its modes, whatever dst was.
func Restore(dst, src string) error {
	if err := Remove(dst); err != nil {
		return err
	}
	type mode struct {
		path string
		mode fs.FileMode
	}
	var dirs []mode
	err := filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		to := filepath.Join(dst, rel)
		switch info.Mode().Type() {
		case fs.ModeDir:
			dirs = append(dirs, mode{to, info.Mode()})
			return os.Mkdir(to, 0o700)
		case 0:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return writeFile(to, data, info.Mode())
		}
		return fmt.Errorf("%s: cannot be copied", path)
	})
	// Only now: nothing can be made in a read-only directory.
	for _, dir := range dirs {
		err = errors.Join(err, os.Chmod(dir.path, dir.mode))
	}
	return err
}
