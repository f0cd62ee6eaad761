package home

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
)

// newHome makes a home whose canonical path is known.
func newHome(t *testing.T) *Home {
	t.Helper()
	path, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &Home{Path: path, State: filepath.Join(path, "state")}
}

func wantCode(t *testing.T, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Fatalf("got %v, want code %s", err, code)
	}
}

func TestLocate(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"root/bin", "other", "real"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	exe := filepath.Join(base, "root/bin/fm-extension")
	if err := os.WriteFile(exe, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	stray := filepath.Join(base, "other/fm-extension")
	if err := os.WriteFile(stray, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name              string
		env               map[string]string
		exe               string
		home, root, state string
		code              fault.Code
	}{
		{name: "installed root", exe: exe, home: "root", root: "root", state: "root/state"},
		{name: "FM_HOME", exe: exe, env: map[string]string{"FM_HOME": base + "/other"}, home: "other", root: "root", state: "other/state"},
		{name: "FM_HOME through a link", exe: exe, env: map[string]string{"FM_HOME": base + "/link"}, home: "real", root: "root", state: "real/state"},
		{name: "FM_ROOT_OVERRIDE is home and root", exe: exe, env: map[string]string{"FM_ROOT_OVERRIDE": base + "/other"}, home: "other", root: "other", state: "other/state"},
		{name: "FM_HOME before FM_ROOT_OVERRIDE", exe: exe, env: map[string]string{"FM_HOME": base + "/real", "FM_ROOT_OVERRIDE": base + "/other"}, home: "real", root: "other", state: "real/state"},
		{name: "FM_STATE_OVERRIDE", exe: exe, env: map[string]string{"FM_STATE_OVERRIDE": base + "/other/s/"}, home: "root", root: "root", state: "other/s"},
		{name: "relative FM_STATE_OVERRIDE", exe: exe, env: map[string]string{"FM_STATE_OVERRIDE": "s"}, code: fault.HomeInvalid},
		{name: "not installed, no home", exe: stray, code: fault.HomeInvalid},
		{name: "not installed, FM_HOME", exe: stray, env: map[string]string{"FM_HOME": base + "/real"}, home: "real", state: "real/state"},
		{name: "absent", exe: exe, env: map[string]string{"FM_HOME": base + "/none"}, code: fault.HomeInvalid},
		{name: "a file", exe: exe, env: map[string]string{"FM_HOME": exe}, code: fault.HomeInvalid},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h, err := Locate(func(k string) string { return test.env[k] }, test.exe)
			if test.code != "" {
				wantCode(t, err, test.code)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			join := func(s string) string {
				if s == "" {
					return ""
				}
				return filepath.Join(base, s)
			}
			if h.Path != join(test.home) || h.Root != join(test.root) || h.State != join(test.state) {
				t.Fatalf("got %+v", h)
			}
		})
	}
}

func TestLocateRefusesUnrecordablePaths(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a\nb")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Locate(func(k string) string { return map[string]string{"FM_HOME": dir}[k] }, "/nowhere/bin/x")
	wantCode(t, err, fault.HomeInvalid)
	if strings.ContainsRune(fault.Line(err), '\n') {
		t.Fatalf("the refusal is not one line: %q", fault.Line(err))
	}
}

var places = []string{Bindings, Data, Packages, Staging, RetiredBindings, RetiredStaging, ExtensionState, Invocations, Procevent, Inbox}

func TestOpenCreatesNothing(t *testing.T) {
	h := newHome(t)
	for _, place := range places {
		if _, err := h.Open(place, "x"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", place, err)
		}
	}
	entries, err := os.ReadDir(h.Path)
	if err != nil || len(entries) != 0 {
		t.Fatalf("left %v, %v", entries, err)
	}
}

func TestMakeIsExactWhateverTheUmaskAndTheSetGroupBit(t *testing.T) {
	for _, mask := range []int{0o002, 0o077, 0o022} {
		h := newHome(t)
		if err := os.Chmod(h.Path, 0o700|fs.ModeSetgid); err != nil {
			t.Fatal(err)
		}
		old := syscall.Umask(mask)
		for _, place := range places {
			dir, err := h.Make(nil, place, "a", "b")
			if err != nil {
				t.Fatal(err)
			}
			dir.Close()
		}
		syscall.Umask(old)
		err := filepath.WalkDir(h.Path, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == h.Path {
				return err
			}
			info, err := d.Info()
			if err == nil && info.Mode() != fs.ModeDir|0o700 {
				t.Errorf("umask %03o: %s has mode %v", mask, path, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestUnsafeDirectoriesAreRefused(t *testing.T) {
	spoil := map[string]struct {
		do   func(path string) error
		code fault.Code
	}{
		"a link":         {func(p string) error { return errors.Join(os.RemoveAll(p), os.Symlink(os.TempDir(), p)) }, fault.PathUnsafe},
		"a file":         {func(p string) error { return errors.Join(os.RemoveAll(p), os.WriteFile(p, nil, 0o600)) }, fault.PathUnsafe},
		"group-writable": {func(p string) error { return os.Chmod(p, 0o770) }, fault.ModeUnsafe},
		"world-writable": {func(p string) error { return os.Chmod(p, 0o702) }, fault.ModeUnsafe},
	}
	for name, s := range spoil {
		for _, place := range places {
			parts := strings.Split(place, "/")
			for depth := 1; depth <= len(parts); depth++ {
				h := newHome(t)
				dir, err := h.Make(nil, place)
				if err != nil {
					t.Fatal(err)
				}
				dir.Close()
				if err := s.do(filepath.Join(h.Path, filepath.Join(parts[:depth]...))); err != nil {
					t.Fatal(err)
				}
				_, err = h.Open(place)
				if !fault.Is(err, s.code) {
					t.Errorf("%s, %s of %s: got %v", name, parts[depth-1], place, err)
				}
				if _, err = h.Make(nil, place); !fault.Is(err, s.code) {
					t.Errorf("%s, %s of %s: Make got %v", name, parts[depth-1], place, err)
				}
			}
		}
	}
}

func TestTopDirectoriesMayBeReadable(t *testing.T) {
	h := newHome(t)
	for _, place := range places {
		dir, err := h.Make(nil, place)
		if err != nil {
			t.Fatal(err)
		}
		dir.Close()
		if err := os.Chmod(filepath.Join(h.Path, strings.Split(place, "/")[0]), 0o755); err != nil {
			t.Fatal(err)
		}
		dir, err = h.Open(place)
		if err != nil {
			t.Fatal(err)
		}
		dir.Close()
		if strings.Count(place, "/") > 0 {
			if err := os.Chmod(h.Join(place), 0o750); err != nil {
				t.Fatal(err)
			}
			if _, err := h.Open(place); !fault.Is(err, fault.ModeUnsafe) {
				t.Errorf("%s with mode 0750: %v", place, err)
			}
		}
		if err := os.Chmod(h.Join(place), 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

func TestForeignOwnerIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	h := newHome(t)
	dir, err := h.Make(nil, Data)
	if err != nil {
		t.Fatal(err)
	}
	dir.Close()
	if err := os.Chown(h.Join(Data), 12345, 12345); err != nil {
		t.Fatal(err)
	}
	_, err = h.Open(Data)
	wantCode(t, err, fault.OwnerMismatch)
}

func TestStateOverride(t *testing.T) {
	h := newHome(t)
	h.State = filepath.Join(filepath.Dir(h.Path), "elsewhere")
	dir, err := h.Make(nil, Procevent)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if want := filepath.Join(h.State, "procevent"); dir.Path() != want || h.Join(Procevent) != want {
		t.Fatalf("got %s and %s, want %s", dir.Path(), h.Join(Procevent), want)
	}
	if _, err := os.Lstat(filepath.Join(h.Path, "state")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the home's own state was touched: %v", err)
	}
}

func openHere(t *testing.T) *dirfd.Dir {
	t.Helper()
	path, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := dirfd.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

func TestReadPrivate(t *testing.T) {
	dir := openHere(t)
	path := filepath.Join(dir.Path(), "f")
	write := func() error { return os.WriteFile(path, []byte("content"), 0o600) }
	tests := []struct {
		name string
		do   func() error
		code fault.Code
	}{
		{"as it must be", write, ""},
		{"readable by others", func() error { return errors.Join(write(), os.Chmod(path, 0o640)) }, fault.ModeUnsafe},
		{"a link", func() error { return errors.Join(os.WriteFile(path+"2", nil, 0o600), os.Symlink("f2", path)) }, fault.LinkUnsafe},
		{"two links", func() error { return errors.Join(write(), os.Link(path, path+"3")) }, fault.LinkUnsafe},
		{"a directory", func() error { return os.Mkdir(path, 0o700) }, fault.LinkUnsafe},
		{"a FIFO", func() error { return syscall.Mkfifo(path, 0o600) }, fault.LinkUnsafe},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			defer os.RemoveAll(path)
			if err := test.do(); err != nil {
				t.Fatal(err)
			}
			data, err := ReadPrivate(dir, "f", 4)
			if test.code != "" {
				wantCode(t, err, test.code)
			} else if err != nil || string(data) != "conte" {
				t.Fatalf("got %q, %v; want one byte past the limit", data, err)
			}
		})
	}
	if _, err := ReadPrivate(dir, "none", 4); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

func TestPublishNewReplacesNothing(t *testing.T) {
	temps, dst := openHere(t), openHere(t)
	if err := PublishNew(temps, dst, "x", []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := PublishNew(temps, dst, "x", []byte("two")); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("got %v", err)
	}
	if data, err := ReadPrivate(dst, "x", 10); err != nil || string(data) != "one" {
		t.Fatalf("got %q, %v", data, err)
	}
	if names, err := temps.Names(); err != nil || len(names) != 0 {
		t.Fatalf("left %v, %v", names, err)
	}
}

// TestOtherFileSystem publishes and moves between two file systems, where no
// rename can.
func TestOtherFileSystem(t *testing.T) {
	shm := "/dev/shm"
	path, err := os.MkdirTemp(shm, "hawser-test-")
	if err != nil {
		t.Skipf("no second file system: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	other, err := dirfd.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	temps := openHere(t)
	a, _ := temps.Info()
	b, _ := other.Info()
	if a.Dev == b.Dev {
		t.Skip("no second file system")
	}
	if err := PublishNew(temps, other, "x", []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := PublishNew(temps, other, "x", []byte("two")); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("got %v", err)
	}
	if err := MoveNew(temps, other, "x", temps, "y"); err != nil {
		t.Fatal(err)
	}
	if data, err := ReadPrivate(temps, "y", 10); err != nil || string(data) != "one" {
		t.Fatalf("got %q, %v", data, err)
	}
	if err := MoveNew(temps, temps, "y", other, "x"); err != nil {
		t.Fatal(err)
	}
	if data, err := ReadPrivate(other, "x", 10); err != nil || string(data) != "one" {
		t.Fatalf("got %q, %v", data, err)
	}
	for _, dir := range []*dirfd.Dir{temps, other} {
		names, err := dir.Names()
		if err != nil || len(names) != map[*dirfd.Dir]int{temps: 0, other: 1}[dir] {
			t.Fatalf("%s: left %v, %v", dir.Path(), names, err)
		}
	}
}

func TestClearTemporaries(t *testing.T) {
	dir := openHere(t)
	for _, name := range []string{TempName(), "kept", ".kept"} {
		if err := os.WriteFile(filepath.Join(dir.Path(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	deep := filepath.Join(dir.Path(), TempName(), "x")
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(deep, 0o555); err != nil {
		t.Fatal(err)
	}
	if err := ClearTemporaries(dir, ""); err != nil {
		t.Fatal(err)
	}
	names, err := dir.Names()
	if err != nil || strings.Join(names, " ") != ".kept kept" {
		t.Fatalf("left %v, %v", names, err)
	}
}
