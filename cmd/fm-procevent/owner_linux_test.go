package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"hawser/tests/hometest"
)

// A runner that is killed outright leaves its package running. The next pass
// stops that by the record, and starts the source again.
func TestKilledRunnerOfAPackage(t *testing.T) {
	t.Parallel()
	r := newExternal(t)
	path := fifo(t)
	r.external(t, "s", path)
	r.wants(t, "published=0 started=1 stopped=0 uncertain=0")
	runner := r.owner(t, "s")
	leader, _ := r.operation(t, path)
	kill(t, runner)
	if !alive(leader) {
		t.Fatal("the package died with its runner")
	}
	if s := r.run(t, "list"); s.stdout != "SOURCE ADAPTER OWNER PENDING\ns feed orphaned 0\n" || !strings.Contains(s.stderr, "fm-procevent reconcile ends it") {
		t.Errorf("list: %q %q", s.stdout, s.stderr)
	}
	r.wants(t, "published=0 started=1 stopped=1 uncertain=0")
	if alive(leader) {
		t.Error("the package of the dead runner still runs")
	}
	if r.owner(t, "s") == runner {
		t.Error("the claim is still the dead runner's")
	}
}

// The same, when the package's first process is gone and others of its group are
// left: they are proved by the token in their environment.
func TestKilledRunnerAndLeader(t *testing.T) {
	t.Parallel()
	r := newExternal(t)
	path := fifo(t)
	r.external(t, "s", "group "+path)
	r.wants(t, "published=0 started=1 stopped=0 uncertain=0")
	runner := r.owner(t, "s")
	leader, _ := r.operation(t, path)
	kill(t, runner)
	kill(t, leader) // a child of it still waits
	if s := r.run(t, "list"); !strings.Contains(s.stdout, "s feed orphaned 0") {
		t.Errorf("list: %q %q", s.stdout, s.stderr)
	}
	r.wants(t, "published=0 started=1 stopped=1 uncertain=0")
	if r.owner(t, "s") == runner {
		t.Error("the claim is still the dead runner's")
	}
}

// start and retire settle what a dead runner left as well.
func TestStartAndRetireSettle(t *testing.T) {
	t.Parallel()
	r := newExternal(t)
	path := fifo(t)
	token := r.external(t, "s", path)
	r.wants(t, "published=0 started=1 stopped=0 uncertain=0")
	runner := r.owner(t, "s")
	leader, _ := r.operation(t, path)
	kill(t, runner)
	s := r.start(t, "s")
	eventually(t, "the new runner owns the source", func() error {
		if r.claimant("s") != s.Process.Pid {
			return errors.New("not yet")
		}
		return nil
	})
	if alive(leader) {
		t.Error("the package of the dead runner still runs")
	}
	leader, _ = r.operation(t, path)
	kill(t, s.Process.Pid)
	r.must(t, "retire", "s", "--if-owner", token)
	if alive(leader) {
		t.Error("the package of the dead runner still runs")
	}
	if left := names(t, r.state("extension-invocations")); left != nil {
		t.Errorf("left: %q", left)
	}
}

// A built-in's command runs in its runner's group and outlives it. It is proved
// by the claim's token.
func TestKilledRunnerOfABuiltin(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	path := fifo(t)
	r.builtin(t, "s", "(read -r line <"+path+") & wait")
	r.wants(t, "published=0 started=1 stopped=0 uncertain=0")
	runner := r.owner(t, "s")
	left := awaitReader(t, path)
	kill(t, runner)
	if s := r.run(t, "list"); !strings.Contains(s.stdout, "s ci orphaned 0") || !strings.Contains(s.stderr, "reconcile ends it") {
		t.Errorf("list: %q %q", s.stdout, s.stderr)
	}
	if members := group(t, runner); len(members) == 0 {
		t.Error("nothing is left to be stopped")
	}
	r.wants(t, "published=0 started=1 stopped=1 uncertain=0")
	if r.owner(t, "s") == runner {
		t.Error("the claim is still the dead runner's")
	}
	left.Close() // only now: it lets the new runner's command end
	if members := group(t, runner); len(members) > 0 {
		t.Errorf("still in the group: %d", members)
	}
}

// What nothing proves is not signalled, by anybody, and says what to do.
func TestUnprovedGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	path := fifo(t)
	r.builtin(t, "s", "exec env -i /bin/sh -c 'read -r line <"+path+"'")
	s := r.start(t, "s") // our own child, so that it is reaped: a zombie would be a proof
	runner := s.Process.Pid
	left := awaitReader(t, path)
	kill(t, runner)
	s.ends(t)
	members := group(t, runner)
	if s := r.run(t, "list"); s.exit != 0 || !strings.Contains(s.stdout, "s ci uncertain 0") || !strings.Contains(s.stderr, fmt.Sprintf("See pgrep -ag %d", runner)) {
		t.Errorf("list: %d %q %q", s.exit, s.stdout, s.stderr)
	}
	if s := r.wants(t, "published=0 started=0 stopped=0 uncertain=1"); s.exit != 0 || !strings.Contains(s.stderr, "nothing was signalled") {
		t.Errorf("reconcile: %d %q", s.exit, s.stderr)
	}
	r.refused(t, "source-busy", "nothing was signalled", "start", "s")
	r.refused(t, "process-identity-uncertain", "nothing was signalled", "retire", "s")
	if s := r.run(t, "sweep-home", "--preflight"); s.exit != 1 || s.stdout != "" || !strings.Contains(s.stderr, "nothing was signalled") {
		t.Errorf("sweep-home --preflight: %d %q %q", s.exit, s.stdout, s.stderr)
	}
	if s := r.run(t, "sweep-home"); s.exit != 1 || !strings.Contains(s.stderr, "nothing was signalled") {
		t.Errorf("sweep-home: %d %q %q", s.exit, s.stdout, s.stderr)
	}
	for _, pid := range members {
		if !alive(pid) {
			t.Errorf("process %d was ended", pid)
		}
	}
	left.Close()
	kill(t, members[0])
	r.wants(t, "published=0 started=1 stopped=0 uncertain=0")
}

// forge writes a claim of a source of the rig's home. identity is that of pid.
func (r *rig) forge(t testing.TB, source string, pid int, identity string, change ...func(lines []string)) {
	t.Helper()
	check(t, os.MkdirAll(r.claims, 0o700))
	var registration, state syscall.Stat_t
	check(t, syscall.Stat(r.registration(source), &registration))
	check(t, syscall.Stat(r.state(), &state))
	lines := []string{
		r.home, strconv.Itoa(pid), "0123456789abcdef0123456789abcdef", identity, r.state("procevent"),
		fmt.Sprintf("%d:%d", registration.Dev, registration.Ino), "active",
		r.state(), fmt.Sprint(state.Dev), fmt.Sprint(state.Ino), fmt.Sprint(state.Uid), fmt.Sprintf("%o", state.Mode&0o7777),
	}
	for _, c := range change {
		c(lines)
	}
	check(t, os.WriteFile(r.claim(source), []byte(strings.Join(lines, "\n")+"\n"), 0o600))
}

// identityOf is what a claim says of a live process.
func identityOf(t testing.TB, pid int) string {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	check(t, err)
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	check(t, err)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	return fmt.Sprintf("linux-starttime=%s cmdline-hex=%x", fields[19], cmdline)
}

// stranger is a process that has nothing to do with anything, and leads a group.
func stranger(t testing.TB) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	check(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	pid := cmd.Process.Pid
	eventually(t, "the process is what it will be", func() error {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if string(cmdline) != "sleep\x001000\x00" {
			return errors.New("not yet")
		}
		return nil
	})
	return pid
}

// A claim whose pid now is another process's is a dead one, and that process is
// nobody's to signal.
func TestReusedPid(t *testing.T) {
	t.Parallel()
	for _, end := range [][]string{{"start", "s"}, {"reconcile"}, {"retire", "s"}, {"sweep-home"}} {
		t.Run(end[0], func(t *testing.T) {
			r := newRig(t)
			r.builtin(t, "s", "true")
			pid := stranger(t)
			r.forge(t, "s", pid, "linux-starttime=1 cmdline-hex=00")
			if s := r.run(t, "list"); !strings.Contains(s.stdout, "s ci none 0") || s.stderr != "" {
				t.Errorf("list: %q %q", s.stdout, s.stderr)
			}
			r.must(t, end...)
			eventually(t, "the claim is gone", func() error {
				if names(t, r.claims) != nil {
					return errors.New("it is there")
				}
				return nil
			})
			if !alive(pid) {
				t.Error("the stranger was signalled")
			}
		})
	}
}

// An owner that may be alive and cannot be judged is left alone.
func TestUncertainOwner(t *testing.T) {
	t.Parallel()
	identities := map[string]func(pid int) string{
		"unknown form":    func(int) string { return "started on a Tuesday" },
		"another command": func(pid int) string { return identityOf(t, pid) + "00" },
		"another clock":   func(int) string { return "linux-starttime=x cmdline-hex=00" },
	}
	for name, identity := range identities {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.builtin(t, "s", "true")
			pid := stranger(t)
			r.forge(t, "s", pid, identity(pid))
			if s := r.run(t, "list"); s.exit != 0 || !strings.Contains(s.stdout, "s ci uncertain 0") || !strings.Contains(s.stderr, "remove the claim") {
				t.Errorf("list: %q %q", s.stdout, s.stderr)
			}
			if s := r.wants(t, "published=0 started=0 stopped=0 uncertain=1"); s.exit != 0 {
				t.Errorf("reconcile: exit %d, %q", s.exit, s.stderr)
			}
			r.refused(t, "source-busy", "remove the claim", "start", "s")
			r.refused(t, "process-identity-uncertain", "remove the claim", "retire", "s")
			r.must(t, "register", "ci", "s", "--", "true") // a built-in registration may be replaced at any time
			if !alive(pid) {
				t.Error("the stranger was signalled")
			}
			kill(t, pid)
			r.must(t, "start", "s")
		})
	}
}

// A claim older than the boot is stale, whatever it says, and its device numbers
// may be others now.
func TestClaimOfBeforeTheBoot(t *testing.T) {
	t.Parallel()
	longAgo := time.Unix(1_000_000_000, 0)
	elsewhere := func(lines []string) {
		_, ino, _ := strings.Cut(lines[5], ":")
		lines[5], lines[8] = "12345:"+ino, "12345"
	}
	terminal := func(lines []string) { lines[6] = "terminal" }
	before := func(t *testing.T, r *rig, source string) {
		check(t, os.Chtimes(r.registration(source), longAgo, longAgo.Add(-time.Hour)))
		check(t, os.Chtimes(r.claim(source), longAgo, longAgo))
	}

	r := newRig(t)
	pid := stranger(t)
	r.builtin(t, "s", "true")
	r.forge(t, "s", pid, identityOf(t, pid), elsewhere)
	before(t, r, "s")
	staged := r.state("procevent", ".s.0123456789abcdef0123456789abcdef.output")
	reserved := r.state("procevent-capture-reservations")
	check(t, os.WriteFile(staged, nil, 0o600))
	check(t, os.Mkdir(reserved, 0o700))
	mine := filepath.Join(reserved, ".extension-capture-0123456789abcdef0123456789abcdef.x")
	other := filepath.Join(reserved, ".extension-capture-1123456789abcdef0123456789abcdef.x")
	check(t, os.Mkdir(mine, 0o700))
	check(t, os.WriteFile(other, nil, 0o600))
	if s := r.run(t, "list"); !strings.Contains(s.stdout, "s ci none 0") || s.stderr != "" {
		t.Errorf("list: %q %q", s.stdout, s.stderr)
	}
	if out := r.must(t, "start", "s"); out != "no-result: s (exit 0)\n" {
		t.Errorf("start: %q", out)
	}
	for path, want := range map[string]bool{staged: false, mine: false, other: true} {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s is there: %t", path, err == nil)
		}
	}

	// A terminal verdict that was given is finished, and the hold is told.
	calls := filepath.Join(r.root, "calls")
	check(t, os.WriteFile(filepath.Join(r.root, "bin/fm-captain-hold.sh"), []byte("#!/bin/sh\necho \"$*\" >>"+calls+"\n"), 0o755))
	r.forge(t, "s", pid, identityOf(t, pid), elsewhere, terminal)
	before(t, r, "s")
	r.wants(t, "published=0 started=0 stopped=0 uncertain=0")
	if _, err := os.Lstat(r.registration("s")); err == nil {
		t.Error("the source is still registered")
	}
	if said, _ := os.ReadFile(calls); string(said) != "unbind s\n" {
		t.Errorf("the hold was told %q", said)
	}

	// But not for a registration that came later, nor for another file.
	r.builtin(t, "later", "true")
	r.forge(t, "later", pid, identityOf(t, pid), terminal)
	check(t, os.Chtimes(r.claim("later"), longAgo, longAgo))
	r.builtin(t, "other", "true")
	r.forge(t, "other", pid, identityOf(t, pid), terminal, func(lines []string) { lines[5] += "1" })
	before(t, r, "other")
	r.wants(t, "published=0 started=2 stopped=0 uncertain=0")
	for _, source := range []string{"later", "other"} {
		if _, err := os.Lstat(r.registration(source)); err != nil {
			t.Errorf("%s is not registered any more", source)
		}
	}
	if !alive(pid) {
		t.Error("the stranger was signalled")
	}
}

// A claim with the seven lines of an older host is as good as one with twelve.
func TestOlderClaim(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.builtin(t, "s", "true")
	pid := stranger(t)
	r.forge(t, "s", pid, identityOf(t, pid))
	data, err := os.ReadFile(r.claim("s"))
	check(t, err)
	check(t, os.WriteFile(r.claim("s"), []byte(strings.Join(strings.SplitAfter(string(data), "\n")[:7], "")), 0o600))
	if out := r.must(t, "start", "s"); out != "already owned: s\n" {
		t.Errorf("start: %q", out)
	}
	kill(t, pid)
	if out := r.must(t, "start", "s"); out != "no-result: s (exit 0)\n" {
		t.Errorf("start: %q", out)
	}
}

// Claims are the machine's. Another home's live runner is left to it.
func TestOtherHome(t *testing.T) {
	t.Parallel()
	r := newExternal(t)
	path := fifo(t)
	token := r.external(t, "s", path)
	other := &rig{home: hometest.New(t), root: r.root, claims: r.claims}
	other.builtin(t, "s", "true")
	defer other.end(t)

	r.wants(t, "published=0 started=1 stopped=0 uncertain=0")
	runner := r.owner(t, "s")
	leader, _ := r.operation(t, path)
	if out := other.must(t, "start", "s"); out != "already owned: s\n" {
		t.Errorf("start: %q", out)
	}
	if out := other.must(t, "list"); !strings.Contains(out, "s ci live 0") {
		t.Errorf("list: %q", out)
	}
	other.wants(t, "published=0 started=0 stopped=0 uncertain=0")
	other.must(t, "retire", "s")
	other.must(t, "sweep-home")
	if !alive(runner) || r.claimant("s") != runner {
		t.Fatal("another home's runner was stopped")
	}

	// Dead, with its package alive: only its home can settle that.
	other.builtin(t, "s", "true")
	kill(t, runner)
	other.refused(t, "process-identity-uncertain", "FM_HOME="+r.home+" fm-procevent reconcile", "start", "s")
	if s := other.wants(t, "published=0 started=0 stopped=0 uncertain=1"); s.exit != 0 || !strings.Contains(s.stderr, "FM_HOME="+r.home) {
		t.Errorf("reconcile: exit %d, %q", s.exit, s.stderr)
	}
	other.must(t, "retire", "s") // its own registration is its own to retire
	if !alive(leader) || r.claimant("s") != runner {
		t.Fatal("another home's package was stopped")
	}
	r.must(t, "retire", "s", "--if-owner", token)
	if alive(leader) {
		t.Error("the package still runs")
	}

	// Dead alone: taken over.
	r.external(t, "s", path)
	r.wants(t, "published=0 started=1 stopped=0 uncertain=0")
	runner = r.owner(t, "s")
	r.operation(t, path)
	check(t, syscall.Kill(runner, syscall.SIGTERM))
	eventually(t, "the runner is dead", func() error {
		if alive(runner) {
			return errors.New("it lives")
		}
		return nil
	})
	other.builtin(t, "s", "true")
	if out := other.must(t, "start", "s"); out != "no-result: s (exit 0)\n" {
		t.Errorf("start: %q", out)
	}
}

// What a claim of this home says of a source that is not registered any more is
// ended: whoever removed the registration did not say so.
func TestRegistrationRemovedByHand(t *testing.T) {
	t.Parallel()
	r := newExternal(t)
	path := fifo(t)
	r.external(t, "ext", path)
	r.builtin(t, "own", "sleep 1000")
	r.wants(t, "published=0 started=2 stopped=0 uncertain=0")
	leader, _ := r.operation(t, path)
	check(t, os.Remove(r.registration("ext")))
	check(t, os.Remove(r.registration("own")))
	r.wants(t, "published=0 started=0 stopped=2 uncertain=0")
	if alive(leader) {
		t.Error("the package still runs")
	}
	if left := names(t, r.claims); left != nil {
		t.Errorf("claims are left: %q", left)
	}
	if left := names(t, r.state("procevent")); left != nil {
		t.Errorf("left: %q", left)
	}

	// One that was killed leaves its package, too.
	r.external(t, "ext", path)
	r.wants(t, "published=0 started=1 stopped=0 uncertain=0")
	leader, _ = r.operation(t, path)
	kill(t, r.owner(t, "ext"))
	check(t, os.Remove(r.registration("ext")))
	r.must(t, "sweep-home")
	if alive(leader) || names(t, r.claims) != nil {
		t.Error("the sweep left the package, or its claim")
	}
}

// group lists the members of a process group that run.
func group(t *testing.T, number int) (pids []int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	check(t, err)
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if of, err := syscall.Getpgid(pid); err == nil && of == number && alive(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// A record that another container wrote cannot be judged from here. It blocks its
// source, says so, and says what to do.
func TestRecordOfAnotherContainer(t *testing.T) {
	t.Parallel()
	r := newExternal(t)
	path := fifo(t)
	token := r.external(t, "s", path)
	s := r.start(t, "s")
	r.operation(t, path)
	dir := r.state("extension-invocations")
	text, err := os.ReadFile(filepath.Join(dir, names(t, dir)[0]))
	check(t, err)
	r.must(t, "retire", "s", "--if-owner", token)
	s.ends(t)

	name := strings.Repeat("0", 64)
	foreign := regexp.MustCompile(`"token":"sha256:[0-9a-f]*"`).ReplaceAllString(string(text), `"token":"sha256:`+name+`"`)
	foreign = regexp.MustCompile(`pid-ns=\d+`).ReplaceAllString(foreign, "pid-ns=1")
	record := filepath.Join(dir, name+".owner.json")
	check(t, os.WriteFile(record, []byte(foreign), 0o600))
	token = r.external(t, "other", "none")
	reg, err := os.ReadFile(r.registration("other"))
	check(t, err)
	check(t, os.WriteFile(r.registration("s"), reg, 0o600))

	hint := "in another pid namespace (another container) and cannot be judged from here; if it is over, remove " + record
	if s := r.run(t, "list"); s.exit != 0 || s.stdout != "SOURCE ADAPTER OWNER PENDING\nother feed none 0\ns feed uncertain 0\n" || !strings.Contains(s.stderr, hint) {
		t.Errorf("list: %+v", s)
	}
	if s := r.wants(t, "published=0 started=1 stopped=0 uncertain=1"); s.exit != 0 || !strings.Contains(s.stderr, hint) {
		t.Errorf("reconcile: %+v", s)
	}
	r.refused(t, "process-identity-uncertain", hint, "start", "s")
	r.refused(t, "process-identity-uncertain", hint, "retire", "s", "--if-owner", token)
	r.refused(t, "process-identity-uncertain", hint, "register-extension", adapter, "s", "--config-ref", "none")
	for _, args := range [][]string{{"sweep-home", "--preflight"}, {"sweep-home"}} {
		if s := r.run(t, args...); s.exit != 1 || strings.Count(s.stderr, hint) != 1 || strings.Count(s.stderr, "\n") != 1 {
			t.Errorf("%s: %+v", args, s)
		}
	}
	check(t, os.Remove(record))
	if out := r.must(t, "start", "s"); out != "no-result: s (exit 75)\n" {
		t.Errorf("start: %q", out)
	}
}
