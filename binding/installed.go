package binding

import (
	"path/filepath"

	"hawser/cas"
	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/wire"
)

// Installed is a package that was verified against its binding: the type that
// rooms after this one take instead of a path. Only Verify and Adopt make one.
// It holds the package's directory open and must be closed.
type Installed struct {
	binding *Binding
	digest  wire.Digest
	pkg     *cas.Package
}

// Verify revalidates the installed package of a binding (seed: Discovery and
// package installation): it is where the binding says and that is where this
// home keeps it; owner, modes, links and complete tree digest; manifest and
// entrypoint digests. versions is the open <packages>/<id>/<version>.
//
// Errors: path-unsafe for a package root elsewhere, and those of cas.Open and
// Adopt.
func Verify(versions *dirfd.Dir, record Record) (*Installed, error) {
	b := record.Binding
	if want := filepath.Join(versions.Path(), b.PackageDigest.Hex()); b.PackageRoot != want {
		return nil, fault.New(fault.PathUnsafe, "the binding of %s points to %s, not to this home's %s; was the home moved? retire it with --package-damaged and bind again",
			b.ExtensionID, fault.Path(b.PackageRoot), fault.Path(want))
	}
	pkg, err := cas.Open(versions, b.PackageDigest)
	if err != nil {
		return nil, err
	}
	installed, err := Adopt(record, pkg)
	if err != nil {
		pkg.Close()
	}
	return installed, err
}

// Adopt makes an Installed of a package that the store has just verified or
// installed. It takes pkg over unless it fails.
//
// Errors: integrity-mismatch when the package's tree, manifest or entrypoint is
// not the binding's; entrypoint-missing, entrypoint-invalid.
func Adopt(record Record, pkg *cas.Package) (*Installed, error) {
	b := record.Binding
	if pkg.Tree().Digest() != b.PackageDigest {
		return nil, mismatch(pkg, "the package", b.PackageDigest)
	}
	manifest, ok := pkg.Tree().Lookup(ManifestName)
	if !ok || manifest.Digest != b.ManifestSHA256 {
		return nil, mismatch(pkg, ManifestName, b.ManifestSHA256)
	}
	entry, ok := pkg.Tree().Lookup(b.Entrypoint)
	if !ok {
		return nil, fault.New(fault.EntrypointMissing, "%s has no entrypoint %s", fault.Path(pkg.Root()), fault.Path(b.Entrypoint))
	}
	if entry.Dir || !entry.Executable {
		return nil, fault.New(fault.EntrypointInvalid, "the entrypoint %s is not an executable file", fault.Path(filepath.Join(pkg.Root(), b.Entrypoint)))
	}
	if entry.Digest != b.EntrypointSHA256 {
		return nil, mismatch(pkg, b.Entrypoint, b.EntrypointSHA256)
	}
	return &Installed{b, record.Digest, pkg}, nil
}

func mismatch(pkg *cas.Package, what string, want wire.Digest) error {
	return fault.New(fault.IntegrityMismatch, "%s: %s is not the one that was bound (%s)", fault.Path(pkg.Root()), fault.Path(what), want)
}

// Binding is the record that the package was verified against.
func (i *Installed) Binding() *Binding { return i.binding }

// Digest is the binding's digest.
func (i *Installed) Digest() wire.Digest { return i.digest }

// Dir is the open package root; it stays i's.
func (i *Installed) Dir() *dirfd.Dir { return i.pkg.Dir() }

// EntrypointPath is the absolute path of what is executed.
func (i *Installed) EntrypointPath() string {
	return filepath.Join(i.binding.PackageRoot, i.binding.Entrypoint)
}

// CheckEntrypoint hashes the entrypoint once more: right before each start.
// Errors: integrity-mismatch, and those of cas.Package.CheckFile.
func (i *Installed) CheckEntrypoint() error { return i.pkg.CheckFile(i.binding.Entrypoint) }

// Verify revalidates the whole package once more: before an answer of it is
// accepted. Errors: those of cas.Open.
func (i *Installed) Verify() error { return i.pkg.Verify() }

// Close closes the package.
func (i *Installed) Close() { i.pkg.Close() }
