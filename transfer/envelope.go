package transfer

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"path"
	"slices"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"hawser/binding"
	"hawser/internal/fault"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
	"hawser/tree"
)

// The limits of a transfer (wire: Limits). All are what is still allowed.
const (
	MaxEntries       = 128
	MaxFileBytes     = 262_144 // of one file
	MaxBytes         = 524_288 // of all files
	MaxEnvelopeBytes = 900_000 // serialized
)

// maxPart is the longest name in a directory, on Linux and macOS.
const maxPart = 255

const (
	envelopeSchema = "firstmate.extension-package-transfer.v1"
	manifestSchema = "firstmate.extension-package-transfer-manifest.v1"

	typeDirectory = "directory"
	typeFile      = "file"

	// Modes are JSON numbers, and JSON has no octal.
	modeExecutable = 0o755 // 493; every directory
	modePlain      = 0o644 // 420
)

// Envelope is a package that was checked whole: by Decode, Read or Pack. It
// does not change, and is safe for concurrent use.
type Envelope struct {
	manifest *binding.Manifest // the package's own
	pkg      wire.Digest
	entries  []entry // in the byte order of their paths

	canonical []byte      // the transfer manifest
	digest    wire.Digest // of it
}

type entry struct {
	tree.Entry
	content []byte
}

// ID returns the extension id.
func (e *Envelope) ID() string { return e.manifest.ID }

// Version returns the extension's version.
func (e *Envelope) Version() string { return e.manifest.Version }

// Digest returns the transfer digest, the identity of this transfer.
func (e *Envelope) Digest() wire.Digest { return e.digest }

// PackageDigest returns the tree digest of the package.
func (e *Envelope) PackageDigest() wire.Digest { return e.pkg }

// Pack makes the envelope of a package directory, without a line end.
//
// Errors: package-oversized beyond the limits of a transfer; path-unsafe for a
// path that no envelope can hold, and for two that another home might take for
// the same; manifest-missing, entrypoint-missing, entrypoint-invalid and those
// of binding.ParseManifest; those of tree.Scanned.Load.
func Pack(s *tree.Scanned) ([]byte, error) {
	if s.Count() > MaxEntries {
		return nil, tooMany("the package " + fault.Path(s.Path()))
	}
	if s.Bytes() > MaxBytes {
		return nil, tooLarge("the package " + fault.Path(s.Path()))
	}
	entries, err := readEntries(s)
	if err != nil {
		return nil, err
	}
	name := func(i int) string { return fault.Path(s.Path() + "/" + entries[i].Path) }
	if err := checkSizes(entries, name); err != nil {
		return nil, err
	}
	if err := checkPaths(entries, name); err != nil {
		return nil, err
	}
	e, err := newEnvelope(entries, binding.ParseManifest) // the operator's own
	if err != nil {
		return nil, err
	}
	data := e.encode()
	if len(data) > MaxEnvelopeBytes {
		return nil, fault.New(fault.PackageOversized, "the package %s comes to more than %d bytes in transfer; shorten its paths", fault.Path(s.Path()), MaxEnvelopeBytes)
	}
	return data, nil
}

// readEntries reads a package whose size was checked.
func readEntries(s *tree.Scanned) ([]entry, error) {
	read, err := s.Load()
	if err != nil {
		return nil, err
	}
	var entries []entry
	for e := range read.Entries() {
		var content []byte
		if !e.Dir {
			if content, err = s.ReadFile(e.Path, MaxBytes); err != nil {
				return nil, err
			}
		}
		entries = append(entries, entry{e, content})
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.Path, b.Path) })
	return entries, nil
}

// newEnvelope makes an envelope of entries that have their content, keep the
// limits, are in order and come after the directories that they are in.
func newEnvelope(entries []entry, parse func([]byte) (*binding.Manifest, error)) (*Envelope, error) {
	manifest, err := readManifest(entries, parse)
	if err != nil {
		return nil, err
	}
	e := &Envelope{manifest: manifest, pkg: tree.DigestOf(described(entries)), entries: entries}
	if e.canonical, err = strictjson.Canonical(e.transferManifest()); err != nil {
		return nil, err
	}
	e.digest = wire.DigestOf(e.canonical)
	return e, nil
}

func checkSizes(entries []entry, name func(i int) string) error {
	if len(entries) > MaxEntries {
		return tooMany("the package")
	}
	var total int64
	for i, e := range entries {
		if e.Size > MaxFileBytes {
			return fault.New(fault.PackageOversized, "%s: a file of more than %d bytes cannot be transferred; bind the package on the other host itself", name(i), MaxFileBytes)
		}
		total += e.Size
	}
	if total > MaxBytes {
		return tooLarge("the package")
	}
	return nil
}

func tooMany(what string) error {
	return fault.New(fault.PackageOversized, "%s has more than %d entries and cannot be transferred; bind it on the other host itself", what, MaxEntries)
}

func tooLarge(what string) error {
	return fault.New(fault.PackageOversized, "%s has more than %d bytes of content and cannot be transferred; bind it on the other host itself", what, MaxBytes)
}

// checkPaths refuses paths that an envelope cannot hold, and two that a file
// system which ignores case or Unicode form would take for one: the second
// would be written over the first.
func checkPaths(entries []entry, name func(i int) string) error {
	fold := cases.Fold()
	seen := make(map[string]int, len(entries))
	for i, e := range entries {
		if must := wire.CheckEnvelopePath(e.Path); must != "" {
			return fault.New(fault.PathUnsafe, "%s: a path in a transfer must be %s", name(i), must)
		}
		if part := path.Base(e.Path); len(part) > maxPart { // those before it have entries of their own
			return fault.New(fault.PathUnsafe, "%s: a name of more than %d bytes is none that a file system takes", name(i), maxPart)
		}
		key := norm.NFC.String(fold.String(norm.NFD.String(e.Path)))
		if other, taken := seen[key]; taken && e.Path == entries[other].Path {
			return fault.New(fault.PathUnsafe, "%s and %s have the same path", name(other), name(i))
		} else if taken {
			return fault.New(fault.PathUnsafe, "%s and %s differ only in case or Unicode form, which some file systems do not tell apart; rename one of them", name(other), name(i))
		}
		seen[key] = i
	}
	return nil
}

// readManifest reads the package's own manifest and checks that its entrypoint
// can be one.
func readManifest(entries []entry, parse func([]byte) (*binding.Manifest, error)) (*binding.Manifest, error) {
	file, ok := find(entries, binding.ManifestName)
	if !ok || file.Dir {
		return nil, fault.New(fault.ManifestMissing, "the package has no file %s", binding.ManifestName)
	}
	manifest, err := parse(file.content)
	if err != nil {
		return nil, err
	}
	entrypoint, ok := find(entries, manifest.Entrypoint)
	switch {
	case !ok:
		return nil, fault.New(fault.EntrypointMissing, "the package does not hold the entrypoint that its %s names", binding.ManifestName)
	case entrypoint.Dir || !entrypoint.Executable:
		return nil, fault.New(fault.EntrypointInvalid, "the entrypoint that the package's %s names is not an executable file", binding.ManifestName)
	}
	return manifest, nil
}

func find(entries []entry, path string) (entry, bool) {
	i, ok := slices.BinarySearchFunc(entries, path, func(e entry, path string) int { return cmp.Compare(e.Path, path) })
	if !ok {
		return entry{}, false
	}
	return entries[i], true
}

// The transfer manifest's form.
type (
	manifestForm struct {
		Schema           string      `json:"schema"`
		ExtensionID      string      `json:"extension_id"`
		ExtensionVersion string      `json:"extension_version"`
		PackageDigest    wire.Digest `json:"package_digest"`
		EntryCount       int         `json:"entry_count"`
		TotalBytes       int64       `json:"total_bytes"`
		Entries          []entryForm `json:"entries"`
	}
	entryForm struct {
		Path   string       `json:"path"`
		Type   string       `json:"type"`
		Mode   uint32       `json:"mode"`
		Size   int64        `json:"size"`
		SHA256 *wire.Digest `json:"sha256"`
	}
)

// The canonical document is its head, a payload for each entry with commas
// between, and its tail: the members stand in their order, and base64 needs no
// escapes. It is put together here because a general encoder would go through
// the payloads four times.

func (e *Envelope) head() []byte {
	return fmt.Appendf(nil, `{"manifest":%s,"manifest_sha256":"%s","payloads":[`, e.canonical, e.digest)
}

const tail = `],"schema":"` + envelopeSchema + `"}`

// encode returns the canonical document.
func (e *Envelope) encode() []byte {
	b := append(make([]byte, 0, len(e.canonical)+MaxBytes/3*4+8*MaxEntries+512), e.head()...)
	for i, entry := range e.entries {
		if i > 0 {
			b = append(b, ',')
		}
		if entry.Dir {
			b = append(b, "null"...)
			continue
		}
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, entry.content)
		b = append(b, '"')
	}
	return append(b, tail...)
}

// isDocument reports whether data is the canonical document, given that these
// are its payloads.
func (e *Envelope) isDocument(data []byte, payloads [][]byte) bool {
	is := true
	next := func(text []byte) {
		var found bool
		data, found = bytes.CutPrefix(data, text)
		is = is && found
	}
	next(e.head())
	for i, payload := range payloads {
		if i > 0 {
			next([]byte(","))
		}
		if e.entries[i].Dir {
			next([]byte("null"))
			continue
		}
		next([]byte(`"`))
		next(payload)
		next([]byte(`"`))
	}
	next([]byte(tail))
	return is && len(data) == 0
}

func (e *Envelope) transferManifest() manifestForm {
	return newManifestForm(e.ID(), e.Version(), e.pkg, described(e.entries))
}

// described returns entries without their content.
func described(entries []entry) []tree.Entry {
	bare := make([]tree.Entry, len(entries))
	for i := range entries {
		bare[i] = entries[i].Entry
	}
	return bare
}

// newManifestForm makes the transfer manifest of entries that are in order.
func newManifestForm(id, version string, pkg wire.Digest, entries []tree.Entry) manifestForm {
	form := manifestForm{
		Schema:           manifestSchema,
		ExtensionID:      id,
		ExtensionVersion: version,
		PackageDigest:    pkg,
		EntryCount:       len(entries),
		Entries:          make([]entryForm, len(entries)),
	}
	for i, e := range entries {
		form.TotalBytes += e.Size
		form.Entries[i] = newEntryForm(e)
	}
	return form
}

func newEntryForm(e tree.Entry) entryForm {
	form := entryForm{Path: e.Path, Type: typeFile, Mode: mode(e), Size: e.Size, SHA256: &e.Digest}
	if e.Dir {
		form.Type, form.SHA256 = typeDirectory, nil
	}
	return form
}

// mode is an entry's mode, in the document and when it is staged.
func mode(e tree.Entry) uint32 {
	if e.Executable {
		return modeExecutable
	}
	return modePlain
}
