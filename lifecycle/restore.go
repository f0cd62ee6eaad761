package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"hawser/binding"
	"hawser/cas"
	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
)

// maxNamed is how many digests a refusal names.
const maxNamed = 5

// RestoreBinding brings a retired binding back (commands: restore-binding): the
// retained file is revalidated with its package, handshaken, and moved back
// without replacing anything. Steps and crashes are those of RetireBinding the
// other way: enabled from the move on.
//
// Errors: binding-missing when no such file is retained; owner-mismatch when its
// content is not what its name says; binding-exists, adapter-conflict,
// registry-…; those of the package's validation and of an invocation;
// lock-unavailable; io.
func (h *Host) RestoreBinding(ctx context.Context, id string, digest wire.Digest) (*Bound, error) {
	if must := wire.CheckExtensionID(id); must != "" {
		return nil, fault.New(fault.Usage, "extension id %s: must be %s", fault.Path(id), must)
	}
	if ok, err := h.has(home.RetiredBindings, id); err == nil && !ok {
		return nil, h.notRetained(id, digest)
	}
	t, err := h.transact(ctx, restoreCommand, id)
	if err != nil {
		return nil, err
	}
	defer t.release()
	c := change{restoreCommand, id, digest}
	reg, err := t.registry()
	if err != nil {
		return nil, err
	}
	if t.wasLeft(c) {
		return t.finishRestoring(c)
	}
	retained, err := h.Home.Open(home.RetiredBindings, id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, h.notRetained(id, digest)
	}
	if err != nil {
		return nil, err
	}
	defer retained.Close()
	record, err := t.readRetained(retained, id, digest)
	if err != nil {
		return nil, err
	}
	if _, err := t.checkConflicts(reg, id, record.AdapterNames); err != nil {
		return nil, err
	}
	pkg, err := t.installed(record)
	if err != nil {
		again := "bind its source " + fault.Path(record.SourcePath)
		if h.isTransferred(record) {
			again = "receive its envelope"
		}
		return nil, otherwise(err, "to install it again, %s; adapters and consents are in %s",
			again, fault.Path(filepath.Join(retained.Path(), digest.Hex()+".json")))
	}
	defer pkg.Close()
	if err := t.handshake(ctx, pkg); err != nil {
		return nil, err
	}
	return t.reenable(c, retained)
}

// notRetained names what there is instead.
func (h *Host) notRetained(id string, digest wire.Digest) error {
	instead := "none is"
	if names := h.retained(id); len(names) > 0 {
		instead = "retained there are " + strings.Join(names, ", ")
	}
	if record, err := h.Find(id); err == nil {
		instead += fmt.Sprintf("; %s is bound now, with the binding digest %s", id, record.Digest)
	}
	return fault.New(fault.BindingMissing, "the binding %s of %s is not retained in %s; %s",
		digest, id, fault.Path(h.Home.Join(home.RetiredBindings, id)), instead)
}

// retained lists the digests of an extension's retired bindings, but not more of
// them than a line can hold.
func (h *Host) retained(id string) (digests []string) {
	dir, err := h.Home.Open(home.RetiredBindings, id)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Names()
	for _, name := range names {
		hex, isFile := strings.CutSuffix(name, ".json")
		if digest := "sha256:" + hex; isFile && wire.CheckDigest(digest) == "" {
			digests = append(digests, digest)
		}
	}
	if more := len(digests) - maxNamed; more > 0 {
		digests = append(digests[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	return digests
}

func (h *Host) readRetained(dir *dirfd.Dir, id string, digest wire.Digest) (binding.Record, error) {
	name := digest.Hex() + ".json"
	data, err := home.ReadPrivate(dir, name, maxBindingBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return binding.Record{}, h.notRetained(id, digest)
	}
	if err != nil {
		return binding.Record{}, err
	}
	path := filepath.Join(dir.Path(), name)
	b, got, err := binding.ParseBinding(data)
	if err != nil {
		return binding.Record{}, fault.Wrap(fault.CodeOf(err), err, "%s", fault.Path(path))
	}
	if got != digest || b.ExtensionID != id {
		return binding.Record{}, fault.New(fault.OwnerMismatch, "%s: its content is not the binding that its name says; bind the package again instead", fault.Path(path))
	}
	return binding.Record{Binding: b, Digest: got}, nil
}

// reenable moves the retained file back: durable content, one rename, sync.
func (t *transaction) reenable(c change, retained *dirfd.Dir) (*Bound, error) {
	var made home.Made
	defer made.Forget()
	bindings, err := t.Home.Make(&made, home.Bindings)
	if err != nil {
		return nil, err
	}
	defer bindings.Close()
	if err := made.Sync(); err != nil {
		return nil, err
	}
	if err := t.leave(c); err != nil {
		return nil, err
	}
	name := binding.FileName(c.extensionID)
	err = home.MoveNew(t.data, retained, c.bindingDigest.Hex()+".json", bindings, name)
	if errors.Is(err, fs.ErrExist) {
		err = fault.New(fault.BindingExists, "extension %s was bound meanwhile by another program; see fm-extension inspect %[1]s", c.extensionID)
	}
	if err != nil {
		t.withdraw()
		return nil, err
	}
	return t.settleRestored(c, bindings, retained)
}

// finishRestoring does for a killed restore what it had left to do. Where config
// is another file system it published a copy, and the retained file may still be
// there.
func (t *transaction) finishRestoring(c change) (*Bound, error) {
	if err := t.leave(c); err != nil {
		return nil, err
	}
	bindings, err := t.Home.Open(home.Bindings)
	if err != nil {
		return nil, err
	}
	defer bindings.Close()
	retained, err := t.Home.Open(home.RetiredBindings, c.extensionID)
	if err != nil {
		return nil, err
	}
	defer retained.Close()
	if err := bindings.Sync(); err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot make %s durable", fault.Path(bindings.Path()))
	}
	name := c.bindingDigest.Hex() + ".json"
	if err := retained.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Wrap(fault.IO, err, "cannot remove %s", fault.Path(filepath.Join(retained.Path(), name)))
	}
	return t.settleRestored(c, bindings, retained)
}

// settleRestored makes the move durable: first that the file is at its new place,
// then that it is not at the old one.
func (t *transaction) settleRestored(c change, bindings, retained *dirfd.Dir) (*Bound, error) {
	for _, dir := range []*dirfd.Dir{bindings, retained} {
		if err := dir.Sync(); err != nil {
			return nil, fault.Wrap(fault.IO, err, "the binding is restored, but %s cannot be made durable; the same command tries again", fault.Path(dir.Path()))
		}
	}
	return t.readBack(c)
}

// Repair reinstalls the damaged or missing package of an enabled binding from
// its recorded source, or from root if that is not "" (commands: repair), when
// every digest matches. The damaged tree is moved aside, never removed. An
// intact package is only handshaken.
//
// The steps are: verify; scan and hash the source, which writes nothing; move
// the damaged tree aside; install; handshake. A crash between the last but one
// and the one before leaves the package missing, which the same command
// repairs; nothing of the binding changes.
//
// Errors: binding-missing; those of the source as for Bind; integrity-mismatch
// when the source is not the package that was bound; those of an invocation;
// lock-unavailable; io.
func (h *Host) Repair(ctx context.Context, id, root string) (*Bound, error) {
	if _, err := h.Find(id); err != nil {
		return nil, err
	}
	t, err := h.transact(ctx, "repair", id)
	if err != nil {
		return nil, err
	}
	defer t.release()
	reg, err := t.registry()
	if err != nil {
		return nil, err
	}
	record, err := reg.ByID(id)
	if err != nil {
		return nil, err
	}
	pkg, err := t.installed(record)
	if err != nil && !isDamage(err) {
		return nil, err
	}
	if err != nil {
		if pkg, err = t.repair(record, root); err != nil {
			return nil, err
		}
	}
	defer pkg.Close()
	if err := t.handshake(ctx, pkg); err != nil {
		return nil, err
	}
	return t.bound(record), nil
}

func (t *transaction) repair(record binding.Record, root string) (*binding.Installed, error) {
	dir, err := t.openRepairSource(record, root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return t.reinstall(record, dir)
}

// reinstall installs the binding's package from a directory that is to hold it.
// What is damaged is moved aside.
func (t *transaction) reinstall(record binding.Record, dir *dirfd.Dir) (*binding.Installed, error) {
	s, err := readSource(dir)
	if err != nil {
		return nil, err
	}
	hashed, err := s.Hash()
	if err != nil {
		return nil, err
	}
	if hashed.Digest() != record.PackageDigest {
		return nil, fault.New(fault.IntegrityMismatch, "%s has the package digest %s, not the bound %s; give the directory of the package that was bound",
			fault.Path(dir.Path()), hashed.Digest(), record.PackageDigest)
	}
	versions, err := t.Home.Make(nil, home.Packages, record.ExtensionID, record.ExtensionVersion)
	if err != nil {
		return nil, err
	}
	defer versions.Close()
	if err := cas.MoveAside(versions, record.PackageDigest); err != nil {
		return nil, err
	}
	pkg, err := cas.Install(versions, s.Scanned)
	if err != nil {
		return nil, err
	}
	installed, err := binding.Adopt(record, pkg)
	if err != nil {
		pkg.Close()
	}
	return installed, err
}

// openRepairSource opens where the package is to come from again. A staged
// transfer is in the home, and may be.
func (t *transaction) openRepairSource(record binding.Record, root string) (*dirfd.Dir, error) {
	if root == "" && t.isTransferred(record) {
		return openReal(record.SourcePath)
	}
	if root != "" {
		return t.openSource(root)
	}
	dir, err := t.openSource(record.SourcePath)
	if err != nil {
		return nil, fmt.Errorf("%w; it was bound from there; to give another copy: fm-extension repair %s <package-root>", err, record.ExtensionID)
	}
	return dir, nil
}
