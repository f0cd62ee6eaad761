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
	"hawser/internal/strictjson"
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
	isAnother := func(member, want string, check strictjson.Check) bool {
		_, rest, ok := strings.Cut(string(data), `"`+member+`":"`)
		value, _, closed := strings.Cut(rest, `"`)
		return want != "" && ok && closed && value != want && check(value) == ""
	}
	return !isAnother("binding_digest", string(f.BindingDigest), wire.CheckDigest) && !isAnother("source_id", f.SourceID, wire.CheckSourceID)
}

// Settled says what Settle found.
type Settled struct {
	Cleaned int      // records removed: what they named is provably gone
	Stopped int      // of these, how many named a group that had to be stopped
	Live    []string // operations whose host is alive, for a message
	Failed  []error  // records that are kept, and why
}

// Found is what Look says of one record.
type Found struct {
	Record        string // the path of its file, for a message
	SourceID      string // "" for none
	BindingDigest wire.Digest
	Host          process.Verdict // Live or Uncertain while the operation's host may be alive
	Group         process.Verdict // of a dead host's operation: Extinct when nothing of it runs
	Malformed     error           // the record cannot be read, and nothing else here is known

	text []byte // of a malformed record
}

// MayBeOf reports whether the record is of the source, or malformed and not
// legibly of another.
func (f Found) MayBeOf(sourceID string) bool {
	if f.Malformed != nil {
		return Filter{SourceID: sourceID}.couldMatch(f.text)
	}
	return f.SourceID == sourceID
}

// Look judges every record that the filter chooses and changes nothing.
//
// Errors: process-cleanup-failed as for Settle; those of home.Open; io.
func Look(h *home.Home, filter Filter) ([]Found, error) {
	var found []Found
	extinct := process.Verdict{State: process.Extinct}
	err := eachRecord(h, func(dir *dirfd.Dir, name string) error {
		path := filepath.Join(dir.Path(), name)
		r, err := readRecord(dir, name)
		var text []byte
		if malformed, ok := errors.AsType[*malformedRecord](err); ok {
			if !filter.couldMatch(malformed.data) {
				return nil
			}
			err, text = malformed.fault(dir, name), malformed.data
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil && isLeftover(dir, name):
			// It names nothing that could run, and Settle removes it.
			found = append(found, Found{Record: path, Host: extinct, Group: extinct})
		case err != nil:
			found = append(found, Found{Record: path, Malformed: err, text: text})
		case filter.matches(r):
			f := Found{Record: path, BindingDigest: r.BindingDigest, Host: process.Judge(r.HostPID, r.HostIdentity), Group: extinct}
			if r.SourceID != nil {
				f.SourceID = *r.SourceID
			}
			if f.Host.State == process.Extinct && r.Phase == phaseGroup {
				f.Group = process.JudgeGroup(*r.GroupPID, *r.GroupIdentity, string(r.Token))
			}
			found = append(found, f)
		}
		return nil
	})
	return found, err
}

// eachRecord calls visit for every record's file.
func eachRecord(h *home.Home, visit func(dir *dirfd.Dir, name string) error) error {
	dir, err := h.Open(home.Invocations)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(dir.Path()))
	}
	for _, name := range names {
		if tokenOfName(name) == "" {
			return fault.New(fault.ProcessCleanupFailed, "%s is no invocation record, and nothing else may be in this directory; find out whose it is and move it away",
				fault.Path(filepath.Join(dir.Path(), name)))
		}
	}
	for _, name := range names {
		if err := visit(dir, name); err != nil {
			return err
		}
	}
	return nil
}

func readRecord(dir *dirfd.Dir, name string) (*record, error) {
	data, err := home.ReadPrivate(dir, name, recordDoc.Limit)
	if err != nil {
		return nil, err
	}
	r, err := parseRecord(tokenOfName(name), data)
	if err != nil {
		return nil, &malformedRecord{data, err}
	}
	return r, nil
}

// malformedRecord is a record that can be read and not understood.
type malformedRecord struct {
	data  []byte
	cause error
}

func (m *malformedRecord) Error() string { return m.cause.Error() }
func (m *malformedRecord) Unwrap() error { return m.cause }

func (m *malformedRecord) fault(dir *dirfd.Dir, name string) error {
	return fault.Wrap(fault.ProcessIdentityUncertain, m, "%s cannot be read, so what it names cannot be judged; if no package is running, remove it", fault.Path(filepath.Join(dir.Path(), name)))
}

// IsMalformed tells a record that cannot be understood from one whose processes
// cannot be judged.
func IsMalformed(err error) bool {
	_, ok := errors.AsType[*malformedRecord](err)
	return ok
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
	err := eachRecord(h, func(dir *dirfd.Dir, name string) error {
		if err := s.settle(dir, name, filter); err != nil {
			s.Failed = append(s.Failed, err)
		}
		return nil
	})
	if err == nil && len(s.Failed) > 0 {
		err = s.Failed[0]
	}
	return s, err
}

func (s *Settled) settle(dir *dirfd.Dir, name string, filter Filter) error {
	path := filepath.Join(dir.Path(), name)
	r, err := readRecord(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // its operation ended meanwhile
	}
	if malformed, ok := errors.AsType[*malformedRecord](err); ok {
		switch {
		case isLeftover(dir, name):
			return s.remove(dir, name)
		case filter.couldMatch(malformed.data):
			return malformed.fault(dir, name)
		}
		return nil
	}
	if err != nil || !filter.matches(r) {
		return err
	}
	if host := process.Judge(r.HostPID, r.HostIdentity); host.State != process.Extinct {
		s.Live = append(s.Live, fmt.Sprintf("%s of %s (%s; record %s)", r.Operation, r.ExtensionID, host.Reason, fault.Path(path)))
		return nil
	}
	if r.Phase == phaseGroup {
		before := process.JudgeGroup(*r.GroupPID, *r.GroupIdentity, string(r.Token))
		switch v := process.StopGroup(*r.GroupPID, *r.GroupIdentity, string(r.Token)); v.State {
		case process.Live:
			return fault.New(fault.ProcessCleanupFailed, "%s: process group %d was stopped and did not end (%s); see pgrep -a -g %[2]d, then try again",
				fault.Path(path), *r.GroupPID, v.Reason)
		case process.Uncertain:
			return fault.New(fault.ProcessIdentityUncertain, "%s: %s; nothing was signalled. See pgrep -a -g %d; end what is the package's, or remove the record if nothing of it is",
				fault.Path(path), v.Reason, *r.GroupPID)
		}
		if before.State == process.Live {
			s.Stopped++
		}
	}
	return s.remove(dir, name)
}

// isLeftover reports whether a malformed record is older than this boot: what a
// power cut leaves of a file that was never synced. A younger one is kept and
// named, for it may be another program's doing.
func isLeftover(dir *dirfd.Dir, name string) bool {
	info, err := dir.Lstat(name)
	if err != nil {
		return false
	}
	boot, err := process.BootTime()
	return err == nil && time.Unix(0, info.Mtime).Before(boot)
}

func (s *Settled) remove(dir *dirfd.Dir, name string) error {
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(fault.IO, err, "cannot remove %s", fault.Path(filepath.Join(dir.Path(), name)))
	}
	s.Cleaned++
	return nil
}

// ClearTemporaries removes what crashes left in the state root: the unpublished
// records of operations whose hosts are gone. The caller holds the lifecycle lock
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
		if under, err := isUnderWay(h, tokenOfTemp(name)); err != nil || under {
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

// isUnderWay reports whether an operation has a record and a host that may be
// about to replace it.
func isUnderWay(h *home.Home, token wire.Digest) (bool, error) {
	dir, err := h.Open(home.Invocations)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	r, err := readRecord(dir, recordName(token))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case fault.Is(err, fault.IO):
		return false, err
	case err != nil:
		return true, nil
	}
	return process.Judge(r.HostPID, r.HostIdentity).State != process.Extinct, nil
}
