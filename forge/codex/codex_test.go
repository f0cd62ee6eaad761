package codex

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hawser/forge"
	"hawser/internal/fault"
)

// repository makes a Git work tree with one commit.
func repository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "README"), []byte("text\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	git(t, dir, "init", "--quiet", "--initial-branch=main", "--template=")
	git(t, dir, "add", "README")
	git(t, dir, "commit", "--quiet", "-m", "chore: begin")
	return dir
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return string(out)
}

// edits lets the stand-in edit a repository, with what goes wrong in it.
func edits(t *testing.T, wrong string, request forge.Request) (forge.Result, []forge.Stage, error) {
	t.Helper()
	fake, err := filepath.Abs("testdata/fake-codex")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("CODEX_BIN", fake)
	t.Setenv("FAKE_CODEX", wrong)
	t.Setenv("TMPDIR", t.TempDir())
	var stages []forge.Stage
	result, err := Edit(t.Context(), request, func(stage forge.Stage, _ string) { stages = append(stages, stage) })
	if left, _ := os.ReadDir(os.TempDir()); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
	return result, stages, err
}

func request(dir string, selected ...forge.Capability) forge.Request {
	return forge.Request{
		Operation: forge.CapWorkspaceEdit, Workspace: dir, Instruction: "edit it", TimeoutMS: 60_000,
		Selected: append([]forge.Capability{forge.CapWorkspaceEdit}, selected...),
	}
}

func TestEdit(t *testing.T) {
	dir := repository(t)
	result, stages, err := edits(t, "", request(dir, forge.CapAgentReport))
	want := forge.Result{
		CommitSubject: "docs: edit the README",
		Report:        &forge.Report{Summary: "Edited the README.", Changes: []string{"README: one line more"}},
	}
	if err != nil || !reflect.DeepEqual(result, want) {
		t.Errorf("got %+v, %v", result, err)
	}
	if !slices.Equal(stages, []forge.Stage{forge.Started, forge.Working, forge.Finalizing}) {
		t.Errorf("stages %v", stages)
	}
	if status := git(t, dir, "status", "--porcelain"); status != " M README\n" {
		t.Errorf("status %q", status)
	}
}

func TestEditWithoutReport(t *testing.T) {
	result, _, err := edits(t, "", request(repository(t)))
	if err != nil || result.CommitSubject != "docs: edit the README" || result.Report != nil {
		t.Errorf("got %+v, %v", result, err)
	}
}

// What Codex leaves running is stopped, and spoils nothing.
func TestCodexLeavesAProcess(t *testing.T) {
	if _, _, err := edits(t, "leaves", request(repository(t))); err != nil {
		t.Error(err)
	}
}

// Everything that goes wrong fails the execution, and says what it was without a
// word of Codex's own.
func TestEditFails(t *testing.T) {
	for wrong, want := range map[string]struct {
		code    fault.Code
		message string
	}{
		"fails":      {fault.ProcessFailed, "Codex ended with exit 3"},
		"floods":     {fault.ResponseOversized, "Codex printed more than 1048576 bytes"},
		"commits":    {fault.ProcessFailed, "Codex moved HEAD"},
		"branches":   {fault.ProcessFailed, "Codex moved HEAD"},
		"detaches":   {fault.ProcessFailed, "Codex moved HEAD"},
		"fifo":       {fault.ResponseInvalid, "Codex left something else than a file"},
		"directory":  {fault.ResponseInvalid, "Codex left something else than a file"},
		"link":       {fault.ResponseInvalid, "Codex left something else than a file"},
		"device":     {fault.ResponseInvalid, "Codex left something else than a file"},
		"silent":     {fault.ResponseInvalid, "Codex left no final message"},
		"prose":      {fault.JSONInvalid, "final message of Codex: "},
		"fenced":     {fault.JSONInvalid, "final message of Codex: "},
		"chatty":     {fault.JSONInvalid, "final message of Codex: "},
		"twice":      {fault.JSONInvalid, "final message of Codex: "},
		"unknown":    {fault.SchemaInvalid, "final message of Codex: "},
		"null":       {fault.SchemaInvalid, "final message of Codex: "},
		"empty":      {fault.SchemaInvalid, "final message of Codex: commit_subject: "},
		"partial":    {fault.SchemaInvalid, "final message of Codex: "},
		"unreported": {fault.SchemaInvalid, "final message of Codex: "},
		"large":      {fault.JSONOversized, "final message of Codex: larger than 65536 bytes"},
	} {
		t.Run(wrong, func(t *testing.T) {
			result, _, err := edits(t, wrong, request(repository(t), forge.CapAgentReport))
			if !fault.Is(err, want.code) || !strings.HasPrefix(err.Error(), want.message) {
				t.Errorf("got %+v, %v (%v), want %v (%v)", result, err, fault.CodeOf(err), want.message, want.code)
			}
			if _, ok := errors.AsType[forge.Failure](err); ok {
				t.Errorf("it has a category of its own: %v", err)
			}
		})
	}
}

// What Codex printed counts to the last byte, also when it has ended before that
// was read.
func TestLastByteCounts(t *testing.T) {
	saved := count
	defer func() { count = saved }()
	for wrong, within := range map[string]bool{"mebibyte": true, "mebibyte+1": false} {
		dir := repository(t)
		count = func(output io.Reader) int64 {
			n, _ := io.CopyN(io.Discard, output, maxOutput-100)
			for !gone(filepath.Join(dir, "pid")) {
				time.Sleep(time.Millisecond)
			}
			return n + saved(output)
		}
		_, _, err := edits(t, wrong, request(dir))
		if within && err != nil || !within && !fault.Is(err, fault.ResponseOversized) {
			t.Errorf("%s: got %v", wrong, err)
		}
	}
}

// gone reports whether the process has ended that noted its pid in a file.
func gone(path string) bool {
	text, err := os.ReadFile(path)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return err == nil && pid > 0 && unix.Kill(pid, 0) == unix.ESRCH
}

// What breaks the protocol's own rules for a subject is the protocol's to refuse.
func TestEditLeavesTextsToTheProtocol(t *testing.T) {
	result, _, err := edits(t, "multiline", request(repository(t), forge.CapAgentReport))
	if err != nil {
		t.Fatal(err)
	}
	result.Operation = forge.CapWorkspaceEdit
	_, err = forge.Encode(forge.Frame{ID: strings.Repeat("0", 32), Message: result})
	if v, ok := errors.AsType[*forge.Violation](err); !ok || v.Rule != forge.RuleCommitSubject {
		t.Errorf("got %v", err)
	}
}

func TestWorkspaceIsAWorkTree(t *testing.T) {
	repo := repository(t)
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0); err != nil {
		t.Fatal(err)
	}
	bare := t.TempDir()
	git(t, bare, "init", "--quiet", "--bare", "--template=")
	for _, dir := range []string{t.TempDir(), closed, bare, filepath.Join(repo, ".git"), filepath.Join(repo, "README"), filepath.Join(repo, "none")} {
		_, stages, err := edits(t, "", request(dir))
		if f, ok := errors.AsType[forge.Failure](err); !ok || f.Category != forge.InvalidRequest || len(stages) != 1 {
			t.Errorf("%s: %v, stages %v", dir, err, stages)
		}
	}
}

// What keeps Git from answering is no fault of the request.
func TestGitDoesNotAnswer(t *testing.T) {
	dir := repository(t)
	for name, program := range map[string]string{
		"missing": "", "no program": "just text", "killed": "#!/bin/sh\nkill -KILL $$\n",
	} {
		path := t.TempDir()
		if program != "" {
			if err := os.WriteFile(filepath.Join(path, "git"), []byte(program), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", path)
		_, _, err := edits(t, "", request(dir))
		if _, ok := errors.AsType[forge.Failure](err); ok || !fault.Is(err, fault.ProcessFailed) {
			t.Errorf("git is %s: %v", name, err)
		}
	}
}

// A work tree without a commit, one that shares its repository, and a directory
// of one are as good.
func TestKindsOfWorkTree(t *testing.T) {
	unborn := t.TempDir()
	git(t, unborn, "init", "--quiet", "--template=")
	linked := filepath.Join(t.TempDir(), "linked")
	git(t, repository(t), "worktree", "add", "--quiet", linked)
	below := filepath.Join(repository(t), "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{unborn, linked, below} {
		if _, _, err := edits(t, "", request(dir)); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if _, _, err := edits(t, "detaches", request(below)); !fault.Is(err, fault.ProcessFailed) {
		t.Errorf("HEAD moved from below: %v", err)
	}
}

// The variables that a hook or an alias of Git sets do not lead elsewhere.
func TestForeignRepositoryInEnvironment(t *testing.T) {
	dir, foreign := repository(t), repository(t)
	t.Setenv("GIT_DIR", filepath.Join(foreign, ".git"))
	t.Setenv("GIT_WORK_TREE", foreign)
	_, _, err := edits(t, "branches", request(dir))
	if err == nil || !strings.HasPrefix(err.Error(), "Codex moved HEAD of "+dir) {
		t.Errorf("got %v", err)
	}
}

func TestEditCancelled(t *testing.T) {
	for _, wrong := range []string{"hangs", "stubborn"} {
		dir := repository(t)
		fake, err := filepath.Abs("testdata/fake-codex")
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("CODEX_BIN", fake)
		t.Setenv("FAKE_CODEX", wrong)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { // when Codex is at work
			for git(t, dir, "status", "--porcelain") == "" {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		_, err = Edit(ctx, request(dir), func(forge.Stage, string) {})
		if err != context.Canceled {
			t.Errorf("%s: got %v", wrong, err)
		}
	}
}

// Who has cancelled may kill this process before Codex has ended: by then the
// files of the run are gone.
func TestFilesGoBeforeCodex(t *testing.T) {
	fake, err := filepath.Abs("testdata/fake-codex")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("CODEX_BIN", fake)
	t.Setenv("FAKE_CODEX", "stubborn")
	t.Setenv("TMPDIR", t.TempDir())
	dir := repository(t)
	pid := filepath.Join(dir, "pid")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			if text, _ := os.ReadFile(pid); strings.HasSuffix(string(text), "\n") {
				cancel()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	saved := count
	defer func() { count = saved }()
	count = func(output io.Reader) int64 { // Edit waits for it
		<-ctx.Done()
		for {
			late := gone(pid)
			if left, _ := os.ReadDir(os.TempDir()); len(left) == 0 {
				return saved(output)
			}
			if late {
				t.Error("Codex has ended, and its files are left")
				return 0
			}
			time.Sleep(time.Millisecond)
		}
	}
	if _, err := Edit(ctx, request(dir), func(forge.Stage, string) {}); err != context.Canceled {
		t.Errorf("got %v", err)
	}
}

func TestEditTimeout(t *testing.T) {
	r := request(repository(t))
	r.TimeoutMS = 300
	_, _, err := edits(t, "hangs", r)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestCodexIsMissing(t *testing.T) {
	t.Setenv("CODEX_BIN", filepath.Join(t.TempDir(), "none"))
	_, err := Edit(t.Context(), request(repository(t)), func(forge.Stage, string) {})
	if !fault.Is(err, fault.ProcessFailed) || !strings.Contains(err.Error(), "CODEX_BIN") {
		t.Errorf("got %v", err)
	}
}

func TestMilliseconds(t *testing.T) {
	for n, want := range map[int64]time.Duration{1: time.Millisecond, 60_000: time.Minute, forge.MaxTimeoutMS: (1<<63 - 1) / time.Millisecond * time.Millisecond} {
		if got := milliseconds(n); got != want {
			t.Errorf("%d ms are %v, want %v", n, got, want)
		}
	}
}
