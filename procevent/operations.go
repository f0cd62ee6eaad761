package procevent

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/invoke"
	"hawser/invoke/process"
)

// The invocation records of a source (processes: Invocation record): what an
// owner that died may have left running, and the next one settles first.

// look finds the records that the filter chooses. A home that is refused and
// has no place for records has none: built-in sources are served there.
//
// Errors: those of invoke.Look.
func (h *Host) look(filter invoke.Filter) ([]invoke.Found, error) {
	found, err := invoke.Look(h.Home, filter)
	if err == nil {
		return found, nil
	}
	if _, statErr := os.Stat(h.Home.Join(home.Invocations)); errors.Is(statErr, fs.ErrNotExist) {
		return nil, nil
	}
	return nil, err
}

// unsettled returns a record that keeps a source from having another owner: its
// host is dead, or cannot be judged, or it cannot be read. nil is for none; an
// operation whose host is alive is that host's to end.
//
// Only external sources depend on records. One that was external before may
// have left some, and a built-in one minds those that name it and no others.
func (h *Host) unsettled(source string, external bool) (*invoke.Found, error) {
	found, err := h.look(invoke.Filter{SourceID: source})
	if err != nil && !external {
		return nil, nil
	}
	for _, f := range found {
		if f.Malformed != nil && external || f.Malformed == nil && f.Host.State != process.Live {
			return &f, nil
		}
	}
	return nil, err
}

// mayRun reports whether something of an operation may run that no live host
// will end.
func mayRun(f invoke.Found) bool {
	return f.Host.State == process.Uncertain || f.Host.State == process.Extinct && f.Group.State != process.Extinct
}

// settle settles the records that dead hosts left of a source. Without any it
// takes no lock.
//
// Errors: those of invoke.Settle; process-identity-uncertain for a record whose
// host cannot be judged; lock-unavailable; io.
func (h *Host) settle(ctx context.Context, source string, external bool) error {
	left, err := h.unsettled(source, external)
	if err != nil || left == nil {
		return err
	}
	return h.Locked(ctx, "settle "+source, func() error {
		_, err := h.settleLocked(source, external)
		return err
	})
}

// settleLocked is settle for the holder of the lifecycle lock. It returns the
// operations of the source whose host is alive.
func (h *Host) settleLocked(source string, external bool) (live []string, err error) {
	settled, err := invoke.Settle(h.Home, invoke.Filter{SourceID: source})
	left, leftErr := h.unsettled(source, external)
	switch {
	case leftErr != nil:
		return nil, leftErr
	case left == nil:
		return settled.Live, nil
	case err != nil:
		return nil, err
	case left.Malformed != nil:
		return nil, left.Malformed
	}
	return nil, foreign(*left)
}

// foreign says of a record whose host cannot be judged what a person can do.
//
// Errors: process-identity-uncertain.
func foreign(f invoke.Found) error {
	return fault.New(fault.ProcessIdentityUncertain, "an operation of source %s may be running: %s; if it is over, remove %s", f.SourceID, f.Host.Reason, fault.Path(f.Record))
}
