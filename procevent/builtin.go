package procevent

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/invoke/process"
	"hawser/lifecycle"
)

// scriptTimeout bounds one run of a built-in's script.
const scriptTimeout = 60 * time.Second

// pollBuiltin runs the registered command in this process's environment,
// directory and process group, its stderr dropped (commands: start). No output
// is no result; any output is one, whatever the exit.
//
// The command carries the claim's token, so that what outlives a dead runner can
// be proved to be its group's.
func (r *runner) pollBuiltin(ctx context.Context) (polled, error) {
	cmd := exec.CommandContext(ctx, r.reg.Argv[0], r.reg.Argv[1:]...)
	cmd.Env = append(os.Environ(), process.TokenVariable+"="+r.claim.Token)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = process.TermToKill
	output, err := cmd.StdoutPipe()
	if err != nil {
		return polled{}, fault.Wrap(fault.IO, err, "cannot make a pipe")
	}
	if err := cmd.Start(); err != nil {
		return polled{exit: 127}, nil // no such command: no output, and not zero
	}
	// Something that the command left may hold the pipe open for ever.
	defer context.AfterFunc(ctx, func() { time.AfterFunc(2*process.TermToKill, func() { output.Close() }) })()
	s, stageErr := r.stage(output, r.MaxOutput)
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		r.endGroup()
		return polled{}, context.Cause(ctx)
	case stageErr != nil:
		return polled{}, stageErr
	case s.size == 0:
		_ = r.procevent.Remove(s.name)
		return polled{exit: exitOf(err)}, nil
	}
	return polled{staged: &s}, nil
}

// endGroup asks what is left of this process's group to end. This process gets
// the signal too, and has a handler for it; what ignores it is whoever released
// the claim's to stop.
func (r *runner) endGroup() {
	if unix.Getpgrp() == os.Getpid() {
		_ = unix.Kill(0, unix.SIGTERM)
	}
}

func exitOf(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := exit.Sys().(interface{ Signal() os.Signal }); ok && exit.ExitCode() < 0 {
			if sig, ok := status.Signal().(unix.Signal); ok {
				return 128 + int(sig)
			}
		}
		return exit.ExitCode()
	}
	if err != nil {
		return 127
	}
	return 0
}

// The seams of built-in scripts, which external adapters do not have (seed:
// Trust boundary). Silence on any failure: exit 0 is the only yes.

func (h *Host) script(adapter string) string {
	return filepath.Join(h.Home.Root, "bin", "fm-procevent-"+adapter+".sh")
}

func (h *Host) holdScript() string { return filepath.Join(h.Home.Root, "bin", "fm-captain-hold.sh") }

// runScript runs a script of the root and reports whether it exited 0, with at
// most 64 KiB of what it printed.
func (h *Host) runScript(ctx context.Context, stdin []byte, path string, args ...string) (string, bool) {
	if h.Home.Root == "" {
		return "", false
	}
	ctx, cancel := context.WithTimeout(ctx, scriptTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = process.TermToKill
	cmd.Stdin = bytes.NewReader(stdin)
	var out limitedBuffer
	cmd.Stdout = &out
	err := cmd.Run()
	return out.String(), err == nil
}

// limitedBuffer keeps the first 1 MiB and takes the rest without a word.
type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := DefaultMaxOutput - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (r *runner) scriptVerdict(operation string, c *capture) func(context.Context) bool {
	return func(ctx context.Context) bool {
		_, yes := r.runScript(ctx, nil, r.script(r.reg.Adapter), operation, c.path)
		return yes
	}
}

// autohandleFirst runs a self-announcing script's autohandle before the
// announcement, which then covers only what is still unhandled. It reports
// whether the script is self-announcing.
func (r *runner) autohandleFirst(ctx context.Context, c *capture, report Report) bool {
	if _, yes := r.runScript(ctx, nil, r.script(r.reg.Adapter), "self-announcing"); !yes {
		return false
	}
	r.autohandle(ctx, c, report)
	return true
}

func (r *runner) autohandle(ctx context.Context, c *capture, report Report) {
	_, ok := r.runScript(ctx, nil, r.script(r.reg.Adapter), "autohandle", c.Source, strconv.FormatUint(c.Sequence, 10), c.path)
	if ok {
		report.Out("autohandled: " + c.Source)
	}
}

// feedAnswers pipes what the script makes of the result to the hold that the
// source is bound to, if there is one.
func (r *runner) feedAnswers(ctx context.Context, c *capture, report Report) {
	origin, ok := r.runScript(ctx, nil, r.holdScript(), "binding", c.Source)
	origin = strings.TrimRight(origin, "\n")
	if !ok || origin == "" {
		return
	}
	answers, ok := r.runScript(ctx, nil, r.script(r.reg.Adapter), "answers", c.path)
	if !ok {
		return
	}
	source := "the captured result " + c.Source + " sequence " + strconv.FormatUint(c.Sequence, 10)
	if _, ok := r.runScript(ctx, []byte(answers), r.holdScript(), "answers", origin, "--source", source); ok {
		report.Out("answers-fed: " + c.Source)
	}
}

// unbindHold tells the hold that a built-in source was retired.
func (h *Host) unbindHold(ctx context.Context, source string) {
	h.runScript(ctx, nil, h.holdScript(), "unbind", source)
}

// Classify prints what the owner of a captured result calls it (commands:
// classify): the package that was captured with it, whose binding must still be
// the same, or the built-in's script.
//
// Errors: path-unsafe, source-missing, result-invalid, owner-mismatch; those of
// lifecycle.Host.Classify; process-failed for a script that does not classify.
func (h *Host) Classify(ctx context.Context, path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fault.Wrap(fault.IO, err, "cannot tell the current directory")
	}
	r, suffix, ok := home.ParseResultName(filepath.Base(abs))
	if !ok || suffix != "result" {
		return "", fault.New(fault.ResultInvalid, "result file %s is not named <source>.<n>.result", fault.Path(abs))
	}
	return h.classify(ctx, abs, r)
}

func (h *Host) classify(ctx context.Context, path string, result home.ResultName) (string, error) {
	inbox, err := h.place(false, home.Inbox)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fault.New(fault.SourceMissing, "no captured result %s", fault.Path(path))
	}
	if err != nil {
		return "", err
	}
	defer inbox.Close()
	if real, err := filepath.EvalSymlinks(filepath.Dir(path)); err != nil || real != inbox.Path() {
		return "", fault.New(fault.PathUnsafe, "result file %s is not directly in this home's inbox %s", fault.Path(path), fault.Path(inbox.Path()))
	}
	info, err := inbox.Lstat(result.String() + ".result")
	if errors.Is(err, fs.ErrNotExist) {
		return "", fault.New(fault.SourceMissing, "no captured result %s", fault.Path(path))
	}
	if err != nil || !info.IsRegular() {
		return "", fault.New(fault.LinkUnsafe, "%s is not a regular file; move it away", fault.Path(path))
	}
	adapter, err := readAdapter(inbox, result)
	if err != nil {
		return "", err
	}
	owner, err := home.ReadOwner(inbox, result)
	if err == nil {
		return h.Host.Classify(ctx, lifecycle.Expected{Adapter: adapter, Owner: *owner}, filepath.Join(inbox.Path(), result.String()+".result"))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	word, ok := h.runScript(ctx, nil, h.script(adapter), "classify", path)
	word = strings.TrimSuffix(word, "\n")
	if !ok || wire.CheckClassification(word) != "" {
		return "", fault.New(fault.ProcessFailed, "the built-in adapter %s did not classify %s", adapter, fault.Path(path))
	}
	return word, nil
}
