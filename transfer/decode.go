package transfer

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"math"
	"path"

	"hawser/binding"
	"hawser/internal/fault"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
	"hawser/tree"
)

var envelopeDoc = strictjson.Doc{
	Name:  "transfer envelope",
	Limit: MaxEnvelopeBytes,
}

// Read reads an envelope from r to its end, but never more than one byte over
// its limit. Errors: io, and those of Decode.
func Read(r io.Reader) (*Envelope, error) {
	data := make([]byte, MaxEnvelopeBytes+1)
	n, err := io.ReadFull(r, data)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, fault.Wrap(fault.IO, err, "%s: cannot be read", envelopeDoc.Name)
	}
	return Decode(data[:n])
}

// Decode reads an envelope strictly and whole (home: Transfer envelope). The
// refusals name the document's members and never quote them.
//
// Errors: json-oversized, json-invalid (also for a form that is not canonical),
// schema-invalid; package-oversized beyond the limits of a transfer;
// path-unsafe for a path whose parent is no directory of the package, and for
// two that are the same or could be taken for the same; integrity-mismatch for
// a size, count or digest that is not that of the content, and an identity that
// is not the package's own; those of the package's manifest and entrypoint, as
// for Pack.
func Decode(data []byte) (*Envelope, error) {
	v, err := envelopeDoc.Decode(data)
	if err != nil {
		return nil, err
	}
	if commas(data) > maxCommas {
		return nil, tooMany(envelopeDoc.Name)
	}
	said, payloads := parse(v)
	if v.Err() != nil {
		return nil, v.Err()
	}
	entries := newEntries(said.Entries)
	if err := checkStructure(entries); err != nil {
		return nil, err
	}
	if err := fill(entries, said.Entries, payloads); err != nil {
		return nil, err
	}
	e, err := newEnvelope(entries, binding.ParseForeignManifest)
	if err != nil {
		return nil, err
	}
	if err := e.checkSaid(said, wire.Digest(v.Get("manifest_sha256").String(nil))); err != nil {
		return nil, err
	}
	// There is one document that says all this.
	if !e.isDocument(bytes.TrimSuffix(data, []byte("\n")), payloads) {
		return nil, fault.New(fault.JSONInvalid, "%s: not in its canonical form (RFC 8785)", envelopeDoc.Name)
	}
	return e, nil
}

// maxCommas bounds the memory that a hostile document costs: splitting hundreds
// of thousands of elements would take a hundred times their bytes. An envelope at
// its limits has fewer than two thousand.
const maxCommas = 16_384

// commas counts the commas of a JSON document outside strings.
func commas(data []byte) int {
	n := 0
	for {
		text, rest, found := bytes.Cut(data, []byte{'"'})
		n += bytes.Count(text, []byte{','})
		if !found {
			return n
		}
		data = afterString(rest)
	}
}

// afterString returns what follows the string that data begins with.
func afterString(data []byte) []byte {
	for {
		text, rest, _ := bytes.Cut(data, []byte{'"'})
		data = rest
		if escapes := len(text) - len(bytes.TrimRight(text, `\`)); escapes%2 == 0 {
			return data
		}
	}
}

// parse reads the document by its schema alone.
func parse(v *strictjson.Value) (manifestForm, [][]byte) {
	v.Members("schema", "manifest", "manifest_sha256", "payloads")
	v.Get("schema").Const(envelopeSchema)
	v.Get("manifest_sha256").String(wire.CheckDigest)

	m := v.Get("manifest")
	m.Members("schema", "extension_id", "extension_version", "package_digest", "entry_count", "total_bytes", "entries")
	m.Get("schema").Const(manifestSchema)
	form := manifestForm{
		Schema:           manifestSchema,
		ExtensionID:      m.Get("extension_id").String(wire.CheckExtensionID),
		ExtensionVersion: m.Get("extension_version").String(wire.CheckVersion),
		PackageDigest:    wire.Digest(m.Get("package_digest").String(wire.CheckDigest)),
		EntryCount:       int(m.Get("entry_count").Int(0, strictjson.MaxInt)),
		TotalBytes:       m.Get("total_bytes").Int(0, strictjson.MaxInt),
	}
	for _, entry := range m.Get("entries").Array(0, math.MaxInt) {
		form.Entries = append(form.Entries, parseEntry(entry))
	}
	payloads := v.Get("payloads")
	elements := payloads.Array(0, math.MaxInt)
	if len(elements) != len(form.Entries) {
		payloads.Fail("must have an element for each of manifest.entries")
		return form, nil
	}
	texts := make([][]byte, len(elements))
	for i, payload := range elements {
		texts[i] = parsePayload(payload, form.Entries[i].Type == typeDirectory)
	}
	return form, texts
}

func parseEntry(v *strictjson.Value) entryForm {
	v.Members("path", "type", "mode", "size", "sha256")
	e := entryForm{
		Path: v.Get("path").String(wire.CheckEnvelopePath),
		Type: v.Get("type").String(checkType),
		Mode: uint32(v.Get("mode").Int(0, 0o777)),
		Size: v.Get("size").Int(0, strictjson.MaxInt),
	}
	if e.Type == typeDirectory {
		if e.Mode != modeExecutable {
			v.Get("mode").Fail("must be %d for a directory", modeExecutable)
		}
		if e.Size != 0 {
			v.Get("size").Fail("must be 0 for a directory")
		}
		if !v.Get("sha256").IsNull() {
			v.Get("sha256").Fail("must be null for a directory")
		}
		return e
	}
	if e.Mode != modeExecutable && e.Mode != modePlain {
		v.Get("mode").Fail("must be %d or %d for a file", modeExecutable, modePlain)
	}
	digest := wire.Digest(v.Get("sha256").String(wire.CheckDigest))
	e.SHA256 = &digest
	return e
}

func checkType(s string) string {
	if s != typeDirectory && s != typeFile {
		return `"directory" or "file"`
	}
	return ""
}

// parsePayload returns the text of a file's payload.
func parsePayload(v *strictjson.Value, dir bool) []byte {
	if dir {
		if !v.IsNull() {
			v.Fail("must be null for a directory")
		}
		return nil
	}
	return v.Text()
}

// newEntries makes the entries as the document says they are, without content.
func newEntries(said []entryForm) []entry {
	entries := make([]entry, len(said))
	for i, s := range said {
		entries[i] = entry{Entry: tree.Entry{Path: s.Path, Dir: s.Type == typeDirectory, Executable: s.Mode == modeExecutable, Size: s.Size}}
	}
	return entries
}

// checkStructure is everything that can be refused before a payload is decoded.
func checkStructure(entries []entry) error {
	if err := checkSizes(entries, entryName); err != nil {
		return err
	}
	if err := checkPaths(entries, entryName); err != nil {
		return err
	}
	return checkOrder(entries)
}

// checkOrder checks that every entry comes after the one before it, in the byte
// order of their paths, and after the directory that it is in.
func checkOrder(entries []entry) error {
	dirs := map[string]bool{".": true}
	for i, e := range entries {
		if i > 0 && e.Path < entries[i-1].Path {
			return fault.New(fault.SchemaInvalid, "%s: not in the byte order of the paths", entryName(i))
		}
		if !dirs[path.Dir(e.Path)] {
			return fault.New(fault.PathUnsafe, "%s: the path that it is below is no directory of the package", entryName(i))
		}
		if e.Dir {
			dirs[e.Path] = true
		}
	}
	return nil
}

// fill gives the files their content.
func fill(entries []entry, said []entryForm, payloads [][]byte) (err error) {
	for i := range entries {
		e := &entries[i]
		if e.Dir {
			continue
		}
		if e.content, err = decodePayload(payloads[i], i); err != nil {
			return err
		}
		e.Digest = wire.DigestOf(e.content)
		if int64(len(e.content)) != e.Size {
			return fault.New(fault.IntegrityMismatch, "%s: its payload has another size", entryName(i))
		}
		if e.Digest != *said[i].SHA256 {
			return fault.New(fault.IntegrityMismatch, "%s: its payload has another digest", entryName(i))
		}
	}
	return nil
}

// decodePayload takes the one encoding that a content has. The decoder's strict
// mode refuses set padding bits, but skips line ends: the length tells.
func decodePayload(text []byte, i int) ([]byte, error) {
	content, err := base64.StdEncoding.Strict().AppendDecode(nil, text)
	if err != nil || len(text) != base64.StdEncoding.EncodedLen(len(content)) {
		return nil, fault.New(fault.SchemaInvalid, "%s: payloads[%d]: must be padded standard base64 in its canonical form", envelopeDoc.Name, i)
	}
	return content, nil
}

// checkSaid holds what the document says of the package against the package.
func (e *Envelope) checkSaid(said manifestForm, digest wire.Digest) error {
	is := e.transferManifest()
	what := ""
	switch {
	case said.EntryCount != is.EntryCount:
		what = "manifest.entry_count is not the number of entries"
	case said.TotalBytes != is.TotalBytes:
		what = "manifest.total_bytes is not the size of the content"
	case said.PackageDigest != is.PackageDigest:
		what = "manifest.package_digest is not the tree digest of the entries"
	case said.ExtensionID != is.ExtensionID:
		what = "manifest.extension_id is not the one in the package's own manifest"
	case said.ExtensionVersion != is.ExtensionVersion:
		what = "manifest.extension_version is not the one in the package's own manifest"
	case digest != e.digest:
		what = "manifest_sha256 is not the digest of the manifest"
	default:
		return nil
	}
	return fault.New(fault.IntegrityMismatch, "%s: %s", envelopeDoc.Name, what)
}

// entryName names an entry of a document without quoting it.
func entryName(i int) string {
	return fmt.Sprintf("%s: manifest.entries[%d]", envelopeDoc.Name, i)
}
