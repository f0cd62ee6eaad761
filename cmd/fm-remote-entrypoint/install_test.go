package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestInstall: what other hosts ask for is there, and only executes the program.
func TestInstall(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	from, root := dir+"/from", dir+"/it's the root"
	if err := os.Mkdir(from, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fm-extension", "fm-procevent", "fm-on", "fm-remote-entrypoint"} {
		script := "#!/bin/sh\nprintf '[%s]' \"$0\" \"$@\"\nexit 7\n"
		if err := os.WriteFile(filepath.Join(from, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("../../scripts/install.sh", from, "").CombinedOutput(); err == nil || !strings.Contains(string(out), "make install ROOT=/opt/fm") {
		t.Errorf("without a root: %v, %s", err, out)
	}
	for range 2 { // the second time over the first
		if out, err := exec.Command("../../scripts/install.sh", from, root).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if err := os.Symlink(root+"/bin/fm-on.sh", dir+"/on-the-path"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{root + "/bin/fm-on.sh", dir + "/on-the-path"} {
		cmd := exec.Command(path, "a b", "", "$c")
		out, _ := cmd.Output()
		if want := "[" + root + "/bin/fm-on][a b][][$c]"; string(out) != want || cmd.ProcessState.ExitCode() != 7 {
			t.Errorf("%s printed %s and exited %d, want %s", path, out, cmd.ProcessState.ExitCode(), want)
		}
	}
	files, err := os.ReadDir(root + "/bin")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 8 {
		t.Errorf("%d files in bin: %v", len(files), files)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o755 {
			t.Errorf("%s has mode %v", f.Name(), info.Mode())
		}
	}
}
