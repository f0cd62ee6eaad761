package tree

import (
	"bytes"
	"io/fs"
	"strings"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
)

// ReadFile reads the file at a path of the tree, but no more than one byte over
// limit: a longer result than limit says that the file is too long. A whole file
// is held: what Hash and CopyTo later use of it are the bytes returned here, so
// that what the caller has judged is what is installed. The caller must not
// change them.
//
// A path that leads to no file is fs.ErrNotExist, for the caller to name; the
// other refusals are those of Hash.
func (s *Scanned) ReadFile(path string, limit int64) ([]byte, error) {
	i, ok := s.nodes.lookup(path)
	if !ok || s.nodes[i].dir {
		return nil, &fs.PathError{Op: "read", Path: s.root.Path() + "/" + path, Err: fs.ErrNotExist}
	}
	if content, ok := s.held[i]; ok {
		return content, nil
	}
	n := &s.nodes[i]
	dir, err := s.open(n.parent)
	if err != nil {
		return nil, err
	}
	defer s.close(dir)
	f, err := s.openFile(dir, i)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content := make([]byte, 0, min(n.info.Size, limit+1))
	w := workers.Get().(*worker)
	defer workers.Put(w)
	at := place{dir, n.name}
	err = w.read(f, int64(cap(content)), at, func(b []byte) error {
		content = append(content, b...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := unchanged(f, n.info, at); err != nil {
		return nil, err
	}
	if n.info.Size <= limit {
		if s.held == nil {
			s.held = make(map[int32][]byte)
		}
		s.held[i] = content
	}
	return content, nil
}

// open opens the directory nodes[at], from the root down.
func (s *Scanned) open(at int32) (*dirfd.Dir, error) {
	if at == 0 {
		return s.root, nil
	}
	parent, err := s.open(s.nodes[at].parent)
	if err != nil {
		return nil, err
	}
	defer s.close(parent)
	return s.enter(parent, at)
}

func (s *Scanned) close(dir *dirfd.Dir) {
	if dir != s.root {
		dir.Close()
	}
}

// CheckFile reads the one file at a path below root, as it is now, and refuses
// it unless it and every directory on the way keep the rules and it has the
// content and the executable mark that the tree says: link-unsafe, mode-unsafe,
// owner-mismatch, integrity-mismatch, io.
func (t *Tree) CheckFile(root *dirfd.Dir, rules Rules, path string) error {
	return t.checkFile(root, rules, path, func([]byte) {})
}

// ReadFile is CheckFile, and returns the content that was checked. A file that
// is longer than limit in the tree is package-oversized.
func (t *Tree) ReadFile(root *dirfd.Dir, rules Rules, path string, limit int64) ([]byte, error) {
	entry, _ := t.Lookup(path)
	if entry.Size > limit {
		return nil, fault.New(fault.PackageOversized, "%s has more than %d bytes", place{root, path}, limit)
	}
	content := bytes.NewBuffer(make([]byte, 0, entry.Size))
	err := t.checkFile(root, rules, path, func(b []byte) { content.Write(b) })
	if err != nil {
		return nil, err
	}
	return content.Bytes(), nil
}

func (t *Tree) checkFile(root *dirfd.Dir, rules Rules, path string, use func([]byte)) error {
	at := place{root, path}
	i, ok := t.nodes.lookup(path)
	if !ok || t.nodes[i].dir {
		return fault.New(fault.IntegrityMismatch, "%s is no file of its package", at)
	}
	judge := rules.judge(root)
	if err := judge.checkDir(root); err != nil {
		return err
	}
	f, info, err := judge.open(root, path)
	if err != nil {
		return err
	}
	defer f.Close()
	n := &t.nodes[i]
	differs := fault.New(fault.IntegrityMismatch, "%s is not the file that was installed", at)
	if info.Size != n.info.Size || (info.Mode&0o111 != 0) != n.executable() {
		return differs
	}
	w := workers.Get().(*worker)
	defer workers.Put(w)
	w.hash.Reset()
	err = w.read(f, info.Size, at, func(b []byte) error {
		w.hash.Write(b)
		use(b)
		return nil
	})
	if err != nil {
		return err
	}
	if sum(w.hash.Sum(nil)) != t.sums[i] {
		return differs
	}
	return nil
}

// open opens the file at a path below dir. Every component has to keep the
// rules.
func (j judge) open(dir *dirfd.Dir, path string) (f dirfd.File, info dirfd.Info, err error) {
	name, rest, deeper := strings.Cut(path, "/")
	at := place{dir, name}
	if deeper {
		sub, err := dir.Sub(name)
		if err != nil {
			return f, info, openFault(err, fault.PathUnsafe, at)
		}
		defer sub.Close()
		if err := j.checkDir(sub); err != nil {
			return f, info, err
		}
		return j.open(sub, rest)
	}
	if f, info, err = dir.OpenRaw(name); err != nil {
		return f, info, openFault(err, fault.LinkUnsafe, at)
	}
	if err = j.check(info, at); err != nil {
		f.Close()
	}
	return f, info, err
}
