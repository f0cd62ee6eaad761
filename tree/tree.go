package tree

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"iter"
	"slices"
	"strconv"
	"strings"

	"hawser/internal/wire"
)

// Tree is the content of a package directory as it was read: its entries with
// their digests, and the one digest of all. Only this package makes one. It does
// not change, and is safe for concurrent use.
type Tree struct {
	nodes  nodes
	sums   []sum
	bytes  int64
	digest wire.Digest
	// began is when the reading of what the nodes describe began, in ns since the
	// epoch; 0 when they describe the source of a copy.
	began int64
}

// Entry is a directory or file of a Tree.
type Entry struct {
	Path       string // below the root, with "/"
	Dir        bool
	Executable bool        // always of a directory
	Size       int64       // bytes; 0 of a directory
	Digest     wire.Digest // of the content; "" of a directory, and before the content is read
}

func newTree(nodes nodes, sums []sum, bytes, began int64) *Tree {
	t := &Tree{nodes: nodes, sums: sums, bytes: bytes, began: began}
	d := newDigester()
	var digest []byte
	t.walk(0, nil, func(i int32, path []byte) bool {
		n := &t.nodes[i]
		digest = hex.AppendEncode(append(digest[:0], "sha256:"...), t.sums[i][:])
		add(d, path, n.dir, n.executable(), n.info.Size, digest)
		return true
	})
	t.digest = d.digest()
	return t
}

// DigestOf returns the tree digest of a package that is no directory yet. Its
// entries may come in any order, files with the digests of their content, and all
// directories are among them.
func DigestOf(entries []Entry) wire.Digest {
	// Depth first is the order of the paths if "/" were the least byte, which no
	// name in a package holds.
	walked := slices.SortedFunc(slices.Values(entries), func(a, b Entry) int {
		return strings.Compare(strings.ReplaceAll(a.Path, "/", "\x00"), strings.ReplaceAll(b.Path, "/", "\x00"))
	})
	d := newDigester()
	for _, e := range walked {
		add(d, e.Path, e.Dir, e.Executable, e.Size, string(e.Digest))
	}
	return d.digest()
}

// digester makes the tree digest of entries that come in its order.
type digester struct {
	hash   hash.Hash
	record []byte
}

func newDigester() *digester {
	d := &digester{hash: sha256.New()}
	d.hash.Write([]byte("firstmate-package-tree-v1\x00"))
	return d
}

func (d *digester) digest() wire.Digest { return wire.DigestFromSum(sum(d.hash.Sum(nil))) }

// add takes in an entry; size and digest count for a file only.
func add[text string | []byte](d *digester, path text, dir, executable bool, size int64, digest text) {
	kind, mark := byte('F'), byte('-')
	if dir {
		kind = 'D'
	}
	if executable {
		mark = 'x'
	}
	b := append(d.record[:0], kind, 0)
	b = append(b, path...)
	b = append(b, 0, mark, 0)
	if !dir {
		b = strconv.AppendInt(b, size, 10)
		b = append(b, 0)
		b = append(b, digest...)
		b = append(b, 0)
	}
	d.hash.Write(b)
	d.record = b
}

// walk visits the entries below nodes[at], whose path is path, in the order of
// the digest.
func (t *Tree) walk(at int32, path []byte, visit func(i int32, path []byte) bool) bool {
	if at != 0 {
		path = append(path, '/')
	}
	for i := t.nodes[at].first; i < t.nodes[at].end; i++ {
		path := append(path, t.nodes[i].name...)
		if !visit(i, path) || !t.walk(i, path, visit) {
			return false
		}
	}
	return true
}

// executable reports the mark x of the digest: of a directory always, of a file
// when anybody may execute it.
func (n *node) executable() bool { return n.dir || n.info.Mode&0o111 != 0 }

// Digest returns the tree digest.
func (t *Tree) Digest() wire.Digest { return t.digest }

// Count returns the number of entries: directories and files, not the root.
func (t *Tree) Count() int { return len(t.nodes) - 1 }

// Bytes returns the size of the content of all files.
func (t *Tree) Bytes() int64 { return t.bytes }

// Entries yields the entries in the order of the digest: depth first, a
// directory before its content, names in byte order.
func (t *Tree) Entries() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		t.walk(0, nil, func(i int32, path []byte) bool { return yield(t.entry(i, string(path))) })
	}
}

// Lookup returns the entry of a path.
func (t *Tree) Lookup(path string) (Entry, bool) {
	i, ok := t.nodes.lookup(path)
	if !ok {
		return Entry{}, false
	}
	return t.entry(i, path), true
}

func (t *Tree) entry(i int32, path string) Entry {
	e := t.nodes[i].entry(path)
	if !e.Dir {
		e.Digest = wire.DigestFromSum(t.sums[i])
	}
	return e
}

func (n *node) entry(path string) Entry {
	if n.dir {
		return Entry{Path: path, Dir: true, Executable: true}
	}
	return Entry{Path: path, Executable: n.executable(), Size: n.info.Size}
}
