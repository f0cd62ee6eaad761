package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hawser/tests/hometest"
)

// Many passes at once start each source once, and none of them ends a runner
// that another one has just started.
func TestReconcilesAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const sources, passes = 4, 6
	for i := range sources {
		r.builtin(t, fmt.Sprintf("s%d", i), "sleep 1000")
		r.forge(t, fmt.Sprintf("s%d", i), 1<<22-1, "linux-starttime=1 cmdline-hex=00") // dead: each is to be released first
	}
	var all sync.WaitGroup
	said := make([]said, passes)
	for i := range passes {
		all.Go(func() { said[i] = r.run(t, "reconcile") })
	}
	all.Wait()
	total := 0
	for _, s := range said {
		_, started, stopped, uncertain := counts(t, s, 0)
		total += started
		if stopped+uncertain > 0 {
			t.Errorf("%q", s.stdout)
		}
	}
	if total != sources {
		t.Errorf("%d sources were started %d times", sources, total)
	}
	if s := r.must(t, "list"); strings.Count(s, " live ") != sources {
		t.Errorf("list: %q", s)
	}
}

func TestStartsAtOnce(t *testing.T) {
	t.Parallel()
	r := newExternal(t)
	path := fifo(t)
	r.external(t, "s", path)
	var starts []*running
	for range 5 {
		starts = append(starts, r.start(t, "s"))
	}
	r.operation(t, path) // only one may be in its poll
	owner := r.owner(t, "s")
	for _, s := range starts {
		if s.Process.Pid == owner {
			defer func() {
				if said := s.ends(t); said.stdout != "captured: "+r.result("s", 1)+"\n" {
					t.Errorf("%+v", said)
				}
			}()
		} else if said := s.ends(t); said.stdout != "already owned: s\n" || said.exit != 0 {
			t.Errorf("%+v", said)
		}
	}
	event(t, path, "an event")
}

// TestSwaps puts something else in the place of a directory or a leaf while a
// runner waits: nothing is redirected, and for an external source nothing is
// captured.
func TestSwaps(t *testing.T) {
	t.Parallel()
	aside := func(path string) string { return filepath.Join(filepath.Dir(filepath.Dir(path)), "aside") }
	swaps := map[string]func(t *testing.T, path string){
		"a link": func(t *testing.T, path string) {
			check(t, os.Rename(path, aside(path)))
			elsewhere := filepath.Join(hometest.Dir(t), "elsewhere")
			check(t, os.Mkdir(elsewhere, 0o700))
			check(t, os.Symlink(elsewhere, path))
		},
		"a link to itself": func(t *testing.T, path string) {
			check(t, os.Rename(path, aside(path)))
			check(t, os.Symlink(aside(path), path))
		},
		"another directory": func(t *testing.T, path string) {
			check(t, os.Rename(path, aside(path)))
			check(t, os.Mkdir(path, 0o700))
		},
		"nothing": func(t *testing.T, path string) {
			check(t, os.Rename(path, aside(path)))
		},
		"other modes": func(t *testing.T, path string) {
			check(t, os.Chmod(path, 0o750))
		},
	}
	for _, place := range []string{"procevent", "procevent-inbox", "."} {
		for name, swap := range swaps {
			if place == "." && name == "other modes" {
				continue // the state root may be read by others
			}
			t.Run(place+" becomes "+name, func(t *testing.T) {
				t.Parallel()
				r := newExternal(t)
				path := fifo(t)
				r.external(t, "s", path)
				s := r.start(t, "s")
				awaitReader(t, path)
				at := r.state(place)
				if place == "." {
					at = r.state()
				}
				swap(t, at)
				event(t, path, "an event")
				said := s.ends(t)
				if said.exit != 1 || said.stdout != "" || !strings.HasPrefix(said.stderr, "error[path-unsafe]: ") && !strings.HasPrefix(said.stderr, "error[mode-unsafe]: ") {
					t.Errorf("%+v", said)
				}
				for _, dir := range []string{r.home, hometest.Dir(t)} {
					if found := find(t, dir, "s.1."); found != nil {
						t.Errorf("captured: %q", found)
					}
				}
				// Put back, and the event can come again.
				if name == "other modes" {
					check(t, os.Chmod(at, 0o700))
				} else {
					check(t, os.RemoveAll(at))
					check(t, os.Rename(aside(at), at))
				}
				go event(t, path, "an event")
				if out := r.must(t, "start", "s"); !strings.HasPrefix(out, "captured: ") {
					t.Errorf("start: %q", out)
				}
			})
		}
	}
}

// find lists the files below a directory whose names begin with a prefix.
func find(t *testing.T, dir, prefix string) (found []string) {
	t.Helper()
	check(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if d != nil && strings.HasPrefix(d.Name(), prefix) {
			found = append(found, path)
		}
		return nil
	}))
	return found
}

// The registration of an external source goes, or becomes another file, while it
// waits: nothing is captured, and whoever came is not ended.
func TestRegistrationSwapped(t *testing.T) {
	t.Parallel()
	swaps := map[string]func(t *testing.T, path string){
		"removed": func(t *testing.T, path string) { check(t, os.Remove(path)) },
		"copied": func(t *testing.T, path string) {
			data, err := os.ReadFile(path)
			check(t, err)
			check(t, os.WriteFile(path+".new", data, 0o600))
			check(t, os.Rename(path+".new", path))
		},
		"linked": func(t *testing.T, path string) {
			check(t, os.Rename(path, path+".aside"))
			check(t, os.Symlink(path+".aside", path))
		},
	}
	for name, swap := range swaps {
		t.Run(name, func(t *testing.T) {
			r := newExternal(t)
			path := fifo(t)
			r.external(t, "s", path)
			s := r.start(t, "s")
			awaitReader(t, path)
			swap(t, r.registration("s"))
			event(t, path, "silent and terminal")
			if said := s.ends(t); said.exit != 1 || said.stdout != "" || !strings.HasPrefix(said.stderr, "error[source-missing]: ") {
				t.Errorf("%+v", said)
			}
			if found := find(t, r.home, "s.1."); found != nil {
				t.Errorf("captured: %q", found)
			}
			if name == "linked" {
				check(t, os.Remove(r.registration("s")))
			}
		})
	}
}

// A built-in registration may be replaced at any time. What its runner then
// captures is captured, and a terminal verdict does not end the new one.
func TestBuiltinReplaced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	path := fifo(t)
	r.builtin(t, "s", "read -r line <"+path+" && echo $line")
	r.adapter(t, "ci", `[ "$1" = terminal ]`)
	s := r.start(t, "s")
	awaitReader(t, path)
	r.must(t, "register", "ci", "s", "--", "true")
	event(t, path, "an event")
	if said := s.ends(t); said.stdout != "captured: "+r.result("s", 1)+"\n" || said.stderr != "" {
		t.Errorf("%+v", said)
	}
	if out := r.must(t, "start", "s"); out != "no-result: s (exit 0)\n" {
		t.Errorf("the new registration: %q", out)
	}
}

// A staging leaf that is swapped for something else is no result.
func TestStagingSwapped(t *testing.T) {
	t.Parallel()
	swaps := map[string]func(t *testing.T, path string){
		"removed": func(t *testing.T, path string) { check(t, os.Remove(path)) },
		"linked": func(t *testing.T, path string) {
			check(t, os.Remove(path))
			check(t, os.Symlink("/etc/passwd", path))
		},
		"replaced": func(t *testing.T, path string) {
			check(t, os.Remove(path))
			check(t, os.WriteFile(path, []byte("forged"), 0o600))
		},
		"shared": func(t *testing.T, path string) { check(t, os.Link(path, path+".other")) },
	}
	for name, swap := range swaps {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			path := fifo(t)
			r.builtin(t, "s", "echo half; read -r line <"+path+"; echo $line")
			s := r.start(t, "s")
			awaitReader(t, path)
			staged := find(t, r.state("procevent"), ".s.")
			if len(staged) != 1 || !strings.HasSuffix(staged[0], ".output") {
				t.Fatalf("staged: %q", staged)
			}
			swap(t, staged[0])
			event(t, path, "an event")
			if said := s.ends(t); said.exit != 1 || !strings.Contains(said.stderr, "was replaced while a source waited") {
				t.Errorf("%+v", said)
			}
			if found, _ := filepath.Glob(r.result("s", 1)); found != nil {
				t.Errorf("captured: %q", found)
			}
			_ = os.Remove(staged[0] + ".other")
			if left := names(t, r.state("procevent")); len(left) != 1 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// A runner whose claim is another's now does nothing more.
func TestClaimTaken(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"removed", "another token"} {
		t.Run(what, func(t *testing.T) {
			r := newExternal(t)
			path := fifo(t)
			r.external(t, "s", path)
			s := r.start(t, "s")
			awaitReader(t, path)
			data, err := os.ReadFile(r.claim("s"))
			check(t, err)
			check(t, os.Remove(r.claim("s")))
			if what == "another token" {
				lines := strings.Split(string(data), "\n")
				lines[2] = strings.Repeat("0", 32)
				check(t, os.WriteFile(r.claim("s"), []byte(strings.Join(lines, "\n")), 0o600))
			}
			event(t, path, "an event")
			if said := s.ends(t); said.exit != 1 || said.stdout != "" || !strings.HasPrefix(said.stderr, "error[source-busy]: the claim of source s was taken") {
				t.Errorf("%+v", said)
			}
			if found := find(t, r.state("procevent-inbox"), "s.1."); found != nil {
				t.Errorf("captured: %q", found)
			}
		})
	}
}

// gate makes the package wait at an operation until somebody writes a line.
func (r *rig) gate(t *testing.T, operation string) string {
	t.Helper()
	path := r.state("extensions", extension, operation)
	check(t, syscall.Mkfifo(path, 0o600))
	return path
}

// Retired during a verdict: what was captured stays, is announced by the next
// pass, and nothing of the source is left.
func TestRetiredDuringAVerdict(t *testing.T) {
	t.Parallel()
	for _, operation := range []string{"result.silent", "result.terminal"} {
		t.Run(operation, func(t *testing.T) {
			r := newExternal(t)
			token := r.external(t, "s", "silent and terminal")
			at := r.gate(t, operation)
			s := r.start(t, "s")
			awaitReader(t, at)
			r.must(t, "retire", "s", "--if-owner", token)
			if said := s.ends(t); said.exit != 128+int(syscall.SIGTERM) || said.stdout != "" {
				t.Errorf("%+v", said)
			}
			if _, err := os.Stat(r.result("s", 1)); err != nil {
				t.Error(err)
			}
			silent := operation == "result.terminal" // that verdict had been given
			if left := names(t, r.state("procevent")); left != nil {
				t.Errorf("left: %q", left)
			}
			published, _, _, _ := r.reconcile(t)
			if (published == 0) != silent || (r.rows(t) == nil) != silent {
				t.Errorf("published %d, rows %q", published, r.rows(t))
			}
		})
	}
}

// Retired between poll and capture: the runner waits for its source's lock,
// which the retirement has, and is told to end.
func TestRetiredDuringACapture(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	path := fifo(t)
	r.builtin(t, "s", "read -r line <"+path+"; echo $line")
	s := r.start(t, "s")
	awaitReader(t, path)
	lock := lockFile(t, filepath.Join(r.claims, "s.flock"))
	event(t, path, "an event")
	eventually(t, "the output is staged and the command gone", func() error {
		if len(group(t, s.Process.Pid)) > 1 {
			return errors.New("it runs")
		}
		return nil
	})
	check(t, s.Process.Signal(syscall.SIGTERM)) // as whoever has the lock does
	if said := s.ends(t); said.exit != 128+int(syscall.SIGTERM) || said.stdout != "" {
		t.Errorf("%+v", said)
	}
	lock.Close()
	r.must(t, "retire", "s")
	if left := append(names(t, r.state("procevent")), find(t, r.state("procevent-inbox"), "s.")...); left != nil {
		t.Errorf("left: %q", left)
	}
}

// lockFile takes a lock as the commands do, until the file is closed.
func lockFile(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	check(t, err)
	t.Cleanup(func() { file.Close() })
	check(t, syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	return file
}

// A waiting runner that is told to end does so with all it runs, and takes no
// lock on the way: it ends although every lock is taken.
func TestToldToEnd(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		for _, word := range []string{"", "deaf "} {
			t.Run(signal.String()+" "+word, func(t *testing.T) {
				t.Parallel()
				r := newExternal(t)
				path, other := fifo(t), fifo(t)
				r.external(t, "ext", word+path)
				trap := ""
				if word != "" {
					trap = "trap '' TERM; "
				}
				r.builtin(t, "own", trap+"(read -r line <"+other+") & wait")
				external, builtin := r.start(t, "ext"), r.start(t, "own")
				leader, _ := r.operation(t, path)
				awaitReader(t, other)
				for _, name := range []string{"ext.flock", "own.flock"} {
					lockFile(t, filepath.Join(r.claims, name))
				}
				lockFile(t, filepath.Join(r.home, "data/extensions/lifecycle.flock"))
				check(t, external.Process.Signal(signal))
				check(t, builtin.Process.Signal(signal))
				for _, s := range []*running{external, builtin} {
					if said := s.ends(t); said.exit != 128+int(signal) || said.stdout != "" || !strings.Contains(said.stderr, "interrupted") {
						t.Errorf("%+v", said)
					}
				}
				if left := append(group(t, leader), group(t, builtin.Process.Pid)...); left != nil {
					t.Errorf("still running: %d", left)
				}
				if left := names(t, r.state("extension-invocations")); left != nil {
					t.Errorf("records are left: %q", left)
				}
				if len(names(t, r.claims)) != 2 {
					t.Errorf("claims: %q", names(t, r.claims)) // whoever stopped the runner releases them
				}
			})
		}
	}
}

// Nothing that a runner is given from outside makes it own a source or have a
// result.
func TestAuthority(t *testing.T) {
	t.Parallel()
	r := newExternal(t)
	path := fifo(t)
	r.external(t, "s", path)
	s := r.start(t, "s")
	r.operation(t, path)
	data, err := os.ReadFile(r.claim("s"))
	check(t, err)
	token := strings.Split(string(data), "\n")[2]

	// The claim's token, the runner's own word, and its descriptors.
	impostor := r.command("start", "--tell-owner", "s")
	impostor.Env = append(impostor.Env, "HAWSER_INVOCATION="+token)
	claim, err := os.OpenFile(r.claim("s"), os.O_RDWR, 0)
	check(t, err)
	defer claim.Close()
	inbox, err := os.Open(r.state("procevent-inbox"))
	check(t, err)
	defer inbox.Close()
	impostor.ExtraFiles = []*os.File{claim, inbox, inbox, claim}
	out, err := impostor.CombinedOutput()
	if err != nil || string(out) != "already owned: s\n" {
		t.Errorf("%v: %q", err, out)
	}
	if after, _ := os.ReadFile(r.claim("s")); string(after) != string(data) {
		t.Error("the claim was written to")
	}
	// A result that nobody captured is not made one by its name.
	forged := r.state("procevent-inbox", "s.1.result")
	check(t, os.WriteFile(forged, []byte("silent and terminal"), 0o600))
	event(t, path, "an event")
	if said := s.ends(t); said.stdout != "captured: "+r.result("s", 2)+"\n" {
		t.Errorf("%+v", said)
	}
	if _, err := os.Stat(r.registration("s")); err != nil {
		t.Errorf("a forged result ended the source: %v", err)
	}
	if keys := r.rows(t); fmt.Sprint(keys) != "[procevent:s:2]" {
		t.Errorf("announced: %q", keys)
	}
	check(t, os.Remove(forged))
}

// A source whose polls return at once costs one start a pass, and nothing grows.
func TestSourceThatReturnsAtOnce(t *testing.T) {
	t.Parallel()
	r := newExternal(t)
	r.external(t, "ext", "none")
	r.builtin(t, "own", "false")
	idle := func() error {
		if left := names(t, r.claims); left != nil {
			return fmt.Errorf("claims: %q", left)
		}
		return r.isAtRest()
	}
	const passes = 10
	for range passes {
		r.wants(t, "published=0 started=2 stopped=0 uncertain=0")
		eventually(t, "no runner is left", idle)
	}
	polls, err := os.ReadFile(r.state("extensions", extension, "requests"))
	check(t, err)
	if n := strings.Count(string(polls), `"source_id":"ext"`); n != passes {
		t.Errorf("ext was polled %d times", n)
	}
	if left := names(t, r.state("procevent")); len(left) != 2 {
		t.Errorf("left: %q", left)
	}
	if left := names(t, r.state("extension-invocations")); left != nil {
		t.Errorf("left: %q", left)
	}
}

// A source whose polls fail is restarted after a pause, which grows, and its
// evidence is captured once until that is handled.
func TestSourceThatFails(t *testing.T) {
	t.Parallel()
	r := newExternal(t)
	r.external(t, "s", "exit 1")
	idle := func() error {
		if left := names(t, r.claims); left != nil {
			return fmt.Errorf("claims: %q", left)
		}
		return nil
	}
	pauses := r.state(".hawser.failures-s")
	for n, pause := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second} {
		began := time.Now()
		r.wants(t, "published=0 started=1 stopped=0 uncertain=0")
		eventually(t, "the runner is gone", idle)
		var failures int
		var until int64
		data, err := os.ReadFile(pauses)
		check(t, err)
		_, err = fmt.Sscanf(string(data), "%d %d\n", &failures, &until)
		check(t, err)
		if left := time.Unix(until, 0).Sub(began); failures != n+1 || left < pause-time.Second || left > pause+time.Since(began)+time.Second {
			t.Errorf("after failure %d: %d, and a pause of %v", n+1, failures, left)
		}
		// The clock goes on.
		check(t, os.WriteFile(pauses, fmt.Appendf(nil, "%d %d\n", failures, time.Now().Unix()-1), 0o600))
	}
	if found := find(t, r.state("procevent-inbox"), "s."); len(found) != 3 || len(r.rows(t)) != 1 {
		t.Errorf("captured: %q, rows: %q", found, r.rows(t))
	}
	r.must(t, "handled", "s", "1")
	if out := r.must(t, "start", "s"); out != "captured: "+r.result("s", 2)+"\n" {
		t.Errorf("start: %q", out)
	}
	r.wants(t, "published=0 started=0 stopped=0 uncertain=0") // it pauses
	r.external(t, "s", "none")
	r.wants(t, "published=0 started=1 stopped=0 uncertain=0") // it is another source now
}

// A pass that is told to end while it waits for a runner does so at once. The
// runner goes on, and owns its source when it can.
func TestReconcileToldToEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.builtin(t, "s", "sleep 1000")
	check(t, os.MkdirAll(r.claims, 0o700))
	lock := lockFile(t, filepath.Join(r.claims, "s.flock"))
	cmd := r.command("reconcile")
	check(t, cmd.Start())
	eventually(t, "the runner waits for its source", func() error {
		runners, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, path := range runners {
			cmdline, _ := os.ReadFile(path)
			environ, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "environ"))
			if strings.Contains(string(cmdline), "--tell-owner") && strings.Contains(string(environ), r.home) {
				return nil
			}
		}
		return errors.New("there is none")
	})
	check(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	if exit := cmd.ProcessState.ExitCode(); exit != 128+int(syscall.SIGTERM) {
		t.Errorf("exit %d", exit)
	}
	lock.Close()
	r.owner(t, "s")
}
