package procevent

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/invoke"
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
		if reg == nil {
			return fault.New(fault.OwnerMismatch, "source %s is not registered any more, so no registration has the given token; to clear what it may have left: fm-procevent retire %[1]s --if-absent", source)
		}
		if !reg.external() {
			return fault.New(fault.OwnerMismatch, "source %s is of the built-in adapter %s, and has no token; nothing was changed; see fm-procevent retire --help", source, reg.Adapter)
		}
		if reg.Token != c.IfOwner {
			return fault.New(fault.OwnerMismatch, "the given token is not that of the registration of source %s; nothing was changed; to be told the command with the token: fm-procevent retire %[1]s", source)
		}
	case c.IfMatches != nil:
		if reg == nil || reg.external() || reg.Adapter != c.IfMatches.Adapter || !slices.Equal(reg.Argv, c.IfMatches.Argv) {
			return fault.New(fault.OwnerMismatch, "the registration of source %s is not the given one; nothing was changed; see fm-procevent list", source)
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
// The steps, for a source with records under the lifecycle lock, always under
// the source lock:
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
// and process-cleanup-failed, having removed nothing; source-busy while somebody
// asks the package about one of its results; those of home.Open for an external
// one; lock-unavailable; io.
func (h *Host) Retire(ctx context.Context, source string, condition Condition) error {
	if err := CheckSource(source); err != nil {
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
		err = h.Locked(ctx, "retire "+source, func() error { return h.retireLocked(ctx, source, condition, true) })
	} else {
		err = h.retireLocked(ctx, source, condition, false)
	}
	if err == nil && !external {
		h.unbindHold(ctx, source)
	}
	return err
}

// hasRecords reports whether an invocation record names the source.
func (h *Host) hasRecords(source string) bool {
	found, err := h.look(invoke.Filter{SourceID: source})
	return err == nil && slices.ContainsFunc(found, func(f invoke.Found) bool { return f.Malformed == nil })
}

// retireLocked is Retire from step 1 on; settling says that the lifecycle lock
// is held.
func (h *Host) retireLocked(ctx context.Context, source string, condition Condition, settling bool) error {
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
	o, _, err := h.stopRunner(claims, source)
	if err != nil {
		return err
	}
	if settling {
		live, err := h.settleLocked(source, condition.IfOwner != "")
		if err != nil {
			return err
		}
		if len(live) > 0 {
			return fault.New(fault.SourceBusy, "an operation of source %s is under way: %s; try again when it has ended", source, live[0])
		}
	}
	if reg != nil {
		if err := h.removeRegistration(reg); err != nil {
			return err
		}
	}
	if h.owns(o) || o.claim == nil {
		if _, err := h.release(claims, source, o); err != nil {
			return err
		}
	}
	h.clearSource(claims, source)
	return nil
}

// removeRegistration removes the registration that was read, if the name still
// leads to it.
//
// Errors: owner-mismatch when it does not; io.
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
	if idOf(info) != reg.id {
		return fault.New(fault.OwnerMismatch, "%s was replaced meanwhile; nothing was removed", path)
	}
	return removeDurably(dir, name)
}

// clearSource removes what says that a source runs or failed, and what crashes
// left under its name. The caller holds the source lock. Best effort: nothing
// depends on it.
func (h *Host) clearSource(claims *dirfd.Dir, source string) {
	_ = claims.Remove(home.TempPrefix + source)
	if dir, err := h.place(false, home.Procevent); err == nil {
		_ = dir.Remove(source + runnerSuffix)
		clearStaged(dir, source)
		dir.Close()
	}
	if state, err := h.place(false, home.State); err == nil {
		for _, temp := range temporaries(source) {
			_ = state.Remove(temp)
		}
		forgetFailures(state, source)
		state.Close()
	}
}

// The names in the state root under which files of a source are written before
// they are published. Each is written under the source lock or by the source's
// owner, so its next writer removes what a crash left.
const (
	registrationTemp = home.TempPrefix + "source-"
	runnerTemp       = home.TempPrefix + "runner-"
	failuresTemp     = home.TempPrefix + "failing-"
)

func temporaries(source string) []string {
	return []string{registrationTemp + source, runnerTemp + source, failuresTemp + source}
}

// sourceOfTemporary is the inverse of temporaries.
func sourceOfTemporary(name string) (source string, ok bool) {
	for _, prefix := range []string{registrationTemp, runnerTemp, failuresTemp} {
		if source, ok = strings.CutPrefix(name, prefix); ok {
			return source, CheckSource(source) == nil
		}
	}
	return "", false
}
