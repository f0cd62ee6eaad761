package codex

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"hawser/forge"
	"hawser/forge/internal/gitenv"
	"hawser/internal/fault"
)

// worktree is a directory within a Git work tree, and where the HEAD of that was.
type worktree struct {
	dir  string
	head string
}

// openWorktree looks at the workspace. It is the request that is invalid when
// the directory cannot be entered or Git says no; everything else that goes
// wrong here is ours.
func openWorktree(ctx context.Context, dir string) (*worktree, error) {
	w := &worktree{dir: dir}
	if _, err := os.Stat(dir + "/."); err != nil {
		return nil, notWorktree(dir, err)
	}
	inside, err := w.git(ctx, "rev-parse", "--is-inside-work-tree")
	switch exit, ok := errors.AsType[*exec.ExitError](err); {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case ok && exit.Exited():
		return nil, notWorktree(dir, err)
	case err != nil:
		return nil, fault.Wrap(fault.ProcessFailed, err, "cannot ask Git about the workspace %s", fault.Path(dir))
	case inside != "true":
		return nil, notWorktree(dir, errors.New("it is within a repository, and not among its files"))
	}
	w.head, err = w.headNow(ctx)
	return w, err
}

func notWorktree(dir string, err error) error {
	return fmt.Errorf("the workspace %s is no Git work tree: %w (%w)", fault.Path(dir), err, forge.Failure{Category: forge.InvalidRequest})
}

// checkHead fails when HEAD names another branch or another commit than at first.
func (w *worktree) checkHead(ctx context.Context) error {
	now, err := w.headNow(ctx)
	if err == nil && now != w.head {
		err = fault.New(fault.ProcessFailed, "Codex moved HEAD of %s, which only its owner may", fault.Path(w.dir))
	}
	return err
}

// headNow is the branch of HEAD, "" when it is detached, and its commit, "" when
// there is none yet.
func (w *worktree) headNow(ctx context.Context) (string, error) {
	branch, err := w.git(ctx, "symbolic-ref", "--quiet", "HEAD")
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != 1) {
		return "", fault.Wrap(fault.IO, err, "cannot read HEAD of %s", fault.Path(w.dir))
	}
	commit, err := w.git(ctx, "rev-parse", "--quiet", "--verify", "HEAD")
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != 1) {
		return "", fault.Wrap(fault.IO, err, "cannot read HEAD of %s", fault.Path(w.dir))
	}
	return branch + " " + commit, nil
}

func (w *worktree) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = w.dir
	cmd.Env = environment()
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && len(exit.Stderr) > 0 {
		line, _, _ := bytes.Cut(exit.Stderr, []byte("\n"))
		return "", fault.Wrap(fault.IO, err, "git: %s", line)
	}
	return strings.TrimSuffix(string(out), "\n"), err
}

// environment is this process's, but for the variables that would point Git, and
// the Git that Codex runs, to another repository than the workspace's.
func environment() []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(gitenv.Without(os.Environ()), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		twice := seen[name]
		seen[name] = true
		return name == "" || twice
	})
}
