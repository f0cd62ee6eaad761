package procevent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/invoke"
	"hawser/invoke/process"
)

// Swept is what a sweep did.
type Swept struct {
	Attempted int
	Failed    []error // sources that were not retired, and what is left
}

// SweepHome retires every source of this home, each by its own identity, then
// insists that no registration, runner, claim or record of it is left (commands:
// sweep-home). A source that cannot be retired leaves the others retired.
//
// Errors: those that keep the sweep from being made at all; the rest is in the
// result.
func (h *Host) SweepHome(ctx context.Context) (*Swept, error) {
	s := &sweep{Host: h}
	conditions := map[string]Condition{}
	err := h.eachSource(func(source string, reg *registered, err error) {
		s.Attempted++
		switch {
		case err != nil:
			s.fail(err)
		case reg.external():
			conditions[source] = Condition{IfOwner: reg.Token}
		default:
			conditions[source] = Condition{IfMatches: &Match{reg.Adapter, reg.Argv}}
		}
	})
	if err != nil {
		return nil, err
	}
	for _, source := range slices.Sorted(maps.Keys(conditions)) {
		if err := h.Retire(ctx, source, conditions[source]); err != nil {
			s.fail(err)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	s.endOrphans(ctx)
	if len(s.Failed) == 0 {
		s.insist()
	}
	return &s.Swept, nil
}

// sweep is a SweepHome under way.
type sweep struct {
	*Host
	Swept
}

// fail keeps a refusal, if there is one.
func (s *sweep) fail(err error) {
	if err != nil {
		s.Failed = addOnce(s.Failed, err)
	}
}

// addOnce adds what was not said yet: one record may be in the way of many
// sources.
func addOnce(errs []error, err error) []error {
	if slices.ContainsFunc(errs, func(said error) bool { return said.Error() == err.Error() }) {
		return errs
	}
	return append(errs, err)
}

// endOrphans ends what claims and records of this home say of sources that are
// not registered. A runner that had to be killed leaves a record, and its claim
// goes once that is settled.
func (s *sweep) endOrphans(ctx context.Context) {
	claims, err := s.claims(false)
	if err != nil {
		s.fail(err)
		return
	}
	if claims != nil {
		defer claims.Close()
	}
	s.clearRunnerFiles(claims)
	s.clearTemporaries(ctx, claims)
	for range 2 {
		s.fail(s.settleRecords(ctx))
		s.fail(s.eachUnregistered(claims, func(source string) {
			_, err := s.endOwner(ctx, claims, source)
			s.fail(err)
		}))
	}
}

// clearRunnerFiles removes the runner files of processes that are dead and that
// no claim of this home names any more.
func (s *sweep) clearRunnerFiles(claims *dirfd.Dir) {
	dir, err := s.place(false, home.Procevent)
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Names()
	for _, name := range names {
		source, ok := strings.CutSuffix(name, runnerSuffix)
		if !ok {
			continue
		}
		if o, err := s.owner(claims, source); err != nil || s.owns(o) {
			continue
		}
		pid := runnerPID(dir, name)
		if _, alive := process.Started(pid); pid == 0 || !alive {
			_ = dir.Remove(name)
		}
	}
}

// clearTemporaries removes what crashes left of sources that are not registered:
// those that are were just retired, and cleared with that.
func (s *sweep) clearTemporaries(ctx context.Context, claims *dirfd.Dir) {
	state, err := s.place(false, home.State)
	if err != nil || claims == nil {
		return
	}
	defer state.Close()
	names, _ := state.Names()
	for _, name := range names {
		if source, ok := sourceOfTemporary(name); ok && !s.isRegistered(source) {
			if lock, err := s.lockSource(ctx, claims, source, "sweep-home"); err == nil {
				s.clearSource(claims, source)
				lock.Release()
			}
		}
	}
}

// runnerPID reads a runner file; 0, which no process has, for one that does not
// hold a pid.
func runnerPID(dir *dirfd.Dir, name string) int {
	data, _, err := readFile(dir, name, 32)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

// settleRecords settles every record of a dead host, and clears what crashes left
// of operations. A home without a place for records is left as it is.
func (s *sweep) settleRecords(ctx context.Context) error {
	if _, err := os.Stat(s.Home.Join(home.Invocations)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_, err := s.CleanupInvocations(ctx, invoke.Filter{})
	return err
}

// insist names everything that a swept home must not have.
func (s *sweep) insist() {
	left := func(dir *dirfd.Dir, name, what string) {
		s.fail(fault.New(fault.SourceBusy, "%s is left: %s", fault.Path(filepath.Join(dir.Path(), name)), what))
	}
	if dir, err := s.place(false, home.Procevent); err == nil {
		defer dir.Close()
		names, err := dir.Names()
		s.fail(err)
		for _, name := range names {
			switch filepath.Ext(name) {
			case registrationSuffix:
				left(dir, name, "a registration; it appeared meanwhile, sweep again")
			case runnerSuffix:
				left(dir, name, fmt.Sprintf("no claim names a runner; if process %d is none, remove the file", runnerPID(dir, name)))
			}
		}
	}
	claims, err := s.claims(false)
	s.fail(err)
	if claims != nil {
		defer claims.Close()
		s.fail(s.eachUnregistered(claims, func(source string) {
			left(claims, source+claimSuffix, "a claim of this home; sweep again")
		}))
	}
	found, err := s.look(invoke.Filter{})
	s.fail(err)
	for _, f := range found {
		switch {
		case f.Malformed != nil:
			s.fail(f.Malformed)
		case f.SourceID == "":
		case f.Host.State == process.Uncertain:
			s.fail(foreign(f))
		default:
			s.fail(fault.New(fault.SourceBusy, "an operation of source %s is under way (%s); sweep again when it has ended", f.SourceID, f.Host.Reason))
		}
	}
}

// SweepPreflight reports what would keep a sweep from ending: nothing is
// changed (commands: sweep-home --preflight).
//
// Errors: those that keep it from being told.
func (h *Host) SweepPreflight() (failed []error, err error) {
	fail := func(err error) { failed = addOnce(failed, err) }
	claims, err := h.claims(false)
	if err != nil {
		return nil, err
	}
	if claims != nil {
		defer claims.Close()
	}
	found, err := h.look(invoke.Filter{})
	if err != nil {
		fail(err)
	}
	for _, f := range found {
		switch {
		case f.Malformed != nil:
			fail(f.Malformed)
		case f.SourceID == "":
		case f.Host.State == process.Uncertain:
			fail(foreign(f))
		case f.Host.State == process.Extinct && f.Group.State == process.Uncertain:
			fail(fault.New(fault.ProcessIdentityUncertain, "an operation of source %s cannot be judged: %s; see fm-procevent reconcile", f.SourceID, f.Group.Reason))
		}
	}
	err = h.eachSource(func(source string, reg *registered, err error) {
		if err == nil {
			err = h.checkOwner(claims, source)
		}
		if err != nil {
			fail(err)
		}
	})
	if err != nil {
		return nil, err
	}
	return failed, h.eachUnregistered(claims, func(source string) {
		if err := h.checkOwner(claims, source); err != nil {
			fail(err)
		}
	})
}

// checkOwner refuses an owner that cannot be judged.
func (h *Host) checkOwner(claims *dirfd.Dir, source string) error {
	o, err := h.owner(claims, source)
	if err != nil {
		return err
	}
	return o.doubt(source)
}
