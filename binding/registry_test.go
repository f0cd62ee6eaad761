package binding_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hawser/binding"
	"hawser/internal/fault"
)

// files is a registry's directory.
type files map[string][]byte

func (f files) read() (*binding.Registry, error) {
	return binding.ReadRegistry("/home/config/extensions.d", slices.Collect(maps.Keys(f)), func(name string) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(f[name])), nil
	})
}

func bound(id string, adapters ...string) *binding.Binding {
	b := sampleBinding()
	b.ExtensionID, b.AdapterNames = id, adapters
	return b
}

func encoded(t interface{ Fatal(...any) }, b *binding.Binding) []byte {
	data, _, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestReadRegistryRefuses(t *testing.T) {
	a, b := encoded(t, bound("a", "one")), encoded(t, bound("b", "two", "one"))
	full := files{}
	for i := range binding.MaxBindings {
		id := fmt.Sprint("x", i)
		full[id+".json"] = encoded(t, bound(id, id))
	}
	over := maps.Clone(full)
	over["a.json"] = a
	for _, c := range []struct {
		files   files
		code    fault.Code
		message string
	}{
		{files{}, "", ""},
		{files{"a.json": a}, "", ""},
		{full, "", ""},
		{over, fault.RegistryOversized, "/home/config/extensions.d: more than 128 files"},
		{files{"a.json": a, "b.json": b}, fault.RegistryInvalid, "/home/config/extensions.d/b.json: enables the adapter one, which a.json enables too"},
		{files{"a.json": a, "c.json": a}, fault.RegistryInvalid, "/home/config/extensions.d/c.json: holds the binding of a, whose file is a.json"},
		{files{"b.json": a}, fault.RegistryInvalid, "holds the binding of a"},
		{files{"a.json": a, "README": a}, fault.RegistryInvalid, "/home/config/extensions.d/README: not a binding file"},
		{files{"a.json": a, ".a.json": a}, fault.RegistryInvalid, "/home/config/extensions.d/.a.json: not a binding file"},
		{files{"A.json": a}, fault.RegistryInvalid, "not a binding file"},
		{files{"a.json~": a}, fault.RegistryInvalid, "not a binding file"},
		{files{".json": a}, fault.RegistryInvalid, "not a binding file"},
		{files{"a\nerror[x].json": a}, fault.RegistryInvalid, `"/home/config/extensions.d/a\nerror[x].json": not a binding file`},
		{files{"a.json": nil}, fault.JSONInvalid, "/home/config/extensions.d/a.json: extension binding: empty"},
		{files{"a.json": []byte("{}")}, fault.SchemaInvalid, "/home/config/extensions.d/a.json: extension binding: member"},
		{files{"a.json": make([]byte, 1<<20)}, fault.BindingOversized, "/home/config/extensions.d/a.json: extension binding: larger"},
	} {
		r, err := c.files.read()
		if c.code == "" {
			if err != nil || len(r.Records()) != len(c.files) {
				t.Errorf("%d files: %v", len(c.files), err)
			}
			continue
		}
		if r != nil || !fault.Is(err, c.code) || !strings.HasPrefix(err.Error(), c.message) && !strings.Contains(err.Error(), ": "+c.message) {
			t.Errorf("%q: got [%s] %v, want [%s] %s", slices.Collect(maps.Keys(c.files)), fault.CodeOf(err), err, c.code, c.message)
		}
	}
}

type closing struct {
	io.Reader
	open *int
}

func (c closing) Close() error { *c.open--; return nil }

// No file is opened in a directory that is refused by its names alone, each
// opened one is closed, and a refusal of open is kept.
func TestReadRegistryOpens(t *testing.T) {
	open, opened := 0, 0
	read := func(names ...string) error {
		open, opened = 0, 0
		_, err := binding.ReadRegistry("/d", names, func(name string) (io.ReadCloser, error) {
			if name == "c.json" {
				return nil, fault.New(fault.LinkUnsafe, "it is a link")
			}
			open, opened = open+1, opened+1
			id := strings.TrimSuffix(name, ".json")
			return closing{bytes.NewReader(encoded(t, bound(id, id))), &open}, nil
		})
		return err
	}
	if err := read("b.json", "a.json"); err != nil || open != 0 || opened != 2 {
		t.Errorf("%v, %d of %d files left open", err, open, opened)
	}
	if err := read("a.json", "foreign"); !fault.Is(err, fault.RegistryInvalid) || opened != 0 {
		t.Errorf("%v, %d files opened", err, opened)
	}
	if err := read("c.json", "b.json"); !fault.Is(err, fault.LinkUnsafe) || err.Error() != "it is a link" || open != 0 {
		t.Errorf("%v, %d of %d files left open", err, open, opened)
	}
}

func TestZeroRegistry(t *testing.T) {
	var r binding.Registry
	if len(r.Records()) != 0 {
		t.Error("it has records")
	}
	if _, err := r.ByID("a"); !fault.Is(err, fault.BindingMissing) {
		t.Error(err)
	}
	if _, err := r.ByAdapter("a"); !fault.Is(err, fault.AdapterUnbound) {
		t.Error(err)
	}
	if err := r.CheckRoom([]string{"a"}); err != nil {
		t.Error(err)
	}
}

func TestCheckRoomWhenFull(t *testing.T) {
	full := files{}
	for i := range binding.MaxBindings {
		id := fmt.Sprint("x", i)
		full[id+".json"] = encoded(t, bound(id, id))
	}
	r, err := full.read()
	if err != nil {
		t.Fatal(err)
	}
	for adapter, code := range map[string]fault.Code{"x1": fault.AdapterConflict, "new": fault.RegistryOversized} {
		if err := r.CheckRoom([]string{adapter}); !fault.Is(err, code) {
			t.Errorf("%s: %v, want code %s", adapter, err, code)
		}
	}
}

// A model: a directory that grows only by what CheckRoom lets in is always a
// registry, holds exactly what was put in, and anything else that is added
// makes it none.
func TestRegistryModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir := files{}
		owners := map[string]string{}
		some := func(of ...string) *rapid.Generator[string] { return rapid.SampledFrom(of) }
		t.Repeat(map[string]func(*rapid.T){
			"bind": func(t *rapid.T) {
				b := bound(some("a", "a-b", "a.b", "b").Draw(t, "id"),
					rapid.SliceOfNDistinct(some("one", "two", "three", "four", "five"), 1, 3, rapid.ID[string]).Draw(t, "adapters")...)
				name, data := binding.FileName(b.ExtensionID), encoded(t, b)
				want := fault.Code("")
				if dir[name] != nil {
					t.Skip("bound already")
				}
				if slices.ContainsFunc(b.AdapterNames, func(a string) bool { return owners[a] != "" }) {
					want = fault.AdapterConflict
				}
				r, err := dir.read()
				if err != nil {
					t.Fatal(err)
				}
				err = r.CheckRoom(b.AdapterNames)
				if want != "" {
					if !fault.Is(err, want) {
						t.Fatalf("got %v, want code %s", err, want)
					}
					if want == fault.AdapterConflict {
						broken := maps.Clone(dir)
						broken[name] = data
						if _, err := broken.read(); !fault.Is(err, fault.RegistryInvalid) {
							t.Fatalf("two bindings of one adapter: %v", err)
						}
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				dir[name] = data
				for _, a := range b.AdapterNames {
					owners[a] = b.ExtensionID
				}
			},
			"retire": func(t *rapid.T) {
				if len(dir) == 0 {
					t.Skip("empty")
				}
				name := some(slices.Sorted(maps.Keys(dir))...).Draw(t, "file")
				delete(dir, name)
				maps.DeleteFunc(owners, func(_, id string) bool { return binding.FileName(id) == name })
			},
			"": func(t *rapid.T) {
				r, err := dir.read()
				if err != nil {
					t.Fatal(err)
				}
				records := r.Records()
				if len(records) != len(dir) || !slices.IsSortedFunc(records, func(a, b binding.Record) int { return strings.Compare(a.ExtensionID, b.ExtensionID) }) {
					t.Fatalf("%d records of %d files, or out of order", len(records), len(dir))
				}
				for _, a := range []string{"one", "two", "three", "four", "five"} {
					record, err := r.ByAdapter(a)
					if owner := owners[a]; owner == "" {
						if !fault.Is(err, fault.AdapterUnbound) {
							t.Fatalf("%s: %v", a, err)
						}
					} else if err != nil || record.ExtensionID != owner {
						t.Fatalf("%s: %s, %v", a, record.ExtensionID, err)
					} else if same, err := r.ByID(owner); err != nil || same != record {
						t.Fatalf("%s: %v", owner, err)
					}
				}
			},
		})
	})
}

func TestReadRegistryKeepsReadErrors(t *testing.T) {
	broken := errors.New("broken")
	_, err := binding.ReadRegistry("/d", []string{"a.json"}, func(string) (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(strings.NewReader("{"), failing{broken})), nil
	})
	if !fault.Is(err, fault.IO) || !errors.Is(err, broken) {
		t.Error(err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
