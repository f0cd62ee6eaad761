package lifecycle

import (
	"context"
	"errors"
	"io/fs"

	"hawser/binding"
	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
)

// Transaction is a mutating command of the room that knows transfers: what such
// a command needs of this room, under one hold of the lifecycle lock.
type Transaction struct{ t *transaction }

// Transact runs a command about one extension under the lifecycle lock, after what
// crashes left is cleared.
//
// Errors: lock-unavailable, those of home.Open; io; those of run.
func (h *Host) Transact(ctx context.Context, command, id string, run func(*Transaction) error) error {
	t, err := h.transact(ctx, command, id)
	if err != nil {
		return err
	}
	defer t.release()
	return run(&Transaction{t})
}

// OpenPackage opens a package directory that an operator named (home: Where a
// package may come from).
//
// Errors: usage, package-missing, path-unsafe, io.
func (h *Host) OpenPackage(path string) (*dirfd.Dir, error) { return h.openSource(path) }

// Registry reads the enabled bindings. Errors: those of binding.ReadRegistry.
func (t *Transaction) Registry() (*binding.Registry, error) { return t.t.registry() }

// Source is a package directory that may be bound: all of it was read, and
// whatever changes in it from then on is refused.
type Source struct {
	source *source
	path   string
}

// ReadSource reads the package in an open directory, which stays open for as long
// as the result is used, and has to have the digest. A binding will name path as
// the place that it came from.
//
// Errors: those of Host.Bind about a package; integrity-mismatch for another
// digest.
func ReadSource(dir *dirfd.Dir, path string, digest wire.Digest) (*Source, error) {
	s, err := readSource(dir)
	if err != nil {
		return nil, err
	}
	read, err := s.Hash()
	if err != nil {
		return nil, err
	}
	if read.Digest() != digest {
		return nil, fault.New(fault.IntegrityMismatch, "%s has the package digest %s, not %s", fault.Path(dir.Path()), read.Digest(), digest)
	}
	return &Source{s, path}, nil
}

// Bind enables a package: steps and errors are those of Host.Bind from its terms
// on.
func (t *Transaction) Bind(ctx context.Context, s *Source, options binding.Options) (*Bound, error) {
	terms, err := binding.Choose(s.source.manifest, options)
	if err != nil {
		return nil, err
	}
	return t.t.bind(ctx, s.source, s.path, terms)
}

// RefuseBound refuses to enable an extension while another binding of it is.
//
// Errors: binding-exists.
func (t *Transaction) RefuseBound(reg *binding.Registry, id string) error {
	return t.t.refuseBound(reg, id)
}

// Retirement is the command that retires a binding, and whether it is the one for
// a transfer.
func (t *Transaction) Retirement(record binding.Record) (command string, transferred bool) {
	return t.t.retirement(record), t.t.isTransferred(record)
}

// WasBound, WasRetired and WasRestored report whether a killed command made this
// change and did not say so: its repetition finishes and says it.
func (t *Transaction) WasBound(record binding.Record) bool {
	return t.t.wasLeft(change{bindCommand, record.ExtensionID, record.Digest})
}

func (t *Transaction) WasRetired(id string, digest wire.Digest) bool {
	return t.t.wasLeft(change{retireTransferCommand, id, digest})
}

func (t *Transaction) WasRestored(record binding.Record) bool {
	return t.t.wasLeft(change{restoreTransferCommand, record.ExtensionID, record.Digest})
}

// CheckRetirable validates the binding's installed package and refuses while
// anything depends on it: steps 1 to 3 of RetireBinding.
func (t *Transaction) CheckRetirable(record binding.Record) error {
	pkg, err := t.t.installed(record)
	if err != nil {
		return err
	}
	pkg.Close()
	return t.t.checkIdle(record.Digest)
}

// IsDamaged reports whether the binding's installed package fails its validation:
// RetireDamaged may then be the way out.
func (t *Transaction) IsDamaged(record binding.Record) bool { return t.t.checkDamaged(record) == nil }

// Disable moves the binding's file to the name in the directory to, durably.
// Equal bytes that stand there are the moved file. The answer to it is Retired.
// A crash leaves the file at one of the two places; where config is another file
// system, perhaps at both.
//
// Errors: integrity-mismatch when something else has the name; io.
func (t *Transaction) Disable(record binding.Record, to *dirfd.Dir, name string) error {
	enabled, err := t.t.Home.Open(home.Bindings)
	if err != nil {
		return err
	}
	defer enabled.Close()
	if err := t.t.leave(change{retireTransferCommand, record.ExtensionID, record.Digest}); err != nil {
		return err
	}
	if err := t.t.move(enabled, binding.FileName(record.ExtensionID), to, name); err != nil {
		t.t.withdraw()
		return err
	}
	return syncAll(to, enabled)
}

// Retired answers for a retirement. One that was not by Disable in this
// transaction goes on for a command that was killed after it.
func (t *Transaction) Retired(id string, digest wire.Digest) (Answer, error) {
	if t.t.note == "" {
		if err := t.t.leave(change{retireTransferCommand, id, digest}); err != nil {
			return Answer{}, err
		}
	}
	return t.t.answer(), nil
}

// CheckEnabling does for a retained binding what a bind does before it publishes
// one: conflicts, the installed package, a handshake. A package that is gone is
// installed again from the directory from; a crash leaves it, which is inert.
//
// Errors: those of RestoreBinding.
func (t *Transaction) CheckEnabling(ctx context.Context, record binding.Record, from *dirfd.Dir) error {
	reg, err := t.t.registry()
	if err != nil {
		return err
	}
	if _, err := t.t.checkConflicts(reg, record.ExtensionID, record.AdapterNames); err != nil {
		return err
	}
	pkg, err := t.t.installed(record)
	if isGone(err) {
		pkg, err = t.t.reinstall(record, from)
	}
	if err != nil {
		return otherwise(err, "move it aside, and the same command installs what was transferred again")
	}
	defer pkg.Close()
	return t.t.handshake(ctx, pkg)
}

// Enable moves the binding's file from the name in the directory from to where
// it is enabled, durably. A crash leaves it as one in Disable does.
//
// Errors: binding-exists, io.
func (t *Transaction) Enable(record binding.Record, from *dirfd.Dir, name string) (*Bound, error) {
	c := change{restoreTransferCommand, record.ExtensionID, record.Digest}
	var made home.Made
	defer made.Forget()
	bindings, err := t.t.Home.Make(&made, home.Bindings)
	if err != nil {
		return nil, err
	}
	defer bindings.Close()
	if err := made.Sync(); err != nil {
		return nil, err
	}
	if err := t.t.leave(c); err != nil {
		return nil, err
	}
	err = home.MoveNew(t.t.data, from, name, bindings, binding.FileName(record.ExtensionID))
	if errors.Is(err, fs.ErrExist) {
		err = fault.New(fault.BindingExists, "extension %s was bound meanwhile by another program; see fm-extension inspect %[1]s", record.ExtensionID)
	}
	if err != nil {
		t.t.withdraw()
		return nil, err
	}
	if err := syncAll(bindings, from); err != nil {
		return nil, err
	}
	return t.t.readBack(c)
}

// Restored answers for an Enable whose command was killed after it. Where config
// is another file system, the file may still be where it was moved from.
func (t *Transaction) Restored(record binding.Record) (*Bound, error) {
	return t.t.finishEnabling(change{restoreTransferCommand, record.ExtensionID, record.Digest})
}

// syncAll makes a move between two directories durable: first that the file is
// at its new place, then that it is not at the old one.
func syncAll(dirs ...*dirfd.Dir) error {
	for _, dir := range dirs {
		if err := dir.Sync(); err != nil {
			return fault.Wrap(fault.IO, err, "%s cannot be made durable; the same command tries again", fault.Path(dir.Path()))
		}
	}
	return nil
}
