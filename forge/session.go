package forge

import "slices"

// State is where a session is, seen from the host.
type State int

const (
	// Initializing: initialize was sent, initialized is due.
	Initializing State = iota
	// Executing: execute was sent; progress may come, and then the terminal frame.
	Executing
	// Finished: the terminal frame came, the end of output is due.
	Finished
)

// Session is the host's side of one session on values alone: what is to be sent,
// and whether what the plugin sent was due (contract: Transport and session). It
// reads and writes nothing. [Run] drives it, and a conformance suite judges with
// it. It is for one goroutine.
type Session struct {
	id      string
	request Request
	offer   []Capability

	state    State
	selected []Capability
	frames   int
	progress int
	terminal Message // a Result or a Failure, once Finished
}

// NewSession returns a session of one request. The offer holds the request's
// operation and any options.
func NewSession(id string, request Request, offer []Capability) *Session {
	return &Session{id: id, request: request, offer: offer}
}

// State tells what is due.
func (s *Session) State() State { return s.state }

// Selected reports whether the plugin selected the capability.
func (s *Session) Selected(c Capability) bool { return slices.Contains(s.selected, c) }

// Terminal returns the [Result] or [Failure] of a Finished session, before that nil.
func (s *Session) Terminal() Message { return s.terminal }

// Initialize, Execute and Cancel are the host's frames, with their LF. The error
// is a *[Violation] of the offer or the request.
func (s *Session) Initialize() ([]byte, error) { return s.encode(Initialize{s.offer}) }
func (s *Session) Execute() ([]byte, error)    { return s.encode(s.request) }
func (s *Session) Cancel() ([]byte, error)     { return s.encode(Cancel{}) }

func (s *Session) encode(m Message) ([]byte, error) { return Encode(Frame{s.id, m}) }

// Receive takes the plugin's next frame. The error is a *[Violation] when it was
// not due or breaks what was negotiated; the session is then over.
func (s *Session) Receive(f Frame) error {
	s.frames++
	if v := s.receive(f); v != nil {
		v.Frame = s.frames
		return v
	}
	return nil
}

func (s *Session) receive(f Frame) *Violation {
	if f.ID != s.id {
		return violation(RuleID, "id is not the session's")
	}
	switch s.state {
	case Initializing:
		m, ok := f.Message.(Initialized)
		if !ok {
			return violation(RuleOrder, "a %s frame came where initialized is due", f.Type())
		}
		return s.initialized(m)
	case Executing:
		switch m := f.Message.(type) {
		case Progress:
			return s.progressed(m)
		case Result:
			return s.succeeded(m)
		case Failure:
			s.state, s.terminal = Finished, m
			return nil
		}
		return violation(RuleOrder, "a %s frame came where progress, result or failure is due", f.Type())
	default:
		return violation(RuleTrailing, "a %s frame came after the terminal frame", f.Type())
	}
}

func (s *Session) initialized(m Initialized) *Violation {
	for _, c := range m.Capabilities {
		if !slices.Contains(s.offer, c) {
			return violation(RuleCapabilities, "initialized selects %s, which was not offered", c)
		}
	}
	if !slices.Contains(m.Capabilities, s.request.Operation) {
		return violation(RuleCapabilities, "initialized does not select the operation %s", s.request.Operation)
	}
	s.state, s.selected = Executing, m.Capabilities
	return nil
}

func (s *Session) progressed(m Progress) *Violation {
	switch {
	case !s.Selected(CapProgress):
		return violation(RuleProgress, "a progress frame came, and progress was not negotiated")
	case m.Sequence != s.progress+1:
		return violation(RuleProgress, "sequence is not %d", s.progress+1)
	}
	s.progress++
	return nil
}

func (s *Session) succeeded(m Result) *Violation {
	switch {
	case s.request.Operation == CapText && m.Operation != CapText:
		return violation(RuleMissingMember, "member output is missing in the result of text")
	case m.Operation != s.request.Operation:
		return violation(RuleUnknownMember, "member output has no place in the result of %s", s.request.Operation)
	case m.CommitSubject != "" && !s.Selected(CapCommitSubject):
		return violation(RuleCommitSubject, "commit_subject came, and was not negotiated")
	case m.Report != nil && !s.Selected(CapAgentReport):
		return violation(RuleReport, "summary and changes came, and agent_report was not negotiated")
	}
	s.state, s.terminal = Finished, m
	return nil
}

// End takes the end of the plugin's output. The error is a *[Violation] when a
// frame was still due.
func (s *Session) End() error {
	switch s.state {
	case Initializing:
		return violation(RuleTerminal, "the output ended before initialized")
	case Executing:
		return violation(RuleTerminal, "the output ended without a result or failure")
	}
	return nil
}
