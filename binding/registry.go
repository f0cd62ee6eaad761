package binding

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"hawser/internal/fault"
	"hawser/internal/wire"
)

// MaxBindings is how many bindings a registry may hold.
const MaxBindings = 128

// FileName is the name of a binding's file in the registry's directory.
func FileName(extensionID string) string { return extensionID + ".json" }

// Registry is the set of a home's enabled bindings, with no extension and no
// adapter in it twice. The zero value is that of a home without bindings.
type Registry struct {
	records []Record          // ordered by extension id
	owners  map[string]string // adapter name to extension id
}

// Record is one binding of a registry.
type Record struct {
	*Binding
	Digest wire.Digest // over the bytes of its file
}

// ReadRegistry reads a registry from the names in its directory, dir (which is
// for messages), and open, which is called with names of the right form only,
// and in their order. It refuses the registry as a whole for anything wrong in
// it (contract: Enabled binding). Codes: registry-oversized for more than 128
// names; registry-invalid for a file that is no binding's, one with another
// binding's name, and an adapter that two bindings enable; the errors of open,
// which tell the path themselves; those of [ReadBinding].
func ReadRegistry(dir string, names []string, open func(name string) (io.ReadCloser, error)) (*Registry, error) {
	if len(names) > MaxBindings {
		return nil, fault.New(fault.RegistryOversized, "%s: more than %d files; move some bindings out of it", fault.Path(dir), MaxBindings)
	}
	names = slices.Sorted(slices.Values(names))
	for _, name := range names {
		if id, ok := strings.CutSuffix(name, ".json"); !ok || wire.CheckExtensionID(id) != "" {
			return nil, fault.New(fault.RegistryInvalid, "%s: not a binding file; nothing else may be in this directory: move it away",
				fault.Path(filepath.Join(dir, name)))
		}
	}
	r := &Registry{owners: map[string]string{}}
	for _, name := range names {
		path := fault.Path(filepath.Join(dir, name))
		record, err := readRecord(path, name, open)
		if err != nil {
			return nil, err
		}
		// With names that differ this is also what refuses an id bound twice.
		if own := FileName(record.ExtensionID); own != name {
			return nil, fault.New(fault.RegistryInvalid, "%s: holds the binding of %s, whose file is %s; move it away",
				path, record.ExtensionID, own)
		}
		for _, adapter := range record.AdapterNames {
			if owner, taken := r.owners[adapter]; taken {
				return nil, fault.New(fault.RegistryInvalid, "%s: enables the adapter %s, which %s enables too; move one of them away",
					path, adapter, FileName(owner))
			}
			r.owners[adapter] = record.ExtensionID
		}
		r.records = append(r.records, record)
	}
	// File names sort otherwise: "a-b.json" comes before "a.json".
	slices.SortFunc(r.records, func(a, b Record) int { return cmp.Compare(a.ExtensionID, b.ExtensionID) })
	return r, nil
}

// readRecord reads one binding. What is wrong in it is told with its path; what
// kept it from being opened says that itself.
func readRecord(path, name string, open func(name string) (io.ReadCloser, error)) (Record, error) {
	f, err := open(name)
	if err != nil {
		return Record{}, err
	}
	defer f.Close()
	b, digest, err := ReadBinding(f)
	if err != nil {
		return Record{}, fmt.Errorf("%s: %w", path, err)
	}
	return Record{b, digest}, nil
}

// Records returns all bindings, ordered by extension id.
func (r *Registry) Records() []Record { return slices.Clone(r.records) }

// ByID returns the binding of an extension. Code: binding-missing.
func (r *Registry) ByID(extensionID string) (Record, error) {
	for _, record := range r.records {
		if record.ExtensionID == extensionID {
			return record, nil
		}
	}
	return Record{}, fault.New(fault.BindingMissing, "extension %s is not bound in this home; fm-extension list shows what is",
		fault.Path(extensionID))
}

// ByAdapter returns the binding that enables an adapter. Code: adapter-unbound.
func (r *Registry) ByAdapter(name string) (Record, error) {
	if owner, bound := r.owners[name]; bound {
		return r.ByID(owner)
	}
	return Record{}, fault.New(fault.AdapterUnbound, "no extension is bound for the adapter %s in this home; fm-extension list shows what is",
		fault.Path(name))
}

// CheckRoom reports whether a binding of an extension that is not bound can join
// the registry with these adapters. Codes: adapter-conflict for one of them,
// registry-oversized when the registry is full.
func (r *Registry) CheckRoom(adapters []string) error {
	for _, adapter := range adapters {
		if owner, taken := r.owners[adapter]; taken {
			return fault.New(fault.AdapterConflict, "the adapter %s is enabled by extension %s already; retire that binding first, or leave the adapter out",
				adapter, owner)
		}
	}
	if len(r.records) >= MaxBindings {
		return fault.New(fault.RegistryOversized, "this home has %d bindings, and no more are allowed; retire one first", MaxBindings)
	}
	return nil
}
