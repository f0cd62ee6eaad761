package binding_test

import (
	"reflect"
	"strings"
	"testing"

	"hawser/binding"
	"hawser/internal/fault"
	"hawser/internal/wire"
)

const manifest = `{
  "schema": "firstmate.extension-manifest.v1",
  "id": "org.example.review-feed",
  "version": "1.2.3",
  "host_protocols": [1],
  "entrypoint": "bin/firstmate-extension",
  "capabilities": [
    {
      "name": "process-event-adapter",
      "versions": [2, 1],
      "adapter_names": ["review-feed", "other"]
    }
  ],
  "required_consents": ["network"]
}
`

func TestParseManifest(t *testing.T) {
	m, digest, err := binding.ReadManifest(strings.NewReader(manifest))
	if err != nil {
		t.Fatal(err)
	}
	want := &binding.Manifest{
		ID: "org.example.review-feed", Version: "1.2.3", HostProtocols: []int64{1}, Entrypoint: "bin/firstmate-extension",
		CapabilityVersions: []int64{2, 1}, AdapterNames: []string{"review-feed", "other"}, RequiredConsents: []binding.Consent{binding.Network},
	}
	if !reflect.DeepEqual(m, want) || digest != wire.DigestOf([]byte(manifest)) {
		t.Errorf("got %+v, %s", m, digest)
	}
	if _, err := binding.ParseManifest([]byte(replaced(manifest, `["network"]`, `[]`))); err != nil {
		t.Errorf("no required consents: %v", err)
	}
}

// TestForeignManifest: of what somebody else wrote no message tells a name.
func TestForeignManifest(t *testing.T) {
	m, err := binding.ParseForeignManifest([]byte(manifest))
	if err != nil || m.ID != "org.example.review-feed" {
		t.Errorf("%+v, %v", m, err)
	}
	_, err = binding.ParseForeignManifest([]byte(strings.Replace(manifest, "{", `{"LEAKME\n": 1,`, 1)))
	if !fault.Is(err, fault.SchemaInvalid) || strings.Contains(err.Error(), "LEAKME") {
		t.Errorf("got %v", err)
	}
}

func TestParseManifestRefuses(t *testing.T) {
	for _, c := range []struct{ old, with, message string }{
		{`manifest.v1`, `manifest.v2`, `schema: must be "firstmate.extension-manifest.v1"`},
		{`"id": "org`, `"id": ".org`, `id: must be 1 to 128 bytes`},
		{`"1.2.3"`, `"v1.2.3"`, `version: must be a semantic version`},
		{`"1.2.3"`, `1`, `version: must be a string`},
		{`[1]`, `[]`, `host_protocols: the number of elements must be at least 1`},
		{`[1]`, `[0]`, `host_protocols[0]: must be an integer from 1`},
		{`[1]`, `[1.0]`, `host_protocols[0]: must be an integer without`},
		{`[1]`, `[1,2,1]`, `host_protocols[2]: stands in the array twice`},
		{`[1]`, `["1"]`, `host_protocols[0]: must be an integer`},
		{`[1]`, `null`, `host_protocols: must be an array`},
		{`"bin/firstmate-extension"`, `"bin/../evil"`, `entrypoint: must be a relative path`},
		{`"bin/firstmate-extension"`, `"/bin/sh"`, `entrypoint: must be a relative path`},
		{`"bin/firstmate-extension"`, `"bin\\evil"`, `entrypoint: must be a relative path`},
		{`"process-event-adapter"`, `"lifecycle-sink"`, `capabilities[0].name: must be "process-event-adapter"`},
		{`[2, 1]`, `[1, 1]`, `capabilities[0].versions[1]: stands in the array twice`},
		{`[2, 1]`, `[]`, `capabilities[0].versions: the number of elements must be at least 1`},
		{`["review-feed", "other"]`, `[]`, `capabilities[0].adapter_names: the number of elements must be at least 1`},
		{`"other"`, `"review-feed"`, `capabilities[0].adapter_names[1]: stands in the array twice`},
		{`"other"`, `"Evil"`, `capabilities[0].adapter_names[1]: must be 1 to 32`},
		{"\n    }\n  ],", "\n    }, {}\n  ],", `capabilities: the number of elements must be 1`},
		{`["network"]`, `["network", "network"]`, `required_consents[1]: stands in the array twice`},
		{`["network"]`, `["evil"]`, `required_consents[0]: must be one of network, credential-store, task-metadata, artifact-references`},
		{`["network"]`, `["trusted-same-user-code"]`, `required_consents[0]: must be one of`},
		{`["network"]`, `["network"], "extra": 1`, `unknown member "extra"`},
		{`"name": "process`, `"extra": 1, "name": "process`, `capabilities[0]: unknown member "extra"`},
		{`"version": "1.2.3",`, ``, `member "version" is missing`},
		{`"versions": [2, 1],`, ``, `capabilities[0]: member "versions" is missing`},
	} {
		doc := replaced(manifest, c.old, c.with)
		m, err := binding.ParseManifest([]byte(doc))
		if m != nil || !fault.Is(err, fault.SchemaInvalid) || !strings.HasPrefix(err.Error(), "extension manifest: "+c.message) || strings.Contains(strings.ToLower(err.Error()), "evil") {
			t.Errorf("%s → %s: got %v, want %s", c.old, c.with, err, c.message)
		}
	}
	if _, err := binding.ParseManifest([]byte(replaced(manifest, `"version"`, `"id": "a", "version"`))); !fault.Is(err, fault.JSONInvalid) {
		t.Errorf("duplicate member: %v", err)
	}
	full := manifest + strings.Repeat(" ", 65536-len(manifest))
	if _, _, err := binding.ReadManifest(strings.NewReader(full)); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	if _, _, err := binding.ReadManifest(strings.NewReader(full + " ")); !fault.Is(err, fault.ManifestOversized) {
		t.Errorf("over the limit: %v", err)
	}
	if _, err := binding.ParseManifest([]byte(full + " ")); !fault.Is(err, fault.ManifestOversized) {
		t.Errorf("over the limit: %v", err)
	}
}

func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(manifest))
	f.Add([]byte(replaced(manifest, `[2, 1]`, `[2, 1e0]`)))
	f.Add([]byte(replaced(manifest, `"other"`, `"review\u002dfeed"`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := binding.ParseManifest(data)
		if err != nil {
			if code := fault.CodeOf(err); code != fault.JSONInvalid && code != fault.SchemaInvalid && code != fault.ManifestOversized {
				t.Fatalf("code %s", code)
			}
			return
		}
		if wire.CheckExtensionID(m.ID)+wire.CheckVersion(m.Version)+wire.CheckEntrypoint(m.Entrypoint) != "" ||
			len(m.HostProtocols) == 0 || len(m.CapabilityVersions) == 0 || len(m.AdapterNames) == 0 {
			t.Fatalf("accepted %+v", m)
		}
		terms, err := binding.Choose(m, binding.Options{
			Adapters: m.AdapterNames, TrustSameUserCode: true, TimeoutMS: binding.DefaultTimeoutMS,
			Consents: []string{"network", "credential-store", "task-metadata", "artifact-references"},
		})
		if err != nil && !fault.Is(err, fault.ProtocolIncompatible) || err == nil && len(terms.AdapterNames) != len(m.AdapterNames) {
			t.Fatalf("with everything given: %+v, %v", terms, err)
		}
	})
}
