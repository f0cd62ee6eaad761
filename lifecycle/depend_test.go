package lifecycle

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hawser/internal/home"
	"hawser/internal/wire"
)

const (
	digestA = wire.Digest("sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	digestB = wire.Digest("sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")
)

func registrationOn(digest wire.Digest) []byte {
	return (&home.Registration{Source: "s", Adapter: "a", ConfigRef: "main", Token: string(digestA), Owner: &home.Owner{
		ExtensionID: "org.example", ExtensionVersion: "1.0.0", CapabilityVersion: 1, PackageDigest: digestA, BindingDigest: digest,
	}}).Encode()
}

func TestMayDepend(t *testing.T) {
	both := strings.Replace(string(registrationOn(digestB)), "config_ref", "binding_digest="+string(digestA)+"\nconfig_ref", 1)
	for _, test := range []struct {
		name, text string
		want       bool
	}{
		{"it says so", string(registrationOn(digestA)) + "more", true},
		{"it is on another", string(registrationOn(digestB)) + "more", false},
		{"it says both", both, true},
		{"its binding is illegible", "adapter=a\nbinding_digest=sha256:aa\n", true},
		{"it is cut off before it says", "adapter=a\nowner=extension\nextension_id=or", true},
		{"with other line ends", strings.ReplaceAll(string(registrationOn(digestB)), "\n", "\r\n"), false},
		{"a built-in's", "adapter=a\nargc=7\nargv:\n/bin/x\n", false},
		{"empty", "", false},
		{"of zeros", strings.Repeat("\x00", 100), false},
	} {
		if got := mayDepend([]byte(test.text), digestA); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// TestMayDependOnDamagedRecords: lines of a registration that are lost or moved
// do not hide what it is on, as long as something tells that it was external.
func TestMayDependOnDamagedRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := strings.SplitAfter(string(registrationOn(digestA)), "\n")
		kept := rapid.Permutation(lines).Draw(t, "lines")[:rapid.IntRange(1, len(lines)).Draw(t, "kept")]
		text := strings.Join(kept, "")
		external := slices.ContainsFunc(kept, func(line string) bool {
			return strings.Contains(line, "=") && !strings.HasPrefix(line, "adapter=") && !strings.HasPrefix(line, "argc=")
		})
		if got := mayDepend([]byte(text), digestA); got != external {
			t.Fatalf("%v for:\n%s", got, text)
		}
	})
}
