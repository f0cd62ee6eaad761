package wire_test

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hawser/internal/wire"
)

func long(n int) string { return strings.Repeat("a", n) }

func TestChecks(t *testing.T) {
	for _, c := range []struct {
		name  string
		check func(string) string
		good  []string
		bad   []string
	}{
		{"extension id", wire.CheckExtensionID,
			[]string{"a", "0", "org.example.review-feed", long(128)},
			[]string{"", ".a", "a.", "a..b", "a.-b", "-a", "A", "a_b", "é", "a/b", "a\n", long(129)}},
		{"adapter", wire.CheckAdapter,
			[]string{"a", "review-feed", "1", long(32)},
			[]string{"", "a.b", "-a", "a-", "a--b", "A", "a b", long(33)}},
		{"classification", wire.CheckClassification,
			[]string{"file-signal", long(64)},
			[]string{"", "a.b", "a--b", "File", long(65)}},
		{"version", wire.CheckVersion,
			[]string{"0.0.0", "1.2.3", "10.20.30", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-0.3.7", "1.0.0-x-y-z.--", "1.0.0+001",
				"1.0.0-a+b.c", "1.0.0--", "1.0.0+-", "1.0.0-0a", "99999999999999999999.0.0", "1.0.0-" + long(122)},
			[]string{"", "1", "1.2", "v1.2.3", "1.2.3.4", "01.2.3", "1.02.3", "1.2.03", "1.0.0-", "1.0.0+", "1.0.0-01", "1.0.0-a..b",
				"1.0.0+a+b", "1.0.0+a..b", "1.0.0-é", "-1.0.0", "1.0.0 ", "1..0", "1.0.0-a_b", "1.0.0-" + long(123)}},
		{"source id", wire.CheckSourceID,
			[]string{"a", "A.b_c-9", "_a", "-a", "a..", long(64)},
			[]string{"", ".a", "a/b", "a b", "é", "a\x00", long(65)}},
		{"config ref", wire.CheckConfigRef,
			[]string{"main", " ", "é", "/tmp/x y", "\u0080\u2028", long(512)},
			[]string{"", "a\n", "\x7f", "\x00", "\xff", long(513)}},
		{"diagnostic", wire.CheckDiagnostic,
			[]string{"no", long(512)},
			[]string{"", "a\tb", long(513)}},
		{"package path", wire.CheckPackagePath,
			[]string{"a", "a/b", `a\b`, "a/..b", "...", "é/ ", long(5000)},
			[]string{"", "/a", "a/", "a//b", ".", "a/.", "./a", "..", "a/../b", "a\n", "\x7f", "\xff"}},
		{"entrypoint", wire.CheckEntrypoint,
			[]string{"run.sh", "bin/é", long(256)},
			[]string{"", "/a", `a\b`, "a/../b", "a\nb", long(257)}},
		{"envelope path", wire.CheckEnvelopePath,
			[]string{"run.sh", long(512)},
			[]string{"", "/a", `a\b`, "a//b", long(513)}},
		{"binding path", wire.CheckBindingPath,
			[]string{"/", "/a", "/a/b c/é", "/...", "/" + long(4095)},
			[]string{"", "a", "/a/", "//a", "/a//b", "/a/.", "/..", "/a/../b", "/\xff", "/a\x00", "/" + long(4096)}},
		{"digest", wire.CheckDigest,
			[]string{"sha256:" + strings.Repeat("0a", 32)},
			[]string{"", "sha256:", long(64), "sha256:" + strings.Repeat("0A", 32), "sha256:" + long(63), "sha256:" + long(65),
				"SHA256:" + long(64), "sha256:" + long(63) + "g", "sha256:" + long(63) + "\n", "sha512:" + long(64)}},
	} {
		for _, s := range c.good {
			if why := c.check(s); why != "" {
				t.Errorf("%s %.40q: must be %s", c.name, s, why)
			}
		}
		for _, s := range c.bad {
			if why := c.check(s); why == "" || strings.ContainsAny(why, "\n\x7f") {
				t.Errorf("%s %.40q: accepted, or an unfit reason %q", c.name, s, why)
			}
		}
	}
}

// The version that semver.org suggests as an expression.
var semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$`)

func TestVersionAgainstSemVer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(
			rapid.StringMatching(`[0-9]{1,2}(\.[0-9]{1,2}){2}[-+.0-9a]{0,9}`),
			rapid.StringMatching(`[-+.01aA]{0,12}`),
		).Draw(t, "version")
		if got, want := wire.CheckVersion(s) == "", semver.MatchString(s); got != want {
			t.Errorf("%q: accepted %t, SemVer says %t", s, got, want)
		}
	})
}

func TestDigest(t *testing.T) {
	const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	d := wire.DigestOf(nil)
	if d != "sha256:"+empty || d.Hex() != empty {
		t.Errorf("digest of nothing: %s, hex %s", d, d.Hex())
	}
	if got, ok := wire.ParseDigest(string(d)); !ok || got != d {
		t.Errorf("ParseDigest: %s, %t", got, ok)
	}
	if got, ok := wire.ParseDigest(empty); ok || got != "" {
		t.Errorf("ParseDigest without prefix: %s, %t", got, ok)
	}
}

// The request ids, spelt out as the contract has them.
func TestRequestIDs(t *testing.T) {
	sum := func(text string) wire.Digest {
		h := sha256.Sum256([]byte(text))
		return wire.Digest("sha256:" + hex.EncodeToString(h[:]))
	}
	token, pkg, content := wire.DigestOf([]byte("t")), wire.DigestOf([]byte("p")), wire.DigestOf([]byte("c"))
	poll := wire.PollRequestID("review-feed", "main", 7, token, pkg)
	if want := sum("firstmate-process-event-request-v1\nreview-feed\nmain\n7\n" + string(token) + "\n" + string(pkg) + "\n"); poll != want {
		t.Errorf("poll: %s, want %s", poll, want)
	}
	result := wire.ResultRequestID("result.silent", "review-feed", "main", 7, pkg, content)
	if want := sum("hawser-process-event-result-v1\nresult.silent\nreview-feed\nmain\n7\n" + string(pkg) + "\n" + string(content) + "\n"); result != want {
		t.Errorf("result: %s, want %s", result, want)
	}
}

func TestRandomIdentities(t *testing.T) {
	seen := map[wire.Digest]bool{}
	for range 100 {
		for _, d := range []wire.Digest{wire.RandomToken(), wire.RandomRequestID()} {
			if wire.CheckDigest(string(d)) != "" || seen[d] {
				t.Fatalf("%s is no digest, or came twice", d)
			}
			seen[d] = true
		}
	}
}
