package tree

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"hawser/internal/dirfd"
)

// waitSettled waits until everything below root is older than a reading that
// begins now needs it to be, by the clock that stamps files.
func waitSettled(t *testing.T, tr *Tree) {
	t.Helper()
	newest := int64(0)
	for i := range tr.nodes {
		newest = max(newest, tr.nodes[i].info.Ctime)
	}
	for time.Now().UnixNano()-int64(settled) <= newest {
		time.Sleep(20 * time.Millisecond)
	}
}

// TestUnchangedSeesEveryChange makes each kind of change to a tree that was
// proved unchanged, restoring whatever a program can restore.
func TestUnchangedSeesEveryChange(t *testing.T) {
	rules := SourceRules()
	build := func(t *testing.T) (string, *dirfd.Dir) {
		root, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		for path, content := range map[string]string{"a": "one", "d/b": "two", "d/e/c": "three"} {
			full := filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		dir, err := dirfd.Open(root)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dir.Close() })
		return root, dir
	}
	read := func(t *testing.T, dir *dirfd.Dir) *Tree {
		s, err := Scan(dir, rules)
		if err != nil {
			t.Fatal(err)
		}
		tr, err := s.Hash()
		if err != nil {
			t.Fatal(err)
		}
		return tr
	}
	changes := map[string]func(root string) error{
		"content of the same size, times set back": func(root string) error {
			path := filepath.Join(root, "d/b")
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte("owt"), 0o644); err != nil {
				return err
			}
			return os.Chtimes(path, info.ModTime(), info.ModTime())
		},
		"an equal file in its place": func(root string) error {
			if err := os.WriteFile(filepath.Join(root, "x"), []byte("three"), 0o644); err != nil {
				return err
			}
			return os.Rename(filepath.Join(root, "x"), filepath.Join(root, "d/e/c"))
		},
		"a new file":  func(root string) error { return os.WriteFile(filepath.Join(root, "d/e/new"), nil, 0o644) },
		"one less":    func(root string) error { return os.Remove(filepath.Join(root, "a")) },
		"a mode":      func(root string) error { return os.Chmod(filepath.Join(root, "d/b"), 0o600) },
		"a directory": func(root string) error { return os.Rename(filepath.Join(root, "d/e"), filepath.Join(root, "d/f")) },
		"a second link": func(root string) error {
			return os.Link(filepath.Join(root, "a"), filepath.Join(filepath.Dir(root), filepath.Base(root)+"-link"))
		},
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, dir := build(t)
			waitSettled(t, read(t, dir))
			tr := read(t, dir)
			if !tr.Unchanged(dir) {
				t.Fatal("what did not change is not proved unchanged")
			}
			if err := change(root); err != nil {
				t.Fatal(err)
			}
			if tr.Unchanged(dir) {
				t.Fatal("the change is not seen")
			}
		})
	}
}

// TestYoungOrCopiedTreesAreNotProved: a file that changed just before it was
// read could change again under the same time, and a copy's tree describes its
// source.
func TestYoungOrCopiedTreesAreNotProved(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "a"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	dir, err := dirfd.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	s, err := Scan(dir, SourceRules())
	if err != nil {
		t.Fatal(err)
	}
	tr, err := s.Hash()
	if err != nil {
		t.Fatal(err)
	}
	if tr.Unchanged(dir) {
		t.Fatal("a file of this moment is proved unchanged")
	}
	path, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	target, err := dirfd.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	copied, err := s.CopyTo(target, Modes{Dir: 0o755, File: 0o644, Executable: 0o755})
	if err != nil {
		t.Fatal(err)
	}
	waitSettled(t, tr)
	if copied.Unchanged(target) {
		t.Fatal("a copy is proved unchanged by the description of its source")
	}
}
