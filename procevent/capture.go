package procevent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/strictjson"
)

// checkPlaces is, for an external source, the same check as before the poll, and
// that it leads to the same directories: a substitution after the registration
// is refused before a write (seed: process-event-adapter/1).
//
// Errors: those of home.Open; path-unsafe for a directory that is another one.
func (r *runner) checkPlaces() error {
	if !r.reg.external() {
		return nil
	}
	for _, at := range []struct {
		place string
		held  *dirfd.Dir
	}{{home.Procevent, r.procevent}, {home.Inbox, r.inbox}} {
		now, err := r.Home.Open(at.place)
		if errors.Is(err, fs.ErrNotExist) {
			return replaced(r.Home.Join(at.place))
		}
		if err != nil {
			return err
		}
		err = sameDir(now, at.held)
		now.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func sameDir(now, held *dirfd.Dir) error {
	a, errA := now.Info()
	b, errB := held.Info()
	if err := errors.Join(errA, errB); err != nil {
		return fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(held.Path()))
	}
	if !a.Same(b) {
		return replaced(held.Path())
	}
	return nil
}

func replaced(path string) error {
	return fault.New(fault.PathUnsafe, "%s was replaced while a source waited; nothing was captured, and the next poll asks again", fault.Path(path))
}

// staged is output on its way to a result, in a file that only this runner knows
// and holds open, so that its inode number stays its own. Writing to it keeps
// the first limit bytes; the rest is drained and dropped.
type staged struct {
	file          *os.File
	name          string
	limit         int
	size, dropped int
	err           error // of the first write that failed
}

// stage opens the staging file. A crash leaves it, and it goes with the claim.
//
// Errors: those of checkPlaces; io.
func (r *runner) stage(limit int) (*staged, error) {
	if err := r.checkPlaces(); err != nil {
		return nil, err
	}
	s := &staged{name: stagingName(r.reg.Source, r.claim.Token), limit: limit}
	var err error
	if s.file, err = r.procevent.Create(s.name, 0o600); err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot stage in %s", fault.Path(filepath.Join(r.procevent.Path(), s.name)))
	}
	return s, nil
}

// Write never fails, so that who writes is drained to the end; sync tells.
func (s *staged) Write(p []byte) (int, error) {
	kept := p[:min(len(p), s.limit-s.size)]
	if len(kept) > 0 && s.err == nil {
		_, s.err = s.file.Write(kept)
	}
	s.size += len(kept)
	s.dropped += len(p) - len(kept)
	return len(p), nil
}

// sync makes what was written durable.
//
// Errors: io.
func (s *staged) sync() error {
	if s.err == nil {
		s.err = s.file.Sync()
	}
	return fault.Wrap(fault.IO, s.err, "cannot stage in %s", fault.Path(s.file.Name()))
}

// stageText stages a whole text.
//
// Errors: those of stage; io.
func (r *runner) stageText(text string) (*staged, error) {
	s, err := r.stage(len(text))
	if err != nil {
		return nil, err
	}
	_, _ = s.Write([]byte(text))
	if err := s.sync(); err != nil {
		r.discard(s)
		return nil, err
	}
	return s, nil
}

// discard ends staged output that becomes no result.
func (r *runner) discard(s *staged) {
	s.file.Close()
	_ = r.procevent.Remove(s.name)
}

// capture is a result that this process captured. A value of it is the whole
// authority over that result: nothing from outside can make one.
type capture struct {
	home.ResultName
	path string
}

// captureStaged makes staged output a captured result, under the source lock:
//
//	the directories are checked again     the staging file, which goes with the claim
//	.adapter, then .extension, durable    the same; the number is used up
//	the staging file becomes .result      captured, perhaps not durable
//	the inbox is synced                   captured
//
// Side files without a .result mean nothing, and nobody removes them: their
// trace keeps the number from being used twice.
//
// Errors: source-busy when the claim was taken; source-missing when the external
// registration is gone; those of checkPlaces; result-invalid when the numbers
// have come to an end; lock-unavailable; io.
func (r *runner) captureStaged(ctx context.Context, s *staged) (c *capture, err error) {
	err = r.locked(ctx, func() error {
		if err := r.checkPlaces(); err != nil {
			return err
		}
		if r.reg.external() && !r.isCurrent() {
			return fault.New(fault.SourceMissing, "the registration of %s is gone, so nothing was captured for it", r.reg.Source)
		}
		n, err := nextSequence(r.inbox, r.reg.Source)
		if err != nil {
			return err
		}
		c = &capture{ResultName: home.ResultName{Source: r.reg.Source, Sequence: n}}
		c.path = filepath.Join(r.inbox.Path(), c.String()+".result")
		if err := r.writeSideFiles(c); err != nil {
			return err
		}
		return r.publish(s, c)
	})
	if err != nil {
		r.discard(s)
		return nil, err
	}
	s.file.Close()
	return c, nil
}

// writeSideFiles says whose the result will be. They need not appear whole:
// without a .result they mean nothing.
func (r *runner) writeSideFiles(c *capture) error {
	if err := r.writeSideFile(c.String()+".adapter", []byte(r.reg.Adapter+"\n")); err != nil || !r.reg.external() {
		return err
	}
	return r.writeSideFile(c.String()+".extension", r.reg.Owner.Encode())
}

func (r *runner) writeSideFile(name string, data []byte) error {
	file, err := r.inbox.Create(name, 0o600)
	if err == nil {
		_, err = file.Write(data)
		if err == nil {
			err = file.Sync()
		}
		err = errors.Join(err, file.Close())
	}
	return fault.Wrap(fault.IO, err, "cannot capture %s", fault.Path(filepath.Join(r.inbox.Path(), name)))
}

// publish commits the capture. What was renamed is looked at afterwards: a
// staging file that somebody put in the place of ours is no result.
func (r *runner) publish(s *staged, c *capture) error {
	if !r.isStaged(r.procevent, s.name, s) {
		return replaced(filepath.Join(r.procevent.Path(), s.name))
	}
	name := c.String() + ".result"
	if err := r.procevent.RenameNoReplace(s.name, r.inbox, name); err != nil {
		return fault.Wrap(fault.IO, err, "cannot capture %s", fault.Path(c.path))
	}
	if !r.isStaged(r.inbox, name, s) {
		_ = r.inbox.Remove(name)
		return replaced(filepath.Join(r.procevent.Path(), s.name))
	}
	return fault.Wrap(fault.IO, r.inbox.Sync(), "cannot make %s durable", fault.Path(r.inbox.Path()))
}

func (r *runner) isStaged(dir *dirfd.Dir, name string, s *staged) bool {
	named, err := dir.Lstat(name)
	if err != nil || !named.IsRegular() || named.Nlink != 1 {
		return false
	}
	var held syscall.Stat_t
	err = syscall.Fstat(int(s.file.Fd()), &held)
	return err == nil && uint64(held.Dev) == named.Dev && held.Ino == named.Ino
}

// nextSequence is one more than the highest number of which the inbox has a
// trace (wire: Next sequence).
//
// Errors: io; result-invalid beyond the numbers that a request can carry.
func nextSequence(inbox *dirfd.Dir, source string) (uint64, error) {
	names, err := inbox.Names()
	if err != nil {
		return 0, fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(inbox.Path()))
	}
	highest, trace := uint64(0), ""
	for _, name := range names {
		if n := traceOf(name, source); n > highest {
			highest, trace = n, name
		}
	}
	if highest >= strictjson.MaxInt {
		return 0, fault.New(fault.ResultInvalid, "%s has the last number there is, so nothing can be captured after it; move it away", fault.Path(filepath.Join(inbox.Path(), trace)))
	}
	return highest + 1, nil
}

// traceOf is the number in a name "<source>.<n>.<anything>", 0 for any other
// name. What a capture is made of belongs to the one source that it names
// ("a.1.2.result" to "a.1"); anything else is a trace for each source that could
// have left it: a number too many is skipped, none is used twice.
func traceOf(name, source string) uint64 {
	if r, suffix, ok := home.ParseResultName(name); ok && slices.Contains([]string{"result", "adapter", "extension", "handled"}, suffix) {
		if r.Source != source {
			return 0
		}
		return r.Sequence
	}
	rest, ok := strings.CutPrefix(name, source+".")
	digits, _, more := strings.Cut(rest, ".")
	if !ok || !more {
		return 0
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || strconv.FormatUint(n, 10) != digits {
		return 0
	}
	return n
}

// markHandled creates the empty .handled file of a captured result. already says
// that it was there. A crash leaves it, perhaps not durable: the result is then
// announced once more.
func markHandled(inbox *dirfd.Dir, r home.ResultName) (already bool, err error) {
	name := r.String() + ".handled"
	file, err := inbox.Create(name, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return true, nil
	}
	if err == nil {
		err = errors.Join(file.Close(), inbox.Sync())
	}
	return false, fault.Wrap(fault.IO, err, "cannot create %s", fault.Path(filepath.Join(inbox.Path(), name)))
}

// Handled acknowledges a captured result (commands: handled) and reports whether
// that had been done before.
//
// Errors: usage; source-missing for what was never captured; for an external
// result those of home.Open; io.
func (h *Host) Handled(source string, sequence uint64) (already bool, err error) {
	if err := CheckSource(source); err != nil {
		return false, err
	}
	r := home.ResultName{Source: source, Sequence: sequence}
	inbox, err := h.inboxOf(r)
	if errors.Is(err, fs.ErrNotExist) {
		return false, fault.New(fault.SourceMissing, "no result %d of source %s was captured in this home", sequence, source)
	}
	if err != nil {
		return false, err
	}
	defer inbox.Close()
	already, err = markHandled(inbox, r)
	if err == nil {
		h.forgetPause(source)
	}
	return already, err
}

// forgetPause ends the pauses of a source: somebody looked at its failure.
func (h *Host) forgetPause(source string) {
	if state, err := h.place(false, home.State); err == nil {
		forgetFailures(state, source)
		state.Close()
	}
}

// inboxOf opens the inbox that holds a captured result: for one that a package
// gave, as every directory of a home.
//
// Errors: one that is fs.ErrNotExist when there is no such result; those of
// home.Open; io.
func (h *Host) inboxOf(r home.ResultName) (*dirfd.Dir, error) {
	inbox, err := h.place(false, home.Inbox)
	if err != nil {
		return nil, err
	}
	_, err = inbox.Lstat(r.String() + ".result")
	external := false
	if err == nil {
		_, sideErr := inbox.Lstat(r.String() + ".extension")
		external = sideErr == nil
	}
	if err == nil && !external {
		return inbox, nil
	}
	inbox.Close()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(inbox.Path()))
	}
	return h.place(true, home.Inbox)
}

// ParseSequence reads a sequence argument. Errors: usage.
func ParseSequence(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n == 0 || fmt.Sprint(n) != text {
		return 0, fault.New(fault.Usage, "sequence %s: must be a positive number", fault.Path(text))
	}
	return n, nil
}
