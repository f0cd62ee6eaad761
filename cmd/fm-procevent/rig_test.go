package main

import (
	"bytes"
	"cmp"
	"context"
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

	"hawser/internal/home"
	"hawser/lifecycle"
	"hawser/procevent"
	"hawser/tests/hometest"
)

// rig is a throwaway home with a root and claims of its own, and what the tests
// do with it.
type rig struct {
	home, root, claims string
	binding            string // digest of the package of testdata/adapter, if it is bound
	program            string // "fm-procevent" if it is ""
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{home: hometest.New(t), root: hometest.Dir(t), claims: filepath.Join(hometest.Dir(t), "claims")}
	check(t, os.Mkdir(filepath.Join(r.root, "bin"), 0o755))
	t.Cleanup(func() { r.end(t) })
	return r
}

// newExternal is newRig with the package bound.
func newExternal(t testing.TB) *rig {
	t.Helper()
	r := newRig(t)
	r.bind(t)
	return r
}

func (r *rig) bind(t testing.TB) {
	t.Helper()
	pkg, err := feed()
	check(t, err)
	r.binding, err = bindIn(r.host().Home, pkg.Make(t))
	check(t, err)
}

func (r *rig) env() []string {
	return []string{"FM_HOME=" + r.home, "FM_ROOT_OVERRIDE=" + r.root, "FM_PROCEVENT_CLAIM_ROOT=" + r.claims, "HOME=/nowhere", "CI=1"}
}

// host does what the commands do, in this process.
func (r *rig) host() *procevent.Host {
	h := &home.Home{Path: r.home, Root: r.root, State: r.state()}
	return &procevent.Host{Host: &lifecycle.Host{Home: h}, Claims: r.claims, MaxOutput: procevent.DefaultMaxOutput}
}

func (r *rig) state(names ...string) string {
	return filepath.Join(append([]string{r.home, "state"}, names...)...)
}

func (r *rig) registration(source string) string { return r.state("procevent", source+".source") }
func (r *rig) result(source string, n int) string {
	return r.state("procevent-inbox", fmt.Sprintf("%s.%d.result", source, n))
}
func (r *rig) claim(source string) string { return filepath.Join(r.claims, source+".claim") }

// command is a run of the program, in a process of its own.
func (r *rig) command(args ...string) *exec.Cmd {
	cmd := exec.Command(cmp.Or(r.program, "fm-procevent"), args...)
	cmd.Env = append(os.Environ(), r.env()...)
	cmd.Dir = r.root // what a script of the root leaves goes with it
	return cmd
}

// said is what a command printed and how it exited.
type said struct {
	stdout, stderr string
	exit           int
}

func (r *rig) run(t testing.TB, args ...string) said {
	t.Helper()
	cmd := r.command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	exit, isExit := errors.AsType[*exec.ExitError](err)
	if err != nil && !isExit {
		t.Fatal(err)
	}
	s := said{stdout: stdout.String(), stderr: stderr.String()}
	if isExit {
		s.exit = exit.ExitCode()
	}
	return s
}

// must runs a command that must succeed in silence on stderr.
func (r *rig) must(t testing.TB, args ...string) string {
	t.Helper()
	s := r.run(t, args...)
	if s.exit != 0 || s.stderr != "" {
		t.Fatalf("fm-procevent %s: exit %d\n%s%s", strings.Join(args, " "), s.exit, s.stdout, s.stderr)
	}
	return s.stdout
}

// refused runs a command that must be refused with the code, in a message that
// holds the text.
func (r *rig) refused(t testing.TB, code, text string, args ...string) {
	t.Helper()
	s := r.run(t, args...)
	line, rest, _ := strings.Cut(s.stderr, "\n")
	if s.exit == 0 || s.stdout != "" || rest != "" || !strings.HasPrefix(line, "error["+code+"]: ") || !strings.Contains(line, text) {
		t.Fatalf("fm-procevent %s: exit %d, wanted error[%s] with %q\nstdout: %q\nstderr: %q", strings.Join(args, " "), s.exit, code, text, s.stdout, s.stderr)
	}
}

// reconcile is a pass that must end well; what it says is as "1 0 0 0".
func (r *rig) reconcile(t testing.TB) (published, started, stopped, uncertain int) {
	t.Helper()
	return counts(t, r.run(t, "reconcile"), 0)
}

var reconciled = regexp.MustCompile(`\Areconciled: published=(\d+) started=(\d+) stopped=(\d+) uncertain=(\d+)\n\z`)

func counts(t testing.TB, s said, exit int) (published, started, stopped, uncertain int) {
	t.Helper()
	match := reconciled.FindStringSubmatch(s.stdout)
	if match == nil || s.exit != exit {
		t.Fatalf("reconcile: exit %d\n%s%s", s.exit, s.stdout, s.stderr)
	}
	n := [4]int{}
	for i := range n {
		n[i], _ = strconv.Atoi(match[i+1])
	}
	return n[0], n[1], n[2], n[3]
}

// wants runs a pass and compares what it did.
func (r *rig) wants(t testing.TB, line string) said {
	t.Helper()
	s := r.run(t, "reconcile")
	if s.stdout != "reconciled: "+line+"\n" {
		t.Fatalf("reconcile: exit %d, wanted %s\n%s%s", s.exit, line, s.stdout, s.stderr)
	}
	return s
}

// external registers a source of the package and returns its token.
func (r *rig) external(t testing.TB, source, ref string) string {
	t.Helper()
	reg, err := r.host().RegisterExtension(context.Background(), adapter, source, ref)
	check(t, err)
	return reg.Token
}

// builtin registers a built-in source whose command is a shell script.
func (r *rig) builtin(t testing.TB, source, script string) {
	t.Helper()
	r.adapter(t, "ci", "exit 1")
	check(t, r.host().Register(context.Background(), "ci", source, []string{"/bin/sh", "-c", script}))
}

// adapter installs a built-in adapter.
func (r *rig) adapter(t testing.TB, name, script string) {
	t.Helper()
	path := filepath.Join(r.root, "bin", "fm-procevent-"+name+".sh")
	check(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755))
}

// fifo makes a FIFO, in which a package waits for its event.
func fifo(t testing.TB) string {
	t.Helper()
	path := filepath.Join(hometest.Dir(t), "event")
	check(t, syscall.Mkfifo(path, 0o600))
	return path
}

// awaitReader waits until a package waits in the FIFO and returns what wakes it.
func awaitReader(t testing.TB, path string) *os.File {
	t.Helper()
	var file *os.File
	eventually(t, "somebody reads "+path, func() (err error) {
		// Without a reader, this is ENXIO instead of a wait.
		file, err = os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		return err
	})
	t.Cleanup(func() { file.Close() })
	return file
}

// event gives the package that waits in the FIFO its event.
func event(t testing.TB, path, line string) {
	t.Helper()
	file := awaitReader(t, path)
	_, err := file.WriteString(line + "\n")
	check(t, errors.Join(err, file.Close()))
}

// running is a start that runs in the background.
type running struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
	done           chan error
}

// start runs a start in the background. It leads a session of its own, as what
// reconcile starts does.
func (r *rig) start(t testing.TB, source string) *running {
	t.Helper()
	s := &running{Cmd: r.command("start", source), done: make(chan error, 1)}
	s.Stdout, s.Stderr = &s.stdout, &s.stderr
	s.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	check(t, s.Start())
	go func() { s.done <- s.Wait() }()
	return s
}

// ends waits for the end of the start and returns what it said.
func (s *running) ends(t testing.TB) said {
	t.Helper()
	select {
	case <-s.done:
	case <-time.After(patience):
		t.Fatalf("start does not end\n%s%s", s.stdout.String(), s.stderr.String())
	}
	return said{s.stdout.String(), s.stderr.String(), s.ProcessState.ExitCode()}
}

// owner waits until the source is owned, and returns the pid of its runner.
func (r *rig) owner(t testing.TB, source string) (pid int) {
	t.Helper()
	eventually(t, source+" has an owner", func() error {
		if pid = r.claimant(source); pid == 0 || !alive(pid) {
			return errors.New("no live claim")
		}
		return nil
	})
	return pid
}

// claimant is the pid in the claim of a source, 0 without one.
func (r *rig) claimant(source string) int {
	data, err := os.ReadFile(r.claim(source))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.Split(string(data), "\n")[1])
	return pid
}

// kill ends a process outright, and waits until it is dead.
func kill(t testing.TB, pid int) {
	t.Helper()
	check(t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(t, "the killed process is dead", func() error {
		if alive(pid) {
			return errors.New("it lives")
		}
		return nil
	})
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	rest := data[bytes.LastIndexByte(data, ')')+1:]
	return len(rest) > 1 && rest[1] != 'Z' && rest[1] != 'X'
}

// operation waits until a package of this home waits in the FIFO, and returns the
// pid of its group's leader, by the one record there is, and the FIFO.
func (r *rig) operation(t testing.TB, path string) (leader int, fifo *os.File) {
	t.Helper()
	fifo = awaitReader(t, path)
	records := names(t, r.state("extension-invocations"))
	if len(records) != 1 {
		t.Fatalf("records: %q", records)
	}
	data, err := os.ReadFile(r.state("extension-invocations", records[0]))
	check(t, err)
	match := regexp.MustCompile(`"group_pid":(\d+),`).FindSubmatch(data)
	if match == nil {
		t.Fatalf("no group in %s", data)
	}
	leader, err = strconv.Atoi(string(match[1]))
	check(t, err)
	return leader, fifo
}

// rows returns the keys in the wake queue, in its order.
func (r *rig) rows(t testing.TB) (keys []string) {
	t.Helper()
	data, err := os.ReadFile(r.state(".wake-queue"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	check(t, err)
	for line := range strings.Lines(string(data)) {
		if fields := strings.Split(line, "\t"); len(fields) == 5 {
			keys = append(keys, fields[3])
		}
	}
	return keys
}

// names lists a directory, without what is there for good.
func names(t testing.TB, dir string) (found []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	check(t, err)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".extension-binding-lifecycle.lock") && !strings.HasSuffix(e.Name(), ".flock") {
			found = append(found, e.Name())
		}
	}
	return found
}

// end sweeps the home and checks that nothing is left of it: no process, and
// nothing temporary.
func (r *rig) end(t testing.TB) {
	t.Helper()
	if _, err := os.Stat(r.home); err != nil {
		return
	}
	if s := r.run(t, "sweep-home"); s.exit != 0 && !t.Failed() {
		t.Errorf("sweep-home: exit %d\n%s%s", s.exit, s.stdout, s.stderr)
	}
	eventually(t, "nothing runs that was started in the home", r.isAtRest)
	if !t.Failed() {
		hometest.CheckAtRest(t, r.home)
		if left := names(t, r.claims); left != nil {
			t.Errorf("left in the claim root: %q", left)
		}
	}
}

// isAtRest fails while a process has this home in its environment, or is a
// package's that lies in it.
func (r *rig) isAtRest() error {
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environs {
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(data, []byte(r.home)) {
			cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			return fmt.Errorf("%s runs %q", filepath.Dir(path), cmdline)
		}
	}
	return nil
}

// patience is how long a condition may take to become true. A test that passes
// never waits for it.
const patience = 30 * time.Second

// becomes waits until a condition holds.
func becomes(holds func() bool) bool {
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		if holds() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

func eventually(t testing.TB, what string, holds func() error) {
	t.Helper()
	var err error
	if !becomes(func() bool { err = holds(); return err == nil }) {
		t.Fatalf("never became true: %s: %v", what, err)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
