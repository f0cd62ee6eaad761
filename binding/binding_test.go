package binding_test

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hawser/binding"
	"hawser/internal/fault"
	"hawser/internal/wire"
)

// The file form is fixed: a byte more or less is another binding digest.
func TestEncode(t *testing.T) {
	golden, err := os.ReadFile(filepath.Join("testdata", "binding.json"))
	if err != nil {
		t.Fatal(err)
	}
	data, digest, err := sampleBinding().Encode()
	if err != nil || !bytes.Equal(data, golden) || digest != wire.DigestOf(golden) {
		t.Errorf("%v, digest %s\n%s", err, digest, data)
	}
	b, digest, err := binding.ReadBinding(bytes.NewReader(golden))
	if err != nil || !reflect.DeepEqual(b, sampleBinding()) || digest != wire.DigestOf(golden) {
		t.Errorf("%+v, %s, %v", b, digest, err)
	}
	if b.Timeout() != 5*time.Minute {
		t.Errorf("timeout %s", b.Timeout())
	}
}

func TestEncodeAndParse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := bindings().Draw(t, "binding")
		data, digest, err := want.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, again, err := binding.ParseBinding(data)
		if err != nil || !reflect.DeepEqual(got, want) || again != digest || digest != wire.DigestOf(data) {
			t.Fatalf("got %+v, %v\nwant %+v", got, err, want)
		}
	})
}

func TestEncodeRefusesWhatCannotBeRead(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*binding.Binding)
		code  fault.Code
	}{
		"no adapters":    {func(b *binding.Binding) { b.AdapterNames = nil }, fault.SchemaInvalid},
		"relative path":  {func(b *binding.Binding) { b.SourcePath = "a" }, fault.SchemaInvalid},
		"no digest":      {func(b *binding.Binding) { b.PackageDigest = "" }, fault.SchemaInvalid},
		"zero protocol":  {func(b *binding.Binding) { b.HostProtocol = 0 }, fault.SchemaInvalid},
		"other protocol": {func(b *binding.Binding) { b.HostProtocol = 2 }, fault.ProtocolIncompatible},
		"not UTF-8":      {func(b *binding.Binding) { b.SourcePath = "/\xff" }, fault.Internal},
		"too many adapters": {func(b *binding.Binding) {
			for i := range 4096 {
				b.AdapterNames = append(b.AdapterNames, "a-"+strings.Repeat("b", 8)+string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676)))
			}
		}, fault.BindingOversized},
	} {
		b := sampleBinding()
		c.spoil(b)
		if data, _, err := b.Encode(); data != nil || !fault.Is(err, c.code) {
			t.Errorf("%s: %v, want code %s", name, err, c.code)
		}
	}
}

func TestParseBindingRefuses(t *testing.T) {
	data, _, err := sampleBinding().Encode()
	if err != nil {
		t.Fatal(err)
	}
	doc := string(data)
	for _, c := range []struct{ old, with, message string }{
		{`binding.v1`, `binding.v2`, `schema: must be`},
		{`"extension_id": "org`, `"extension_id": "Evil`, `extension_id: must be`},
		{`"1.2.3"`, `"1.2"`, `extension_version: must be`},
		{`"local-directory"`, `"git"`, `source.kind: must be "local-directory"`},
		{`"/home/op/review-feed"`, `"home"`, `source.path: must be an absolute`},
		{`"/home/op/review-feed"`, `"/home/op/../evil"`, `source.path: must be an absolute`},
		{`"/home/op/review-feed"`, `"/` + strings.Repeat("a", 4096) + `"`, `source.path: must be an absolute`},
		{`"/home/op/review-feed"`, `"/a", "extra": 1`, `source: unknown member "extra"`},
		{`"/home/op/fm/`, `"/home//`, `package_root: must be an absolute`},
		{`"package_digest": "sha256:`, `"package_digest": "sha256:0`, `package_digest: must be "sha256:"`},
		{`"manifest_sha256": "sha256:`, `"manifest_sha256": "`, `manifest_sha256: must be "sha256:"`},
		{`"entrypoint_sha256": "s`, `"entrypoint_sha256": "S`, `entrypoint_sha256: must be "sha256:"`},
		{`"bin/firstmate-extension"`, `"../evil"`, `entrypoint: must be a relative path`},
		{`"host_protocol": 1`, `"host_protocol": 0`, `host_protocol: must be an integer`},
		{`"host_protocol": 1`, `"host_protocol": "1"`, `host_protocol: must be an integer`},
		{`"version": 1`, `"version": 1.0`, `capabilities[0].version: must be an integer`},
		{`"process-event-adapter"`, `"other"`, `capabilities[0].name: must be`},
		{`        "review-feed"`, ``, `capabilities[0].adapter_names: the number of elements must be at least 1`},
		{`        "review-feed"`, `"a", "a"`, `capabilities[0].adapter_names[1]: stands in the array twice`},
		{`"trusted_same_user_code": true`, `"trusted_same_user_code": false`, `consents.trusted_same_user_code: must be true`},
		{`"trusted_same_user_code": true`, `"trusted_same_user_code": null`, `consents.trusted_same_user_code: must be true or false`},
		{`"network": true`, `"network": 1`, `consents.network: must be true or false`},
		{`    "network": true,`, ``, `consents: member "network" is missing`},
		{`"network": true`, `"network": true, "extra": true`, `consents: unknown member "extra"`},
		{`300000`, `99`, `timeout_ms: must be an integer from 100 to 3600000`},
		{`300000`, `3600001`, `timeout_ms: must be an integer from 100 to 3600000`},
		{`300000`, `3e5`, `timeout_ms: must be an integer without`},
		{`"timeout_ms"`, `"evil"`, `member "timeout_ms" is missing`},
	} {
		b, _, err := binding.ParseBinding([]byte(replaced(doc, c.old, c.with)))
		if b != nil || !fault.Is(err, fault.SchemaInvalid) || !strings.HasPrefix(err.Error(), "extension binding: "+c.message) || strings.Contains(strings.ToLower(err.Error()), "evil") {
			t.Errorf("%s → %.60s: got %v, want %s", c.old, c.with, err, c.message)
		}
	}
	for _, c := range []struct {
		doc  string
		code fault.Code
	}{
		{replaced(doc, `"host_protocol": 1`, `"host_protocol": 2`), fault.ProtocolIncompatible},
		{replaced(doc, `"version": 1`, `"version": 2`), fault.ProtocolIncompatible},
		{doc + "{}", fault.JSONInvalid},
		{"", fault.JSONInvalid},
		{doc + strings.Repeat(" ", 65537-len(doc)), fault.BindingOversized},
	} {
		if b, _, err := binding.ParseBinding([]byte(c.doc)); b != nil || !fault.Is(err, c.code) {
			t.Errorf("%.60q: %v, want code %s", c.doc, err, c.code)
		}
	}
	if _, _, err := binding.ReadBinding(strings.NewReader(doc + strings.Repeat(" ", 1<<20))); !fault.Is(err, fault.BindingOversized) {
		t.Errorf("over the limit: %v", err)
	}
}

// A binding that another host wrote in another JSON form is read, and keeps the
// digest of its own bytes.
func TestParseBindingTakesTheBytesGiven(t *testing.T) {
	data, digest, err := sampleBinding().Encode()
	if err != nil {
		t.Fatal(err)
	}
	other := []byte(strings.ReplaceAll(string(data), "\n", "\r\n"))
	b, got, err := binding.ParseBinding(other)
	if err != nil || !reflect.DeepEqual(b, sampleBinding()) || got == digest || got != wire.DigestOf(other) {
		t.Errorf("%+v, %s, %v", b, got, err)
	}
}

func FuzzParseBinding(f *testing.F) {
	data, _, err := sampleBinding().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(replaced(string(data), `/home/op/review-feed`, `/\ud83d\ude00\u001b\u007f`)))
	f.Add([]byte(replaced(string(data), `300000`, `3e5`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, digest, err := binding.ParseBinding(data)
		if err != nil {
			switch code := fault.CodeOf(err); code {
			case fault.JSONInvalid, fault.SchemaInvalid, fault.BindingOversized, fault.ProtocolIncompatible:
			default:
				t.Fatalf("code %s", code)
			}
			return
		}
		if digest != wire.DigestOf(data) {
			t.Fatalf("digest %s", digest)
		}
		encoded, _, err := b.Encode()
		if fault.Is(err, fault.BindingOversized) {
			return // compact bytes whose pretty form is larger
		}
		if err != nil {
			t.Fatal(err)
		}
		if again, _, err := binding.ParseBinding(encoded); err != nil || !reflect.DeepEqual(again, b) {
			t.Fatalf("written and read again: %+v, %v", again, err)
		}
	})
}
