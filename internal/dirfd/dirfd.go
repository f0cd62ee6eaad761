package dirfd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a name turned out to be, for errors.Is. ErrLink also is
// syscall.ELOOP.
var (
	ErrLink       error = &kindError{"is a symbolic link", unix.ELOOP}
	ErrNotRegular error = &kindError{"is not a regular file", 0}
)

type kindError struct {
	text  string
	errno syscall.Errno
}

func (e *kindError) Error() string { return e.text }

func (e *kindError) Is(target error) bool { return e.errno != 0 && target == e.errno }

// openDir opens a directory and nothing else: O_DIRECTORY refuses a FIFO or a
// device without opening it, O_NOFOLLOW a link in the last component.
const openDir = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// Dir is an open directory. It is safe for concurrent use, except that Close
// must come after every other call.
type Dir struct {
	fd int
	// The path is put together when somebody asks: a path a level would make
	// the memory of a walk grow with the square of the depth.
	parent *Dir // nil: name is the whole path
	name   string
}

// Open opens the directory at an absolute, clean path of which no component is
// a link. A link anywhere on the way is ErrLink and the error's path ends at
// it; something else that is no directory is syscall.ENOTDIR.
func Open(path string) (*Dir, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsRune(path, 0) {
		return nil, &fs.PathError{Op: "open", Path: path, Err: unix.EINVAL}
	}
	if fd, err := openWhole(path); err == nil {
		return &Dir{fd: fd, name: path}, nil
	}
	// Either the platform has no such call (or a seccomp filter denies it), or
	// the path is refused: then the walk finds out at which component.
	return walk(path)
}

// walk opens path a component at a time.
func walk(path string) (*Dir, error) {
	fd, err := openat(unix.AT_FDCWD, "/", openStep, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: "/", Err: err}
	}
	d := &Dir{fd: fd, name: "/"}
	names := strings.Split(path, "/")[1:]
	for i, name := range names {
		flags := openStep
		if i == len(names)-1 {
			flags = openDir
		}
		if name == "" { // path is "/"
			name = "."
		}
		next, err := d.sub(name, flags)
		d.Close()
		if err != nil {
			return nil, err
		}
		d = next
	}
	d.parent, d.name = nil, path
	return d, nil
}

// Path returns the path of the directory as it was opened. It is for messages
// and for programs that must be given a path: the directory may have been
// renamed since.
func (d *Dir) Path() string {
	length := 0
	for at := d; at != nil; at = at.parent {
		length += len(at.name) + 1
	}
	path := make([]byte, length)
	end := length
	for at := d; at != nil; at = at.parent {
		end -= copy(path[end-len(at.name):], at.name)
		end--
		path[end] = '/'
	}
	return filepath.Clean(string(path))
}

// Fd returns the descriptor, which stays d's and is closed by d.Close.
func (d *Dir) Fd() int { return d.fd }

// Close closes the descriptor. A second Close is fs.ErrClosed.
func (d *Dir) Close() error {
	if d.fd < 0 {
		return &fs.PathError{Op: "close", Path: d.Path(), Err: fs.ErrClosed}
	}
	err := closeFD(d.fd)
	d.fd = -1
	return d.wrap("close", "", err)
}

// Dup returns a second descriptor of the same directory, to be closed on its own.
func (d *Dir) Dup() (*Dir, error) {
	fd, err := unix.FcntlInt(uintptr(d.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, d.wrap("dup", "", err)
	}
	return &Dir{fd, d.parent, d.name}, nil
}

// File returns a second descriptor as an *os.File, for what takes one.
func (d *Dir) File() (*os.File, error) {
	dup, err := d.Dup()
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(dup.fd), dup.Path()), nil
}

// Info describes the open directory itself.
func (d *Dir) Info() (Info, error) {
	info, err := fstat(d.fd)
	return info, d.wrap("fstat", "", err)
}

// Lstat describes the entry name, itself if it is a link.
func (d *Dir) Lstat(name string) (Info, error) {
	if err := d.check("lstat", name); err != nil {
		return Info{}, err
	}
	info, err := lstatat(d.fd, name)
	return info, d.wrap("lstat", name, err)
}

// Sub opens the child directory name. A link is ErrLink, anything else that is
// no directory syscall.ENOTDIR.
func (d *Dir) Sub(name string) (*Dir, error) {
	if err := d.check("open", name); err != nil {
		return nil, err
	}
	return d.sub(name, openDir)
}

func (d *Dir) sub(name string, flags int) (*Dir, error) {
	fd, err := openat(d.fd, name, flags, 0)
	switch err {
	case nil:
		return &Dir{fd: fd, parent: d, name: name}, nil
	case unix.ENOTDIR, unix.ELOOP:
		// Kernels differ in which of the two a link is.
		if info, statErr := lstatat(d.fd, name); statErr == nil && info.IsLink() {
			return nil, d.wrap("open", name, ErrLink)
		}
	}
	return nil, d.wrap("open", name, err)
}

// OpenFile opens the regular file name for reading and describes what was
// opened. Anything else is refused without being opened: a link with ErrLink, a
// directory, FIFO, socket or device with ErrNotRegular.
func (d *Dir) OpenFile(name string) (*os.File, Info, error) {
	f, info, err := d.OpenRaw(name)
	if err != nil {
		return nil, Info{}, err
	}
	return os.NewFile(uintptr(f.fd), d.join(name)), info, nil
}

// OpenRaw is OpenFile without the os.File.
func (d *Dir) OpenRaw(name string) (File, Info, error) {
	if err := d.check("open", name); err != nil {
		return File{}, Info{}, err
	}
	// Look first: opening a device can already have an effect.
	info, err := lstatat(d.fd, name)
	switch {
	case err != nil:
	case info.IsLink():
		err = ErrLink
	case !info.IsRegular():
		err = ErrNotRegular
	default:
		return d.openSeen(name)
	}
	return File{}, Info{}, d.wrap("open", name, err)
}

// OpenSeen is OpenRaw for a caller that has just seen with Lstat that name is a
// regular file. What has taken its place since is still refused; O_NONBLOCK
// keeps a FIFO put there from blocking the open.
func (d *Dir) OpenSeen(name string) (File, Info, error) {
	if err := d.check("open", name); err != nil {
		return File{}, Info{}, err
	}
	return d.openSeen(name)
}

func (d *Dir) openSeen(name string) (File, Info, error) {
	fd, err := openat(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch err {
	case nil:
	case unix.ELOOP:
		return File{}, Info{}, d.wrap("open", name, ErrLink)
	case unix.ENXIO, unix.EOPNOTSUPP: // a socket, or a device without a driver
		return File{}, Info{}, d.wrap("open", name, ErrNotRegular)
	default:
		return File{}, Info{}, d.wrap("open", name, err)
	}
	info, err := fstat(fd)
	if err == nil && !info.IsRegular() {
		err = ErrNotRegular
	}
	if err != nil {
		unix.Close(fd)
		return File{}, Info{}, d.wrap("open", name, err)
	}
	return File{fd}, info, nil
}

// Create makes the file name with exactly mode and opens it for writing;
// fs.ErrExist when there is anything of that name.
//
// A crash right after it leaves a file that is empty, perhaps still 0600. A
// failure leaves none.
func (d *Dir) Create(name string, mode uint32) (*os.File, error) {
	f, err := d.CreateRaw(name, mode)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(f.fd), d.join(name)), nil
}

// CreateRaw is Create without the os.File.
func (d *Dir) CreateRaw(name string, mode uint32) (File, error) {
	if err := d.check("create", name); err != nil {
		return File{}, err
	}
	fd, err := openat(d.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return File{}, d.wrap("create", name, err)
	}
	if err := fchmod(fd, mode); err != nil {
		unix.Close(fd)
		unlinkat(d.fd, name, 0)
		return File{}, d.wrap("chmod", name, err)
	}
	return File{fd}, nil
}

// Mkdir makes the directory name with exactly mode and opens it; fs.ErrExist
// when there is anything of that name.
//
// A crash right after it leaves an empty directory, perhaps of a narrower mode
// than asked and with an inherited set-group bit. A failure leaves none.
func (d *Dir) Mkdir(name string, mode uint32) (*Dir, error) {
	if err := d.check("mkdir", name); err != nil {
		return nil, err
	}
	if err := retry(func() error { return unix.Mkdirat(d.fd, name, 0o700) }); err != nil {
		return nil, d.wrap("mkdir", name, err)
	}
	sub, err := d.sub(name, openDir)
	if errors.Is(err, unix.EACCES) {
		// The umask took even our own read bit. There is no descriptor yet to
		// give it back by; the name is ours, made a moment ago.
		if err = d.wrap("chmod", name, unix.Fchmodat(d.fd, name, 0o700, 0)); err == nil {
			sub, err = d.sub(name, openDir)
		}
	}
	if err == nil {
		if err = sub.Chmod(mode); err != nil {
			sub.Close()
		}
	}
	if err != nil {
		unlinkat(d.fd, name, unix.AT_REMOVEDIR)
		return nil, err
	}
	return sub, nil
}

// Chmod gives the directory exactly mode: the set-user, set-group and sticky
// bits are cleared unless mode has them.
func (d *Dir) Chmod(mode uint32) error {
	return d.wrap("chmod", "", fchmod(d.fd, mode))
}

// Names returns the names of all entries, in byte order.
func (d *Dir) Names() ([]string, error) {
	entries, err := d.Entries(-1)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name
	}
	return names, nil
}

// Entry is a name in a directory, and its type as far as the directory knows.
type Entry struct {
	Name string
	Type uint32 // as in st_mode (S_IFMT); 0 when only Lstat can tell
}

// Entries returns the entries in the byte order of their names, and stops
// reading soon after it has max of them (max < 0: never), so that the memory it
// takes is the caller's to bound: a result longer than max says that there are
// more.
func (d *Dir) Entries(max int) ([]Entry, error) {
	// A descriptor of its own has an offset of its own: the call can be
	// repeated, and made by two goroutines at once.
	fd, err := openat(d.fd, ".", openDir, 0)
	if err != nil {
		return nil, d.wrap("open", "", err)
	}
	defer unix.Close(fd)

	buf := direntBuffers.Get().(*[16 << 10]byte)
	defer direntBuffers.Put(buf)
	var entries []Entry
	for max < 0 || len(entries) <= max {
		n, err := unix.ReadDirent(fd, buf[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, d.wrap("readdir", "", err)
		}
		if n <= 0 {
			break
		}
		entries = appendDirents(entries, buf[:n])
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries, nil
}

// appendDirents appends what the kernel wrote into a buffer of directory
// records. unix.ParseDirent would drop their types.
func appendDirents(entries []Entry, buf []byte) []Entry {
	var layout unix.Dirent
	for len(buf) > 0 {
		record := buf[:binary.NativeEndian.Uint16(buf[unsafe.Offsetof(layout.Reclen):])]
		buf = buf[len(record):]
		// On Linux some file systems give real entries the inode 0; elsewhere
		// it marks a record that is not in use.
		inode := binary.NativeEndian.Uint64(record[unsafe.Offsetof(layout.Ino):])
		if inode == 0 && runtime.GOOS != "linux" {
			continue
		}
		name := record[unsafe.Offsetof(layout.Name):]
		if end := bytes.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		if string(name) == "." || string(name) == ".." {
			continue
		}
		// The type of a directory record is that of st_mode, shifted.
		kind := uint32(record[unsafe.Offsetof(layout.Type)]) << 12
		entries = append(entries, Entry{string(name), kind})
	}
	return entries
}

var direntBuffers = sync.Pool{New: func() any { return new([16 << 10]byte) }}

// Rename moves the entry old to the name new in the directory to, replacing
// what is there. It is atomic; durable once both directories are synced.
func (d *Dir) Rename(old string, to *Dir, new string) error {
	return d.rename("rename", old, to, new, func() error {
		return unix.Renameat(d.fd, old, to.fd, new)
	})
}

// RenameNoReplace moves the entry old to the name new in the directory to,
// unless there is anything of that name: then it is fs.ErrExist. It is atomic;
// durable once both directories are synced.
//
// Some file systems cannot do it (NFS, older ZFS). There a directory is moved
// by the plain rename, which replaces nothing but an empty directory, so that
// no content is ever lost. For a file no substitute keeps the promise: a look
// before a plain rename can lose a file that comes in between, and link then
// unlink leaves a crash with two links. It is errors.ErrUnsupported.
func (d *Dir) RenameNoReplace(old string, to *Dir, new string) error {
	return d.rename("rename without replacing", old, to, new, func() error {
		err := renameNoReplace(d.fd, old, to.fd, new)
		if err == unix.EINVAL || err == unix.ENOSYS || err == unix.ENOTSUP {
			return d.renameDirOnly(old, to, new)
		}
		return err
	})
}

func (d *Dir) renameDirOnly(old string, to *Dir, new string) error {
	info, err := lstatat(d.fd, old)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return unix.ENOTSUP
	}
	if _, err := lstatat(to.fd, new); err == nil {
		return unix.EEXIST
	}
	err = unix.Renameat(d.fd, old, to.fd, new)
	if err == unix.ENOTDIR { // a file came in between
		return unix.EEXIST
	}
	return err
}

func (d *Dir) rename(op, old string, to *Dir, new string, call func() error) error {
	if err := d.check(op, old); err != nil {
		return err
	}
	if err := to.check(op, new); err != nil {
		return err
	}
	if err := retry(call); err != nil {
		return &os.LinkError{Op: op, Old: d.join(old), New: to.join(new), Err: err}
	}
	return nil
}

// Remove removes the entry name, which is no directory.
func (d *Dir) Remove(name string) error {
	if err := d.check("remove", name); err != nil {
		return err
	}
	return d.wrap("remove", name, unlinkat(d.fd, name, 0))
}

// RemoveDir removes the empty directory name.
func (d *Dir) RemoveDir(name string) error {
	if err := d.check("remove", name); err != nil {
		return err
	}
	return d.wrap("remove", name, unlinkat(d.fd, name, unix.AT_REMOVEDIR))
}

// RemoveAll removes the entry name and, if it is a directory, everything below
// it. It follows no link, and gives back the permission to write that installed
// directories lack. An absent name is no error. It holds one descriptor a level.
//
// A crash in between leaves a part of the tree; the same call removes the rest.
func (d *Dir) RemoveAll(name string) error {
	if err := d.check("remove", name); err != nil {
		return err
	}
	err := unlinkat(d.fd, name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	// A directory is EISDIR on Linux and EPERM by POSIX.
	if info, statErr := lstatat(d.fd, name); statErr != nil || !info.IsDir() {
		return d.wrap("remove", name, err)
	}
	err = unlinkat(d.fd, name, unix.AT_REMOVEDIR)
	if err != unix.ENOTEMPTY && err != unix.EEXIST {
		return d.wrap("remove", name, err)
	}
	sub, openErr := d.sub(name, openDir)
	if openErr != nil {
		return openErr
	}
	defer sub.Close()
	if err := sub.removeEntries(); err != nil {
		return err
	}
	return d.RemoveDir(name)
}

func (d *Dir) removeEntries() error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	if info.Mode&0o700 != 0o700 {
		if err := d.Chmod(0o700); err != nil {
			return err
		}
	}
	names, err := d.Names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := d.RemoveAll(name); err != nil {
			return err
		}
	}
	return nil
}

// Sync makes the directory's own entries durable: names made, renamed and
// removed in it before the call.
func (d *Dir) Sync() error {
	return d.wrap("fsync", "", retry(func() error { return unix.Fsync(d.fd) }))
}

// SyncFS makes everything durable that was written to the directory's file
// system before the call: one call for a whole tree. Since Linux 5.8 it also
// reports the write errors since d was opened, so open d before writing.
func (d *Dir) SyncFS() error {
	return d.wrap("syncfs", "", retry(func() error { return syncFS(d.fd) }))
}

func (d *Dir) join(name string) string { return filepath.Join(d.Path(), name) }

func (d *Dir) wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: d.join(name), Err: err}
}

// check refuses what is no single name.
func (d *Dir) check(op, name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return &fs.PathError{Op: op, Path: d.Path() + "/" + name, Err: unix.EINVAL}
	}
	return nil
}

func openat(dir int, name string, flags int, mode uint32) (fd int, err error) {
	for {
		if fd, err = unix.Openat(dir, name, flags, mode); err != unix.EINTR {
			return fd, err
		}
	}
}

// closeFD does not retry after EINTR: the descriptor is free by then, and may
// already be somebody else's.
func closeFD(fd int) error {
	if err := unix.Close(fd); err != unix.EINTR {
		return err
	}
	return nil
}

func fchmod(fd int, mode uint32) error {
	return retry(func() error { return unix.Fchmod(fd, mode) })
}

func unlinkat(dir int, name string, flags int) error {
	return retry(func() error { return unix.Unlinkat(dir, name, flags) })
}

func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
