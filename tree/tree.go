package tree

import (
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"strconv"

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
	h := sha256.New()
	h.Write([]byte("firstmate-package-tree-v1\x00"))
	var record []byte
	t.walk(0, nil, func(i int32, path []byte) bool {
		record = t.appendRecord(record[:0], i, path)
		h.Write(record)
		return true
	})
	t.digest = wire.DigestFromSum(sum(h.Sum(nil)))
	return t
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

func (t *Tree) appendRecord(b []byte, i int32, path []byte) []byte {
	n := &t.nodes[i]
	kind, mark := byte('F'), byte('-')
	if n.dir {
		kind = 'D'
	}
	if n.executable() {
		mark = 'x'
	}
	b = append(b, kind, 0)
	b = append(b, path...)
	b = append(b, 0, mark, 0)
	if kind == 'F' {
		b = strconv.AppendInt(b, n.info.Size, 10)
		b = append(b, "\x00sha256:"...)
		b = hex.AppendEncode(b, t.sums[i][:])
		b = append(b, 0)
	}
	return b
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
