package forge

import "fmt"

// Rule names a rule of the protocol that a frame, or the end of a session, can
// break. The names are stable: a conformance report is matched on them.
type Rule string

// Rules about the bytes of a frame.
const (
	RuleFrameSize    Rule = "frame-size"   // at most MaxFrameBytes before the LF
	RuleBlankLine    Rule = "blank-line"   // no empty line
	RuleLineEnd      Rule = "line-end"     // LF alone, not CR LF
	RuleUnterminated Rule = "unterminated" // every frame ends with an LF
	RuleUTF8         Rule = "utf-8"        // valid UTF-8
	RuleJSON         Rule = "json"         // one JSON object and nothing else
	RuleCompact      Rule = "compact"      // no whitespace outside strings
)

// Rules about the members of a frame.
const (
	RuleDuplicateMember Rule = "duplicate-member" // no name twice in an object
	RuleUnknownMember   Rule = "unknown-member"   // only the members of this type of frame
	RuleMissingMember   Rule = "missing-member"   // and all of them
	RuleMemberType      Rule = "member-type"      // of the right JSON type, an integer without fraction
	RuleVersion         Rule = "version"          // exactly Version
	RuleID              Rule = "id"               // 32 lower-case hex digits, the session's own
	RuleType            Rule = "type"             // a type of the protocol
	RuleLimits          Rule = "limits"           // exactly those of the version
	RuleCapabilities    Rule = "capabilities"     // known, no one twice, within the offer, with an operation
	RuleOperation       Rule = "operation"        // an operation, and one that was selected
	RulePayload         Rule = "payload"          // texts, path and time within their limits
	RuleCommitSubject   Rule = "commit-subject"   // negotiated, and one trimmed line
	RuleReport          Rule = "agent-report"     // negotiated, whole, of trimmed lines
	RuleProgress        Rule = "progress"         // negotiated, numbered from 1, of a known stage
	RuleCategory        Rule = "category"         // a category of failure
)

// Rules about a session.
const (
	RuleOrder    Rule = "order"    // the frame that is due, and no other
	RuleTerminal Rule = "terminal" // one result or failure before the end of output
	RuleTrailing Rule = "trailing" // nothing after it
	RuleExit     Rule = "exit"     // exit 0 and the end of output within ClosingTime
)

// Violation is one breach of the protocol. It never holds a byte of the frame.
// It is an error for [errors.As].
type Violation struct {
	Rule  Rule
	Frame int    // which frame of its sender, from 1; 0 when it is about no frame
	What  string // what is wrong, as a clause: "input is longer than 65536 bytes"
}

func (v *Violation) Error() string {
	if v.Frame == 0 {
		return fmt.Sprintf("%s (rule %s)", v.What, v.Rule)
	}
	return fmt.Sprintf("frame %d: %s (rule %s)", v.Frame, v.What, v.Rule)
}

func violation(rule Rule, format string, args ...any) *Violation {
	return &Violation{Rule: rule, What: fmt.Sprintf(format, args...)}
}
