package tree

import (
	"crypto/sha256"
	"errors"
	"hash"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
)

// Modes are the exact modes of a copy.
type Modes struct {
	Dir, File, Executable uint32
}

// Hash reads every file and returns the tree. Refusals: integrity-mismatch for
// an entry that is not what the scan saw, path-unsafe or link-unsafe when a link
// took its place, io.
func (s *Scanned) Hash() (*Tree, error) { return s.read(&pass{}) }

// Load is Hash, and holds every file as ReadFile does: for a package that is
// small enough for it.
func (s *Scanned) Load() (*Tree, error) {
	contents := make([][]byte, len(s.nodes))
	t, err := s.read(&pass{contents: contents})
	if err != nil {
		return nil, err
	}
	s.held = make(map[int32][]byte, len(s.nodes))
	for i := range s.nodes {
		if !s.nodes[i].dir {
			s.held[int32(i)] = contents[i]
		}
	}
	return t, nil
}

// CopyTo is Hash, and writes what is hashed into the empty directory dst with
// exactly the modes given, whatever the umask. A directory gets its mode when
// everything below it is written; the mode of dst itself stays the caller's to
// set. Nothing is synced.
//
// A crash, or a refusal, leaves dst with a part of the copy, for the caller to
// remove.
func (s *Scanned) CopyTo(dst *dirfd.Dir, modes Modes) (*Tree, error) {
	return s.read(&pass{dst: dst, modes: modes})
}

// pass is one reading of the content of a scanned tree.
type pass struct {
	*Scanned
	dst      *dirfd.Dir // of the copy, nil for none
	modes    Modes      // of the copy
	contents [][]byte   // of the nodes, to be filled in; nil for no need of them

	sums    []sum
	workers int
	work    errgroup.Group
	failed  atomic.Bool
}

type sum = [sha256.Size]byte

func (s *Scanned) read(p *pass) (*Tree, error) {
	p.Scanned, p.sums, p.workers = s, make([]sum, len(s.nodes)), runtime.GOMAXPROCS(0)
	p.work.SetLimit(p.workers)

	err := p.dir(0, &openDir{src: s.root, dst: p.dst})
	if err != nil {
		p.failed.Store(true)
	}
	if workErr := p.work.Wait(); workErr != nil {
		err = workErr // the cause: the walk only stopped for it
	}
	if err != nil {
		return nil, err
	}
	began := s.began
	if p.dst != nil {
		began = 0
	}
	return newTree(s.nodes, p.sums, s.Bytes(), began), nil
}

var errStopped = errors.New("stopped")

// dir reads the directory nodes[at], open at here: its own files a batch at a
// time, then its directories.
func (p *pass) dir(at int32, here *openDir) error {
	dir := &p.nodes[at]
	for i := dir.first; i < dir.end; {
		switch {
		case p.nodes[i].dir:
			i++
		case p.inline(i):
			if err := p.files(here, i, i+1); err != nil {
				return err
			}
			i++
		default:
			end := p.batch(i, dir.end)
			p.start(here, i, end)
			i = end
		}
	}
	for i := dir.first; i < dir.end; i++ {
		if !p.nodes[i].dir {
			continue
		}
		if p.failed.Load() {
			return errStopped
		}
		sub, err := p.enter(here, i)
		if err != nil {
			return err
		}
		err = p.dir(i, sub)
		if leaveErr := p.leave(sub); err == nil {
			err = leaveErr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// What is so little is read sooner than a thread for it is started: a small
// package is verified twice in a command of a few milliseconds.
const (
	fewEntries = 16
	fewBytes   = 1 << 20
)

// inline reports whether the file nodes[i] is read on the calling goroutine.
func (p *pass) inline(i int32) bool {
	return p.workers == 1 || i <= fewEntries && p.Bytes() <= fewBytes
}

// A batch is worth a goroutine and still small enough to keep all of them busy
// to the end.
const (
	batchEntries = 8
	batchBytes   = 512 << 10
)

func (p *pass) batch(i, end int32) int32 {
	end = min(end, i+batchEntries)
	for size := int64(0); i < end && size < batchBytes; i++ {
		size += p.nodes[i].info.Size
	}
	return i
}

// start reads a batch on a goroutine.
func (p *pass) start(here *openDir, first, end int32) {
	here.users.Add(1)
	p.work.Go(func() error {
		err := p.files(here, first, end)
		if leaveErr := p.leave(here); err == nil {
			err = leaveErr
		}
		return err
	})
}

// files reads the files among nodes[first:end], which are in the directory here.
func (p *pass) files(here *openDir, first, end int32) error {
	w := workers.Get().(*worker)
	defer workers.Put(w)
	for i := first; i < end && !p.failed.Load(); i++ {
		if p.nodes[i].dir {
			continue
		}
		if err := p.file(w, here, i); err != nil {
			p.failed.Store(true)
			return err
		}
	}
	return nil
}

// worker is what reading a file takes; the memory of a pass is as many of them
// as files are read at once.
type worker struct {
	buf  [128 << 10]byte
	hash hash.Hash
}

var workers = sync.Pool{New: func() any { return &worker{hash: sha256.New()} }}

// file hashes nodes[i], and copies or keeps what it hashes.
func (p *pass) file(w *worker, here *openDir, i int32) error {
	n := &p.nodes[i]
	var out dirfd.File
	if here.dst != nil {
		mode := p.modes.File
		if n.executable() {
			mode = p.modes.Executable
		}
		var err error
		if out, err = here.dst.CreateRaw(n.name, mode); err != nil {
			return ioFault(err, "cannot create %s", place{here.dst, n.name})
		}
	}
	if p.contents != nil {
		p.contents[i] = make([]byte, 0, n.info.Size)
	}
	w.hash.Reset()
	err := p.content(w, here.src, i, func(b []byte) error {
		w.hash.Write(b)
		if p.contents != nil {
			p.contents[i] = append(p.contents[i], b...)
		}
		if here.dst == nil {
			return nil
		}
		_, err := out.Write(b)
		return ioFault(err, "cannot write %s", place{here.dst, n.name})
	})
	if here.dst != nil {
		// Some file systems report a full disk only here.
		if closeErr := out.Close(); err == nil && closeErr != nil {
			err = ioFault(closeErr, "cannot write %s", place{here.dst, n.name})
		}
	}
	w.hash.Sum(p.sums[i][:0])
	return err
}

// content gives the bytes of nodes[i] to use: those that are held, else those
// of the file.
func (s *Scanned) content(w *worker, dir *dirfd.Dir, i int32, use func([]byte) error) error {
	if held, ok := s.held[i]; ok {
		return use(held)
	}
	f, err := s.openFile(dir, i)
	if err != nil {
		return err
	}
	defer f.Close()
	n := &s.nodes[i]
	at := place{dir, n.name}
	if err := w.read(f, n.info.Size, at, use); err != nil || s.known {
		return err
	}
	return unchanged(f, n.info, at)
}

// openFile opens the file nodes[i] in its directory.
func (s *Scanned) openFile(dir *dirfd.Dir, i int32) (dirfd.File, error) {
	n := &s.nodes[i]
	at := place{dir, n.name}
	f, info, err := dir.OpenSeen(n.name)
	if err != nil {
		if !n.seen {
			// What the rules have to say of it comes first: a file of another
			// user is that, not a permission denied.
			if err := s.look(i, dir); err != nil {
				return f, err
			}
		}
		return f, openFault(err, fault.LinkUnsafe, at)
	}
	if err := s.meet(i, info, at); err != nil {
		f.Close()
		return f, err
	}
	return f, nil
}

// read gives the first size bytes of f to use. It never reads more: a file that
// grows is no way around a limit.
func (w *worker) read(f dirfd.File, size int64, at place, use func([]byte) error) error {
	for size > 0 {
		n, err := f.Read(w.buf[:min(size, int64(len(w.buf)))])
		if err != nil {
			return ioFault(err, "cannot read %s", at)
		}
		if n == 0 {
			return changed(at)
		}
		if err := use(w.buf[:n]); err != nil {
			return err
		}
		size -= int64(n)
	}
	return nil
}

// unchanged insists that a file that was read is still what it was before: its
// bytes are of one moment.
func unchanged(f dirfd.File, before dirfd.Info, at place) error {
	now, err := f.Info()
	if err != nil {
		return ioFault(err, "cannot read %s", at)
	}
	if now != before {
		return changed(at)
	}
	return nil
}

// openDir is a directory that is being read, and its copy. It stays open for its
// users: the walk that is in it, and the batches of files on other goroutines.
type openDir struct {
	src, dst *dirfd.Dir // dst is nil when nothing is copied
	users    atomic.Int32
}

// enter opens the directory nodes[i] below here, and makes its copy.
func (p *pass) enter(here *openDir, i int32) (*openDir, error) {
	src, err := p.Scanned.enter(here.src, i)
	if err != nil {
		return nil, err
	}
	sub := &openDir{src: src}
	sub.users.Store(1)
	if here.dst == nil {
		return sub, nil
	}
	name := p.nodes[i].name
	if sub.dst, err = here.dst.Mkdir(name, 0o700); err != nil {
		src.Close()
		return nil, ioFault(err, "cannot create %s", place{here.dst, name})
	}
	return sub, nil
}

// leave ends one use. The last one closes the directory; by then everything
// below its copy is written, and the copy can become read-only. The root is the
// caller's.
func (p *pass) leave(here *openDir) error {
	if here.users.Add(-1) != 0 || here.src == p.root {
		return nil
	}
	here.src.Close()
	if here.dst == nil {
		return nil
	}
	defer here.dst.Close()
	if err := here.dst.Chmod(p.modes.Dir); err != nil {
		return ioFault(err, "cannot set the mode of %s", place{here.dst, ""})
	}
	return nil
}
