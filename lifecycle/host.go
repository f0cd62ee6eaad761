package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"time"

	"hawser/binding"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/invoke"
)

// Host runs the transactions of one home. Its methods may be called by several
// goroutines and processes at once.
type Host struct {
	Home *home.Home

	// LockTimeout is how long to wait for a lock; DefaultLockTimeout when 0.
	LockTimeout time.Duration
	// Waiting, if set, is told after a second whom a command waits for.
	Waiting func(line string)
}

func (h *Host) lockTimeout() time.Duration {
	if h.LockTimeout > 0 {
		return h.LockTimeout
	}
	return DefaultLockTimeout
}

// checkPlaces opens every directory of the home that exists and depends on
// nothing but the layout, so that what is unsafe is refused before a write.
//
// Errors: those of home.Open.
func (h *Host) checkPlaces() error {
	for _, place := range []string{home.Bindings, home.Packages, home.Staging, home.RetiredBindings, home.RetiredStaging,
		home.ExtensionState, home.Invocations, home.Procevent, home.Inbox} {
		if _, err := h.has(place); err != nil {
			return err
		}
	}
	return nil
}

// checkExtension is checkPlaces for the directories of one extension. What is
// unsafe there is in nobody else's way.
func (h *Host) checkExtension(id string) error {
	for _, place := range []string{home.RetiredBindings, home.ExtensionState} {
		if _, err := h.has(place, id); err != nil {
			return err
		}
	}
	for _, place := range []string{home.Packages, home.Staging, home.RetiredStaging} {
		if err := h.checkVersions(place, id); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) checkVersions(place, id string) error {
	dir, err := h.Home.Open(place, id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(dir.Path()))
	}
	for _, name := range names {
		if wire.CheckVersion(name) != "" {
			continue
		}
		if _, err := h.has(place, id, name); err != nil {
			return err
		}
	}
	return nil
}

// has reports whether a place of the home is there, safe as it has to be: a command
// that finds nothing to do creates nothing for its lock.
//
// Errors: those of home.Open.
func (h *Host) has(place string, names ...string) (bool, error) {
	dir, err := h.Home.Open(place, names...)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, dir.Close()
}

// registry reads the enabled bindings. A file that vanishes between the listing
// and its opening was retired: the whole is read again.
//
// Errors: those of binding.ReadRegistry, home.Open and home.OpenPrivate.
func (h *Host) registry() (*binding.Registry, error) {
	for {
		reg, err := h.readRegistry()
		if !errors.Is(err, errVanished) {
			return reg, err
		}
	}
}

var errVanished = errors.New("vanished while it was read")

func (h *Host) readRegistry() (*binding.Registry, error) {
	dir, err := h.Home.Open(home.Bindings)
	if errors.Is(err, fs.ErrNotExist) {
		return &binding.Registry{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(dir.Path()))
	}
	return binding.ReadRegistry(dir.Path(), names, func(name string) (io.ReadCloser, error) {
		file, err := home.OpenPrivate(dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errVanished
		}
		return file, err
	})
}

// installed verifies the package of one binding; the other bindings' are not
// looked at. The caller holds the lifecycle lock, except for a second look.
func (h *Host) installed(record binding.Record) (*binding.Installed, error) {
	versions, err := h.Home.Open(home.Packages, record.ExtensionID, record.ExtensionVersion)
	if errors.Is(err, fs.ErrNotExist) {
		gone := fault.New(fault.PackageMissing, "the installed package %s is gone", fault.Path(record.PackageRoot))
		return nil, &damage{gone, repairing(record)}
	}
	if err != nil {
		return nil, err
	}
	defer versions.Close()
	pkg, err := binding.Verify(versions, record)
	if err != nil && h.keeps(record) && !couldNotLook(err) {
		return nil, &damage{err, repairing(record)}
	}
	return pkg, err
}

// keeps reports whether the binding's package is where this home installs it: a
// home that was moved, or copied, has bindings that point to where it was.
func (h *Host) keeps(record binding.Record) bool {
	return record.PackageRoot == h.Home.Join(home.Packages, record.ExtensionID, record.ExtensionVersion, record.PackageDigest.Hex())
}

// couldNotLook tells a failure of the moment, which says nothing of the package,
// from a disk that cannot give it back and from modes that hide it.
func couldNotLook(err error) bool {
	return fault.Is(err, fault.IO) && !errors.Is(err, syscall.EIO) && !errors.Is(err, fs.ErrPermission)
}

// damage is the refusal of an installed package that is not as it was installed:
// installing it again mends it.
type damage struct {
	error
	wayOut string
}

func (d *damage) Unwrap() error { return d.error }

func (d *damage) Error() string { return fmt.Sprintf("%v; %s", d.error, d.wayOut) }

// repairing is the way out as long as the binding is enabled.
func repairing(record binding.Record) string {
	return "to reinstall it: fm-extension repair " + record.ExtensionID
}

func isDamage(err error) bool {
	_, ok := errors.AsType[*damage](err)
	return ok
}

// isGone reports whether the damage is that nothing is installed at all.
func isGone(err error) bool { return isDamage(err) && fault.Is(err, fault.PackageMissing) }

// otherwise gives damage another way out.
func otherwise(err error, format string, args ...any) error {
	if d, ok := errors.AsType[*damage](err); ok {
		return &damage{d.error, fmt.Sprintf(format, args...)}
	}
	return err
}

// begin verifies a binding's package and reserves an operation on it. The
// caller holds the lifecycle lock and closes both results.
func (h *Host) begin(record binding.Record, purpose invoke.Purpose) (*session, error) {
	pkg, err := h.installed(record)
	if err != nil {
		return nil, err
	}
	op, err := invoke.Reserve(h.Home, pkg, purpose)
	if err != nil {
		pkg.Close()
		return nil, err
	}
	return &session{op, pkg}, nil
}

// session is an operation and the package that it is of.
type session struct {
	*invoke.Operation
	pkg *binding.Installed
}

// end closes both and returns what kept the record from being removed.
func (s *session) end() error {
	defer s.pkg.Close()
	return s.Close()
}

// handshake begins an operation, does the handshake, and ends it.
func (h *Host) handshake(ctx context.Context, pkg *binding.Installed) error {
	op, err := invoke.Reserve(h.Home, pkg, invoke.Purpose{})
	if err != nil {
		return err
	}
	err = op.Handshake(ctx)
	return errors.Join(err, op.Close())
}
