package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// holdQueue takes the wake queue's lock as another program does (home: Wake
// queue), for the process that pid names; "" is a holder that wrote no pid.
func (r *rig) holdQueue(t *testing.T, pid string) (link string) {
	t.Helper()
	private := r.state(".wake-queue.lock.foreign")
	check(t, os.Mkdir(private, 0o700))
	if pid != "" {
		check(t, os.WriteFile(filepath.Join(private, "pid"), []byte(pid+"\n"), 0o600))
	}
	link = r.state(".wake-queue.lock")
	check(t, os.Symlink(private, link))
	return link
}

// since sets the time of a link itself.
func since(t *testing.T, link string, when time.Time) {
	t.Helper()
	at := []unix.Timespec{unix.NsecToTimespec(when.UnixNano()), unix.NsecToTimespec(when.UnixNano())}
	check(t, unix.UtimesNanoAt(unix.AT_FDCWD, link, at, unix.AT_SYMLINK_NOFOLLOW))
}

// A lock whose holder is gone is taken over; a result is announced all the same.
func TestQueueLockOfTheDead(t *testing.T) {
	t.Parallel()
	longAgo := time.Unix(1_000_000_000, 0)
	stale := map[string]func(t *testing.T, r *rig){
		"a dead pid": func(t *testing.T, r *rig) { r.holdQueue(t, "4194303") },
		"a pid that was reused": func(t *testing.T, r *rig) {
			since(t, r.holdQueue(t, strconv.Itoa(stranger(t))), time.Now().Add(-time.Hour))
		},
		"no pid":    func(t *testing.T, r *rig) { since(t, r.holdQueue(t, ""), time.Now().Add(-3*time.Second)) },
		"no number": func(t *testing.T, r *rig) { since(t, r.holdQueue(t, "me"), time.Now().Add(-3*time.Second)) },
		"older than the boot": func(t *testing.T, r *rig) {
			since(t, r.holdQueue(t, strconv.Itoa(os.Getpid())), longAgo)
		},
		"no directory": func(t *testing.T, r *rig) {
			link := r.holdQueue(t, "1")
			check(t, os.RemoveAll(r.state(".wake-queue.lock.foreign")))
			since(t, link, time.Now().Add(-3*time.Second))
		},
		"and a dead thief": func(t *testing.T, r *rig) {
			r.holdQueue(t, "4194303")
			private := r.state(".wake-queue.lock.steal.foreign")
			check(t, os.Mkdir(private, 0o700))
			check(t, os.WriteFile(filepath.Join(private, "pid"), []byte("4194302\n"), 0o600))
			check(t, os.Symlink(private, r.state(".wake-queue.lock.steal")))
		},
	}
	for name, hold := range stale {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.builtin(t, "s", "echo an event")
			hold(t, r)
			r.must(t, "start", "s")
			if keys := r.rows(t); fmt.Sprint(keys) != "[procevent:s:1]" {
				t.Errorf("announced: %q", keys)
			}
			if left := find(t, r.state(), ".wake-queue.lock"); left != nil {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// Every command is bounded in time, whoever has which lock.
func TestLockTimeout(t *testing.T) {
	t.Parallel()
	r := newExternal(t)
	r.builtin(t, "s", "echo an event")
	token := r.external(t, "ext", "none")
	check(t, os.MkdirAll(r.claims, 0o700))

	lock := lockFile(t, filepath.Join(r.claims, "s.flock"))
	for _, args := range [][]string{{"start", "s"}, {"retire", "s"}, {"register", "ci", "s", "--", "true"}} {
		r.refused(t, "lock-unavailable", "s.flock is held by", append([]string{"--lock-timeout", "50ms"}, args...)...)
	}
	s := r.run(t, "reconcile", "--lock-timeout", "50ms")
	if _, started, _, _ := counts(t, s, 1); started != 1 || !strings.HasPrefix(s.stderr, "error[lock-unavailable]: ") || !strings.Contains(s.stderr, "s.flock") {
		t.Errorf("reconcile: %+v", s)
	}
	lock.Close()
	eventually(t, "the runner that was started is done", func() error {
		if left := names(t, r.claims); left != nil {
			return fmt.Errorf("claims: %q", left)
		}
		return nil
	})

	lock = lockFile(t, filepath.Join(r.home, "data/extensions/lifecycle.flock"))
	for _, args := range [][]string{
		{"register-extension", adapter, "other", "--config-ref", "none"}, {"retire", "ext", "--if-owner", token},
		{"binding-retirement-preflight", r.binding},
	} {
		r.refused(t, "lock-unavailable", "lifecycle.flock is held by", append([]string{"--lock-timeout", "50ms"}, args...)...)
	}
	lock.Close()

	// The queue's holder is alive: the result is captured, and announced by the
	// first that gets the lock.
	link := r.holdQueue(t, strconv.Itoa(os.Getpid()))
	r.refused(t, "lock-unavailable", ".wake-queue.lock is held by process "+strconv.Itoa(os.Getpid()), "--lock-timeout", "50ms", "start", "s")
	if found := find(t, r.state("procevent-inbox"), "s.1."); len(found) != 2 || r.rows(t) != nil {
		t.Errorf("captured: %q, rows: %q", found, r.rows(t))
	}
	r.refused(t, "lock-unavailable", ".wake-queue.lock", "--lock-timeout", "50ms", "reconcile")
	check(t, os.Remove(link))
	r.must(t, "retire", "s")
	if published, _, _, _ := r.reconcile(t); published != 1 {
		t.Errorf("published %d", published)
	}
}

// foreign is what other programs do with the queue, as home: Wake queue says it:
// it appends rows, and now and then writes the whole queue anew.
const foreign = `
lock=$1/.wake-queue.lock
take() {
	private=$(mktemp -d "$lock.XXXXXX")
	echo $$ >"$private/pid"
	until ln -s "$private" "$lock" 2>/dev/null && [ "$(readlink "$lock")" = "$private" ]; do
		rm -f "$private/${private##*/}" # ln follows a link to a directory
		sleep 0.001
	done
}
give() {
	[ "$(readlink "$lock")" = "$private" ] && rm -f "$lock"
	rm -r "$private"
}
for i in $(seq "$3"); do
	take
	n=$(($(cat "$1/.wake-queue.seq" 2>/dev/null || echo 0) + 1))
	echo "$n" >"$1/.wake-queue.seq"
	printf '1\t%d\tsignal\t%s:%d\tsomething else\n' "$n" "$2" "$i" >>"$1/.wake-queue"
	if [ $((i % 5)) = 0 ]; then
		cp "$1/.wake-queue" "$private/new" && mv "$private/new" "$1/.wake-queue"
	fi
	give
done
`

// Rows of ours and of other programs, at the same time: none is lost, none comes
// twice, and each has a number of its own.
func TestQueueWithOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const programs, each, sources, events = 2, 20, 3, 5
	for i := range sources {
		r.builtin(t, fmt.Sprintf("s%d", i), "echo an event")
	}
	var all sync.WaitGroup
	for i := range programs {
		all.Go(func() {
			out, err := exec.Command("/bin/sh", "-c", foreign, "sh", r.state(), fmt.Sprintf("other%d", i), strconv.Itoa(each)).CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	for i := range sources {
		all.Go(func() {
			for range events {
				if s := r.run(t, "start", fmt.Sprintf("s%d", i)); s.exit != 0 {
					t.Errorf("%+v", s)
				}
			}
		})
	}
	all.Wait()
	keys := map[string]int{}
	for _, key := range r.rows(t) {
		keys[key]++
	}
	if len(keys) != programs*each+sources*events {
		t.Errorf("%d keys instead of %d", len(keys), programs*each+sources*events)
	}
	numbers := map[string]bool{}
	data, err := os.ReadFile(r.state(".wake-queue"))
	check(t, err)
	for line := range strings.Lines(string(data)) {
		fields := strings.Split(line, "\t")
		if len(fields) != 5 || numbers[fields[1]] || keys[fields[3]] != 1 {
			t.Errorf("%q", line)
		}
		numbers[fields[1]] = true
	}
	if left := find(t, r.state(), ".wake-queue.lock"); left != nil {
		t.Errorf("left: %q", left)
	}
}

// What a lock's file is for: a person can read who has it.
func TestLockHolder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	path := fifo(t)
	r.builtin(t, "s", "echo half; read -r line <"+path)
	r.adapter(t, "ci", "if [ \"$1\" = silent ]; then cat "+filepath.Join(r.claims, "s.flock")+" >"+r.state("seen")+"; fi; exit 1")
	s := r.start(t, "s")
	event(t, path, "")
	if said := s.ends(t); said.exit != 0 {
		t.Errorf("%+v", said)
	}
	// No lock is held through a poll or a verdict.
	if data, err := os.ReadFile(r.state("seen")); err != nil || strings.TrimSpace(string(data)) != "" {
		t.Errorf("while the verdict was asked, the lock said %q, %v", data, err)
	}
	file, err := os.Open(filepath.Join(r.claims, "s.flock"))
	check(t, err)
	defer file.Close()
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Error(err)
	}
}
