package lifecycle

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"hawser/binding"
	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
	"hawser/invoke"
)

// Expected is the identity that the caller of an operation has on record. Every
// part must be the enabled binding's.
type Expected struct {
	Adapter string
	home.Owner
}

// pick finds the adapter's binding and compares identities.
//
// Errors: adapter-unbound, owner-mismatch.
func (e Expected) pick(reg *binding.Registry) (binding.Record, error) {
	record, err := reg.ByAdapter(e.Adapter)
	if err != nil {
		return record, err
	}
	is := OwnerOf(record)
	if is != e.Owner {
		return record, fault.New(fault.OwnerMismatch, "the adapter %s is bound to %s@%s, package %s, binding %s; that is not the expected identity",
			e.Adapter, is.ExtensionID, is.ExtensionVersion, is.PackageDigest, is.BindingDigest)
	}
	return record, nil
}

// OwnerOf is the identity of a binding as registrations and captured results
// record it.
func OwnerOf(record binding.Record) home.Owner {
	return home.Owner{
		ExtensionID:       record.ExtensionID,
		ExtensionVersion:  record.ExtensionVersion,
		CapabilityVersion: int(record.CapabilityVersion),
		PackageDigest:     record.PackageDigest,
		BindingDigest:     record.Digest,
	}
}

// Poll asks the adapter's package for one event of a source (seed:
// process-event-adapter/1). requestID is the package's idempotence key; ""
// makes a random one. No lock is held while it waits.
//
// Errors: usage, adapter-unbound, owner-mismatch, those of the package's
// validation and of an invocation; lock-unavailable; io.
func (h *Host) Poll(ctx context.Context, e Expected, sourceID, configRef string, requestID wire.Digest) (invoke.PollResult, error) {
	if must := wire.CheckSourceID(sourceID); must != "" {
		return invoke.PollResult{}, fault.New(fault.Usage, "source id %s: must be %s", fault.Path(sourceID), must)
	}
	if must := wire.CheckConfigRef(configRef); must != "" {
		return invoke.PollResult{}, fault.New(fault.Usage, "configuration reference %s: must be %s", fault.Path(configRef), must)
	}
	var result invoke.PollResult
	purpose := invoke.Purpose{Operation: invoke.Poll, RequestID: requestID, SourceID: sourceID}
	_, err := h.use(ctx, "process-event "+e.Adapter+" "+invoke.Poll, purpose, e.pick, func(s *session) (err error) {
		result, err = s.Poll(ctx, e.Adapter, sourceID, configRef)
		return err
	})
	return result, err
}

// Classify asks the adapter's package for the word of the captured result in
// the file path, which is directly in this home's inbox.
//
// Errors: those of readResult and as for Poll.
func (h *Host) Classify(ctx context.Context, e Expected, path string) (string, error) {
	captured, err := h.readResult(e, path)
	if err != nil {
		return "", err
	}
	var word string
	err = h.ask(ctx, e, invoke.Classify, captured, func(s *session) (err error) {
		word, err = s.Classify(ctx, e.Adapter, captured)
		return err
	})
	return word, err
}

// Verdict asks whether the captured result is terminal or silent: operation is
// invoke.Terminal or invoke.Silent. It changes nothing: only a live runner acts
// on a verdict.
//
// Errors: those of readResult and as for Poll. Whatever the error, it is a no.
func (h *Host) Verdict(ctx context.Context, e Expected, operation, path string) (bool, error) {
	captured, err := h.readResult(e, path)
	if err != nil {
		return false, err
	}
	return h.VerdictOn(ctx, e, operation, captured)
}

// VerdictOn is Verdict for a result that the caller holds.
func (h *Host) VerdictOn(ctx context.Context, e Expected, operation string, captured invoke.Captured) (bool, error) {
	var yes bool
	err := h.ask(ctx, e, operation, captured, func(s *session) (err error) {
		yes, err = s.Verdict(ctx, operation, e.Adapter, captured)
		return err
	})
	return yes && err == nil, err
}

func (h *Host) ask(ctx context.Context, e Expected, operation string, captured invoke.Captured, question func(*session) error) error {
	purpose := invoke.Purpose{
		Operation: operation,
		RequestID: wire.ResultRequestID(operation, e.Adapter, captured.SourceID, captured.Sequence, e.PackageDigest, wire.DigestOf([]byte(captured.Content))),
		SourceID:  captured.SourceID,
	}
	_, err := h.use(ctx, "process-event "+e.Adapter+" "+operation, purpose, e.pick, question)
	return err
}

// maxContent is the largest content that a request can carry.
const maxContent = 65_536

// readResult reads a captured result that may be sent to the expected package:
// a private file of this home's inbox, named as one, UTF-8, and, where the
// capture has an owner on record, of exactly that owner. Evidence that a host
// made is never sent to a package (home: Captured result).
//
// Errors: path-unsafe for a file elsewhere; source-missing; result-invalid;
// owner-mismatch; request-oversized; link-unsafe, mode-unsafe, io.
func (h *Host) readResult(e Expected, path string) (invoke.Captured, error) {
	name := filepath.Base(path)
	inbox, err := h.Home.Open(home.Inbox)
	if errors.Is(err, fs.ErrNotExist) {
		return invoke.Captured{}, fault.New(fault.SourceMissing, "no captured result %s: this home has no inbox", fault.Path(path))
	}
	if err != nil {
		return invoke.Captured{}, err
	}
	defer inbox.Close()
	// The name alone is used, below the inbox that was opened here; the rest of
	// the path only has to mean it, if through a link.
	if !isDir(filepath.Dir(path), inbox) {
		return invoke.Captured{}, fault.New(fault.PathUnsafe, "result file %s is not directly in this home's inbox %s", fault.Path(path), fault.Path(inbox.Path()))
	}
	result, suffix, ok := home.ParseResultName(name)
	if !ok || suffix != "result" {
		return invoke.Captured{}, fault.New(fault.ResultInvalid, "result file %s is not named <source>.<n>.result", fault.Path(path))
	}
	if err := checkCapturedOwner(inbox, result, e); err != nil {
		return invoke.Captured{}, err
	}
	data, err := home.ReadPrivate(inbox, name, maxContent)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return invoke.Captured{}, fault.New(fault.SourceMissing, "no captured result %s", fault.Path(path))
	case err != nil:
		return invoke.Captured{}, err
	case len(data) > maxContent:
		return invoke.Captured{}, fault.New(fault.RequestOversized, "captured result %s has more than %d bytes, which no request can carry", fault.Path(path), maxContent)
	case !utf8.Valid(data):
		return invoke.Captured{}, fault.New(fault.ResultInvalid, "captured result %s is not UTF-8, so no request can carry it", fault.Path(path))
	case IsEvidence(data):
		return invoke.Captured{}, fault.New(fault.ResultInvalid, "captured result %s is the host's own evidence of a failure; it is not sent to the package", fault.Path(path))
	}
	return invoke.Captured{SourceID: result.Source, Sequence: result.Sequence, Content: string(data)}, nil
}

func isDir(path string, dir *dirfd.Dir) bool {
	there, err := os.Stat(path)
	if err != nil {
		return false
	}
	here, err := dir.File()
	if err != nil {
		return false
	}
	defer here.Close()
	info, err := here.Stat()
	return err == nil && os.SameFile(there, info)
}

// checkCapturedOwner compares the side files that a capture has with what the
// caller expects.
func checkCapturedOwner(inbox *dirfd.Dir, result home.ResultName, e Expected) error {
	owner, err := home.ReadOwner(inbox, result)
	if err == nil && *owner != e.Owner {
		return fault.New(fault.OwnerMismatch, "captured result %s belongs to %s@%s, binding %s; that is not the expected identity",
			result, owner.ExtensionID, owner.ExtensionVersion, owner.BindingDigest)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	adapter, err := home.ReadPrivate(inbox, result.String()+".adapter", 64)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if strings.TrimSuffix(string(adapter), "\n") != e.Adapter {
		return fault.New(fault.OwnerMismatch, "captured result %s is of another adapter than %s", result, e.Adapter)
	}
	return nil
}

// EvidenceSchema is the word of the host's own evidence of a failed poll.
const EvidenceSchema = "firstmate.process-event-extension-error.v1"

// Evidence is what a failed poll leaves instead of a result: nothing of the
// package's words (seed: process-event-adapter/1). id is "unknown" in it unless
// it is well formed.
func Evidence(id, operation string, code fault.Code) ([]byte, error) {
	if wire.CheckExtensionID(id) != "" {
		id = "unknown"
	}
	data, err := strictjson.Canonical(map[string]any{
		"schema": EvidenceSchema, "extension_id": id, "operation": operation, "code": string(code),
	})
	return append(data, '\n'), err
}

// IsEvidence reports whether a captured result is a host's evidence.
func IsEvidence(data []byte) bool {
	doc := strictjson.Doc{Name: "evidence", Limit: maxContent}
	v, err := doc.Decode(data)
	if err != nil {
		return false
	}
	v.Members("schema", "extension_id", "operation", "code")
	v.Get("schema").Const(EvidenceSchema)
	return v.Err() == nil
}
