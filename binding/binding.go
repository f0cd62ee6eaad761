package binding

import (
	"io"
	"math"
	"time"

	"hawser/internal/fault"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
)

// HostProtocol and CapabilityVersion are the only versions this host speaks. A
// successor comes beside them, not instead (contract: Compatibility and failure
// semantics).
const (
	HostProtocol      = 1
	CapabilityVersion = 1
)

// The limits of one invocation, in milliseconds.
const (
	MinTimeoutMS     = 100
	MaxTimeoutMS     = 3_600_000
	DefaultTimeoutMS = 300_000
)

const (
	bindingSchema = "firstmate.extension-binding.v1"
	sourceKind    = "local-directory"
	trustMember   = "trusted_same_user_code"
)

// Binding is the record of one enabled package (contract: Enabled binding;
// home: Binding file).
type Binding struct {
	ExtensionID      string
	ExtensionVersion string

	SourcePath  string // where the package came from: absolute, clean
	PackageRoot string // where it is installed: absolute, clean

	ManifestSHA256   wire.Digest
	PackageDigest    wire.Digest
	Entrypoint       string // relative to PackageRoot
	EntrypointSHA256 wire.Digest

	Terms
}

// Terms are what the operator enabled of what a package offers. [Choose] makes
// them.
type Terms struct {
	HostProtocol      int64
	CapabilityVersion int64
	AdapterNames      []string // non-empty set, in the order given
	Consents          Consents
	TimeoutMS         int64 // of one invocation
}

// Timeout is the limit of one invocation.
func (t Terms) Timeout() time.Duration { return time.Duration(t.TimeoutMS) * time.Millisecond }

var bindingDoc = strictjson.Doc{
	Name:      "extension binding",
	Open:      true,
	Limit:     65_536,
	Oversized: fault.BindingOversized,
}

// Encode returns the file of the binding, pretty JSON, and the digest over
// exactly these bytes. It writes only what [ParseBinding] reads, and fails with
// its codes otherwise (internal for a path that is not UTF-8: whoever takes a
// path from outside holds it against wire.CheckBindingPath first).
func (b *Binding) Encode() ([]byte, wire.Digest, error) {
	consents := map[string]bool{trustMember: true}
	for _, fact := range consentFacts {
		consents[fact.member()] = *b.Consents.fact(fact)
	}
	data, err := strictjson.Pretty(map[string]any{
		"schema":            bindingSchema,
		"extension_id":      b.ExtensionID,
		"extension_version": b.ExtensionVersion,
		"source":            map[string]any{"kind": sourceKind, "path": b.SourcePath},
		"package_root":      b.PackageRoot,
		"manifest_sha256":   b.ManifestSHA256,
		"package_digest":    b.PackageDigest,
		"entrypoint":        b.Entrypoint,
		"entrypoint_sha256": b.EntrypointSHA256,
		"host_protocol":     b.HostProtocol,
		"capabilities": []any{map[string]any{
			"name":          Capability,
			"version":       b.CapabilityVersion,
			"adapter_names": b.AdapterNames,
		}},
		"consents":   consents,
		"timeout_ms": b.TimeoutMS,
	})
	if err != nil {
		return nil, "", err
	}
	// What could not be read back would make the whole registry unreadable.
	_, digest, err := ParseBinding(data)
	if err != nil {
		return nil, "", err
	}
	return data, digest, nil
}

// ReadForeignBinding reads a binding from r as [ReadBinding] does, where it may be
// somebody else who wrote it: no message tells a byte of it.
func ReadForeignBinding(r io.Reader) (*Binding, wire.Digest, error) {
	return readBinding(foreign(bindingDoc), r)
}

// ReadBinding reads a binding from r, never more than its limit of 65,536 bytes
// and one. Codes: io, and those of [ParseBinding].
func ReadBinding(r io.Reader) (*Binding, wire.Digest, error) { return readBinding(bindingDoc, r) }

func readBinding(doc strictjson.Doc, r io.Reader) (*Binding, wire.Digest, error) {
	data, err := doc.Read(r)
	if err != nil {
		return nil, "", err
	}
	return parseBinding(doc, data)
}

// ParseBinding reads a binding strictly and returns it with the digest over
// exactly the bytes given, whatever JSON form they have. Codes:
// binding-oversized, json-invalid, schema-invalid, and protocol-incompatible
// for a version that this host does not speak.
func ParseBinding(data []byte) (*Binding, wire.Digest, error) { return parseBinding(bindingDoc, data) }

func parseBinding(doc strictjson.Doc, data []byte) (*Binding, wire.Digest, error) {
	v, err := doc.Decode(data)
	if err != nil {
		return nil, "", err
	}
	v.Members("schema", "extension_id", "extension_version", "source", "package_root",
		"manifest_sha256", "package_digest", "entrypoint", "entrypoint_sha256",
		"host_protocol", "capabilities", "consents", "timeout_ms")
	v.Get("schema").Const(bindingSchema)
	b := &Binding{
		ExtensionID:      v.Get("extension_id").String(wire.CheckExtensionID),
		ExtensionVersion: v.Get("extension_version").String(wire.CheckVersion),
		SourcePath:       parseSource(v.Get("source")),
		PackageRoot:      v.Get("package_root").String(wire.CheckBindingPath),
		ManifestSHA256:   parseDigest(v.Get("manifest_sha256")),
		PackageDigest:    parseDigest(v.Get("package_digest")),
		Entrypoint:       v.Get("entrypoint").String(wire.CheckEntrypoint),
		EntrypointSHA256: parseDigest(v.Get("entrypoint_sha256")),
		Terms: Terms{
			HostProtocol: v.Get("host_protocol").Int(1, strictjson.MaxInt),
			Consents:     parseConsents(v.Get("consents")),
			TimeoutMS:    v.Get("timeout_ms").Int(MinTimeoutMS, MaxTimeoutMS),
		},
	}
	for _, c := range v.Get("capabilities").Array(1, 1) {
		c.Members("name", "version", "adapter_names")
		c.Get("name").Const(Capability)
		b.CapabilityVersion = c.Get("version").Int(1, strictjson.MaxInt)
		b.AdapterNames = c.Get("adapter_names").StringSet(1, math.MaxInt, wire.CheckAdapter)
	}
	if v.Err() != nil {
		return nil, "", v.Err()
	}
	if err := b.checkVersions(); err != nil {
		return nil, "", err
	}
	return b, wire.DigestOf(data), nil
}

// checkVersions refuses what a successor of this host may have enabled: an
// unknown version is never downgraded.
func (b *Binding) checkVersions() error {
	if b.HostProtocol != HostProtocol || b.CapabilityVersion != CapabilityVersion {
		return fault.New(fault.ProtocolIncompatible,
			"extension binding: enables host protocol %d with %s/%d, and this host speaks %d with %s/%d; use the host that made it",
			b.HostProtocol, Capability, b.CapabilityVersion, HostProtocol, Capability, CapabilityVersion)
	}
	return nil
}

func parseSource(v *strictjson.Value) string {
	v.Members("kind", "path")
	v.Get("kind").Const(sourceKind)
	return v.Get("path").String(wire.CheckBindingPath)
}

func parseDigest(v *strictjson.Value) wire.Digest {
	return wire.Digest(v.String(wire.CheckDigest))
}

func parseConsents(v *strictjson.Value) Consents {
	members := []string{trustMember}
	for _, fact := range consentFacts {
		members = append(members, fact.member())
	}
	v.Members(members...)
	if trust := v.Get(trustMember); !trust.Bool() {
		trust.Fail("must be true")
	}
	var consents Consents
	for _, fact := range consentFacts {
		*consents.fact(fact) = v.Get(fact.member()).Bool()
	}
	return consents
}
