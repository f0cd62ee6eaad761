package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hawser/invoke/process"
	"hawser/tests/faulttest"
	"hawser/tests/hometest"
)

func init() {
	waits := func(s *hometest.Start) { s.Give(hometest.Result(wait(s))) }
	behaviours["waits in its handshake"] = atVerb("handshake", waits)
	behaviours["waits in its poll"] = atVerb("invoke", waits)
	behaviours["waits in its poll and ignores TERM"] = atVerb("invoke", func(s *hometest.Start) {
		go waits(s)
		ignoreTerm(s)
	})
	behaviours["waits twice"] = func(s *hometest.Start) {
		showLife(s)
		if _, err := os.Stat(os.Getenv("FIRSTMATE_EXTENSION_STATE") + "/waits"); err != nil {
			s.Give(hometest.NoResult())
			return
		}
		waits(s)
	}
	// Their leaders end when they are told to, and a member stays.
	behaviours["leaves a member"] = atVerb("invoke", func(s *hometest.Start) {
		leave(false, nil)(s)
		wait(s)
	})
	behaviours["leaves a member that proves nothing"] = atVerb("invoke", func(s *hometest.Start) {
		leave(false, nil, "PATH=/bin")(s)
		wait(s)
	})
}

// waiting starts a poll and returns when its package waits.
func waiting(t *testing.T, behaviour string) (*stage, *running, *os.File) {
	t.Helper()
	s := newStage(t, behaviour)
	s.bind(t)
	r := s.start(t, s.pollArgs("s")...)
	return s, r, s.opened(t)
}

func kill(t *testing.T, r *running) {
	t.Helper()
	check(t, r.Process.Kill())
	if _, _, code := r.end(); code != 256+int(syscall.SIGKILL) {
		t.Fatalf("the host ended with %d", code)
	}
}

// TestHostKilled: what a host that was killed outright left is stopped and
// settled by whoever comes to need it, and keeps nobody else from working.
func TestHostKilled(t *testing.T) {
	settle := map[string]func(t *testing.T, s *stage){
		"by cleanup": func(t *testing.T, s *stage) {
			if out := s.must(t, "cleanup-invocations"); out != "cleaned-invocations: 1\n" {
				t.Error(out)
			}
		},
		"by its source's cleanup": func(t *testing.T, s *stage) {
			if out := s.must(t, "cleanup-invocations", "--source-id", "other"); out != "cleaned-invocations: 0\n" {
				t.Error(out)
			}
			if out := s.must(t, "cleanup-invocations", "--source-id", "s"); out != "cleaned-invocations: 1\n" {
				t.Error(out)
			}
		},
		"by its binding's cleanup": func(t *testing.T, s *stage) {
			none := "sha256:" + strings.Repeat("0", 64)
			if out := s.must(t, "cleanup-invocations", "--binding-digest", none); out != "cleaned-invocations: 0\n" {
				t.Error(out)
			}
			if out := s.must(t, "cleanup-invocations", "--binding-digest", s.bindingDigest); out != "cleaned-invocations: 1\n" {
				t.Error(out)
			}
		},
		"by retirement": func(t *testing.T, s *stage) { s.must(t, s.retireArgs()...) },
	}
	for _, behaviour := range []string{"waits in its poll", "waits in its poll and ignores TERM", "leaves a member"} {
		for name, settle := range settle {
			t.Run(behaviour+"/"+name, func(t *testing.T) {
				t.Parallel()
				s, host, _ := waiting(t, behaviour)
				s.refused(t, "binding-in-use", "an operation of the binding is under way: source.poll of org.example.behaving", s.retireArgs()...)
				if out := s.must(t, "cleanup-invocations"); out != "cleaned-invocations: 0\n" {
					t.Error(out)
				}
				kill(t, host)
				if _, alive := s.look(t); !alive {
					t.Error("the package is gone with its host")
				}
				s.must(t, "list")
				settle(t, s)
				s.ended(t)
				hometest.CheckAtRest(t, s.home)
			})
		}
	}
}

// TestHostKilledInHandshake kills a bind that holds the lock: the next command
// gets it at once, and the same bind succeeds.
func TestHostKilledInHandshake(t *testing.T) {
	t.Parallel()
	s := newStage(t, "waits in its handshake")
	host := s.start(t, s.bindArgs()...)
	s.opened(t)
	kill(t, host)
	if out := s.must(t, "list"); out != "no extension bindings\n" {
		t.Error(out)
	}
	other := hometest.Package{}.Make(t)
	s.must(t, append(bindArgs(other), "--lock-timeout", "5s")...)
	if out := s.must(t, "cleanup-invocations"); out != "cleaned-invocations: 1\n" {
		t.Error(out)
	}
	s.ended(t)

	again := s.start(t, s.bindArgs()...)
	_, err := s.opened(t).WriteString("go\n")
	check(t, err)
	if _, stderr, code := again.end(); code != 0 {
		t.Errorf("exit %d: %s", code, stderr)
	}
	hometest.CheckAtRest(t, s.home)
}

// TestHostKilledAtTheBarrier kills a host between the record that names the group
// and the release: nothing of the package runs.
func TestHostKilledAtTheBarrier(t *testing.T) {
	faulttest.Require(t)
	t.Parallel()
	s := newStage(t, "poll: in order")
	s.bind(t)
	verify := func() *exec.Cmd { return program(s.home, "verify") }
	releases := faulttest.Calls(t, verify(), []string{"write"}, func(_, text string) bool {
		return regexp.MustCompile(`^write\(\d+<(socket|UNIX)`).MatchString(text)
	})
	s.look(t)
	if r := releases[0].Kill(t, verify()); !r.Hit {
		t.Fatal(r.Err)
	}
	record := s.record(t)
	if record["phase"] != "group" {
		t.Errorf("the record is %v", record)
	}
	group := int(record["group_pid"].(float64))
	eventually(t, "the barrier stays", func() error {
		if process.Judge(group, record["group_identity"].(string)).State != process.Extinct {
			return errors.New("alive")
		}
		return nil
	})
	if ran, _ := s.look(t); ran {
		t.Error("the package ran")
	}
	if out := s.must(t, "cleanup-invocations"); out != "cleaned-invocations: 1\n" {
		t.Error(out)
	}
	hometest.CheckAtRest(t, s.home)
}

// TestLeaderGone: the members of a group whose leader and host are gone are the
// recorded group if they carry its token, and else nobody's to signal.
func TestLeaderGone(t *testing.T) {
	end := func(t *testing.T, s *stage, host *running, gate *os.File) (leader int) {
		t.Helper()
		record := s.record(t)
		leader = int(record["group_pid"].(float64))
		kill(t, host)
		_, err := gate.WriteString("go\n")
		check(t, err)
		eventually(t, "the leader stays", func() error {
			_, _ = unix.Wait4(leader, nil, unix.WNOHANG, nil) // it may have become a child of this process
			if _, err := os.Stat("/proc/" + strconv.Itoa(leader)); !errors.Is(err, fs.ErrNotExist) {
				return errors.New("it is there")
			}
			return nil
		})
		return leader
	}
	t.Run("proved", func(t *testing.T) {
		t.Parallel()
		s, host, gate := waiting(t, "leaves a member")
		end(t, s, host, gate)
		if _, alive := s.look(t); !alive {
			t.Fatal("there is no member")
		}
		if out := s.must(t, "cleanup-invocations"); out != "cleaned-invocations: 1\n" {
			t.Error(out)
		}
		s.ended(t)
		hometest.CheckAtRest(t, s.home)
	})
	t.Run("not proved", func(t *testing.T) {
		t.Parallel()
		s, host, gate := waiting(t, "leaves a member that proves nothing")
		leader := end(t, s, host, gate)
		hint := fmt.Sprintf("nothing was signalled. See pgrep -a -g %d", leader)
		s.refused(t, "process-identity-uncertain", hint, "cleanup-invocations")
		s.refused(t, "process-identity-uncertain", hint, s.retireArgs()...)
		if _, alive := s.look(t); !alive {
			t.Fatal("it was signalled")
		}
		// Another binding's retirement is none of its business.
		other := hometest.Package{}.Make(t)
		digest := printed(s.must(t, bindArgs(other)...), "binding-digest")
		s.must(t, "retire-binding", extension, "--if-binding-digest", digest)
		opened(t, s.leave).Close()
		eventually(t, "it stays", func() error {
			if _, alive := s.look(t); alive {
				return errors.New("alive")
			}
			return nil
		})
		eventually(t, "it is not settled", func() error {
			stdout, stderr, code := s.run(t, "cleanup-invocations")
			if code != 0 || stdout != "cleaned-invocations: 1\n" {
				return errors.New(stdout + stderr)
			}
			return nil
		})
	})
}

// record is the one record of the home.
func (s *stage) record(t *testing.T) map[string]any {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(s.home, "state/extension-invocations/*"))
	check(t, err)
	if len(names) != 1 {
		t.Fatalf("the records are %q", names)
	}
	data, err := os.ReadFile(names[0])
	check(t, err)
	var record map[string]any
	check(t, json.Unmarshal(data, &record))
	return record
}

// TestRecordOfAPoll: one record spans the operation, names who may be running
// for it at each moment, and goes with the last of them (processes: Invocation
// record).
func TestRecordOfAPoll(t *testing.T) {
	t.Parallel()
	s := newStage(t, "waits twice")
	s.bind(t)
	check(t, os.WriteFile(filepath.Join(s.home, "state/extensions/org.example.behaving/waits"), nil, 0o600))
	request := "sha256:" + strings.Repeat("12", 32)
	host := s.start(t, append(s.pollArgs("s.1"), "--request-id", request)...)
	groups := map[any]bool{}
	for _, verb := range []string{"handshake", "invoke"} {
		gate := s.opened(t)
		record := s.record(t)
		for member, want := range map[string]any{
			"schema": "firstmate.extension-invocation-owner.v1", "phase": "group", "host_pid": float64(host.Process.Pid),
			"extension_id": "org.example.behaving", "binding_digest": s.bindingDigest,
			"request_id": request, "source_id": "s.1", "operation": "source.poll",
		} {
			if record[member] != want {
				t.Errorf("during its %s, %s is %v, not %v", verb, member, record[member], want)
			}
		}
		identity, err := process.Of(host.Process.Pid)
		check(t, err)
		if record["host_identity"] != identity.String() || len(record) != 12 {
			t.Errorf("the record is %v", record)
		}
		group := int(record["group_pid"].(float64))
		if process.JudgeGroup(group, record["group_identity"].(string), record["token"].(string)).State != process.Live {
			t.Errorf("group %d is not the package's", group)
		}
		groups[group] = true
		names, err := filepath.Glob(filepath.Join(s.home, "state/extension-invocations", strings.TrimPrefix(record["token"].(string), "sha256:")+".owner.json"))
		check(t, err)
		if info, err := os.Stat(names[0]); err != nil || info.Mode() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
		_, err = gate.WriteString("go\n")
		check(t, err)
		check(t, gate.Close())
		if verb == "handshake" {
			// The next one to wait at the gate is another process.
			eventually(t, "the handshake's process stays", func() error {
				if s.record(t)["group_pid"] == record["group_pid"] {
					return errors.New("it is recorded")
				}
				return nil
			})
		}
	}
	if stdout, stderr, code := host.end(); code != 0 || stdout != "go" {
		t.Errorf("exit %d, %q: %s", code, stdout, stderr)
	}
	if len(groups) != 2 {
		t.Errorf("the groups are %v", groups)
	}
	s.gone(t)
	hometest.CheckAtRest(t, s.home)
}

// forge writes a record of an operation whose host is dead.
func (s *stage) forge(t *testing.T, change func(record map[string]any)) (path string) {
	t.Helper()
	dead := exec.Command("true")
	check(t, dead.Start())
	identity, err := process.Self()
	check(t, err)
	check(t, dead.Wait())
	token := strings.Repeat("ab", 32)
	record := map[string]any{
		"schema": "firstmate.extension-invocation-owner.v1", "token": "sha256:" + token, "phase": "reserved",
		"host_pid": dead.Process.Pid, "host_identity": identity.String(), "group_pid": nil, "group_identity": nil,
		"extension_id": "org.example.behaving", "binding_digest": s.bindingDigest,
		"request_id": "sha256:" + strings.Repeat("cd", 32), "source_id": nil, "operation": "handshake",
	}
	change(record)
	data, err := json.Marshal(record)
	check(t, err)
	path = filepath.Join(s.home, "state/extension-invocations", token+".owner.json")
	check(t, os.WriteFile(path, append(data, '\n'), 0o600))
	return path
}

// stranger is a process in a group of its own that has nothing to do with us.
func stranger(t *testing.T) (pid int, identity process.Identity) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	check(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.Process.Signal(syscall.Signal(0)) != nil {
			t.Error("the stranger was ended")
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	identity, err := process.Of(cmd.Process.Pid)
	check(t, err)
	return cmd.Process.Pid, identity
}

// TestRecords: what records of dead and living hosts, of other times, places and
// forms say.
func TestRecords(t *testing.T) {
	group := func(pid int, identity string) func(map[string]any) {
		return func(r map[string]any) { r["phase"], r["group_pid"], r["group_identity"] = "group", pid, identity }
	}
	const cleaned, live = "cleaned-invocations: 1\n", "cleaned-invocations: 0\n"
	for name, test := range map[string]struct {
		record func(t *testing.T) func(map[string]any)
		says   string // cleaned, live, or a refusal's code
	}{
		"reserved": {func(*testing.T) func(map[string]any) { return func(map[string]any) {} }, cleaned},
		"group that is gone": {func(t *testing.T) func(map[string]any) {
			self, err := process.Self()
			check(t, err)
			return func(r map[string]any) { group(r["host_pid"].(int), self.String())(r) }
		}, cleaned},
		"pid that a stranger has": {func(t *testing.T) func(map[string]any) {
			pid, identity := stranger(t)
			identity.Start -= 100
			return group(pid, identity.String())
		}, cleaned},
		"group before the last boot": {func(t *testing.T) func(map[string]any) {
			pid, identity := stranger(t)
			identity.Boot = "01234567-89ab-cdef-0123-456789abcdef"
			return group(pid, identity.String())
		}, cleaned},
		"group of another pid namespace": {func(t *testing.T) func(map[string]any) {
			pid, identity := stranger(t)
			identity.PIDNamespace++
			return group(pid, identity.String())
		}, "process-identity-uncertain"},
		"group of another time namespace": {func(t *testing.T) func(map[string]any) {
			pid, identity := stranger(t)
			identity.TimeNamespace++
			return group(pid, identity.String())
		}, "process-identity-uncertain"},
		"group in another form": {func(t *testing.T) func(map[string]any) {
			pid, _ := stranger(t)
			return group(pid, "ps-lstart=Mon Jan  1 00:00:00 2024")
		}, "process-identity-uncertain"},
		"group that is gone, in another form": {func(t *testing.T) func(map[string]any) {
			return func(r map[string]any) { group(r["host_pid"].(int), "ps-lstart=Mon Jan  1 00:00:00 2024")(r) }
		}, cleaned},
		"group 1": {func(t *testing.T) func(map[string]any) {
			_, identity := stranger(t)
			return group(1, identity.String())
		}, "process-identity-uncertain"},
		"zombies that nobody reaps": {func(t *testing.T) func(map[string]any) {
			cmd := exec.Command("cat")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			stdin, err := cmd.StdinPipe()
			check(t, err)
			check(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Wait() })
			identity, err := process.Of(cmd.Process.Pid)
			check(t, err)
			check(t, stdin.Close())
			eventually(t, "it lives", func() error {
				if _, err := process.Of(cmd.Process.Pid); !errors.Is(err, unix.ESRCH) {
					return errors.New("alive")
				}
				return nil
			})
			return group(cmd.Process.Pid, identity.String())
		}, cleaned},
		"host that lives": {func(t *testing.T) func(map[string]any) {
			pid, identity := stranger(t)
			return func(r map[string]any) { r["host_pid"], r["host_identity"] = pid, identity.String() }
		}, live},
		"host of another pid namespace": {func(t *testing.T) func(map[string]any) {
			_, identity := stranger(t)
			identity.PIDNamespace++
			return func(r map[string]any) { r["host_identity"] = identity.String() }
		}, live},
		"host in another form that lives": {func(t *testing.T) func(map[string]any) {
			pid, _ := stranger(t)
			return func(r map[string]any) { r["host_pid"], r["host_identity"] = pid, "other-host 7" }
		}, live},
		"host in another form that is dead": {func(t *testing.T) func(map[string]any) {
			return func(r map[string]any) { r["host_identity"] = "other-host 7" }
		}, cleaned},
		"host before the last boot": {func(t *testing.T) func(map[string]any) {
			pid, identity := stranger(t)
			identity.Boot = "01234567-89ab-cdef-0123-456789abcdef"
			return func(r map[string]any) { r["host_pid"], r["host_identity"] = pid, identity.String() }
		}, cleaned},
		"stranger with the host's pid": {func(t *testing.T) func(map[string]any) {
			pid, identity := stranger(t)
			identity.Start--
			return func(r map[string]any) { r["host_pid"], r["host_identity"] = pid, identity.String() }
		}, cleaned},
		"unknown member": {func(*testing.T) func(map[string]any) {
			return func(r map[string]any) { r["more"] = true }
		}, "process-identity-uncertain"},
		"another token": {func(*testing.T) func(map[string]any) {
			return func(r map[string]any) { r["token"] = r["request_id"] }
		}, "process-identity-uncertain"},
		"reserved with a group": {func(*testing.T) func(map[string]any) {
			return func(r map[string]any) { r["group_pid"] = 7 }
		}, "process-identity-uncertain"},
		"group without one": {func(*testing.T) func(map[string]any) {
			return func(r map[string]any) { r["phase"] = "group" }
		}, "process-identity-uncertain"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, "poll: in order")
			s.bind(t)
			path := s.forge(t, test.record(t))
			switch test.says {
			case cleaned:
				if out := s.must(t, "cleanup-invocations"); out != cleaned {
					t.Error(out)
				}
				hometest.CheckAtRest(t, s.home)
				s.must(t, s.retireArgs()...)
				return
			case live:
				if out := s.must(t, "cleanup-invocations"); out != live {
					t.Error(out)
				}
				s.refused(t, "binding-in-use", path, s.retireArgs()...)
			default:
				s.refused(t, test.says, path, "cleanup-invocations")
				s.refused(t, test.says, path, s.retireArgs()...)
				if out := s.must(t, "cleanup-invocations", "--binding-digest", s.packageDigest); out != live {
					t.Error(out)
				}
			}
			if _, err := os.Stat(path); err != nil {
				t.Error(err)
			}
			// Nobody else is held up by it.
			s.must(t, "verify")
			check(t, os.Remove(path))
			s.must(t, s.retireArgs()...)
		})
	}
}

// TestTornRecords: what a power cut leaves of a record that was never synced is
// cleared if it is older than the boot, else kept and named.
func TestTornRecords(t *testing.T) {
	t.Parallel()
	s := newStage(t, "poll: in order")
	s.bind(t)
	boot, err := process.BootTime()
	check(t, err)
	path := filepath.Join(s.home, "state/extension-invocations", strings.Repeat("ab", 32)+".owner.json")
	for name, content := range map[string]string{
		"empty":         "",
		"torn":          `{"binding_digest":"` + s.bindingDigest[:20],
		"of zeros":      strings.Repeat("\x00", 512),
		"not a record":  "[]\n",
		"of the source": `{"source_id":"s","binding_digest":"` + s.bindingDigest + `","more`,
	} {
		t.Run(name, func(t *testing.T) {
			check(t, os.WriteFile(path, []byte(content), 0o600))
			s.refused(t, "process-identity-uncertain", path, "cleanup-invocations")
			s.refused(t, "process-identity-uncertain", path, s.retireArgs()...)
			old := boot.Add(-time.Hour)
			check(t, os.Chtimes(path, old, old))
			if out := s.must(t, "cleanup-invocations"); out != "cleaned-invocations: 1\n" {
				t.Error(out)
			}
		})
	}
	t.Run("of another binding", func(t *testing.T) {
		check(t, os.WriteFile(path, []byte(`{"binding_digest":"sha256:`+strings.Repeat("0", 64)+`","source_id":"s","tor`), 0o600))
		s.refused(t, "process-identity-uncertain", path, "cleanup-invocations")
		s.must(t, s.retireArgs()...)
		s.must(t, "restore-binding", "org.example.behaving", "--binding-digest", s.bindingDigest)
	})
	check(t, os.Remove(path))
}

// TestForeignFilesAmongRecords: a file that nobody here knows stops every
// cleanup, and is named; a poll needs none.
func TestForeignFilesAmongRecords(t *testing.T) {
	t.Parallel()
	s := newStage(t, "poll: in order")
	s.bind(t)
	for _, name := range []string{"notes", ".hawser.x", strings.Repeat("ab", 32) + ".json", strings.Repeat("AB", 32) + ".owner.json"} {
		path := filepath.Join(s.home, "state/extension-invocations", name)
		check(t, os.WriteFile(path, nil, 0o600))
		s.refused(t, "process-cleanup-failed", path, "cleanup-invocations")
		s.refused(t, "process-cleanup-failed", path, s.retireArgs()...)
		if _, stderr, code := s.run(t, s.pollArgs("s")...); code != 75 {
			t.Errorf("exit %d: %s", code, stderr)
		}
		check(t, os.Remove(path))
	}
	path := filepath.Join(s.home, "state/extension-invocations", strings.Repeat("ab", 32)+".owner.json")
	check(t, os.Symlink("/dev/null", path))
	s.refused(t, "link-unsafe", path, "cleanup-invocations")
	check(t, os.Remove(path))
	s.must(t, s.retireArgs()...)
}

// TestSomeSettledSomeNot: each record is judged, and what was cleaned is said
// beside what was refused.
func TestSomeSettledSomeNot(t *testing.T) {
	t.Parallel()
	s := newStage(t, "poll: in order")
	s.bind(t)
	s.forge(t, func(map[string]any) {})
	for _, token := range []string{"00", "ff"} {
		path := filepath.Join(s.home, "state/extension-invocations", strings.Repeat(token, 32)+".owner.json")
		check(t, os.WriteFile(path, nil, 0o600))
	}
	stdout, stderr, code := s.run(t, "cleanup-invocations")
	if code != 1 || stdout != "cleaned-invocations: 1\n" || strings.Count(stderr, "error[process-identity-uncertain]: ") != 2 || strings.Count(stderr, "\n") != 2 {
		t.Errorf("exit %d, %q: %s", code, stdout, stderr)
	}
}

// TestSignals: a host that is told to stop stops its package, proves it gone,
// removes its record, and says by its status what ended it.
func TestSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		for _, behaviour := range []string{"waits in its poll", "waits in its poll and ignores TERM"} {
			t.Run(behaviour+"/"+sig.String(), func(t *testing.T) {
				t.Parallel()
				s, host, _ := waiting(t, behaviour)
				check(t, host.Process.Signal(sig))
				stdout, stderr, code := host.end()
				if code != 128+int(sig) || stdout != "" || strings.Count(stderr, "\n") != 1 {
					t.Errorf("exit %d, %q: %s", code, stdout, stderr)
				}
				s.gone(t)
				hometest.CheckAtRest(t, s.home)
				s.must(t, s.retireArgs()...)
			})
		}
	}
	t.Run("bind", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, "waits in its handshake")
		host := s.start(t, s.bindArgs()...)
		s.opened(t)
		check(t, host.Process.Signal(syscall.SIGTERM))
		if stdout, stderr, code := host.end(); code != 143 || stdout != "" {
			t.Errorf("exit %d, %q: %s", code, stdout, stderr)
		}
		s.gone(t)
		hometest.CheckAtRest(t, s.home)
		if out := s.must(t, "list"); out != "no extension bindings\n" {
			t.Error(out)
		}
	})
	t.Run("while waiting for the lock", func(t *testing.T) {
		t.Parallel()
		home := hometest.New(t)
		check(t, hostOf(home).Locked(t.Context(), "hold on", func() error {
			waiter := (&stage{home: home}).start(t, bindArgs(hometest.Package{}.Make(t))...)
			waitsForLock(t, waiter)
			check(t, waiter.Process.Signal(syscall.SIGINT))
			if stdout, stderr, code := waiter.end(); code != 130 || stdout != "" {
				t.Errorf("exit %d, %q: %s", code, stdout, stderr)
			}
			return nil
		}))
		hometest.CheckAtRest(t, home)
	})
	t.Run("ignored from outside", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, "waits in its poll")
		s.bind(t)
		args := s.pollArgs("s")
		path, err := exec.LookPath("fm-extension")
		check(t, err)
		host := &running{Cmd: exec.Command("/bin/sh", append([]string{"-c", `trap '' HUP; exec "$0" "$@"`, path}, args...)...)}
		host.Env = program(s.home).Env
		host.start(t)
		gate := s.opened(t)
		check(t, host.Process.Signal(syscall.SIGHUP))
		_, err = gate.WriteString("still here\n")
		check(t, err)
		if stdout, stderr, code := host.end(); code != 0 || stdout != "still here" {
			t.Errorf("exit %d, %q: %s", code, stdout, stderr)
		}
		s.gone(t)
	})
}

// TestOtherContainer: an operation in another pid namespace is alive, seen from
// here, whatever its numbers mean here.
func TestOtherContainer(t *testing.T) {
	if out, err := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "true").CombinedOutput(); err != nil {
		t.Skipf("needs root to make a pid namespace: %v: %s", err, out)
	}
	t.Parallel()
	s := newStage(t, "waits in its poll")
	s.bind(t)
	path, err := exec.LookPath("fm-extension")
	check(t, err)
	inside := &running{Cmd: exec.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc", "--kill-child", path}, s.pollArgs("s")...)...)}
	inside.Env = program(s.home).Env
	inside.start(t)
	gate := s.opened(t)
	s.refused(t, "binding-in-use", "another pid namespace", s.retireArgs()...)
	if out := s.must(t, "cleanup-invocations"); out != "cleaned-invocations: 0\n" {
		t.Error(out)
	}
	_, err = gate.WriteString("from inside\n")
	check(t, err)
	if stdout, stderr, code := inside.end(); code != 0 || stdout != "from inside" {
		t.Errorf("exit %d, %q: %s", code, stdout, stderr)
	}
	s.gone(t)
	s.must(t, s.retireArgs()...)
}
