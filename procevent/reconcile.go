package procevent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/invoke"
	"hawser/invoke/process"
)

// startTimeout bounds the wait for a started runner to own its source.
const startTimeout = 30 * time.Second

// Reconciled is what one pass did.
type Reconciled struct {
	Published, Started, Stopped, Uncertain int
	// Failed are the records that were malformed and the starts that failed,
	// each named with what to do about it. The others were still served.
	Failed []error
	// Notes say why a source is counted as uncertain, and what a person can do.
	Notes []error
}

// Reconcile is one idempotent pass over this home (commands: reconcile): it
// settles what dead hosts and dead runners left, announces what is captured and
// not handled, and starts a runner for each registration that has no live owner.
//
// Every step finds its own work by what is on disk, so a pass that was killed is
// gone on with by the next. Two passes at once start no source twice: the source
// lock arbitrates.
//
// Errors: those that keep the pass from being made at all; the rest is in the
// result.
func (h *Host) Reconcile(ctx context.Context) (*Reconciled, error) {
	p := &pass{Host: h}
	claims, err := h.claims(true)
	if err != nil {
		return nil, err
	}
	defer claims.Close()
	p.claims = claims
	p.settleAllRecords(ctx)
	if err := p.releaseOrphans(ctx); err != nil {
		return nil, err
	}
	idle, err := p.sources(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := h.pending(p.fail)
	if err != nil {
		return nil, err
	}
	p.Published, err = h.announce(ctx, rows)
	if err != nil {
		return nil, err
	}
	p.start(ctx, idle)
	return &p.Reconciled, ctx.Err()
}

// pass is a Reconcile under way.
type pass struct {
	*Host
	Reconciled
	claims  *dirfd.Dir
	blocked map[string]bool // sources of which an operation may still run
}

func (p *pass) fail(err error) { p.Failed = append(p.Failed, err) }

// note files an error where it belongs: what cannot be proved is uncertain and
// does not fail the pass.
func (p *pass) note(err error) {
	if fault.Is(err, fault.ProcessIdentityUncertain) {
		p.Uncertain++
		p.Notes = append(p.Notes, err)
		return
	}
	p.fail(err)
}

// settleAllRecords settles the invocation records of dead hosts. Nothing is
// locked where there are none. A source of which a record is kept is blocked.
func (p *pass) settleAllRecords(ctx context.Context) {
	found, err := invoke.Look(p.Home)
	if err != nil {
		p.fail(err)
		return
	}
	dead := false
	for _, f := range found {
		dead = dead || f.Malformed != nil || f.Host.State == process.Extinct
	}
	if !dead {
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
	if len(settled.Failed) == 0 {
		return
	}
	p.blocked = map[string]bool{}
	found, _ = invoke.Look(p.Home)
	for _, f := range found {
		p.blocked[f.SourceID] = p.blocked[f.SourceID] || f.Host.State == process.Extinct
	}
}

// releaseOrphans ends what claims of this home say of sources that it has no
// registration of any more: a live runner is stopped, a dead one's claim
// released.
func (p *pass) releaseOrphans(ctx context.Context) error {
	sources, err := claimedSources(p.claims)
	if err != nil {
		return err
	}
	for _, source := range sources {
		if p.isRegistered(source) {
			continue
		}
		o, err := p.owner(p.claims, source)
		if err != nil {
			p.fail(err)
			continue
		}
		if o.claim == nil || o.claim.Home != p.Home.Path {
			continue
		}
		stopped, err := p.evict(ctx, p.claims, source)
		if stopped {
			p.Stopped++
		}
		if err != nil {
			p.note(err)
		}
	}
	return nil
}

func claimedSources(claims *dirfd.Dir) ([]string, error) {
	names, err := claims.Names()
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(claims.Path()))
	}
	var sources []string
	for _, name := range names {
		if source, ok := strings.CutSuffix(name, claimSuffix); ok && checkSource(source) == nil {
			sources = append(sources, source)
		}
	}
	return sources, nil
}

// sources looks at every registration and returns those that want a runner.
func (p *pass) sources(ctx context.Context) (idle []string, err error) {
	err = p.eachSource(func(source string, reg *registered, err error) {
		if err == nil {
			var wants bool
			wants, err = p.settle(ctx, source)
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

// eachSource calls visit with every registration of this home, malformed ones
// too.
func (h *Host) eachSource(visit func(source string, reg *registered, err error)) error {
	dir, err := h.place(false, home.Procevent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	sources, err := home.Sources(dir)
	if err != nil {
		return err
	}
	checked := errors.New("not checked yet")
	for _, source := range sources {
		reg, err := readFrom(dir, source)
		if errors.Is(err, fs.ErrNotExist) {
			continue // retired meanwhile
		}
		if err == nil && reg.external() {
			// The directory is the same for all: one check serves them.
			if checked != nil {
				checked = h.samePlace(dir)
			}
			err = checked
		}
		visit(source, reg, err)
		if reg != nil {
			reg.close()
		}
	}
	return nil
}

// samePlace checks the procevent directory the strict way, and that it is dir.
func (h *Host) samePlace(dir *dirfd.Dir) error {
	strict, err := h.Home.Open(home.Procevent)
	if err != nil {
		return err
	}
	defer strict.Close()
	a, errA := strict.Info()
	b, errB := dir.Info()
	if err := errors.Join(errA, errB); err != nil {
		return fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(dir.Path()))
	}
	if !a.Same(b) {
		return replaced(dir.Path())
	}
	return nil
}

// settle releases a dead owner of a source and reports whether it wants a
// runner. One with a live owner costs two small reads and no lock.
func (p *pass) settle(ctx context.Context, source string) (wants bool, err error) {
	o, err := p.owner(p.claims, source)
	if err != nil || o.live() || p.blocked[source] {
		return false, err
	}
	if o.uncertain() {
		return false, fault.New(fault.ProcessIdentityUncertain, "source %s: %s", source, o.reason())
	}
	if o.claim != nil || o.stamp != 0 {
		stopped, err := p.evict(ctx, p.claims, source)
		if stopped {
			p.Stopped++
		}
		if err != nil || !p.isRegistered(source) {
			return false, err
		}
	}
	state, err := p.place(false, home.State)
	if err != nil {
		return false, err
	}
	defer state.Close()
	_, until := failures(state, source)
	return time.Now().After(until), nil
}

// evict ends the owner of a source under its lock, dead or alive: a live runner
// is told to stop, waited for its own clean-up and a margin, then killed; its
// claim is released. A runner of another home is not touched.
//
// Errors: those of release; process-cleanup-failed for a runner that would not
// end; lock-unavailable.
func (h *Host) evict(ctx context.Context, claims *dirfd.Dir, source string) (stopped bool, err error) {
	lock, err := h.lockSource(ctx, claims, source, "stop")
	if err != nil {
		return false, err
	}
	defer lock.Release()
	return h.evictLocked(claims, source)
}

// stopMargin is what a runner that is told to stop has before it is killed: the
// budget of its own stopping and more (processes: An operation, step by step).
const stopMargin = 3 * time.Second

func (h *Host) evictLocked(claims *dirfd.Dir, source string) (stopped bool, err error) {
	o, err := h.owner(claims, source)
	if err != nil || o.claim == nil && o.stamp == 0 {
		return false, err
	}
	if o.uncertain() {
		return false, fault.New(fault.ProcessIdentityUncertain, "source %s: %s", source, o.reason())
	}
	if o.live() && o.claim.Home != h.Home.Path {
		return false, nil
	}
	stopped = o.live() || o.orphaned()
	if o.live() {
		start, _ := parseRunnerIdentity(o.claim.Identity)
		if !process.Terminate(o.claim.PID, start, stopMargin) {
			return false, fault.New(fault.ProcessCleanupFailed, "the runner %d of source %s did not end after KILL; see ps -o pid,stat,wchan,args -p %[1]d", o.claim.PID, source)
		}
		if o, err = h.owner(claims, source); err != nil {
			return stopped, err
		}
		if o.uncertain() {
			return stopped, uncertainGroup(source, o.claim.PID, o.reason())
		}
	}
	if err := h.checkForeignOrphan(o, source); err != nil {
		return stopped, err
	}
	return stopped, h.release(claims, source, o)
}

// checkForeignOrphan refuses to take over from a dead runner of another home
// that left a package running: its record, and the lock to settle it under, are
// that home's.
func (h *Host) checkForeignOrphan(o ownership, source string) error {
	c := o.claim
	if c == nil || c.Home == h.Home.Path || c.State == nil {
		return nil
	}
	found, err := invoke.Look(&home.Home{Path: c.Home, State: c.State.Path})
	if err != nil {
		return nil // no records that could be judged: that home is gone or refused
	}
	for _, f := range found {
		if f.SourceID == source && (f.Host.State != process.Extinct || f.Group.State != process.Extinct) {
			return fault.New(fault.ProcessIdentityUncertain, "source %s was owned by the home %s, whose package is still running; run fm-procevent reconcile there first: FM_HOME=%[2]s fm-procevent reconcile", source, fault.Path(c.Home))
		}
	}
	return nil
}

// start starts a runner for each source, all at once, and waits until each owns
// its source or has ended.
func (p *pass) start(ctx context.Context, sources []string) {
	type launched struct {
		source string
		owned  *os.File
		cmd    *exec.Cmd
	}
	var runners []launched
	for _, source := range sources {
		if ctx.Err() != nil {
			return
		}
		cmd, owned, err := launch(source)
		if err != nil {
			p.fail(fault.Wrap(fault.IO, err, "cannot start a runner for source %s", source))
			continue
		}
		runners = append(runners, launched{source, owned, cmd})
	}
	end := time.Now().Add(startTimeout)
	for _, r := range runners {
		switch owned(r.owned, end) {
		case ownedByRunner:
			p.Started++
			_ = r.cmd.Process.Release()
		case ownedByOther:
			_ = r.cmd.Wait()
		default:
			p.fail(fault.New(fault.Internal, "the runner of source %s ended before it owned the source; to see why: fm-procevent start %[1]s", r.source))
			_ = r.cmd.Process.Release()
		}
	}
}

// The bytes by which a runner tells who started it that its source has an owner.
const (
	ownedByRunner = 'o'
	ownedByOther  = 'x'
)

// launch starts this program again as a runner in a session of its own, which
// outlives this process. The pipe tells when it owns its source, and nothing
// else: it is no authority.
func launch(source string) (*exec.Cmd, *os.File, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	near, far, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer far.Close()
	cmd := exec.Command(exe, "start", "--tell-owner", source)
	cmd.ExtraFiles = []*os.File{far}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		near.Close()
		return nil, nil, err
	}
	return cmd, near, nil
}

// owned reads the runner's word; 0 when it ended or took too long.
func owned(pipe *os.File, end time.Time) byte {
	defer pipe.Close()
	_ = pipe.SetReadDeadline(end)
	var word [1]byte
	if n, _ := pipe.Read(word[:]); n == 1 {
		return word[0]
	}
	return 0
}

// TellOwner is the runner's end of launch: what to call when the source is
// owned. It is a pipe on descriptor 3, closed afterwards so that no package can
// inherit it.
func TellOwner() func(ours bool) {
	pipe := os.NewFile(3, "owner")
	syscall.CloseOnExec(3)
	return func(ours bool) {
		word := byte(ownedByOther)
		if ours {
			word = ownedByRunner
		}
		_, _ = pipe.Write([]byte{word})
		_ = pipe.Close()
	}
}

// String is the line of the pass (commands: reconcile).
func (r *Reconciled) String() string {
	return fmt.Sprintf("published=%d started=%d stopped=%d uncertain=%d", r.Published, r.Started, r.Stopped, r.Uncertain)
}

// Listed is one row of list.
type Listed struct {
	Source, Adapter, Owner string
	Pending                int
}

// List describes the sources of this home (commands: list). What is malformed or
// uncertain is passed to explain, with what a person can do; a malformed one is
// not listed. It changes nothing.
//
// Errors: those that keep the list from being made; failed says that a
// registration was malformed.
func (h *Host) List(explain func(error)) (rows []Listed, failed bool, err error) {
	claims, err := h.claims(false)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	if claims != nil {
		defer claims.Close()
	}
	pending, err := h.pendingCounts()
	if err != nil {
		return nil, false, err
	}
	records, lookErr := invoke.Look(h.Home)
	err = h.eachSource(func(source string, reg *registered, err error) {
		if err != nil {
			failed = true
			explain(err)
			return
		}
		o := noOwner
		if claims != nil {
			if o, err = h.owner(claims, source); err != nil {
				failed = true
				explain(err)
				return
			}
		}
		word, why := ownerWord(source, o, records, reg.external(), lookErr)
		if why != nil {
			explain(why)
		}
		rows = append(rows, Listed{source, reg.Adapter, word, pending[source]})
	})
	return rows, failed, err
}

// ownerWord is what list says of a source's owner, and why if a person should
// know.
func ownerWord(source string, o ownership, records []invoke.Found, external bool, lookErr error) (string, error) {
	switch {
	case o.live():
		return "live", nil
	case o.uncertain():
		return "uncertain", fault.New(fault.ProcessIdentityUncertain, "source %s: %s", source, o.reason())
	case o.orphaned():
		return "orphaned", fault.New(fault.ProcessIdentityUncertain, "source %s: its runner %d is dead and its command still runs; fm-procevent reconcile ends it", source, o.claim.PID)
	}
	if external && lookErr != nil {
		return "uncertain", lookErr
	}
	for _, f := range records {
		if f.SourceID != source || !external {
			continue
		}
		switch {
		case f.Host.State != process.Extinct, f.Group.State == process.Uncertain:
			return "uncertain", fault.New(fault.ProcessIdentityUncertain, "source %s has no live runner, but an operation of it may run: %s %s", source, f.Host.Reason, f.Group.Reason)
		case f.Group.State == process.Live:
			return "orphaned", fault.New(fault.ProcessIdentityUncertain, "source %s: its runner is dead and its package still runs; fm-procevent reconcile ends it", source)
		}
	}
	return "none", nil
}

func (h *Host) pendingCounts() (map[string]int, error) {
	inbox, err := h.place(false, home.Inbox)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer inbox.Close()
	results, err := home.Results(inbox)
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, r := range results {
		if !r.Handled {
			counts[r.Source]++
		}
	}
	return counts, nil
}
