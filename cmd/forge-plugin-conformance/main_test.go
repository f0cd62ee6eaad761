package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"hawser/forge"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"forge-plugin-conformance": main,
		"good-plugin":              func() { serve(os.Stdin, os.Stdout) },
		"crlf-plugin":              func() { serve(noCR{os.Stdin}, os.Stdout) },
		"naive-plugin":             naive,
		"loud-plugin":              func() { fmt.Println("ready"); serve(os.Stdin, os.Stdout) },
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", "atexit_sleep_ms=0") // a program of the race detector ends a second late otherwise
			return nil
		},
	})
}

// job is the command as it judges a plugin that edits work trees, and never ends
// to do so unless told otherwise.
type job struct {
	*exec.Cmd
	tmp string // where its work trees are
	pid string // where its plugin notes who it is
}

func start(t *testing.T, before string, stdout *os.File, plugin string) *job {
	t.Helper()
	j := &job{tmp: t.TempDir(), pid: filepath.Join(t.TempDir(), "pid")}
	j.Cmd = exec.Command("sh", "-c", before+` exec forge-plugin-conformance -operation workspace_edit -run "^session/" `+plugin)
	j.Stdout = stdout
	j.Env = append(os.Environ(), "TMPDIR="+j.tmp, "PID="+j.pid, "GORACE=atexit_sleep_ms=0")
	if err := j.Start(); err != nil {
		t.Fatal(err)
	}
	return j
}

// running waits for the plugin, and returns its pid.
func (j *job) running() int {
	for ; ; time.Sleep(time.Millisecond) {
		text, _ := os.ReadFile(j.pid)
		if line, whole := strings.CutSuffix(string(text), "\n"); whole {
			pid, _ := strconv.Atoi(line)
			return pid
		}
	}
}

// ends waits for the end, which leaves no file.
func (j *job) ends(t *testing.T, status int) {
	t.Helper()
	_ = j.Wait()
	if got := j.ProcessState.ExitCode(); got != status {
		t.Errorf("it ended with %v, want status %d", j.ProcessState, status)
	}
	if left, _ := os.ReadDir(j.tmp); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
}

const hangs = `sh -c 'echo $$ >"$PID"; exec sleep 1000'`

// A run that is interrupted stops the plugin that it waits for, and leaves nothing.
func TestInterrupted(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			j := start(t, "", nil, hangs)
			pid := j.running()
			if err := j.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			j.ends(t, 128+int(sig))
			if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
				t.Errorf("the plugin is not gone: %v", err)
			}
		})
	}
}

// What is ignored from outside, as under nohup or in the background of a script,
// stays ignored. TERM comes after it, and is the one that ends the run: of two
// signals that are pending, the runtime takes that with the lower number first.
// It lets no program of Go see that QUIT was ignored.
func TestIgnoredSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			j := start(t, fmt.Sprintf(`trap "" %d;`, sig), nil, hangs)
			j.running()
			for _, sent := range []syscall.Signal{sig, syscall.SIGTERM} {
				if err := j.Process.Signal(sent); err != nil {
					t.Fatal(err)
				}
			}
			j.ends(t, 128+int(syscall.SIGTERM))
		})
	}
}

// Nor does one whose verdicts nobody takes.
func TestNobodyReads(t *testing.T) {
	t.Run("closed pipe", func(t *testing.T) {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		read.Close()
		j := start(t, "", write, "naive-plugin")
		write.Close()
		j.ends(t, exitUsage)
	})
	t.Run("full disk", func(t *testing.T) {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip(err)
		}
		defer full.Close()
		start(t, "", full, "naive-plugin").ends(t, exitUsage)
	})
}

// serve is a plugin for text; log it as any plugin may.
func serve(stdin io.Reader, stdout io.Writer) {
	fmt.Fprintln(os.Stderr, "private: started")
	plugin := forge.Plugin{Capabilities: []forge.Capability{forge.CapText}, In: stdin, Out: stdout}
	err := forge.Serve(plugin, func(_ context.Context, r forge.Request) (forge.Result, error) {
		return forge.Result{Output: strings.ToUpper(r.Input)}, nil
	})
	if err != nil {
		os.Exit(1)
	}
}

// naive edits whatever it is told to, and what it is not told it takes for the
// working directory.
func naive() {
	input := bufio.NewReader(os.Stdin)
	read := func() map[string]any {
		line, _ := input.ReadString('\n')
		var frame map[string]any
		if json.Unmarshal([]byte(line), &frame) != nil {
			os.Exit(1)
		}
		return frame
	}
	head := fmt.Sprintf(`{"version":"v1","id":%q,"type":`, read()["id"])
	fmt.Println(head + `"initialized","capabilities":["workspace_edit"]}`)
	workspace, _ := read()["workspace"].(string)
	file, err := os.OpenFile(filepath.Join(workspace, "README"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		os.Exit(1)
	}
	fmt.Fprintln(file, "edited")
	fmt.Println(head + `"result"}`)
}

// noCR reads as a plugin does that takes CR LF for a line end.
type noCR struct{ source io.Reader }

func (r noCR) Read(p []byte) (int, error) {
	n, err := r.source.Read(p)
	return copy(p, bytes.ReplaceAll(p[:n], []byte("\r"), nil)), err
}
