// Package strictjson reads and writes every JSON document that crosses the
// boundary of the process: manifests, bindings, envelopes, receipts, records,
// responses, plugin frames. Its one idea is that a document is either read
// whole, exactly as its schema says, or refused with a stable code.
//
// # Reading
//
// [Doc] says what a document is called in a message, how large it may be and
// which codes its refusals carry. [Doc.Decode] refuses, in the order of "wire:
// Reading JSON", what is over the limit (counted before parsing) and what is
// not one strict JSON document; it hands back a [Value], the cursor that checks
// the schema:
//
//	v, err := doc.Decode(data)
//	if err != nil {
//		return nil, err
//	}
//	v.Members("schema", "id", "timeout_ms")
//	v.Get("schema").Const("example.v1")
//	m := &Example{
//		ID:        v.Get("id").String(wire.CheckExtensionID),
//		TimeoutMS: v.Get("timeout_ms").Int(100, 3_600_000),
//	}
//	return m, v.Err()
//
// The first refusal sticks: everything asked after it answers with a zero
// value, so that a reader is a list of its members and one check at the end.
//
// A message names the document and the place (by member path, or by line and
// column where the document itself chose the name), and never holds a byte of
// the document: what a package wrote does not reach a log or a wake line.
//
// A document is validated in one pass and split further only where the schema
// asks, so a hostile one costs memory in proportion to its bytes.
//
// # Writing
//
// [Canonical] is RFC 8785; [Pretty] is the form for people, over which the
// binding digest is taken: members in the same order, two spaces of indent, one
// array element a line, one LF at the end ("wire: Writing JSON"). Neither
// escapes more than RFC 8785 does: U+007F, "<" and U+2028 stand as they are.
package strictjson
