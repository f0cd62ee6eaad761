package transfer

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
	"hawser/tree"
)

type failer interface {
	Helper()
	Fatal(...any)
}

func must(t failer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t testing.TB, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Fatalf("got %v (%s), want %s", err, fault.CodeOf(err), code)
	}
	if line := fault.Line(err); strings.ContainsAny(line, "\n\r") || len(line) > 900 {
		t.Fatalf("not one short line: %q", line)
	}
}

// temp returns a directory of the test's own whose path has no link.
func temp(t testing.TB) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return path
}

const manifestText = `{"schema":"firstmate.extension-manifest.v1","id":"org.example.feed","version":"1.2.3","host_protocols":[1],` +
	`"entrypoint":"bin/run","capabilities":[{"name":"process-event-adapter","versions":[1],"adapter_names":["feed"]}],"required_consents":[]}`

// files are a package: paths to content; a path that ends in "/" is a directory,
// one below bin/ is executable.
type files map[string]string

// sample has the trap of the two orders.
func sample() files {
	return files{
		"firstmate-extension.json": manifestText,
		"bin/":                     "", "bin/run": "#!/bin/sh\nexit 3\n",
		"lib/": "", "lib/a": "in lib", "lib.py": "beside", "lib-x/": "", "lib-x/a": "in lib-x",
		"empty": "", "hollow/": "",
	}
}

// with is the package and more.
func (f files) with(more files) files {
	f = maps.Clone(f)
	maps.Copy(f, more)
	return f
}

func (f files) write(t failer, root string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(f)) {
		at := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			must(t, os.MkdirAll(at, 0o755))
			continue
		}
		must(t, os.MkdirAll(filepath.Dir(at), 0o755))
		mode := os.FileMode(0o644)
		if strings.HasPrefix(name, "bin/") {
			mode = 0o700 // any of the three bits makes it executable
		}
		must(t, os.WriteFile(at, []byte(f[name]), 0o600))
		must(t, os.Chmod(at, mode))
	}
}

func scan(t failer, root string) (*tree.Scanned, func()) {
	t.Helper()
	dir, err := dirfd.Open(root)
	must(t, err)
	s, err := tree.Scan(dir, tree.SourceRules())
	must(t, err)
	return s, func() { dir.Close() }
}

func (f files) pack(t testing.TB) ([]byte, error) {
	t.Helper()
	root := temp(t)
	f.write(t, root)
	s, done := scan(t, root)
	defer done()
	return Pack(s)
}

// draft is an envelope as another program might write it, right or wrong.
type draft struct {
	Schema         string        `json:"schema"`
	Manifest       draftManifest `json:"manifest"`
	ManifestSHA256 string        `json:"manifest_sha256"`
	Payloads       []any         `json:"payloads"`
}

type draftManifest struct {
	Schema           string       `json:"schema"`
	ExtensionID      string       `json:"extension_id"`
	ExtensionVersion string       `json:"extension_version"`
	PackageDigest    string       `json:"package_digest"`
	EntryCount       int          `json:"entry_count"`
	TotalBytes       int          `json:"total_bytes"`
	Entries          []draftEntry `json:"entries"`
}

type draftEntry struct {
	Path   string `json:"path"`
	Type   string `json:"type"`
	Mode   int    `json:"mode"`
	Size   int    `json:"size"`
	SHA256 any    `json:"sha256"`
}

// draft writes the package as an envelope, whether or not it may be one.
func (f files) draft() *draft {
	names := slices.Collect(maps.Keys(f))
	plain := func(name string) string { return strings.TrimSuffix(name, "/") }
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(plain(a), plain(b)) })
	d := &draft{Schema: "firstmate.extension-package-transfer.v1", Payloads: []any{}}
	d.Manifest = draftManifest{
		Schema:      "firstmate.extension-package-transfer-manifest.v1",
		ExtensionID: "org.example.feed", ExtensionVersion: "1.2.3",
		Entries: []draftEntry{},
	}
	for _, name := range names {
		content := f[name]
		if strings.HasSuffix(name, "/") {
			d.Manifest.Entries = append(d.Manifest.Entries, draftEntry{plain(name), "directory", 493, 0, nil})
			d.Payloads = append(d.Payloads, nil)
			continue
		}
		mode := 420
		if strings.HasPrefix(name, "bin/") {
			mode = 493
		}
		d.Manifest.Entries = append(d.Manifest.Entries, draftEntry{name, "file", mode, len(content), wire.DigestOf([]byte(content))})
		d.Payloads = append(d.Payloads, base64.StdEncoding.EncodeToString([]byte(content)))
		d.Manifest.TotalBytes += len(content)
	}
	d.Manifest.EntryCount = len(d.Manifest.Entries)
	return d.seal()
}

// seal makes both digests right.
func (d *draft) seal() *draft {
	var entries []tree.Entry
	for _, e := range d.Manifest.Entries {
		digest, _ := e.SHA256.(wire.Digest)
		entries = append(entries, tree.Entry{Path: e.Path, Dir: e.Type == "directory", Executable: e.Mode == 493, Size: int64(e.Size), Digest: digest})
	}
	d.Manifest.PackageDigest = string(tree.DigestOf(entries))
	canonical, _ := strictjson.Canonical(d.Manifest)
	d.ManifestSHA256 = string(wire.DigestOf(canonical))
	return d
}

func (d *draft) encode(t failer) []byte {
	t.Helper()
	data, err := strictjson.Canonical(d)
	must(t, err)
	return data
}

func TestVectors(t *testing.T) {
	data, err := os.ReadFile("testdata/trees.json")
	must(t, err)
	var vectors []struct {
		Name    string
		Entries []struct {
			Path, Type    string
			Executable    bool
			ContentBase64 []byte `json:"content_base64"`
		}
		TreeDigest     wire.Digest `json:"tree_digest"`
		TransferDigest wire.Digest `json:"transfer_manifest_sha256"`
		EnvelopeDigest wire.Digest `json:"envelope_sha256"`
	}
	must(t, json.Unmarshal(data, &vectors))
	if len(vectors) == 0 {
		t.Fatal("no vectors")
	}
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			root := temp(t)
			for _, e := range v.Entries {
				at := filepath.Join(root, e.Path)
				if e.Type == "directory" {
					must(t, os.MkdirAll(at, 0o755))
					continue
				}
				must(t, os.MkdirAll(filepath.Dir(at), 0o755))
				must(t, os.WriteFile(at, e.ContentBase64, 0o644))
				if e.Executable {
					must(t, os.Chmod(at, 0o755))
				}
			}
			s, done := scan(t, root)
			defer done()
			packed, err := Pack(s)
			must(t, err)
			if got := wire.DigestOf(packed); got != v.EnvelopeDigest {
				t.Errorf("envelope %s, want %s", got, v.EnvelopeDigest)
			}
			e, err := Decode(packed)
			must(t, err)
			if e.Digest() != v.TransferDigest || e.PackageDigest() != v.TreeDigest {
				t.Errorf("transfer %s of %s, want %s of %s", e.Digest(), e.PackageDigest(), v.TransferDigest, v.TreeDigest)
			}
		})
	}
}

func TestPackedByOrderOfWholePaths(t *testing.T) {
	packed, err := sample().pack(t)
	must(t, err)
	if want := sample().draft().encode(t); !bytes.Equal(packed, want) {
		t.Errorf("packed %s\nwant   %s", packed, want)
	}
	e, err := Read(io.MultiReader(bytes.NewReader(packed), strings.NewReader("\n")))
	must(t, err)
	if e.ID() != "org.example.feed" || e.Version() != "1.2.3" {
		t.Errorf("%s@%s", e.ID(), e.Version())
	}
	if !bytes.Equal(e.encode(), packed) {
		t.Error("another envelope comes back")
	}
}

// TestNothingIsQuoted: whatever stands in a document, or in the manifest in it, no
// message tells it.
func TestNothingIsQuoted(t *testing.T) {
	const evil = `LEAKME\n\u001b[31m`
	spoilt := func(text string) [][]byte {
		var documents [][]byte
		// A member more, twice or misnamed, in every object; a value that is another.
		for i, r := range text {
			switch {
			case r == '{':
				documents = append(documents, []byte(text[:i+1]+`"`+evil+`":1,`+text[i+1:]), []byte(text[:i+1]+`"`+evil+`":1,"`+evil+`":1,`+text[i+1:]))
			case r == '"':
				documents = append(documents, []byte(text[:i+1]+evil+text[i+1:]))
			}
		}
		return append(documents, []byte(text+evil))
	}
	check := func(data []byte) {
		t.Helper()
		e, err := Decode(data)
		if err == nil {
			t.Errorf("taken: %s", e.canonical)
		} else if strings.Contains(err.Error(), "LEAKME") || strings.Contains(fault.Line(err), "LEAKME") {
			t.Errorf("quoted: %v", err)
		}
	}
	for _, text := range spoilt(manifestText) {
		check(tiny().with(files{"firstmate-extension.json": string(text)}).draft().encode(t))
	}
	for _, data := range spoilt(string(tiny().draft().encode(t))) {
		check(data)
	}
}

// TestEveryByteCounts changes, removes and adds a byte everywhere.
func TestEveryByteCounts(t *testing.T) {
	packed := tiny().draft().encode(t)
	_, err := Decode(packed)
	must(t, err)
	for i := range packed {
		for _, c := range []byte{packed[i] ^ 1, packed[i] ^ 0x20, packed[i] ^ 0x80, '"', '\n', 0} {
			if c == packed[i] {
				continue
			}
			changed := bytes.Clone(packed)
			changed[i] = c
			if _, err := Decode(changed); err == nil {
				t.Fatalf("accepted with %q at %d: %s", c, i, changed)
			}
		}
		if _, err := Decode(packed[:i]); err == nil {
			t.Fatalf("accepted with %d of %d bytes", i, len(packed))
		}
		if _, err := Decode(slices.Delete(bytes.Clone(packed), i, i+1)); err == nil {
			t.Fatalf("accepted without byte %d", i)
		}
		if _, err := Decode(slices.Insert(bytes.Clone(packed), i, ' ')); err == nil {
			t.Fatalf("accepted with a space at %d", i)
		}
	}
	for _, more := range []string{"\n\n", "\r\n", " ", "\x00", "{}"} {
		if _, err := Decode(append(bytes.Clone(packed), more...)); err == nil {
			t.Errorf("accepted with %q after it", more)
		}
	}
}

// entry is the draft entry of a path.
func (d *draft) entry(t failer, path string) (*draftEntry, *any) {
	t.Helper()
	for i := range d.Manifest.Entries {
		if d.Manifest.Entries[i].Path == path {
			return &d.Manifest.Entries[i], &d.Payloads[i]
		}
	}
	t.Fatal("no entry " + path)
	return nil, nil
}

func TestDecodeRefuses(t *testing.T) {
	rename := func(old, name string) func(d *draft) {
		return func(d *draft) {
			e, _ := d.entry(t, old)
			e.Path = name
		}
	}
	payload := func(text any) func(d *draft) {
		return func(d *draft) {
			_, p := d.entry(t, "lib.py")
			*p = text
		}
	}
	entry := func(path string, change func(e *draftEntry)) func(d *draft) {
		return func(d *draft) {
			e, _ := d.entry(t, path)
			change(e)
		}
	}
	other := string(wire.DigestOf([]byte("other")))
	for name, c := range map[string]struct {
		code   fault.Code
		change func(d *draft)
	}{
		"schema":              {fault.SchemaInvalid, func(d *draft) { d.Schema += "x" }},
		"manifest schema":     {fault.SchemaInvalid, func(d *draft) { d.Manifest.Schema = d.Schema }},
		"manifest digest":     {fault.IntegrityMismatch, func(d *draft) { d.ManifestSHA256 = other }},
		"no digest":           {fault.SchemaInvalid, func(d *draft) { d.ManifestSHA256 = strings.ToUpper(d.ManifestSHA256) }},
		"package digest":      {fault.IntegrityMismatch, func(d *draft) { d.seal().Manifest.PackageDigest = other }},
		"id":                  {fault.IntegrityMismatch, func(d *draft) { d.Manifest.ExtensionID = "org.example.other" }},
		"malformed id":        {fault.SchemaInvalid, func(d *draft) { d.Manifest.ExtensionID = "../x" }},
		"version":             {fault.IntegrityMismatch, func(d *draft) { d.Manifest.ExtensionVersion = "1.2.4" }},
		"malformed version":   {fault.SchemaInvalid, func(d *draft) { d.Manifest.ExtensionVersion = "v1" }},
		"entry count":         {fault.IntegrityMismatch, func(d *draft) { d.Manifest.EntryCount++ }},
		"negative count":      {fault.SchemaInvalid, func(d *draft) { d.Manifest.EntryCount = -1 }},
		"total":               {fault.IntegrityMismatch, func(d *draft) { d.Manifest.TotalBytes-- }},
		"size":                {fault.IntegrityMismatch, entry("lib.py", func(e *draftEntry) { e.Size++ })},
		"negative size":       {fault.SchemaInvalid, entry("lib.py", func(e *draftEntry) { e.Size = -1 })},
		"digest of a file":    {fault.IntegrityMismatch, entry("lib.py", func(e *draftEntry) { e.SHA256 = other })},
		"file without digest": {fault.SchemaInvalid, entry("lib.py", func(e *draftEntry) { e.SHA256 = nil })},
		"dir with digest":     {fault.SchemaInvalid, entry("lib", func(e *draftEntry) { e.SHA256 = other })},
		"dir with size":       {fault.SchemaInvalid, entry("lib", func(e *draftEntry) { e.Size = 1 })},
		"dir with payload": {fault.SchemaInvalid, func(d *draft) {
			_, p := d.entry(t, "lib")
			*p = ""
		}},
		"mode of a dir":     {fault.SchemaInvalid, entry("lib", func(e *draftEntry) { e.Mode = 420 })},
		"mode 0":            {fault.SchemaInvalid, entry("lib.py", func(e *draftEntry) { e.Mode = 0 })},
		"mode set-uid":      {fault.SchemaInvalid, entry("lib.py", func(e *draftEntry) { e.Mode = 0o4755 })},
		"mode in octal":     {fault.SchemaInvalid, entry("lib.py", func(e *draftEntry) { e.Mode = 755 })},
		"type link":         {fault.SchemaInvalid, entry("lib.py", func(e *draftEntry) { e.Type = "symlink" })},
		"type fifo":         {fault.SchemaInvalid, entry("lib.py", func(e *draftEntry) { e.Type = "" })},
		"absolute":          {fault.SchemaInvalid, rename("empty", "/empty")},
		"traversing":        {fault.SchemaInvalid, rename("empty", "../empty")},
		"traversing inside": {fault.SchemaInvalid, rename("lib/a", "lib/../../a")},
		"dot":               {fault.SchemaInvalid, rename("empty", ".")},
		"dot part":          {fault.SchemaInvalid, rename("lib/a", "lib/./a")},
		"empty part":        {fault.SchemaInvalid, rename("lib/a", "lib//a")},
		"slash at the end":  {fault.SchemaInvalid, rename("empty", "empty/")},
		"empty path":        {fault.SchemaInvalid, rename("bin", "")},
		"backslash":         {fault.SchemaInvalid, rename("empty", `em\pty`)},
		"control character": {fault.SchemaInvalid, rename("empty", "em\npty")},
		"NUL":               {fault.SchemaInvalid, rename("empty", "em\x00pty")},
		"too long":          {fault.SchemaInvalid, rename("empty", "e"+strings.Repeat("m", 512))},
		"name too long":     {fault.PathUnsafe, rename("empty", "e"+strings.Repeat("m", 255))},
		"dir name too long": {fault.PathUnsafe, func(d *draft) {
			*d = *sample().with(files{strings.Repeat("m", 256) + "/": "", strings.Repeat("m", 256) + "/n": ""}).draft()
		}},
		"missing parent":     {fault.PathUnsafe, rename("lib", "lia")},
		"parent comes later": {fault.PathUnsafe, func(d *draft) { *d = *sample().with(files{"m/n": ""}).draft() }},
		"parent is a file":   {fault.PathUnsafe, func(d *draft) { *d = *sample().with(files{"m": "", "m/n": ""}).draft() }},
		"twice":              {fault.PathUnsafe, rename("lib-x/a", "lib-x")},
		"case":               {fault.PathUnsafe, rename("empty", "LIB.py")},
		"payload missing":    {fault.SchemaInvalid, func(d *draft) { d.Payloads = d.Payloads[1:] }},
		"payload too many":   {fault.SchemaInvalid, func(d *draft) { d.Payloads = append(d.Payloads, nil) }},
		"payload null":       {fault.SchemaInvalid, payload(nil)},
		"payload number":     {fault.SchemaInvalid, payload(1)},
		"payload empty":      {fault.IntegrityMismatch, payload("")},
		"payload other":      {fault.IntegrityMismatch, payload("b3RoZXI=")},
		"payload same size":  {fault.IntegrityMismatch, payload("QmVzaWRl")},
		"payload line end":   {fault.SchemaInvalid, payload("YmVz\naWRl")},
		"payload space":      {fault.SchemaInvalid, payload("YmVz aWRl")},
		"payload URL base64": {fault.SchemaInvalid, payload("-_-_")},
		"payload padding": {fault.SchemaInvalid, func(d *draft) {
			e, p := d.entry(t, "bin/run")
			e.Size, *p = 1, "Yg"
		}},
		"payload set padding bits": {fault.SchemaInvalid, func(d *draft) {
			e, p := d.entry(t, "bin/run")
			e.Size, *p = 1, "Yh=="
		}},
		"order": {fault.SchemaInvalid, func(d *draft) {
			for i := range d.Manifest.Entries {
				if d.Manifest.Entries[i].Path == "lib-x" { // as a walk would come to them
					slices.Reverse(d.Manifest.Entries[i : i+2])
					slices.Reverse(d.Payloads[i : i+2])
				}
			}
		}},
		"no entries":   {fault.ManifestMissing, func(d *draft) { *d = *files{}.draft() }},
		"no manifest":  {fault.ManifestMissing, func(d *draft) { *d = *files{"bin/": "", "bin/run": ""}.draft() }},
		"manifest dir": {fault.ManifestMissing, func(d *draft) { *d = *files{"firstmate-extension.json/": ""}.draft() }},
		"bad manifest": {fault.JSONInvalid, func(d *draft) { *d = *sample().with(files{"firstmate-extension.json": "{"}).draft() }},
		"big manifest": {fault.ManifestOversized, func(d *draft) {
			*d = *sample().with(files{"firstmate-extension.json": strings.Repeat(" ", 65_537)}).draft()
		}},
		"no entrypoint": {fault.EntrypointMissing, func(d *draft) { *d = *files{"firstmate-extension.json": manifestText}.draft() }},
		"plain entrypoint": {fault.EntrypointInvalid, func(d *draft) {
			e, _ := d.entry(t, "bin/run")
			e.Mode = 420
		}},
		"entrypoint dir": {fault.EntrypointInvalid, func(d *draft) {
			*d = *files{"firstmate-extension.json": manifestText, "bin/": "", "bin/run/": ""}.draft()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d := sample().draft()
			c.change(d)
			if c.code != fault.IntegrityMismatch { // what it says must be right but for the change
				d.seal()
			}
			if name == "no digest" {
				d.ManifestSHA256 = strings.ToUpper(d.ManifestSHA256)
			}
			_, err := Decode(d.encode(t))
			wantCode(t, err, c.code)
		})
	}
}

// TestDecodeChecksMembers takes away and adds each member, and gives it each
// type that it does not have.
func TestDecodeChecksMembers(t *testing.T) {
	visit := func(change func(at map[string]any, name string)) {
		t.Helper()
		var walk func(root, at any)
		walk = func(root, at any) {
			switch at := at.(type) {
			case map[string]any:
				for _, name := range slices.Sorted(maps.Keys(at)) {
					was := at[name]
					change(at, name)
					data, err := strictjson.Canonical(root)
					must(t, err)
					if _, err := Decode(data); err == nil {
						t.Errorf("accepted: %s", data)
					}
					at[name] = was
					walk(root, was)
				}
			case []any:
				for _, e := range at {
					walk(root, e)
				}
			}
		}
		var root any
		must(t, json.Unmarshal(sample().draft().encode(t), &root))
		walk(root, root)
	}
	visit(func(at map[string]any, name string) { delete(at, name) })
	for _, value := range []any{nil, true, 1.5, -1, "", "x", []any{}, map[string]any{}} {
		visit(func(at map[string]any, name string) {
			if at[name] != nil || value != nil {
				at[name] = value
			} else {
				delete(at, name)
			}
			if name == "size" && value == "" || name == "sha256" && at["type"] == "directory" && value == nil {
				delete(at, name)
			}
		})
	}
	for _, where := range []string{"", "manifest", "entries"} {
		var root map[string]any
		must(t, json.Unmarshal(sample().draft().encode(t), &root))
		at := root
		if where != "" {
			at = root["manifest"].(map[string]any)
		}
		if where == "entries" {
			at = at["entries"].([]any)[0].(map[string]any)
		}
		at["more"] = nil
		data, err := strictjson.Canonical(root)
		must(t, err)
		_, err = Decode(data)
		wantCode(t, err, fault.SchemaInvalid)
	}
}

// TestLongestName is what file systems take.
func TestLongestName(t *testing.T) {
	name := strings.Repeat("m", 255)
	_, err := Decode(sample().with(files{name + "/": "", name + "/" + name: ""}).draft().encode(t))
	must(t, err)
}

func TestUnicodeCollisions(t *testing.T) {
	for _, pair := range [][2]string{
		{"a", "A"}, {"straße", "STRASSE"}, {"é", "e\u0301"}, {"É", "e\u0301"}, {"ς", "Σ"},
		{"\u1e9e", "ss"}, {"\u212b", "å"}, {"\ufb01", "FI"}, {"\u01f0", "J\u030c"},
	} {
		f := sample().with(files{pair[0]: "1", pair[1]: "2"})
		_, err := Decode(f.draft().encode(t))
		wantCode(t, err, fault.PathUnsafe)
		if _, err := f.pack(t); err == nil {
			t.Errorf("packed: %q", pair)
		}
		// Directories collide like files, and so does what is below them.
		f = sample().with(files{pair[0] + "/": "", pair[1] + "/": "", pair[0] + "/x": "", pair[1] + "/x": ""})
		_, err = Decode(f.draft().encode(t))
		wantCode(t, err, fault.PathUnsafe)
	}
	for _, pair := range [][2]string{{"a", "b"}, {"é", "e"}, {"i", "ı"}, {"ﬁ", "f"}, {"a/", "b"}} {
		f := sample().with(files{pair[0]: "", pair[1]: ""})
		_, err := Decode(f.draft().encode(t))
		must(t, err)
	}
}

// many is a package with exactly so many entries.
func many(n int) files {
	f := sample()
	for i := len(f); i < n; i++ {
		f[fmt.Sprintf("n%04d", i)] = ""
	}
	return f
}

// heavy is a package with exactly so many bytes.
func heavy(n int) files {
	f := sample()
	for _, content := range f {
		n -= len(content)
	}
	for i := 0; n > 0; i++ {
		size := min(n, MaxFileBytes)
		f[fmt.Sprintf("h%d", i)] = strings.Repeat("x", size)
		n -= size
	}
	return f
}

func TestLimits(t *testing.T) {
	file := func(n int) files { return sample().with(files{"file": strings.Repeat("x", n)}) }
	long := func(n int) files {
		dirs := "d/" + strings.Repeat("e", 200) + "/" + strings.Repeat("f", 200) + "/"
		f := sample()
		for i, c := range dirs {
			if c == '/' {
				f[dirs[:i+1]] = ""
			}
		}
		return f.with(files{dirs + strings.Repeat("x", n-len(dirs)): ""})
	}
	for name, c := range map[string]struct {
		fits, over      files
		packed, decoded fault.Code
	}{
		"entries": {fits: many(MaxEntries), over: many(MaxEntries + 1), packed: fault.PackageOversized, decoded: fault.PackageOversized},
		"file":    {fits: file(MaxFileBytes), over: file(MaxFileBytes + 1), packed: fault.PackageOversized, decoded: fault.PackageOversized},
		"bytes":   {fits: heavy(MaxBytes), over: heavy(MaxBytes + 1), packed: fault.PackageOversized, decoded: fault.PackageOversized},
		"path":    {fits: long(512), over: long(513), packed: fault.PathUnsafe, decoded: fault.SchemaInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			packed, err := c.fits.pack(t)
			must(t, err)
			if !bytes.Equal(packed, c.fits.draft().encode(t)) {
				t.Error("packed as something else than it is")
			}
			_, err = Decode(packed)
			must(t, err)
			_, err = c.over.pack(t)
			wantCode(t, err, c.packed)
			_, err = Decode(c.over.draft().encode(t))
			wantCode(t, err, c.decoded)
		})
	}
}

// TestOversizedByFarInEntries is a document within its bytes that says far more
// than an envelope can.
func TestOversizedByFarInEntries(t *testing.T) {
	d := many(5_000).draft().encode(t)
	if len(d) > MaxEnvelopeBytes {
		t.Fatal("too long for its purpose")
	}
	_, err := Decode(d)
	wantCode(t, err, fault.PackageOversized)
	zeros := strings.Repeat("0,", 440_000) + "0"
	for bomb, code := range map[string]fault.Code{
		`{"schema":[` + strings.Repeat("{},", 290_000) + "{}]}": fault.PackageOversized,
		"[" + zeros + "]": fault.SchemaInvalid, // no object
		// What is no JSON is that first, however much of it there is.
		"[" + zeros:                      fault.JSONInvalid,
		`{"a":[` + zeros + `]}{}`:        fault.JSONInvalid,
		`{"a":[` + zeros + ",]}":         fault.JSONInvalid,
		strings.Repeat(",", 500_000):     fault.JSONInvalid,
		`{"a":0,"a":[` + zeros + "]}":    fault.JSONInvalid,
		strings.Repeat(`",`, 440_000):    fault.JSONInvalid,
		`{"a":[` + zeros + "\xff" + `]}`: fault.JSONInvalid,
	} {
		_, err = Decode([]byte(bomb))
		wantCode(t, err, code)
	}
}

// endless counts what is read of it.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestReadStopsAtTheLimit(t *testing.T) {
	r := &endless{}
	_, err := Read(r)
	wantCode(t, err, fault.JSONOversized)
	if r.read != MaxEnvelopeBytes+1 {
		t.Errorf("%d bytes read", r.read)
	}
	at := append(sample().draft().encode(t), bytes.Repeat([]byte(" "), MaxEnvelopeBytes)...)
	_, err = Decode(at[:MaxEnvelopeBytes])
	wantCode(t, err, fault.JSONInvalid)
	_, err = Decode(at[:MaxEnvelopeBytes+1])
	wantCode(t, err, fault.JSONOversized)
}

func TestPackRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		code fault.Code
		f    files
	}{
		"backslash":     {fault.PathUnsafe, sample().with(files{`a\b`: ""})},
		"no manifest":   {fault.ManifestMissing, files{"bin/run": ""}},
		"no entrypoint": {fault.EntrypointMissing, files{"firstmate-extension.json": manifestText}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.f.pack(t)
			wantCode(t, err, c.code)
		})
	}
	t.Run("changed", func(t *testing.T) {
		root := temp(t)
		sample().write(t, root)
		s, done := scan(t, root)
		defer done()
		must(t, os.WriteFile(root+"/lib.py", []byte("another"), 0o644))
		_, err := Pack(s)
		wantCode(t, err, fault.IntegrityMismatch)
	})
}

// TestRefusalsQuoteNothing: a name in an envelope does not reach a message.
func TestRefusalsQuoteNothing(t *testing.T) {
	const secret = "s3cret"
	for _, f := range []files{
		sample().with(files{secret: "", strings.ToUpper(secret): ""}),
		sample().with(files{secret + "/x": ""}),
		sample().with(files{secret + "//x": ""}),
		sample().with(files{secret: strings.Repeat("x", MaxFileBytes+1)}),
		sample().with(files{"firstmate-extension.json": strings.ReplaceAll(manifestText, "bin/run", secret)}),
		sample().with(files{"firstmate-extension.json": strings.ReplaceAll(manifestText, "network", secret)}).with(files{secret + `\`: ""}),
	} {
		_, err := Decode(f.draft().encode(t))
		if err == nil || strings.Contains(strings.ToLower(err.Error()), secret) {
			t.Errorf("%v", err)
		}
	}
}

func genFiles() *rapid.Generator[files] {
	name := rapid.StringMatching(`[a-cA-C./é日 -]{1,12}`)
	return rapid.Custom(func(t *rapid.T) files {
		f := sample()
		for range rapid.IntRange(0, 8).Draw(t, "more") {
			at := path.Clean("/" + name.Draw(t, "name"))[1:]
			if at == "" {
				continue
			}
			clash := false
			for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
				_, file := f[dir]
				clash = clash || file
			}
			_, dir := f[at+"/"]
			_, below := f[at]
			if clash || dir || below {
				continue
			}
			for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
				f[dir+"/"] = ""
			}
			f[at] = string(rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, "content"))
		}
		return f
	})
}

// TestRoundTrip: what is packed is what another writes, is what is read, and
// the two ways to a package digest agree.
func TestRoundTrip(t *testing.T) {
	base := temp(t)
	rapid.Check(t, func(t *rapid.T) {
		f := genFiles().Draw(t, "package")
		root, err := os.MkdirTemp(base, "")
		must(t, err)
		defer os.RemoveAll(root)
		f.write(t, root)
		s, done := scan(t, root)
		defer done()
		packed, err := Pack(s)
		if fault.Is(err, fault.PathUnsafe) {
			_, err := Decode(f.draft().encode(t))
			if !fault.Is(err, fault.PathUnsafe) {
				t.Fatalf("not packed, but read: %v", err)
			}
			return
		}
		must(t, err)
		if !bytes.Equal(packed, f.draft().encode(t)) {
			t.Fatalf("packed %s\nwant   %s", packed, f.draft().encode(t))
		}
		e, err := Decode(packed)
		must(t, err)
		read, err := s.Hash()
		must(t, err)
		if e.PackageDigest() != read.Digest() {
			t.Fatalf("package digest %s, of the directory %s", e.PackageDigest(), read.Digest())
		}
	})
}

// tiny is the least that is a package.
func tiny() files {
	return files{"firstmate-extension.json": manifestText, "bin/": "", "bin/run": ""}
}

func FuzzDecode(f *testing.F) {
	f.Add(tiny().draft().encode(f))
	f.Add([]byte(`{"manifest":{"entries":[{}]},"payloads":[""]}`))
	f.Fuzz(func(t *testing.T, data []byte) { checkDecode(t, data) })
}

// FuzzPaths is FuzzDecode past the digests: paths that nobody chose, in an
// envelope that is right otherwise.
func FuzzPaths(f *testing.F) {
	f.Add("lib/\nlib/a\nlib.py\nlib-x/")
	f.Add("a\nA\n../b\n/c")
	f.Add("bin\nbin/run/\nfirstmate-extension.json/x")
	f.Fuzz(func(t *testing.T, paths string) {
		p := tiny()
		for name := range strings.SplitSeq(strings.ToValidUTF8(paths, ""), "\n") {
			p[name] = ""
		}
		checkDecode(t, p.draft().encode(t))
	})
}

// checkDecode: what is accepted is exactly what comes back, and what it names is
// below the package; what is refused is refused as its own fault.
func checkDecode(t *testing.T, data []byte) {
	e, err := Decode(data)
	if err != nil {
		if code := fault.CodeOf(err); code == fault.Internal || code == fault.IO {
			t.Fatalf("%v (%s)", err, code)
		}
		return
	}
	for _, entry := range e.entries {
		if !filepath.IsLocal(entry.Path) || path.Clean(entry.Path) != entry.Path {
			t.Fatalf("accepted the path %q", entry.Path)
		}
	}
	if !bytes.Equal(e.encode(), bytes.TrimSuffix(data, []byte("\n"))) {
		t.Fatal("another document comes back")
	}
}
