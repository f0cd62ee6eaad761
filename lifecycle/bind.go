package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"hawser/binding"
	"hawser/cas"
	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/tree"
)

const (
	manifestLimit = 65_536

	// The commands that change a binding, as a note names them: none finishes
	// another's change. Receiving a transfer binds, and is told apart by the source.
	bindCommand            = "bind"
	retireCommand          = "retire-binding"
	restoreCommand         = "restore-binding"
	retireTransferCommand  = "retire-transfer"
	restoreTransferCommand = "restore-transfer"
)

// Bound is an enabled binding, as the commands print it.
type Bound struct {
	binding.Record
	File string // of the binding
	Answer
}

// Bind enables the package in the directory root (commands: bind). The steps:
//
//  1. arguments, source rules, tree, manifest, terms   nothing is written
//  2. lock; conflicts with registry and built-ins      leftovers are cleared
//  3. install                                          an inert package
//  4. handshake                                        the same
//  5. note                                             the same, and a note
//  6. publish the binding                              enabled
//  7. sync, read back                                  enabled, durable
//  8. the answer is told: no note any more
//
// A crash leaves what the line says; before 6 nothing is enabled and the same
// command begins again, from 6 to 8 it finishes. A refusal leaves what a crash
// at its step does, without the note.
//
// Errors: usage, consent-missing, path-unsafe and the others of the source;
// package-…, manifest-…, entrypoint-…; capability-mismatch,
// protocol-incompatible, adapter-conflict, binding-exists, registry-…;
// integrity-mismatch; those of an invocation; lock-unavailable; io.
func (h *Host) Bind(ctx context.Context, root string, options binding.Options) (*Bound, error) {
	if err := options.Check(); err != nil {
		return nil, err
	}
	dir, err := h.openSource(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	source, err := readSource(dir)
	if err != nil {
		return nil, err
	}
	terms, err := binding.Choose(source.manifest, options)
	if err != nil {
		return nil, err
	}
	t, err := h.transact(ctx, bindCommand, source.manifest.ID)
	if err != nil {
		return nil, err
	}
	defer t.release()
	return t.bind(ctx, source, dir.Path(), terms)
}

// source is a package directory that may be installed: its structure is what a
// package's may be, and its manifest is read.
type source struct {
	*tree.Scanned
	manifest *binding.Manifest
}

func readSource(dir *dirfd.Dir) (*source, error) {
	scanned, err := tree.Scan(dir, tree.SourceRules())
	if err != nil {
		return nil, err
	}
	data, err := scanned.ReadFile(binding.ManifestName, manifestLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.ManifestMissing, "%s has no %s in it", fault.Path(dir.Path()), binding.ManifestName)
	}
	if err != nil {
		return nil, err
	}
	manifest, err := binding.ParseManifest(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", fault.Path(filepath.Join(dir.Path(), binding.ManifestName)), err)
	}
	entry, ok := scanned.Lookup(manifest.Entrypoint)
	path := fault.Path(filepath.Join(dir.Path(), manifest.Entrypoint))
	if !ok {
		return nil, fault.New(fault.EntrypointMissing, "there is no entrypoint %s", path)
	}
	if entry.Dir || !entry.Executable {
		return nil, fault.New(fault.EntrypointInvalid, "the entrypoint %s is not an executable file; run: chmod u+x %[1]s", path)
	}
	return &source{scanned, manifest}, nil
}

func (t *transaction) bind(ctx context.Context, s *source, sourcePath string, terms binding.Terms) (*Bound, error) {
	reg, err := t.registry()
	if err != nil {
		return nil, err
	}
	published, err := t.checkConflicts(reg, s.manifest.ID, terms.AdapterNames)
	if err != nil {
		return nil, err
	}
	pkg, err := t.install(s)
	if err != nil {
		return nil, err
	}
	record, data, err := compose(s.manifest, pkg, sourcePath, terms)
	if err != nil {
		pkg.Close()
		return nil, err
	}
	if published != "" && published != record.Digest {
		pkg.Close()
		return nil, t.refuseBound(reg, record.ExtensionID)
	}
	installed, err := binding.Adopt(record, pkg)
	if err != nil {
		pkg.Close()
		return nil, err
	}
	defer installed.Close()
	if err := t.handshake(ctx, installed); err != nil {
		return nil, err
	}
	c := change{bindCommand, record.ExtensionID, record.Digest}
	if published != "" {
		return t.finishEnabling(c)
	}
	return t.enable(c, data)
}

// checkConflicts refuses an extension or adapter that is taken, by a binding or
// by a built-in. It returns the digest of the extension's binding if a killed
// bind published it: the same bind may then finish.
//
// Errors: binding-exists, adapter-conflict, registry-oversized, io.
func (t *transaction) checkConflicts(reg *binding.Registry, id string, adapters []string) (published wire.Digest, err error) {
	if record, err := reg.ByID(id); err == nil && t.wasLeft(change{bindCommand, id, record.Digest}) {
		return record.Digest, nil
	}
	if err := t.refuseBound(reg, id); err != nil {
		return "", err
	}
	if err := reg.CheckRoom(adapters); err != nil {
		return "", err
	}
	for _, name := range adapters {
		taken, err := t.Home.BuiltinAdapter(name)
		if err != nil {
			return "", err
		}
		if taken {
			return "", fault.New(fault.AdapterConflict, "the adapter %s is built in: %s; leave it out, or use another name in the package",
				name, fault.Path(filepath.Join(t.Home.Root, "bin", "fm-procevent-"+name+".sh")))
		}
	}
	return "", nil
}

// install puts the package into the store, durably. Every directory that the
// binding needs is made before, so that one sync of the file system covers them.
func (t *transaction) install(s *source) (*cas.Package, error) {
	var made home.Made
	defer made.Forget()
	bindings, err := t.Home.Make(&made, home.Bindings)
	if err != nil {
		return nil, err
	}
	defer bindings.Close()
	if err := t.syncElsewhere(&made, bindings); err != nil {
		return nil, err
	}
	versions, err := t.Home.Make(&made, home.Packages, s.manifest.ID, s.manifest.Version)
	if err != nil {
		return nil, err
	}
	defer versions.Close()
	return cas.Install(versions, s.Scanned)
}

// syncElsewhere makes the registry's directory durable where it is on another
// file system than the store, whose sync would not reach it.
func (t *transaction) syncElsewhere(made *home.Made, bindings *dirfd.Dir) error {
	a, err := bindings.Info()
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(bindings.Path()))
	}
	b, err := t.data.Info()
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(t.data.Path()))
	}
	if a.Dev != b.Dev {
		return made.Sync()
	}
	return nil
}

// compose makes the binding of an installed package.
func compose(m *binding.Manifest, pkg *cas.Package, sourcePath string, terms binding.Terms) (binding.Record, []byte, error) {
	manifest, _ := pkg.Tree().Lookup(binding.ManifestName)
	entry, _ := pkg.Tree().Lookup(m.Entrypoint)
	b := &binding.Binding{
		ExtensionID:      m.ID,
		ExtensionVersion: m.Version,
		SourcePath:       sourcePath,
		PackageRoot:      pkg.Root(),
		ManifestSHA256:   manifest.Digest,
		PackageDigest:    pkg.Tree().Digest(),
		Entrypoint:       m.Entrypoint,
		EntrypointSHA256: entry.Digest,
		Terms:            terms,
	}
	if must := wire.CheckBindingPath(b.PackageRoot); must != "" {
		return binding.Record{}, nil, fault.New(fault.PathUnsafe, "installed package %s: its path must be %s; use a home with a shorter path", fault.Path(b.PackageRoot), must)
	}
	data, digest, err := b.Encode()
	return binding.Record{Binding: b, Digest: digest}, data, err
}

// enable publishes the binding: leave the note, rename, and finish. When the
// rename cannot be made durable it is undone.
func (t *transaction) enable(c change, data []byte) (*Bound, error) {
	dir, err := t.Home.Make(nil, home.Bindings)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := t.leave(c); err != nil {
		return nil, err
	}
	name := binding.FileName(c.extensionID)
	err = home.PublishNew(t.data, dir, name, data)
	if errors.Is(err, fs.ErrExist) {
		err = fault.New(fault.BindingExists, "extension %s was bound meanwhile by another program; see fm-extension inspect %[1]s", c.extensionID)
	}
	if err != nil {
		t.withdraw()
		return nil, err
	}
	if err := dir.Sync(); err != nil {
		err = fault.Wrap(fault.IO, err, "cannot make %s durable; the binding was taken back", fault.Path(dir.Path()))
		if undo := dir.Remove(name); undo != nil {
			return nil, fault.Wrap(fault.IO, undo, "%v, but not removed: see fm-extension inspect %s", err, c.extensionID)
		}
		t.withdraw()
		return nil, err
	}
	return t.readBack(c)
}

// finishEnabling does for a killed command what it had left to do: its binding
// is published, but perhaps not durable.
func (t *transaction) finishEnabling(c change) (*Bound, error) {
	if err := t.leave(c); err != nil {
		return nil, err
	}
	dir, err := t.Home.Open(home.Bindings)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot make %s durable", fault.Path(dir.Path()))
	}
	return t.readBack(c)
}

// readBack reads the published binding: what is said next is true.
//
// Errors: integrity-mismatch when what is there is not what was published.
func (t *transaction) readBack(c change) (*Bound, error) {
	reg, err := t.registry()
	if err != nil {
		return nil, err
	}
	record, err := reg.ByID(c.extensionID)
	if err != nil {
		return nil, err
	}
	if record.Digest != c.bindingDigest {
		return nil, fault.New(fault.IntegrityMismatch, "the binding of %s was changed while it was published; see fm-extension inspect %[1]s", c.extensionID)
	}
	return t.bound(record), nil
}

func (t *transaction) bound(record binding.Record) *Bound {
	return &Bound{record, t.Home.Join(home.Bindings, binding.FileName(record.ExtensionID)), t.answer()}
}
