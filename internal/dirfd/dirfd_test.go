package dirfd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// temp returns a directory of the test's own, opened, whose path has no link.
func temp(t *testing.T) *Dir {
	t.Helper()
	path, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return open(t, path)
}

func open(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantErr fails unless err is the kind wanted and a person can read the path.
func wantErr(t *testing.T, err, kind error, path string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got %v, want %v", err, kind)
	}
	if !strings.Contains(err.Error(), path) {
		t.Fatalf("%q does not name %q", err, path)
	}
}

func TestOpen(t *testing.T) {
	top := temp(t)
	at := func(rel string) string { return top.Path() + "/" + rel }
	must(t, os.MkdirAll(at("real/below"), 0o755))
	must(t, os.Symlink("real", at("link")))
	must(t, os.Symlink("below", at("real/leaf")))
	must(t, os.WriteFile(at("file"), nil, 0o600))

	for how, open := range map[string]func(string) (*Dir, error){"one call": Open, "walk": walk} {
		t.Run(how, func(t *testing.T) {
			for _, path := range []string{at("real/below"), at("real"), "/"} {
				d, err := open(path)
				must(t, err)
				if d.Path() != path {
					t.Errorf("opened %q, path is %q", path, d.Path())
				}
				info, err := d.Info()
				must(t, err)
				want, err := os.Stat(path)
				must(t, err)
				if st := want.Sys().(*syscall.Stat_t); info.Ino != st.Ino || !info.IsDir() {
					t.Errorf("%s is inode %d, opened %d", path, st.Ino, info.Ino)
				}
				must(t, d.Close())
			}
			for _, c := range []struct {
				path   string
				kind   error
				naming string
			}{
				{at("link"), ErrLink, at("link")},
				{at("link"), syscall.ELOOP, at("link")},
				{at("link/below"), ErrLink, at("link")},
				{at("real/leaf"), ErrLink, at("real/leaf")},
				{at("file"), syscall.ENOTDIR, at("file")},
				{at("file/x"), syscall.ENOTDIR, at("file")},
				{at("absent/x"), fs.ErrNotExist, at("absent")},
			} {
				_, err := open(c.path)
				wantErr(t, err, c.kind, c.naming)
				if c.kind == fs.ErrNotExist && errors.Is(err, ErrLink) {
					t.Errorf("%v is a link", err)
				}
			}
		})
	}
	for _, path := range []string{"", "relative", at("real/"), at("./real"), at("real/../real"), at("nul\x00")} {
		if _, err := Open(path); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Open(%q) = %v", path, err)
		}
	}
}

func TestNamesAreSingle(t *testing.T) {
	d := temp(t)
	for _, name := range []string{"", ".", "..", "a/b", "/", "a\x00"} {
		for op, call := range map[string]func() error{
			"Sub":             func() error { _, err := d.Sub(name); return err },
			"Lstat":           func() error { _, err := d.Lstat(name); return err },
			"OpenFile":        func() error { _, _, err := d.OpenFile(name); return err },
			"OpenSeen":        func() error { _, _, err := d.OpenSeen(name); return err },
			"Create":          func() error { _, err := d.Create(name, 0o600); return err },
			"Mkdir":           func() error { _, err := d.Mkdir(name, 0o700); return err },
			"Rename":          func() error { return d.Rename(name, d, "x") },
			"Rename to":       func() error { return d.Rename("x", d, name) },
			"RenameNoReplace": func() error { return d.RenameNoReplace("x", d, name) },
			"Remove":          func() error { return d.Remove(name) },
			"RemoveDir":       func() error { return d.RemoveDir(name) },
			"RemoveAll":       func() error { return d.RemoveAll(name) },
		} {
			if err := call(); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%s(%q) = %v", op, name, err)
			}
		}
	}
}

func TestOpenFile(t *testing.T) {
	d := temp(t)
	at := func(name string) string { return d.Path() + "/" + name }
	must(t, os.WriteFile(at("file"), []byte("content"), 0o640))
	must(t, os.Symlink("file", at("link")))
	must(t, os.Mkdir(at("dir"), 0o700))
	must(t, unix.Mkfifo(at("fifo"), 0o600))
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	defer unix.Close(socket)
	// A socket's own path is short; the name is bound through the directory.
	t.Chdir(d.Path())
	must(t, unix.Bind(socket, &unix.SockaddrUnix{Name: "socket"}))

	f, info, err := d.OpenFile("file")
	must(t, err)
	defer f.Close()
	if info.Size != 7 || !info.IsRegular() || info.Nlink != 1 || int(info.UID) != os.Getuid() {
		t.Errorf("info %+v", info)
	}
	if content, err := io.ReadAll(f); err != nil || string(content) != "content" || f.Name() != at("file") {
		t.Errorf("%s: %q, %v", f.Name(), content, err)
	}

	for name, kind := range map[string]error{
		"link": ErrLink, "dir": ErrNotRegular, "fifo": ErrNotRegular, "socket": ErrNotRegular, "absent": fs.ErrNotExist,
	} {
		_, _, err := d.OpenFile(name)
		wantErr(t, err, kind, at(name))
		// The same after somebody has swapped it in behind a look.
		_, _, err = d.OpenSeen(name)
		wantErr(t, err, kind, at(name))
	}
	_, _, err = open(t, "/dev").OpenFile("null")
	wantErr(t, err, ErrNotRegular, "/dev/null")

	_, err = d.Sub("link")
	wantErr(t, err, ErrLink, at("link"))
	_, err = d.Sub("fifo")
	wantErr(t, err, syscall.ENOTDIR, at("fifo"))
	if info, err := d.Lstat("link"); err != nil || !info.IsLink() {
		t.Errorf("link: %+v, %v", info, err)
	}
}

// TestExactModes covers every umask that a person may have, and the set-group
// bit that directories inherit from their parent.
func TestExactModes(t *testing.T) {
	d := temp(t)
	must(t, os.Chmod(d.Path(), 0o700|os.ModeSetgid))
	for i, umask := range []int{0, 0o002, 0o077, 0o777} {
		old := unix.Umask(umask)
		for _, mode := range []uint32{0o444, 0o555, 0o600, 0o700, 0o755} {
			file, dir := fmt.Sprintf("f%d-%o", i, mode), fmt.Sprintf("d%d-%o", i, mode)
			f, err := d.Create(file, mode)
			must(t, err)
			if _, err := f.WriteString("writable whatever its mode"); err != nil {
				t.Error(err)
			}
			must(t, f.Close())
			sub, err := d.Mkdir(dir, mode)
			must(t, err)
			must(t, sub.Close())
			for _, name := range []string{file, dir} {
				if info, err := d.Lstat(name); err != nil || info.Perm() != mode {
					t.Errorf("umask %03o: %s has mode %o, %v", umask, name, info.Perm(), err)
				}
			}
		}
		unix.Umask(old)
	}
	if _, err := d.Create("f0-444", 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("created again: %v", err)
	}
	if _, err := d.Mkdir("d0-555", 0o700); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made again: %v", err)
	}
	must(t, os.Symlink("nowhere", d.Path()+"/dangling"))
	if _, err := d.Create("dangling", 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("created through a link: %v", err)
	}
}

func TestNames(t *testing.T) {
	d := temp(t)
	want := []string{"A", "a", "a.txt", "a\nb", "é", "\xff"}
	for i := range 2000 { // more than one buffer of the kernel's
		want = append(want, fmt.Sprintf("n%04d", i))
	}
	slices.Sort(want)
	for _, name := range want {
		f, err := d.Create(name, 0o600)
		must(t, err)
		must(t, f.Close())
	}
	for range 2 {
		if got, err := d.Names(); err != nil || !slices.Equal(got, want) {
			t.Fatalf("%d names, %v", len(got), err)
		}
	}
	if got, err := d.Entries(len(want)); err != nil || len(got) != len(want) {
		t.Errorf("up to all: %d names, %v", len(got), err)
	}
	if got, err := d.Entries(10); err != nil || len(got) <= 10 || len(got) == len(want) {
		t.Errorf("up to 10: %d names, %v", len(got), err)
	}
}

func TestRename(t *testing.T) {
	d := temp(t)
	to, err := d.Mkdir("to", 0o700)
	must(t, err)
	defer to.Close()
	for _, name := range []string{"a", "b", "c"} {
		must(t, os.WriteFile(d.Path()+"/"+name, []byte(name), 0o600))
	}
	must(t, d.RenameNoReplace("a", to, "x"))
	err = d.RenameNoReplace("b", to, "x")
	wantErr(t, err, fs.ErrExist, to.Path()+"/x")
	must(t, d.Rename("c", to, "x"))
	if content, err := os.ReadFile(to.Path() + "/x"); err != nil || string(content) != "c" {
		t.Errorf("%q, %v", content, err)
	}

	// A directory: not even an empty one is replaced.
	must(t, os.Mkdir(d.Path()+"/full", 0o700))
	must(t, os.WriteFile(d.Path()+"/full/file", nil, 0o600))
	must(t, os.Mkdir(d.Path()+"/empty", 0o700))
	wantErr(t, d.RenameNoReplace("full", d, "empty"), fs.ErrExist, "empty")
	must(t, d.RenameNoReplace("full", d, "moved"))
	if err := d.RenameNoReplace("absent", d, "y"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestRenameWithoutKernelHelp covers the file systems that cannot rename
// without replacing.
func TestRenameWithoutKernelHelp(t *testing.T) {
	d := temp(t)
	for _, name := range []string{"full", "other", "empty"} {
		must(t, os.Mkdir(d.Path()+"/"+name, 0o700))
	}
	must(t, os.WriteFile(d.Path()+"/full/file", nil, 0o600))
	must(t, os.WriteFile(d.Path()+"/file", nil, 0o600))

	for _, taken := range []string{"other", "empty", "file"} {
		if err := d.renameDirOnly("full", d, taken); !errors.Is(err, fs.ErrExist) {
			t.Errorf("onto %s: %v", taken, err)
		}
	}
	if err := d.renameDirOnly("file", d, "free"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a file: %v", err)
	}
	must(t, d.renameDirOnly("full", d, "free"))
	if _, err := os.Stat(d.Path() + "/free/file"); err != nil {
		t.Error(err)
	}
}

func TestRemove(t *testing.T) {
	d := temp(t)
	at := func(rel string) string { return d.Path() + "/" + rel }
	must(t, os.MkdirAll(at("keep"), 0o700))
	must(t, os.WriteFile(at("keep/file"), nil, 0o600))
	must(t, os.MkdirAll(at("tree/deep/deeper"), 0o700))
	must(t, os.WriteFile(at("tree/deep/deeper/file"), nil, 0o444))
	must(t, os.Symlink(at("keep"), at("tree/deep/link")))
	for _, dir := range []string{"tree/deep/deeper", "tree/deep", "tree"} {
		must(t, os.Chmod(at(dir), 0o555))
	}

	if err := d.RemoveDir("tree"); !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, fs.ErrExist) {
		t.Errorf("a full directory: %v", err)
	}
	if err := d.Remove("tree"); err == nil {
		t.Error("Remove removed a directory")
	}
	must(t, d.RemoveAll("tree"))
	must(t, d.RemoveAll("tree"))
	if _, err := d.Lstat("tree"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := os.Stat(at("keep/file")); err != nil {
		t.Errorf("what a link pointed to: %v", err)
	}
	must(t, os.Symlink("keep", at("link")))
	must(t, d.RemoveAll("link"))
}

func TestSync(t *testing.T) {
	d := temp(t)
	must(t, d.Sync())
	must(t, d.SyncFS())
}

func TestClosed(t *testing.T) {
	d := temp(t)
	must(t, d.Close())
	if err := d.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Error(err)
	}
	if _, err := d.Sub("x"); !errors.Is(err, syscall.EBADF) {
		t.Error(err)
	}
}

// TestKeepsNothingOpen counts the descriptors that refusals leave behind.
func TestKeepsNothingOpen(t *testing.T) {
	d := temp(t)
	must(t, unix.Mkfifo(d.Path()+"/fifo", 0o600))
	must(t, os.Symlink(".", d.Path()+"/link"))
	open := func() int {
		entries, err := os.ReadDir("/dev/fd")
		must(t, err)
		return len(entries)
	}
	before := open()
	for range 20 {
		d.OpenFile("fifo")
		d.OpenSeen("fifo")
		d.Sub("link")
		d.Mkdir("link", 0o700)
		d.Create("link", 0o700)
		d.Names()
		Open(d.Path() + "/link/x")
		walk(d.Path() + "/absent/x")
	}
	if after := open(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestRawFile(t *testing.T) {
	d := temp(t)
	w, err := d.CreateRaw("file", 0o400)
	must(t, err)
	content := strings.Repeat("bytes ", 1000)
	if n, err := w.Write([]byte(content)); n != len(content) || err != nil {
		t.Fatal(n, err)
	}
	must(t, w.Close())
	r, seen, err := d.OpenRaw("file")
	must(t, err)
	defer r.Close()
	var got []byte
	buf := make([]byte, 999)
	for {
		n, err := r.Read(buf)
		must(t, err)
		if n == 0 {
			break
		}
		got = append(got, buf[:n]...)
	}
	if string(got) != content {
		t.Errorf("read %d bytes of %d", len(got), len(content))
	}
	if now, err := r.Info(); err != nil || now != seen {
		t.Errorf("%+v, then %+v, %v", seen, now, err)
	}
	must(t, os.Chmod(d.Path()+"/file", 0o600))
	if now, err := r.Info(); err != nil || now == seen || !now.Same(seen) {
		t.Errorf("after chmod: %+v, %v", now, err)
	}
}
