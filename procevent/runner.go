package procevent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/invoke"
	"hawser/lifecycle"
)

// exitNoResult is what an external source that had no result is said to exit
// with, exitFailed one whose failure was captured before (commands: start).
const (
	exitNoResult = 75
	exitFailed   = 70
)

// Report is what start says while it does it: stable lines for stdout, and for
// stderr.
type Report struct {
	Out, Err func(line string)
	// Owned, if set, is called once the source is owned: by this runner or not.
	Owned func(ours bool)
}

// Start waits for one event of a source (commands: start), in the order that the
// package comment gives. It blocks for one poll.
//
// When ctx ends, it ends what it runs and returns the cause, taking no lock: its
// claim is released by whoever stopped it, or by the next command that finds it
// dead.
//
// Errors: those of claimSource and of capturing; a poll that failed is captured
// as evidence and is no error.
func (h *Host) Start(ctx context.Context, source string, report Report) error {
	if err := checkSource(source); err != nil {
		return err
	}
	reg, err := h.read(source)
	if err != nil {
		return err
	}
	reg.close()
	if reg.external() {
		if err := h.settleRecords(ctx, source); err != nil {
			return err
		}
	}
	leadGroup()
	r, err := h.claimSource(ctx, source)
	if err != nil {
		return err
	}
	if report.Owned != nil {
		report.Owned(r != nil)
	}
	if r == nil {
		report.Out("already owned: " + source)
		return nil
	}
	defer r.close()
	err = r.run(ctx, report)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(err, r.letGo(ctx))
}

// leadGroup makes this process the leader of a process group of its own, in
// which a built-in's command runs. A session leader is one already.
func leadGroup() { _ = syscall.Setpgid(0, 0) }

// settleRecords settles the records that dead hosts left of a source.
func (h *Host) settleRecords(ctx context.Context, source string) error {
	found, err := invoke.Look(h.Home)
	if err != nil {
		return err
	}
	for _, r := range found {
		if r.SourceID == source || r.Malformed != nil {
			return h.Locked(ctx, "settle "+source, func() error {
				_, err := invoke.Settle(h.Home, invoke.Filter{SourceID: source})
				return err
			})
		}
	}
	return nil
}

// letGo releases this runner's claim, if it is still its.
func (r *runner) letGo(ctx context.Context) error {
	source := r.reg.Source
	lock, err := r.lockSource(ctx, r.claims, source, "start")
	if err != nil {
		return err
	}
	defer lock.Release()
	o, err := r.owner(r.claims, source)
	if err != nil || o.claim == nil || o.claim.Token != r.claim.Token {
		return err
	}
	return r.release(r.claims, source, o)
}

// run is one event, after the claim.
func (r *runner) run(ctx context.Context, report Report) error {
	out, err := r.poll(ctx)
	if err != nil {
		return err
	}
	if out.staged == nil {
		report.Out(fmt.Sprintf("no-result: %s (exit %d)", r.reg.Source, out.exit))
		return nil
	}
	c, err := r.captureStaged(ctx, *out.staged)
	if err != nil {
		return err
	}
	if out.staged.dropped > 0 {
		report.Err(fmt.Sprintf("truncated: %s at %d bytes", r.reg.Source, out.staged.size))
	}
	if out.evidence {
		noteFailure(r.state, r.reg.Source)
	} else {
		forgetFailures(r.state, r.reg.Source)
	}
	verdicts := r.judge(c, out)
	if verdicts.silent(ctx) {
		if _, err := markHandled(r.inbox, c.ResultName); err != nil {
			return err
		}
	}
	selfAnnounced := !r.reg.external() && r.autohandleFirst(ctx, c, report)
	if err := r.announcePending(ctx, report); err != nil {
		return err
	}
	if !r.reg.external() && !out.evidence {
		r.feedAnswers(ctx, c, report)
	}
	if verdicts.terminal(ctx) {
		if err := r.finish(ctx, report); err != nil {
			return err
		}
	}
	if !r.reg.external() && !selfAnnounced {
		r.autohandle(ctx, c, report)
	}
	report.Out("captured: " + c.path)
	return nil
}

// announcePending announces this result and every other that is not handled. A
// result that cannot be announced is named and leaves the others announced.
func (r *runner) announcePending(ctx context.Context, report Report) error {
	rows, err := r.pending(func(err error) { report.Err(fault.Line(err)) })
	if err != nil {
		return err
	}
	_, err = r.announce(ctx, rows)
	return err
}

// polled is what came of one poll.
type polled struct {
	staged   *staged // nil for no result
	exit     int     // for no result
	content  string  // of an external result
	evidence bool    // a failure of an external source, in the host's words
}

func (r *runner) poll(ctx context.Context) (polled, error) {
	if r.reg.external() {
		return r.pollExtension(ctx)
	}
	return r.pollBuiltin(ctx)
}

// pollExtension polls the bound package. Its request id is that of the
// registration generation and the next sequence, so a poll that is repeated
// before a capture repeats its id.
func (r *runner) pollExtension(ctx context.Context) (polled, error) {
	if err := r.checkPlaces(); err != nil {
		return polled{}, err
	}
	reg := r.reg
	n, err := nextSequence(r.inbox, reg.Source)
	if err != nil {
		return polled{}, err
	}
	requestID := wire.PollRequestID(reg.Adapter, reg.Source, n, wire.Digest(reg.Token), reg.Owner.PackageDigest)
	result, err := r.Poll(ctx, r.expected(), reg.Source, reg.ConfigRef, requestID)
	switch {
	case ctx.Err() != nil:
		return polled{}, context.Cause(ctx)
	case err != nil:
		return r.stageEvidence(fault.CodeOf(err))
	case result.Output == "":
		forgetFailures(r.state, reg.Source)
		return polled{exit: exitNoResult}, nil
	}
	s, err := r.stage(strings.NewReader(result.Output), len(result.Output))
	return polled{staged: &s, content: result.Output}, err
}

func (r *runner) expected() lifecycle.Expected {
	return lifecycle.Expected{Adapter: r.reg.Adapter, Owner: *r.reg.Owner}
}

// stageEvidence makes a failure a result in the host's words. While the same
// evidence of the source is still unhandled, it is not captured again, and
// reconcile waits longer before each restart.
func (r *runner) stageEvidence(code fault.Code) (polled, error) {
	evidence, err := lifecycle.Evidence(r.reg.Owner.ExtensionID, invoke.Poll, code)
	if err != nil {
		return polled{}, err
	}
	known, err := isPending(r.inbox, r.reg.Source, evidence)
	if err != nil {
		return polled{}, err
	}
	if known {
		noteFailure(r.state, r.reg.Source)
		return polled{exit: exitFailed}, nil
	}
	s, err := r.stage(bytes.NewReader(evidence), len(evidence))
	return polled{staged: &s, evidence: true}, err
}

// isPending reports whether an unhandled result of the source has this content.
func isPending(inbox *dirfd.Dir, source string, content []byte) (bool, error) {
	results, err := home.Results(inbox)
	if err != nil {
		return false, err
	}
	for _, res := range results {
		if res.Source != source || res.Handled {
			continue
		}
		file, info, err := inbox.OpenFile(res.String() + ".result")
		if err != nil || info.Size != int64(len(content)) {
			if err == nil {
				file.Close()
			}
			continue
		}
		data, err := readUpTo(file, int64(len(content)))
		file.Close()
		if err == nil && bytes.Equal(data, content) {
			return true, nil
		}
	}
	return false, nil
}

// verdicts asks about one result that this runner captured. Everything but a
// valid yes is a no.
type verdicts struct{ silent, terminal func(context.Context) bool }

func (r *runner) judge(c *capture, out polled) verdicts {
	no := func(context.Context) bool { return false }
	switch {
	case out.evidence: // the host's own words are no package's to judge
		return verdicts{no, no}
	case !r.reg.external():
		return verdicts{r.scriptVerdict("silent", c), r.scriptVerdict("terminal", c)}
	}
	ask := func(operation string) func(context.Context) bool {
		return func(ctx context.Context) bool {
			yes, err := r.VerdictOn(ctx, r.expected(), operation, invoke.Captured{SourceID: c.Source, Sequence: c.Sequence, Content: out.content})
			return err == nil && yes
		}
	}
	return verdicts{ask(invoke.Silent), ask(invoke.Terminal)}
}

// finish ends the source after a terminal verdict: the claim says so first, then
// the registration generation goes that this runner claimed, in one hold of the
// source lock; the claim goes with it. A crash in between leaves a claim that
// says terminal, and whoever releases it removes the registration.
func (r *runner) finish(ctx context.Context, report Report) error {
	current := false
	err := r.locked(ctx, func() error {
		current = r.isCurrent()
		if !current {
			return nil // replaced meanwhile: the new generation is not ours to end
		}
		r.claim.Terminal = true
		if err := writeClaim(r.claims, r.reg.Source, &r.claim); err != nil {
			return err
		}
		o, err := r.owner(r.claims, r.reg.Source)
		if err != nil {
			return err
		}
		return r.release(r.claims, r.reg.Source, o)
	})
	if err != nil || !current {
		return err
	}
	if !r.reg.external() {
		r.unbindHold(ctx, r.reg.Source)
	}
	report.Out("retired: " + r.reg.Source + " (adapter classified the captured result terminal)")
	return nil
}

func sameFile(a dirfd.Info, b os.FileInfo) bool {
	st, ok := b.Sys().(*syscall.Stat_t)
	return ok && uint64(st.Dev) == a.Dev && st.Ino == a.Ino && a.IsRegular()
}
