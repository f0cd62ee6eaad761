package tree

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/wire"
)

// temp returns a directory of the test's own whose path has no link.
func temp(t testing.TB) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return path
}

func open(t testing.TB, path string) *dirfd.Dir {
	t.Helper()
	dir, err := dirfd.Open(path)
	must(t, err)
	t.Cleanup(func() { dir.Close() })
	return dir
}

type failer interface {
	Helper()
	Fatal(...any)
}

func must(t failer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantCode fails unless err is the refusal wanted, in one line that names path.
func wantCode(t testing.TB, err error, code fault.Code, path string) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Fatalf("got %v (%s), want %s", err, fault.CodeOf(err), code)
	}
	if line := fault.Line(err); !strings.Contains(line, fault.Path(path)) || strings.ContainsAny(line, "\n\r") {
		t.Fatalf("%q does not name %s in one line", line, fault.Path(path))
	}
}

func write(t failer, path, content string, mode os.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o600))
	must(t, os.Chmod(path, mode))
}

// plain is a small package with an entry of each kind and the trap of the walk
// order.
func plain(t testing.TB) string {
	root := temp(t) + "/package"
	write(t, root+"/a/b", "inside", 0o600)
	write(t, root+"/a.txt", "beside", 0o644)
	write(t, root+"/bin/run", "#!/bin/sh\n", 0o755)
	must(t, os.MkdirAll(root+"/empty", 0o700))
	must(t, os.Chmod(root, 0o755))
	return root
}

func treeOf(t testing.TB, path string) *Tree {
	t.Helper()
	s, err := Scan(open(t, path), SourceRules())
	must(t, err)
	tree, err := s.Hash()
	must(t, err)
	return tree
}

// read is Verify without an opinion about the digest.
func read(dir *dirfd.Dir, rules Rules) (*Tree, error) {
	s, err := scan(dir, rules, true)
	if err != nil {
		return nil, err
	}
	return s.Hash()
}

// naiveDigest is the definition, by paths and whole files.
func naiveDigest(t failer, root string) wire.Digest {
	var text bytes.Buffer
	text.WriteString("firstmate-package-tree-v1\x00")
	var walk func(rel string)
	walk = func(rel string) {
		entries, err := os.ReadDir(filepath.Join(root, rel)) // sorted by name
		must(t, err)
		for _, e := range entries {
			path := strings.TrimPrefix(rel+"/"+e.Name(), "/")
			if e.IsDir() {
				fmt.Fprintf(&text, "D\x00%s\x00x\x00", path)
				walk(path)
				continue
			}
			info, err := e.Info()
			must(t, err)
			content, err := os.ReadFile(filepath.Join(root, path))
			must(t, err)
			mark := "-"
			if info.Mode()&0o111 != 0 {
				mark = "x"
			}
			fmt.Fprintf(&text, "F\x00%s\x00%s\x00%d\x00sha256:%x\x00", path, mark, len(content), sha256.Sum256(content))
		}
	}
	walk("")
	return wire.DigestOf(text.Bytes())
}

// TestVectors are packages whose digests another implementation of the contract
// computed.
func TestVectors(t *testing.T) {
	data, err := os.ReadFile("testdata/trees.json")
	must(t, err)
	var vectors []struct {
		Name    string
		Entries []struct {
			Path, Type    string
			Executable    bool
			ContentBase64 string `json:"content_base64"`
		}
		TreeDigest     wire.Digest `json:"tree_digest"`
		EntryCount     int         `json:"entry_count"`
		TotalBytes     int64       `json:"total_bytes"`
		ManifestSHA256 wire.Digest `json:"manifest_sha256"`
	}
	must(t, json.Unmarshal(data, &vectors))
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			root := temp(t)
			must(t, os.Chmod(root, 0o755))
			for _, e := range v.Entries {
				path := filepath.Join(root, e.Path)
				if e.Type == "directory" {
					must(t, os.MkdirAll(path, 0o755))
					continue
				}
				content, err := base64.StdEncoding.DecodeString(e.ContentBase64)
				must(t, err)
				mode := os.FileMode(0o644)
				if e.Executable {
					mode = 0o755
				}
				write(t, path, string(content), mode)
			}
			s, err := Scan(open(t, root), SourceRules())
			must(t, err)
			manifest, err := s.ReadFile("firstmate-extension.json", 65536)
			must(t, err)
			tree, err := s.Hash()
			must(t, err)
			if tree.Digest() != v.TreeDigest || tree.Count() != v.EntryCount || tree.Bytes() != v.TotalBytes {
				t.Errorf("%s, %d entries, %d bytes; want %s, %d, %d",
					tree.Digest(), tree.Count(), tree.Bytes(), v.TreeDigest, v.EntryCount, v.TotalBytes)
			}
			entry, ok := tree.Lookup("firstmate-extension.json")
			if !ok || entry.Digest != v.ManifestSHA256 || wire.DigestOf(manifest) != v.ManifestSHA256 {
				t.Errorf("manifest %+v", entry)
			}
		})
	}
	if len(vectors) == 0 {
		t.Error("no vectors")
	}
}

func TestEntriesInWalkOrder(t *testing.T) {
	root := plain(t)
	tree := treeOf(t, root)
	var got []string
	for e := range tree.Entries() {
		got = append(got, e.Path)
		if found, ok := tree.Lookup(e.Path); !ok || found != e {
			t.Errorf("Lookup(%q) = %+v, entry is %+v", e.Path, found, e)
		}
	}
	want := []string{"a", "a/b", "a.txt", "bin", "bin/run", "empty"}
	if !slices.Equal(got, want) || tree.Count() != len(want) {
		t.Errorf("%d entries %q, want %q", tree.Count(), got, want)
	}
	if tree.Digest() != naiveDigest(t, root) {
		t.Error("digest differs from the definition")
	}
	s, err := Scan(open(t, root), SourceRules())
	must(t, err)
	for e := range tree.Entries() {
		e.Digest = ""
		if found, ok := s.Lookup(e.Path); !ok || found != e {
			t.Errorf("scanned: Lookup(%q) = %+v, entry is %+v", e.Path, found, e)
		}
	}
	if e, ok := s.Lookup("absent"); ok {
		t.Errorf("scanned: %+v", e)
	}
	run, _ := tree.Lookup("bin/run")
	if want := (Entry{Path: "bin/run", Executable: true, Size: 10, Digest: wire.DigestOf([]byte("#!/bin/sh\n"))}); run != want {
		t.Errorf("%+v, want %+v", run, want)
	}
	for _, path := range []string{"", "/", "a/", "/a", "a//b", "../package/a", "a/b/c", "b"} {
		if e, ok := tree.Lookup(path); ok {
			t.Errorf("Lookup(%q) = %+v", path, e)
		}
	}
	for e := range tree.Entries() {
		if e.Path != "a" {
			t.Error("the walk went on after it was stopped")
		}
		break
	}
}

// TestModel builds random trees and compares every way to their digest with the
// definition, and the copy with the source.
func TestModel(t *testing.T) {
	base := temp(t)
	names := []string{"a", "a.txt", "a-", "ab", "A", "é", "z", ".hidden", "with space"}
	rapid.Check(t, func(t *rapid.T) {
		work, err := os.MkdirTemp(base, "")
		must(t, err)
		defer os.RemoveAll(work)
		root := work + "/source"
		must(t, os.Mkdir(root, 0o755))
		for range rapid.IntRange(0, 20).Draw(t, "entries") {
			path := filepath.Join(rapid.SliceOfN(rapid.SampledFrom(names), 1, 4).Draw(t, "path")...)
			if os.MkdirAll(root+"/"+filepath.Dir(path), 0o755) != nil {
				continue // below a file
			}
			if rapid.Bool().Draw(t, "directory") {
				os.Mkdir(root+"/"+path, 0o700)
				continue
			}
			// Small, and around the size of a buffer.
			size := rapid.OneOf(rapid.IntRange(0, 9), rapid.IntRange(128<<10-1, 128<<10+1)).Draw(t, "size")
			mode := rapid.SampledFrom([]os.FileMode{0o600, 0o644, 0o700, 0o755, 0o411}).Draw(t, "mode")
			if info, err := os.Lstat(root + "/" + path); err == nil && !info.Mode().IsRegular() {
				continue
			}
			os.Remove(root + "/" + path)
			write(t, root+"/"+path, strings.Repeat(path[:1], size), mode)
		}
		want := naiveDigest(t, root)

		source, err := dirfd.Open(root)
		must(t, err)
		defer source.Close()
		verified, err := Verify(source, SourceRules(), want)
		must(t, err)
		if verified.Digest() != want {
			t.Fatalf("Verify: %s, want %s", verified.Digest(), want)
		}
		_, err = Verify(source, SourceRules(), wire.DigestOf(nil))
		if !fault.Is(err, fault.IntegrityMismatch) {
			t.Fatalf("Verify of another digest: %v", err)
		}
		s, err := Scan(source, SourceRules())
		must(t, err)
		hashed, err := s.Hash()
		must(t, err)
		if hashed.Digest() != want || hashed.Count() != s.Count() || hashed.Bytes() != s.Bytes() {
			t.Fatalf("Hash: %s, want %s", hashed.Digest(), want)
		}

		entries := slices.Collect(hashed.Entries())
		slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
		if got := DigestOf(entries); got != want {
			t.Fatalf("DigestOf: %s, want %s", got, want)
		}

		work2, err := dirfd.Open(work)
		must(t, err)
		defer work2.Close()
		dst, err := work2.Mkdir("copy", 0o700)
		must(t, err)
		defer dst.Close()
		copied, err := s.CopyTo(dst, Modes{Dir: 0o755, File: 0o640, Executable: 0o751})
		must(t, err)
		if copied.Digest() != want {
			t.Fatalf("CopyTo: %s, want %s", copied.Digest(), want)
		}
		must(t, dst.Chmod(0o755))
		_, err = Verify(dst, Rules{Dir: []uint32{0o755}, File: []uint32{0o640, 0o751}}, want)
		must(t, err)
	})
}

// refusals are changes to the plain package that make it none.
var refusals = []struct {
	name   string
	change func(t testing.TB, root string)
	code   fault.Code
	path   string // below the root, that the message names
	root   bool   // only root can make it
}{
	{"link to a file", func(t testing.TB, root string) { must(t, os.Symlink("a.txt", root+"/link")) }, fault.LinkUnsafe, "link", false},
	{"link to a directory", func(t testing.TB, root string) { must(t, os.Symlink("a", root+"/bin/link")) }, fault.LinkUnsafe, "bin/link", false},
	{"dangling link", func(t testing.TB, root string) { must(t, os.Symlink("nowhere", root+"/link")) }, fault.LinkUnsafe, "link", false},
	{"hard link", func(t testing.TB, root string) { must(t, os.Link(root+"/a/b", root+"/a/c")) }, fault.LinkUnsafe, "a/b", false},
	{"hard link to outside", func(t testing.TB, root string) { must(t, os.Link(root+"/a/b", root+"/../b")) }, fault.LinkUnsafe, "a/b", false},
	{"FIFO", func(t testing.TB, root string) { must(t, unix.Mkfifo(root+"/fifo", 0o600)) }, fault.PackageInvalid, "fifo", false},
	{"writable by the group", func(t testing.TB, root string) { must(t, os.Chmod(root+"/a/b", 0o664)) }, fault.ModeUnsafe, "a/b", false},
	{"writable by others", func(t testing.TB, root string) { must(t, os.Chmod(root+"/a/b", 0o602)) }, fault.ModeUnsafe, "a/b", false},
	{"directory writable by the group", func(t testing.TB, root string) { must(t, os.Chmod(root+"/empty", 0o770)) }, fault.ModeUnsafe, "empty", false},
	{"root writable by others", func(t testing.TB, root string) { must(t, os.Chmod(root, 0o757)) }, fault.ModeUnsafe, "", false},
	{"name that is not UTF-8", func(t testing.TB, root string) { write(t, root+"/bad\xff", "", 0o600) }, fault.PackageInvalid, "bad\xff", false},
	{"name with a line feed", func(t testing.TB, root string) { write(t, root+"/a/forged\nerror[io]: ", "", 0o600) }, fault.PackageInvalid, "a/forged\nerror[io]: ", false},
	{"name with a DEL", func(t testing.TB, root string) { must(t, os.Mkdir(root+"/del\x7f", 0o700)) }, fault.PackageInvalid, "del\x7f", false},
	{"file of another user", func(t testing.TB, root string) { must(t, os.Chown(root+"/a/b", 65533, -1)) }, fault.OwnerMismatch, "a/b", true},
	{"directory of another user", func(t testing.TB, root string) { must(t, os.Chown(root+"/a", 65533, -1)) }, fault.OwnerMismatch, "a", true},
	{"root of another user", func(t testing.TB, root string) { must(t, os.Chown(root, 65533, -1)) }, fault.OwnerMismatch, "", true},
	{"device", func(t testing.TB, root string) { must(t, unix.Mknod(root+"/null", unix.S_IFCHR|0o600, 1<<8|3)) }, fault.PackageInvalid, "null", true},
}

func TestRefusals(t *testing.T) {
	for _, c := range refusals {
		t.Run(c.name, func(t *testing.T) {
			if c.root && os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			root := plain(t)
			c.change(t, root)
			dir := open(t, root)
			path := strings.TrimSuffix(root+"/"+c.path, "/")
			_, err := Scan(dir, SourceRules())
			wantCode(t, err, c.code, path)
			_, err = read(dir, SourceRules())
			wantCode(t, err, c.code, path)
		})
	}
}

func TestSafeModes(t *testing.T) {
	root := plain(t)
	want := treeOf(t, root).Digest()
	for _, mode := range []os.FileMode{0o700, 0o500, 0o711, 0o755 | os.ModeSetgid, 0o755 | os.ModeSticky} {
		must(t, os.Chmod(root, mode))
		must(t, os.Chmod(root+"/a", mode))
		must(t, os.Chmod(root+"/bin/run", mode&0o777|os.ModeSetuid))
		if got := treeOf(t, root).Digest(); got != want {
			t.Errorf("mode %v changes the digest", mode)
		}
	}
	must(t, os.Chmod(root, 0o755))
}

// TestRules covers exact modes, for what is installed.
func TestRules(t *testing.T) {
	rules := Rules{Dir: []uint32{0o755}, File: []uint32{0o644, 0o755}}
	root := temp(t)
	must(t, os.Chmod(root, 0o755))
	write(t, root+"/dir/file", "", 0o644)
	write(t, root+"/run", "", 0o755)
	dir := open(t, root)
	tree, err := read(dir, rules)
	must(t, err)
	for path, mode := range map[string]os.FileMode{
		"dir/file": 0o444, "run": 0o755 | os.ModeSetuid, "dir": 0o700, "": 0o755 | os.ModeSetgid,
	} {
		path := filepath.Join(root, path)
		was, err := os.Lstat(path)
		must(t, err)
		must(t, os.Chmod(path, mode))
		_, err = Scan(dir, rules)
		wantCode(t, err, fault.ModeUnsafe, path)
		_, err = read(dir, rules)
		wantCode(t, err, fault.ModeUnsafe, path)
		if !strings.HasPrefix(root+"/dir/file", path) {
			must(t, tree.CheckFile(dir, rules, "dir/file"))
		} else {
			wantCode(t, tree.CheckFile(dir, rules, "dir/file"), fault.ModeUnsafe, path)
		}
		must(t, os.Chmod(path, was.Mode()))
	}
}

func TestEntryLimit(t *testing.T) {
	root := temp(t)
	must(t, os.Chmod(root, 0o755))
	for i := range 64 {
		must(t, os.Mkdir(fmt.Sprintf("%s/%02d", root, i), 0o700))
		for j := range 63 {
			must(t, os.WriteFile(fmt.Sprintf("%s/%02d/%02d", root, i, j), nil, 0o600))
		}
	}
	if tree := treeOf(t, root); tree.Count() != MaxEntries || tree.Digest() != naiveDigest(t, root) {
		t.Errorf("%d entries", tree.Count())
	}
	for _, extra := range []string{root + "/zz", root + "/00/a"} {
		must(t, os.WriteFile(extra, nil, 0o600))
		_, err := Scan(open(t, root), SourceRules())
		wantCode(t, err, fault.PackageOversized, root)
		must(t, os.Remove(extra))
	}
}

func TestByteLimit(t *testing.T) {
	root := plain(t)
	dir := open(t, root)
	rest := MaxBytes - treeOf(t, root).Bytes()
	must(t, os.WriteFile(root+"/big", nil, 0o600))
	must(t, os.Truncate(root+"/big", rest))
	if tree := treeOf(t, root); tree.Bytes() != MaxBytes {
		t.Errorf("%d bytes", tree.Bytes())
	}
	for _, size := range []int64{rest + 1, 1 << 42} {
		must(t, os.Truncate(root+"/big", size))
		_, err := Scan(dir, SourceRules())
		wantCode(t, err, fault.PackageOversized, root)
		_, err = read(dir, SourceRules())
		wantCode(t, err, fault.PackageOversized, root)
	}
}

// TestChangedBetween covers whatever can happen between the scan and the
// reading of the content.
func TestChangedBetween(t *testing.T) {
	outside := temp(t)
	write(t, outside+"/b", "inside", 0o600)
	swap := func(t testing.TB, path string, make func()) {
		must(t, os.Rename(path, outside+"/old"))
		t.Cleanup(func() { os.RemoveAll(outside + "/old") })
		make()
	}
	for _, c := range []struct {
		name   string
		change func(t testing.TB, root string)
		code   fault.Code
		path   string
	}{
		{"content", func(t testing.TB, root string) { write(t, root+"/a/b", "INSIDE", 0o600) }, fault.IntegrityMismatch, "a/b"},
		{"content, with the time put back", func(t testing.TB, root string) {
			info, err := os.Stat(root + "/a/b")
			must(t, err)
			write(t, root+"/a/b", "INSIDE", 0o600)
			must(t, os.Chtimes(root+"/a/b", info.ModTime(), info.ModTime()))
		}, fault.IntegrityMismatch, "a/b"},
		{"grown", func(t testing.TB, root string) { must(t, os.Truncate(root+"/a.txt", 1<<40)) }, fault.IntegrityMismatch, "a.txt"},
		{"cut short", func(t testing.TB, root string) { must(t, os.Truncate(root+"/a.txt", 1)) }, fault.IntegrityMismatch, "a.txt"},
		{"mode", func(t testing.TB, root string) { must(t, os.Chmod(root+"/a.txt", 0o755)) }, fault.IntegrityMismatch, "a.txt"},
		{"removed", func(t testing.TB, root string) { must(t, os.Remove(root+"/a.txt")) }, fault.IntegrityMismatch, "a.txt"},
		{"another file", func(t testing.TB, root string) {
			swap(t, root+"/a.txt", func() { write(t, root+"/a.txt", "beside", 0o644) })
		}, fault.IntegrityMismatch, "a.txt"},
		{"a link for a file", func(t testing.TB, root string) {
			swap(t, root+"/a.txt", func() { must(t, os.Symlink(outside+"/old", root+"/a.txt")) })
		}, fault.LinkUnsafe, "a.txt"},
		{"a FIFO for a file", func(t testing.TB, root string) {
			swap(t, root+"/a.txt", func() { must(t, unix.Mkfifo(root+"/a.txt", 0o600)) })
		}, fault.IntegrityMismatch, "a.txt"},
		{"a link for a directory", func(t testing.TB, root string) {
			swap(t, root+"/a", func() { must(t, os.Symlink(outside, root+"/a")) })
		}, fault.PathUnsafe, "a"},
		{"another directory", func(t testing.TB, root string) {
			swap(t, root+"/a", func() { write(t, root+"/a/b", "inside", 0o600) })
		}, fault.IntegrityMismatch, "a"},
		{"a file for a directory", func(t testing.TB, root string) {
			swap(t, root+"/a", func() { write(t, root+"/a", "inside", 0o600) })
		}, fault.IntegrityMismatch, "a"},
		{"one more entry", func(t testing.TB, root string) { write(t, root+"/a/c", "", 0o600) }, fault.IntegrityMismatch, "a"},
		{"a directory removed", func(t testing.TB, root string) { must(t, os.Remove(root+"/empty")) }, fault.IntegrityMismatch, "empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := plain(t)
			s, err := Scan(open(t, root), SourceRules())
			must(t, err)
			c.change(t, root)
			for _, read := range []func() (*Tree, error){s.Hash, s.Load} {
				_, err = read()
				wantCode(t, err, c.code, root+"/"+c.path)
			}
			if c.path == "a" || c.path == "a/b" {
				_, err = s.ReadFile("a/b", 100)
				wantCode(t, err, c.code, root+"/"+c.path)
			}
		})
	}
}

// TestSwappedWhileRead swaps a directory for another one, and for a link to it,
// again and again while the tree is read: what is read is either of the two
// trees, or refused, and never a mixture that reaches through the link.
func TestSwappedWhileRead(t *testing.T) {
	root := plain(t)
	other := temp(t) + "/other"
	write(t, other+"/b", "a secret outside of the package", 0o600)
	want := treeOf(t, root).Digest()
	dir := open(t, root)
	parent := open(t, filepath.Dir(root))

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			os.Rename(root+"/a", parent.Path()+"/aside")
			os.Symlink(other, root+"/a")
			os.Remove(root + "/a")
			os.Rename(parent.Path()+"/aside", root+"/a")
			runtime.Gosched()
		}
	}()
	refused := 0
	for range 300 {
		var tree *Tree
		s, err := Scan(dir, SourceRules())
		if err == nil {
			tree, err = s.Hash()
		}
		switch fault.CodeOf(err) {
		case fault.LinkUnsafe, fault.PathUnsafe, fault.IntegrityMismatch:
			refused++
			continue
		}
		must(t, err)
		// Without the directory it is a tree too: that of the moment between.
		if _, ok := tree.Lookup("a"); ok && tree.Digest() != want {
			t.Fatalf("read a tree that never was: %v", slices.Collect(tree.Entries()))
		}
	}
	close(stop)
	<-stopped
	t.Logf("refused %d of 300", refused)
}

// TestReadFileIsHeld: what the caller has judged is what is hashed and copied.
func TestReadFileIsHeld(t *testing.T) {
	root := plain(t)
	want := treeOf(t, root)
	s, err := Scan(open(t, root), SourceRules())
	must(t, err)
	for range 2 {
		content, err := s.ReadFile("a/b", 6)
		must(t, err)
		if string(content) != "inside" {
			t.Errorf("read %q", content)
		}
	}
	// The file is not opened again, so it can even be gone.
	must(t, os.WriteFile(root+"/a/b", []byte("other!"), 0o600))
	dst, err := open(t, temp(t)).Mkdir("copy", 0o700)
	must(t, err)
	defer dst.Close()
	tree, err := s.CopyTo(dst, Modes{0o700, 0o600, 0o700})
	must(t, err)
	if tree.Digest() != want.Digest() {
		t.Error("the digest is not of the bytes that were judged")
	}
	if content, err := os.ReadFile(dst.Path() + "/a/b"); err != nil || string(content) != "inside" {
		t.Errorf("copied %q, %v", content, err)
	}
}

// TestLoad: what is loaded is what is hashed, and stays that.
func TestLoad(t *testing.T) {
	root := plain(t)
	for i := range 40 { // more than one goroutine reads at once
		write(t, fmt.Sprintf("%s/many/%02d", root, i), strings.Repeat(fmt.Sprint(i), 10_000), 0o600)
	}
	want := treeOf(t, root)
	s, err := Scan(open(t, root), SourceRules())
	must(t, err)
	loaded, err := s.Load()
	must(t, err)
	if loaded.Digest() != want.Digest() {
		t.Error("the digest is another one")
	}
	must(t, os.RemoveAll(root))
	for e := range loaded.Entries() {
		if e.Dir {
			continue
		}
		content, err := s.ReadFile(e.Path, e.Size)
		must(t, err)
		if wire.DigestOf(content) != e.Digest {
			t.Errorf("%s holds something else", e.Path)
		}
	}
}

func TestReadFileLimit(t *testing.T) {
	root := plain(t)
	s, err := Scan(open(t, root), SourceRules())
	must(t, err)
	if content, err := s.ReadFile("a.txt", 5); err != nil || len(content) != 6 {
		t.Errorf("over the limit: %d bytes, %v", len(content), err)
	}
	if content, err := s.ReadFile("a.txt", 2); err != nil || len(content) != 3 {
		t.Errorf("far over the limit: %d bytes, %v", len(content), err)
	}
	for _, path := range []string{"", "a", "absent", "a/absent", "../package/a.txt", "a.txt/x"} {
		if _, err := s.ReadFile(path, 100); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("ReadFile(%q): %v", path, err)
		}
	}
	must(t, os.Remove(root+"/a.txt"))
	_, err = s.Hash()
	wantCode(t, err, fault.IntegrityMismatch, root+"/a.txt")
}

func TestCheckFile(t *testing.T) {
	root := plain(t)
	dir := open(t, root)
	tree := treeOf(t, root)
	must(t, tree.CheckFile(dir, SourceRules(), "bin/run"))
	content, err := tree.ReadFile(dir, SourceRules(), "a/b", 6)
	must(t, err)
	if string(content) != "inside" {
		t.Errorf("read %q", content)
	}
	_, err = tree.ReadFile(dir, SourceRules(), "a/b", 5)
	wantCode(t, err, fault.PackageOversized, root+"/a/b")
	for _, path := range []string{"a", "", "absent", "a.txt/x"} {
		wantCode(t, tree.CheckFile(dir, SourceRules(), path), fault.IntegrityMismatch, strings.TrimSuffix(root+"/"+path, "/"))
	}

	for _, c := range []struct {
		name   string
		change func(t testing.TB)
		code   fault.Code
		path   string
	}{
		{"same size", func(t testing.TB) { write(t, root+"/a/b", "INSIDE", 0o600) }, fault.IntegrityMismatch, "a/b"},
		{"longer", func(t testing.TB) { write(t, root+"/a/b", "inside.", 0o600) }, fault.IntegrityMismatch, "a/b"},
		{"executable", func(t testing.TB) { must(t, os.Chmod(root+"/a/b", 0o700)) }, fault.IntegrityMismatch, "a/b"},
		{"writable", func(t testing.TB) { must(t, os.Chmod(root+"/a/b", 0o622)) }, fault.ModeUnsafe, "a/b"},
		{"writable directory", func(t testing.TB) { must(t, os.Chmod(root+"/a", 0o722)) }, fault.ModeUnsafe, "a"},
		{"writable root", func(t testing.TB) { must(t, os.Chmod(root, 0o722)) }, fault.ModeUnsafe, ""},
		{"hard link", func(t testing.TB) { must(t, os.Link(root+"/a/b", root+"/second")) }, fault.LinkUnsafe, "a/b"},
		{"link", func(t testing.TB) {
			must(t, os.Rename(root+"/a/b", root+"/a/c"))
			must(t, os.Symlink("c", root+"/a/b"))
		}, fault.LinkUnsafe, "a/b"},
		{"link on the way", func(t testing.TB) {
			must(t, os.Rename(root+"/a", root+"/real"))
			must(t, os.Symlink("real", root+"/a"))
		}, fault.PathUnsafe, "a"},
		{"gone", func(t testing.TB) { must(t, os.RemoveAll(root+"/a")) }, fault.IntegrityMismatch, "a"},
	} {
		c.change(t)
		path := strings.TrimSuffix(root+"/"+c.path, "/")
		wantCode(t, tree.CheckFile(dir, SourceRules(), "a/b"), c.code, path)
		_, err := tree.ReadFile(dir, SourceRules(), "a/b", 100)
		wantCode(t, err, c.code, path)
		// Put everything back.
		must(t, os.Chmod(root, 0o755))
		must(t, os.RemoveAll(root+"/a"))
		os.Remove(root + "/second")
		write(t, root+"/a/b", "inside", 0o600)
		must(t, tree.CheckFile(dir, SourceRules(), "a/b"))
	}
}

// TestDeep: depth costs descriptors and nothing else; when they run out the
// refusal says so.
func TestDeep(t *testing.T) {
	const levels = 2000
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if limit.Max < 2*levels+100 {
		t.Skip("may not open enough files")
	}
	root := temp(t)
	must(t, os.Chmod(root, 0o755))
	dir := open(t, root)
	for at, i := dir, 0; i < levels; i++ {
		sub, err := at.Mkdir(strings.Repeat("d", 100), 0o700)
		must(t, err)
		t.Cleanup(func() { sub.Close() })
		at = sub
	}
	s, err := Scan(dir, SourceRules())
	must(t, err)
	dst, err := open(t, temp(t)).Mkdir("copy", 0o700)
	must(t, err)
	defer dst.Close()
	tree, err := s.CopyTo(dst, Modes{0o755, 0o644, 0o755})
	must(t, err)
	if again, err := read(dst, Rules{Dir: []uint32{0o755, 0o700}}); err != nil || again.Digest() != tree.Digest() {
		t.Errorf("the copy: %v", err)
	}

	var last int
	for e := range tree.Entries() {
		last = len(e.Path)
	}
	if want := levels*101 - 1; last != want {
		t.Errorf("the deepest path has %d bytes, want %d", last, want)
	}

	low := limit
	low.Cur = levels + 500 // those held above, and not as many again
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	_, err = Scan(dir, SourceRules())
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	wantCode(t, err, fault.IO, root)
	if !errors.Is(err, syscall.EMFILE) {
		t.Error(err)
	}
}

// TestOneProcessor: with GOMAXPROCS 1 everything happens on the calling
// goroutine, so that one thread makes all the system calls.
func TestOneProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	readByThread := func() (n int64) {
		data, err := os.ReadFile("/proc/thread-self/io")
		if err != nil {
			t.Skip(err)
		}
		_, err = fmt.Sscanf(string(data), "rchar: %d", &n)
		must(t, err)
		return n
	}
	root := plain(t)
	write(t, root+"/big", strings.Repeat("x", 1<<20), 0o600)
	s, err := Scan(open(t, root), SourceRules())
	must(t, err)
	before := readByThread()
	tree, err := s.Hash()
	must(t, err)
	if read := readByThread() - before; read < tree.Bytes() {
		t.Errorf("the calling thread read %d of %d bytes", read, tree.Bytes())
	}
	if tree.Digest() != naiveDigest(t, root) {
		t.Error("digest differs from the definition")
	}
}

// TestFailedWrites: a copy that cannot be written is refused with the system's
// words.
func TestFailedWrites(t *testing.T) {
	root := plain(t)
	s, err := Scan(open(t, root), SourceRules())
	must(t, err)
	for name, make := range map[string]func(dst string){
		"a":     func(path string) { must(t, os.Mkdir(path, 0o700)) },
		"a.txt": func(path string) { write(t, path, "there already", 0o600) },
	} {
		dst, err := open(t, temp(t)).Mkdir("copy", 0o700)
		must(t, err)
		make(dst.Path() + "/" + name)
		_, err = s.CopyTo(dst, Modes{0o700, 0o600, 0o700})
		wantCode(t, err, fault.IO, dst.Path()+"/"+name)
		if !strings.HasSuffix(err.Error(), ": file exists") {
			t.Error(err)
		}
		must(t, dst.Close())
	}
}

func TestUnreadable(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads everything")
	}
	root := plain(t)
	dir := open(t, root)
	must(t, os.Chmod(root+"/a.txt", 0o200))
	s, err := Scan(dir, SourceRules())
	must(t, err)
	_, err = s.Hash()
	wantCode(t, err, fault.IO, root+"/a.txt")
	// What the rules say comes first.
	_, err = read(dir, Rules{File: []uint32{0o444, 0o600, 0o755}})
	wantCode(t, err, fault.ModeUnsafe, root+"/a.txt")
	must(t, os.Chmod(root+"/a.txt", 0o600))

	must(t, os.Chmod(root+"/a", 0))
	defer os.Chmod(root+"/a", 0o700)
	_, err = Scan(dir, SourceRules())
	wantCode(t, err, fault.IO, root+"/a")
}

// TestKeepsNothingOpen counts the descriptors that refusals leave behind.
func TestKeepsNothingOpen(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/dev/fd")
		must(t, err)
		return len(entries)
	}
	root := plain(t)
	dir := open(t, root)
	s, err := Scan(dir, SourceRules())
	must(t, err)
	must(t, os.WriteFile(root+"/a/b", []byte("changed"), 0o600))
	must(t, os.Mkdir(root+"/z", 0o777))
	must(t, os.Chmod(root+"/z", 0o777))
	tmp := open(t, temp(t))
	before := count()
	for range 20 {
		s.Hash()
		s.ReadFile("a/b", 100)
		Scan(dir, SourceRules())
		dst, err := tmp.Mkdir("copy", 0o700)
		must(t, err)
		s.CopyTo(dst, Modes{0o700, 0o600, 0o700})
		must(t, dst.Close())
		must(t, tmp.RemoveAll("copy"))
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
