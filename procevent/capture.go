package procevent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
)

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

// claimSource makes this process the owner of a source (commands: start). A live
// owner anywhere on the machine is never displaced: then the runner is nil, and
// so is the error. A dead one's claim is released first.
//
// Errors: source-missing and the others of read; source-busy for an owner that
// cannot be judged; those of release; lock-unavailable; io.
func (h *Host) claimSource(ctx context.Context, source string) (_ *runner, err error) {
	r := &runner{Host: h}
	defer func() {
		if err != nil || r == nil {
			r.close()
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
	switch {
	case err != nil:
		return nil, err
	case o.live():
		r.close()
		return nil, nil
	case o.uncertain():
		return nil, fault.New(fault.SourceBusy, "source %s may have an owner: %s", source, o.reason())
	}
	if err := h.checkForeignOrphan(o, source); err != nil {
		return nil, err
	}
	if err := h.release(r.claims, source, o); err != nil {
		return nil, err
	}
	// After the release: it may have finished a terminal verdict.
	if r.reg, err = h.read(source); err != nil {
		return nil, err
	}
	if err := r.openPlaces(); err != nil {
		return nil, err
	}
	return r, r.publishClaim(source)
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

func (r *runner) publishClaim(source string) error {
	identity, _, err := runnerIdentity(os.Getpid())
	if err != nil {
		return fault.Wrap(fault.PlatformUnsupported, err, "cannot tell this process's own identity; is /proc mounted?")
	}
	info, err := r.state.Info()
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(r.state.Path()))
	}
	var token [16]byte
	_, _ = rand.Read(token[:]) // never fails
	r.claim = claim{
		Home: r.Home.Path, PID: os.Getpid(), Token: hex.EncodeToString(token[:]), Identity: identity,
		RegDir: r.procevent.Path(), Registration: r.reg.id,
		State: &stateRoot{r.state.Path(), info.Dev, info.Ino, int(info.UID), info.Perm()},
	}
	if _, err := parseClaim(r.claim.encode()); err != nil {
		return fault.New(fault.PathUnsafe, "the path of %s or of %s holds what no claim can record; use another home", fault.Path(r.Home.Path), fault.Path(r.state.Path()))
	}
	if err := writeClaim(r.claims, source, &r.claim); err != nil {
		return err
	}
	temp := home.TempPrefix + "runner-" + source
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
	r.claims, r.procevent, r.inbox, r.state, r.reg = nil, nil, nil, nil, nil
}

// locked runs a function under the source lock, provided that the claim is still
// this runner's.
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
	return err == nil && fileID(info) == r.reg.id
}

// checkPlaces is, for an external source, the same check as before the poll, and
// that it leads to the same directories: a substitution after the registration
// is refused before a write (seed: process-event-adapter/1).
func (r *runner) checkPlaces() error {
	if !r.reg.external() {
		return nil
	}
	for place, held := range map[string]*dirfd.Dir{home.Procevent: r.procevent, home.Inbox: r.inbox} {
		now, err := r.Home.Open(place)
		if errors.Is(err, fs.ErrNotExist) {
			return replaced(r.Home.Join(place))
		}
		if err != nil {
			return err
		}
		a, errA := now.Info()
		b, errB := held.Info()
		now.Close()
		if err := errors.Join(errA, errB); err != nil {
			return fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(held.Path()))
		}
		if !a.Same(b) {
			return replaced(held.Path())
		}
	}
	return nil
}

func replaced(path string) error {
	return fault.New(fault.PathUnsafe, "%s was replaced while a source waited; nothing was captured, and the next poll asks again", fault.Path(path))
}

// stage writes what src gives, at most limit bytes, to the staging file, which
// only this runner knows and holds. What comes after the limit is read and
// dropped. The bytes are durable when it returns.
func (r *runner) stage(src io.Reader, limit int) (staged, error) {
	if err := r.checkPlaces(); err != nil {
		return staged{}, err
	}
	name := stagingName(r.reg.Source, r.claim.Token)
	path := filepath.Join(r.procevent.Path(), name)
	file, err := r.procevent.Create(name, 0o600)
	if err != nil {
		return staged{}, fault.Wrap(fault.IO, err, "cannot stage in %s", fault.Path(path))
	}
	defer file.Close()
	n, err := io.Copy(file, io.LimitReader(src, int64(limit)))
	rest := int64(0)
	if err == nil {
		rest, err = io.Copy(io.Discard, src)
	}
	if err == nil {
		err = file.Sync()
	}
	info, statErr := file.Stat()
	if err = errors.Join(err, statErr); err != nil {
		_ = r.procevent.Remove(name)
		return staged{}, fault.Wrap(fault.IO, err, "cannot stage in %s", fault.Path(path))
	}
	return staged{name: name, size: n, dropped: rest, info: info}, nil
}

// staged is output that is not captured yet.
type staged struct {
	name          string
	size, dropped int64
	info          os.FileInfo
}

// capture is a result that this process captured. A value of it is the whole
// authority over that result: nothing from outside can make one.
type capture struct {
	home.ResultName
	path string
}

// captureStaged makes staged output a captured result. The steps, under the
// source lock: the directories are checked again; the sequence is taken; side
// files, durable; the staging file becomes .result in one rename, which commits;
// the inbox is synced.
//
// A crash before the rename leaves side files without a result, which mean
// nothing, use up their number, and are removed by nobody (their trace keeps
// the number from being used twice); and the staging file, which goes with the
// claim.
func (r *runner) captureStaged(ctx context.Context, s staged) (c *capture, err error) {
	err = r.locked(ctx, func() error {
		if err := r.checkPlaces(); err != nil {
			return err
		}
		if r.reg.external() && !r.isCurrent() {
			return fault.New(fault.SourceMissing, "the registration of %s is gone, so nothing was captured for it", r.reg.Source)
		}
		info, err := r.procevent.Lstat(s.name)
		if err != nil || !sameFile(info, s.info) {
			return replaced(filepath.Join(r.procevent.Path(), s.name))
		}
		n, err := nextSequence(r.inbox, r.reg.Source)
		if err != nil {
			return err
		}
		name := home.ResultName{Source: r.reg.Source, Sequence: n}
		if err := r.writeSideFiles(name); err != nil {
			return err
		}
		if err := r.procevent.RenameNoReplace(s.name, r.inbox, name.String()+".result"); err != nil {
			return fault.Wrap(fault.IO, err, "cannot capture %s", fault.Path(filepath.Join(r.inbox.Path(), name.String()+".result")))
		}
		c = &capture{name, filepath.Join(r.inbox.Path(), name.String()+".result")}
		return fault.Wrap(fault.IO, r.inbox.Sync(), "cannot make %s durable", fault.Path(r.inbox.Path()))
	})
	if err != nil {
		_ = r.procevent.Remove(s.name)
	}
	return c, err
}

// writeSideFiles says whose the result will be. They need not appear whole:
// without a .result they mean nothing.
func (r *runner) writeSideFiles(name home.ResultName) error {
	files := map[string][]byte{".adapter": []byte(r.reg.Adapter + "\n")}
	if r.reg.external() {
		files[".extension"] = r.reg.Owner.Encode()
	}
	for suffix, data := range files {
		file, err := r.inbox.Create(name.String()+suffix, 0o600)
		if err == nil {
			_, err = file.Write(data)
			if err == nil {
				err = file.Sync()
			}
			err = errors.Join(err, file.Close())
		}
		if err != nil {
			return fault.Wrap(fault.IO, err, "cannot capture %s", fault.Path(filepath.Join(r.inbox.Path(), name.String()+suffix)))
		}
	}
	return nil
}

// nextSequence is one more than the highest number of which the inbox has a
// trace (wire: Next sequence).
func nextSequence(inbox *dirfd.Dir, source string) (uint64, error) {
	names, err := inbox.Names()
	if err != nil {
		return 0, fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(inbox.Path()))
	}
	highest := uint64(0)
	for _, name := range names {
		if r, _, ok := home.ParseResultName(name); ok && r.Source == source {
			highest = max(highest, r.Sequence)
		}
	}
	return highest + 1, nil
}

// markHandled creates the empty .handled file of a captured result. already says
// that it was there.
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
	if err := checkSource(source); err != nil {
		return false, err
	}
	r := home.ResultName{Source: source, Sequence: sequence}
	missing := fault.New(fault.SourceMissing, "no result %d of source %s was captured in this home", sequence, source)
	inbox, err := h.place(false, home.Inbox)
	if errors.Is(err, fs.ErrNotExist) {
		return false, missing
	}
	if err != nil {
		return false, err
	}
	defer func() { inbox.Close() }()
	if _, err := inbox.Lstat(r.String() + ".result"); errors.Is(err, fs.ErrNotExist) {
		return false, missing
	} else if err != nil {
		return false, fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(inbox.Path()))
	}
	if _, err := inbox.Lstat(r.String() + ".extension"); err == nil {
		checked, err := h.place(true, home.Inbox)
		if err != nil {
			return false, err
		}
		inbox.Close()
		inbox = checked
	}
	return markHandled(inbox, r)
}

// ParseSequence reads a sequence argument. Errors: usage.
func ParseSequence(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n == 0 || fmt.Sprint(n) != text {
		return 0, fault.New(fault.Usage, "sequence %s: must be a positive number", fault.Path(text))
	}
	return n, nil
}
