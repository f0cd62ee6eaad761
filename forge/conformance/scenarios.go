package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hawser/forge"
)

// Scenarios returns all scenarios for plugins of an operation, in the order in
// which they are run and reported: first the valid sessions, then what must be
// rejected as the first frame, then what must be rejected as the second.
func Scenarios(operation forge.Capability) []Scenario {
	scenarios := validSessions(operation)
	for _, d := range slices.Concat(frameDefects(), headDefects(), initializeDefects(operation)) {
		scenarios = append(scenarios, Scenario{
			Name: "initialize/" + d.name, Rule: d.rule, Summary: d.summary,
			run: func(r *runner) (*Finding, error) {
				return r.rejectsInitialize(d.rule, d.ends, script{initialize: d.make})
			},
		})
	}
	payload := textDefects()
	if operation == forge.CapWorkspaceEdit {
		payload = workspaceDefects()
	}
	for _, d := range slices.Concat(frameDefects(), headDefects(), executeDefects(operation), payload) {
		scenarios = append(scenarios, Scenario{
			Name: "execute/" + d.name, Rule: d.rule, Summary: d.summary,
			run: func(r *runner) (*Finding, error) {
				return r.rejectsExecute(d.rule, d.ends, script{input: "hello", execute: d.make})
			},
		})
	}
	return scenarios
}

func validSessions(operation forge.Capability) []Scenario {
	var scenarios []Scenario
	add := func(name, summary string, s script) {
		if s.input == "" {
			s.input = "hello"
		}
		scenarios = append(scenarios, Scenario{
			Name: "session/" + name, Summary: summary, valid: true,
			run: func(r *runner) (*Finding, error) { return r.converses(s) },
		})
	}
	options := operation.Options()
	add("valid", "a valid session that offers every option", script{})
	add("byte-by-byte", "the host's frames arrive one byte at a time", script{bytewise: true})
	add("member-order", "members stand in the opposite order", script{
		initialize: func(o object) string { return line(o.with("limits", limitsObject().reversed().String()).reversed()) },
		execute:    func(o object) string { return line(o.reversed()) },
	})
	add("escapes", "names and values are written with JSON escapes", script{
		initialize: func(o object) string { return line(escapeNames(o)) },
		execute: func(o object) string {
			return line(escapeNames(o.with("operation", quoted(escaped(string(operation))))))
		},
	})
	add("operation-alone", "nothing but the operation is offered", script{offer: []forge.Capability{operation}})
	for _, withheld := range options {
		offer := slices.DeleteFunc(append([]forge.Capability{operation}, options...), func(c forge.Capability) bool { return c == withheld })
		add("without-"+string(withheld), fmt.Sprintf("%s is not offered, so it is neither selected nor used", withheld), script{offer: offer})
	}
	if len(options) > 2 { // else it is the same as without the other one
		for _, only := range options {
			add("only-"+string(only), fmt.Sprintf("of the options, %s alone is offered", only), script{offer: []forge.Capability{operation, only}})
		}
	}
	add("cancel", "cancel follows execute at once, if the plugin selects it", script{cancel: true})
	add("one-operation", "execute comes twice: one answer at most", script{execute: repeat, repeated: true, mayFail: true})
	with := func(name, text string) func(object) string {
		return func(o object) string { return line(o.with(name, text)) }
	}
	switch operation {
	case forge.CapText:
		largest := strings.Repeat("a", forge.MaxTextBytes)
		add("empty-input", "an input of no bytes", script{mayFail: true, execute: with("input", `""`)})
		add("unicode-input", "an input of many scripts, and of characters that look like line ends", script{mayFail: true, input: manyScripts})
		add("largest-input", "an input of 65536 bytes", script{mayFail: true, input: largest})
		add("largest-frame", "an input of 65536 bytes, each written as an escape of six", script{mayFail: true, execute: with("input", quoted(escaped(largest)))})
	case forge.CapWorkspaceEdit:
		largest := strings.Repeat(instruction+" ", forge.MaxInstructionBytes/len(instruction))[:forge.MaxInstructionBytes]
		add("unicode-instruction", "an instruction of many scripts, and of characters that look like line ends", script{
			execute: with("instruction", quoted(instruction+" "+manyScripts)),
		})
		add("largest-instruction", "an instruction of 65536 bytes", script{mayFail: true, execute: with("instruction", quoted(largest))})
		add("largest-frame", "an instruction of 65536 bytes, each written as an escape of six", script{mayFail: true, execute: with("instruction", quoted(escaped(largest)))})
		add("unicode-workspace", "the name of the work tree has a space and a character that is not ASCII", script{directory: " é"})
		add("largest-timeout", "timeout_ms is 2^53-1", script{execute: with("timeout_ms", strconv.Itoa(forge.MaxTimeoutMS))})
	}
	return scenarios
}

// manyScripts is text in 1 to 4 bytes a character, with two that some take for line ends.
const manyScripts = "äß€\U0001F600\u2028\u0085"

func escapeNames(o object) object {
	o = slices.Clone(o)
	for i := range o {
		o[i].name = escaped(o[i].name)
	}
	return o
}

// defect is a way to spoil a frame, and the rule that it breaks: nothing else is
// wrong with the bytes that make returns.
type defect struct {
	name    string
	rule    forge.Rule
	summary string
	make    func(object) string
	ends    bool // the host closes stdin after it
}

// frameDefects spoil the bytes of any frame.
func frameDefects() []defect {
	return []defect{
		{name: "missing", rule: forge.RuleOrder, summary: "stdin ends where the frame is due", ends: true,
			make: func(object) string { return "" }},
		{name: "blank-line", rule: forge.RuleBlankLine, summary: "an empty line stands before the frame",
			make: func(o object) string { return "\n" + line(o) }},
		{name: "crlf", rule: forge.RuleLineEnd, summary: "the frame ends with CR LF",
			make: func(o object) string { return o.String() + "\r\n" }},
		{name: "unterminated", rule: forge.RuleUnterminated, summary: "stdin ends after the frame without an LF", ends: true,
			make: func(o object) string { return o.String() }},
		{name: "oversized", rule: forge.RuleFrameSize, summary: "1048577 bytes without an LF, and stdin stays open",
			make: oversized},
		{name: "truncated", rule: forge.RuleJSON, summary: "the closing brace is missing",
			make: func(o object) string { return strings.TrimSuffix(o.String(), "}") + "\n" }},
		{name: "trailing-comma", rule: forge.RuleJSON, summary: "a comma stands before the closing brace",
			make: func(o object) string { return strings.TrimSuffix(o.String(), "}") + ",}\n" }},
		{name: "second-object", rule: forge.RuleJSON, summary: "another object stands on the same line",
			make: func(o object) string { return o.String() + "{}\n" }},
		{name: "array", rule: forge.RuleJSON, summary: "the object stands in an array",
			make: func(o object) string { return "[" + o.String() + "]\n" }},
		{name: "byte-order-mark", rule: forge.RuleJSON, summary: "a byte-order mark stands before the object",
			make: func(o object) string { return "\uFEFF" + line(o) }},
		{name: "space-inside", rule: forge.RuleCompact, summary: "a space stands after a colon",
			make: func(o object) string { return line(o.with("type", " "+o.text("type"))) }},
		{name: "space-tab", rule: forge.RuleCompact, summary: "a tab stands after a comma",
			make: func(o object) string { return strings.Replace(line(o), `,"`, ",\t\"", 1) }},
		{name: "space-before", rule: forge.RuleCompact, summary: "a space stands before the object",
			make: func(o object) string { return " " + line(o) }},
		{name: "space-after", rule: forge.RuleCompact, summary: "a space stands after the object",
			make: func(o object) string { return o.String() + " \n" }},
	}
}

// oversized is a frame that is good as far as it goes, and goes too far: no
// valid frame is that long, so only its size tells before it ends.
func oversized(o object) string {
	begin := strings.TrimSuffix(o.String(), "}") + `,"padding":"`
	return begin + strings.Repeat("a", forge.MaxFrameBytes+1-len(begin))
}

// headDefects spoil the members that every frame has.
func headDefects() []defect {
	list := []defect{
		{name: "duplicate-member", rule: forge.RuleDuplicateMember, summary: "version stands twice, with the same value",
			make: func(o object) string { return line(o.twice("version", "version")) }},
		{name: "duplicate-escaped", rule: forge.RuleDuplicateMember, summary: "version stands twice, once under an escaped name",
			make: func(o object) string { return line(o.twice("version", escaped("version"))) }},
		{name: "unknown-member", rule: forge.RuleUnknownMember, summary: "a member that the protocol does not know",
			make: func(o object) string { return line(o.and("extra", "1")) }},
		{name: "unknown-null", rule: forge.RuleUnknownMember, summary: "a member that the protocol does not know, with the value null",
			make: func(o object) string { return line(o.and("extra", "null")) }},
		{name: "version-v2", rule: forge.RuleVersion, summary: "version is v2",
			make: func(o object) string { return line(o.with("version", quoted("v2"))) }},
		{name: "version-upper-case", rule: forge.RuleVersion, summary: "version is V1",
			make: func(o object) string { return line(o.with("version", quoted("V1"))) }},
		{name: "type-unknown", rule: forge.RuleType, summary: "a type that the protocol does not know",
			make: func(o object) string { return line(o.with("type", quoted("start"))) }},
	}
	for _, name := range []string{"version", "id", "type"} {
		list = append(list,
			defect{name: "no-" + name, rule: forge.RuleMissingMember, summary: name + " is missing",
				make: func(o object) string { return line(o.without(name)) }},
			defect{name: name + "-null", rule: forge.RuleMemberType, summary: name + " is null",
				make: func(o object) string { return line(o.with(name, "null")) }})
	}
	return list
}

// initializeDefects spoil the first frame.
func initializeDefects(operation forge.Capability) []defect {
	text := quoted(string(operation))
	with := func(name, text string) func(object) string {
		return func(o object) string { return line(o.with(name, text)) }
	}
	limits := func(change func(object) object) func(object) string {
		return with("limits", change(limitsObject()).String())
	}
	id := func(change func(id string) string) func(object) string {
		return func(o object) string { return line(o.with("id", quoted(change(strings.Trim(o.text("id"), `"`))))) }
	}
	list := []defect{
		{name: "id-short", rule: forge.RuleID, summary: "id has 31 digits", make: id(func(id string) string { return id[1:] })},
		{name: "id-long", rule: forge.RuleID, summary: "id has 33 digits", make: id(func(id string) string { return id + "0" })},
		{name: "id-upper-case", rule: forge.RuleID, summary: "id has an upper-case digit", make: id(func(id string) string { return "A" + id[1:] })},
		{name: "id-not-hex", rule: forge.RuleID, summary: "id has a g", make: id(func(id string) string { return "g" + id[1:] })},
		{name: "id-line-end", rule: forge.RuleID, summary: "id ends with an escaped line end", make: id(func(id string) string { return id + `\n` })},

		{name: "execute-first", rule: forge.RuleOrder, summary: "execute is the first frame",
			make: func(o object) string { return line(executeFor(operation, o)) }},
		{name: "cancel-first", rule: forge.RuleOrder, summary: "cancel is the first frame",
			make: func(o object) string {
				return line(o.without("capabilities").without("limits").with("type", quoted("cancel")))
			}},
		{name: "execute-members", rule: forge.RuleUnknownMember, summary: "members of execute stand in initialize",
			make: func(o object) string { return line(append(o, executeFor(operation, o)[3:]...)) }},

		{name: "invalid-utf8", rule: forge.RuleUTF8, summary: "a byte that is not UTF-8 stands in a capability",
			make: with("capabilities", "["+strings.TrimSuffix(text, `"`)+"\xff\"]")},
		{name: "no-capabilities", rule: forge.RuleMissingMember, summary: "capabilities is missing",
			make: func(o object) string { return line(o.without("capabilities")) }},
		{name: "capabilities-null", rule: forge.RuleMemberType, summary: "capabilities is null", make: with("capabilities", "null")},
		{name: "capabilities-string", rule: forge.RuleMemberType, summary: "capabilities is a string", make: with("capabilities", text)},
		{name: "capabilities-object", rule: forge.RuleMemberType, summary: "capabilities is an object", make: with("capabilities", "{"+text+":true}")},
		{name: "capability-number", rule: forge.RuleMemberType, summary: "a number stands beside the operation", make: with("capabilities", "["+text+",1]")},
		{name: "capability-unknown", rule: forge.RuleCapabilities, summary: "an unknown capability stands beside the operation",
			make: with("capabilities", "["+text+`,"network"]`)},
		{name: "capability-twice", rule: forge.RuleCapabilities, summary: "the operation is offered twice", make: with("capabilities", "["+text+","+text+"]")},
		{name: "space-in-capabilities", rule: forge.RuleCompact, summary: "spaces stand inside the brackets of capabilities",
			make: with("capabilities", "[ "+text+" ]")},
		{name: "capabilities-empty", rule: forge.RuleCapabilities, summary: "nothing is offered", make: with("capabilities", "[]")},
		{name: "no-operation", rule: forge.RuleCapabilities, summary: "options are offered, but no operation", make: with("capabilities", `["progress","cancel"]`)},

		{name: "no-limits", rule: forge.RuleMissingMember, summary: "limits is missing",
			make: func(o object) string { return line(o.without("limits")) }},
		{name: "limits-null", rule: forge.RuleMemberType, summary: "limits is null", make: with("limits", "null")},
		{name: "space-in-limits", rule: forge.RuleCompact, summary: "a space stands after a comma in limits",
			make: with("limits", strings.Replace(limitsObject().String(), ",", ", ", 1))},
		{name: "limit-unknown", rule: forge.RuleUnknownMember, summary: "limits has a member that the protocol does not know",
			make: limits(func(o object) object { return o.and("extra_bytes", "1") })},
		{name: "limit-twice", rule: forge.RuleDuplicateMember, summary: "a limit stands twice, with the same value",
			make: limits(func(o object) object { return o.twice("text_bytes", "text_bytes") })},
		{name: "limit-string", rule: forge.RuleMemberType, summary: "a limit is a string",
			make: limits(func(o object) object { return o.with("text_bytes", `"65536"`) })},
		{name: "limit-fraction", rule: forge.RuleMemberType, summary: "a limit is written with a fraction",
			make: limits(func(o object) object { return o.with("text_bytes", "65536.0") })},
		{name: "limit-exponent", rule: forge.RuleMemberType, summary: "a limit is written with an exponent",
			make: limits(func(o object) object { return o.with("progress_text_bytes", "1024e0") })},
	}
	for _, option := range operation.Options() {
		list = append(list, defect{name: string(option) + "-twice", rule: forge.RuleCapabilities, summary: string(option) + " is offered twice",
			make: with("capabilities", "["+text+`,"`+string(option)+`","`+string(option)+`"]`)})
	}
	for _, limit := range limitsObject() {
		value, _ := strconv.Atoi(limit.text)
		list = append(list,
			defect{name: "no-" + limit.name, rule: forge.RuleMissingMember, summary: limit.name + " is missing",
				make: limits(func(o object) object { return o.without(limit.name) })},
			defect{name: limit.name + "-more", rule: forge.RuleLimits, summary: limit.name + " is one more than it must be",
				make: limits(func(o object) object { return o.with(limit.name, strconv.Itoa(value+1)) })},
			defect{name: limit.name + "-less", rule: forge.RuleLimits, summary: limit.name + " is one less than it must be",
				make: limits(func(o object) object { return o.with(limit.name, strconv.Itoa(value-1)) })})
	}
	return list
}

// executeFor is an execute frame for the session of another frame.
func executeFor(operation forge.Capability, of object) object {
	id := strings.Trim(of.text("id"), `"`)
	if operation == forge.CapText {
		return textFrame(id, quoted("hello"))
	}
	return workspaceFrame(id, quoted("/nonexistent"))
}

// executeDefects spoil the second frame, whatever the operation.
func executeDefects(operation forge.Capability) []defect {
	other, members := forge.CapWorkspaceEdit, []string{"workspace", "instruction", "timeout_ms"}
	if operation == forge.CapWorkspaceEdit {
		other, members = forge.CapText, []string{"input"}
	}
	bare := func(kind string) func(object) string {
		return func(o object) string { return line(append(frameOf(o), member{"type", quoted(kind)})) }
	}
	return []defect{
		{name: "id-other", rule: forge.RuleID, summary: "id is another one than in initialize",
			make: func(o object) string { return line(o.with("id", quoted(newID()))) }},
		{name: "initialize-again", rule: forge.RuleOrder, summary: "initialize comes a second time",
			make: func(o object) string {
				return line(initializeFrame(strings.Trim(o.text("id"), `"`), append([]forge.Capability{operation}, operation.Options()...)))
			}},
		{name: "cancel-early", rule: forge.RuleOrder, summary: "cancel comes before execute", make: bare("cancel")},
		{name: "result-from-host", rule: forge.RuleOrder, summary: "a result frame comes from the host",
			make: func(o object) string {
				if operation == forge.CapText {
					return line(frameOf(o).and("type", quoted("result")).and("output", `""`))
				}
				return bare("result")(o)
			}},

		{name: "no-operation", rule: forge.RuleMissingMember, summary: "operation is missing",
			make: func(o object) string { return line(o.without("operation")) }},
		{name: "operation-null", rule: forge.RuleMemberType, summary: "operation is null",
			make: func(o object) string { return line(o.with("operation", "null")) }},
		{name: "operation-unknown", rule: forge.RuleOperation, summary: "an operation that the protocol does not know",
			make: func(o object) string { return line(o.with("operation", quoted("shell"))) }},
		{name: "operation-option", rule: forge.RuleOperation, summary: "operation is progress, which is none",
			make: func(o object) string { return line(o.with("operation", quoted("progress"))) }},
		{name: "operation-not-negotiated", rule: forge.RuleOperation, summary: "the other operation, which was not offered, with all that it needs",
			make: func(o object) string { return line(executeFor(other, o)) }},
		{name: "operation-twice", rule: forge.RuleDuplicateMember, summary: "operation stands twice, with the same value",
			make: func(o object) string { return line(o.twice("operation", "operation")) }},
		{name: "operation-contradicted", rule: forge.RuleDuplicateMember, summary: "operation stands twice, with different values",
			make: func(o object) string {
				return line(append(object{{"operation", quoted(string(other))}}, o...))
			}},
		{name: "other-payload", rule: forge.RuleUnknownMember, summary: "the other operation's payload stands beside the operation's own",
			make: func(o object) string {
				for _, name := range members {
					o = o.and(name, executeFor(other, o).text(name))
				}
				return line(o)
			}},
	}
}

// frameOf keeps version and id.
func frameOf(o object) object {
	return object{{"version", o.text("version")}, {"id", o.text("id")}}
}

// stringDefects spoil a payload that is a text of up to limit bytes.
func stringDefects(name string, limit int) []defect {
	with := func(text string) func(object) string {
		return func(o object) string { return line(o.with(name, text)) }
	}
	inside := func(bytes string) func(object) string {
		return func(o object) string {
			text := o.text(name)
			return line(o.with(name, text[:len(text)-1]+bytes+`"`))
		}
	}
	return []defect{
		{name: "no-" + name, rule: forge.RuleMissingMember, summary: name + " is missing",
			make: func(o object) string { return line(o.without(name)) }},
		{name: name + "-null", rule: forge.RuleMemberType, summary: name + " is null", make: with("null")},
		{name: name + "-number", rule: forge.RuleMemberType, summary: name + " is a number", make: with("1")},
		{name: name + "-array", rule: forge.RuleMemberType, summary: name + " is an array", make: with(`["hello"]`)},
		{name: name + "-twice", rule: forge.RuleDuplicateMember, summary: name + " stands twice, with the same value",
			make: func(o object) string { return line(o.twice(name, name)) }},
		{name: name + "-contradicted", rule: forge.RuleDuplicateMember, summary: name + " stands twice, with different values",
			make: func(o object) string {
				text := o.text(name)
				return line(append(object{{name, text[:len(text)-1] + `/."`}}, o...))
			}},
		{name: name + "-invalid-utf8", rule: forge.RuleUTF8, summary: "a byte that is not UTF-8 stands in " + name, make: inside("\xff")},
		{name: name + "-overlong-utf8", rule: forge.RuleUTF8, summary: "a character in " + name + " is written in too many bytes", make: inside("\xc1\xa1")},
		{name: name + "-surrogate", rule: forge.RuleJSON, summary: "half of a surrogate pair stands in " + name, make: inside(`\ud800`)},
		{name: name + "-control", rule: forge.RuleJSON, summary: "a control character stands unescaped in " + name, make: inside("\t")},
		{name: name + "-too-long", rule: forge.RulePayload, summary: fmt.Sprintf("%s has %d bytes", name, limit+1),
			make: with(quoted("/" + strings.Repeat("a", limit)))},
		{name: name + "-too-many-bytes", rule: forge.RulePayload, summary: fmt.Sprintf("%s has %d bytes in %d characters", name, limit+1, limit/2+1),
			make: with(quoted("/" + strings.Repeat("é", limit/2)))},
	}
}

func textDefects() []defect { return stringDefects("input", forge.MaxTextBytes) }

func workspaceDefects() []defect {
	with := func(name, text string) func(object) string {
		return func(o object) string { return line(o.with(name, text)) }
	}
	return slices.Concat(
		stringDefects("workspace", forge.MaxWorkspaceBytes),
		stringDefects("instruction", forge.MaxInstructionBytes),
		[]defect{
			{name: "workspace-relative", rule: forge.RulePayload, summary: "workspace is a relative path", make: with("workspace", `"."`)},
			{name: "workspace-empty", rule: forge.RulePayload, summary: "workspace is empty", make: with("workspace", `""`)},
			{name: "instruction-empty", rule: forge.RulePayload, summary: "instruction is empty", make: with("instruction", `""`)},
			{name: "no-timeout", rule: forge.RuleMissingMember, summary: "timeout_ms is missing",
				make: func(o object) string { return line(o.without("timeout_ms")) }},
			{name: "timeout-twice", rule: forge.RuleDuplicateMember, summary: "timeout_ms stands twice, with the same value",
				make: func(o object) string { return line(o.twice("timeout_ms", "timeout_ms")) }},
			{name: "timeout-null", rule: forge.RuleMemberType, summary: "timeout_ms is null", make: with("timeout_ms", "null")},
			{name: "timeout-string", rule: forge.RuleMemberType, summary: "timeout_ms is a string", make: with("timeout_ms", `"60000"`)},
			{name: "timeout-true", rule: forge.RuleMemberType, summary: "timeout_ms is true", make: with("timeout_ms", "true")},
			{name: "timeout-fraction", rule: forge.RuleMemberType, summary: "timeout_ms is written with a fraction", make: with("timeout_ms", "60000.0")},
			{name: "timeout-exponent", rule: forge.RuleMemberType, summary: "timeout_ms is written with an exponent", make: with("timeout_ms", "6e4")},
			{name: "timeout-zero", rule: forge.RulePayload, summary: "timeout_ms is 0", make: with("timeout_ms", "0")},
			{name: "timeout-negative", rule: forge.RulePayload, summary: "timeout_ms is -1", make: with("timeout_ms", "-1")},
			{name: "timeout-too-large", rule: forge.RulePayload, summary: "timeout_ms is 2^53", make: with("timeout_ms", "9007199254740992")},
		})
}
