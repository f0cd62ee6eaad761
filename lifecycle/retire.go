package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"hawser/binding"
	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/invoke"
)

// maxBindingBytes is above the limit of a binding file: a longer one is read as
// far as it takes to see that it differs.
const maxBindingBytes = 65_536

// Retired is a retired binding, as the command prints it.
type Retired struct {
	ExtensionID   string
	BindingDigest wire.Digest
	RetainedAt    string // the retained file
	Answer
}

// RetireBinding disables the local binding of exactly this identity and retains
// it (commands: retire-binding; seed: Enabled binding). The steps, under the
// lifecycle lock:
//
//  1. the binding, its digest, its source, its package   nothing is written
//  2. records of dead hosts are settled                  fewer records
//  3. registrations, results, live operations            nothing is written
//  4. note                                               a note
//  5. move the file to retired-bindings                  disabled
//  6. sync both directories                              disabled, durable
//  7. the answer is told: no note any more
//
// A crash before 5 leaves it enabled and the same command begins again; from 5
// to 7 it finishes. The installed package stays. A retained file of the same bytes
// is the retained file: then 5 only removes the enabled one.
//
// Errors: binding-missing, owner-mismatch, retirement-incomplete for a
// transferred package, binding-in-use; those of the package's validation, of
// invoke.Settle, and of malformed records that may depend on the binding;
// lock-unavailable; io.
func (h *Host) RetireBinding(ctx context.Context, id string, digest wire.Digest) (*Retired, error) {
	return h.retireBinding(ctx, id, digest, h.checkRetirable, func(binding.Record) error { return nil })
}

// RetireDamaged is RetireBinding for a binding whose installed package fails its
// validation, and is refused for any other. One that came by a transfer is retired
// without it if abandon, between 3 and 4, has nothing against it: that is for the
// room that knows transfers to say, and to do what there is to do about the unit.
//
// Errors: usage when the package is not damaged; those of abandon; those of
// RetireBinding.
func (h *Host) RetireDamaged(ctx context.Context, id string, digest wire.Digest, abandon func(binding.Record) error) (*Retired, error) {
	return h.retireBinding(ctx, id, digest, h.checkDamaged, func(record binding.Record) error {
		if !h.isTransferred(record) {
			return nil
		}
		return abandon(record)
	})
}

func (h *Host) retireBinding(ctx context.Context, id string, digest wire.Digest, check, abandon func(binding.Record) error) (*Retired, error) {
	if ok, err := h.has(home.Bindings); err == nil && !ok {
		_, err := h.Find(id)
		return nil, err // an absent registry is inert
	}
	t, err := h.transact(ctx, retireCommand, id)
	if err != nil {
		return nil, err
	}
	defer t.release()
	reg, err := t.registry()
	if err != nil {
		return nil, err
	}
	c := change{retireCommand, id, digest}
	record, err := reg.ByID(id)
	if fault.Is(err, fault.BindingMissing) {
		return t.finishRetiring(c, err)
	}
	if err != nil {
		return nil, err
	}
	if record.Digest != digest {
		return nil, fault.New(fault.OwnerMismatch, "the binding of %s has the digest %s, not the given one; see fm-extension inspect %[1]s", id, record.Digest)
	}
	if err := check(record); err != nil {
		return nil, err
	}
	if err := t.checkIdle(record.Digest); err != nil {
		return nil, err
	}
	if err := abandon(record); err != nil {
		return nil, err
	}
	return t.disable(c)
}

// isTransferred reports whether the binding's package came by a transfer.
func (h *Host) isTransferred(record binding.Record) bool {
	return strings.HasPrefix(record.SourcePath, h.Home.Join(home.Staging)+"/")
}

// retirement is the command that retires a binding. One whose package came by a
// transfer goes with it: its source is staging/<id>/<version>/<transfer-hex>/package.
func (h *Host) retirement(record binding.Record) string {
	if h.isTransferred(record) {
		return fmt.Sprintf("fm-extension retire-transfer %s --if-transfer-digest sha256:%s --if-binding-digest %s",
			record.ExtensionID, fault.Path(filepath.Base(filepath.Dir(record.SourcePath))), record.Digest)
	}
	return fmt.Sprintf("fm-extension retire-binding %s --if-binding-digest %s", record.ExtensionID, record.Digest)
}

// refuseBound refuses to enable an extension while another binding of it is.
//
// Errors: binding-exists.
func (h *Host) refuseBound(reg *binding.Registry, id string) error {
	record, err := reg.ByID(id)
	if err != nil {
		return nil
	}
	return fault.New(fault.BindingExists, "extension %s is bound already; retire it first: %s", id, h.retirement(record))
}

// checkRetirable refuses a transferred package, and validates the installed one.
func (h *Host) checkRetirable(record binding.Record) error {
	if h.isTransferred(record) {
		return fault.New(fault.RetirementIncomplete, "%s was bound from a transfer; retire it with its transfer: %s", record.ExtensionID, h.retirement(record))
	}
	pkg, err := h.installed(record)
	switch {
	case err == nil:
		pkg.Close()
		return nil
	case isDamage(err):
		return fmt.Errorf("%w; to retire it as it is, add --package-damaged", err)
	}
	return err
}

// checkDamaged insists that the installed package fails its validation.
func (h *Host) checkDamaged(record binding.Record) error {
	pkg, err := h.installed(record)
	switch {
	case err == nil:
		pkg.Close()
		return fault.New(fault.Usage, "the installed package of %s is not damaged; retire it without --package-damaged", record.ExtensionID)
	case couldNotLook(err):
		return err
	}
	return nil
}

// checkIdle settles what dead hosts left of the binding and refuses while
// anything depends on it. What is registered comes before what is under way:
// retiring a source ends its operations, and waiting for them would not. The
// caller holds the lifecycle lock.
func (h *Host) checkIdle(digest wire.Digest) error {
	settled, err := invoke.Settle(h.Home, invoke.Filter{BindingDigest: digest})
	if err != nil {
		return err
	}
	if err := h.checkUnused(digest); err != nil {
		return err
	}
	if len(settled.Live) > 0 {
		return fault.New(fault.BindingInUse, "an operation of the binding is under way: %s; try again when it has ended", settled.Live[0])
	}
	return nil
}

// disable moves the binding's file to where retired ones are retained.
func (t *transaction) disable(c change) (*Retired, error) {
	var made home.Made
	defer made.Forget()
	enabled, err := t.Home.Open(home.Bindings)
	if err != nil {
		return nil, err
	}
	defer enabled.Close()
	retained, err := t.Home.Make(&made, home.RetiredBindings, c.extensionID)
	if err != nil {
		return nil, err
	}
	defer retained.Close()
	if err := made.Sync(); err != nil {
		return nil, err
	}
	if err := t.leave(c); err != nil {
		return nil, err
	}
	if err := t.move(enabled, binding.FileName(c.extensionID), retained, c.bindingDigest.Hex()+".json"); err != nil {
		t.withdraw()
		return nil, err
	}
	return t.finishMove(c, enabled, retained)
}

// move moves a binding file without replacing anything. A file of equal bytes
// under the new name, from an earlier retirement of the same binding, is what
// was to be made: only the old name goes. Whether both are durable before the
// old name goes is the caller's sync.
func (t *transaction) move(src *dirfd.Dir, name string, dst *dirfd.Dir, newName string) error {
	err := home.MoveNew(t.data, src, name, dst, newName)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	have, err := home.ReadPrivate(dst, newName, maxBindingBytes)
	if err != nil {
		return err
	}
	want, err := home.ReadPrivate(src, name, maxBindingBytes)
	if err != nil {
		return err
	}
	path := filepath.Join(dst.Path(), newName)
	if string(have) != string(want) {
		return fault.New(fault.IntegrityMismatch, "%s is there already, with another content than its name says; move it away", fault.Path(path))
	}
	// The maker of the retained file may have died before it was durable.
	if err := dst.Sync(); err != nil {
		return fault.Wrap(fault.IO, err, "cannot make %s durable", fault.Path(dst.Path()))
	}
	return fault.Wrap(fault.IO, src.Remove(name), "cannot remove %s", fault.Path(filepath.Join(src.Path(), name)))
}

// finishRetiring ends a retirement that was killed after its move, and is the
// refusal missing for any other.
func (t *transaction) finishRetiring(c change, missing error) (*Retired, error) {
	if !t.wasLeft(c) {
		return nil, missing
	}
	enabled, err := t.Home.Open(home.Bindings)
	if err != nil {
		return nil, err
	}
	defer enabled.Close()
	retained, err := t.Home.Open(home.RetiredBindings, c.extensionID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing
	}
	if err != nil {
		return nil, err
	}
	defer retained.Close()
	data, err := home.ReadPrivate(retained, c.bindingDigest.Hex()+".json", maxBindingBytes)
	if errors.Is(err, fs.ErrNotExist) || err == nil && wire.DigestOf(data) != c.bindingDigest {
		return nil, missing
	}
	if err != nil {
		return nil, err
	}
	if err := t.leave(c); err != nil {
		return nil, err
	}
	return t.finishMove(c, enabled, retained)
}

// finishMove makes the move durable: first that the file is at its new place,
// then that it is not at the old one.
func (t *transaction) finishMove(c change, enabled, retained *dirfd.Dir) (*Retired, error) {
	for _, dir := range []*dirfd.Dir{retained, enabled} {
		if err := dir.Sync(); err != nil {
			return nil, fault.Wrap(fault.IO, err, "the binding is retired, but %s cannot be made durable; the same command tries again", fault.Path(dir.Path()))
		}
	}
	return &Retired{c.extensionID, c.bindingDigest, filepath.Join(retained.Path(), c.bindingDigest.Hex()+".json"), t.answer()}, nil
}
