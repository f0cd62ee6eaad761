package transfer

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"

	"hawser/binding"
	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
	"hawser/lifecycle"
	"hawser/tree"
)

// What a unit holds (home: A home on disk).
const (
	packageName = "package"
	receiptName = "receipt.json"
	bindingName = "binding.json"
)

// stagedRules are the modes that a staged package has: as transferred.
func stagedRules() tree.Rules {
	return tree.Rules{Dir: []uint32{modeExecutable}, File: []uint32{modePlain, modeExecutable}}
}

// identity names a unit: the path of its directory below staging or
// retired-staging.
type identity struct {
	id, version string
	transfer    wire.Digest
}

// place opens staging or retired-staging down to the unit's version.
func (k identity) place(h *home.Home, place string) (*dirfd.Dir, error) {
	return h.Open(place, k.id, k.version)
}

// staged is where the unit is staged.
func (k identity) staged(h *home.Home) string {
	return h.Join(home.Staging, k.id, k.version, k.transfer.Hex())
}

// source is the source path of the binding of the staged unit's package.
func (k identity) source(h *home.Home) string { return filepath.Join(k.staged(h), packageName) }

// unit is a transfer on disk, open and verified whole: what its directory is
// called, its receipt and its package are one identity, down to the last byte.
// That is proved, not believed: the transfer manifest can be made again from
// what is there, and its digest is the transfer's name.
type unit struct {
	identity
	dir     *dirfd.Dir
	pkg     *dirfd.Dir
	digest  wire.Digest     // of the package
	binding *binding.Record // of binding.json, nil without one
}

func (u *unit) close() {
	u.dir.Close()
	u.pkg.Close()
}

// openUnit opens the unit name in a place and verifies it.
//
// Errors: one that is fs.ErrNotExist when there is none; integrity-mismatch and
// the refusals of tree.Verify, of home.Open and of home.ReadPrivate for one that
// is not what it was; owner-mismatch for a binding that is not of this unit; io.
func openUnit(h *home.Home, place string, k identity, name string) (*unit, error) {
	dir, err := h.Open(place, k.id, k.version, name)
	if err != nil {
		return nil, err
	}
	u := &unit{identity: k, dir: dir}
	if err := u.verify(h); err != nil {
		if u.pkg != nil {
			u.pkg.Close()
		}
		dir.Close()
		if errors.Is(err, fs.ErrNotExist) { // there is a unit, but not all of it
			err = fault.New(fault.IntegrityMismatch, "%s is not whole: %s", fault.Path(dir.Path()), err)
		}
		return nil, err
	}
	return u, nil
}

func (u *unit) verify(h *home.Home) (err error) {
	names, err := u.dir.Names()
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(u.dir.Path()))
	}
	for _, name := range names {
		if name != packageName && name != receiptName && name != bindingName {
			return fault.New(fault.IntegrityMismatch, "%s is no part of a transfer; move it away", fault.Path(filepath.Join(u.dir.Path(), name)))
		}
	}
	receipt, err := readReceipt(u.dir)
	if err != nil {
		return err
	}
	if receipt.identity != u.identity {
		return fault.New(fault.IntegrityMismatch, "%s: its receipt is another transfer's", fault.Path(u.dir.Path()))
	}
	if u.pkg, err = u.dir.Sub(packageName); err != nil {
		return packageFault(err, filepath.Join(u.dir.Path(), packageName))
	}
	read, err := tree.Verify(u.pkg, stagedRules(), receipt.pkg)
	if err != nil {
		return err
	}
	transferred, err := u.isTransferOf(read)
	if err != nil {
		return err
	}
	if !transferred {
		return fault.New(fault.IntegrityMismatch, "%s: its package is not the one that was transferred", fault.Path(u.dir.Path()))
	}
	u.digest = receipt.pkg
	if slices.Contains(names, bindingName) {
		u.binding, err = u.readBinding(h)
	}
	return err
}

func packageFault(err error, path string) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return err
	case errors.Is(err, dirfd.ErrLink):
		return fault.New(fault.LinkUnsafe, "%s is a link", fault.Path(path))
	case errors.Is(err, syscall.ENOTDIR):
		return fault.New(fault.PackageInvalid, "%s is not a directory", fault.Path(path))
	}
	return fault.Wrap(fault.IO, err, "cannot open %s", fault.Path(path))
}

// isTransferOf reports whether the identity is that of a package on disk: the
// digest of the transfer manifest that it travels with. Another host of the
// contract lists the entries in the order of the tree digest; no envelope in that
// order is taken, but a home where that host received one is opened as it is.
func (k identity) isTransferOf(read *tree.Tree) (bool, error) {
	walked := slices.Collect(read.Entries())
	sorted := slices.Clone(walked)
	slices.SortFunc(sorted, func(a, b tree.Entry) int { return cmp.Compare(a.Path, b.Path) })
	for _, entries := range [][]tree.Entry{sorted, walked} {
		canonical, err := strictjson.Canonical(newManifestForm(k.id, k.version, read.Digest(), entries))
		if err != nil || wire.DigestOf(canonical) == k.transfer {
			return err == nil, err
		}
	}
	return false, nil
}

// readBinding reads the binding that a retirement left in the unit.
func (u *unit) readBinding(h *home.Home) (*binding.Record, error) {
	path := fault.Path(filepath.Join(u.dir.Path(), bindingName))
	file, err := home.OpenPrivate(u.dir, bindingName)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, digest, err := binding.ReadForeignBinding(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	record := binding.Record{Binding: b, Digest: digest}
	if !u.isOf(h, record) {
		return nil, fault.New(fault.OwnerMismatch, "%s is not the binding of this transfer; move it away", path)
	}
	return &record, nil
}

// isOf reports whether the binding enables this unit's package.
func (u *unit) isOf(h *home.Home, record binding.Record) bool {
	return record.ExtensionID == u.id && record.ExtensionVersion == u.version &&
		record.PackageDigest == u.digest && record.SourcePath == u.source(h)
}

// findStaged finds the staged unit of a transfer of which only the digest is
// known. Errors: those of locateStaged and openUnit.
func findStaged(h *home.Home, id string, transfer wire.Digest) (*unit, error) {
	k, err := locateStaged(h, id, transfer)
	if err != nil {
		return nil, err
	}
	return openUnit(h, home.Staging, k, transfer.Hex())
}

// locateStaged finds the version under which a transfer is staged.
//
// Errors: one that is fs.ErrNotExist when there is none; integrity-mismatch when
// two versions claim it; those of home.Open; io.
func locateStaged(h *home.Home, id string, transfer wire.Digest) (identity, error) {
	versions, err := versionsOf(h, home.Staging, id)
	if err != nil {
		return identity{}, err
	}
	var found []identity
	for _, version := range versions {
		k := identity{id, version, transfer}
		dir, err := k.place(h, home.Staging)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was there when it was listed
		}
		if err != nil {
			return identity{}, err
		}
		_, err = dir.Lstat(transfer.Hex())
		dir.Close()
		if err == nil {
			found = append(found, k)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return identity{}, fault.Wrap(fault.IO, err, "cannot look for the transfer in %s", fault.Path(dir.Path()))
		}
	}
	switch len(found) {
	case 0:
		return identity{}, fs.ErrNotExist
	case 1:
		return found[0], nil
	}
	return identity{}, fault.New(fault.IntegrityMismatch, "the transfer is staged under versions %s and %s of %s; move the wrong one away", found[0].version, found[1].version, id)
}

// versionsOf lists the versions of an extension below staging or
// retired-staging; none when there is nothing of it.
func versionsOf(h *home.Home, place, id string) ([]string, error) {
	dir, err := h.Open(place, id)
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
	return slices.DeleteFunc(names, func(name string) bool { return wire.CheckVersion(name) != "" }), nil
}

// retain moves the staged unit to retired-staging, durably, and returns where it
// is then. Nothing retained is ever replaced: a name that is taken gets ".2",
// ".3" and so on.
//
// A crash leaves it at one of the two places. io.
func (k identity) retain(h *home.Home) (string, error) {
	staging, err := k.place(h, home.Staging)
	if err != nil {
		return "", err
	}
	defer staging.Close()
	var made home.Made
	defer made.Forget()
	retired, err := h.Make(&made, home.RetiredStaging, k.id, k.version)
	if err != nil {
		return "", err
	}
	defer retired.Close()
	for n := 1; ; n++ {
		name := k.transfer.Hex()
		if n > 1 {
			name = fmt.Sprintf("%s.%d", name, n)
		}
		path := filepath.Join(retired.Path(), name)
		err := staging.RenameNoReplace(k.transfer.Hex(), retired, name)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", fault.Wrap(fault.IO, err, "cannot retain the transfer in %s", fault.Path(path))
		}
		// Both directories, those made on the way, and a unit that no bind made
		// durable.
		return path, fault.Wrap(fault.IO, retired.SyncFS(), "the transfer is retained in %s, but cannot be made durable; the same command tries again", fault.Path(path))
	}
}

// staged is the package of a staged unit, open and read: what is bound of it is
// what was read.
type staged struct {
	pkg    *dirfd.Dir
	source *lifecycle.Source
}

func (s *staged) close() { s.pkg.Close() }

// stage writes the package of an envelope as a new unit. It is built beside its
// place, read back and verified, and becomes visible in one rename.
//
// Nothing is synced: the bind that follows syncs the file system before it
// publishes what depends on the unit. A crash before the rename leaves a
// temporary directory, which the next command that changes a binding clears; one
// after it a unit without a binding, which the same envelope takes up again. If a
// power cut takes a part of it, it is not whole, and is set aside.
//
// Errors: transfer-exists when there is one by now; io.
func stage(h *home.Home, e *Envelope) (*staged, error) {
	k := e.identity()
	versions, err := h.Make(nil, home.Staging, k.id, k.version)
	if err != nil {
		return nil, err
	}
	defer versions.Close()
	temp := home.TempName()
	defer versions.RemoveAll(temp) // after the rename there is nothing of that name
	s, err := build(h, versions, temp, e)
	if err != nil {
		return nil, err
	}
	err = versions.RenameNoReplace(temp, versions, k.transfer.Hex())
	if err == nil {
		return s, nil
	}
	s.close()
	if errors.Is(err, fs.ErrExist) {
		return nil, exists(k, "it was received meanwhile by another program")
	}
	return nil, stageFault(err, versions)
}

// build makes the whole unit under a temporary name. Its source is already read
// as that of the place it is going to.
func build(h *home.Home, versions *dirfd.Dir, temp string, e *Envelope) (*staged, error) {
	dir, err := versions.Mkdir(temp, 0o700)
	if err != nil {
		return nil, stageFault(err, versions)
	}
	defer dir.Close()
	if err := writeReceipt(dir, receipt{e.identity(), e.pkg}); err != nil {
		return nil, err
	}
	pkg, err := dir.Mkdir(packageName, modeExecutable)
	if err != nil {
		return nil, stageFault(err, dir)
	}
	s := &staged{pkg: pkg}
	if err = writeEntries(pkg, e.entries); err != nil {
		err = stageFault(err, dir)
	} else {
		s.source, err = lifecycle.ReadSource(pkg, e.identity().source(h), e.pkg)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func stageFault(err error, dir *dirfd.Dir) error {
	return fault.Wrap(fault.IO, err, "cannot stage the transfer in %s", fault.Path(dir.Path()))
}

// writeEntries writes the entries of an envelope below root: a directory comes
// before what is in it.
func writeEntries(root *dirfd.Dir, entries []entry) error {
	dirs := map[string]*dirfd.Dir{".": root}
	defer func() {
		delete(dirs, ".")
		for _, dir := range dirs {
			dir.Close()
		}
	}()
	for _, e := range entries {
		parent, name := dirs[filepath.Dir(e.Path)], filepath.Base(e.Path)
		if e.Dir {
			dir, err := parent.Mkdir(name, modeExecutable)
			if err != nil {
				return err
			}
			dirs[e.Path] = dir
		} else if err := writeFile(parent, name, e); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(dir *dirfd.Dir, name string, e entry) error {
	file, err := dir.CreateRaw(name, mode(e.Entry))
	if err != nil {
		return err
	}
	_, err = file.Write(e.content)
	return errors.Join(err, file.Close()) // some file systems report a full disk only here
}
