package procevent

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/invoke"
	"hawser/lifecycle"
)

// exitNoResult is what an external source that had no result is said to exit
// with, also one whose failure was captured before (commands: start).
const exitNoResult = 75

// Report is what start says while it does it.
type Report struct {
	// Out is told each stable line of stdout, as a name and a value.
	Out func(name, value string)
	// Err is told lines for stderr.
	Err func(line string)
	// Owned, if set, is called once this process owns the source.
	Owned func()
}

// runner is the live owner of a source, from its claim to its release. What it
// reads and writes later it reaches through the descriptors that it opened
// before the poll, so a directory or a leaf that is swapped meanwhile redirects
// nothing.
type runner struct {
	*Host
	reg       *registered
	claim     claim
	claims    *dirfd.Dir
	procevent *dirfd.Dir
	inbox     *dirfd.Dir
	state     *dirfd.Dir
}

// Start waits for one event of a source (commands: start), in the order that the
// package comment gives. It blocks for one poll. This process becomes the leader
// of a process group of its own, in which a built-in's command runs.
//
// When ctx ends, it ends what it runs and returns the cause, taking no lock: its
// claim is released by whoever stopped it, or by the next command that finds it
// dead.
//
// Errors: usage; source-missing; source-busy for an owner that cannot be judged;
// those of settling, claiming and capturing. A poll that failed is captured as
// evidence and is no error.
func (h *Host) Start(ctx context.Context, source string, report Report) error {
	if err := CheckSource(source); err != nil {
		return err
	}
	r, err := h.own(ctx, source)
	if err != nil {
		return err
	}
	if r == nil {
		report.Out("already owned", source)
		return nil
	}
	defer r.close()
	defer onClockSet(func() { renewClaim(r.claims, source, r.claim.Token) })()
	if report.Owned != nil {
		report.Owned()
	}
	err = r.run(ctx, report)
	if ctx.Err() != nil {
		if !r.reg.external() {
			endGroup()
		}
		return context.Cause(ctx)
	}
	return errors.Join(err, r.letGo(ctx))
}

// own settles what dead hosts left of the source and claims it. The runner is
// nil, and so is the error, when there is a live owner.
func (h *Host) own(ctx context.Context, source string) (*runner, error) {
	for tries := 3; ; tries-- {
		reg, err := h.read(source)
		if err != nil {
			return nil, err
		}
		reg.close()
		if err := h.settle(ctx, source, reg.external()); err != nil {
			return nil, err
		}
		leadGroup()
		r, err := h.claimSource(ctx, source)
		if !errors.Is(err, errUnsettled) {
			return r, err
		}
		if tries == 1 {
			return nil, fault.New(fault.SourceBusy, "the owners of source %s die as fast as they are looked at; try again", source)
		}
	}
}

// leadGroup makes this process the leader of a process group of its own. A
// session leader is one already.
func leadGroup() { _ = syscall.Setpgid(0, 0) }

// errUnsettled says that the owner died after the records were settled: they are
// to be settled again, before the source lock.
var errUnsettled = errors.New("a dead owner's records are not settled")

// claimSource makes this process the owner of a source (commands: start). A live
// owner anywhere on the machine is never displaced: then the runner is nil, and
// so is the error. A dead one's claim is released first.
//
// Errors: source-missing and the others of read; source-busy for an owner that
// cannot be judged; those of release; lock-unavailable; io; errUnsettled.
func (h *Host) claimSource(ctx context.Context, source string) (_ *runner, err error) {
	r := &runner{Host: h}
	ended := false
	defer func() {
		if err != nil {
			r.close()
		}
		if ended {
			h.unbindHold(ctx, source)
		}
	}()
	if r.claims, err = h.claims(true); err != nil {
		return nil, err
	}
	lock, err := h.lockSource(ctx, r.claims, source, "start")
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	o, err := h.owner(r.claims, source)
	if err != nil {
		return nil, err
	}
	if o.live() {
		r.close()
		return nil, nil
	}
	if doubt := o.doubt(source); doubt != nil {
		return nil, fault.New(fault.SourceBusy, "%v", doubt)
	}
	if ended, err = h.succeed(r.claims, source, o); err != nil {
		return nil, err
	}
	// After the release: it may have finished a terminal verdict.
	if r.reg, err = h.read(source); err != nil {
		return nil, err
	}
	if err := r.openPlaces(); err != nil {
		return nil, err
	}
	clearStaged(r.procevent, source)
	return r, r.publishClaim(source)
}

// succeed releases the claim of a dead owner, once nothing of it can run any
// more. ended is as of release. The caller holds the source lock.
//
// Errors: errUnsettled; process-identity-uncertain; those of release.
func (h *Host) succeed(claims *dirfd.Dir, source string, o ownership) (ended bool, err error) {
	if !o.exists {
		return false, nil
	}
	if err := h.checkPredecessor(o, source); err != nil {
		return false, err
	}
	external, err := h.isExternal(source)
	if err != nil {
		return false, err
	}
	left, err := h.unsettled(source, external)
	if err != nil {
		return false, err
	}
	if left != nil {
		return false, errUnsettled
	}
	return h.release(claims, source, o)
}

// isExternal reports whether the source is registered, and of a package.
func (h *Host) isExternal(source string) (bool, error) {
	reg, err := h.readIfAny(source)
	if err != nil || reg == nil {
		return false, err
	}
	defer reg.close()
	return reg.external(), nil
}

func (r *runner) openPlaces() (err error) {
	external := r.reg.external()
	if r.procevent, err = r.makePlace(external, home.Procevent); err != nil {
		return err
	}
	if r.inbox, err = r.makePlace(external, home.Inbox); err != nil {
		return err
	}
	r.state, err = r.place(external, home.State)
	return err
}

// publishClaim makes this process the owner, and says so in the runner file. A
// crash in between leaves a dead claim.
func (r *runner) publishClaim(source string) error {
	identity, err := runnerIdentity(os.Getpid())
	if err != nil {
		return fault.Wrap(fault.PlatformUnsupported, err, "cannot tell this process's own identity; is /proc mounted?")
	}
	info, err := r.state.Info()
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(r.state.Path()))
	}
	var token [claimTokenSize]byte
	_, _ = rand.Read(token[:]) // never fails
	r.claim = claim{
		Home: r.Home.Path, PID: os.Getpid(), Token: hex.EncodeToString(token[:]), Identity: identity,
		RegDir: r.procevent.Path(), Registration: r.reg.id,
		State: &stateRoot{r.state.Path(), idOf(info), int(info.UID), info.Perm()},
	}
	if _, err := parseClaim(r.claim.encode()); err != nil {
		return fault.New(fault.PathUnsafe, "the path of %s or of %s holds what no claim can record; use another home", fault.Path(r.Home.Path), fault.Path(r.state.Path()))
	}
	if err := writeClaim(r.claims, source, &r.claim); err != nil {
		return err
	}
	temp := runnerTemp + source
	_ = r.state.Remove(temp)
	return home.WriteVisible(r.state, temp, r.procevent, source+runnerSuffix, []byte(strconv.Itoa(os.Getpid())+"\n"))
}

func (r *runner) close() {
	for _, dir := range []*dirfd.Dir{r.claims, r.procevent, r.inbox, r.state} {
		if dir != nil {
			dir.Close()
		}
	}
	if r.reg != nil {
		r.reg.close()
	}
	*r = runner{Host: r.Host}
}

// locked runs a function under the source lock, provided that the claim is still
// this runner's.
//
// Errors: source-busy when it is not; lock-unavailable; io; those of run.
func (r *runner) locked(ctx context.Context, run func() error) error {
	lock, err := r.lockSource(ctx, r.claims, r.reg.Source, "start")
	if err != nil {
		return err
	}
	defer lock.Release()
	o, err := r.owner(r.claims, r.reg.Source)
	if err != nil {
		return err
	}
	if o.claim == nil || o.claim.Token != r.claim.Token {
		return fault.New(fault.SourceBusy, "the claim of source %s was taken from its runner; nothing more is done for it", r.reg.Source)
	}
	return run()
}

// isCurrent reports whether the registration is still the generation that this
// runner claimed: the same file, which is held open, under the same name.
func (r *runner) isCurrent() bool {
	info, err := r.procevent.Lstat(r.reg.Source + registrationSuffix)
	return err == nil && idOf(info) == r.reg.id
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
	_, err = r.release(r.claims, source, o)
	return err
}

// run is one event, after the claim (commands: start).
func (r *runner) run(ctx context.Context, report Report) error {
	out, err := r.poll(ctx)
	if err != nil {
		return err
	}
	if out.staged == nil {
		report.Out("no-result", fmt.Sprintf("%s (exit %d)", r.reg.Source, out.exit))
		return nil
	}
	c, err := r.captureStaged(ctx, out.staged)
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
	verdicts := r.verdictsOn(c, out)
	if verdicts.silent(ctx) {
		if _, err := markHandled(r.inbox, c.ResultName); err != nil {
			return err
		}
	}
	builtin := !r.reg.external()
	selfAnnounced := builtin && r.autohandleFirst(ctx, c, report)
	if err := r.announcePending(ctx, c, report); err != nil {
		return err
	}
	if builtin {
		r.feedAnswers(ctx, c, report)
	}
	if verdicts.terminal(ctx) {
		if err := r.finish(ctx, report); err != nil {
			return err
		}
	}
	if builtin && !selfAnnounced {
		r.autohandle(ctx, c, report)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // no verdict was given: it was not waited for
	}
	report.Out("captured", c.path)
	return nil
}

// announcePending announces this result, then every other that is not handled. A
// result that cannot be announced is named and leaves the others announced.
func (r *runner) announcePending(ctx context.Context, c *capture, report Report) error {
	rows, err := pending(r.inbox, func(err error) { report.Err(fault.Line(err)) })
	if err != nil {
		return err
	}
	_, err = r.announce(ctx, r.state, c.first(rows))
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
	s, err := r.stageText(result.Output)
	return polled{staged: s, content: result.Output}, err
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
		return polled{exit: exitNoResult}, nil
	}
	s, err := r.stageText(string(evidence))
	return polled{staged: s, evidence: true}, err
}

// isPending reports whether an unhandled result of the source has this content.
func isPending(inbox *dirfd.Dir, source string, content []byte) (bool, error) {
	results, err := home.Results(inbox)
	if err != nil {
		return false, err
	}
	for _, result := range results {
		if result.Source == source && !result.Handled && hasContent(inbox, result.ResultName, content) {
			return true, nil
		}
	}
	return false, nil
}

func hasContent(inbox *dirfd.Dir, r home.ResultName, content []byte) bool {
	data, _, err := readFile(inbox, r.String()+".result", int64(len(content)))
	return err == nil && bytes.Equal(data, content)
}

// verdicts asks about one result that this runner captured. Everything but a
// valid yes is a no.
type verdicts struct{ silent, terminal func(context.Context) bool }

func (r *runner) verdictsOn(c *capture, out polled) verdicts {
	ask := r.askPackage
	switch {
	case out.evidence: // the host's own words are no package's to judge
		ask = func(context.Context, string, *capture, string) bool { return false }
	case !r.reg.external():
		ask = r.askScript
	}
	return verdicts{
		func(ctx context.Context) bool { return ask(ctx, invoke.Silent, c, out.content) },
		func(ctx context.Context) bool { return ask(ctx, invoke.Terminal, c, out.content) },
	}
}

func (r *runner) askPackage(ctx context.Context, operation string, c *capture, content string) bool {
	yes, err := r.VerdictOn(ctx, r.expected(), operation, invoke.Captured{SourceID: c.Source, Sequence: c.Sequence, Content: content})
	return err == nil && yes
}

// finish ends the source after a terminal verdict, in one hold of the source
// lock:
//
//	the claim says terminal       whoever releases it removes the registration
//	the registration goes         a dead claim of a source that is gone
//	the claim goes                nothing is left
//
// and only the registration generation that this runner claimed. One that
// replaced it meanwhile is not ours to end.
func (r *runner) finish(ctx context.Context, report Report) error {
	current := false
	err := r.locked(ctx, func() error {
		if current = r.isCurrent(); !current {
			return nil
		}
		r.claim.Terminal = true
		if err := writeClaim(r.claims, r.reg.Source, &r.claim); err != nil {
			return err
		}
		if err := removeDurably(r.procevent, r.reg.Source+registrationSuffix); err != nil {
			return err
		}
		_, err := r.release(r.claims, r.reg.Source, ownership{exists: true, claim: &r.claim})
		return err
	})
	if err != nil || !current {
		return err
	}
	if !r.reg.external() {
		r.unbindHold(ctx, r.reg.Source)
	}
	report.Out("retired", r.reg.Source+" (adapter classified the captured result terminal)")
	return nil
}
