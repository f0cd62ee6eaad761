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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/invoke"
	"hawser/invoke/process"
	"hawser/lifecycle"
)

// scriptTimeout bounds one run of a built-in's script.
const scriptTimeout = 60 * time.Second

// scriptOutput is how much of what a script prints is taken.
const scriptOutput = 1 << 20

// pollBuiltin runs the registered command in this process's environment,
// directory and process group, its stderr dropped (commands: start). No output
// is no result; any output is one, whatever the exit.
func (r *runner) pollBuiltin(ctx context.Context) (polled, error) {
	s, err := r.stage(r.MaxOutput)
	if err != nil {
		return polled{}, err
	}
	cmd := exec.CommandContext(ctx, r.reg.Argv[0], r.reg.Argv[1:]...)
	r.join(cmd)
	cmd.Stdout = s
	if err := cmd.Start(); err != nil {
		r.discard(s)
		return polled{exit: 127}, nil // no such command: no output, and not zero
	}
	_ = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case s.size == 0:
		r.discard(s)
		return polled{exit: exitOf(cmd.ProcessState)}, nil
	default:
		err = s.sync()
	}
	if err != nil {
		r.discard(s)
		return polled{}, err
	}
	return polled{staged: s}, nil
}

// join makes a command one of this runner's group. It carries the claim's token,
// so that what outlives a dead runner can be proved to be its group's. Told to
// end, it has the time of any package; and what it leaves behind can hold its
// output open no longer than that.
func (r *runner) join(cmd *exec.Cmd) {
	cmd.Env = append(os.Environ(), process.TokenVariable+"="+r.claim.Token)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = process.TermToKill
}

// exitOf is the exit status, as a shell has it.
func exitOf(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// The seams of built-in scripts, which external adapters do not have (seed:
// Trust boundary). Silence on any failure: exit 0 is the only yes.

func (h *Host) script(adapter string) string {
	return filepath.Join(h.Home.Root, "bin", "fm-procevent-"+adapter+".sh")
}

func (h *Host) holdScript() string { return filepath.Join(h.Home.Root, "bin", "fm-captain-hold.sh") }

// runScript runs a script of the root and reports whether it exited 0, with what
// it printed. join, if not nil, prepares the command.
func (h *Host) runScript(ctx context.Context, join func(*exec.Cmd), stdin, path string, args ...string) (string, bool) {
	if h.Home.Root == "" || ctx.Err() != nil {
		return "", false
	}
	ctx, cancel := context.WithTimeout(ctx, scriptTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = process.TermToKill
	if join != nil {
		join(cmd)
	}
	cmd.Stdin = strings.NewReader(stdin)
	var out limitedBuffer
	cmd.Stdout = &out
	err := cmd.Run()
	return out.String(), err == nil
}

// limitedBuffer keeps the first scriptOutput bytes and takes the rest without a
// word.
type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := scriptOutput - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// ask runs a seam of this runner's adapter on a captured result.
func (r *runner) ask(ctx context.Context, verb string, args ...string) (string, bool) {
	return r.runScript(ctx, r.join, "", r.script(r.reg.Adapter), append([]string{verb}, args...)...)
}

func (r *runner) askScript(ctx context.Context, operation string, c *capture, _ string) bool {
	verb := map[string]string{invoke.Silent: "silent", invoke.Terminal: "terminal"}[operation]
	_, yes := r.ask(ctx, verb, c.path)
	return yes
}

// autohandleFirst runs a self-announcing script's autohandle before the
// announcement, which then covers only what is still unhandled. It reports
// whether the script is self-announcing.
func (r *runner) autohandleFirst(ctx context.Context, c *capture, report Report) bool {
	if _, yes := r.ask(ctx, "self-announcing"); !yes {
		return false
	}
	r.autohandle(ctx, c, report)
	return true
}

func (r *runner) autohandle(ctx context.Context, c *capture, report Report) {
	if _, ok := r.ask(ctx, "autohandle", c.Source, strconv.FormatUint(c.Sequence, 10), c.path); ok {
		report.Out("autohandled", c.Source)
	}
}

// feedAnswers pipes what the script makes of the result to the hold that the
// source is bound to, if there is one.
func (r *runner) feedAnswers(ctx context.Context, c *capture, report Report) {
	origin, ok := r.runScript(ctx, r.join, "", r.holdScript(), "binding", c.Source)
	origin = strings.TrimRight(origin, "\n")
	if !ok || origin == "" {
		return
	}
	answers, ok := r.ask(ctx, "answers", c.path)
	if !ok || answers == "" {
		return
	}
	from := "the captured result " + c.Source + " sequence " + strconv.FormatUint(c.Sequence, 10)
	if _, ok := r.runScript(ctx, r.join, answers, r.holdScript(), "answers", origin, "--source", from); ok {
		report.Out("answers-fed", c.Source)
	}
}

// unbindHold tells the hold that a built-in source was retired.
func (h *Host) unbindHold(ctx context.Context, source string) {
	h.runScript(ctx, nil, "", h.holdScript(), "unbind", source)
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
	inbox, err := h.place(false, home.Inbox)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fault.New(fault.SourceMissing, "no captured result %s", fault.Path(abs))
	}
	if err != nil {
		return "", err
	}
	defer inbox.Close()
	if real, err := filepath.EvalSymlinks(filepath.Dir(abs)); err != nil || real != inbox.Path() {
		return "", fault.New(fault.PathUnsafe, "result file %s is not directly in this home's inbox %s", fault.Path(abs), fault.Path(inbox.Path()))
	}
	info, err := inbox.Lstat(r.String() + ".result")
	if errors.Is(err, fs.ErrNotExist) {
		return "", fault.New(fault.SourceMissing, "no captured result %s", fault.Path(abs))
	}
	if err != nil || !info.IsRegular() {
		return "", fault.New(fault.LinkUnsafe, "%s is not a regular file; move it away", fault.Path(abs))
	}
	adapter, err := readAdapter(inbox, r)
	if err != nil {
		return "", err
	}
	owner, err := home.ReadOwner(inbox, r)
	if errors.Is(err, fs.ErrNotExist) {
		return h.classifyBuiltin(ctx, adapter, abs)
	}
	if err != nil {
		return "", err
	}
	return h.Host.Classify(ctx, lifecycle.Expected{Adapter: adapter, Owner: *owner}, h.Home.Join(home.Inbox, r.String()+".result"))
}

func (h *Host) classifyBuiltin(ctx context.Context, adapter, path string) (string, error) {
	word, ok := h.runScript(ctx, nil, "", h.script(adapter), "classify", path)
	word = strings.TrimSuffix(word, "\n")
	if !ok || wire.CheckClassification(word) != "" {
		return "", fault.New(fault.ProcessFailed, "the built-in adapter %s did not classify %s", adapter, fault.Path(path))
	}
	return word, nil
}
