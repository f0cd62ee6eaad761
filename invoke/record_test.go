package invoke

import (
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hawser/internal/fault"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
)

func digests() *rapid.Generator[wire.Digest] {
	return rapid.Map(rapid.StringMatching(`[0-9a-f]{64}`), func(hex string) wire.Digest { return wire.Digest("sha256:" + hex) })
}

func records() *rapid.Generator[*record] {
	return rapid.Custom(func(t *rapid.T) *record {
		identities := rapid.SampledFrom([]string{
			"linux-starttime=7 boot-id=01234567-89ab-cdef-0123-456789abcdef pid-ns=1 time-ns=2", "another form", "é",
		})
		pids := rapid.IntRange(1, 1<<31-1)
		r := &record{
			Schema: recordSchema, Token: digests().Draw(t, "token"), Phase: phaseReserved,
			HostPID: pids.Draw(t, "host"), HostIdentity: identities.Draw(t, "identity"),
			ExtensionID: "org.example", BindingDigest: digests().Draw(t, "binding"), RequestID: digests().Draw(t, "request"),
			Operation: rapid.SampledFrom([]string{handshake, Poll, Classify, Terminal, Silent}).Draw(t, "operation"),
		}
		if rapid.Bool().Draw(t, "source") {
			source := "s.1"
			r.SourceID = &source
		}
		if rapid.Bool().Draw(t, "group") {
			pid, identity := pids.Draw(t, "group pid"), identities.Draw(t, "group identity")
			r.Phase, r.GroupPID, r.GroupIdentity = phaseGroup, &pid, &identity
		}
		return r
	})
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := records().Draw(t, "record")
		data, err := strictjson.Canonical(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseRecord(r.Token, append(data, '\n'))
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Fatalf("%v: %+v", err, got)
		}
		if _, err := parseRecord(r.RequestID, data); r.RequestID != r.Token && !fault.Is(err, fault.SchemaInvalid) {
			t.Fatalf("read under another token: %v", err)
		}
		if tokenOfName(recordName(r.Token)) != r.Token || tokenOfTemp(tempName(r.Token)) != r.Token {
			t.Fatal("its name does not tell its token")
		}
	})
}

// TestFilterOnTornRecords: a torn record is never passed over by a filter that
// chooses it whole, and is passed over once it names another.
func TestFilterOnTornRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := records().Draw(t, "record")
		data, err := strictjson.Canonical(r)
		if err != nil {
			t.Fatal(err)
		}
		torn := data[:rapid.IntRange(0, len(data)).Draw(t, "length")]
		if !(Filter{BindingDigest: r.BindingDigest}).couldMatch(torn) {
			t.Fatalf("not chosen: %s", torn)
		}
		if r.SourceID != nil && !(Filter{SourceID: *r.SourceID}).couldMatch(torn) {
			t.Fatalf("not chosen: %s", torn)
		}
		another := Filter{BindingDigest: wire.RandomToken()}
		if named := strings.Contains(string(torn), `"binding_digest":"`+string(r.BindingDigest)+`"`); another.couldMatch(torn) == named {
			t.Fatalf("chosen: %v, naming another: %v: %s", !named, named, torn)
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	token := wire.Digest("sha256:" + strings.Repeat("ab", 32))
	for seed := range 3 {
		r := records().Example(seed)
		r.Token = token
		data, err := strictjson.Canonical(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(""))
	f.Add([]byte("\x00\x00"))
	f.Add([]byte("[]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseRecord(token, data)
		if err != nil {
			if fault.CodeOf(err) == fault.Internal {
				t.Error(err)
			}
			return
		}
		if r.Token != token || r.HostPID < 1 || (r.Phase == phaseGroup) != (r.GroupPID != nil && *r.GroupPID > 0 && r.GroupIdentity != nil) {
			t.Errorf("read %+v", r)
		}
	})
}
