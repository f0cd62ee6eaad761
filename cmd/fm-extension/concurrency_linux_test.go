package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hawser/tests/hometest"
)

// together runs commands in one home at once and returns how many exited with 0,
// and what the others said.
func together(t *testing.T, home string, commands ...[]string) (succeeded int, refusals []string) {
	t.Helper()
	s := &stage{home: home}
	var all sync.WaitGroup
	var results sync.Mutex
	for _, args := range commands {
		r := s.start(t, append(args, "--lock-timeout", "10m")...)
		all.Go(func() {
			_, stderr, code := r.end()
			results.Lock()
			defer results.Unlock()
			if code == 0 {
				succeeded++
			} else {
				refusals = append(refusals, stderr)
			}
		})
	}
	all.Wait()
	return succeeded, refusals
}

const many = 32

// TestBindOneAtOnce: of many who bind one extension at once, one does.
func TestBindOneAtOnce(t *testing.T) {
	t.Parallel()
	home, pkg := hometest.New(t), hometest.Package{}.Make(t)
	succeeded, refusals := together(t, home, repeat(bindArgs(pkg), many)...)
	if succeeded != 1 || len(refusals) != many-1 {
		t.Errorf("%d succeeded", succeeded)
	}
	for _, stderr := range refusals {
		if !strings.HasPrefix(stderr, "error[binding-exists]: ") {
			t.Error(stderr)
		}
	}
	hometest.CheckAtRest(t, home)
	s := &stage{home: home}
	if out := s.must(t, "verify"); strings.Count(out, "\n") != 1 {
		t.Error(out)
	}
}

func repeat(args []string, n int) (all [][]string) {
	for range n {
		all = append(all, args)
	}
	return all
}

// TestBindManyAtOnce: of many extensions that are bound at once, all are.
func TestBindManyAtOnce(t *testing.T) {
	t.Parallel()
	home := hometest.New(t)
	var commands [][]string
	for n := range many {
		pkg := hometest.Package{ID: fmt.Sprintf("org.example.n%d", n), Adapters: []string{fmt.Sprintf("n%d", n)}}.Make(t)
		commands = append(commands, []string{"bind", pkg, "--adapter", fmt.Sprintf("n%d", n), "--trust-same-user-code"})
	}
	if succeeded, refusals := together(t, home, commands...); succeeded != many {
		t.Errorf("%d succeeded: %q", succeeded, refusals)
	}
	hometest.CheckAtRest(t, home)
	s := &stage{home: home}
	if out := s.must(t, "verify"); strings.Count(out, "\n") != many {
		t.Error(out)
	}
}

// TestRetireAtOnce: of many who retire one binding at once, one does, and then
// one brings it back.
func TestRetireAtOnce(t *testing.T) {
	t.Parallel()
	home, pkg := hometest.New(t), hometest.Package{}.Make(t)
	digest := bind(t, home, pkg)
	for _, args := range [][]string{
		{"retire-binding", extension, "--if-binding-digest", digest},
		{"restore-binding", extension, "--binding-digest", digest},
	} {
		if succeeded, refusals := together(t, home, repeat(args, 8)...); succeeded != 1 {
			t.Errorf("%s: %d succeeded: %q", args[0], succeeded, refusals)
		}
		hometest.CheckAtRest(t, home)
	}
	(&stage{home: home}).must(t, "verify", extension)
}

// TestBindAndRetireAgain: the same package, again and again, leaves one retained
// file and nothing else.
func TestBindAndRetireAgain(t *testing.T) {
	t.Parallel()
	home, pkg := hometest.New(t), hometest.Package{}.Make(t)
	s := &stage{home: home}
	first := ""
	for n := range 20 {
		digest := bind(t, home, pkg)
		if n == 0 {
			first = digest
		}
		if digest != first {
			t.Fatalf("bound again it is %s, not %s", digest, first)
		}
		s.must(t, "retire-binding", extension, "--if-binding-digest", digest)
	}
	hometest.CheckAtRest(t, home)
	retained, err := filepath.Glob(filepath.Join(home, "data/extensions/retired-bindings/*/*"))
	check(t, err)
	packages, err := filepath.Glob(filepath.Join(home, "data/extensions/packages/*/*/*"))
	check(t, err)
	if len(retained) != 1 || len(packages) != 1 {
		t.Errorf("there are %q and %q", retained, packages)
	}
}

// TestPollsHoldNoLock: while many sources wait, everything else goes on, except
// what would take the binding from under them.
func TestPollsHoldNoLock(t *testing.T) {
	t.Parallel()
	home, pkg := hometest.New(t), hometest.Package{}.Make(t)
	s := &stage{home: home}
	bound := s.must(t, bindArgs(pkg)...)
	digest := printed(bound, "binding-digest")
	fifos := hometest.Dir(t)
	poll := func(fifo, source string) []string {
		return []string{"process-event", "sh", "source.poll", "--source-id", source, "--config-ref", fifo,
			"--expect-extension", extension, "--expect-version", "1.0.0", "--expect-capability-version", "1",
			"--expect-package-digest", printed(bound, "package-digest"), "--expect-binding-digest", digest}
	}
	polls, gates := map[string]*running{}, map[string]*os.File{}
	for n := range 16 {
		source := fmt.Sprintf("s%d", n)
		fifo := filepath.Join(fifos, source)
		check(t, exec.Command("mkfifo", fifo).Run())
		polls[source] = s.start(t, poll(fifo, source)...)
		gates[source] = opened(t, fifo) // this one waits by now
	}

	other := hometest.Package{ID: "org.example.other", Adapters: []string{"other"}}.Make(t)
	out := s.must(t, "bind", other, "--adapter", "other", "--trust-same-user-code", "--lock-timeout", "10s")
	s.must(t, "list", "--lock-timeout", "1s")
	s.must(t, "verify", "--lock-timeout", "10s")
	s.must(t, "retire-binding", "org.example.other", "--if-binding-digest", printed(out, "binding-digest"), "--lock-timeout", "10s")
	s.refused(t, "binding-in-use", "an operation of the binding is under way: source.poll of org.example.sh", "retire-binding", extension, "--if-binding-digest", digest)

	for source, gate := range gates {
		_, err := gate.WriteString("event of " + source + "\n")
		check(t, err)
	}
	for source, r := range polls {
		if stdout, stderr, code := r.end(); code != 0 || stdout != "event of "+source {
			t.Errorf("%s: exit %d, %q: %s", source, code, stdout, stderr)
		}
	}
	hometest.CheckAtRest(t, home)
	s.must(t, "retire-binding", extension, "--if-binding-digest", digest)
}

// TestLockIsHeld: who needs the lock waits as long as told and says whom for; who
// does not need it does not wait.
func TestLockIsHeld(t *testing.T) {
	t.Parallel()
	home := hometest.New(t)
	s := &stage{home: home}
	first := hometest.Package{ID: "org.example.first", Adapters: []string{"first"}}.Make(t)
	s.must(t, "bind", first, "--adapter", "first", "--trust-same-user-code")
	other := bindArgs(hometest.Package{}.Make(t))
	var waiter *running
	check(t, hostOf(home).Locked(t.Context(), "hold on", func() error {
		says := fmt.Sprintf("is held by process %d (hold on) since ", os.Getpid())
		began := time.Now()
		s.refused(t, "lock-unavailable", says, append(other, "--lock-timeout", "100ms")...)
		if took := time.Since(began); took < 100*time.Millisecond {
			t.Errorf("it waited only %v", took)
		}
		s.refused(t, "lock-unavailable", says, "verify", "org.example.first", "--lock-timeout", "1ms")
		s.refused(t, "lock-unavailable", says, "cleanup-invocations", "--lock-timeout", "1ms")
		s.must(t, "list")
		s.must(t, "inspect", "org.example.first")

		waiter = s.start(t, other...)
		waitsForLock(t, waiter)
		return nil
	}))
	if _, stderr, code := waiter.end(); code != 0 {
		t.Errorf("exit %d: %s", code, stderr)
	}
	hometest.CheckAtRest(t, home)
}

// waitsForLock returns when the command waits for the lock.
func waitsForLock(t *testing.T, r *running) {
	t.Helper()
	eventually(t, "it does not wait", func() error {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", r.Process.Pid))
		for _, thread := range threads {
			text, _ := os.ReadFile(thread)
			if strings.HasPrefix(string(text), fmt.Sprintf("%d ", syscall.SYS_FLOCK)) {
				return nil
			}
		}
		return errors.New("no thread is in flock")
	})
}

// TestBindHoldsTheLock: a bind holds the lock through its handshake.
func TestBindHoldsTheLock(t *testing.T) {
	t.Parallel()
	s := newStage(t, "waits in its handshake")
	holder := s.start(t, s.bindArgs()...)
	gate := s.opened(t)
	other := bindArgs(hometest.Package{}.Make(t))
	says := fmt.Sprintf("is held by process %d (bind org.example.behaving) since ", holder.Process.Pid)
	s.refused(t, "lock-unavailable", says, append(other, "--lock-timeout", "1ms")...)
	_, err := gate.WriteString("go\n")
	check(t, err)
	if _, stderr, code := holder.end(); code != 0 {
		t.Errorf("exit %d: %s", code, stderr)
	}
	hometest.CheckAtRest(t, s.home)
}

// TestLockFileRemovedWhileHeld: the lock that other hosts take still excludes.
func TestLockFileRemovedWhileHeld(t *testing.T) {
	t.Parallel()
	home := hometest.New(t)
	s := &stage{home: home}
	args := bindArgs(hometest.Package{}.Make(t))
	check(t, hostOf(home).Locked(t.Context(), "hold on", func() error {
		check(t, os.Remove(filepath.Join(home, "data/extensions/lifecycle.flock")))
		s.refused(t, "lock-unavailable", fmt.Sprintf("is held by process %d", os.Getpid()), append(args, "--lock-timeout", "50ms")...)
		return nil
	}))
	s.must(t, args...)
	hometest.CheckAtRest(t, home)
}

// TestLockIsNoFile: what stands in the place of a lock is refused, and named.
func TestLockIsNoFile(t *testing.T) {
	t.Parallel()
	home := hometest.New(t)
	s := &stage{home: home}
	args := bindArgs(hometest.Package{}.Make(t))
	s.must(t, args...)
	ours := filepath.Join(home, "data/extensions/lifecycle.flock")
	check(t, os.Remove(ours))
	check(t, os.Symlink("elsewhere", ours))
	s.refused(t, "link-unsafe", ours, "verify")
	check(t, os.Remove(ours))
	check(t, os.Mkdir(ours, 0o700))
	s.refused(t, "link-unsafe", ours, "verify")
	check(t, os.Remove(ours))
	foreign := filepath.Join(home, "state/procevent/.extension-binding-lifecycle.lock")
	check(t, os.WriteFile(foreign, nil, 0o600))
	s.refused(t, "path-unsafe", foreign, "verify")
	check(t, os.Remove(foreign))
	s.must(t, "verify")
}

// TestLockOfAnotherHost: another host of the contract locks the lifecycle its own
// way; it is waited for while it lives, and not after.
func TestLockOfAnotherHost(t *testing.T) {
	t.Parallel()
	home := hometest.New(t)
	s := &stage{home: home}
	s.must(t, bindArgs(hometest.Package{}.Make(t))...)
	lock := filepath.Join(home, "state/procevent/.extension-binding-lifecycle.lock")
	take := func(pid int) {
		t.Helper()
		check(t, os.MkdirAll(lock+".other", 0o700))
		check(t, os.WriteFile(lock+".other/pid", fmt.Appendf(nil, "%d\n", pid), 0o600))
		check(t, os.Symlink(lock+".other", lock))
	}
	take(os.Getpid())
	s.refused(t, "lock-unavailable", fmt.Sprintf("%s is held by process %d", lock, os.Getpid()), "verify", "--lock-timeout", "50ms")
	s.must(t, "list")
	waiter := s.start(t, "verify")
	check(t, os.Remove(lock))
	check(t, hometest.Remove(lock+".other"))
	if _, stderr, code := waiter.end(); code != 0 {
		t.Errorf("exit %d: %s", code, stderr)
	}
	dead := exec.Command("true")
	check(t, dead.Run())
	take(dead.Process.Pid)
	s.must(t, "verify", "--lock-timeout", "10s")
	hometest.CheckAtRest(t, home)
}
