package strictjson_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"hawser/internal/fault"
	"hawser/internal/strictjson"
)

var sample = strictjson.Doc{Name: "sample", Limit: 65536}

func nested(depth int) string {
	return `{"a":` + strings.Repeat("[", depth-1) + strings.Repeat("]", depth-1) + `}`
}

func TestDecodeAccepts(t *testing.T) {
	for name, doc := range map[string]string{
		"empty object":                  `{}`,
		"whitespace around":             " \t\r\n{} \t\r\n",
		"every kind":                    `{"a":[null,true,false,0,-1,1.5,1e9,"s",{}]}`,
		"every escape":                  `{"a":"\"\\\/\b\f\n\r\t\u0000\u00e9"}`,
		"surrogate pair, escaped":       `{"a":"\ud83d\ude00"}`,
		"same name in two objects":      `{"a":{"b":1},"c":{"b":1}}`,
		"DEL and U+2028 unescaped":      "{\"a\":\"\x7f\u2028\"}",
		"byte-order mark inside string": "{\"a\":\"\uFEFF\"}",
		"empty member name":             `{"":0}`,
		"number beyond every type":      `{"a":1e999}`,
		"deepest":                       nested(strictjson.MaxDepth),
		"at the limit":                  `{}` + strings.Repeat(" ", sample.Limit-2),
	} {
		if _, err := sample.Decode([]byte(doc)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct{ doc, code, message string }{
		{``, "json-invalid", `sample: empty`},
		{" \n", "json-invalid", `sample: empty`},
		{"\uFEFF{}", "json-invalid", `sample: starts with a byte-order mark at line 1, column 1`},
		{"{\"a\":\"\xff\"}", "json-invalid", `sample: not valid UTF-8 at line 1, column 7`},
		{"{\"a\":\"\xed\xa0\x80\"}", "json-invalid", `not valid UTF-8`},
		{"{\"a\":\"\xc0\xaf\"}", "json-invalid", `not valid UTF-8`},
		{`{"a":"\ud83d"}`, "json-invalid", `not valid JSON`},
		{`{"a":"\ude00\ud83d"}`, "json-invalid", `not valid JSON`},
		{`{"\udead":0}`, "json-invalid", `not valid JSON`},
		{"{\"a\":\"\x1f\"}", "json-invalid", `not valid JSON`},
		{"{\"a\":\"\n\"}", "json-invalid", `not valid JSON`},
		{"{\"a\":\"\x00\"}", "json-invalid", `not valid JSON`},
		{`{"a":"\x41"}`, "json-invalid", `not valid JSON`},
		{`{"a":01}`, "json-invalid", `not valid JSON`},
		{`{"a":+1}`, "json-invalid", `not valid JSON`},
		{`{"a":1.}`, "json-invalid", `not valid JSON`},
		{`{"a":.5}`, "json-invalid", `not valid JSON`},
		{`{"a":0x1}`, "json-invalid", `not valid JSON`},
		{`{"a":NaN}`, "json-invalid", `not valid JSON`},
		{`{"a":-Infinity}`, "json-invalid", `not valid JSON`},
		{`{"a":[1,]}`, "json-invalid", `not valid JSON`},
		{`{"a":1,}`, "json-invalid", `not valid JSON`},
		{`{'a':1}`, "json-invalid", `not valid JSON`},
		{`{a:1}`, "json-invalid", `not valid JSON`},
		{`{"a" 1}`, "json-invalid", `not valid JSON`},
		{`{"a":1/**/}`, "json-invalid", `not valid JSON`},
		{"{\"a\":\u00a01}", "json-invalid", `not valid JSON`},
		{`{"a":`, "json-invalid", `sample: ends in the middle at line 1, column 6`},
		{`{} {}`, "json-invalid", `sample: something follows the document at line 1, column 3`},
		{`{}x`, "json-invalid", `sample: something follows the document`},
		{"{}\x00", "json-invalid", `sample: something follows the document`},
		{"{\n \"a\":1,\n \"a\":2}", "json-invalid", `sample: a member name stands twice in one object at line 3, column 2`},
		{`{"a":[{"b":1,"\u0062":1}]}`, "json-invalid", `a member name stands twice`},
		{`{"/":1,"\/":1}`, "json-invalid", `a member name stands twice`},
		{nested(strictjson.MaxDepth + 1), "json-invalid", `sample: nested deeper than 64 levels at line 1, column 70`},
		{strings.Repeat("[", 60000), "json-invalid", `nested deeper`},
		{strings.Repeat(`{"a":`, 12000), "json-invalid", `nested deeper`},
		{`{}` + strings.Repeat(" ", sample.Limit-1), "json-oversized", `sample: larger than 65536 bytes`},
		{strings.Repeat("x", sample.Limit+1), "json-oversized", `larger`},
		{`[]`, "schema-invalid", `sample: must be an object`},
		{`null`, "schema-invalid", `sample: must be an object`},
		{`"a"`, "schema-invalid", `sample: must be an object`},
		{`1`, "schema-invalid", `sample: must be an object`},
	} {
		v, err := sample.Decode([]byte(c.doc))
		if string(fault.CodeOf(err)) != c.code || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%.40q: got [%s] %v, want [%s] %s", c.doc, fault.CodeOf(err), err, c.code, c.message)
		}
		if v != nil && !fault.Is(v.Err(), fault.SchemaInvalid) {
			t.Errorf("%.40q: refused, but its cursor is usable", c.doc)
		}
	}
}

func TestDecodeOwnCodes(t *testing.T) {
	d := strictjson.Doc{
		Name: "handshake response", Limit: 8,
		Oversized: fault.ResponseOversized, Invalid: fault.ResponseInvalid, Schema: fault.HandshakeInvalid,
	}
	for doc, code := range map[string]fault.Code{
		`{      } `: fault.ResponseOversized,
		`{`:         fault.ResponseInvalid,
		``:          fault.ResponseInvalid,
		`{}{}`:      fault.ResponseInvalid,
		`[]`:        fault.HandshakeInvalid,
	} {
		if _, err := d.Decode([]byte(doc)); !fault.Is(err, code) {
			t.Errorf("%q: %v, want code %s", doc, err, code)
		}
	}
}

func TestForms(t *testing.T) {
	for _, c := range []struct {
		form strictjson.Form
		doc  string
		ok   bool
	}{
		{strictjson.CompactForm, `{"b":1,"a":" \" \\"}`, true},
		{strictjson.CompactForm, `{"b": 1}`, false},
		{strictjson.CompactForm, "{}\n", false},
		{strictjson.CompactForm, " {}", false},
		{strictjson.CompactForm, "{}\r", false},
		{strictjson.CanonicalForm, `{"a":1,"b":[]}`, true},
		{strictjson.CanonicalForm, `{"a":1,"b":[]}` + "\n", true},
		{strictjson.CanonicalForm, `{"a":1,"b":[]}` + "\n\n", false},
		{strictjson.CanonicalForm, `{"a":1,"b":[]}` + "\r\n", false},
		{strictjson.CanonicalForm, `{"b":1,"a":1}`, false},
		{strictjson.CanonicalForm, `{"a":1.0}`, false},
		{strictjson.CanonicalForm, `{"a":9007199254740993}`, false},
		{strictjson.CanonicalForm, `{"a":"\u0041"}`, false},
		{strictjson.CanonicalForm, `{"a":"\/"}`, false},
		{strictjson.CanonicalForm, `{"a": 1}`, false},
	} {
		d := sample
		d.Form = c.form
		_, err := d.Decode([]byte(c.doc))
		if c.ok != (err == nil) || err != nil && !fault.Is(err, fault.JSONInvalid) {
			t.Errorf("form %d, %q: %v", c.form, c.doc, err)
		}
	}
}

type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	return len(p), nil
}

func TestReadStopsAfterTheLimit(t *testing.T) {
	d := strictjson.Doc{Name: "sample", Limit: 100, Oversized: fault.BindingOversized}
	var r endless
	if _, err := d.Read(&r); !fault.Is(err, fault.BindingOversized) {
		t.Errorf("endless input: %v", err)
	}
	if r.read != 101 {
		t.Errorf("read %d bytes of a document limited to 100", r.read)
	}
	data, err := d.Read(strings.NewReader(strings.Repeat(" ", 100)))
	if err != nil || len(data) != 100 {
		t.Errorf("at the limit: %d bytes, %v", len(data), err)
	}
}

func TestReadReportsTheReader(t *testing.T) {
	broken := errors.New("broken")
	_, err := sample.Read(io.MultiReader(strings.NewReader("{"), errReader{broken}))
	if !fault.Is(err, fault.IO) || !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }
