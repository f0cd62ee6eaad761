package conformance

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"

	"hawser/internal/fault"
)

// worktree is a Git work tree with one commit, for a plugin to edit.
type worktree struct {
	dir  string
	head string
}

// newWorktree makes a work tree in a directory that is empty or absent.
func newWorktree(dir string) (*worktree, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot make a work tree")
	}
	if err := os.WriteFile(filepath.Join(dir, "README"), []byte("A work tree for one conformance scenario.\n"), 0o644); err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot make a work tree")
	}
	w := &worktree{dir: dir}
	for _, args := range [][]string{
		{"init", "--quiet", "--initial-branch=main", "--template="},
		{"add", "README"},
		{"commit", "--quiet", "--no-gpg-sign", "-m", "chore: begin"},
	} {
		if _, err := w.git(args...); err != nil {
			return nil, err
		}
	}
	var err error
	w.head, err = w.headNow()
	return w, err
}

// copyTo copies the whole work tree, which costs less than making one.
func (w *worktree) copyTo(dir string) (*worktree, error) {
	if err := os.CopyFS(dir, os.DirFS(w.dir)); err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot copy a work tree")
	}
	return &worktree{dir, w.head}, nil
}

// misread are ends of a workspace as lax plugins read them that get one with a
// defect at its end.
var misread = []string{
	"\xff", "\xc1\xa1", "\xed\xa0\x80", "\t", // as it came: execute/workspace-invalid-utf8, -overlong-utf8, -surrogate, -control
	"\uFFFD", "\uFFFD\uFFFD", "\uFFFD\uFFFD\uFFFD", "?", "??", // replaced, as a whole or byte by byte
	"a", // as the overlong bytes were meant
}

// newScratch copies a work tree for the sessions that are to be rejected. It can
// be reached by what lax plugins make of its path, too: else those would fail for
// want of a directory, and seem to reject. Not every file system has every name.
func newScratch(template *worktree, dir string) (*worktree, error) {
	for _, end := range misread {
		_ = os.Symlink(filepath.Base(dir), dir+end)
	}
	return template.copyTo(dir)
}

// changed reports whether anything in the work tree differs from its commit.
func (w *worktree) changed() (bool, error) {
	out, err := w.git("status", "--porcelain")
	return len(out) > 0, err
}

// moved reports whether HEAD names another branch or commit than at first, or
// none that Git can tell.
func (w *worktree) moved() bool {
	now, err := w.headNow()
	return err != nil || now != w.head
}

func (w *worktree) headNow() (string, error) {
	branch, err := w.git("symbolic-ref", "HEAD")
	if err != nil {
		return "", err
	}
	commit, err := w.git("rev-parse", "HEAD")
	return string(branch) + string(commit), err
}

// git runs git in the work tree, away from the user's configuration and hooks.
func (w *worktree) git(args ...string) ([]byte, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = w.dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir, "LC_ALL=C",
		"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=conformance", "GIT_AUTHOR_EMAIL=conformance@localhost",
		"GIT_COMMITTER_NAME=conformance", "GIT_COMMITTER_EMAIL=conformance@localhost",
	}
	out, err := cmd.Output()
	if exit, ok := err.(*exec.ExitError); ok {
		err = fault.New(fault.IO, "%v: %s", exit, bytes.TrimSpace(exit.Stderr))
	}
	return out, fault.Wrap(fault.IO, err, "git %s failed", args[0])
}
