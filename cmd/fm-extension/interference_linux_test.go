package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"hawser/binding"
	"hawser/internal/fault"
	"hawser/tests/hometest"
)

// installed is the path of a file of the installed package, made writable on the
// way to it, as only somebody who means to would.
func (s *stage) installed(t *testing.T, name string) string {
	t.Helper()
	roots, err := filepath.Glob(filepath.Join(s.home, "data/extensions/packages/*/*/*"))
	check(t, err)
	if len(roots) != 1 {
		t.Fatalf("the packages are %q", roots)
	}
	return filepath.Join(roots[0], name)
}

// rewrite changes a file of the installed package and leaves it with its modes.
func rewrite(t *testing.T, path string, change func(content string) string) {
	t.Helper()
	data, err := os.ReadFile(path)
	check(t, err)
	info, err := os.Stat(path)
	check(t, err)
	check(t, os.Chmod(path, 0o700))
	check(t, os.WriteFile(path, []byte(change(string(data))), 0o700))
	check(t, os.Chmod(path, info.Mode()))
}

// replace does the same by a rename.
func replace(t *testing.T, path string, change func(content string) string) {
	t.Helper()
	data, err := os.ReadFile(path)
	check(t, err)
	info, err := os.Stat(path)
	check(t, err)
	dir := filepath.Dir(path)
	check(t, os.Chmod(dir, 0o755))
	check(t, os.WriteFile(path+".new", []byte(change(string(data))), 0o700))
	check(t, os.Chmod(path+".new", info.Mode()))
	check(t, os.Rename(path+".new", path))
	check(t, os.Chmod(dir, 0o555))
}

// TestPackageChangedMeanwhile: an answer is accepted only from a package that is
// what was verified, from before it was started until after it answered
// (processes: An operation, step by step).
func TestPackageChangedMeanwhile(t *testing.T) {
	more := func(content string) string { return content + "\n" }
	for name, interfere := range map[string]func(t *testing.T, s *stage){
		"entrypoint rewritten":      func(t *testing.T, s *stage) { rewrite(t, s.installed(t, hometest.Entrypoint), more) },
		"entrypoint replaced":       func(t *testing.T, s *stage) { replace(t, s.installed(t, hometest.Entrypoint), more) },
		"another file rewritten":    func(t *testing.T, s *stage) { rewrite(t, s.installed(t, "firstmate-extension.json"), more) },
		"another file replaced":     func(t *testing.T, s *stage) { replace(t, s.installed(t, "firstmate-extension.json"), more) },
		"another file made its own": func(t *testing.T, s *stage) { check(t, os.Chmod(s.installed(t, "firstmate-extension.json"), 0o644)) },
		"a file more": func(t *testing.T, s *stage) {
			check(t, os.Chmod(s.installed(t, "bin"), 0o755))
			check(t, os.WriteFile(s.installed(t, "bin/more"), nil, 0o444))
			check(t, os.Chmod(s.installed(t, "bin"), 0o555))
		},
		"all of it moved away": func(t *testing.T, s *stage) {
			root := s.installed(t, "")
			check(t, os.Rename(root, filepath.Dir(root)+"/.elsewhere"))
		},
	} {
		for _, stage := range []string{"handshake", "poll"} {
			t.Run(name+" during its "+stage, func(t *testing.T) {
				t.Parallel()
				s := newStage(t, "waits when told to")
				s.bind(t)
				check(t, os.WriteFile(filepath.Join(s.home, "state/extensions/org.example.behaving/waits"), []byte(stage), 0o600))
				host := s.start(t, s.pollArgs("s")...)
				gate := s.opened(t)
				interfere(t, s)
				_, err := gate.WriteString("go\n")
				check(t, err)
				stdout, stderr, code := host.end()
				if code != 70 || strings.Contains(stdout, "go") || !strings.Contains(stderr, "the package changed while it answered: ") || !strings.Contains(stderr, "FIRSTMATE_EXTENSION_STATE") {
					t.Errorf("exit %d, %q: %s", code, stdout, stderr)
				}
				if !strings.Contains(stdout, `"code":"integrity-mismatch"`) && !strings.Contains(stdout, `"code":"mode-unsafe"`) && !strings.Contains(stdout, `"code":"package-missing"`) {
					t.Errorf("the evidence is %s", stdout)
				}
				s.gone(t)
				hometest.CheckAtRest(t, s.home)
			})
		}
	}
	// What is the same is no change, whoever looked at it.
	t.Run("touched", func(t *testing.T) {
		t.Parallel()
		s, host, gate := waiting(t, "waits in its poll")
		same := func(content string) string { return content }
		rewrite(t, s.installed(t, hometest.Entrypoint), same)
		replace(t, s.installed(t, "firstmate-extension.json"), same)
		_, err := gate.WriteString("go\n")
		check(t, err)
		if stdout, stderr, code := host.end(); code != 0 || stdout != "go" {
			t.Errorf("exit %d, %q: %s", code, stdout, stderr)
		}
	})
}

func init() {
	behaviours["waits when told to"] = func(s *hometest.Start) {
		showLife(s)
		word := ""
		told, err := os.ReadFile(os.Getenv("FIRSTMATE_EXTENSION_STATE") + "/waits")
		if err == nil && (string(told) == "handshake") == (s.Verb == "handshake") {
			word = wait(s)
		}
		s.Give(hometest.Result(word + "."))
	}
}

// TestSourceSwappedWhileItIsRead: whoever plays with the source, what is
// installed is the package that was judged, or the bind is refused. Nothing is
// ever read through a link.
func TestSourceSwappedWhileItIsRead(t *testing.T) {
	t.Parallel()
	home := hometest.New(t)
	pkg := hometest.Package{}.Make(t)
	first, err := hostOf(home).Bind(t.Context(), pkg, trusting("sh"))
	check(t, err)
	first.Told()
	retired, err := hostOf(home).RetireBinding(t.Context(), first.ExtensionID, first.Digest)
	check(t, err)
	retired.Told()
	good := first.PackageDigest
	elsewhere := hometest.Dir(t)
	check(t, os.WriteFile(filepath.Join(elsewhere, "adapter"), []byte("#!/bin/sh\nexit 9\n"), 0o755))

	stop := make(chan struct{})
	var swapper sync.WaitGroup
	swapper.Go(func() {
		bin, aside := filepath.Join(pkg, "bin"), filepath.Join(hometest.Dir(t), "bin")
		for {
			select {
			case <-stop:
				return
			default:
			}
			if os.Rename(bin, aside) == nil && os.Symlink(elsewhere, bin) == nil {
				_ = os.Remove(bin)
			}
			_ = os.Rename(aside, bin)
			time.Sleep(rand.N(4 * time.Millisecond)) // now and then one gets through
		}
	})
	defer swapper.Wait()
	defer close(stop)
	bound := 0
	for range 100 {
		result, err := hostOf(home).Bind(t.Context(), pkg, trusting("sh"))
		switch fault.CodeOf(err) {
		case fault.PathUnsafe, fault.LinkUnsafe, fault.IntegrityMismatch, fault.EntrypointMissing:
			continue
		}
		check(t, err)
		bound++
		result.Told()
		if result.PackageDigest != good {
			t.Fatalf("%s was installed, not %s", result.PackageDigest, good)
		}
		retired, err := hostOf(home).RetireBinding(t.Context(), result.ExtensionID, result.Digest)
		check(t, err)
		retired.Told()
	}
	t.Logf("bound %d times of 100", bound)
	hometest.CheckAtRest(t, home)
}

func trusting(adapters ...string) binding.Options {
	return binding.Options{Adapters: adapters, TrustSameUserCode: true, TimeoutMS: binding.DefaultTimeoutMS}
}
