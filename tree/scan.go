package tree

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/wire"
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
	judge judge
	known bool // the digest is: see Verify
	nodes nodes
	bytes atomic.Int64 // of the files seen so far
	held  map[int32][]byte
	began int64 // ns since the epoch
}

// Scan walks the directory, which stays the caller's and open for as long as
// the result is used. It reads no content. The refusals are those of the package
// comment; of several it is the same one every time.
func Scan(dir *dirfd.Dir, rules Rules) (*Scanned, error) { return scan(dir, rules, false) }

// Verify reads the directory and refuses it unless it keeps the rules and comes
// to the digest, with integrity-mismatch and the refusals of Scan and Hash. It
// is one pass: because the digest is known, files need no look before they are
// opened to be judged first, and none after they are read to be sure of them.
func Verify(dir *dirfd.Dir, rules Rules, digest wire.Digest) (*Tree, error) {
	s, err := scan(dir, rules, true)
	if err != nil {
		return nil, err
	}
	t, err := s.Hash()
	if err != nil {
		return nil, err
	}
	if t.Digest() != digest {
		return nil, fault.New(fault.IntegrityMismatch, "%s is damaged: its tree digest is %s", place{dir, ""}, t.Digest())
	}
	return t, nil
}

func scan(dir *dirfd.Dir, rules Rules, known bool) (*Scanned, error) {
	s := &Scanned{root: dir, judge: rules.judge(dir), known: known, nodes: make(nodes, 1, 64), began: time.Now().UnixNano()}
	info, err := dir.Info()
	if err != nil {
		return nil, ioFault(err, "cannot read %s", place{dir, ""})
	}
	if err := s.meet(0, info, place{dir, ""}); err != nil {
		return nil, err
	}
	if err := s.scan(0, dir); err != nil {
		return nil, err
	}
	return s, nil
}

// scan adds the entries of the directory nodes[at], then goes down into those
// that are directories.
func (s *Scanned) scan(at int32, dir *dirfd.Dir) error {
	room := MaxEntries - s.Count()
	entries, err := dir.Entries(room)
	if err != nil {
		return ioFault(err, "cannot read %s", place{dir, ""})
	}
	if len(entries) > room {
		return fault.New(fault.PackageOversized, "%s has more than %d entries", place{s.root, ""}, MaxEntries)
	}
	first := int32(len(s.nodes))
	end := first + int32(len(entries))
	s.nodes[at].first, s.nodes[at].end = first, end
	for _, e := range entries {
		if !validName(e.Name) {
			return fault.New(fault.PackageInvalid, "%s: a name in a package is UTF-8 without control characters", place{dir, e.Name})
		}
		s.nodes = append(s.nodes, node{name: e.Name, parent: at, info: dirfd.Info{Mode: e.Type}})
	}
	for i := first; i < end; i++ {
		// Of a regular file its type is enough to know that opening it is
		// harmless.
		if !s.known || !s.nodes[i].info.IsRegular() {
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
		err = s.scan(i, sub)
		sub.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// look looks at nodes[i] in its directory, without opening it.
func (s *Scanned) look(i int32, dir *dirfd.Dir) error {
	at := place{dir, s.nodes[i].name}
	info, err := dir.Lstat(at.name)
	if err != nil {
		return openFault(err, fault.LinkUnsafe, at)
	}
	return s.meet(i, info, at)
}

// enter opens the directory nodes[i] below its parent.
func (s *Scanned) enter(parent *dirfd.Dir, i int32) (*dirfd.Dir, error) {
	at := place{parent, s.nodes[i].name}
	sub, err := parent.Sub(at.name)
	if err != nil {
		return nil, openFault(err, fault.PathUnsafe, at)
	}
	info, err := sub.Info()
	if err != nil {
		err = ioFault(err, "cannot read %s", at)
	} else {
		err = s.meet(i, info, at)
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
func (s *Scanned) meet(i int32, info dirfd.Info, at place) error {
	n := &s.nodes[i]
	if n.seen {
		if info != n.info {
			return changed(at)
		}
		return nil
	}
	n.info, n.seen = info, true
	if err := s.judge.check(info, at); err != nil {
		return err
	}
	if info.IsRegular() && (info.Size > MaxBytes || s.bytes.Add(info.Size) > MaxBytes) {
		return fault.New(fault.PackageOversized, "%s has more than %d bytes of content", place{s.root, ""}, MaxBytes)
	}
	return nil
}

// Path returns the path of the directory that was scanned.
func (s *Scanned) Path() string { return s.root.Path() }

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
