package lifecycle

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
)

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
			if mayDepend(dir, source, digest) {
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

// mayDepend reports whether a malformed registration could be one on the
// binding: not if it says legibly that it is on another, and not if it has
// nothing of an external record.
func mayDepend(dir *dirfd.Dir, source string, digest wire.Digest) bool {
	data, err := home.ReadPrivate(dir, source+".source", 1<<20)
	if err != nil {
		return true
	}
	external := false
	for line := range bytes.Lines(data) {
		key, value, _ := strings.Cut(strings.TrimRight(string(line), "\r\n"), "=")
		switch key {
		case "binding_digest":
			if other, ok := wire.ParseDigest(value); ok {
				return other == digest
			}
			return true
		case "owner", "extension_schema", "extension_id", "extension_version", "capability_version", "package_digest", "config_ref", "registration_token":
			external = true
		}
	}
	return external
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
