package forge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Plugin says what a plugin can do, and where its streams are.
type Plugin struct {
	// Capabilities are what it can do; an operation is among them. What the host
	// offers of them is selected.
	Capabilities []Capability

	In  io.Reader // frames of the host; nil for os.Stdin
	Out io.Writer // frames of the plugin; nil for os.Stdout
	Log io.Writer // diagnostics for people; nil for os.Stderr
}

// Handler executes one operation. Its context ends when the host cancels or is
// gone; then it returns at once, a host stops what is left after a quarter of a
// second. An error becomes a failure frame with the category of the [Failure] in
// its chain; without one the category is cancelled for an error of the ended
// context, else execution_failed. Members of the result that were not negotiated
// are left out.
type Handler func(context.Context, Request) (Result, error)

// ProgressHandler is a [Handler] that reports how far it is.
type ProgressHandler func(context.Context, Request, ProgressFunc) (Result, error)

// ProgressFunc sends one progress frame; numbers are given in the order of the
// calls, which may come from any goroutine. What cannot be sent is dropped:
// everything when progress was not negotiated, after the first
// [MaxProgressFrames], after the handler returned, and after the host broke the
// protocol. A text that is too long is cut.
type ProgressFunc func(stage Stage, text string)

// Serve is [ServeWithProgress] for a handler that reports none.
func Serve(p Plugin, handle Handler) error {
	return ServeWithProgress(p, func(ctx context.Context, r Request, _ ProgressFunc) (Result, error) {
		return handle(ctx, r)
	})
}

// ServeWithProgress is the plugin's side of one session: the whole life of a
// plugin's process. It returns nil when the terminal frame was sent, a failure
// frame too; the process then exits 0. An error says that the session cannot go
// on (a *[Violation] by the host, or the stream's own error); then nothing more
// was written, and the process exits with another status.
//
// It reads In ahead, also after it returned, and never closes it.
func ServeWithProgress(p Plugin, handle ProgressHandler) error {
	if p.In == nil {
		p.In = os.Stdin
	}
	if p.Out == nil {
		p.Out = os.Stdout
	}
	if p.Log == nil {
		p.Log = os.Stderr
	}
	s := &service{Plugin: p, reader: NewReader(p.In)}

	// 1. The host offers. Before this frame is good, nothing is written.
	if err := s.initialize(); err != nil {
		return err
	}
	// 2. We select.
	if err := s.write(Initialized{s.selected}); err != nil {
		return err
	}
	// 3. The host asks. If this frame is bad, nothing more is written.
	request, err := s.execute()
	if err != nil {
		return err
	}
	// 4. The operation runs, while the host may cancel.
	result, err := s.operate(request, handle)
	if err != nil {
		return err
	}
	// 5. One terminal frame ends the session.
	return s.write(result)
}

// service is one session of a plugin.
type service struct {
	Plugin
	reader   *Reader
	id       string
	selected []Capability

	writing  sync.Mutex // Out, and what follows
	progress int        // frames sent

	// closed says that no progress follows: the handler is done, or the host broke
	// the protocol. It is looked at under writing and set without: a violation must
	// not wait for a frame that a host does not read.
	closed atomic.Bool
}

// initialize reads the offer.
func (s *service) initialize() error {
	frame, err := s.read("initialize")
	if err != nil {
		return err
	}
	offer, ok := frame.Message.(Initialize)
	if !ok {
		return s.undue(frame, "initialize")
	}
	s.id = frame.ID
	for _, c := range offer.Capabilities {
		if slices.Contains(s.Capabilities, c) {
			s.selected = append(s.selected, c)
		}
	}
	if !slices.ContainsFunc(s.selected, Capability.IsOperation) {
		return s.violation(RuleCapabilities, "the host offers no operation of this plugin")
	}
	return nil
}

// execute reads the request.
func (s *service) execute() (Request, error) {
	frame, err := s.read("execute")
	if err != nil {
		return Request{}, err
	}
	request, ok := frame.Message.(Request)
	switch {
	case !ok:
		return Request{}, s.undue(frame, "execute")
	case frame.ID != s.id:
		return Request{}, s.violation(RuleID, "id is not the session's")
	case !slices.Contains(s.selected, request.Operation):
		return Request{}, s.violation(RuleOperation, "operation %s was not negotiated", request.Operation)
	}
	request.Selected = slices.Clone(s.selected)
	return request, nil
}

// violationGrace is how long a handler may go on after a violation by the host.
// A plugin that rejects ends in bounded time (contract: Conformance), whatever
// its handler does.
const violationGrace = time.Second

// operate runs the handler and returns the terminal frame, or the violation that
// the host committed meanwhile: whichever came first.
func (s *service) operate(request Request, handle ProgressHandler) (Message, error) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	violated := make(chan error, 1)
	go func() {
		defer stop()
		if err := s.watch(stop); err != nil {
			s.closed.Store(true)
			violated <- err
		}
	}()
	done := make(chan Message, 1)
	go func() {
		var result Result
		err := errors.New("the handler ended its goroutine") // unless it returns
		defer func() {
			if p := recover(); p != nil {
				panic(p) // it is the end of the process, and nothing follows
			}
			s.closed.Store(true)
			done <- s.terminal(ctx, request, result, err)
		}()
		result, err = handle(ctx, request, s.report)
	}()

	select {
	case err := <-violated:
		stop()
		select {
		case <-done:
		case <-time.After(violationGrace):
		}
		return nil, err
	case message := <-done:
		select {
		case err := <-violated: // it was first, or at the same time
			return nil, err
		default:
			return message, nil
		}
	}
}

// watch reads what comes after execute: one cancel, if it was negotiated, and
// the end. It calls cancel at the first of them. The end of the stream before
// the terminal frame means that the host is gone.
func (s *service) watch(cancel func()) error {
	for cancelled := false; ; cancelled = true {
		frame, err := s.reader.Next()
		if err != nil {
			if _, ok := errors.AsType[*Violation](err); ok {
				return err
			}
			return nil
		}
		_, ok := frame.Message.(Cancel)
		switch {
		case !ok || cancelled:
			return s.undue(frame, "nothing more")
		case !slices.Contains(s.selected, CapCancel):
			return s.violation(RuleCapabilities, "cancel came, and was not negotiated")
		case frame.ID != s.id:
			return s.violation(RuleID, "id is not the session's")
		}
		cancel()
	}
}

// report is the handler's ProgressFunc.
func (s *service) report(stage Stage, text string) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closed.Load() || s.progress == MaxProgressFrames || !slices.Contains(s.selected, CapProgress) {
		return
	}
	if err := s.encode(Progress{s.progress + 1, stage, cut(text, MaxProgressTextBytes)}); err != nil {
		fmt.Fprintln(s.Log, "a progress frame was not sent:", err)
		return
	}
	s.progress++
}

// cut returns the begin of text in at most limit bytes of whole characters.
func cut(text string, limit int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= limit {
		return text
	}
	for !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

// terminal makes the terminal frame of what the handler returned. A result that
// the protocol does not allow is a failure of the plugin, and told as one.
func (s *service) terminal(ctx context.Context, request Request, result Result, err error) Message {
	if err == nil {
		result.Operation = request.Operation
		if !slices.Contains(s.selected, CapCommitSubject) {
			result.CommitSubject = ""
		}
		if !slices.Contains(s.selected, CapAgentReport) {
			result.Report = nil
		}
		if _, err = Encode(Frame{s.id, result}); err == nil {
			return result
		}
		err = fmt.Errorf("the result is not one of the protocol: %w", err)
	}
	fmt.Fprintln(s.Log, err)
	if failure, ok := errors.AsType[Failure](err); ok {
		if _, invalid := Encode(Frame{s.id, failure}); invalid == nil {
			return failure
		}
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return Failure{Cancelled}
	}
	return Failure{ExecutionFailed}
}

func (s *service) write(m Message) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.encode(m)
}

// encode writes one frame in one call; writing is held.
func (s *service) encode(m Message) error {
	text, err := Encode(Frame{s.id, m})
	if err != nil {
		return err
	}
	_, err = s.Out.Write(text)
	return err
}

// read reads a frame that is due.
func (s *service) read(due string) (Frame, error) {
	frame, err := s.reader.Next()
	if err == io.EOF {
		return Frame{}, violation(RuleOrder, "the host's frames ended before %s", due)
	}
	return frame, err
}

func (s *service) undue(f Frame, due string) error {
	return s.violation(RuleOrder, "a %s frame came where %s is due", f.Type(), due)
}

// violation is one by the frame that was read last.
func (s *service) violation(rule Rule, format string, args ...any) error {
	v := violation(rule, format, args...)
	v.Frame = s.reader.frames
	return v
}
