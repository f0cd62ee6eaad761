package filelock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
)

const name = "some.flock"

func open(t testing.TB) *dirfd.Dir {
	t.Helper()
	path, err := filepath.EvalSymlinks(t.TempDir())
	check(t, err)
	dir, err := dirfd.Open(path)
	check(t, err)
	t.Cleanup(func() { dir.Close() })
	return dir
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func acquire(t testing.TB, dir *dirfd.Dir, command string) *Lock {
	t.Helper()
	lock, err := Acquire(t.Context(), dir, name, command, nil)
	check(t, err)
	return lock
}

func wantUnavailable(t testing.TB, dir *dirfd.Dir, says string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := Acquire(ctx, dir, name, "another", nil)
	if !fault.Is(err, fault.LockUnavailable) || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, not lock-unavailable and %q", err, says)
	}
}

func TestHeldAndReleased(t *testing.T) {
	dir := open(t)
	path := dir.Path() + "/" + name
	lock := acquire(t, dir, "bind org.example")
	info, err := os.Stat(path)
	check(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("its mode is %v", info.Mode())
	}
	text, err := os.ReadFile(path)
	check(t, err)
	line, rest, _ := strings.Cut(string(text), "\n")
	var said struct {
		Command, Since string
		Pid            int
	}
	check(t, json.Unmarshal([]byte(line), &said))
	if _, err := time.Parse(time.RFC3339, said.Since); said.Command != "bind org.example" || said.Pid != os.Getpid() || err != nil || rest != "" {
		t.Errorf("it holds %q", text)
	}
	wantUnavailable(t, dir, fmt.Sprintf("process %d (bind org.example) since ", os.Getpid()))
	lock.Release()
	lock = acquire(t, dir, "verify")
	wantUnavailable(t, dir, "(verify)")
	lock.Release()
	lock.Release()
	(*Lock)(nil).Release()
}

// TestHolderLine: what stands in the file is for people, and can be anything.
func TestHolderLine(t *testing.T) {
	dir := open(t)
	lock := acquire(t, dir, "bind")
	defer lock.Release()
	for _, text := range []string{"", "\n", "nonsense", `{"pid":1}`, strings.Repeat("x", 70_000), "{\"command\":\"a\\u001b[31m\",\"pid\":7,\"since\":\"\\n\"}"} {
		check(t, os.WriteFile(dir.Path()+"/"+name, []byte(text), 0o600))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err := Acquire(ctx, dir, name, "another", nil)
		cancel()
		if !fault.Is(err, fault.LockUnavailable) || strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("with %.20q: %v", text, err)
		}
	}
}

func FuzzSayHolder(f *testing.F) {
	f.Add([]byte(`{"command":"bind org.example","pid":7,"since":"2026-01-02T03:04:05Z"}`))
	f.Add([]byte("{\"command\":\"a\\u001b[31m\\n\",\"pid\":7,\"since\":\"\"}"))
	f.Add([]byte("  \n"))
	f.Fuzz(func(t *testing.T, line []byte) {
		if said := sayHolder(line); said == "" || strings.ContainsAny(said, "\n\r\x1b\x00") {
			t.Errorf("said %q", said)
		}
	})
}

func TestOneWhoWaitsGetsIt(t *testing.T) {
	dir := open(t)
	lock := acquire(t, dir, "first")
	said, got := make(chan string, 1), make(chan *Lock)
	go func() {
		next, err := Acquire(context.Background(), dir, name, "second", func(line string) { said <- line })
		if err != nil {
			t.Error(err)
		}
		got <- next
	}()
	if line := <-said; !strings.Contains(line, "(first)") {
		t.Errorf("said %q", line)
	}
	lock.Release()
	(<-got).Release()
}

// TestGivenUp: who gave up waiting does not hold the lock later.
func TestGivenUp(t *testing.T) {
	dir := open(t)
	lock := acquire(t, dir, "first")
	wantUnavailable(t, dir, "(first)")
	lock.Release()
	acquire(t, dir, "third").Release()
}

// TestRemovedWhileHeld: a file that lost its name excludes nobody, so who waited
// for it goes on to the one that has the name.
func TestRemovedWhileHeld(t *testing.T) {
	dir := open(t)
	path := dir.Path() + "/" + name
	lock := acquire(t, dir, "first")
	got := make(chan *Lock)
	go func() {
		next, err := Acquire(context.Background(), dir, name, "second", nil)
		if err != nil {
			t.Error(err)
		}
		got <- next
	}()
	waitUntilBlocked(t)
	check(t, os.Remove(path))
	lock.Release()
	second := <-got
	wantUnavailable(t, dir, "(second)")
	second.Release()
}

// waitUntilBlocked waits until a thread of this process waits for a flock.
func waitUntilBlocked(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		threads, _ := filepath.Glob("/proc/self/task/*/syscall")
		if len(threads) == 0 {
			t.Skip("nothing tells here what a thread waits for")
		}
		for _, thread := range threads {
			text, _ := os.ReadFile(thread)
			if strings.HasPrefix(string(text), fmt.Sprintf("%d ", syscall.SYS_FLOCK)) {
				return
			}
		}
	}
	t.Fatal("nobody waits")
}

func TestNoFile(t *testing.T) {
	for what, make := range map[string]func(path string) error{
		"a link":        func(path string) error { return os.Symlink("elsewhere", path) },
		"a link to one": func(path string) error { return os.Symlink(os.DevNull, path) },
		"a directory":   func(path string) error { return os.Mkdir(path, 0o700) },
		"a FIFO":        func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"two names": func(path string) error {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
			return os.Link(path, path+".second")
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := open(t)
			check(t, make(dir.Path()+"/"+name))
			if _, err := Acquire(t.Context(), dir, name, "bind", nil); !fault.Is(err, fault.LinkUnsafe) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("another's", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root to give a file away")
		}
		dir := open(t)
		check(t, os.WriteFile(dir.Path()+"/"+name, nil, 0o600))
		check(t, os.Chown(dir.Path()+"/"+name, 65534, 65534))
		if _, err := Acquire(t.Context(), dir, name, "bind", nil); !fault.Is(err, fault.OwnerMismatch) {
			t.Errorf("got %v", err)
		}
	})
}

func TestExclusion(t *testing.T) {
	dir := open(t)
	var inside atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 25 {
				lock, err := Acquire(context.Background(), dir, name, "count", nil)
				if err != nil {
					t.Error(err)
					return
				}
				if !inside.CompareAndSwap(0, 1) {
					t.Error("two are inside")
				}
				inside.Store(0)
				lock.Release()
			}
		})
	}
	all.Wait()
}

// A context that is over takes a free lock only if it was for the lock's time;
// a held one it refuses either way.
func TestEndedContext(t *testing.T) {
	dir := open(t)
	stopped := errors.New("stopped")
	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(stopped)
	if _, err := Acquire(canceled, dir, name, "x", nil); !errors.Is(err, stopped) {
		t.Errorf("canceled: %v", err)
	}
	late, cancelLate := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancelLate()
	lock, err := Acquire(late, dir, name, "x", nil)
	check(t, err)
	defer lock.Release()
	if _, err := Acquire(late, dir, name, "x", nil); !fault.Is(err, fault.LockUnavailable) {
		t.Errorf("out of time: %v", err)
	}
}

// TestMovedWhileWaiting: a directory that is not at its path any more when the
// lock comes is refused, and whatever stands at the path is left alone.
func TestMovedWhileWaiting(t *testing.T) {
	for what, change := range map[string]func(t *testing.T, path, aside string){
		"moved": func(t *testing.T, path, aside string) {
			check(t, os.Rename(path, aside))
		},
		"replaced": func(t *testing.T, path, aside string) {
			check(t, os.Rename(path, aside))
			check(t, os.Mkdir(path, 0o700))
		},
		"removed": func(t *testing.T, path, _ string) {
			check(t, os.RemoveAll(path))
		},
		"removed and made again": func(t *testing.T, path, _ string) {
			check(t, os.RemoveAll(path))
			check(t, os.Mkdir(path, 0o700))
		},
		"a link to it": func(t *testing.T, path, aside string) {
			check(t, os.Rename(path, aside))
			check(t, os.Symlink(aside, path))
		},
		"a link to another": func(t *testing.T, path, aside string) {
			check(t, os.Rename(path, aside))
			check(t, os.Mkdir(aside+".other", 0o700))
			check(t, os.Symlink(aside+".other", path))
		},
	} {
		t.Run(what, func(t *testing.T) {
			parent := open(t)
			dir, err := parent.Mkdir("home", 0o700)
			check(t, err)
			defer dir.Close()
			aside := parent.Path() + "/aside"
			lock := acquire(t, dir, "first")
			got := make(chan error)
			go func() {
				_, err := Acquire(context.Background(), dir, name, "second", nil)
				got <- err
			}()
			waitUntilBlocked(t)
			change(t, dir.Path(), aside)
			lock.Release()
			if err := <-got; !fault.Is(err, fault.LockUnavailable) || !strings.Contains(err.Error(), "moved or replaced") {
				t.Errorf("got %v", err)
			}
			for _, path := range []string{dir.Path(), aside + ".other"} {
				if left, _ := os.ReadDir(path); len(left) > 0 && what != "a link to it" {
					t.Errorf("%s holds %v", path, left)
				}
			}
		})
	}
}

// TestRemovedForEver: a file that loses its name again and again does not keep a
// command past its time.
func TestRemovedForEver(t *testing.T) {
	dir := open(t)
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				os.Remove(dir.Path() + "/" + name)
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for range 1000 { // each ends, one way or the other
		lock, err := Acquire(ctx, dir, name, "x", nil)
		if err != nil && !fault.Is(err, fault.LockUnavailable) {
			t.Error(err)
		}
		lock.Release()
	}
	close(stop)
	others.Wait()
}
