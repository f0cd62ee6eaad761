package forge

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Encode returns a frame with its LF, members in the order in which the contract
// shows them. It is held against the same rules as a frame that is read, so that
// nothing leaves that the other side must refuse: the error is a *[Violation].
func Encode(f Frame) ([]byte, error) {
	if f.Message == nil {
		return nil, violation(RuleType, "the frame has no message")
	}
	e := encoder{bytes: []byte(`{"version":"` + Version + `"`)}
	e.text("id", f.ID)
	e.text("type", f.Message.kind())
	f.Message.encode(&e)
	if e.invalid {
		return nil, violation(RuleUTF8, "a text is not valid UTF-8")
	}
	e.bytes = append(e.bytes, '}')
	if _, err := Decode(e.bytes); err != nil {
		return nil, err
	}
	return append(e.bytes, '\n'), nil
}

// encoder appends members to an object.
type encoder struct {
	bytes   []byte
	invalid bool // a text was not UTF-8
}

func (m Initialize) encode(e *encoder) {
	list(e, "capabilities", m.Capabilities)
	e.name("limits")
	e.bytes = append(e.bytes, '{')
	for i, limit := range limits {
		if i > 0 {
			e.bytes = append(e.bytes, ',')
		}
		e.quote(limit.name)
		e.bytes = append(e.bytes, ':')
		e.bytes = strconv.AppendInt(e.bytes, limit.value, 10)
	}
	e.bytes = append(e.bytes, '}')
}

func (m Initialized) encode(e *encoder) { list(e, "capabilities", m.Capabilities) }

func (m Request) encode(e *encoder) {
	e.text("operation", string(m.Operation))
	if m.Operation == CapText {
		e.text("input", m.Input)
		return
	}
	e.text("workspace", m.Workspace)
	e.text("instruction", m.Instruction)
	e.integer("timeout_ms", m.TimeoutMS)
}

func (m Progress) encode(e *encoder) {
	e.integer("sequence", int64(m.Sequence))
	e.text("stage", string(m.Stage))
	e.text("text", m.Text)
}

func (m Result) encode(e *encoder) {
	if m.Operation == CapText {
		e.text("output", m.Output)
		return
	}
	if m.CommitSubject != "" {
		e.text("commit_subject", m.CommitSubject)
	}
	if m.Report != nil {
		e.text("summary", m.Report.Summary)
		list(e, "changes", m.Report.Changes)
	}
}

func (m Failure) encode(e *encoder) { e.text("category", string(m.Category)) }

func (m Cancel) encode(*encoder) {}

func (e *encoder) name(name string) {
	e.bytes = append(e.bytes, ',')
	e.quote(name)
	e.bytes = append(e.bytes, ':')
}

func (e *encoder) text(name, value string) {
	e.name(name)
	e.quote(value)
}

func (e *encoder) integer(name string, value int64) {
	e.name(name)
	e.bytes = strconv.AppendInt(e.bytes, value, 10)
}

func list[T ~string](e *encoder, name string, values []T) {
	e.name(name)
	e.bytes = append(e.bytes, '[')
	for i, value := range values {
		if i > 0 {
			e.bytes = append(e.bytes, ',')
		}
		e.quote(string(value))
	}
	e.bytes = append(e.bytes, ']')
}

func (e *encoder) quote(text string) {
	quoted, err := jsontext.AppendQuote(e.bytes, text)
	e.bytes, e.invalid = quoted, e.invalid || err != nil
}
