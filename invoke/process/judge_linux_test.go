package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func ownIdentity(t testing.TB) Identity {
	t.Helper()
	id, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// zombie makes a child that is dead and not reaped before the test is over.
func zombie(t testing.TB) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	eventually(t, "the child is a zombie", func() bool {
		s, err := readStat(cmd.Process.Pid)
		return err == nil && s.dead()
	})
	return cmd
}

// deadPid returns a pid that was just in use and is not any more.
func deadPid(t testing.TB) int {
	t.Helper()
	cmd := exec.Command("/bin/true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func TestJudge(t *testing.T) {
	self, dead := os.Getpid(), deadPid(t)
	id := ownIdentity(t)
	changed := func(change func(*Identity)) string {
		other := id
		change(&other)
		return other.String()
	}
	otherStart := changed(func(id *Identity) { id.Start++ })
	otherBoot := changed(func(id *Identity) { id.Boot = "00000000-0000-4000-8000-000000000000" })
	otherPIDs := changed(func(id *Identity) { id.PIDNamespace++ })
	otherClock := changed(func(id *Identity) { id.TimeNamespace++ })
	dying := zombie(t)
	zombieStat, err := readStat(dying.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	ofZombie := changed(func(id *Identity) { id.Start = zombieStat.start })

	for _, test := range []struct {
		name     string
		pid      int
		identity string
		want     State
	}{
		{"itself", self, id.String(), Live},
		{"reused pid", self, otherStart, Extinct},
		{"other boot", self, otherBoot, Extinct},
		{"other boot and pid namespace", self, changed(func(id *Identity) { id.Boot = strings.Repeat("0", 8) + id.Boot[8:]; id.PIDNamespace++ }), Extinct},
		{"other pid namespace", self, otherPIDs, Uncertain},
		{"other pid namespace, no process", dead, otherPIDs, Uncertain},
		{"other time namespace", self, otherClock, Uncertain},
		{"other time namespace, no process", dead, otherClock, Extinct},
		{"no process", dead, id.String(), Extinct},
		{"zombie", dying.Process.Pid, ofZombie, Extinct},
		{"unknown form", self, "linux-starttime=1 cmdline-hex=00", Uncertain},
		{"unknown form, no process", dead, "linux-starttime=1 cmdline-hex=00", Extinct},
		{"unknown form, zombie", dying.Process.Pid, "?", Extinct},
		{"empty", self, "", Uncertain},
		{"no pid", 0, id.String(), Uncertain},
		{"negative pid", -1, id.String(), Uncertain},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Judge(test.pid, test.identity); got.State != test.want || got.Reason == "" {
				t.Errorf("got %+v, want %v", got, test.want)
			}
		})
	}

	t.Run("group of zombies", func(t *testing.T) {
		for _, identity := range []string{ofZombie, otherStart, "?"} {
			if got := JudgeGroup(dying.Process.Pid, identity, "token"); got.State != Extinct {
				t.Errorf("%s: got %+v", identity, got)
			}
		}
	})
	t.Run("no group", func(t *testing.T) {
		for _, group := range []int{-1, 0, 1} {
			if got := StopGroup(group, id.String(), "token"); got.State != Uncertain {
				t.Errorf("%d: got %+v", group, got)
			}
		}
	})
}

func TestOf(t *testing.T) {
	if _, err := Of(deadPid(t)); !errors.Is(err, unix.ESRCH) {
		t.Errorf("no process: %v", err)
	}
	if _, err := Of(zombie(t).Process.Pid); !errors.Is(err, unix.ESRCH) {
		t.Errorf("zombie: %v", err)
	}
	id := ownIdentity(t)
	if parsed := ParseIdentity(id.String()); parsed != id || !parsed.Known() {
		t.Errorf("%s became %s", id, parsed)
	}
}

// A host that dies, and what is left of its group for us to judge.

const secret = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func init() {
	// The host runs $SCRIPT with $TOKEN in its environment, says whom it started,
	// and releases it when told so.
	children["host"] = func() {
		dir, err := os.Open(".")
		fail(err)
		g, err := Start(Spec{
			Path:   "/bin/sh",
			Argv:   []string{"sh", "-c", os.Getenv("SCRIPT")},
			Env:    []string{"PATH=" + os.Getenv("PATH"), TokenVariable + "=" + os.Getenv("TOKEN")},
			Dir:    dir,
			Stdin:  os.Stdin,
			Stdout: os.Stderr,
			Stderr: os.Stderr,
		})
		fail(err)
		fmt.Println(g.Pid(), g.Identity())
		if order, _ := bufio.NewReader(os.Stdin).ReadString('\n'); order == "release\n" {
			fail(g.Release(context.Background()))
			fmt.Println("released")
		}
		select {}
	}
}

// orphans are what a dead host leaves, with its record of it.
type orphans struct {
	t        testing.TB
	host     *exec.Cmd
	dir      string
	orders   io.WriteCloser
	reports  *bufio.Reader
	group    int
	identity string
}

func startHost(t *testing.T, script string, env ...string) *orphans {
	t.Helper()
	becomeSubreaper() // the orphans come to us, and stay zombies until we say
	o := &orphans{t: t, dir: t.TempDir()}
	o.host = exec.Command(os.Args[0])
	o.host.Dir = o.dir
	o.host.Stderr = os.Stderr
	o.host.Env = append([]string{"PATH=" + os.Getenv("PATH"), childVariable + "=host", "SCRIPT=" + script}, env...)
	var err error
	if o.orders, err = o.host.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	reports, err := o.host.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	o.reports = bufio.NewReader(reports)
	if err := o.host.Start(); err != nil {
		t.Fatal(err)
	}
	group, identity, _ := strings.Cut(o.report(), " ")
	if _, err := fmt.Sscan(group, &o.group); err != nil {
		t.Fatal(err)
	}
	o.identity = identity
	t.Cleanup(func() {
		o.killHost()
		for _, member := range o.members() {
			_ = unix.Kill(member.pid, unix.SIGKILL)
		}
		eventually(t, "the orphans are reaped", func() bool {
			for reapOne(-o.group) {
			}
			return errors.Is(unix.Kill(-o.group, 0), unix.ESRCH)
		})
	})
	return o
}

func (o *orphans) report() string {
	o.t.Helper()
	line, err := o.reports.ReadString('\n')
	if err != nil {
		o.t.Fatal("the host said nothing: ", err)
	}
	return strings.TrimSuffix(line, "\n")
}

func (o *orphans) release() {
	o.t.Helper()
	fmt.Fprintln(o.orders, "release")
	if got := o.report(); got != "released" {
		o.t.Fatalf("the host said %q", got)
	}
}

func (o *orphans) killHost() {
	_ = o.host.Process.Kill()
	_ = o.host.Wait()
}

func (o *orphans) members() []stat {
	running, _, err := members(o.group)
	if err != nil {
		o.t.Fatal(err)
	}
	return running
}

// await waits for a file that the script makes.
func (o *orphans) await(name string) {
	o.t.Helper()
	eventually(o.t, "the script made "+name, func() bool {
		_, err := os.Stat(filepath.Join(o.dir, name))
		return err == nil
	})
}

func (o *orphans) touch(name string) {
	o.t.Helper()
	if err := os.WriteFile(filepath.Join(o.dir, name), nil, 0o600); err != nil {
		o.t.Fatal(err)
	}
}

func (o *orphans) want(what string, got Verdict, want State) {
	o.t.Helper()
	if got.State != want || got.Reason == "" {
		o.t.Errorf("%s: got %v (%s), want %v", what, got.State, got.Reason, want)
	}
}

func TestHostKilledAtTheBarrier(t *testing.T) {
	o := startHost(t, `echo > ran`)
	o.killHost()
	eventually(t, "the barrier exits", func() bool {
		return JudgeGroup(o.group, o.identity, "").State == Extinct
	})
	if _, err := os.Stat(filepath.Join(o.dir, "ran")); err == nil {
		t.Error("the program ran after its host was dead")
	}
	// The barrier is our zombie now, and would be that of a pid 1 that reaps late.
	if s, err := readStat(o.group); err != nil || !s.dead() {
		t.Errorf("not a zombie: %+v, %v", s, err)
	}
	o.want("stop", StopGroup(o.group, o.identity, ""), Extinct)
}

func TestHostKilledAfterRelease(t *testing.T) {
	// The leader waits for a file, or for ever; its child stays.
	const script = `sleep 100 & : > ready; while [ ! -e leave ]; do sleep 0.01; done; exit 0`
	const stubborn = `trap "" TERM; ` + script
	abandoned := func(t *testing.T, script string, env ...string) *orphans {
		o := startHost(t, script, env...)
		o.release()
		o.await("ready")
		o.killHost()
		return o
	}
	leaderLeaves := func(o *orphans) {
		o.touch("leave")
		eventually(o.t, "only the child is left", func() bool {
			leader, err := readStat(o.group)
			return err == nil && leader.dead() && len(o.members()) == 1
		})
	}
	token := "TOKEN=" + secret

	for _, test := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"leader runs", func(t *testing.T) {
			o := abandoned(t, script)
			o.want("judge", JudgeGroup(o.group, o.identity, ""), Live)
			o.want("stop", StopGroup(o.group, o.identity, ""), Extinct)
		}},
		{"leader runs and ignores TERM", func(t *testing.T) {
			o := abandoned(t, stubborn)
			o.want("stop", StopGroup(o.group, o.identity, ""), Extinct)
		}},
		{"forks for ever", func(t *testing.T) {
			o := abandoned(t, `trap "" TERM; : > ready; while :; do sh -c : & sh -c : & wait; done`)
			o.want("stop", StopGroup(o.group, o.identity, ""), Extinct)
		}},
		{"leader is a zombie", func(t *testing.T) {
			o := abandoned(t, script)
			leaderLeaves(o)
			o.want("judge", JudgeGroup(o.group, o.identity, ""), Live)
			o.want("stop", StopGroup(o.group, o.identity, ""), Extinct)
		}},
		{"leader is gone, members carry the token", func(t *testing.T) {
			o := abandoned(t, stubborn, token)
			leaderLeaves(o)
			reapOne(o.group)
			o.want("judge", JudgeGroup(o.group, o.identity, secret), Live)
			o.want("stop", StopGroup(o.group, o.identity, secret), Extinct)
		}},
		{"leader is gone, nothing proves the members", func(t *testing.T) {
			o := abandoned(t, script, token)
			leaderLeaves(o)
			reapOne(o.group)
			for _, token := range []string{"", "sha256:other", secret[:len(secret)-1]} {
				o.want("judge", JudgeGroup(o.group, o.identity, token), Uncertain)
				o.want("stop", StopGroup(o.group, o.identity, token), Uncertain)
			}
			if len(o.members()) != 1 {
				t.Error("an unproved process was signalled")
			}
		}},
		{"members older than the record", func(t *testing.T) {
			o := abandoned(t, script, token)
			leaderLeaves(o)
			reapOne(o.group)
			later := ParseIdentity(o.identity)
			later.Start += 1_000_000
			o.want("judge", JudgeGroup(o.group, later.String(), secret), Uncertain)
			o.want("stop", StopGroup(o.group, later.String(), secret), Uncertain)
			if len(o.members()) != 1 {
				t.Error("an unproved process was signalled")
			}
		}},
		{"pid given to a stranger", func(t *testing.T) {
			o := abandoned(t, script, token)
			before := len(o.members())
			other := ParseIdentity(o.identity)
			other.Start--
			o.want("judge", JudgeGroup(o.group, other.String(), secret), Extinct)
			o.want("stop", StopGroup(o.group, other.String(), secret), Extinct)
			if after := o.members(); len(after) < before-1 { // the leader's short sleeps come and go
				t.Errorf("a stranger was signalled: %v", after)
			}
			o.want("judge again", JudgeGroup(o.group, o.identity, secret), Live)
		}},
		{"form unknown, another container", func(t *testing.T) {
			o := abandoned(t, script, token)
			elsewhere := ParseIdentity(o.identity)
			elsewhere.PIDNamespace++
			clock := ParseIdentity(o.identity)
			clock.TimeNamespace++
			for _, identity := range []string{elsewhere.String(), clock.String(), "bsd-start=1", ""} {
				o.want("judge", JudgeGroup(o.group, identity, secret), Uncertain)
				o.want("stop", StopGroup(o.group, identity, secret), Uncertain)
			}
			o.want("judge", JudgeGroup(o.group, o.identity, ""), Live)
		}},
	} {
		t.Run(test.name, func(t *testing.T) { bothPins(t, test.run) })
	}
}

func TestParseStat(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := stat{
			pid:     rapid.IntRange(1, 1<<22).Draw(t, "pid"),
			parent:  rapid.IntRange(0, 1<<22).Draw(t, "parent"),
			group:   rapid.IntRange(0, 1<<22).Draw(t, "group"),
			state:   rapid.SampledFrom([]byte("RSDZTtXxKWPI")).Draw(t, "state"),
			threads: rapid.IntRange(0, 1<<15).Draw(t, "threads"),
			start:   rapid.Uint64().Draw(t, "start"),
		}
		name := rapid.StringMatching(`[ -~\n)(]{0,15}`).Draw(t, "name")
		line := fmt.Sprintf("%d (%s) %c %d %d 6 7 8 9 10 11 12 13 14 15 16 17 18 19 %d 21 %d 23 24\n",
			want.pid, name, want.state, want.parent, want.group, want.threads, want.start)
		if got, ok := parseStat([]byte(line)); !ok || got != want {
			t.Fatalf("%q: got %+v, %v", line, got, ok)
		}
	})
}

func FuzzParseStat(f *testing.F) {
	for _, seed := range []string{
		"", "1", "1 (", "1 )", ")(", "1 () S", "1 (a) S 1 1",
		"812 (a) b (c) S 1 812 812 0 -1 4194560 1 1 0 0 0 0 0 0 20 0 1 0 1234 1 1 18446744073709551615\n",
		"1 (x) S 1 1 1 0 -1 1 1 1 0 0 0 0 0 0 20 0 99999999999999999999 0 1\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, ok := parseStat(text); ok && s.pid <= 0 {
			t.Errorf("%q: %+v", text, s)
		}
	})
}

func FuzzParseIdentity(f *testing.F) {
	for _, seed := range []string{
		"", " ", "linux-starttime=1 boot-id=6f4f3c1e-0a0b-4c4d-8e8f-000102030405 pid-ns=4026531836 time-ns=4026531834",
		"linux-starttime=01 boot-id=6f4f3c1e-0a0b-4c4d-8e8f-000102030405 pid-ns=1 time-ns=1",
		"linux-starttime=1 boot-id=6F4F3C1E-0A0B-4C4D-8E8F-000102030405 pid-ns=1 time-ns=1",
		"linux-starttime=1 cmdline-hex=00", "linux-starttime=18446744073709551616 boot-id= pid-ns= time-ns=", "darwin-starttime=1",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id := ParseIdentity(text)
		if id.String() != text {
			t.Errorf("%q became %q", text, id)
		}
		if id.Known() && (id.Boot == "" || id.foreign != "") {
			t.Errorf("%q is known as %+v", text, id)
		}
	})
}
