package main

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hawser/tests/hometest"
)

// stage is a home, and a package with a behaviour that the test can watch and
// hold up.
type stage struct {
	home, pkg string

	life  int    // the FIFO that showLife writes to
	gate  string // the FIFO that wait waits for
	leave string // the FIFO that what leave starts waits for

	packageDigest, bindingDigest string // once bound
}

func newStage(t *testing.T, behaviour string) *stage {
	t.Helper()
	dir := hometest.Dir(t)
	s := &stage{home: hometest.New(t), gate: filepath.Join(dir, "gate"), leave: filepath.Join(dir, "leave")}
	life := filepath.Join(dir, "life")
	for _, fifo := range []string{life, s.gate, s.leave} {
		check(t, unix.Mkfifo(fifo, 0o600))
	}
	var err error
	s.life, err = unix.Open(life, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	check(t, err)
	t.Cleanup(func() { unix.Close(s.life) })
	s.pkg = hometest.Behaving(t, behaviour, life, s.gate, s.leave).Make(t)
	return s
}

// The other end of the stage: what behaviours do with it.

// showLife opens the FIFO that the test reads. It is inherited by all that the
// package starts: the test reads its end when the last of them is gone.
func showLife(s *hometest.Start) {
	fd, err := unix.Open(s.Args[0], unix.O_WRONLY, 0)
	if err != nil {
		os.Exit(7)
	}
	if _, err := unix.Write(fd, []byte{'.'}); err != nil {
		os.Exit(8)
	}
}

// wait waits until the test opens the gate, and returns what it says there.
func wait(s *hometest.Start) string {
	gate, err := os.Open(s.Args[1])
	if err != nil {
		os.Exit(9)
	}
	line, err := bufio.NewReader(gate).ReadString('\n')
	if err != nil {
		hang(s) // the test is over, or wants no more of it
	}
	return strings.TrimSuffix(line, "\n")
}

// leave starts a process that stays: in this group, or in a session of its own.
func leave(session bool, stdout *os.File, env ...string) func(*hometest.Start) {
	return func(s *hometest.Start) {
		cmd := exec.Command("/bin/sh", "-c", "read -r _ <"+s.Args[2])
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
		cmd.Stdout = stdout
		if env != nil {
			cmd.Env = env
		}
		if err := cmd.Start(); err != nil {
			os.Exit(5)
		}
	}
}

// atVerb does what it is told at one verb, and answers the other rightly.
func atVerb(verb string, do func(*hometest.Start)) func(*hometest.Start) {
	return func(s *hometest.Start) {
		showLife(s)
		if s.Verb == verb {
			do(s)
		} else {
			s.Give(hometest.NoResult())
		}
	}
}

// gone checks that the package ran and that nothing of it is left.
func (s *stage) gone(t *testing.T) {
	t.Helper()
	if ran, alive := s.look(t); !ran || alive {
		t.Errorf("the package ran: %v, and something of it is left: %v", ran, alive)
	}
}

// ended is gone for a package that is known to have run.
func (s *stage) ended(t *testing.T) {
	t.Helper()
	if _, alive := s.look(t); alive {
		t.Error("something of the package is left")
	}
}

// look reports whether the package has run, and whether something of it runs.
func (s *stage) look(t *testing.T) (ran, alive bool) {
	t.Helper()
	var b [64]byte
	for {
		n, err := unix.Read(s.life, b[:])
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return ran, true // somebody could write
		case err != nil:
			t.Fatal(err)
		case n == 0:
			return ran, false
		default:
			ran = true
		}
	}
}

// opened waits until the package waits at the gate, and returns the gate, to be
// written to.
func (s *stage) opened(t *testing.T) *os.File { return opened(t, s.gate) }

// opened opens a FIFO for writing as soon as somebody reads it.
func opened(t *testing.T, fifo string) *os.File {
	t.Helper()
	var fd int
	eventually(t, "nobody reads "+fifo, func() (err error) {
		fd, err = unix.Open(fifo, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err
	})
	file := os.NewFile(uintptr(fd), fifo)
	t.Cleanup(func() { file.Close() })
	return file
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if err = condition(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// running is a command that runs.
type running struct {
	*exec.Cmd
	out, errs bytes.Buffer
}

// start starts the command in the stage's home.
func (s *stage) start(t *testing.T, args ...string) *running {
	t.Helper()
	r := &running{Cmd: program(s.home, args...)}
	return r.start(t)
}

func (r *running) start(t *testing.T) *running {
	t.Helper()
	r.Stdout, r.Stderr = &r.out, &r.errs
	check(t, r.Start())
	t.Cleanup(func() {
		if r.ProcessState == nil {
			_ = r.Process.Kill()
			_ = r.Wait()
		}
	})
	return r
}

// end waits for the command's end.
func (r *running) end() (stdout, stderr string, code int) {
	_ = r.Wait()
	if status := r.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return r.out.String(), r.errs.String(), 256 + int(status.Signal())
	}
	return r.out.String(), r.errs.String(), r.ProcessState.ExitCode()
}

// run runs the command in the stage's home. A status above 256 is a signal.
func (s *stage) run(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return s.start(t, args...).end()
}

// must is run for a command that has to succeed.
func (s *stage) must(t *testing.T, args ...string) (stdout string) {
	t.Helper()
	stdout, stderr, code := s.run(t, args...)
	if code != 0 {
		t.Fatalf("%q: exit %d: %s", args, code, stderr)
	}
	return stdout
}

// refused is run for a command that has to be refused, with a code and words of
// the message.
func (s *stage) refused(t *testing.T, code, says string, args ...string) {
	t.Helper()
	stdout, stderr, status := s.run(t, args...)
	line, rest, _ := strings.Cut(stderr, "\n")
	if status != 1 || stdout != "" || !strings.HasPrefix(line, "error["+code+"]: ") || rest != "" || !strings.Contains(line, says) {
		t.Errorf("%q: exit %d, stdout %q, not error[%s] and %q, but: %s", args, status, stdout, code, says, stderr)
	}
}

func (s *stage) bindArgs() []string {
	return []string{"bind", s.pkg, "--adapter", "behaving", "--trust-same-user-code", "--timeout-ms", "60000"}
}

// bind binds the package.
func (s *stage) bind(t *testing.T, options ...string) {
	t.Helper()
	stdout := s.must(t, append(s.bindArgs(), options...)...)
	s.packageDigest, s.bindingDigest = printed(stdout, "package-digest"), printed(stdout, "binding-digest")
}

// printed is the value of one printed line.
func printed(stdout, name string) string {
	_, rest, _ := strings.Cut("\n"+stdout, "\n"+name+": ")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

func (s *stage) pollArgs(source string) []string {
	return []string{"process-event", "behaving", "source.poll", "--source-id", source, "--config-ref", "c",
		"--expect-extension", "org.example.behaving", "--expect-version", "1.0.0", "--expect-capability-version", "1",
		"--expect-package-digest", s.packageDigest, "--expect-binding-digest", s.bindingDigest}
}

func (s *stage) retireArgs() []string {
	return []string{"retire-binding", "org.example.behaving", "--if-binding-digest", s.bindingDigest}
}
