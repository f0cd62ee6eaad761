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
	at, ok := s.nodes.lookup(path)
	if !ok || s.nodes[at].dir {
		return nil, &fs.PathError{Op: "read", Path: s.root.Path() + "/" + path, Err: fs.ErrNotExist}
	}
	if content, ok := s.held[at]; ok {
		return content, nil
	}
	n := &s.nodes[at]
	dir, err := s.open(n.parent)
	if err != nil {
		return nil, err
	}
	defer s.close(dir)
	f, err := s.openFile(dir, at)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	full := func() string { return dir.Path() + "/" + n.name }
	content := make([]byte, 0, min(n.info.Size, limit+1))
	w := workers.Get().(*worker)
	defer workers.Put(w)
	err = w.read(f, n.info, int64(cap(content)), full, func(b []byte) error {
		content = append(content, b...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if n.info.Size <= limit {
		if s.held == nil {
			s.held = make(map[int32][]byte)
		}
		s.held[at] = content
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
		return nil, fault.New(fault.PackageOversized, "%s has more than %d bytes", fault.Path(root.Path()+"/"+path), limit)
	}
	content := bytes.NewBuffer(make([]byte, 0, entry.Size))
	err := t.checkFile(root, rules, path, func(b []byte) { content.Write(b) })
	if err != nil {
		return nil, err
	}
	return content.Bytes(), nil
}

func (t *Tree) checkFile(root *dirfd.Dir, rules Rules, path string, use func([]byte)) error {
	full := root.Path() + "/" + path
	at, ok := t.nodes.lookup(path)
	if !ok || t.nodes[at].dir {
		return fault.New(fault.IntegrityMismatch, "%s is no file of its package", fault.Path(full))
	}
	if err := rules.checkDir(root); err != nil {
		return err
	}
	f, info, err := openChecked(root, rules, path)
	if err != nil {
		return err
	}
	defer f.Close()
	n := &t.nodes[at]
	differs := fault.New(fault.IntegrityMismatch, "%s is not the file that was installed", fault.Path(full))
	if info.Size != n.info.Size || (info.Mode&0o111 != 0) != n.executable() {
		return differs
	}
	w := workers.Get().(*worker)
	defer workers.Put(w)
	w.hash.Reset()
	err = w.read(f, info, info.Size, func() string { return full }, func(b []byte) error {
		w.hash.Write(b)
		use(b)
		return nil
	})
	if err != nil {
		return err
	}
	if sum(w.hash.Sum(nil)) != t.sums[at] {
		return differs
	}
	return nil
}

// openChecked opens the file at a path below dir. Every component keeps the
// rules.
func openChecked(dir *dirfd.Dir, rules Rules, path string) (f dirfd.File, info dirfd.Info, err error) {
	name, rest, deeper := strings.Cut(path, "/")
	full := func() string { return dir.Path() + "/" + name }
	if deeper {
		sub, err := dir.Sub(name)
		if err != nil {
			return f, info, openFault(err, fault.PathUnsafe, full())
		}
		defer sub.Close()
		if err := rules.checkDir(sub); err != nil {
			return f, info, err
		}
		return openChecked(sub, rules, rest)
	}
	if f, info, err = dir.OpenRaw(name); err != nil {
		return f, info, openFault(err, fault.LinkUnsafe, full())
	}
	if err = rules.check(info, full); err != nil {
		f.Close()
	}
	return f, info, err
}
