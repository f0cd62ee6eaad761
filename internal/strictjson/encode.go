package strictjson

import (
	"bytes"
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"hawser/internal/fault"
)

// Canonical returns the RFC 8785 form of v, without a line end. v is anything
// that go-json-experiment marshals, a [jsontext.Value] of valid JSON included.
// A string that is not UTF-8 and a number that the form cannot hold exactly,
// such as an integer beyond ±[MaxInt], are code internal: whoever made v checks
// what comes from outside before it is written.
func Canonical(v any) ([]byte, error) {
	out, err := canonical(v)
	return out, fault.Wrap(fault.Internal, err, "JSON cannot be written")
}

// Pretty returns the form for people of v, with its LF: members in the order of
// RFC 8785, two spaces of indent, ": ", one array element a line. It takes what
// [Canonical] takes.
func Pretty(v any) ([]byte, error) {
	out, err := canonical(v)
	if err == nil {
		err = out.Indent(jsontext.WithIndent("  "))
	}
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "JSON cannot be written")
	}
	return append(out, '\n'), nil
}

var errInexact = errors.New("an integer is beyond 2^53")

func canonical(v any) (jsontext.Value, error) {
	exact, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	out := jsontext.Value(exact)
	if err := out.Canonicalize(jsontext.CanonicalizeRawInts(false)); err != nil {
		return nil, err
	}
	// RFC 8785 takes every number for a double and so rounds large integers
	// without a word.
	rounded := out.Clone()
	if err := rounded.Canonicalize(); err != nil {
		return nil, err
	}
	if !bytes.Equal(rounded, out) {
		return nil, errInexact
	}
	return out, nil
}
