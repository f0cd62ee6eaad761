package strictjson

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"hawser/internal/fault"
)

// MaxInt is the largest integer that every JSON reader holds exactly, 2^53-1.
const MaxInt = 1<<53 - 1

// A Check returns "" for a string that is as it must be, else what it must be,
// in words that follow "must be", such as "1 to 64 bytes". It never
// quotes the string.
type Check func(string) string

// Value is a cursor at one value of a decoded document. The first refusal of
// any cursor of a document sticks to the document: [Value.Err] returns it, and
// every accessor after it returns a zero value. Cursors of one document are
// not safe for concurrent use.
type Value struct {
	doc        *document
	parent     *Value
	name       string // of a member
	nameOffset int64  // in the document
	index      int    // of an element
	raw        jsontext.Value
	offset     int64   // of raw in the document
	parts      []Value // members or elements, once split
}

type document struct {
	Doc
	data []byte
	err  error
}

// Err returns the first refusal of the document, nil if there was none.
func (v *Value) Err() error { return v.doc.err }

// Fail refuses the document, unless it was refused before, with its Schema code
// and a message "<document>: <member path>: <what>". The message must hold
// nothing of the document.
func (v *Value) Fail(format string, args ...any) {
	if v.doc.err == nil {
		v.doc.err = fault.New(or(v.doc.Schema, fault.SchemaInvalid),
			"%s: %s%s", v.doc.Name, v.path(": "), fmt.Sprintf(format, args...))
	}
}

// Members checks that the value is an object with exactly these members. A name
// with a "?" after it may be absent.
func (v *Value) Members(names ...string) {
	if !v.is(jsontext.KindBeginObject, "an object") {
		return
	}
	for _, name := range names {
		if name, optional := strings.CutSuffix(name, "?"); !optional && v.member(name) == nil {
			v.Fail("member %q is missing", name)
		}
	}
	for i := range v.split() {
		m := &v.parts[i]
		if !slices.Contains(names, m.name) && !slices.Contains(names, m.name+"?") {
			if v.doc.Open && len(m.name) <= 64 {
				v.Fail("unknown member %q", m.name)
			}
			// Otherwise the name is the document's own: only its place is told.
			v.Fail("unknown member at %s", position(v.doc.data, m.nameOffset))
			return
		}
	}
}

// Get returns the member of an object; a missing one is refused.
func (v *Value) Get(name string) *Value {
	if v.is(jsontext.KindBeginObject, "an object") {
		if m := v.member(name); m != nil {
			return m
		}
		v.Fail("member %q is missing", name)
	}
	return &Value{doc: v.doc}
}

// Has reports whether an object has the member.
func (v *Value) Has(name string) bool {
	return v.is(jsontext.KindBeginObject, "an object") && v.member(name) != nil
}

// IsNull reports whether the value is null. Every typed accessor refuses null.
func (v *Value) IsNull() bool {
	return v.doc.err == nil && v.kind() == jsontext.KindNull
}

// Bool returns a boolean.
func (v *Value) Bool() bool {
	if v.doc.err != nil {
		return false
	}
	switch v.kind() {
	case jsontext.KindTrue:
		return true
	case jsontext.KindFalse:
	default:
		v.Fail("must be true or false")
	}
	return false
}

// Int returns an integer from lo to hi, both included and within ±[MaxInt]. A
// fraction, an exponent or "-0" is refused even where the value would fit.
func (v *Value) Int(lo, hi int64) int64 {
	if !v.is(jsontext.KindNumber, "an integer") {
		return 0
	}
	text := string(v.raw)
	if text == "-0" || strings.ContainsAny(text, ".eE") {
		v.Fail("must be an integer without fraction, exponent or -0")
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < lo || n > hi {
		v.Fail("must be an integer from %d to %d", lo, hi)
		return 0
	}
	return n
}

// String returns a string that passes check; a nil check takes any.
func (v *Value) String(check Check) string {
	if !v.is(jsontext.KindString, "a string") {
		return ""
	}
	text := string(unquote(v.raw))
	if check != nil {
		if must := check(text); must != "" {
			v.Fail("must be %s", must)
			return ""
		}
	}
	return text
}

// Text returns a string as bytes. They are mostly the document's own, and must
// not be changed: for strings that are too long to be copied.
func (v *Value) Text() []byte {
	if !v.is(jsontext.KindString, "a string") {
		return nil
	}
	return unquote(v.raw)
}

// Const checks that the value is exactly this string.
func (v *Value) Const(want string) {
	v.String(func(s string) string {
		if s != want {
			return strconv.Quote(want)
		}
		return ""
	})
}

// Array returns the elements of an array of lo to hi of them.
func (v *Value) Array(lo, hi int) []*Value {
	if !v.is(jsontext.KindBeginArray, "an array") {
		return nil
	}
	parts := v.split()
	if len(parts) < lo || len(parts) > hi {
		switch hi {
		case lo:
			v.Fail("the number of elements must be %d", lo)
		case math.MaxInt:
			v.Fail("the number of elements must be at least %d", lo)
		default:
			v.Fail("the number of elements must be %d to %d", lo, hi)
		}
		return nil
	}
	elements := make([]*Value, len(parts))
	for i := range parts {
		elements[i] = &parts[i]
	}
	return elements
}

// Strings returns an array of lo to hi strings that each pass check.
func (v *Value) Strings(lo, hi int, check Check) []string {
	return list(v.Array(lo, hi), func(e *Value) string { return e.String(check) })
}

// StringSet returns an array of lo to hi different strings that each pass
// check, in the document's order.
func (v *Value) StringSet(lo, hi int, check Check) []string {
	return set(v.Array(lo, hi), func(e *Value) string { return e.String(check) })
}

// IntSet returns a non-empty array of different integers from lo to hi, in the
// document's order.
func (v *Value) IntSet(lo, hi int64) []int64 {
	return set(v.Array(1, math.MaxInt), func(e *Value) int64 { return e.Int(lo, hi) })
}

func list[T any](elements []*Value, read func(*Value) T) []T {
	out := make([]T, 0, len(elements))
	for _, e := range elements {
		out = append(out, read(e))
		if e.doc.err != nil {
			return nil
		}
	}
	return out
}

func set[T comparable](elements []*Value, read func(*Value) T) []T {
	out := list(elements, read)
	seen := make(map[T]bool, len(out))
	for i, item := range out {
		if seen[item] {
			elements[i].Fail("stands in the array twice")
			return nil
		}
		seen[item] = true
	}
	return out
}

// is reports whether the value is of the kind, and refuses it otherwise.
func (v *Value) is(kind jsontext.Kind, what string) bool {
	if v.doc.err != nil {
		return false
	}
	if v.kind() != kind {
		v.Fail("must be %s", what)
		return false
	}
	return true
}

func (v *Value) kind() jsontext.Kind { return v.raw.Kind() }

func (v *Value) member(name string) *Value {
	for i := range v.split() {
		if v.parts[i].name == name {
			return &v.parts[i]
		}
	}
	return nil
}

// split cuts an object or array into its members or elements, once. Decode has
// checked the bytes, and here every value is met again at each level that it is
// below: so they are not read as JSON again, only cut.
func (v *Value) split() []Value {
	if v.parts != nil {
		return v.parts
	}
	named := v.raw[0] == '{'
	at := 1
	next := func() (raw jsontext.Value, offset int64) {
		start := at + indexNot(v.raw[at:], space+",:")
		at = start + valueLen(v.raw[start:])
		return v.raw[start:at], v.offset + int64(start)
	}
	for {
		part := Value{doc: v.doc, parent: v, index: len(v.parts)}
		part.raw, part.offset = next()
		if len(part.raw) == 0 { // the closing bracket
			return v.parts
		}
		if named {
			part.name, part.nameOffset = string(unquote(part.raw)), part.offset
			part.raw, part.offset = next()
		}
		v.parts = append(v.parts, part)
	}
}

const space = " \t\r\n"

func indexNot(b []byte, set string) int {
	return len(b) - len(bytes.TrimLeft(b, set))
}

// valueLen returns the length of the value that b begins with, in bytes that were
// validated; 0 at a closing bracket.
func valueLen(b []byte) int {
	depth := 0
	for i := 0; i < len(b); {
		switch b[i] {
		case '"':
			i += stringLen(b[i:])
		case '[', '{':
			depth++
			i++
			continue
		case ']', '}':
			if depth == 0 {
				return i
			}
			depth--
			i++
		case ',', ':', ' ', '\t', '\r', '\n':
			i++
			continue
		default:
			i += bytes.IndexAny(b[i:], space+",]}")
		}
		if depth == 0 {
			return i
		}
	}
	return len(b)
}

// stringLen returns the length of the JSON string that b begins with. A quote is
// its end unless an odd number of backslashes stands before it.
func stringLen(b []byte) int {
	for end := 1; ; {
		end += bytes.IndexByte(b[end:], '"') + 1
		text := b[1 : end-1]
		if escapes := len(text) - len(bytes.TrimRight(text, `\`)); escapes%2 == 0 {
			return end
		}
	}
}

// unquote returns the text of a JSON string that was validated; a part of raw if
// it can.
func unquote(raw jsontext.Value) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	text, _ := jsontext.AppendUnquote(nil, raw)
	return text
}

// path is the member path followed by end, and "" for the root.
func (v *Value) path(end string) string {
	switch {
	case v.parent == nil:
		return ""
	case v.name == "":
		return v.parent.path("") + "[" + strconv.Itoa(v.index) + "]" + end
	default:
		return v.parent.path(".") + v.name + end
	}
}
