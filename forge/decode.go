package forge

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Decode reads one frame without its LF. It takes every frame that the protocol
// allows in some session; whether it is due in this one is for [Session] and
// [Serve] to say. The error is a *[Violation] without a frame number.
//
// The bytes are gone through once, token by token, and nothing refers to them
// afterwards. A text is measured before it is copied, and a value of the wrong
// type is refused at its first token: a hostile frame costs less than a good one.
func Decode(data []byte) (Frame, error) {
	// The buffer is the decoder's in place; its capacity ends with the frame.
	d := decoder{data: data, json: jsontext.NewDecoder(bytes.NewBuffer(data[:len(data):len(data)]))}
	d.frame()
	if d.violation != nil {
		return Frame{}, d.violation
	}
	message := d.message()
	if d.violation != nil {
		return Frame{}, d.violation
	}
	return Frame{ID: d.id, Message: message}, nil
}

// limits are the members of limits and their only values, in the contract's order.
var limits = []struct {
	name  string
	value int64
}{
	{"frame_bytes", MaxFrameBytes},
	{"progress_frames", MaxProgressFrames},
	{"text_bytes", MaxTextBytes},
	{"progress_text_bytes", MaxProgressTextBytes},
	{"commit_subject_bytes", MaxCommitSubjectBytes},
}

// decoder reads a frame. The first violation sticks, and every question after
// it is answered with a zero value.
type decoder struct {
	data      []byte
	json      *jsontext.Decoder
	violation *Violation

	seen         []string // members, in the frame's order
	id           string
	kind         string
	capabilities []Capability
	request      Request
	progress     Progress
	result       Result
	report       Report
	category     Category
}

// frame reads the one object and whatever members it has. Every name means the
// same in each type of frame, so the order of members does not matter.
func (d *decoder) frame() {
	if token, _ := d.next(); token.Kind() != jsontext.KindBeginObject {
		d.fail(RuleJSON, "the frame is not a JSON object")
		return
	}
	d.members(d.member)
	if end := int(d.json.InputOffset()); d.violation == nil && end != len(d.data) {
		d.unexpected(end)
	}
}

func (d *decoder) member(name string) {
	d.seen = append(d.seen, name)
	switch name {
	case "version":
		d.word(name, RuleVersion, Version)
	case "id":
		if d.id = d.text(name, RuleID, 32, 32); !validID(d.id) {
			d.fail(RuleID, "id is not 32 lower-case hex digits")
		}
	case "type":
		d.kind = d.word(name, RuleType, "initialize", "initialized", "execute", "progress", "result", "failure", "cancel")
	case "capabilities":
		d.capabilitySet(name)
	case "limits":
		d.limits(name)
	case "operation":
		d.request.Operation = Capability(d.word(name, RuleOperation, string(CapText), string(CapWorkspaceEdit)))
	case "input":
		d.request.Input = d.text(name, RulePayload, 0, MaxTextBytes)
	case "workspace":
		d.request.Workspace = d.absolutePath(name)
	case "instruction":
		d.request.Instruction = d.text(name, RulePayload, 1, MaxInstructionBytes)
	case "timeout_ms":
		d.request.TimeoutMS = d.integer(name, RulePayload, 1, MaxTimeoutMS)
	case "sequence":
		d.progress.Sequence = int(d.integer(name, RuleProgress, 1, MaxProgressFrames))
	case "stage":
		d.progress.Stage = Stage(d.word(name, RuleProgress, string(Started), string(Working), string(Finalizing)))
	case "text":
		d.progress.Text = d.text(name, RuleProgress, 0, MaxProgressTextBytes)
	case "output":
		d.result.Output = d.text(name, RulePayload, 0, MaxTextBytes)
	case "commit_subject":
		d.result.CommitSubject = d.line(name, RuleCommitSubject, MaxCommitSubjectBytes)
	case "summary":
		d.report.Summary = d.line(name, RuleReport, MaxSummaryBytes)
	case "changes":
		d.changes(name)
	case "category":
		d.category = Category(d.word(name, RuleCategory,
			string(InvalidRequest), string(Incompatible), string(ExecutionFailed), string(Cancelled)))
	default:
		d.fail(RuleUnknownMember, "a member has a name that the protocol does not know")
	}
}

// message puts the members together: exactly those that the frame's type has.
func (d *decoder) message() Message {
	d.require("version", "id", "type")
	switch d.kind {
	case "initialize":
		d.require("capabilities", "limits")
		d.allow("capabilities", "limits")
		return Initialize{d.capabilities}
	case "initialized":
		d.require("capabilities")
		d.allow("capabilities")
		return Initialized{d.capabilities}
	case "execute":
		d.require("operation")
		payload := []string{"input"}
		if d.request.Operation == CapWorkspaceEdit {
			payload = []string{"workspace", "instruction", "timeout_ms"}
		}
		d.require(payload...)
		d.allow(append(payload, "operation")...)
		return d.request
	case "progress":
		d.require("sequence", "stage", "text")
		d.allow("sequence", "stage", "text")
		return d.progress
	case "result":
		return d.resultMessage()
	case "failure":
		d.require("category")
		d.allow("category")
		return Failure{d.category}
	case "cancel":
		d.allow()
		return Cancel{}
	}
	return nil
}

// resultMessage tells the two kinds of result apart by the one member that only
// and always the result of text has.
func (d *decoder) resultMessage() Result {
	if d.has("output") {
		d.allow("output")
		d.result.Operation = CapText
		return d.result
	}
	d.allow("commit_subject", "summary", "changes")
	d.result.Operation = CapWorkspaceEdit
	if d.has("summary") != d.has("changes") {
		d.fail(RuleReport, "one of summary and changes stands without the other")
	}
	if d.has("summary") {
		d.result.Report = &d.report
	}
	return d.result
}

func (d *decoder) has(name string) bool { return slices.Contains(d.seen, name) }

func (d *decoder) require(names ...string) {
	for _, name := range names {
		if !d.has(name) {
			d.fail(RuleMissingMember, "member %s is missing", name)
		}
	}
}

// allow refuses members of other types of frame.
func (d *decoder) allow(names ...string) {
	for _, name := range d.seen {
		if !slices.Contains(names, name) && name != "version" && name != "id" && name != "type" {
			d.fail(RuleUnknownMember, "member %s has no place in this %s frame", name, d.kind)
		}
	}
}

// Members, by what they may hold.

// text reads a string of lo to hi bytes.
func (d *decoder) text(name string, rule Rule, lo, hi int) string {
	token, size := d.next()
	if !d.is(token, jsontext.KindString, name, "a string") {
		return ""
	}
	const quotes, longestEscape = 2, 6 // \u0041 is one byte of text
	if size > quotes+longestEscape*hi {
		d.fail(rule, "%s is longer than %d bytes", name, hi)
		return ""
	}
	text := token.String()
	switch {
	case len(text) > hi:
		d.fail(rule, "%s is longer than %d bytes", name, hi)
		return ""
	case len(text) < lo:
		d.fail(rule, "%s is shorter than %d bytes", name, lo)
		return ""
	}
	return text
}

// word reads a string out of a closed set.
func (d *decoder) word(name string, rule Rule, words ...string) string {
	const longest = 64
	text := d.text(name, rule, 0, longest)
	if !slices.Contains(words, text) {
		d.fail(rule, "%s is not %s", name, strings.Join(words, ", "))
		return ""
	}
	return text
}

// line reads a string for people (lineFault).
func (d *decoder) line(name string, rule Rule, limit int) string {
	text := d.text(name, rule, 0, limit)
	if fault := lineFault(text, limit); fault != "" {
		d.fail(rule, "%s %s", name, fault)
	}
	return text
}

func (d *decoder) absolutePath(name string) string {
	path := d.text(name, RulePayload, 1, MaxWorkspaceBytes)
	if !strings.HasPrefix(path, "/") || strings.Contains(path, "\x00") {
		d.fail(RulePayload, "%s is not an absolute path", name)
	}
	return path
}

// integer reads a number from lo to hi, written as an integer.
func (d *decoder) integer(name string, rule Rule, lo, hi int64) int64 {
	token, size := d.next()
	if !d.is(token, jsontext.KindNumber, name, "an integer") {
		return 0
	}
	const longest = 20 // more digits than any integer of the protocol has
	text := ""
	if size <= longest {
		text = token.String()
	}
	if text == "-0" || strings.ContainsAny(text, ".eE") {
		d.fail(RuleMemberType, "%s is not an integer without fraction, exponent or -0", name)
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < lo || n > hi {
		d.fail(rule, "%s is not an integer from %d to %d", name, lo, hi)
		return 0
	}
	return n
}

// capabilitySet reads known capabilities, none of them twice, an operation among them.
func (d *decoder) capabilitySet(name string) {
	words := make([]string, len(capabilities))
	for i, c := range capabilities {
		words[i] = string(c)
	}
	d.array(name, func() {
		c := Capability(d.word("an element of capabilities", RuleCapabilities, words...))
		if slices.Contains(d.capabilities, c) {
			d.fail(RuleCapabilities, "a capability stands in the list twice")
		}
		d.capabilities = append(d.capabilities, c)
	})
	if !slices.ContainsFunc(d.capabilities, Capability.IsOperation) {
		d.fail(RuleCapabilities, "capabilities hold no operation")
	}
}

func (d *decoder) limits(name string) {
	if token, _ := d.next(); !d.is(token, jsontext.KindBeginObject, name, "an object") {
		return
	}
	var seen []string
	d.members(func(name string) {
		seen = append(seen, name)
		for _, limit := range limits {
			if limit.name == name {
				d.integer(name, RuleLimits, limit.value, limit.value)
				return
			}
		}
		d.fail(RuleUnknownMember, "limits hold a member that the protocol does not know")
	})
	for _, limit := range limits {
		if !slices.Contains(seen, limit.name) {
			d.fail(RuleMissingMember, "limits hold no %s", limit.name)
		}
	}
}

func (d *decoder) changes(name string) {
	d.array(name, func() {
		if len(d.report.Changes) == MaxChanges {
			d.fail(RuleReport, "%s are more than %d", name, MaxChanges)
			return
		}
		d.report.Changes = append(d.report.Changes, d.line("an element of changes", RuleReport, MaxChangeBytes))
	})
	if len(d.report.Changes) == 0 {
		d.fail(RuleReport, "%s are empty", name)
	}
}

// Tokens.

// members calls member after each name of an object whose bracket was read.
func (d *decoder) members(member func(name string)) {
	const longest = 200 // of a name, quotes and escapes included; ours are shorter
	for d.violation == nil {
		token, size := d.next()
		switch {
		case token.Kind() != jsontext.KindString: // the closing bracket
			return
		case size > longest:
			d.fail(RuleUnknownMember, "a member has a name that the protocol does not know")
		default:
			member(token.String())
		}
	}
}

// array calls element before each element of an array.
func (d *decoder) array(name string, element func()) {
	token, _ := d.next()
	if !d.is(token, jsontext.KindBeginArray, name, "an array") {
		return
	}
	for d.violation == nil {
		if d.json.PeekKind() == jsontext.KindEndArray {
			d.next()
			return
		}
		element()
	}
}

func (d *decoder) is(token jsontext.Token, kind jsontext.Kind, name, what string) bool {
	if d.violation == nil && token.Kind() != kind {
		d.fail(RuleMemberType, "%s is not %s", name, what)
	}
	return d.violation == nil
}

// next reads one token and tells its size in the frame. Compact means that a
// frame's bytes equal their own compaction: there is nothing before a token but
// the comma or colon that belongs there.
func (d *decoder) next() (token jsontext.Token, size int) {
	if d.violation != nil {
		return jsontext.Token{}, 0
	}
	start := int(d.json.InputOffset())
	if d.at(start, ",:") {
		start++
	}
	if d.at(start, " \t\r\n") {
		d.fail(RuleCompact, "whitespace stands between the tokens")
		return jsontext.Token{}, 0
	}
	token, err := d.json.ReadToken()
	if err != nil {
		d.malformed(err)
		return jsontext.Token{}, 0
	}
	return token, int(d.json.InputOffset()) - start
}

func (d *decoder) at(offset int, set string) bool {
	return offset < len(d.data) && strings.IndexByte(set, d.data[offset]) >= 0
}

// unexpected refuses what stands behind the object.
func (d *decoder) unexpected(offset int) {
	if len(bytes.Trim(d.data[offset:], " \t\r\n")) == 0 {
		d.fail(RuleCompact, "whitespace stands after the object")
		return
	}
	d.fail(RuleJSON, "something stands after the object")
}

// malformed puts the refusal into words of our own: the library's quote the frame.
func (d *decoder) malformed(err error) {
	switch {
	case bytes.HasPrefix(d.data, []byte("\uFEFF")):
		d.fail(RuleJSON, "the frame starts with a byte-order mark")
	case errors.Is(err, jsontext.ErrDuplicateName):
		d.fail(RuleDuplicateMember, "a member name stands twice in one object")
	case !utf8.Valid(d.data):
		d.fail(RuleUTF8, "the frame is not valid UTF-8")
	default:
		d.fail(RuleJSON, "the frame is not valid JSON")
	}
}

func (d *decoder) fail(rule Rule, format string, args ...any) {
	if d.violation == nil {
		d.violation = violation(rule, format, args...)
	}
}
