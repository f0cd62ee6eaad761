package binding

import (
	"io"
	"math"

	"hawser/internal/fault"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
)

// ManifestName is the name of the manifest at a package's root.
const ManifestName = "firstmate-extension.json"

// Capability is the name of the one capability there is.
const Capability = "process-event-adapter"

// Manifest is what a package says of itself (contract: Package manifest).
type Manifest struct {
	ID            string
	Version       string
	HostProtocols []int64 // non-empty set of positive integers
	Entrypoint    string  // relative to the package root, in form only

	// Of the one capability, process-event-adapter.
	CapabilityVersions []int64  // non-empty set of positive integers
	AdapterNames       []string // non-empty set

	RequiredConsents []Consent // set, may be empty
}

var manifestDoc = strictjson.Doc{
	Name:      "extension manifest",
	Open:      true,
	Limit:     65_536,
	Oversized: fault.ManifestOversized,
}

// ReadManifest reads a manifest and the digest of its bytes from r, never more
// than its limit of 65,536 bytes and one. Codes: io, and those of
// [ParseManifest].
func ReadManifest(r io.Reader) (*Manifest, wire.Digest, error) {
	data, err := manifestDoc.Read(r)
	if err != nil {
		return nil, "", err
	}
	m, err := ParseManifest(data)
	if err != nil {
		return nil, "", err
	}
	return m, wire.DigestOf(data), nil
}

// ParseManifest reads a manifest strictly. Whether this host can serve what it
// offers is for [Choose] to say. Codes: manifest-oversized, json-invalid,
// schema-invalid.
func ParseManifest(data []byte) (*Manifest, error) { return parseManifest(manifestDoc, data) }

// ParseForeignManifest is [ParseManifest] for one that somebody else wrote: no
// message tells a byte of it.
func ParseForeignManifest(data []byte) (*Manifest, error) {
	return parseManifest(foreign(manifestDoc), data)
}

// foreign closes a document that is open for the operator who wrote it.
func foreign(doc strictjson.Doc) strictjson.Doc {
	doc.Open = false
	return doc
}

func parseManifest(doc strictjson.Doc, data []byte) (*Manifest, error) {
	v, err := doc.Decode(data)
	if err != nil {
		return nil, err
	}
	v.Members("schema", "id", "version", "host_protocols", "entrypoint", "capabilities", "required_consents")
	v.Get("schema").Const("firstmate.extension-manifest.v1")
	m := &Manifest{
		ID:            v.Get("id").String(wire.CheckExtensionID),
		Version:       v.Get("version").String(wire.CheckVersion),
		HostProtocols: v.Get("host_protocols").IntSet(1, strictjson.MaxInt),
		Entrypoint:    v.Get("entrypoint").String(wire.CheckEntrypoint),
	}
	for _, c := range v.Get("capabilities").Array(1, 1) {
		c.Members("name", "versions", "adapter_names")
		c.Get("name").Const(Capability)
		m.CapabilityVersions = c.Get("versions").IntSet(1, strictjson.MaxInt)
		m.AdapterNames = c.Get("adapter_names").StringSet(1, math.MaxInt, wire.CheckAdapter)
	}
	for _, fact := range v.Get("required_consents").StringSet(0, len(consentFacts), checkConsent) {
		m.RequiredConsents = append(m.RequiredConsents, Consent(fact))
	}
	if v.Err() != nil {
		return nil, v.Err()
	}
	return m, nil
}
