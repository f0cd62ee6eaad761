package main

import (
	"context"
	"errors"
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
	testscript.Main(m, map[string]func(){"forge-codex-plugin": main})
}

// workspace makes a work tree, and sets the environment for a Codex that works in
// it for ever, even when it is told to end.
func workspace(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if out, err := exec.Command("git", "init", "--quiet", "--template=", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	fake, err := filepath.Abs("../../forge/codex/testdata/fake-codex")
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"CODEX_BIN": fake, "FAKE_CODEX": "stubborn", "TMPDIR": t.TempDir(), "GORACE": "atexit_sleep_ms=0",
	} {
		t.Setenv(name, value)
	}
	return dir
}

// atWork waits for Codex to be at work, and returns its pid.
func atWork(dir string) int {
	for ; ; time.Sleep(time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(dir, "pid"))
		if line, whole := strings.CutSuffix(string(text), "\n"); whole {
			pid, _ := strconv.Atoi(line)
			return pid
		}
	}
}

func left(t *testing.T) {
	t.Helper()
	if files, _ := os.ReadDir(os.TempDir()); len(files) > 0 {
		t.Errorf("files are left: %v", files)
	}
}

// A host that cancels kills a plugin whose Codex does not end. No file is left.
func TestHostCancels(t *testing.T) {
	for name, withhold := range map[string][]forge.Capability{"cancel": nil, "end of stdin": {forge.CapCancel}} {
		t.Run(name, func(t *testing.T) {
			dir := workspace(t)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				atWork(dir)
				cancel()
			}()
			request := forge.Request{Operation: forge.CapWorkspaceEdit, Workspace: dir, Instruction: "edit it"}
			_, err := forge.Run(ctx, request, forge.Options{
				Argv: []string{"forge-codex-plugin"}, Env: os.Environ(), Timeout: time.Minute, Withhold: withhold,
			})
			if e, ok := errors.AsType[*forge.Error](err); !ok || e.Outcome != forge.OutcomeCancelled {
				t.Errorf("got %v", err)
			}
			left(t)
		})
	}
}

// Nor is one when a signal ends the plugin, and Codex is not left running.
func TestSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			dir := workspace(t)
			id := strings.Repeat("0", 32)
			session := forge.NewSession(id, forge.Request{
				Operation: forge.CapWorkspaceEdit, Workspace: dir, Instruction: "edit it", TimeoutMS: 60_000,
			}, []forge.Capability{forge.CapWorkspaceEdit})
			plugin := exec.Command("forge-codex-plugin")
			stdin, err := plugin.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := plugin.Start(); err != nil {
				t.Fatal(err)
			}
			for _, frame := range []func() ([]byte, error){session.Initialize, session.Execute} {
				text, err := frame()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := stdin.Write(text); err != nil {
					t.Fatal(err)
				}
			}
			pid := atWork(dir)
			if err := plugin.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if err := plugin.Wait(); err != nil {
				t.Errorf("it did not answer: %v", err)
			}
			left(t)
			if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
				t.Errorf("Codex still runs: %v", err)
			}
		})
	}
}
