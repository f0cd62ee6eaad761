package conformance_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"hawser/forge"
	"hawser/forge/conformance"
)

const root = "../.."

// block returns a block of the guide for plugin authors, by the file that it is.
func block(t *testing.T, file string) []byte {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/plugins.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?ms)^```[a-z]+ file=" + regexp.QuoteMeta(file) + "\n(.*?)^```$").FindSubmatch(page)
	if found == nil {
		t.Fatalf("docs/plugins.md has no block for %s", file)
	}
	return found[1]
}

// The plugin in Go, as the guide shows it, is built in its place in the checkout
// without being there.
func TestGuideInGo(t *testing.T) {
	dir := t.TempDir()
	abs, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	source, overlay, plugin := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "upper")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(abs, "examples/upper/main.go"): source}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{source: block(t, "examples/upper/main.go"), overlay: text} {
		if err := os.WriteFile(name, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-overlay", overlay, "-o", plugin, "./examples/upper")
	build.Dir = abs
	build.Env = append(os.Environ(), "GOPROXY=off")
	if out, err := build.CombinedOutput(); err != nil {
		if bytes.Contains(out, []byte("GOPROXY=off")) || strings.Contains(err.Error(), "not found") {
			t.Skip("this user has no Go modules to build with")
		}
		t.Fatalf("%v\n%s", err, out)
	}
	judge(t, plugin, "upper")

	byHand := exec.Command("sh", "-c", string(block(t, "by-hand.sh")))
	byHand.Dir = dir
	out, err := byHand.CombinedOutput()
	const answer = `{"version":"v1","id":"0123456789abcdef0123456789abcdef","type":"result","output":"HELLO"}` + "\n"
	if err != nil || !strings.HasSuffix(string(out), "\n"+answer) {
		t.Errorf("by hand: %v\n%s", err, out)
	}
}

// The plugin in Python is the example, whole.
func TestGuideInPython(t *testing.T) {
	example, err := filepath.Abs(root + "/examples/forge-plugin-v1.py")
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(content, block(t, "examples/forge-plugin-v1.py")) {
		t.Error("docs/plugins.md and examples/forge-plugin-v1.py differ: copy the file into the page")
	}
	// The interpreter itself: what is found as python3 may be a slow wrapper of it.
	python, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Fatal(err)
	}
	judge(t, strings.TrimSpace(string(python)), "python3", example)
}

// judge wants a plugin to pass everything.
func judge(t *testing.T, path string, argv ...string) {
	t.Helper()
	s := &conformance.Suite{
		Operation: forge.CapText, Path: path, Argv: argv, Timeout: time.Minute,
		// This program is the wrapper of each plugin; built with the race detector,
		// it would end a second late.
		Env: []string{"PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0"},
	}
	err := s.Run(t.Context(), conformance.Scenarios(forge.CapText), func(v conformance.Verdict) error {
		if !v.Passed() {
			t.Errorf("%s: %v", v.Scenario.Name, v.Finding)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
