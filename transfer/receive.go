package transfer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"hawser/binding"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/lifecycle"
	"hawser/tree"
)

// PackDirectory makes the envelope of a package directory that an operator
// named (commands: pack-transfer). It writes nothing.
//
// Errors: those of lifecycle.Host.OpenPackage, tree.Scan and Pack.
func PackDirectory(h *lifecycle.Host, root string) ([]byte, error) {
	dir, err := h.OpenPackage(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	scanned, err := tree.Scan(dir, tree.SourceRules())
	if err != nil {
		return nil, err
	}
	return Pack(scanned)
}

// Received is a transfer that is bound, as the commands print it.
type Received struct {
	*lifecycle.Bound
	TransferDigest wire.Digest
	StagedPackage  string // its directory
}

// ReceiveBind stages the package of an envelope and binds it (commands:
// receive-transfer-bind; seed: Runtime independence). The steps, under the
// lifecycle lock:
//
//  1. options, the path that the binding will name     nothing is written
//  2. look at the unit that stands under the identity  leftovers are cleared
//  3. stage                                            a unit without a binding
//  4. bind, as bind does                               enabled
//
// A crash before the rename of 3 leaves nothing visible; between it and the one
// of 4 a unit without a binding, which the same envelope takes up again; after
// that it finishes and says so. A refusal after 3 moves the unit to
// retired-staging, where it is in nobody's way: the same envelope may come again.
//
// A unit that is not what it was is set aside too, and staged anew, also when its
// binding is enabled: that puts back what repair and retire-transfer need, and is
// then still transfer-exists.
//
// Errors: transfer-exists when the transfer is bound here, or its retirement
// was interrupted; path-unsafe for a home whose path is too long; those of lifecycle.Host.Bind.
func ReceiveBind(ctx context.Context, h *lifecycle.Host, e *Envelope, options binding.Options) (r *Received, err error) {
	if err := options.Check(); err != nil {
		return nil, err
	}
	source := e.identity().source(h.Home)
	if must := wire.CheckBindingPath(source); must != "" {
		return nil, fault.New(fault.PathUnsafe, "staged package %s: its path must be %s; use a home with a shorter path", fault.Path(source), must)
	}
	err = transact(ctx, h, "receive-transfer-bind", e.ID(), func(t *lifecycle.Transaction) error {
		staged, err := admit(t, h.Home, e)
		if err != nil {
			return err
		}
		defer staged.close()
		bound, err := t.Bind(ctx, staged.source, options)
		if err != nil {
			return setAside(t, h.Home, e.identity(), err)
		}
		r = &Received{bound, e.digest, source}
		return nil
	})
	return r, err
}

// transact runs a command about one extension under the lifecycle lock.
func transact(ctx context.Context, h *lifecycle.Host, command, id string, run func(*lifecycle.Transaction) error) error {
	return vanished(h.Transact(ctx, command, id, run))
}

// vanished makes a fault of what was there and then was not: what may be absent was
// asked for before. Only somebody's hand does that, and no step relies on it.
func vanished(err error) error {
	if errors.Is(err, fs.ErrNotExist) && fault.CodeOf(err) == fault.Internal {
		return fault.Wrap(fault.IO, err, "something in this home vanished while it was used; try again")
	}
	return err
}

func (e *Envelope) identity() identity { return identity{e.ID(), e.Version(), e.digest} }

// admit returns the package of the staged unit, staged now or taken up again, or
// refuses.
func admit(t *lifecycle.Transaction, h *home.Home, e *Envelope) (*staged, error) {
	k := e.identity()
	enabled, err := enabledOf(t, h, k)
	if err != nil {
		return nil, err
	}
	u, err := openUnit(h, home.Staging, k, k.transfer.Hex())
	switch {
	case err == nil:
		defer u.close()
		return u.takeUp(t, h, enabled)
	case errors.Is(err, fs.ErrNotExist):
	case fault.Is(err, fault.IO):
		return nil, err
	default:
		if _, err := k.retain(h); err != nil {
			return nil, err
		}
	}
	s, err := stage(h, e)
	if err != nil || enabled == nil {
		return s, err
	}
	defer s.close()
	if err := s.pkg.SyncFS(); err != nil { // no bind follows that would
		return nil, stageFault(err, s.pkg)
	}
	return nil, exists(k, "it is bound; its staged package was missing or damaged and has been put back")
}

// takeUp returns the package of a unit that stands there, if that is because
// its command was killed.
func (u *unit) takeUp(t *lifecycle.Transaction, h *home.Home, enabled *binding.Record) (*staged, error) {
	if u.binding != nil {
		return nil, exists(u.identity, "its retirement was interrupted; finish it: "+u.retirement(u.binding.Digest))
	}
	if enabled != nil && !t.WasBound(*enabled) {
		return nil, u.bound(enabled.Digest)
	}
	pkg, err := u.pkg.Dup()
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot open the staged package")
	}
	s := &staged{pkg: pkg}
	if s.source, err = lifecycle.ReadSource(pkg, u.source(h), u.digest); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// enabledOf returns the enabled binding of the staged unit, nil if there is none.
func enabledOf(t *lifecycle.Transaction, h *home.Home, k identity) (*binding.Record, error) {
	reg, err := t.Registry()
	if err != nil {
		return nil, err
	}
	record, err := reg.ByID(k.id)
	if err != nil || record.SourcePath != k.source(h) {
		return nil, nil
	}
	return &record, nil
}

func exists(k identity, why string) error {
	return fault.New(fault.TransferExists, "the transfer %s of %s@%s is here: %s", k.transfer, k.id, k.version, why)
}

// bound refuses a transfer whose binding is enabled.
func (k identity) bound(digest wire.Digest) error {
	return exists(k, "it is bound; to retire it: "+k.retirement(digest))
}

// retirement is the command that retires the transfer with its binding.
func (k identity) retirement(digest wire.Digest) string {
	return fmt.Sprintf("fm-extension retire-transfer %s --if-transfer-digest %s --if-binding-digest %s", k.id, k.transfer, digest)
}

// setAside retains the unit of a failed bind, unless a binding is enabled that
// came of it: then the transfer is here, if on other terms.
func setAside(t *lifecycle.Transaction, h *home.Home, k identity, cause error) error {
	enabled, err := enabledOf(t, h, k)
	if err == nil && enabled != nil {
		if fault.Is(cause, fault.BindingExists) {
			return k.bound(enabled.Digest)
		}
		return cause
	}
	var path string
	if err == nil {
		path, err = k.retain(h)
	}
	if err != nil {
		return fmt.Errorf("%w; the transfer stays staged (%w), and the same envelope takes it up again", cause, err)
	}
	return fmt.Errorf("%w; the transfer is retained in %s, and the same envelope may come again", cause, fault.Path(path))
}
