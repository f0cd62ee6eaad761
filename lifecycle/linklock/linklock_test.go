package linklock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/invoke/process"
)

const (
	name = ".lock"

	// counterVariable makes the test binary a process that counts under the lock.
	counterVariable = "LINKLOCK_TEST_COUNTER"
	rounds          = 25
)

func TestMain(m *testing.M) {
	if path := os.Getenv(counterVariable); path != "" {
		count(path)
		return
	}
	os.Exit(m.Run())
}

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

func acquire1(t testing.TB, dir *dirfd.Dir) *Lock {
	t.Helper()
	lock, err := Acquire(t.Context(), dir, name, nil)
	check(t, err)
	return lock
}

// short is a context for a lock that is not to be had.
func short(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func wantNames(t testing.TB, dir *dirfd.Dir, want ...string) {
	t.Helper()
	names, err := dir.Names()
	check(t, err)
	if fmt.Sprint(names) != fmt.Sprint(want) {
		t.Fatalf("there are %q, not %q", names, want)
	}
}

func TestHeldAndReleased(t *testing.T) {
	dir := open(t)
	lock := acquire1(t, dir)
	target, err := os.Readlink(dir.Path() + "/" + name)
	check(t, err)
	if filepath.Dir(target) != dir.Path() {
		t.Errorf("the link leads to %s", target)
	}
	info, err := os.Stat(target)
	check(t, err)
	if info.Mode() != os.ModeDir|0o700 {
		t.Errorf("its directory has mode %v", info.Mode())
	}
	pid, err := os.ReadFile(target + "/pid")
	check(t, err)
	if strings.TrimSpace(string(pid)) != strconv.Itoa(os.Getpid()) {
		t.Errorf("its holder is %q", pid)
	}

	_, err = Acquire(short(t), dir, name, nil)
	if !fault.Is(err, fault.LockUnavailable) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("a second holder: %v", err)
	}
	lock.Release()
	wantNames(t, dir)
	acquire1(t, dir).Release()
	wantNames(t, dir)
}

func TestOneWhoWaitsGetsIt(t *testing.T) {
	dir := open(t)
	lock := acquire1(t, dir)
	got := make(chan *Lock)
	go func() {
		next, err := Acquire(context.Background(), dir, name, nil)
		if err != nil {
			t.Error(err)
		}
		got <- next
	}()
	lock.Release()
	next := <-got
	next.Release()
	wantNames(t, dir)
}

// stale makes a lock that somebody else took, at the time taken.
func stale(t testing.TB, dir *dirfd.Dir, lock, pid string, taken time.Time) (target string) {
	t.Helper()
	target = dir.Path() + "/" + lock + ".other-host"
	check(t, os.Mkdir(target, 0o700))
	if pid != "" {
		check(t, os.WriteFile(target+"/pid", []byte(pid), 0o600))
	}
	link(t, dir, lock, target, taken)
	return target
}

func link(t testing.TB, dir *dirfd.Dir, lock, target string, taken time.Time) {
	t.Helper()
	check(t, os.Symlink(target, dir.Path()+"/"+lock))
	at := unix.NsecToTimespec(taken.UnixNano())
	check(t, unix.UtimesNanoAt(dir.Fd(), lock, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW))
}

func deadPid(t testing.TB) string {
	t.Helper()
	cmd := exec.Command("true")
	check(t, cmd.Run())
	return strconv.Itoa(cmd.Process.Pid)
}

func TestStaleIsTakenOver(t *testing.T) {
	boot, err := process.BootTime()
	check(t, err)
	me := strconv.Itoa(os.Getpid())
	now := time.Now()
	for what, make := range map[string]func(t *testing.T, dir *dirfd.Dir){
		"dead holder":              func(t *testing.T, dir *dirfd.Dir) { stale(t, dir, name, deadPid(t)+"\n", now) },
		"dead holder, no line end": func(t *testing.T, dir *dirfd.Dir) { stale(t, dir, name, deadPid(t), now) },
		"holder that is younger":   func(t *testing.T, dir *dirfd.Dir) { stale(t, dir, name, me+"\n", now.Add(-time.Hour)) },
		"older than the boot":      func(t *testing.T, dir *dirfd.Dir) { stale(t, dir, name, "1\n", boot.Add(-time.Hour)) },
		"no pid for long":          func(t *testing.T, dir *dirfd.Dir) { stale(t, dir, name, "", now.Add(-time.Minute)) },
		"empty pid for long":       func(t *testing.T, dir *dirfd.Dir) { stale(t, dir, name, "\n", now.Add(-time.Minute)) },
		"no number for long":       func(t *testing.T, dir *dirfd.Dir) { stale(t, dir, name, "-7\n", now.Add(-time.Minute)) },
		"dangling for long": func(t *testing.T, dir *dirfd.Dir) {
			link(t, dir, name, dir.Path()+"/gone", now.Add(-time.Minute))
		},
		"relative": func(t *testing.T, dir *dirfd.Dir) {
			target := stale(t, dir, name, deadPid(t), now)
			check(t, os.Remove(dir.Path()+"/"+name))
			link(t, dir, name, filepath.Base(target), now)
		},
		"dead thief": func(t *testing.T, dir *dirfd.Dir) {
			stale(t, dir, name, deadPid(t), now)
			stale(t, dir, name+stealSuffix, deadPid(t), now)
		},
		"ours, before its pid was written": func(t *testing.T, dir *dirfd.Dir) {
			target := dir.Path() + "/" + name + ours + deadPid(t) + "-x"
			check(t, os.Mkdir(target, 0o700))
			link(t, dir, name, target, now)
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := open(t)
			make(t, dir)
			acquire1(t, dir).Release()
			check(t, Sweep(dir, name))
			wantNames(t, dir)
		})
	}
}

// TestForeignPlaceIsNotRemoved: only what is named as the lock's goes with it.
func TestForeignPlaceIsNotRemoved(t *testing.T) {
	dir, elsewhere := open(t), open(t)
	check(t, os.WriteFile(elsewhere.Path()+"/pid", []byte(deadPid(t)), 0o600))
	check(t, os.WriteFile(elsewhere.Path()+"/precious", nil, 0o600))
	link(t, dir, name, elsewhere.Path(), time.Now())
	acquire1(t, dir).Release()
	wantNames(t, dir)
	wantNames(t, elsewhere, "pid", "precious")

	check(t, os.Mkdir(dir.Path()+"/other", 0o700))
	check(t, os.WriteFile(dir.Path()+"/other/pid", []byte(deadPid(t)), 0o600))
	link(t, dir, name, dir.Path()+"/other", time.Now())
	acquire1(t, dir).Release()
	wantNames(t, dir, "other")
}

func TestLivingIsLeftAlone(t *testing.T) {
	me := strconv.Itoa(os.Getpid())
	for what, make := range map[string]func(t *testing.T, dir *dirfd.Dir){
		"holder":           func(t *testing.T, dir *dirfd.Dir) { stale(t, dir, name, me, time.Now()) },
		"holder of others": func(t *testing.T, dir *dirfd.Dir) { stale(t, dir, name, "1", time.Now()) },
		"no pid yet":       func(t *testing.T, dir *dirfd.Dir) { stale(t, dir, name, "", time.Now()) },
		"thief": func(t *testing.T, dir *dirfd.Dir) {
			stale(t, dir, name, deadPid(t), time.Now())
			stale(t, dir, name+stealSuffix, me, time.Now())
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := open(t)
			make(t, dir)
			before, err := dir.Names()
			check(t, err)
			if _, err := Acquire(short(t), dir, name, nil); !fault.Is(err, fault.LockUnavailable) {
				t.Errorf("got %v", err)
			}
			wantNames(t, dir, before...)
		})
	}
}

func TestNoLock(t *testing.T) {
	dir := open(t)
	check(t, os.WriteFile(dir.Path()+"/"+name, nil, 0o600))
	if _, err := Acquire(t.Context(), dir, name, nil); !fault.Is(err, fault.PathUnsafe) {
		t.Errorf("got %v", err)
	}
	if _, err := AcquireAlone(t.Context(), dir, name, nil); !fault.Is(err, fault.PathUnsafe) {
		t.Errorf("got %v", err)
	}
	wantNames(t, dir, name)
}

// TestReleaseOfALostLock: a lock that somebody took over stays theirs.
func TestReleaseOfALostLock(t *testing.T) {
	dir := open(t)
	lock := acquire1(t, dir)
	check(t, os.Remove(dir.Path()+"/"+name))
	target := stale(t, dir, name, "1", time.Now())
	lock.Release()
	wantNames(t, dir, name, filepath.Base(target))
}

func TestSweep(t *testing.T) {
	dir := open(t)
	dead, me := deadPid(t), strconv.Itoa(os.Getpid())
	for _, entry := range []string{
		name + ours + dead + "-a", name + stealSuffix + ours + dead + "-b", // left by crashes
		name + ours + me + "-c", // about to take it
		name + ".other-host",    // not ours
		"other" + ours + dead + "-d",
	} {
		check(t, os.Mkdir(dir.Path()+"/"+entry, 0o700))
	}
	check(t, os.WriteFile(dir.Path()+"/"+name+ours+dead+"-a/pid", nil, 0o600))
	check(t, os.Symlink("anywhere", dir.Path()+"/"+name+ours+dead+"-moved-aside"))
	check(t, Sweep(dir, name))
	wantNames(t, dir, name+ours+me+"-c", name+".other-host", "other"+ours+dead+"-d")
}

func TestAlone(t *testing.T) {
	dir := open(t)
	for range 3 {
		lock, err := AcquireAlone(t.Context(), dir, name, nil)
		check(t, err)
		if _, err := Acquire(short(t), dir, name, nil); !fault.Is(err, fault.LockUnavailable) {
			t.Errorf("a second holder: %v", err)
		}
		pid, err := os.ReadFile(dir.Path() + "/" + name + "/pid")
		check(t, err)
		if string(pid) != strconv.Itoa(os.Getpid())+"\n" {
			t.Errorf("its holder is %q", pid)
		}
		lock.Release()
		wantNames(t, dir, name+standingSuffix)
	}
	// What stays of it is written over whole, and cleared with a stale lock.
	check(t, os.WriteFile(dir.Path()+"/"+name+standingSuffix+"/pid", []byte("1234567890\n"), 0o600))
	lock, err := AcquireAlone(t.Context(), dir, name, nil)
	check(t, err)
	lock.Release()
	check(t, os.WriteFile(dir.Path()+"/"+name+standingSuffix+"/pid", []byte(deadPid(t)), 0o600))
	link(t, dir, name, dir.Path()+"/"+name+standingSuffix, time.Now())
	lock, err = AcquireAlone(t.Context(), dir, name, nil)
	check(t, err)
	lock.Release()
	acquire1(t, dir).Release()
}

func TestWaitingIsSaid(t *testing.T) {
	dir := open(t)
	lock := acquire1(t, dir)
	said := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		next, err := Acquire(context.Background(), dir, name, func(line string) { said <- line })
		if err != nil {
			t.Error(err)
			return
		}
		next.Release()
	}()
	if line := <-said; !strings.Contains(line, fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("said %q", line)
	}
	lock.Release()
	<-done
}

// TestExclusion: of many, goroutines and processes, one is inside at a time.
func TestExclusion(t *testing.T) {
	dir := open(t)
	counter := dir.Path() + "/counter"
	check(t, os.WriteFile(counter, []byte("0"), 0o600))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), counterVariable+"="+counter)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	var inside atomic.Int32
	for range 4 {
		all.Go(func() {
			for range rounds {
				lock, err := Acquire(context.Background(), dir, name, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if !inside.CompareAndSwap(0, 1) {
					t.Error("two are inside")
				}
				increment(counter)
				inside.Store(0)
				lock.Release()
			}
		})
	}
	all.Wait()
	text, err := os.ReadFile(counter)
	check(t, err)
	if want := strconv.Itoa(8 * rounds); string(text) != want {
		t.Errorf("counted %s instead of %s", text, want)
	}
	wantNames(t, dir, "counter")
}

// count is a process that takes the lock and counts.
func count(counter string) {
	dir, err := dirfd.Open(filepath.Dir(counter))
	if err != nil {
		panic(err)
	}
	for range rounds {
		lock, err := Acquire(context.Background(), dir, name, nil)
		if err != nil {
			panic(err)
		}
		increment(counter)
		lock.Release()
	}
}

func increment(counter string) {
	text, err := os.ReadFile(counter)
	if err != nil {
		panic(err)
	}
	n, _ := strconv.Atoi(string(text))
	if err := os.WriteFile(counter, []byte(strconv.Itoa(n+1)), 0o600); err != nil {
		panic(err)
	}
}

// TestThieves: many find the same stale lock at once, again and again, and one
// is inside at a time.
func TestThieves(t *testing.T) {
	dir := open(t)
	var inside atomic.Int32
	for range 20 {
		target := dir.Path() + "/" + name + ".other-host"
		_ = os.RemoveAll(target)
		stale(t, dir, name, deadPid(t), time.Now())
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				lock, err := Acquire(context.Background(), dir, name, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if !inside.CompareAndSwap(0, 1) {
					t.Error("two are inside")
				}
				inside.Store(0)
				lock.Release()
			})
		}
		all.Wait()
	}
	wantNames(t, dir)
}

// A context that is over takes a free lock only if it was for the lock's time;
// a held one it refuses either way.
func TestEndedContext(t *testing.T) {
	dir := open(t)
	stopped := errors.New("stopped")
	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(stopped)
	if _, err := Acquire(canceled, dir, name, nil); !errors.Is(err, stopped) {
		t.Errorf("canceled: %v", err)
	}
	late, cancelLate := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancelLate()
	lock, err := Acquire(late, dir, name, nil)
	check(t, err)
	if _, err := Acquire(late, dir, name, nil); !fault.Is(err, fault.LockUnavailable) {
		t.Errorf("out of time: %v", err)
	}
	lock.Release()
	wantNames(t, dir)
}
