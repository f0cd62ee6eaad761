package home

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hawser/internal/fault"
	"hawser/internal/wire"
)

const hex1, hex2 = "sha256:1111111111111111111111111111111111111111111111111111111111111111", "sha256:2222222222222222222222222222222222222222222222222222222222222222"

const externalRecord = `adapter=review-feed
owner=extension
extension_schema=fm-procevent-extension-owner.v1
extension_id=org.example.review-feed
extension_version=1.2.3
capability_version=1
package_digest=` + hex1 + `
binding_digest=` + hex2 + `
config_ref=main
registration_token=` + hex1 + `
argc=0
argv:
`

func TestParseRegistration(t *testing.T) {
	reg, err := ParseRegistration("feed.main", []byte(externalRecord))
	if err != nil {
		t.Fatal(err)
	}
	want := &Registration{Source: "feed.main", Adapter: "review-feed", ConfigRef: "main", Token: hex1,
		Owner: &Owner{"org.example.review-feed", "1.2.3", 1, wire.Digest(hex1), wire.Digest(hex2)}}
	if !reflect.DeepEqual(reg, want) {
		t.Fatalf("got %+v %+v", reg, reg.Owner)
	}
	if got := string(reg.Encode()); got != externalRecord {
		t.Fatalf("encoded as\n%s", got)
	}
	// A reference may look like the line that ends the keyed ones.
	other := strings.Replace(externalRecord, "config_ref=main", "config_ref=file:argv:", 1)
	reg, err = ParseRegistration("feed.main", []byte(other))
	if err != nil || reg.ConfigRef != "file:argv:" {
		t.Fatalf("got %+v, %v", reg, err)
	}
	builtin := "adapter=ci\nargc=2\nargv:\n--flag=x\n\n"
	reg, err = ParseRegistration("ci", []byte(builtin))
	if err != nil {
		t.Fatal(err)
	}
	if reg.Owner != nil || !reflect.DeepEqual(reg.Argv, []string{"--flag=x", ""}) {
		t.Fatalf("got %+v", reg)
	}
	if got := string(reg.Encode()); got != builtin {
		t.Fatalf("encoded as\n%s", got)
	}
}

// TestEveryDamagedRegistrationIsRefused drops, doubles, swaps and alters each
// line: nothing with a trace of an external owner may pass for another record.
func TestEveryDamagedRegistrationIsRefused(t *testing.T) {
	all := strings.SplitAfter(strings.TrimSuffix(externalRecord, "\n"), "\n")
	all[len(all)-1] += "\n"
	damaged := map[string]string{
		"empty": "", "no end": strings.TrimSuffix(externalRecord, "\n"), "no argv": "adapter=ci\nargc=0\n",
		"built-in without arguments": "adapter=ci\nargc=0\nargv:\n", "argc too large": "adapter=ci\nargc=2\nargv:\na\n",
		"argc with a zero": "adapter=ci\nargc=01\nargv:\na\n", "extra argument": externalRecord + "x\n",
		"carriage return": strings.ReplaceAll(externalRecord, "\n", "\r\n"), "NUL": strings.Replace(externalRecord, "main", "ma\x00in", 1),
		"owner in a built-in": "adapter=ci\nowner=extension\nargc=1\nargv:\na\n",
	}
	for i := range all {
		without := strings.Join(append(append([]string{}, all[:i]...), all[i+1:]...), "")
		damaged["without "+all[i]] = without
		damaged["twice "+all[i]] = strings.Join(all[:i+1], "") + strings.Join(all[i:], "")
		if i > 0 {
			swapped := append([]string{}, all...)
			swapped[i-1], swapped[i] = swapped[i], swapped[i-1]
			damaged["swapped "+all[i]] = strings.Join(swapped, "")
		}
		if key, _, ok := strings.Cut(all[i], "="); ok {
			damaged["empty "+key] = strings.Replace(externalRecord, all[i], key+"=\n", 1)
		}
	}
	for name, record := range damaged {
		_, err := ParseRegistration("s", []byte(record))
		if !fault.Is(err, fault.RegistrationInvalid) {
			t.Errorf("%q: got %v", name, err)
		}
	}
}

func TestRegistrationRoundTrip(t *testing.T) {
	text := rapid.StringMatching(`[ -~]{0,20}`)
	rapid.Check(t, func(t *rapid.T) {
		reg := &Registration{Source: "s", Adapter: rapid.StringMatching(`[a-z0-9]{1,8}(-[a-z0-9]{1,8})?`).Draw(t, "adapter"),
			Argv: rapid.SliceOfN(text, 1, 5).Draw(t, "argv")}
		got, err := ParseRegistration("s", reg.Encode())
		if err != nil || !reflect.DeepEqual(got, reg) {
			t.Fatalf("got %+v, %v; want %+v", got, err, reg)
		}
	})
}

func FuzzParseRegistration(f *testing.F) {
	f.Add([]byte(externalRecord))
	f.Add([]byte("adapter=ci\nargc=1\nargv:\na\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		reg, err := ParseRegistration("s", data)
		if err != nil {
			if !fault.Is(err, fault.RegistrationInvalid) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if !bytes.Equal(reg.Encode(), data) {
			t.Fatalf("%q was accepted but encodes as %q", data, reg.Encode())
		}
	})
}

func FuzzParseOwner(f *testing.F) {
	f.Add((&Owner{"org.example.x", "1.0.0", 1, hex1, hex2}).Encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		owner, err := ParseOwner("f", data)
		if err == nil && !bytes.Equal(owner.Encode(), data) {
			t.Fatalf("%q was accepted but encodes as %q", data, owner.Encode())
		}
		if err != nil && !fault.Is(err, fault.ResultInvalid) {
			t.Fatalf("refused with %v", err)
		}
	})
}

func TestParseResultName(t *testing.T) {
	tests := []struct {
		name, source string
		n            uint64
		suffix       string
		ok           bool
	}{
		{"a.1.result", "a", 1, "result", true},
		{"a.1.2.result", "a.1", 2, "result", true},
		{"a.b.10.extension", "a.b", 10, "extension", true},
		{"a.0.result", "", 0, "", false},
		{"a.01.result", "", 0, "", false},
		{"a.+1.result", "", 0, "", false},
		{"a.99999999999999999999.result", "", 0, "", false},
		{".a.1.result", "", 0, "", false},
		{"1.result", "", 0, "", false},
		{"result", "", 0, "", false},
	}
	for _, test := range tests {
		r, suffix, ok := ParseResultName(test.name)
		if ok != test.ok || r.Source != test.source || r.Sequence != test.n || suffix != test.suffix {
			t.Errorf("%s: got %+v %s %v", test.name, r, suffix, ok)
		}
	}
}

func TestResults(t *testing.T) {
	dir := openHere(t)
	for _, name := range []string{"a.2.result", "a.2.adapter", "a.2.extension", "a.10.result", "a.10.handled", "a.3.extension", "b.1.result", "junk"} {
		if err := os.WriteFile(filepath.Join(dir.Path(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Results(dir)
	want := []Result{{ResultName{"a", 2}, true, false}, {ResultName{"a", 10}, false, true}, {ResultName{"b", 1}, false, false}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v", got, err)
	}
}
