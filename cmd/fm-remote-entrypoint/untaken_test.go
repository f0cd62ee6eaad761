package main

import (
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestToldToEndWhileNobodyListens: a far end whose stderr nobody takes ends when it
// is told to.
func TestToldToEndWhileNobodyListens(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	root, home := dir+"/root", dir+"/home"
	must(t, os.MkdirAll(root+"/bin", 0o755))
	must(t, os.Mkdir(home, 0o700))
	const script = "#!/bin/sh\nhead -c 70000 /dev/zero >&2\ntouch $FM_HOME/done\n"
	must(t, os.WriteFile(root+"/bin/fm-do", []byte(script), 0o700))
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	word := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	cmd := exec.Command("fm-remote-entrypoint", "1", word(root), word(home), word("fm-do\x00"))
	cmd.Stderr = w
	must(t, cmd.Start())
	for {
		if _, err := os.Stat(home + "/done"); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	late := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Wait()
	if cmd.ProcessState.ExitCode() <= 0 {
		t.Errorf("%v", cmd.ProcessState)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
