package strictjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"hawser/internal/fault"
)

// MaxDepth is the deepest nesting of objects and arrays, the root being 1.
const MaxDepth = 64

// A Form is what a document's bytes must look like beyond being JSON.
type Form int

const (
	// AnyForm allows whitespace between tokens and around the document.
	AnyForm Form = iota
	// CompactForm allows no whitespace outside strings: a plugin frame without
	// its LF.
	CompactForm
	// CanonicalForm wants the document's own RFC 8785 form, with at most one LF
	// after it: a received transfer envelope.
	CanonicalForm
)

// Doc describes one kind of document. It is a value without state, safe for
// concurrent use.
type Doc struct {
	Name  string // in messages: "extension manifest"
	Limit int    // bytes, counted before parsing
	Form  Form

	// Open documents are an operator's to read: a message may tell the name of an
	// unknown member. Of all others only its place is told.
	Open bool

	// The codes of refusals, where they are not the usual ones.
	Oversized fault.Code // json-oversized
	Invalid   fault.Code // json-invalid
	Schema    fault.Code // schema-invalid; a response has its own
}

// Read reads a whole document from r, but never more than one byte past its
// limit: an endless one is refused with the Oversized code after that byte. A
// failure of r is code io.
func (d Doc) Read(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, int64(d.Limit)+1))
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "%s: cannot be read", d.Name)
	}
	if err := d.checkSize(data); err != nil {
		return nil, err
	}
	return data, nil
}

// Decode checks that data is one strict JSON document within the limit whose
// root is an object, and returns the cursor over it ("wire: Reading JSON").
// Codes: Oversized, Invalid, Schema. The cursor refers to data, which must not
// change while it is in use.
func (d Doc) Decode(data []byte) (*Value, error) {
	if err := d.checkSize(data); err != nil {
		return nil, err
	}
	if err := d.checkSyntax(data); err != nil {
		return nil, err
	}
	if err := d.checkForm(data); err != nil {
		return nil, err
	}
	start := indexNot(data, space)
	root := &Value{doc: &document{Doc: d, data: data}, raw: data[start:], offset: int64(start)}
	if root.kind() != jsontext.KindBeginObject {
		root.Fail("must be an object")
	}
	return root, root.Err()
}

func (d Doc) checkSize(data []byte) error {
	if len(data) > d.Limit {
		return fault.New(or(d.Oversized, fault.JSONOversized), "%s: larger than %d bytes", d.Name, d.Limit)
	}
	return nil
}

// checkSyntax reads every token once. The decoder refuses invalid UTF-8, lone
// surrogates, bad numbers and, after unescaping, duplicate names; what it
// leaves to its caller is our depth and that nothing follows the document.
func (d Doc) checkSyntax(data []byte) error {
	dec := jsontext.NewDecoder(bytes.NewBuffer(data))
	for tokens := 0; ; tokens++ {
		done, end := tokens > 0 && dec.StackDepth() == 0, dec.InputOffset()
		_, err := dec.ReadToken()
		switch {
		case done && err == io.EOF:
			return nil
		case done:
			return d.invalid(data, end, "something follows the document")
		case err == io.EOF:
			return fault.New(or(d.Invalid, fault.JSONInvalid), "%s: empty", d.Name)
		case err != nil:
			return d.malformed(data, err)
		case dec.StackDepth() > MaxDepth:
			return d.invalid(data, dec.InputOffset(), fmt.Sprintf("nested deeper than %d levels", MaxDepth))
		}
	}
}

// malformed puts the decoder's refusal into words of our own: the decoder's
// quote the document.
func (d Doc) malformed(data []byte, err error) error {
	var offset int64
	var syntax *jsontext.SyntacticError
	if errors.As(err, &syntax) {
		offset = syntax.ByteOffset
	}
	what := "not valid JSON"
	switch {
	case bytes.HasPrefix(data, []byte("\uFEFF")):
		what = "starts with a byte-order mark"
	case errors.Is(err, jsontext.ErrDuplicateName):
		what = "a member name stands twice in one object"
	case errors.Is(err, io.ErrUnexpectedEOF):
		what = "ends in the middle"
	case !utf8.Valid(data):
		what = "not valid UTF-8"
	}
	return d.invalid(data, offset, what)
}

func (d Doc) checkForm(data []byte) error {
	if d.Form == AnyForm {
		return nil
	}
	form := jsontext.Value(data).Clone()
	switch d.Form {
	case CompactForm:
		if err := form.Compact(); err != nil || !bytes.Equal(form, data) {
			return fault.New(or(d.Invalid, fault.JSONInvalid), "%s: holds whitespace between its tokens", d.Name)
		}
	case CanonicalForm:
		if err := form.Canonicalize(); err != nil || !bytes.Equal(form, bytes.TrimSuffix(data, []byte("\n"))) {
			return fault.New(or(d.Invalid, fault.JSONInvalid), "%s: not in its canonical form (RFC 8785)", d.Name)
		}
	}
	return nil
}

func (d Doc) invalid(data []byte, offset int64, what string) error {
	return fault.New(or(d.Invalid, fault.JSONInvalid), "%s: %s at %s", d.Name, what, position(data, offset))
}

// position says where offset is, for a person with an editor: lines and
// columns from 1, columns in bytes.
func position(data []byte, offset int64) string {
	before := data[:min(max(offset, 0), int64(len(data)))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - (bytes.LastIndexByte(before, '\n') + 1) + 1
	return fmt.Sprintf("line %d, column %d", line, column)
}

func or(code, usual fault.Code) fault.Code {
	if code == "" {
		return usual
	}
	return code
}
