package tree

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
)

// node is an entry as the scan saw it. nodes[0] is the root; the entries of a
// directory are contiguous and in byte order.
type node struct {
	name       string
	parent     int32
	dir        bool
	first, end int32 // a directory's entries are nodes[first:end]
	info       dirfd.Info
	seen       bool // else info is only the type that the directory told
}

// A node knows its name and its parent: whole paths would take memory that
// grows with the square of the depth.
type nodes []node

// Scanned is the structure of a directory that may be a package. Its content
// is not read yet, except the files that ReadFile holds. A Scanned may not be
// used by two goroutines at once.
type Scanned struct {
	root  *dirfd.Dir
	rules Rules
	nodes nodes
	bytes atomic.Int64 // of the files seen so far
	held  map[int32][]byte
}

// Scan walks the directory, which stays the caller's and open for as long as
// the result is used. It reads no content. The refusals are those of the package
// comment; of several it is the same one every time.
func Scan(dir *dirfd.Dir, rules Rules) (*Scanned, error) { return scan(dir, rules, true) }

// Read is Scan and Hash in one: each file is looked at only when it is opened to
// be read. It is for a tree whose structure need not be judged before its
// content.
func Read(dir *dirfd.Dir, rules Rules) (*Tree, error) {
	s, err := scan(dir, rules, false)
	if err != nil {
		return nil, err
	}
	return s.Hash()
}

func scan(dir *dirfd.Dir, rules Rules, lookAtFiles bool) (*Scanned, error) {
	s := &Scanned{root: dir, rules: rules, nodes: make(nodes, 1, 64)}
	info, err := dir.Info()
	if err != nil {
		return nil, ioFault(err, "cannot read %s", fault.Path(dir.Path()))
	}
	if err := s.meet(0, info, dir.Path); err != nil {
		return nil, err
	}
	if err := s.scan(0, dir, lookAtFiles); err != nil {
		return nil, err
	}
	return s, nil
}

// scan adds the entries of the directory nodes[at], then goes down into those
// that are directories.
func (s *Scanned) scan(at int32, dir *dirfd.Dir, lookAtFiles bool) error {
	room := MaxEntries - s.Count()
	entries, err := dir.Entries(room)
	if err != nil {
		return ioFault(err, "cannot read %s", fault.Path(dir.Path()))
	}
	if len(entries) > room {
		return fault.New(fault.PackageOversized, "%s has more than %d entries", fault.Path(s.root.Path()), MaxEntries)
	}
	first := int32(len(s.nodes))
	end := first + int32(len(entries))
	s.nodes[at].first, s.nodes[at].end = first, end
	for _, e := range entries {
		if !validName(e.Name) {
			return fault.New(fault.PackageInvalid, "%s: a name in a package is UTF-8 without control characters", fault.Path(dir.Path()+"/"+e.Name))
		}
		s.nodes = append(s.nodes, node{name: e.Name, parent: at, info: dirfd.Info{Mode: e.Type}})
	}
	for i := first; i < end; i++ {
		// Of a regular file its type is enough to know that opening it is
		// harmless.
		if lookAtFiles || !s.nodes[i].info.IsRegular() {
			if err := s.look(i, dir); err != nil {
				return err
			}
		}
		s.nodes[i].dir = s.nodes[i].info.IsDir()
	}
	for i := first; i < end; i++ {
		if !s.nodes[i].dir {
			continue
		}
		sub, err := s.enter(dir, i)
		if err != nil {
			return err
		}
		err = s.scan(i, sub, lookAtFiles)
		sub.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// look looks at nodes[i] in its directory, without opening it.
func (s *Scanned) look(i int32, dir *dirfd.Dir) error {
	name := s.nodes[i].name
	full := func() string { return dir.Path() + "/" + name }
	info, err := dir.Lstat(name)
	if err != nil {
		return openFault(err, fault.LinkUnsafe, full())
	}
	return s.meet(i, info, full)
}

// enter opens the directory nodes[i] below its parent.
func (s *Scanned) enter(parent *dirfd.Dir, i int32) (*dirfd.Dir, error) {
	name := s.nodes[i].name
	sub, err := parent.Sub(name)
	if err != nil {
		return nil, openFault(err, fault.PathUnsafe, parent.Path()+"/"+name)
	}
	info, err := sub.Info()
	if err != nil {
		err = ioFault(err, "cannot read %s", fault.Path(sub.Path()))
	} else {
		err = s.meet(i, info, sub.Path)
	}
	if err != nil {
		sub.Close()
		return nil, err
	}
	return sub, nil
}

// meet takes in what the kernel says of nodes[i]. The first time it has to keep
// the rules and the limits; from then on it has to be what it was, because a
// rename can put something else in its place at any time.
func (s *Scanned) meet(i int32, info dirfd.Info, path func() string) error {
	n := &s.nodes[i]
	if n.seen {
		if info != n.info {
			return changed(path())
		}
		return nil
	}
	n.info, n.seen = info, true
	if err := s.rules.check(info, path); err != nil {
		return err
	}
	if info.IsRegular() && (info.Size > MaxBytes || s.bytes.Add(info.Size) > MaxBytes) {
		return fault.New(fault.PackageOversized, "%s has more than %d bytes of content", fault.Path(s.root.Path()), MaxBytes)
	}
	return nil
}

// Count returns the number of entries: directories and files, not the root.
func (s *Scanned) Count() int { return len(s.nodes) - 1 }

// Bytes returns the size of the content of all files.
func (s *Scanned) Bytes() int64 { return s.bytes.Load() }

// Lookup returns the entry of a path, without its digest.
func (s *Scanned) Lookup(path string) (Entry, bool) {
	i, ok := s.nodes.lookup(path)
	if !ok {
		return Entry{}, false
	}
	return s.nodes[i].entry(path), true
}

// lookup finds an entry by its path.
func (n nodes) lookup(path string) (int32, bool) {
	at := int32(0)
	for name := range strings.SplitSeq(path, "/") {
		entries := n[n[at].first:n[at].end]
		i, ok := slices.BinarySearchFunc(entries, name, func(e node, name string) int {
			return strings.Compare(e.name, name)
		})
		if !ok {
			return 0, false
		}
		at = n[at].first + int32(i)
	}
	return at, true
}

func changed(path string) error {
	return fault.New(fault.IntegrityMismatch, "%s changed while it was being read: try again when nothing writes to it", fault.Path(path))
}

// openFault says why an entry that a directory listed cannot be opened; a link
// has the code given.
func openFault(err error, link fault.Code, path string) error {
	switch {
	case errors.Is(err, dirfd.ErrLink):
		return fault.New(link, "%s is now a symbolic link", fault.Path(path))
	case errors.Is(err, dirfd.ErrNotRegular), errors.Is(err, syscall.ENOTDIR):
		return fault.New(fault.IntegrityMismatch, "%s is now something else than it was", fault.Path(path))
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.IntegrityMismatch, "%s is gone", fault.Path(path))
	}
	return ioFault(err, "cannot open %s", fault.Path(path))
}

// ioFault makes the refusal of a failed system call: what was attempted and the
// system's own words, without the path that a *fs.PathError would repeat.
func ioFault(err error, format string, args ...any) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return fault.Wrap(fault.IO, err, format, args...)
}
