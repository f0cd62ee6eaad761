package procevent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/invoke"
	"hawser/invoke/process"
)

// Reconciled is what one pass did.
type Reconciled struct {
	Published, Started, Stopped, Uncertain int
	// Failed are the records that were malformed and the starts that failed,
	// each named with what to do about it. The others were still served.
	Failed []error
	// Notes say why a source is counted as uncertain, and what a person can do.
	Notes []error
}

// String is the line of the pass (commands: reconcile).
func (r *Reconciled) String() string {
	return fmt.Sprintf("published=%d started=%d stopped=%d uncertain=%d", r.Published, r.Started, r.Stopped, r.Uncertain)
}

// Reconcile is one idempotent pass over this home (commands: reconcile): it
// settles what dead hosts and dead runners left, announces what is captured and
// not handled, and starts a runner for each registration that has no live owner.
//
// Every step finds its own work by what is on disk, so a pass that was killed is
// gone on with by the next. Two passes at once start no source twice: the source
// lock arbitrates. A home without sources is left as it is.
//
// Errors: those that keep the pass from being made at all; the rest is in the
// result.
func (h *Host) Reconcile(ctx context.Context) (*Reconciled, error) {
	p := &pass{Host: h}
	claims, err := h.claims(false)
	if err != nil {
		return nil, err
	}
	if claims != nil {
		defer claims.Close()
	}
	p.claims = claims
	p.settleRecords(ctx)
	if err := p.endOrphans(ctx); err != nil {
		return nil, err
	}
	idle, err := p.idleSources(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.announcePending(ctx); err != nil {
		return nil, err
	}
	p.start(ctx, idle)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return &p.Reconciled, nil
}

// pass is a Reconcile under way.
type pass struct {
	*Host
	Reconciled
	claims  *dirfd.Dir // nil when there is none
	blocked []invoke.Found
}

func (p *pass) fail(err error) { p.Failed = append(p.Failed, err) }

// note files an error where it belongs: what cannot be proved is uncertain, and
// does not fail the pass unless a record is malformed.
func (p *pass) note(err error) {
	if !fault.Is(err, fault.ProcessIdentityUncertain) {
		p.fail(err)
		return
	}
	p.Uncertain++
	if invoke.IsMalformed(err) {
		p.fail(err)
	} else {
		p.Notes = append(p.Notes, err)
	}
}

// settleRecords settles the invocation records of dead hosts. Nothing is locked
// where there are none. A source of which a record is kept is blocked.
func (p *pass) settleRecords(ctx context.Context) {
	left, err := p.leftRecords()
	if err != nil {
		p.fail(err)
	}
	if len(left) == 0 {
		return
	}
	var settled invoke.Settled
	err = p.Locked(ctx, "reconcile", func() (err error) {
		settled, err = invoke.Settle(p.Home, invoke.Filter{})
		return err
	})
	p.Stopped += settled.Stopped
	for _, err := range settled.Failed {
		p.note(err)
	}
	if err != nil && len(settled.Failed) == 0 {
		p.fail(err)
	}
	p.blocked, _ = p.leftRecords()
	for _, f := range p.blocked {
		if f.SourceID != "" && f.Host.State == process.Uncertain {
			p.note(foreign(f))
		}
	}
}

// leftRecords are the records of no live host.
func (p *pass) leftRecords() ([]invoke.Found, error) {
	found, err := p.look(invoke.Filter{})
	return slices.DeleteFunc(found, func(f invoke.Found) bool { return f.Malformed == nil && f.Host.State == process.Live }), err
}

// isBlocked reports whether a record that was kept, and named, may be of the
// source.
func (p *pass) isBlocked(source string, external bool) bool {
	return slices.ContainsFunc(p.blocked, func(f invoke.Found) bool {
		return f.MayBeOf(source) && (f.Malformed == nil || external)
	})
}

// endOrphans ends what claims of this home say of sources that it has no
// registration of any more: a live runner is stopped, a dead one's claim
// released.
func (p *pass) endOrphans(ctx context.Context) error {
	return p.eachUnregistered(p.claims, func(source string) {
		stopped, err := p.endOwner(ctx, p.claims, source)
		if stopped {
			p.Stopped++
		}
		if err != nil {
			p.note(err)
		}
	})
}

// eachUnregistered calls visit with every source of which a claim is of this
// home and no registration is in it.
func (h *Host) eachUnregistered(claims *dirfd.Dir, visit func(source string)) error {
	sources, err := claimedSources(claims)
	if err != nil {
		return err
	}
	registered := map[string]bool{}
	if err := h.eachName(func(_ *dirfd.Dir, source string) { registered[source] = true }); err != nil {
		return err
	}
	for _, source := range sources {
		if registered[source] {
			continue
		}
		// One that cannot be read may be anybody's.
		if o, err := h.owner(claims, source); err == nil && h.owns(o) {
			visit(source)
		}
	}
	return nil
}

func claimedSources(claims *dirfd.Dir) (sources []string, err error) {
	if claims == nil {
		return nil, nil
	}
	names, err := claims.Names()
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(claims.Path()))
	}
	for _, name := range names {
		if source, ok := strings.CutSuffix(name, claimSuffix); ok && CheckSource(source) == nil {
			sources = append(sources, source)
		}
	}
	return sources, nil
}

// endOwner ends the owner of a source that this home has no registration of,
// dead or alive. The registration is looked for again under the source lock: it
// may have come with its runner meanwhile.
//
// Errors: those of stopRunner and succeed; lock-unavailable.
func (h *Host) endOwner(ctx context.Context, claims *dirfd.Dir, source string) (stopped bool, err error) {
	ended := false
	defer func() {
		if ended {
			h.unbindHold(ctx, source)
		}
	}()
	lock, err := h.lockSource(ctx, claims, source, "stop")
	if err != nil {
		return false, err
	}
	defer lock.Release()
	if h.isRegistered(source) {
		return false, nil
	}
	o, stopped, err := h.stopRunner(claims, source)
	if err == nil && h.owns(o) {
		ended, err = h.succeed(claims, source, o)
	}
	if errors.Is(err, errUnsettled) {
		err = nil // its package is the next pass's to settle
	}
	return stopped, err
}

// releaseDead releases the claim of a dead owner, after looking again under the
// source lock: another pass may have started a runner meanwhile.
//
// Errors: those of succeed; lock-unavailable.
func (h *Host) releaseDead(ctx context.Context, claims *dirfd.Dir, source string) (stopped bool, err error) {
	ended := false
	defer func() {
		if ended {
			h.unbindHold(ctx, source)
		}
	}()
	lock, err := h.lockSource(ctx, claims, source, "release")
	if err != nil {
		return false, err
	}
	defer lock.Release()
	o, err := h.owner(claims, source)
	if err == nil {
		err = o.doubt(source)
	}
	if err != nil || o.live() {
		return false, err
	}
	ended, err = h.succeed(claims, source, o)
	return err == nil && o.orphaned(), err
}

// idleSources looks at every registration and returns those that want a runner.
func (p *pass) idleSources(ctx context.Context) (idle []string, err error) {
	err = p.eachSource(func(source string, reg *registered, err error) {
		if err == nil {
			var wants bool
			wants, err = p.wantsRunner(ctx, source, reg.external())
			if wants {
				idle = append(idle, source)
			}
		}
		if err != nil {
			p.note(err)
		}
	})
	return idle, err
}

// wantsRunner releases a dead owner of a source and reports whether it wants a
// runner. One with a live owner costs two small reads and no lock.
func (p *pass) wantsRunner(ctx context.Context, source string, external bool) (bool, error) {
	o, err := p.owner(p.claims, source)
	if err != nil || o.live() || p.isBlocked(source, external) {
		return false, err
	}
	if err := o.doubt(source); err != nil {
		return false, err
	}
	if o.exists {
		stopped, err := p.releaseDead(ctx, p.claims, source)
		if stopped {
			p.Stopped++
		}
		if errors.Is(err, errUnsettled) {
			return true, nil // the runner settles it before it claims
		}
		if err != nil || !p.isRegistered(source) {
			return false, err
		}
	}
	return p.pauseIsOver(source)
}

func (p *pass) pauseIsOver(source string) (bool, error) {
	state, err := p.place(false, home.State)
	if err != nil {
		return false, err
	}
	defer state.Close()
	_, until := failures(state, source)
	return time.Now().After(until), nil
}

// eachName calls visit with the name of every registration of this home, in the
// directory that holds it.
func (h *Host) eachName(visit func(dir *dirfd.Dir, source string)) error {
	dir, err := h.place(false, home.Procevent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	sources, err := home.Sources(dir)
	for _, source := range sources {
		visit(dir, source)
	}
	return err
}

// Sources returns the ids of this home's registrations, in byte order, those of
// malformed ones too.
func (h *Host) Sources() (sources []string, err error) {
	err = h.eachName(func(_ *dirfd.Dir, source string) { sources = append(sources, source) })
	return sources, err
}

// eachSource calls visit with every registration of this home, malformed ones
// too, and with what an external one is refused for.
func (h *Host) eachSource(visit func(source string, reg *registered, err error)) error {
	var places error
	looked := false
	return h.eachName(func(dir *dirfd.Dir, source string) {
		reg, err := readFrom(dir, source)
		if errors.Is(err, fs.ErrNotExist) {
			return // retired meanwhile
		}
		if err == nil {
			defer reg.close()
		}
		if err == nil && reg.external() {
			if !looked { // the directories are the same for all
				looked, places = true, h.checkPlaces(dir)
			}
			if places != nil {
				err = fmt.Errorf("source %s: %w", source, places)
			}
		}
		visit(source, reg, err)
	})
}

// checkPlaces checks what external sources need the strict way, and that it is
// dir that their registrations are read from.
func (h *Host) checkPlaces(dir *dirfd.Dir) error {
	strict, err := h.Home.Open(home.Procevent)
	if err != nil {
		return err
	}
	defer strict.Close()
	if err := sameDir(strict, dir); err != nil {
		return err
	}
	inbox, err := h.Home.Open(home.Inbox)
	if err == nil {
		inbox.Close()
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}

func (h *Host) isRegistered(source string) bool {
	dir, err := h.place(false, home.Procevent)
	if err != nil {
		return false
	}
	defer dir.Close()
	_, err = dir.Lstat(source + registrationSuffix)
	return err == nil
}

// announcePending announces what is captured and not handled. A result that
// cannot be announced is named and leaves the others announced.
func (p *pass) announcePending(ctx context.Context) error {
	inbox, err := p.place(false, home.Inbox)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer inbox.Close()
	rows, err := pending(inbox, p.fail)
	if err != nil {
		return err
	}
	state, err := p.place(false, home.State)
	if err != nil {
		return err
	}
	defer state.Close()
	p.Published, err = p.announce(ctx, state, rows)
	return err
}
