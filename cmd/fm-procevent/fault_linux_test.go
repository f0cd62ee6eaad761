package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"hawser/internal/dirfd"
	"hawser/internal/home"
	"hawser/tests/faulttest"
	"hawser/tests/hometest"
)

// change is a mutating command and the home that it is for. Its calls are each
// made its last, and each made to fail.
type change struct {
	name     string
	external bool
	prepare  func(t *testing.T, r *rig) (args []string)
	// after is what must hold in the end, when the command was repeated until it
	// said what it is to say, and a pass was made.
	after func(t *testing.T, r *rig)
	// once says that the command, repeated, is refused when it was killed late.
	once bool
	// only, if not nil, chooses calls: the others are those of another change.
	only *regexp.Regexp
}

const (
	anEvent  = "an event"
	terminal = "a terminal event"
)

var changes = []change{
	{
		name: "register",
		prepare: func(t *testing.T, r *rig) []string {
			r.adapter(t, "ci", "exit 1")
			return []string{"register", "ci", "s", "--", "true"}
		},
		after: registered,
	},
	{
		name: "register-extension", external: true,
		prepare: func(*testing.T, *rig) []string {
			return []string{"register-extension", adapter, "s", "--config-ref", "none"}
		},
		after: registered,
	},
	{
		name: "start of a terminal built-in", once: true,
		prepare: func(t *testing.T, r *rig) []string {
			r.builtin(t, "s", "echo "+terminal)
			r.adapter(t, "ci", `[ "$1" = terminal ]`)
			return []string{"start", "s"}
		},
		after: gone,
	},
	{
		name: "start that fails", external: true, only: regexp.MustCompile(`inbox|failures|failing`),
		prepare: func(t *testing.T, r *rig) []string {
			r.external(t, "s", "exit 1")
			return []string{"start", "s"}
		},
		after: registered,
	},
	{
		name: "start of a terminal source", external: true, once: true,
		prepare: func(t *testing.T, r *rig) []string {
			r.external(t, "s", terminal)
			return []string{"start", "s"}
		},
		after: gone,
	},
	{
		name: "start that is silent", external: true, only: regexp.MustCompile(`handled`),
		prepare: func(t *testing.T, r *rig) []string {
			r.external(t, "s", "a silent event")
			return []string{"start", "s"}
		},
		after: func(t *testing.T, r *rig) {
			registered(t, r)
			if keys := r.rows(t); len(keys) > 1 { // one whose verdict was not given is announced
				t.Errorf("announced: %q", keys)
			}
		},
	},
	{
		name: "handled",
		prepare: func(t *testing.T, r *rig) []string {
			r.builtin(t, "s", "echo "+anEvent)
			r.must(t, "start", "s")
			r.must(t, "register", "ci", "s", "--", "true")
			return []string{"handled", "s", "1"}
		},
		after: registered,
	},
	{
		name: "retire",
		prepare: func(t *testing.T, r *rig) []string {
			r.builtin(t, "s", "true")
			r.forge(t, "s", 1<<22-1, "linux-starttime=1 cmdline-hex=00")
			return []string{"retire", "s"}
		},
		after: gone,
	},
	{
		name: "retire of a package's", external: true, once: true,
		prepare: func(t *testing.T, r *rig) []string {
			token := r.external(t, "s", "none")
			r.forge(t, "s", 1<<22-1, "linux-starttime=1 cmdline-hex=00")
			return []string{"retire", "s", "--if-owner", token}
		},
		after: gone,
	},
	{
		name: "reconcile after a terminal verdict", external: true,
		prepare: func(t *testing.T, r *rig) []string {
			r.external(t, "s", "none")
			r.forge(t, "s", 1<<22-1, "linux-starttime=1 cmdline-hex=00", func(lines []string) { lines[6] = "terminal" })
			return []string{"reconcile"}
		},
		after: gone,
	},
	{
		name: "reconcile of what was not announced",
		prepare: func(t *testing.T, r *rig) []string {
			r.builtin(t, "s", "echo "+anEvent)
			r.must(t, "start", "s")
			r.must(t, "retire", "s")
			check(t, os.Remove(r.state(".wake-queue")))
			return []string{"reconcile"}
		},
		after: gone,
	},
	{
		name: "sweep-home", external: true,
		prepare: func(t *testing.T, r *rig) []string {
			r.external(t, "s", "none")
			r.builtin(t, "own", "true")
			r.forge(t, "s", 1<<22-1, "linux-starttime=1 cmdline-hex=00")
			return []string{"sweep-home"}
		},
		after: gone,
	},
}

func registered(t *testing.T, r *rig) {
	t.Helper()
	if _, err := os.Stat(r.registration("s")); err != nil {
		t.Errorf("the source is not registered: %v", err)
	}
}

func gone(t *testing.T, r *rig) {
	t.Helper()
	if found := find(t, r.state("procevent"), "s."); found != nil {
		t.Errorf("the source is not gone: %q", found)
	}
}

// TestFaults kills each mutating command at each of its system calls, and fails
// many of them once. Whatever is left is a home that lists, whose captured
// results are whole, and in which the next commands finish what was begun: every
// result that is not handled is announced, once, and no owner, package, record or
// temporary is left.
func TestFaults(t *testing.T) {
	faulttest.Require(t)
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFaultRig(t, c)
			for _, call := range f.calls {
				if c.only != nil && !c.only.MatchString(call.Text) {
					continue
				}
				if hasEffect(call) {
					t.Run(call.String(), func(t *testing.T) { f.killed(t, call) })
				}
				if canFail(call) {
					t.Run(call.String()+" fails", func(t *testing.T) { f.failed(t, call) })
				}
			}
			eventually(t, "nothing runs that was started in the home", f.isAtRest)
		})
	}
}

// hasEffect leaves out calls before which a kill leaves what a kill before the
// next call does: those that did nothing, that only sync, or that give a mode
// which the file has already; and those on the files of locks, whose content is
// for people.
func hasEffect(call faulttest.Call) bool {
	switch call.Kind {
	case "fchmod", "fsync":
		return false
	}
	return !strings.Contains(call.Text, ") = -1 ") && !strings.Contains(call.Text, ".flock")
}

// canFail chooses calls whose failure is told. Those of records and of the
// lifecycle lock are other tests' (package cmd/fm-extension), and a failed write
// could be one of the runtime's own.
func canFail(call faulttest.Call) bool {
	switch call.Kind {
	case "openat", "mkdirat", "symlinkat", "renameat", "renameat2", "fsync":
		return !strings.Contains(call.Text, ".flock") && !strings.Contains(call.Text, "invocation") && !strings.Contains(call.Text, "lifecycle")
	}
	return false
}

// faultRig is one command on one home, again and again.
type faultRig struct {
	*rig
	change
	args     []string
	pristine *rig // copies of home and claims
	calls    []faulttest.Call
}

func newFaultRig(t *testing.T, c change) *faultRig {
	r := newRig(t)
	if c.external {
		r.bind(t)
	}
	f := &faultRig{rig: r, change: c, args: c.prepare(t, r)}
	dir := hometest.Dir(t)
	f.pristine = &rig{home: filepath.Join(dir, "home"), claims: filepath.Join(dir, "claims")}
	check(t, os.MkdirAll(r.claims, 0o700))
	check(t, hometest.Restore(f.pristine.home, r.home))
	check(t, hometest.Restore(f.pristine.claims, r.claims))
	f.calls = faulttest.Mutations(t, r.command(f.args...))
	return f
}

// restore makes the home what it was, and what its claims say of it true.
func (f *faultRig) restore(t *testing.T) {
	t.Helper()
	check(t, hometest.Restore(f.home, f.pristine.home))
	check(t, hometest.Restore(f.claims, f.pristine.claims))
	if data, err := os.ReadFile(f.claim("s")); err == nil {
		lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
		f.forge(t, "s", 1<<22-1, lines[3], func(new []string) { new[6] = lines[6] })
	}
}

func (f *faultRig) killed(t *testing.T, call faulttest.Call) {
	defer f.explain(t, call)
	f.restore(t)
	result := call.Kill(t, f.command(f.args...))
	if !result.Hit && result.Err != nil {
		t.Fatalf("not killed, but: %v\n%s", result.Err, result.Stderr)
	}
	f.whole(t)
	if result.Hit {
		f.again(t)
	}
	f.settled(t)
}

func (f *faultRig) explain(t *testing.T, call faulttest.Call) {
	if t.Failed() {
		t.Log(call.Text)
	}
}

func (f *faultRig) failed(t *testing.T, call faulttest.Call) {
	defer f.explain(t, call)
	f.restore(t)
	result := call.Fail(t, f.command(f.args...), "ENOSPC")
	f.whole(t)
	for line := range strings.Lines(result.Stderr) {
		if !strings.HasPrefix(line, "error[io]: ") {
			t.Errorf("said %q", line)
		}
	}
	if result.Err != nil {
		f.again(t)
	}
	f.settled(t)
}

// whole checks what must hold at any time.
func (f *faultRig) whole(t *testing.T) {
	t.Helper()
	if list, err := f.host().List(); err != nil || list.Failed != nil {
		t.Errorf("list: %v, %v", err, list)
	}
	inbox, err := dirfd.Open(f.state("procevent-inbox"))
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	check(t, err)
	defer inbox.Close()
	results, err := home.Results(inbox)
	check(t, err)
	for _, r := range results {
		side, _ := os.ReadFile(f.state("procevent-inbox", r.String()+".adapter"))
		if name := string(bytes.TrimSpace(side)); name != "ci" && name != adapter {
			t.Errorf("%s is of the adapter %q", r, name)
		}
		if _, err := home.ReadOwner(inbox, r.ResultName); f.change.external != (err == nil) {
			t.Errorf("%s: its owner: %v", r, err)
		}
		data, err := os.ReadFile(f.state("procevent-inbox", r.String()+".result"))
		if err != nil || !bytes.Contains(data, []byte("event")) {
			t.Errorf("%s holds %q, %v", r, data, err)
		}
	}
}

// again repeats the command.
func (f *faultRig) again(t *testing.T) {
	t.Helper()
	s := f.run(t, append(f.args, "--lock-timeout=5s")...)
	over := s.exit == 1 && f.once && (strings.HasPrefix(s.stderr, "error[source-missing]: ") || strings.HasPrefix(s.stderr, "error[owner-mismatch]: "))
	if s.exit != 0 && !over {
		t.Errorf("repeated: exit %d\n%s%s", s.exit, s.stdout, s.stderr)
	}
}

// settled makes the pass that follows, and checks that nothing tells that
// something happened.
func (f *faultRig) settled(t *testing.T) {
	t.Helper()
	s := f.run(t, "reconcile")
	if _, _, _, uncertain := counts(t, s, 0); uncertain > 0 {
		t.Errorf("reconcile: %+v", s)
	}
	eventually(t, "no runner is left", func() error {
		if left := names(t, f.claims); left != nil {
			return errors.New(left[0])
		}
		return nil
	})
	f.whole(t)
	f.after(t, f.rig)
	f.announced(t)
	if swept, err := f.host().SweepHome(t.Context()); err != nil || swept.Failed != nil {
		t.Errorf("sweep-home: %v, %v", err, swept)
	}
	hometest.CheckAtRest(t, f.home)
	if left := append(names(t, f.claims), names(t, f.state("procevent"))...); left != nil {
		t.Errorf("left: %q", left)
	}
	if left := find(t, f.state(), ".wake-queue.lock"); left != nil {
		t.Errorf("left: %q", left)
	}
}

// announced checks that every result that is not handled has one row.
func (f *faultRig) announced(t *testing.T) {
	t.Helper()
	rows := map[string]int{}
	for _, key := range f.rows(t) {
		rows[key]++
		if rows[key] > 1 {
			t.Errorf("announced twice: %s", key)
		}
	}
	inbox, err := dirfd.Open(f.state("procevent-inbox"))
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	check(t, err)
	defer inbox.Close()
	results, err := home.Results(inbox)
	check(t, err)
	for _, r := range results {
		key := strings.Replace("procevent:"+r.String(), r.Source+".", r.Source+":", 1)
		if !r.Handled && rows[key] == 0 {
			t.Errorf("never announced: %s", key)
		}
	}
}
