package invoke

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/invoke/process"
)

// Filter chooses records. The zero value chooses all.
type Filter struct {
	SourceID      string
	BindingDigest wire.Digest
}

func (f Filter) matches(r *record) bool {
	return (f.SourceID == "" || r.SourceID != nil && *r.SourceID == f.SourceID) &&
		(f.BindingDigest == "" || r.BindingDigest == f.BindingDigest)
}

// couldMatch reports whether a malformed record could be one that the filter
// chooses: not if it legibly names another binding or source.
func (f Filter) couldMatch(data []byte) bool {
	differs := func(member, want string) bool {
		_, rest, ok := strings.Cut(string(data), `"`+member+`":"`)
		value, _, closed := strings.Cut(rest, `"`)
		return want != "" && ok && closed && value != want
	}
	return !differs("binding_digest", string(f.BindingDigest)) && !differs("source_id", f.SourceID)
}

// Settled says what Settle found.
type Settled struct {
	Cleaned int      // records removed: what they named is provably gone
	Live    []string // operations whose host is alive, for a message
}

// Settle judges every record that the filter chooses and removes those whose
// processes are provably gone; a group that a dead host left behind is stopped
// first, if it is provably the recorded one (seed: Executable protocol;
// processes: Invocation record). The caller holds the lifecycle lock.
//
// A record of a live host is left and reported. Every other record is looked at
// even when one before it failed; the error is the first failure.
//
// A crash between stopping and removing leaves the record of an extinct group,
// which the next call removes.
//
// Errors: process-cleanup-failed for a file in the directory that nobody here
// knows, or a group that would not end; process-identity-uncertain for what
// cannot be judged; those of home.Open; io.
func Settle(h *home.Home, filter Filter) (Settled, error) {
	var s Settled
	dir, err := h.Open(home.Invocations)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return s, fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(dir.Path()))
	}
	for _, name := range names {
		if tokenOfName(name) == "" {
			return s, fault.New(fault.ProcessCleanupFailed, "%s is no invocation record, and nothing else may be in this directory; find out whose it is and move it away",
				fault.Path(filepath.Join(dir.Path(), name)))
		}
	}
	var first error
	for _, name := range names {
		if err := s.settle(dir, name, filter); err != nil && first == nil {
			first = err
		}
	}
	return s, first
}

func (s *Settled) settle(dir *dirfd.Dir, name string, filter Filter) error {
	path := filepath.Join(dir.Path(), name)
	data, err := home.ReadPrivate(dir, name, recordDoc.Limit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // its operation ended meanwhile
	}
	if err != nil {
		return err
	}
	r, err := parseRecord(tokenOfName(name), data)
	if err != nil {
		if !filter.couldMatch(data) {
			return nil
		}
		return s.settleMalformed(dir, name, err)
	}
	if !filter.matches(r) {
		return nil
	}
	if host := process.Judge(r.HostPID, r.HostIdentity); host.State != process.Extinct {
		s.Live = append(s.Live, fmt.Sprintf("%s of %s (%s; record %s)", r.Operation, r.ExtensionID, host.Reason, fault.Path(path)))
		return nil
	}
	if r.Phase == phaseGroup {
		switch v := process.StopGroup(*r.GroupPID, *r.GroupIdentity, string(r.Token)); v.State {
		case process.Live:
			return fault.New(fault.ProcessCleanupFailed, "%s: process group %d was stopped and did not end (%s); see ps -o pid,stat,wchan,args -g %[2]d, then try again",
				fault.Path(path), *r.GroupPID, v.Reason)
		case process.Uncertain:
			return fault.New(fault.ProcessIdentityUncertain, "%s: %s; nothing was signalled. See ps -o pid,lstart,args -g %d; end what is the package's, or remove the record if nothing of it is",
				fault.Path(path), v.Reason, *r.GroupPID)
		}
	}
	return s.remove(dir, name)
}

// settleMalformed removes an empty or torn record that is older than this boot:
// what a power cut leaves of a file that was never synced. A younger one is kept
// and named, for it may be another program's doing.
func (s *Settled) settleMalformed(dir *dirfd.Dir, name string, cause error) error {
	path := filepath.Join(dir.Path(), name)
	info, err := dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(path))
	}
	boot, err := process.BootTime()
	if err == nil && time.Unix(0, info.Mtime).Before(boot) {
		return s.remove(dir, name)
	}
	return fault.Wrap(fault.ProcessIdentityUncertain, cause, "%s cannot be read, so what it names cannot be judged; if no package is running, remove it", fault.Path(path))
}

func (s *Settled) remove(dir *dirfd.Dir, name string) error {
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(fault.IO, err, "cannot remove %s", fault.Path(filepath.Join(dir.Path(), name)))
	}
	s.Cleaned++
	return nil
}

// ClearTemporaries removes what crashes left in the state root: the unpublished
// records of operations that have none. The caller holds the lifecycle lock
// (see tempName).
//
// Errors: io, those of home.Open.
func ClearTemporaries(h *home.Home) error {
	state, err := h.Open(home.State)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer state.Close()
	names, err := state.Names()
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(state.Path()))
	}
	for _, name := range names {
		if !strings.HasPrefix(name, tempPrefix) {
			continue
		}
		if alive, err := hasRecord(h, tokenOfTemp(name)); err != nil || alive {
			if err != nil {
				return err
			}
			continue
		}
		if err := state.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fault.Wrap(fault.IO, err, "cannot clear the leftover %s", fault.Path(filepath.Join(state.Path(), name)))
		}
	}
	return nil
}

func hasRecord(h *home.Home, token wire.Digest) (bool, error) {
	dir, err := h.Open(home.Invocations)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	_, err = dir.Lstat(recordName(token))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(dir.Path()))
}
