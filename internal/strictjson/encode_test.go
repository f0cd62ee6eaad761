package strictjson_test

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"hawser/internal/fault"
	"hawser/internal/strictjson"
)

// Members in the order of UTF-16 code units: U+FB33 after U+1F600, whose first
// unit is a surrogate, although UTF-8 puts it before.
func TestCanonical(t *testing.T) {
	got, err := strictjson.Canonical(map[string]any{
		"\ufb33": 1, "\U0001f600": 2, "\u20ac": 3, "\r": 4, "1": 5, "\u0080": 6, "\u00f6": 7,
		"a": []any{nil, true, []string(nil), "\"\\/\b\t\n\f\r\x00\x1f\x7f<>&\u2028é"},
		"":  int64(strictjson.MaxInt), "m": -1,
	})
	want := `{"":9007199254740991,"\r":4,"1":5,"a":[null,true,[],` +
		`"\"\\/\b\t\n\f\r\u0000\u001f` + "\x7f<>&\u2028é" + `"],"m":-1,` +
		"\"\u0080\":6,\"ö\":7,\"€\":3,\"\U0001f600\":2,\"\ufb33\":1}"
	if err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
}

func TestPretty(t *testing.T) {
	got, err := strictjson.Pretty(jsontext.Value(
		`{"z":{"b":[1,"\u001b\u007f</a>\u2028"],"a":[]},"e":{},"l":[[],[{"k":null}]]}`))
	want := "{\n  \"e\": {},\n  \"l\": [\n    [],\n    [\n      {\n        \"k\": null\n      }\n    ]\n  ],\n" +
		"  \"z\": {\n    \"a\": [],\n    \"b\": [\n      1,\n      \"\\u001b\x7f</a>\u2028\"\n    ]\n  }\n}\n"
	if err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
}

func TestWritersRefuse(t *testing.T) {
	for name, v := range map[string]any{
		"invalid UTF-8":         "\xff",
		"integer beyond double": int64(1<<53 + 1),
		"not a number":          math.NaN(),
		"not JSON":              jsontext.Value(`{`),
		"duplicate names":       jsontext.Value(`{"a":1,"a":2}`),
		"no JSON form":          make(chan int),
	} {
		c, err := strictjson.Canonical(v)
		if c != nil || !fault.Is(err, fault.Internal) {
			t.Errorf("canonical, %s: %q, %v", name, c, err)
		}
		p, err := strictjson.Pretty(v)
		if p != nil || !fault.Is(err, fault.Internal) {
			t.Errorf("pretty, %s: %q, %v", name, p, err)
		}
	}
}

// FuzzDecode holds the reader against the standard library's and against the
// writers: it accepts exactly the objects that encoding/json reads, minus what
// that one lets pass (duplicate names, lone surrogates, invalid UTF-8, depth),
// and both written forms of what it accepts are accepted again and mean the
// same.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{}`, ` {"a":[1,-0,1.5e3,"x\u00e9\ud83d\ude00"],"b":{"":null,"\u0000":true}} `,
		`{"a":1,"\u0061":2}`, `{"a":"\ud800"}`, "{\"a\":\"\xed\xa0\x80\"}", "\uFEFF{}", `{}{}`, `[]`, ``,
		nested(64), nested(65), `{"a":9007199254740993}`, `{"€":1,"😀":2,"דּ":3}`, "{\"a\":\"\x7f\x1f\"}", `{"a":1e999}`, `{"\/":1}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := sample.Decode(data)
		if strict := strictByHand(data); strict != (err == nil) {
			t.Fatalf("read by hand: %t; decoded: %v", strict, err)
		}
		if err != nil {
			if code := fault.CodeOf(err); code != fault.JSONInvalid && code != fault.JSONOversized && code != fault.SchemaInvalid {
				t.Fatalf("code %s", code)
			}
			return
		}
		v.Members()
		v.Get("a").Strings(0, 3, nil)
		canonical, err := strictjson.Canonical(jsontext.Value(data))
		if err != nil {
			return // an integer beyond 2^53
		}
		form := sample
		form.Form = strictjson.CanonicalForm
		if _, err := form.Decode(canonical); err != nil && len(canonical) <= sample.Limit {
			t.Fatalf("canonical form refused: %v", err)
		}
		pretty, err := strictjson.Pretty(jsontext.Value(data))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.ContainsAny(canonical, "\n\t\r") || !bytes.HasSuffix(pretty, []byte("\n")) {
			t.Fatalf("written as %q and %q", canonical, pretty)
		}
		var want, fromCanonical, fromPretty any
		if json.Unmarshal(data, &want) != nil {
			return // a number beyond float64, which the canonical form saturates
		}
		if err := json.Unmarshal(canonical, &fromCanonical); err != nil || !reflect.DeepEqual(fromCanonical, want) {
			t.Fatalf("canonical means something else: %v", err)
		}
		if err := json.Unmarshal(pretty, &fromPretty); err != nil || !reflect.DeepEqual(fromPretty, want) {
			t.Fatalf("pretty means something else: %v", err)
		}
	})
}

// strictByHand answers from the standard library what Decode should.
func strictByHand(data []byte) bool {
	if len(data) > sample.Limit || !utf8.Valid(data) || !json.Valid(data) || loneSurrogate(string(data)) {
		return false
	}
	type frame struct {
		names map[string]bool // nil for an array
		name  bool            // the next string is a name
	}
	var stack []frame
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	for first := true; ; first = false {
		tok, err := dec.Token()
		if err == io.EOF {
			return true
		}
		if err != nil || first && tok != json.Delim('{') {
			return false
		}
		top := len(stack) - 1
		if top >= 0 && stack[top].names != nil && tok != json.Delim('}') {
			if stack[top].name {
				if stack[top].names[tok.(string)] {
					return false
				}
				stack[top].names[tok.(string)] = true
			}
			stack[top].name = !stack[top].name
		}
		switch tok {
		case json.Delim('{'):
			stack = append(stack, frame{names: map[string]bool{}, name: true})
		case json.Delim('['):
			stack = append(stack, frame{})
		case json.Delim('}'), json.Delim(']'):
			stack = stack[:top]
		}
		if len(stack) > strictjson.MaxDepth {
			return false
		}
	}
}

// loneSurrogate looks for a \u escape of half a pair in valid JSON.
func loneSurrogate(s string) bool {
	unit := func(s string) (n int) {
		if len(s) < 6 || s[:2] != `\u` {
			return 0
		}
		for _, c := range strings.ToLower(s[2:6]) {
			n = n*16 + strings.IndexRune("0123456789abcdef", c)
		}
		return n
	}
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			continue
		}
		switch u := unit(s[i:]); {
		case u >= 0xD800 && u < 0xDC00:
			if low := unit(s[i+6:]); low < 0xDC00 || low > 0xDFFF {
				return true
			}
			i += 11
		case u >= 0xDC00 && u <= 0xDFFF:
			return true
		default:
			i++ // the escaped character may be a backslash
		}
	}
	return false
}
