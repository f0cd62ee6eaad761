package forge

import (
	"strings"
	"unicode"
)

// Version is the one version of the protocol.
const Version = "v1"

// The limits of protocol v1, in bytes of UTF-8 where they are about text. They
// belong to the version: initialize names the first five, and with other values
// it is invalid.
const (
	MaxFrameBytes         = 1_048_576 // without its LF
	MaxProgressFrames     = 128
	MaxTextBytes          = 65_536 // input and output
	MaxProgressTextBytes  = 1_024
	MaxCommitSubjectBytes = 256

	MaxWorkspaceBytes   = 4_096
	MaxInstructionBytes = 65_536
	MaxTimeoutMS        = 1<<53 - 1
	MaxSummaryBytes     = 1_024
	MaxChanges          = 12
	MaxChangeBytes      = 256
)

// Capability is what a plugin can do. The set is closed. Two of them are
// operations, of which one session executes one; the others are options.
type Capability string

const (
	CapText          Capability = "text"           // operation: text in, text out
	CapWorkspaceEdit Capability = "workspace_edit" // operation: edits a work tree
	CapProgress      Capability = "progress"       // sends progress frames
	CapCancel        Capability = "cancel"         // understands the cancel frame
	CapCommitSubject Capability = "commit_subject" // proposes the subject of a commit
	CapAgentReport   Capability = "agent_report"   // reports on a workspace edit
)

var capabilities = []Capability{CapText, CapWorkspaceEdit, CapProgress, CapCancel, CapCommitSubject, CapAgentReport}

// IsOperation reports whether c is one of the two operations.
func (c Capability) IsOperation() bool { return c == CapText || c == CapWorkspaceEdit }

// Options returns the capabilities that a host may offer beside an operation,
// in the order in which it does: those that have a meaning there.
func (c Capability) Options() []Capability {
	switch c {
	case CapText:
		return []Capability{CapProgress, CapCancel}
	case CapWorkspaceEdit:
		return []Capability{CapProgress, CapCancel, CapCommitSubject, CapAgentReport}
	}
	return nil
}

// Message is what a frame says: one of [Initialize], [Initialized], [Request],
// [Progress], [Result], [Failure] and [Cancel].
type Message interface {
	// kind is the type member; encode writes the members that follow it.
	kind() string
	encode(*encoder)
}

// Frame is one frame of either side.
type Frame struct {
	ID      string // of the session, 32 lower-case hex digits
	Message Message
}

// Type is the frame's type member, such as "initialized"; "" without a message.
func (f Frame) Type() string {
	if f.Message == nil {
		return ""
	}
	return f.Message.kind()
}

// Initialize is the host's first frame: what it offers.
type Initialize struct{ Capabilities []Capability }

// Initialized is the plugin's answer: what it selects of the offer.
type Initialized struct{ Capabilities []Capability }

// Request is the execute frame: one operation and its members.
type Request struct {
	Operation Capability // CapText or CapWorkspaceEdit

	Input string // of text; at most MaxTextBytes

	// Of workspace_edit. Workspace is an absolute path of at most
	// MaxWorkspaceBytes, Instruction has 1 to MaxInstructionBytes, TimeoutMS is
	// what the plugin may take at most, from 1 to MaxTimeoutMS milliseconds.
	Workspace   string
	Instruction string
	TimeoutMS   int64

	// Selected is what was negotiated, for a plugin's handler. It is no member of
	// the frame, and a host leaves it empty.
	Selected []Capability
}

// Progress is a progress frame. It is transient: a host may show it, and stores
// it nowhere.
type Progress struct {
	Sequence int // from 1, without gaps, to MaxProgressFrames
	Stage    Stage
	Text     string // at most MaxProgressTextBytes
}

// Stage is how far an operation is. The set is closed.
type Stage string

const (
	Started    Stage = "started"
	Working    Stage = "working"
	Finalizing Stage = "finalizing"
)

// Result is the terminal frame of an operation that succeeded.
type Result struct {
	Operation Capability // whose result it is

	Output string // of text; at most MaxTextBytes

	// Of workspace_edit. CommitSubject is "" when there is none, else one line of
	// at most MaxCommitSubjectBytes, only with CapCommitSubject. Report is nil
	// when there is none, and needs CapAgentReport.
	CommitSubject string
	Report        *Report
}

// Report is what the agent behind a plugin says of its work. It is advisory and
// self-reported, and proves nothing. Every string is one line: not empty,
// trimmed, without control or format characters.
type Report struct {
	Summary string   // at most MaxSummaryBytes
	Changes []string // 1 to MaxChanges, each at most MaxChangeBytes
}

// Failure is the terminal frame of an operation that failed. It is an error too:
// a handler returns it, alone or wrapped, to say the category; [Run] returns it
// within its own error.
type Failure struct{ Category Category }

// Category says whose failure it was. The set is closed.
type Category string

const (
	InvalidRequest  Category = "invalid_request"
	Incompatible    Category = "incompatible"
	ExecutionFailed Category = "execution_failed"
	Cancelled       Category = "cancelled"
)

func (f Failure) Error() string { return "the operation failed: " + string(f.Category) }

// Cancel is the host's last frame, if any: the operation is to end.
type Cancel struct{}

func (Initialize) kind() string  { return "initialize" }
func (Initialized) kind() string { return "initialized" }
func (Request) kind() string     { return "execute" }
func (Progress) kind() string    { return "progress" }
func (Result) kind() string      { return "result" }
func (Failure) kind() string     { return "failure" }
func (Cancel) kind() string      { return "cancel" }

// validID reports whether id is 32 lower-case hex digits.
func validID(id string) bool {
	return len(id) == 32 && strings.Trim(id, "0123456789abcdef") == ""
}

// lineFault says what is wrong with a text that a person will read as one line
// of a commit or a report, "" if nothing is. Line ends are control characters,
// except the two of Unicode.
func lineFault(text string, limit int) string {
	switch {
	case text == "":
		return "is empty"
	case len(text) > limit:
		return "is too long"
	case strings.TrimSpace(text) != text:
		return "starts or ends with whitespace"
	case strings.ContainsFunc(text, func(r rune) bool {
		return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
	}):
		return "holds a control, format or line-separator character"
	}
	return ""
}
