package transfer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"hawser/binding"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/lifecycle"
)

// Retired is a retired transfer, as the command prints it.
type Retired struct {
	ExtensionID    string
	TransferDigest wire.Digest
	BindingDigest  wire.Digest
	RetainedAt     string // the directory
	lifecycle.Answer
}

// Retire disables the binding of exactly this transfer and retains both as one
// unit (commands: retire-transfer; seed: Runtime independence). The steps, under
// the lifecycle lock:
//
//  1. binding, unit, package and digests, as one identity   leftovers are cleared
//  2. nothing depends on the binding                        fewer records
//  3. move the binding into the unit                        disabled
//  4. move the unit to retired-staging                      retained
//
// A crash before 3 leaves it enabled, and the same command begins again; between
// 3 and 4 the unit with its binding, from which it goes on if both are still
// that one identity; after 4 it finishes and says so. Each move is durable before
// the next step.
//
// Errors: transfer-missing, also for a binding that came from a local
// directory; binding-missing for a transfer that is staged and not bound;
// owner-mismatch when a digest is another's; integrity-mismatch and the other
// refusals of a unit that is not what it was; retirement-partial when an enabled
// binding and a retained one stand at once; binding-in-use and those of the
// installed package's validation; lock-unavailable; io.
func Retire(ctx context.Context, h *lifecycle.Host, id string, transfer, digest wire.Digest) (*Retired, error) {
	if err := checkKnown(h.Home, id, transfer); err != nil {
		return nil, err
	}
	r := &retirement{h: h.Home, id: id, transfer: transfer, digest: digest}
	var retired *Retired
	err := transact(ctx, h, "retire-transfer", id, func(t *lifecycle.Transaction) (err error) {
		r.t = t
		retired, err = r.run()
		return err
	})
	return retired, err
}

// checkKnown refuses an id that is none, and what a home without extensions
// cannot know: nothing is created for the lock.
func checkKnown(h *home.Home, id string, transfer wire.Digest) error {
	if must := wire.CheckExtensionID(id); must != "" {
		return fault.New(fault.Usage, "extension id %s: must be %s", fault.Path(id), must)
	}
	dir, err := h.Open(home.Data)
	if errors.Is(err, fs.ErrNotExist) {
		return missing(id, transfer)
	}
	if err != nil {
		return err
	}
	return dir.Close()
}

func missing(id string, transfer wire.Digest) error {
	return fault.New(fault.TransferMissing, "no transfer %s of %s is staged in this home", transfer, id)
}

type retirement struct {
	t                *lifecycle.Transaction
	h                *home.Home
	id               string
	transfer, digest wire.Digest
}

func (r *retirement) run() (*Retired, error) {
	reg, err := r.t.Registry()
	if err != nil {
		return nil, err
	}
	if record, err := reg.ByID(r.id); err == nil {
		return r.begin(record)
	}
	return r.resume()
}

// begin retires an enabled binding.
func (r *retirement) begin(record binding.Record) (*Retired, error) {
	k := identity{r.id, record.ExtensionVersion, r.transfer}
	if record.SourcePath != k.source(r.h) {
		return nil, r.refuseOther(record)
	}
	if record.Digest != r.digest {
		return nil, fault.New(fault.OwnerMismatch, "the binding of %s has the digest %s, not the given one", r.id, record.Digest)
	}
	if _, err := locateStaged(r.h, r.id, r.transfer); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	u, err := openUnit(r.h, home.Staging, k, k.transfer.Hex())
	if errors.Is(err, fs.ErrNotExist) {
		err = fault.New(fault.TransferMissing, "%s is gone", fault.Path(k.staged(r.h)))
	}
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, r.puttingBack(record))
	}
	defer u.close()
	if u.binding != nil && !r.isMoving(u, record) {
		return nil, r.partial(u)
	}
	if !u.isOf(r.h, record) {
		return nil, fault.New(fault.OwnerMismatch, "the binding of %s enables the package %s, and the transfer has %s", r.id, record.PackageDigest, u.digest)
	}
	if err := r.t.CheckRetirable(record); err != nil {
		return nil, err
	}
	if err := r.t.Disable(record, u.dir, bindingName); err != nil {
		return nil, err
	}
	return r.retain(k)
}

// isMoving reports whether both halves are one binding that was on its way when
// its command was killed: only between two file systems does a move pass through
// a copy.
func (r *retirement) isMoving(u *unit, record binding.Record) bool {
	enabled, err := r.h.Open(home.Bindings)
	if err != nil || u.binding.Digest != record.Digest {
		return false
	}
	defer enabled.Close()
	from, err := enabled.Info()
	if err != nil {
		return false
	}
	to, err := u.dir.Info()
	return err == nil && from.Dev != to.Dev
}

// refuseOther says why the enabled binding is not the one meant.
func (r *retirement) refuseOther(record binding.Record) error {
	u, err := findStaged(r.h, r.id, r.transfer)
	if err == nil {
		defer u.close()
		if u.binding != nil {
			return r.partial(u)
		}
	}
	if command, transferred := r.t.Retirement(record); !transferred {
		return fault.New(fault.TransferMissing, "%s was bound from a directory of this host, not from a transfer; retire it so: %s", r.id, command)
	}
	return fault.New(fault.OwnerMismatch, "%s was bound from another transfer, in %s", r.id, fault.Path(filepath.Dir(record.SourcePath)))
}

// puttingBack is the way out of a unit that is damaged or gone while its binding is
// enabled.
func (r *retirement) puttingBack(record binding.Record) string {
	way := "to put back what was transferred, receive the same envelope again: that is refused with transfer-exists, and this command then works"
	if r.t.IsDamaged(record) {
		way += fmt.Sprintf("; if it is nowhere any more, the installed package being damaged too: fm-extension retire-binding %s --if-binding-digest %s --package-damaged", r.id, record.Digest)
	}
	return way
}

// partial refuses both halves at once: an enabled binding of the extension, and
// one that a retirement moved into its unit.
func (r *retirement) partial(u *unit) error {
	return fault.New(fault.RetirementPartial,
		"%s is enabled, and %s holds a retired binding of it; retire what is enabled first, or move that file away if it is the same binding, then repeat this command",
		r.id, fault.Path(filepath.Join(u.dir.Path(), bindingName)))
}

// resume goes on where a retirement was interrupted.
func (r *retirement) resume() (*Retired, error) {
	k, err := locateStaged(r.h, r.id, r.transfer)
	if errors.Is(err, fs.ErrNotExist) {
		return r.finish()
	}
	if err != nil {
		return nil, err
	}
	u, err := openUnit(r.h, home.Staging, k, k.transfer.Hex())
	if err != nil {
		return nil, fmt.Errorf("%w; no binding of %s is enabled; to put back what was transferred, receive the same envelope again, which binds it, and then repeat this command", err, r.id)
	}
	defer u.close()
	if u.binding == nil {
		return nil, fault.New(fault.BindingMissing, "%s is staged and not bound; receive the same envelope again to bind it", fault.Path(u.dir.Path()))
	}
	if u.binding.Digest != r.digest {
		return nil, fault.New(fault.OwnerMismatch, "the retired binding in %s has the digest %s, not the given one", fault.Path(u.dir.Path()), u.binding.Digest)
	}
	return r.retain(u.identity)
}

// retain makes the second move. Whatever keeps it, the first is made.
func (r *retirement) retain(k identity) (*Retired, error) {
	answer, err := r.t.Retired(r.id, r.digest)
	path := ""
	if err == nil {
		path, err = k.retain(r.h)
	}
	if err != nil && path == "" {
		return nil, fmt.Errorf("%w; the binding is disabled already, and the same command goes on", err)
	}
	if err != nil {
		return nil, err
	}
	return &Retired{r.id, r.transfer, r.digest, path, answer}, nil
}

// finish answers for a retirement that was killed after its second move, and is
// transfer-missing for any other.
func (r *retirement) finish() (*Retired, error) {
	if !r.t.WasRetired(r.id, r.digest) {
		return nil, missing(r.id, r.transfer)
	}
	u, err := findRetained(r.h, r.id, r.transfer, r.digest)
	if err != nil {
		return nil, err
	}
	defer u.close()
	answer, err := r.t.Retired(r.id, r.digest)
	if err != nil {
		return nil, err
	}
	if err := u.dir.SyncFS(); err != nil {
		return nil, fault.Wrap(fault.IO, err, "%s cannot be made durable; the same command tries again", fault.Path(u.dir.Path()))
	}
	return &Retired{r.id, r.transfer, r.digest, u.dir.Path(), answer}, nil
}

// RetireDamaged retires a binding whose installed package is damaged (commands:
// retire-binding, --package-damaged). One that came by a transfer is retired
// without it when its unit is damaged or gone as well: nothing is left then that it
// could be repaired from or be one identity with. What there is of the unit is set
// aside first, as a retired one is. A crash after that leaves the binding enabled
// without a unit, and the same command goes on.
//
// Errors: retirement-incomplete when the unit is whole; those of
// lifecycle.Host.RetireDamaged.
func RetireDamaged(ctx context.Context, h *lifecycle.Host, id string, digest wire.Digest) (*lifecycle.Retired, error) {
	retired, err := h.RetireDamaged(ctx, id, digest, func(record binding.Record) error { return abandon(h.Home, record) })
	return retired, vanished(err)
}

// abandon sets the unit of a binding aside, if there is one and it is not whole.
func abandon(h *home.Home, record binding.Record) error {
	k := identity{record.ExtensionID, record.ExtensionVersion, wire.Digest("sha256:" + filepath.Base(filepath.Dir(record.SourcePath)))}
	if wire.CheckDigest(string(k.transfer)) != "" || record.SourcePath != k.source(h) {
		return nil // no unit is where it says
	}
	u, err := openUnit(h, home.Staging, k, k.transfer.Hex())
	switch {
	case err == nil:
		defer u.close()
		if !u.isOf(h, record) {
			return nil
		}
		return fault.New(fault.RetirementIncomplete, "%s was bound from a transfer, and what was transferred is whole; reinstall it: fm-extension repair %[1]s; then retire it with its transfer: %s", k.id, k.retirement(record.Digest))
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case fault.Is(err, fault.IO):
		return err
	}
	_, err = k.retain(h)
	return err
}
