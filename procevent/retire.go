package procevent

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/invoke"
	"hawser/invoke/process"
)

// Condition is what must hold for a retirement (commands: fm-procevent,
// Conditions). The zero value is none, which holds for built-in sources only.
type Condition struct {
	IfOwner   string // exactly the external generation with this token
	IfMatches *Match // exactly this built-in record
	IfAbsent  bool   // only leftovers: there is no registration
}

// Match is a complete built-in record.
type Match struct {
	Adapter string
	Argv    []string
}

// check compares the condition with the registration, nil for none. A condition
// that does not hold changes nothing.
//
// Errors: owner-mismatch, naming the way that is right.
func (c Condition) check(source string, reg *registered) error {
	switch {
	case c.IfAbsent:
		if reg != nil {
			return fault.New(fault.OwnerMismatch, "source %s is registered; --if-absent is for one that is not", source)
		}
	case c.IfOwner != "":
		if reg == nil || !reg.external() || reg.Token != c.IfOwner {
			return fault.New(fault.OwnerMismatch, "the given token is not that of the registration of source %s; nothing was changed", source)
		}
	case c.IfMatches != nil:
		if reg == nil || reg.external() || reg.Adapter != c.IfMatches.Adapter || !slices.Equal(reg.Argv, c.IfMatches.Argv) {
			return fault.New(fault.OwnerMismatch, "the registration of source %s is not the given one; nothing was changed", source)
		}
	default:
		if reg != nil && reg.external() {
			return fault.New(fault.OwnerMismatch, "source %s belongs to %s@%s; to retire exactly this registration: fm-procevent retire %s --if-owner %s",
				source, reg.Owner.ExtensionID, reg.Owner.ExtensionVersion, source, reg.Token)
		}
	}
	return nil
}

// Retire ends a source of this home if the condition holds (commands: retire).
// The steps, for an external source under the lifecycle lock, always under the
// source lock:
//
//  1. the condition                             nothing is changed
//  2. this home's runner is stopped             a dead claim
//  3. records of the source are settled         fewer records
//  4. the registration is removed, durably      a dead claim without a source
//  5. the claim is released                     nothing is left
//
// A crash after 2 or 3 leaves the source registered and the same command ends
// it, or reconcile starts it again; after 4 reconcile releases the claim. A
// source that is not registered is retired already; what it left goes.
//
// Errors: usage; owner-mismatch; registration-invalid; process-identity-uncertain
// and process-cleanup-failed, having removed nothing; those of home.Open for an
// external one; lock-unavailable; io.
func (h *Host) Retire(ctx context.Context, source string, condition Condition) error {
	if err := checkSource(source); err != nil {
		return err
	}
	reg, err := h.readIfAny(source)
	if err != nil {
		return err
	}
	external := condition.IfOwner != ""
	if reg != nil {
		external = external || reg.external()
		reg.close()
	}
	if err := condition.check(source, reg); err != nil {
		return err
	}
	if external || h.hasRecords(source) {
		err = h.Locked(ctx, "retire "+source, func() error { return h.retireLocked(ctx, source, condition) })
	} else {
		err = h.retireLocked(ctx, source, condition)
	}
	if err == nil && (reg == nil || !reg.external()) {
		h.unbindHold(ctx, source)
	}
	return err
}

func (h *Host) readIfAny(source string) (*registered, error) {
	reg, err := h.read(source)
	if fault.Is(err, fault.SourceMissing) {
		return nil, nil
	}
	return reg, err
}

// hasRecords reports whether an invocation record may be of the source.
func (h *Host) hasRecords(source string) bool {
	found, err := invoke.Look(h.Home)
	if err != nil {
		return false // a home that is refused has no records that we wrote
	}
	return slices.ContainsFunc(found, func(f invoke.Found) bool { return f.Malformed != nil || f.SourceID == source })
}

func (h *Host) retireLocked(ctx context.Context, source string, condition Condition) error {
	claims, err := h.claims(true)
	if err != nil {
		return err
	}
	defer claims.Close()
	lock, err := h.lockSource(ctx, claims, source, "retire")
	if err != nil {
		return err
	}
	defer lock.Release()
	reg, err := h.readIfAny(source)
	if err != nil {
		return err
	}
	if reg != nil {
		defer reg.close()
	}
	if err := condition.check(source, reg); err != nil {
		return err
	}
	if _, err := h.evictLocked(claims, source); err != nil {
		return err
	}
	if h.hasRecords(source) {
		settled, err := invoke.Settle(h.Home, invoke.Filter{SourceID: source})
		if err != nil {
			return err
		}
		if len(settled.Live) > 0 {
			return fault.New(fault.SourceBusy, "an operation of source %s is under way: %s; try again when it has ended", source, settled.Live[0])
		}
	}
	if reg != nil {
		if err := h.removeRegistration(reg); err != nil {
			return err
		}
	}
	return h.clearSource(source)
}

// removeRegistration removes the registration that was read, if the name still
// leads to it.
func (h *Host) removeRegistration(reg *registered) error {
	dir, err := h.place(reg.external(), home.Procevent)
	if err != nil {
		return err
	}
	defer dir.Close()
	name := reg.Source + registrationSuffix
	path := fault.Path(filepath.Join(dir.Path(), name))
	info, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot read %s", path)
	}
	if fileID(info) != reg.id {
		return fault.New(fault.OwnerMismatch, "%s was replaced meanwhile; nothing was removed", path)
	}
	if err := dir.Remove(name); err != nil {
		return fault.Wrap(fault.IO, err, "cannot remove %s", path)
	}
	return fault.Wrap(fault.IO, dir.Sync(), "cannot make %s durable", fault.Path(dir.Path()))
}

// clearSource removes what says that a source runs or failed.
func (h *Host) clearSource(source string) error {
	if dir, err := h.place(false, home.Procevent); err == nil {
		_ = dir.Remove(source + runnerSuffix)
		dir.Close()
	}
	if state, err := h.place(false, home.State); err == nil {
		forgetFailures(state, source)
		state.Close()
	}
	return nil
}

// Swept is what a sweep did.
type Swept struct {
	Attempted int
	Failed    []error // sources that were not retired, and what is left
}

// SweepHome retires every source of this home, each by its own identity, then
// insists that no registration, runner, claim or record of it is left (commands:
// sweep-home). A source that cannot be retired leaves the others retired.
func (h *Host) SweepHome(ctx context.Context) (*Swept, error) {
	swept := &Swept{}
	fail := func(err error) { swept.Failed = append(swept.Failed, err) }
	conditions := map[string]Condition{}
	err := h.eachSource(func(source string, reg *registered, err error) {
		swept.Attempted++
		switch {
		case err != nil:
			fail(err)
		case reg.external():
			conditions[source] = Condition{IfOwner: reg.Token}
		default:
			conditions[source] = Condition{IfMatches: &Match{reg.Adapter, reg.Argv}}
		}
	})
	if err != nil {
		return nil, err
	}
	for _, source := range sortedKeys(conditions) {
		if err := h.Retire(ctx, source, conditions[source]); err != nil {
			fail(err)
		}
		if ctx.Err() != nil {
			return swept, ctx.Err()
		}
	}
	if err := h.sweepLeftovers(ctx, fail); err != nil {
		return swept, err
	}
	if len(swept.Failed) == 0 {
		for _, err := range h.leftovers() {
			fail(err)
		}
	}
	return swept, nil
}

func sortedKeys[T any](m map[string]T) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// sweepLeftovers ends what claims and records of this home say of sources that
// are not registered.
func (h *Host) sweepLeftovers(ctx context.Context, fail func(error)) error {
	claims, err := h.claims(false)
	if err == nil {
		defer claims.Close()
		sources, err := claimedSources(claims)
		if err != nil {
			return err
		}
		for _, source := range sources {
			o, err := h.owner(claims, source)
			if err == nil && o.claim != nil && o.claim.Home == h.Home.Path && !h.isRegistered(source) {
				_, err = h.evict(ctx, claims, source)
			}
			if err != nil {
				fail(err)
			}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	found, err := invoke.Look(h.Home)
	if err != nil || len(found) == 0 {
		return err
	}
	return h.Locked(ctx, "sweep-home", func() error {
		_, err := invoke.Settle(h.Home, invoke.Filter{})
		if err != nil {
			fail(err)
		}
		return nil
	})
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

// leftovers names everything that a swept home must not have.
func (h *Host) leftovers() (left []error) {
	name := func(path, what string) {
		left = append(left, fault.New(fault.SourceBusy, "%s is left: %s", fault.Path(path), what))
	}
	if dir, err := h.place(false, home.Procevent); err == nil {
		defer dir.Close()
		names, _ := dir.Names()
		for _, entry := range names {
			switch filepath.Ext(entry) {
			case registrationSuffix:
				name(filepath.Join(dir.Path(), entry), "a registration; it appeared meanwhile, sweep again")
			case runnerSuffix:
				name(filepath.Join(dir.Path(), entry), "a runner; it appeared meanwhile, sweep again")
			}
		}
	}
	if claims, err := h.claims(false); err == nil {
		defer claims.Close()
		sources, _ := claimedSources(claims)
		for _, source := range sources {
			if o, err := h.owner(claims, source); err == nil && o.claim != nil && o.claim.Home == h.Home.Path {
				name(filepath.Join(claims.Path(), source+claimSuffix), "a claim of this home; sweep again")
			}
		}
	}
	found, err := invoke.Look(h.Home)
	if err != nil {
		left = append(left, err)
	}
	for _, f := range found {
		if f.SourceID != "" || f.Malformed != nil {
			name(h.Home.Join(home.Invocations), "the record of an operation; sweep again when it has ended")
		}
	}
	return left
}

// SweepPreflight reports what would keep a sweep from ending: nothing is
// changed (commands: sweep-home --preflight).
func (h *Host) SweepPreflight() (failed []error, err error) {
	fail := func(err error) { failed = append(failed, err) }
	claims, err := h.claims(false)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if claims != nil {
		defer claims.Close()
	}
	records, lookErr := invoke.Look(h.Home)
	if lookErr != nil {
		fail(lookErr)
	}
	for _, f := range records {
		if f.Malformed != nil {
			fail(f.Malformed)
		} else if f.Host.State == process.Uncertain || f.Group.State == process.Uncertain {
			fail(fault.New(fault.ProcessIdentityUncertain, "an operation of source %s cannot be judged: %s %s", f.SourceID, f.Host.Reason, f.Group.Reason))
		}
	}
	err = h.eachSource(func(source string, reg *registered, err error) {
		o := noOwner
		if err == nil && claims != nil {
			o, err = h.owner(claims, source)
		}
		if err == nil && o.uncertain() {
			err = fault.New(fault.ProcessIdentityUncertain, "source %s: %s", source, o.reason())
		}
		if err != nil {
			fail(err)
		}
	})
	return failed, err
}
