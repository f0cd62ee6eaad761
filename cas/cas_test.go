package cas

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/wire"
	"hawser/tree"
)

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

func open(t testing.TB, path string) *dirfd.Dir {
	t.Helper()
	dir, err := dirfd.Open(path)
	must(t, err)
	t.Cleanup(func() { dir.Close() })
	return dir
}

// temp returns a directory of the test's own whose path has no link, and gives
// back the permission to remove what was installed there.
func temp(t testing.TB) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	t.Cleanup(func() {
		dir, err := dirfd.Open(path)
		must(t, err)
		defer dir.Close()
		names, err := dir.Names()
		must(t, err)
		for _, name := range names {
			must(t, dir.RemoveAll(name))
		}
	})
	return path
}

// store returns the open directory <id>/<version> of an empty store.
func store(t testing.TB) *dirfd.Dir {
	t.Helper()
	path := temp(t) + "/org.example.feed/1.0.0"
	must(t, os.MkdirAll(path, 0o700))
	return open(t, path)
}

func put(t failer, path, content string, mode os.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	os.Chmod(path, 0o600) // where it stands already
	must(t, os.WriteFile(path, []byte(content), 0o600))
	must(t, os.Chmod(path, mode))
}

// source is a small package with the modes that an installed one must not have.
func source(t testing.TB) (root string, scanned *tree.Scanned) {
	t.Helper()
	root = temp(t) + "/package"
	put(t, root+"/bin/run", "#!/bin/sh\n", 0o700)
	put(t, root+"/manifest.json", "{}", 0o600)
	put(t, root+"/lib/deep/data", "data", 0o644)
	must(t, os.Mkdir(root+"/empty", 0o700))
	must(t, os.Chmod(root, 0o755))
	return root, scan(t, root)
}

func scan(t testing.TB, root string) *tree.Scanned {
	t.Helper()
	scanned, err := tree.Scan(open(t, root), tree.SourceRules())
	must(t, err)
	return scanned
}

func install(t testing.TB, versions *dirfd.Dir, source *tree.Scanned) *Package {
	t.Helper()
	pkg, err := Install(versions, source)
	must(t, err)
	t.Cleanup(func() { pkg.Close() })
	return pkg
}

func wantCode(t testing.TB, err error, code fault.Code, path string) {
	t.Helper()
	if !fault.Is(err, code) || !strings.Contains(fault.Line(err), path) {
		t.Fatalf("got %v (%s), want %s naming %s", err, fault.CodeOf(err), code, path)
	}
}

// wantNames fails unless exactly these names are in the directory.
func wantNames(t testing.TB, dir *dirfd.Dir, want ...string) {
	t.Helper()
	got, err := dir.Names()
	must(t, err)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("%s holds %q, want %q", dir.Path(), got, want)
	}
}

func wantMode(t testing.TB, path string, want os.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	if got := info.Mode() &^ os.ModeDir; got != want {
		t.Errorf("%s has mode %v, want %v", path, got, want)
	}
}

func TestInstall(t *testing.T) {
	for _, umask := range []int{0, 0o002, 0o077} {
		t.Run(fmt.Sprintf("umask %03o", umask), func(t *testing.T) {
			versions := store(t)
			_, src := source(t)
			must(t, versions.Chmod(0o2700)) // directories inherit the set-group bit
			old := unix.Umask(umask)
			pkg, err := Install(versions, src)
			unix.Umask(old)
			must(t, err)
			defer pkg.Close()

			name := pkg.Tree().Digest().Hex()
			wantNames(t, versions, name)
			if pkg.Root() != versions.Path()+"/"+name || pkg.Dir().Path() != pkg.Root() {
				t.Errorf("root is %s", pkg.Root())
			}
			for _, dir := range []string{"", "/bin", "/lib", "/lib/deep", "/empty"} {
				wantMode(t, pkg.Root()+dir, 0o555)
			}
			wantMode(t, pkg.Root()+"/bin/run", 0o555)
			wantMode(t, pkg.Root()+"/manifest.json", 0o444)
			wantMode(t, pkg.Root()+"/lib/deep/data", 0o444)
			hashed, err := src.Hash()
			must(t, err)
			if hashed.Digest() != pkg.Tree().Digest() {
				t.Error("installed something else than the source")
			}

			opened, err := Open(versions, pkg.Tree().Digest())
			must(t, err)
			defer opened.Close()
			if !slices.Equal(slices.Collect(opened.Tree().Entries()), slices.Collect(pkg.Tree().Entries())) {
				t.Error("opened something else than was installed")
			}
			for _, p := range []*Package{pkg, opened} {
				must(t, p.Verify())
				must(t, p.CheckFile("bin/run"))
				content, err := p.ReadFile("manifest.json", 2)
				must(t, err)
				if string(content) != "{}" {
					t.Errorf("read %q", content)
				}
			}
			_, err = opened.ReadFile("manifest.json", 1)
			wantCode(t, err, fault.PackageOversized, "manifest.json")
		})
	}
}

func TestInstallAgain(t *testing.T) {
	versions := store(t)
	root, src := source(t)
	first := install(t, versions, src)
	before, err := first.Dir().Info()
	must(t, err)
	second := install(t, versions, src)
	after, err := second.Dir().Info()
	must(t, err)
	if before != after {
		t.Error("the standing package was replaced")
	}
	wantNames(t, versions, first.Tree().Digest().Hex())

	// The store holds many packages of one version.
	put(t, root+"/more", "more", 0o600)
	other := install(t, versions, scan(t, root))
	wantNames(t, versions, first.Tree().Digest().Hex(), other.Tree().Digest().Hex())
}

// damages are what a standing package may have suffered.
var damages = []struct {
	name   string
	damage func(t testing.TB, root string)
	code   fault.Code
	path   string // below the root, that the message names
	root   bool   // only root can do it
}{
	{"content", func(t testing.TB, root string) { put(t, root+"/bin/run", "#!/bin/zsh", 0o555) }, fault.IntegrityMismatch, "", false},
	{"one more file", func(t testing.TB, root string) { put(t, root+"/lib/more", "", 0o444) }, fault.IntegrityMismatch, "", false},
	{"one file less", func(t testing.TB, root string) { must(t, os.Remove(root+"/lib/deep/data")) }, fault.IntegrityMismatch, "", false},
	{"one directory less", func(t testing.TB, root string) { must(t, os.Remove(root+"/empty")) }, fault.IntegrityMismatch, "", false},
	{"executable", func(t testing.TB, root string) { must(t, os.Chmod(root+"/manifest.json", 0o555)) }, fault.IntegrityMismatch, "", false},
	{"writable file", func(t testing.TB, root string) { must(t, os.Chmod(root+"/bin/run", 0o755)) }, fault.ModeUnsafe, "/bin/run", false},
	{"narrow file", func(t testing.TB, root string) { must(t, os.Chmod(root+"/bin/run", 0o500)) }, fault.ModeUnsafe, "/bin/run", false},
	{"set-user file", func(t testing.TB, root string) { must(t, os.Chmod(root+"/bin/run", 0o555|os.ModeSetuid)) }, fault.ModeUnsafe, "/bin/run", false},
	{"link", func(t testing.TB, root string) {
		must(t, os.Rename(root+"/bin/run", root+"/bin/real"))
		must(t, os.Symlink("real", root+"/bin/run"))
	}, fault.LinkUnsafe, "/bin/run", false},
	{"hard link", func(t testing.TB, root string) { must(t, os.Link(root+"/bin/run", root+"/../outside")) }, fault.LinkUnsafe, "/bin/run", false},
	{"FIFO", func(t testing.TB, root string) { must(t, unix.Mkfifo(root+"/lib/fifo", 0o444)) }, fault.PackageInvalid, "/lib/fifo", false},
	{"another user's", func(t testing.TB, root string) { must(t, os.Chown(root+"/bin/run", 65533, -1)) }, fault.OwnerMismatch, "/bin/run", true},
}

// damage does something to a standing package and seals it again.
func damage(t testing.TB, root string, do func(testing.TB, string)) {
	t.Helper()
	var dirs []string
	must(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
			err = os.Chmod(path, 0o755)
		}
		return err
	}))
	do(t, root)
	for _, dir := range dirs {
		os.Chmod(dir, 0o555) // it may be gone
	}
}

func TestDamaged(t *testing.T) {
	for _, c := range damages {
		t.Run(c.name, func(t *testing.T) {
			if c.root && os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			versions := store(t)
			_, src := source(t)
			pkg := install(t, versions, src)
			digest := pkg.Tree().Digest()
			damage(t, pkg.Root(), c.damage)

			_, err := Open(versions, digest)
			wantCode(t, err, c.code, pkg.Root()+c.path)
			wantCode(t, pkg.Verify(), c.code, pkg.Root()+c.path)
			if c.path == "/bin/run" {
				wantCode(t, pkg.CheckFile("bin/run"), c.code, pkg.Root()+c.path)
			}

			// Installing over it refuses, changes nothing, and says the way out.
			names, err := versions.Names()
			must(t, err)
			_, err = Install(versions, src)
			wantCode(t, err, fault.IntegrityMismatch, "mv "+pkg.Root()+" "+versions.Path()+"/.damaged."+digest.Hex()+".1")
			wantNames(t, versions, names...)

			must(t, MoveAside(versions, digest))
			_, err = Open(versions, digest)
			wantCode(t, err, fault.PackageMissing, pkg.Root())
			must(t, install(t, versions, src).Verify())
			if _, err := versions.Lstat(".damaged." + digest.Hex() + ".1"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDamagedModesOfDirectories(t *testing.T) {
	versions := store(t)
	_, src := source(t)
	pkg := install(t, versions, src)
	for _, dir := range []string{"", "/lib/deep"} {
		for _, mode := range []os.FileMode{0o755, 0o700, 0o500, 0o555 | os.ModeSetgid, 0o555 | os.ModeSticky} {
			must(t, os.Chmod(pkg.Root()+dir, mode))
			_, err := Open(versions, pkg.Tree().Digest())
			wantCode(t, err, fault.ModeUnsafe, pkg.Root()+dir)
			wantCode(t, pkg.Verify(), fault.ModeUnsafe, pkg.Root()+dir)
		}
		must(t, os.Chmod(pkg.Root()+dir, 0o555))
	}
	must(t, pkg.Verify())
}

func TestOpenNothing(t *testing.T) {
	versions := store(t)
	digest := wire.DigestOf([]byte("anything"))
	path := versions.Path() + "/" + digest.Hex()
	_, err := Open(versions, digest)
	wantCode(t, err, fault.PackageMissing, path)
	must(t, os.Symlink(".", path))
	_, err = Open(versions, digest)
	wantCode(t, err, fault.PathUnsafe, path)
	must(t, os.Remove(path))
	put(t, path, "", 0o444)
	_, err = Open(versions, digest)
	wantCode(t, err, fault.PackageInvalid, path)
	if err := MoveAside(versions, wire.DigestOf(nil)); err != nil {
		t.Errorf("moving nothing aside: %v", err)
	}
}

// TestReplacedRoot: what is verified by descriptor must also be what the path
// leads to, because a program is started by its path.
func TestReplacedRoot(t *testing.T) {
	versions := store(t)
	_, src := source(t)
	pkg := install(t, versions, src)
	must(t, MoveAside(versions, pkg.Tree().Digest()))
	check := func(code fault.Code) {
		t.Helper()
		wantCode(t, pkg.Verify(), code, pkg.Root())
		wantCode(t, pkg.CheckFile("bin/run"), code, pkg.Root())
		_, err := pkg.ReadFile("bin/run", 100)
		wantCode(t, err, code, pkg.Root())
	}
	check(fault.PackageMissing)
	must(t, os.Symlink(".damaged."+pkg.Tree().Digest().Hex()+".1", pkg.Root()))
	check(fault.PathUnsafe)
	must(t, os.Remove(pkg.Root()))
	install(t, versions, src)
	check(fault.PathUnsafe) // the same content, another directory
}

func TestMoveAsideKeepsAll(t *testing.T) {
	versions := store(t)
	_, src := source(t)
	var want []string
	for n := 1; n <= 3; n++ {
		digest := install(t, versions, src).Tree().Digest()
		must(t, MoveAside(versions, digest))
		must(t, MoveAside(versions, digest))
		want = append(want, asideName(digest, n))
		wantNames(t, versions, want...)
	}
}

func TestCollect(t *testing.T) {
	versions := store(t)
	_, src := source(t)
	pkg := install(t, versions, src)
	leave := func() {
		must(t, os.MkdirAll(versions.Path()+"/.hawser.0123/lib/deep", 0o755))
		put(t, versions.Path()+"/.hawser.0123/lib/deep/data", "", 0o444)
		must(t, os.Chmod(versions.Path()+"/.hawser.0123/lib/deep", 0o555))
	}
	name := pkg.Tree().Digest().Hex()
	put(t, versions.Path()+"/.other-host.tmp", "", 0o600)
	leave()
	packages := open(t, filepath.Dir(filepath.Dir(versions.Path())))
	put(t, packages.Path()+"/README", "", 0o600)
	must(t, os.Symlink("org.example.feed", packages.Path()+"/link"))
	must(t, Collect(packages))
	wantNames(t, versions, name, ".other-host.tmp")
	leave()
	must(t, pkg.Verify())
	install(t, versions, src)
	wantNames(t, versions, name, ".other-host.tmp")
}

// TestSealedAfterRename covers macOS's order of mode and rename.
func TestSealedAfterRename(t *testing.T) {
	defer func(was bool) { sealAfterRename = was }(sealAfterRename)
	sealAfterRename = true
	versions := store(t)
	_, src := source(t)
	pkg := install(t, versions, src)
	wantMode(t, pkg.Root(), 0o555)
	must(t, pkg.Verify())

	// A crash between the two.
	must(t, os.Chmod(pkg.Root(), 0o700))
	_, err := Open(versions, pkg.Tree().Digest())
	wantCode(t, err, fault.ModeUnsafe, pkg.Root())
	again := install(t, versions, src)
	wantMode(t, again.Root(), 0o555)

	must(t, MoveAside(versions, pkg.Tree().Digest()))
	install(t, versions, src)
}

// TestRefusalLeavesNothing: a source that changes under the copy, and a store
// that cannot be written.
func TestRefusalLeavesNothing(t *testing.T) {
	versions := store(t)
	root, src := source(t)
	put(t, root+"/manifest.json", "[]", 0o600)
	_, err := Install(versions, src)
	wantCode(t, err, fault.IntegrityMismatch, root+"/manifest.json")
	wantNames(t, versions)
	if os.Geteuid() != 0 {
		must(t, versions.Chmod(0o500))
		defer versions.Chmod(0o700)
		_, src := source(t)
		_, err = Install(versions, src)
		wantCode(t, err, fault.IO, versions.Path())
		if !errors.Is(err, fs.ErrPermission) {
			t.Error(err)
		}
	}
}

// TestFullDisk fills a small file system by blocks and by inodes.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 || runtime.GOOS != "linux" {
		t.Skip("needs root with the right to mount")
	}
	root, src := source(t)
	put(t, root+"/lib/big", strings.Repeat("x", 1<<20), 0o600)
	src = scan(t, root)
	for _, options := range []string{"size=256k", "nr_inodes=5"} {
		t.Run(options, func(t *testing.T) {
			at := temp(t)
			if err := mountTmpfs(at, options); err != nil {
				t.Skipf("needs root with the right to mount: %v", err)
			}
			versions, err := dirfd.Open(at)
			must(t, err)
			defer unmount(t, at)
			defer versions.Close()
			_, err = Install(versions, src)
			wantCode(t, err, fault.IO, versions.Path())
			if !errors.Is(err, syscall.ENOSPC) || !strings.HasSuffix(fault.Line(err), "no space left on device") {
				t.Error(fault.Line(err))
			}
			wantNames(t, versions)
		})
	}
}

// TestKilled kills a process while it installs, as soon as it is seen to have
// come so far, and installs again.
func TestKilled(t *testing.T) {
	if os.Getenv("HAWSER_TEST_INSTALL") != "" {
		installUntilKilled(t, os.Getenv("HAWSER_TEST_INSTALL"))
		return
	}
	root := temp(t) + "/package"
	for i := range 400 {
		put(t, fmt.Sprintf("%s/dir-%d/file-%d", root, i%20, i), strings.Repeat("x", i), 0o600)
	}
	must(t, os.Chmod(root, 0o755))
	src := scan(t, root)
	for _, entries := range []int{0, 1, 5, 15, 20} {
		versions := store(t)
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), "HAWSER_TEST_INSTALL="+root+":"+versions.Path())
		must(t, cmd.Start())
		died := make(chan error, 1)
		go func() { died <- cmd.Wait() }()
		for reached := false; !reached; {
			select {
			case err := <-died:
				t.Fatalf("it died by itself: %v", err)
			default:
				reached = hasTemporary(versions, entries)
				runtime.Gosched()
			}
		}
		must(t, cmd.Process.Kill())
		<-died
		pkg := install(t, versions, src)
		must(t, pkg.Verify())
		names, err := versions.Names()
		must(t, err)
		for _, name := range names {
			if name != pkg.Tree().Digest().Hex() && !strings.HasPrefix(name, ".damaged.") {
				t.Errorf("%s is left", name)
			}
		}
	}
}

// installUntilKilled installs and moves aside again and again, as long as the
// test that started it lives.
func installUntilKilled(t *testing.T, paths string) {
	from, to, _ := strings.Cut(paths, ":")
	versions := open(t, to)
	for parent := os.Getppid(); os.Getppid() == parent; {
		pkg, err := Install(versions, scan(t, from))
		must(t, err)
		must(t, pkg.Close())
		must(t, MoveAside(versions, pkg.Tree().Digest()))
		must(t, versions.RemoveAll(asideName(pkg.Tree().Digest(), 1)))
	}
}

// hasTemporary reports whether a package is being written that has so many
// entries in its root already.
func hasTemporary(versions *dirfd.Dir, entries int) bool {
	names, _ := versions.Names()
	for _, name := range names {
		if sub, err := os.ReadDir(versions.Path() + "/" + name); err == nil && strings.HasPrefix(name, ".hawser.") && len(sub) >= entries {
			return true
		}
	}
	return false
}

// TestModel compares the store with a map through random operations.
func TestModel(t *testing.T) {
	base := temp(t)
	var sources []*tree.Scanned
	var digests []wire.Digest
	for i := range 3 {
		root := fmt.Sprintf("%s/source-%d", base, i)
		put(t, root+"/file", strings.Repeat("x", i), 0o600)
		must(t, os.Chmod(root, 0o755))
		src := scan(t, root)
		hashed, err := src.Hash()
		must(t, err)
		sources, digests = append(sources, src), append(digests, hashed.Digest())
	}
	rapid.Check(t, func(t *rapid.T) {
		path, err := os.MkdirTemp(base, "store-")
		must(t, err)
		parent, err := dirfd.Open(base)
		must(t, err)
		defer parent.Close()
		defer func() { must(t, parent.RemoveAll(filepath.Base(path))) }()
		versions, err := dirfd.Open(path)
		must(t, err)
		defer versions.Close()

		const absent, whole, damaged = 0, 1, 2
		state := make([]int, len(sources))
		aside := 0
		which := rapid.IntRange(0, len(sources)-1)
		t.Repeat(map[string]func(*rapid.T){
			"install": func(t *rapid.T) {
				i := which.Draw(t, "which")
				pkg, err := Install(versions, sources[i])
				if state[i] == damaged {
					if !fault.Is(err, fault.IntegrityMismatch) {
						t.Fatalf("over a damaged one: %v", err)
					}
					return
				}
				must(t, err)
				must(t, pkg.Close())
				state[i] = whole
			},
			"damage": func(t *rapid.T) {
				i := which.Draw(t, "which")
				if state[i] != absent {
					must(t, os.Chmod(path+"/"+digests[i].Hex()+"/file", rapid.SampledFrom([]os.FileMode{0o644, 0o555}).Draw(t, "mode")))
					state[i] = damaged
				}
			},
			"move aside": func(t *rapid.T) {
				i := which.Draw(t, "which")
				must(t, MoveAside(versions, digests[i]))
				if state[i] != absent {
					aside++
				}
				state[i] = absent
			},
			"die": func(t *rapid.T) {
				must(t, os.MkdirAll(path+"/.hawser.dead/part", 0o700))
			},
			"": func(t *rapid.T) {
				kept := 0
				names, err := versions.Names()
				must(t, err)
				for _, name := range names {
					if strings.HasPrefix(name, ".damaged.") {
						kept++
					}
				}
				if kept != aside {
					t.Fatalf("%d moved aside, %d kept", aside, kept)
				}
				for i := range state {
					pkg, err := Open(versions, digests[i])
					switch {
					case err == nil && state[i] == whole:
						must(t, pkg.Verify())
						must(t, pkg.Close())
					case state[i] == absent && fault.Is(err, fault.PackageMissing):
					case state[i] == damaged && (fault.Is(err, fault.ModeUnsafe) || fault.Is(err, fault.IntegrityMismatch)):
					default:
						t.Fatalf("package %d in state %d opens as %v", i, state[i], err)
					}
				}
			},
		})
	})
}

func TestConcurrentUse(t *testing.T) {
	versions := store(t)
	_, src := source(t)
	pkg := install(t, versions, src)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				if err := errors.Join(pkg.CheckFile("bin/run"), pkg.Verify()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
