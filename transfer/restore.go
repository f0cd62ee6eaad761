package transfer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"hawser/binding"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/lifecycle"
)

// Restore brings a retired transfer back with its binding (commands:
// restore-transfer): Retire the other way. The steps, under the lifecycle lock:
//
//  1. the retained unit, its binding, both digests   leftovers are cleared
//  2. conflicts, installed package, handshake        a package that was gone is
//     installed again
//  3. move the unit to staging                       staged, with its binding
//  4. move the binding out of it                     enabled
//
// A crash before 3 leaves it retired; between 3 and 4 what an interrupted
// retirement leaves, from which either command goes on; after 4 the same command
// finishes and says so. Each move is durable before the next step.
//
// Errors: transfer-missing when no such unit with that binding is retained; the
// refusals of a unit that is not what it was; transfer-exists when the transfer
// is staged; those of lifecycle.Host.RestoreBinding.
func Restore(ctx context.Context, h *lifecycle.Host, id string, transfer, digest wire.Digest) (r *Received, err error) {
	if err := checkKnown(h.Home, id, transfer); err != nil {
		return nil, err
	}
	err = transact(ctx, h, "restore-transfer", id, func(t *lifecycle.Transaction) error {
		bound, err := restore(ctx, t, h.Home, id, transfer, digest)
		if err != nil {
			return err
		}
		r = &Received{bound, transfer, bound.SourcePath}
		return nil
	})
	return r, err
}

func restore(ctx context.Context, t *lifecycle.Transaction, h *home.Home, id string, transfer, digest wire.Digest) (*lifecycle.Bound, error) {
	reg, err := t.Registry()
	if err != nil {
		return nil, err
	}
	if record, err := reg.ByID(id); err == nil {
		k := identity{id, record.ExtensionVersion, transfer}
		if record.Digest == digest && record.SourcePath == k.source(h) && t.WasRestored(record) {
			return finishRestoring(t, h, transfer, record)
		}
		return nil, t.RefuseBound(reg, id)
	}
	u, err := findStaged(h, id, transfer)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		u, err = findRetained(h, id, transfer, digest)
	case err == nil && u.binding == nil:
		u.close()
		return nil, exists(u.identity, "it is staged and not bound; receive the same envelope again to bind it")
	case err == nil && u.binding.Digest != digest:
		u.close()
		return nil, exists(u.identity, fmt.Sprintf("it is staged with the binding %s, not the given one; bring that one back, or finish its retirement: %s", u.binding.Digest, u.retirement(u.binding.Digest)))
	}
	if err != nil {
		return nil, err
	}
	defer u.close()
	if err := t.CheckEnabling(ctx, *u.binding, u.pkg); err != nil {
		return nil, err
	}
	if err := u.restage(h); err != nil {
		return nil, err
	}
	return t.Enable(*u.binding, u.dir, bindingName)
}

// finishRestoring answers for a restoration that was killed after its second
// move. Between two file systems that is a copy, and the file that was copied may
// still be in the unit.
func finishRestoring(t *lifecycle.Transaction, h *home.Home, transfer wire.Digest, record binding.Record) (*lifecycle.Bound, error) {
	bound, err := t.Restored(record)
	if err != nil {
		return nil, err
	}
	u, err := findStaged(h, record.ExtensionID, transfer)
	if fault.Is(err, fault.IO) {
		return nil, err
	}
	if err != nil {
		return bound, nil // what became of the unit is another command's to say
	}
	defer u.close()
	if u.binding != nil && u.binding.Digest == record.Digest {
		err = u.dir.Remove(bindingName)
		if err == nil {
			err = u.dir.Sync()
		}
	}
	return bound, fault.Wrap(fault.IO, err, "cannot remove %s; the same command tries again", fault.Path(filepath.Join(u.dir.Path(), bindingName)))
}

// restage moves a retained unit back to staging, durably. One that is there
// already is left to be made durable by whoever moved it.
func (u *unit) restage(h *home.Home) error {
	if u.dir.Path() == u.staged(h) {
		return nil
	}
	var made home.Made
	defer made.Forget()
	staging, err := h.Make(&made, home.Staging, u.id, u.version)
	if err != nil {
		return err
	}
	defer staging.Close()
	retired, err := u.place(h, home.RetiredStaging)
	if err != nil {
		return err
	}
	defer retired.Close()
	err = retired.RenameNoReplace(filepath.Base(u.dir.Path()), staging, u.transfer.Hex())
	if errors.Is(err, fs.ErrExist) {
		return exists(u.identity, "it was staged meanwhile by another program")
	}
	if err == nil {
		err = staging.SyncFS()
	}
	return fault.Wrap(fault.IO, err, "cannot move %s back to %s; the same command tries again", fault.Path(u.dir.Path()), fault.Path(staging.Path()))
}

// findRetained finds the retained unit of a transfer that has the binding with
// the digest. Of several they are the same: any will do.
//
// Errors: transfer-missing; those of openUnit when the only ones under its name
// are not what they were.
func findRetained(h *home.Home, id string, transfer, digest wire.Digest) (*unit, error) {
	versions, err := versionsOf(h, home.RetiredStaging, id)
	if err != nil {
		return nil, err
	}
	var refusal error
	for _, version := range versions {
		k := identity{id, version, transfer}
		names, err := k.retainedNames(h)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			u, err := openUnit(h, home.RetiredStaging, k, name)
			if errors.Is(err, fs.ErrNotExist) {
				continue // it was there when it was listed
			}
			if err != nil {
				refusal = err
				continue
			}
			if u.binding != nil && u.binding.Digest == digest {
				return u, nil
			}
			u.close()
		}
	}
	if refusal == nil {
		refusal = fault.New(fault.TransferMissing, "no retired transfer %s of %s with the binding %s is retained in this home", transfer, id, digest)
	}
	return nil, refusal
}

// retainedNames lists the names under which the unit may be retained.
func (k identity) retainedNames(h *home.Home) ([]string, error) {
	dir, err := k.place(h, home.RetiredStaging)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(dir.Path()))
	}
	var own []string
	for _, name := range names {
		if name == k.transfer.Hex() || strings.HasPrefix(name, k.transfer.Hex()+".") {
			own = append(own, name)
		}
	}
	return own, nil
}
