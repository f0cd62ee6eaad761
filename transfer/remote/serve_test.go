package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"hawser/internal/cli"
)

// farEnd is the program of the far end.
func farEnd() *cobra.Command {
	return &cobra.Command{Use: "far-end", RunE: func(cmd *cobra.Command, args []string) error {
		if status := NewServer().Serve(cmd.Context(), args); status != 0 {
			return cli.Status(status)
		}
		return nil
	}}
}

// far is a root and a home as a far end has them.
type far struct {
	root, home string
	server     *Server
	out, err   bytes.Buffer
}

func newFar(t testing.TB) *far {
	t.Helper()
	dir := temp(t)
	f := &far{root: dir + "/root", home: dir + "/home"}
	must(t, os.MkdirAll(f.root+"/bin", 0o755))
	must(t, os.MkdirAll(f.home, 0o700))
	f.server = &Server{
		Stdin: strings.NewReader(""), Stdout: &f.out, Stderr: &f.err, time: JobTime, outputTime: outputTime,
		Getenv: func(name string) string {
			return map[string]string{"PATH": os.Getenv("PATH"), "HOME": "/home/account", "LANG": "C.UTF-8", "SSH_CONNECTION": "x"}[name]
		},
	}
	return f
}

func (f *far) command(t testing.TB, name, script string) {
	t.Helper()
	write(t, f.root+"/bin/"+name, "#!/bin/sh\n"+script+"\n", 0o755)
}

func (f *far) serve(ctx context.Context, t testing.TB, argv ...string) int {
	t.Helper()
	line, err := Job{Root: f.root, Home: f.home, Argv: argv}.CommandLine()
	must(t, err)
	return f.server.Serve(ctx, strings.Fields(line)[1:])
}

// do serves a job whose command is a script.
func (f *far) do(t testing.TB, script string, args ...string) int {
	t.Helper()
	f.command(t, "fm-do", script)
	return f.serve(context.Background(), t, append([]string{"fm-do"}, args...)...)
}

func TestServe(t *testing.T) {
	f := newFar(t)
	hostile := []string{"", "a b", "$(touch evil)", "`id`", "';'", "\n", "\xff", "--help", "*"}
	f.server.Stdin = strings.NewReader("in\x00put")
	status := f.do(t, `printf '[%s]' "$@"; cat; env | LC_ALL=C sort >&2; ps -o pgid= -p $$ | tr -d ' ' >&2; echo $$ >&2; exit 9`, hostile...)
	if status != 9 {
		t.Errorf("status %d", status)
	}
	if got, want := f.out.String(), "["+strings.Join(hostile, "][")+"]in\x00put"; got != want {
		t.Errorf("stdout %q, want %q", got, want)
	}
	env, group, _ := strings.Cut(f.err.String(), "PWD=")
	if want := fmt.Sprintf("FM_HOME=%s\nFM_ROOT_OVERRIDE=%s\nHOME=/home/account\nPATH=%s\n", f.home, f.root, os.Getenv("PATH")); env != want {
		t.Errorf("environment\n%s\nwant\n%s", env, want)
	}
	if lines := strings.Fields(group); len(lines) < 2 || lines[len(lines)-1] != lines[len(lines)-2] {
		t.Errorf("no group of its own: %q", group)
	}
}

func TestServeStatuses(t *testing.T) {
	for script, want := range map[string]int{
		"exit 0": 0, "exit 64": 64, "exit 255": 255, "kill -9 $$": 137, "kill -15 $$": 143,
		"sleep 600 & exit 3": 3, // what is left in the group goes with it
	} {
		if got := newFar(t).do(t, script); got != want {
			t.Errorf("%s: status %d, want %d", script, got, want)
		}
	}
}

// TestServeRefusesOthers: what another user keeps to himself is his, not a fault of
// the disk.
func TestServeRefusesOthers(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("needs a user whom modes keep out")
	}
	others := slices.DeleteFunc([]string{"/root", "/lost+found", "/etc/ssl/private", "/var/cache/ldconfig"}, func(path string) bool {
		_, err := os.ReadDir(path)
		return !errors.Is(err, fs.ErrPermission)
	})
	if len(others) == 0 {
		t.Skip("needs a directory that only root may read")
	}
	for name, spoil := range map[string]func(f *far){
		"home": func(f *far) { f.home = others[0] },
		"root": func(f *far) { f.root = others[0] },
	} {
		f := newFar(t)
		spoil(f)
		status := f.serve(context.Background(), t, "fm-do")
		if status != 64 || !strings.Contains(f.err.String(), others[0]+" belongs to uid 0") {
			t.Errorf("%s: status %d, %s", name, status, f.err.String())
		}
	}
	// Our own is not.
	f := newFar(t)
	must(t, os.Chmod(f.home, 0))
	if status := f.serve(context.Background(), t, "fm-do"); status != 70 || !strings.HasPrefix(f.err.String(), "error[io]: ") {
		t.Errorf("our own: status %d, %s", status, f.err.String())
	}
}

func TestServeRefuses(t *testing.T) {
	host, err := os.Hostname()
	must(t, err)
	for name, c := range map[string]struct {
		status int
		code   string
		spoil  func(t *testing.T, f *far)
	}{
		"command missing":   {64, "usage", func(t *testing.T, f *far) { must(t, os.Remove(f.root+"/bin/fm-do")) }},
		"not executable":    {64, "mode-unsafe", func(t *testing.T, f *far) { must(t, os.Chmod(f.root+"/bin/fm-do", 0o644)) }},
		"writable by group": {64, "mode-unsafe", func(t *testing.T, f *far) { must(t, os.Chmod(f.root+"/bin/fm-do", 0o775)) }},
		"writable by all":   {64, "mode-unsafe", func(t *testing.T, f *far) { must(t, os.Chmod(f.root+"/bin/fm-do", 0o757)) }},
		"link": {64, "link-unsafe", func(t *testing.T, f *far) {
			must(t, os.Rename(f.root+"/bin/fm-do", f.root+"/bin/fm-real"))
			must(t, os.Symlink("fm-real", f.root+"/bin/fm-do"))
		}},
		"directory": {64, "link-unsafe", func(t *testing.T, f *far) {
			must(t, os.Remove(f.root+"/bin/fm-do"))
			must(t, os.Mkdir(f.root+"/bin/fm-do", 0o755))
		}},
		"FIFO": {64, "link-unsafe", func(t *testing.T, f *far) {
			must(t, os.Remove(f.root+"/bin/fm-do"))
			must(t, syscall.Mkfifo(f.root+"/bin/fm-do", 0o755))
		}},
		"bin is a link": {64, "path-unsafe", func(t *testing.T, f *far) {
			must(t, os.Rename(f.root+"/bin", f.root+"/real"))
			must(t, os.Symlink("real", f.root+"/bin"))
		}},
		"bin is writable":  {64, "mode-unsafe", func(t *testing.T, f *far) { must(t, os.Chmod(f.root+"/bin", 0o777)) }},
		"root is writable": {64, "mode-unsafe", func(t *testing.T, f *far) { must(t, os.Chmod(f.root, 0o777)) }},
		"root missing":     {64, "usage", func(t *testing.T, f *far) { f.root += "x" }},
		"root is a file":   {64, "path-unsafe", func(t *testing.T, f *far) { f.root += "/bin/fm-do" }},
		"root is a link": {64, "path-unsafe", func(t *testing.T, f *far) {
			must(t, os.Symlink(f.root, f.root+"-link"))
			f.root += "-link"
		}},
		"home missing": {64, "home-invalid", func(t *testing.T, f *far) { f.home += "x" }},
		"home is a link": {64, "path-unsafe", func(t *testing.T, f *far) {
			must(t, os.Symlink(f.home, f.home+"-link"))
			f.home += "-link"
		}},
		"home below a link": {64, "path-unsafe", func(t *testing.T, f *far) {
			must(t, os.Symlink(filepath.Dir(f.home), f.root+"/there"))
			f.home = filepath.Dir(f.home) + "/root/there/home"
			f.root = filepath.Dir(f.root) + "/other"
		}},
		"another's home": {64, "owner-mismatch", func(t *testing.T, f *far) {
			if os.Geteuid() != 0 {
				t.Skip("needs root, to give a directory away")
			}
			must(t, os.Chown(f.home, 12345, -1))
		}},
		"another's command": {64, "owner-mismatch", func(t *testing.T, f *far) {
			if os.Geteuid() != 0 {
				t.Skip("needs root, to give a file away")
			}
			must(t, os.Chown(f.root+"/bin/fm-do", 12345, -1))
		}},
		"root's home": {64, "owner-mismatch", func(t *testing.T, f *far) {
			if os.Geteuid() == 0 {
				t.Skip("root's own home is no other's")
			}
			f.home = "/usr"
		}},
		"interpreter missing": {70, "process-failed", func(t *testing.T, f *far) {
			write(t, f.root+"/bin/fm-do", "#!/nonexistent/interpreter\n", 0o755)
		}},
		"stdin over": {64, "request-oversized", func(t *testing.T, f *far) {
			f.server.Stdin = strings.NewReader(strings.Repeat("x", MaxStreamBytes+1))
		}},
		"stdin broken": {70, "io", func(t *testing.T, f *far) {
			f.server.Stdin = io.MultiReader(strings.NewReader("x"), &broken{})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFar(t)
			f.command(t, "fm-do", "touch "+f.home+"/ran")
			ran := f.home + "/ran"
			c.spoil(t, f)
			if got := f.serve(context.Background(), t, "fm-do"); got != c.status {
				t.Errorf("status %d, want %d", got, c.status)
			}
			if line := f.err.String(); !strings.HasPrefix(line, "error["+c.code+"]: on "+host+": ") || strings.Count(line, "\n") != 1 {
				t.Errorf("%q is no refusal with %s", line, c.code)
			}
			if f.out.Len() > 0 {
				t.Errorf("stdout %q", f.out.String())
			}
			if _, err := os.Stat(ran); err == nil {
				t.Error("the command ran")
			}
		})
	}
}

type broken struct{}

func (*broken) Read([]byte) (int, error) { return 0, syscall.EIO }

func TestServeLimits(t *testing.T) {
	f := newFar(t)
	f.server.Stdin = strings.NewReader(strings.Repeat("x", MaxStreamBytes))
	if status := f.do(t, "tee /dev/stderr"); status != 0 || f.out.Len() != MaxStreamBytes || f.err.Len() != MaxStreamBytes {
		t.Errorf("status %d with %d and %d bytes", status, f.out.Len(), f.err.Len())
	}
	for _, to := range []string{"", " >&2"} {
		f = newFar(t)
		f.server.Stdin = strings.NewReader(strings.Repeat("x", MaxStreamBytes))
		status := f.do(t, "{ cat; printf y; }"+to+"; exit 0")
		if status != 70 || !strings.Contains(f.err.String(), "error[response-oversized]") {
			t.Errorf("one byte over%s: status %d", to, status)
		}
		f = newFar(t)
		if status := f.do(t, "exec cat /dev/zero"+to); status != 70 {
			t.Errorf("endless%s: status %d", to, status)
		}
	}
}

func TestServeTime(t *testing.T) {
	f := newFar(t)
	f.server.time = 300 * time.Millisecond
	began := time.Now()
	// A host of ours needs longer than TERM to KILL of the innermost group.
	status := f.do(t, `trap 'sleep 1; echo cleaned; exit 1' TERM; echo started; while :; do sleep 0.01; done`)
	if status != 124 || f.out.String() != "started\ncleaned\n" || !strings.Contains(f.err.String(), "error[timeout]") {
		t.Errorf("status %d, %q, %q", status, f.out.String(), f.err.String())
	}
	f = newFar(t)
	f.server.time = 300 * time.Millisecond
	if status := f.do(t, `trap '' TERM; while :; do sleep 0.01; done`); status != 124 {
		t.Errorf("deaf to TERM: status %d", status)
	}
	f = newFar(t)
	f.server.time = 50 * time.Millisecond
	silent, w := io.Pipe()
	defer w.Close()
	f.server.Stdin = silent
	if status := f.do(t, "exit 0"); status != 124 {
		t.Errorf("endless input: status %d", status)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("took %v", took)
	}
}

func TestServeStopped(t *testing.T) {
	f := newFar(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f.command(t, "fm-do", `trap 'touch $FM_HOME/told; exit 0' TERM; touch $FM_HOME/started; while :; do sleep 0.01; done`)
	go func() {
		for {
			if _, err := os.Stat(f.home + "/started"); err == nil || ctx.Err() != nil {
				cancel()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if status := f.serve(ctx, t, "fm-do"); status == 0 || strings.Contains(f.err.String(), "error[") {
		t.Errorf("status %d, %q", status, f.err.String())
	}
	if _, err := os.Stat(f.home + "/told"); err != nil {
		t.Error("the command was not asked to end")
	}
}

// TestServeHeldOutput: a process that left the group keeps stdout open, and is
// not waited for.
func TestServeHeldOutput(t *testing.T) {
	f := newFar(t)
	status := f.do(t, `setsid sh -c 'echo $$ > $FM_HOME/pid; exec sleep 600' & until [ -s $FM_HOME/pid ]; do sleep 0.01; done; echo done`)
	if status != 0 || f.out.String() != "done\n" {
		t.Errorf("status %d, %q, %q", status, f.out.String(), f.err.String())
	}
	var pid int
	text, err := os.ReadFile(f.home + "/pid")
	must(t, err)
	_, err = fmt.Sscan(string(text), &pid)
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
}

// TestServeUntaken: a near end that takes neither the output nor the refusal does
// not keep the far end, nor does it keep it from being told to end.
func TestServeUntaken(t *testing.T) {
	const more = 70_000 // than a pipe holds
	for name, c := range map[string]struct {
		script string
		time   time.Duration
		spoil  func(f *far, w *os.File)
		told   bool
	}{
		"stdout":             {script: fmt.Sprintf("head -c %d /dev/zero", more), spoil: func(f *far, w *os.File) { f.server.Stdout = w }},
		"stderr":             {script: fmt.Sprintf("head -c %d /dev/zero >&2", more), spoil: func(f *far, w *os.File) { f.server.Stderr = w }},
		"stderr, told":       {script: fmt.Sprintf("head -c %d /dev/zero >&2", more), spoil: func(f *far, w *os.File) { f.server.Stderr = w }, told: true},
		"a stopped one":      {script: fmt.Sprintf("head -c %d /dev/zero >&2; exec sleep 600", more), time: 300 * time.Millisecond, spoil: func(f *far, w *os.File) { f.server.Stderr = w }},
		"a refusal":          {script: "exit 0", spoil: func(f *far, w *os.File) { f.server.Stderr, f.home = full(t, w), f.home+"x" }},
		"a refusal, told":    {script: "exit 0", spoil: func(f *far, w *os.File) { f.server.Stderr, f.home = full(t, w), f.home+"x" }, told: true},
		"why it was stopped": {script: "exec sleep 600", time: 300 * time.Millisecond, spoil: func(f *far, w *os.File) { f.server.Stderr = full(t, w) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFar(t)
			r, w, err := os.Pipe()
			must(t, err)
			defer r.Close()
			defer w.Close()
			f.command(t, "fm-do", c.script)
			c.spoil(f, w)
			if c.time != 0 {
				f.server.time = c.time
			}
			f.server.outputTime = 100 * time.Millisecond
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			if c.told {
				f.server.outputTime = time.Hour
				time.AfterFunc(100*time.Millisecond, cancel)
			}
			status := f.serve(ctx, t, "fm-do")
			if want := map[bool]int{true: StatusUsage, false: StatusInternal}[strings.HasPrefix(name, "a refusal")]; status != want {
				t.Errorf("status %d, want %d", status, want)
			}
		})
	}
}

// full returns a pipe that is filled.
func full(t *testing.T, w *os.File) *os.File {
	t.Helper()
	raw, err := w.SyscallConn()
	must(t, err)
	must(t, raw.Write(func(fd uintptr) bool {
		for err == nil {
			_, err = syscall.Write(int(fd), []byte{0})
		}
		return true
	}))
	if err != syscall.EAGAIN {
		t.Fatal(err)
	}
	return w
}
