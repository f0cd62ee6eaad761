package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"hawser/binding"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
)

// CheckRetirable reports whether the binding with this digest could be retired
// now (commands: binding-retirement-preflight): nothing depends on it, and no
// operation of it is under way. Nothing is changed, except that records of dead
// hosts are settled.
//
// Errors: binding-in-use and the others of RetireBinding's third step.
func (h *Host) CheckRetirable(ctx context.Context, digest wire.Digest) error {
	for _, place := range []string{home.State, home.Data} {
		dir, err := h.Home.Open(place)
		if errors.Is(err, fs.ErrNotExist) {
			return h.checkIdle(digest) // nothing is created for the lock, which nobody can hold
		}
		if err == nil {
			dir.Close()
		}
	}
	return h.Locked(ctx, "binding-retirement-preflight", func() error { return h.checkIdle(digest) })
}

// Locked runs a function under the lifecycle lock (home: Claim, "Lock order").
//
// Errors: lock-unavailable, those of home.Open; io.
func (h *Host) Locked(ctx context.Context, command string, run func() error) error {
	l, err := h.lock(ctx, command)
	if err != nil {
		return err
	}
	defer l.release()
	return run()
}

// Enable verifies the binding that enables an adapter, with a live handshake,
// and calls publish with it, all under one hold of the lifecycle lock: no
// retirement can come between the proof and what is published on it (seed:
// Enabled binding).
//
// Errors: adapter-unbound, those of Verify, those of publish.
func (h *Host) Enable(ctx context.Context, command, adapter string, publish func(binding.Record) error) error {
	reg, err := h.registry()
	if err == nil {
		_, err = reg.ByAdapter(adapter)
	}
	if err != nil {
		return err // before anything is created for the lock
	}
	return h.Locked(ctx, command, func() error {
		reg, err := h.registry()
		if err != nil {
			return err
		}
		record, err := reg.ByAdapter(adapter)
		if err != nil {
			return err
		}
		pkg, err := h.installed(record)
		if err != nil {
			return err
		}
		defer pkg.Close()
		if err := h.handshake(ctx, pkg); err != nil {
			return err
		}
		return publish(record)
	})
}

// checkUnused refuses a retirement while a registration or an unhandled captured
// result depends on the binding (seed: Enabled binding), also one that another
// host wrote. A malformed record blocks only what it could speak of. The caller
// holds the lifecycle lock, so that no registration can appear meanwhile.
//
// Errors: binding-in-use, registration-invalid, result-invalid, those of
// home.Open and home.ReadPrivate.
func (h *Host) checkUnused(digest wire.Digest) error {
	if err := h.checkNoRegistration(digest); err != nil {
		return err
	}
	return h.checkNoResult(digest)
}

func (h *Host) checkNoRegistration(digest wire.Digest) error {
	dir, err := h.Home.Open(home.Procevent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	sources, err := home.Sources(dir)
	if err != nil {
		return err
	}
	for _, source := range sources {
		reg, err := home.ReadRegistration(dir, source)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case fault.Is(err, fault.RegistrationInvalid):
			text, readErr := home.ReadPrivate(dir, source+".source", 1<<20)
			if readErr != nil || mayDepend(text, digest) {
				return fault.Wrap(fault.RegistrationInvalid, err, "%s may depend on the binding; read it, then move it away",
					fault.Path(filepath.Join(dir.Path(), source+".source")))
			}
		case err != nil:
			return err
		case reg.Owner != nil && reg.Owner.BindingDigest == digest:
			return fault.New(fault.BindingInUse, "source %s is registered on the binding; retire it first: fm-procevent retire %s --if-owner %s",
				source, source, reg.Token)
		}
	}
	return nil
}

// mayDepend reports whether the text of a malformed registration could be one on
// the binding: not if it says legibly that it is on another, and not if it has
// nothing of an external record.
func mayDepend(text []byte, digest wire.Digest) bool {
	external, another := false, false
	for line := range bytes.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimRight(string(line), "\r\n"), "=")
		switch key {
		case "binding_digest":
			if other, ok := wire.ParseDigest(value); !ok || other == digest {
				return true
			}
			another = true
		case "owner", "extension_schema", "extension_id", "extension_version", "capability_version", "package_digest", "config_ref", "registration_token":
			external = true
		}
	}
	return external && !another
}

func (h *Host) checkNoResult(digest wire.Digest) error {
	dir, err := h.Home.Open(home.Inbox)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	results, err := home.Results(dir)
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.Handled || !r.HasExtension {
			continue
		}
		owner, err := home.ReadOwner(dir, r.ResultName)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case fault.Is(err, fault.ResultInvalid):
			return fault.Wrap(fault.ResultInvalid, err, "an unhandled captured result may depend on the binding; settle it first: fm-procevent handled %s %d", r.Source, r.Sequence)
		case err != nil:
			return err
		case owner.BindingDigest == digest:
			return fault.New(fault.BindingInUse, "captured result %d of source %s belongs to the binding and is unhandled; settle it first: fm-procevent handled %s %d",
				r.Sequence, r.Source, r.Source, r.Sequence)
		}
	}
	return nil
}
