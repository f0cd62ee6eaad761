package tree

import (
	"time"

	"hawser/internal/dirfd"
)

// settled is how much older than a reading a change time must be to say
// something about it: above the grain of any file system's clock, so that a
// change after the reading began cannot carry the same time.
const settled = 2 * time.Second

// Unchanged reports whether the directory is provably what was read into t: each
// entry is the same inode with the same type, mode, owner, links, size, change
// and modification times as when it was read, and none had changed shortly
// before. Every write, truncation, rename, link and change of mode moves the
// change time of the file or directory to the kernel's clock, and no call sets
// it back; a directory's covers the names in it. So what is unchanged has the
// digest of t, without its content being read again.
//
// False means that nothing is proved, not that something changed: hash again.
// Two things escape it, and a digest taken a moment earlier as well: a store
// through a writable mapping that was dirty before t was read, and an
// administrator who sets the clock back to the nanosecond.
//
// A tree that describes the source of a copy is never unchanged.
func (t *Tree) Unchanged(root *dirfd.Dir) bool {
	info, err := root.Info()
	return err == nil && t.same(0, info) && t.unchangedBelow(0, root)
}

func (t *Tree) same(i int32, info dirfd.Info) bool {
	return info == t.nodes[i].info && info.Ctime < t.began-int64(settled)
}

func (t *Tree) unchangedBelow(at int32, dir *dirfd.Dir) bool {
	for i := t.nodes[at].first; i < t.nodes[at].end; i++ {
		n := &t.nodes[i]
		if n.dir {
			if !t.unchangedDir(i, dir) {
				return false
			}
			continue
		}
		info, err := dir.Lstat(n.name)
		if err != nil || !t.same(i, info) {
			return false
		}
	}
	return true
}

func (t *Tree) unchangedDir(i int32, parent *dirfd.Dir) bool {
	dir, err := parent.Sub(t.nodes[i].name)
	if err != nil {
		return false
	}
	defer dir.Close()
	info, err := dir.Info()
	return err == nil && t.same(i, info) && t.unchangedBelow(i, dir)
}
