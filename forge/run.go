package forge

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"hawser/internal/fault"
	"hawser/invoke/process"
)

// DefaultOutputBudget is how many bytes a plugin may write on stdout and stderr
// together, unless [Options] say otherwise.
const DefaultOutputBudget = 8 << 20

// The limits of an argument vector.
const (
	maxArguments     = 64
	maxArgumentBytes = 4_096
)

// Options say how a plugin is run.
type Options struct {
	// Argv is the plugin and its arguments: 1 to 64 of 1 to 4,096 bytes of UTF-8
	// without NUL. The first is a path, or a name that is looked up in this
	// process's PATH. It is never run by a shell.
	Argv []string
	// Env is the plugin's whole environment, "name=value", no name twice.
	Env []string
	// Dir is its working directory; "" for this process's.
	Dir string
	// Timeout bounds everything from the start to the plugin's end; required. A
	// workspace edit whose TimeoutMS is 0 is told this one.
	Timeout time.Duration
	// OutputBudget is in bytes; 0 for [DefaultOutputBudget].
	OutputBudget int64
	// Withhold are options that are not offered. All others that the operation
	// has are.
	Withhold []Capability
	// Progress is called for each progress frame, after it was validated: by Run's
	// own goroutine, in order, never after a cancellation. The session goes on
	// meanwhile, and its timeout with it, but Run does not return before the call.
	// When it panics, the plugin is stopped before the panic goes on.
	Progress func(Progress)
	// Stderr receives the plugin's diagnostics, which are private to this host;
	// nil drops them. Run waits for it.
	Stderr io.Writer
}

// Outcome is how a [Run] ended.
type Outcome int

const (
	// OutcomeResult: there is a Result.
	OutcomeResult Outcome = iota
	// OutcomeNotStarted: the request, the options or the program do not allow a
	// start. Nothing of the plugin ran.
	OutcomeNotStarted
	// OutcomeFailure: the plugin answered with a [Failure], which is in the error's chain.
	OutcomeFailure
	// OutcomeProtocol: the plugin broke the protocol; the [Violation] is in the
	// error's chain.
	OutcomeProtocol
	// OutcomeBudget: the plugin wrote more than its budget.
	OutcomeBudget
	// OutcomeCancelled: the caller's context was cancelled.
	OutcomeCancelled
	// OutcomeTimeout: the timeout, or the deadline of the caller's context, has passed.
	OutcomeTimeout
)

func (o Outcome) String() string {
	return [...]string{"result", "not started", "failure", "protocol violation", "budget exceeded", "cancelled", "timeout"}[o]
}

// Error is every outcome of [Run] but a result. Its codes: usage, io,
// platform-unsupported or process-failed when nothing was started;
// process-failed for a failure; handshake-invalid, request-id-mismatch or
// response-invalid for a violation; response-oversized; timeout;
// process-cleanup-failed. A cancellation has none: its chain holds the cause of
// the context.
type Error struct {
	Outcome Outcome
	// NotProvedGone says, beside any outcome, that something that the plugin
	// started may still run.
	NotProvedGone bool
	err           error
}

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// Run executes one request in a fresh process of a plugin, and returns when
// nothing of that process is left, or with an error that says so. Every error is
// an *[Error].
//
// The end of ctx cancels. Before execute was sent, and after the plugin's answer,
// the plugin is only stopped; in between it gets one cancel frame, or the end of
// stdin if it does not understand that, and DrainTime. A cancellation that is seen before Run returns is the outcome,
// whatever else happened at the same time, except for a budget that was exceeded
// before (contract: Operations and terminals).
//
// Any number of Runs may go on at the same time.
func Run(ctx context.Context, request Request, options Options) (Result, error) {
	options.setDefaults(&request)
	session, err := options.session(request)
	if err != nil {
		return Result{}, options.fail(OutcomeNotStarted, err)
	}
	ctx, cancel := context.WithTimeout(ctx, options.Timeout)
	defer cancel()

	plugin, err := options.start(ctx)
	if plugin != nil {
		defer plugin.Close()
	}
	switch {
	case ctx.Err() != nil && plugin != nil: // it may have been released
		return Result{}, withWhatIsLeft(options.interrupted(ctx), plugin.Stop())
	case ctx.Err() != nil:
		return Result{}, options.interrupted(ctx)
	case err != nil:
		return Result{}, options.fail(OutcomeNotStarted, err)
	}

	x := newExchange(ctx, session, peerOf(plugin), options.OutputBudget)
	x.progress, x.log = options.Progress, options.Stderr
	ending := x.run()
	return options.conclude(x, ending)
}

// conclude tells the outcome of an exchange that is over, and with any outcome
// that something may be left.
func (o *Options) conclude(x *exchange, ending process.Ending) (Result, error) {
	result, err := o.outcome(x, ending)
	return result, withWhatIsLeft(err, ending)
}

func withWhatIsLeft(err error, ending process.Ending) error {
	if e, ok := errors.AsType[*Error](err); ok && ending.NotProvedGone {
		e.NotProvedGone = true
		e.err = fmt.Errorf("%w; something that it started may still run, look for it with ps", e.err)
	}
	return err
}

// outcome's order of cases is the contract's answer to every race between them.
func (o *Options) outcome(x *exchange, ending process.Ending) (Result, error) {
	switch {
	case x.overBudget: // chosen while the context was live
		return Result{}, o.fail(OutcomeBudget, fault.New(fault.ResponseOversized,
			"it wrote more than %d bytes on stdout and stderr", o.OutputBudget))
	case x.ctx.Err() != nil:
		return Result{}, o.interrupted(x.ctx)
	case x.violation != nil:
		return Result{}, o.fail(OutcomeProtocol, x.explain(ending))
	case ending.WrapperLost && !ending.Exit.OK():
		return Result{}, o.fail(OutcomeProtocol, fault.Wrap(fault.ResponseInvalid,
			violation(RuleExit, "no exit 0 was seen after the terminal frame"), "its wrapper process was killed"))
	case !ending.Exit.OK():
		return Result{}, o.fail(OutcomeProtocol, fault.Wrap(fault.ResponseInvalid,
			violation(RuleExit, "%v followed the terminal frame, not exit 0", ending.Exit), "it broke the protocol"))
	case ending.NotProvedGone:
		return Result{}, o.fail(OutcomeProtocol, fault.Wrap(fault.ProcessCleanupFailed,
			violation(RuleExit, "not all that it started is proved gone"), "it could not be stopped"))
	}
	switch m := x.session.Terminal().(type) {
	case Result:
		return m, nil
	case Failure:
		return Result{}, o.fail(OutcomeFailure, fault.Wrap(fault.ProcessFailed, m, "it answered"))
	}
	return Result{}, o.fail(OutcomeProtocol, fault.New(fault.Internal, "the exchange ended without an outcome"))
}

// explain adds to a violation what a person needs to understand it: how a
// plugin ended that said too little.
func (x *exchange) explain(ending process.Ending) error {
	code := fault.ResponseInvalid
	switch {
	case x.violation.Rule == RuleID:
		code = fault.RequestIDMismatch
	case x.session.State() == Initializing:
		code = fault.HandshakeInvalid
	}
	switch {
	case ending.WrapperLost:
		return fault.Wrap(code, x.violation, "its wrapper process was killed, and it broke the protocol")
	case x.violation.Rule == RuleTerminal && x.exited:
		return fault.Wrap(code, x.violation, "it ended with %v and broke the protocol", ending.Exit)
	}
	return fault.Wrap(code, x.violation, "it broke the protocol")
}

// interrupted is the outcome of a context that ended. Whatever else happened is
// not told: it may be a consequence.
func (o *Options) interrupted(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return o.fail(OutcomeTimeout, fault.Wrap(fault.Timeout, cause, "it did not end in time"))
	}
	return o.fail(OutcomeCancelled, fmt.Errorf("cancelled: %w", cause))
}

func (o *Options) fail(outcome Outcome, err error) error {
	name := "a plugin without a name"
	if len(o.Argv) > 0 {
		name = "plugin " + fault.Path(o.Argv[0])
	}
	return &Error{Outcome: outcome, err: fmt.Errorf("%s: %w", name, err)}
}

func (o *Options) setDefaults(request *Request) {
	if o.OutputBudget == 0 {
		o.OutputBudget = DefaultOutputBudget
	}
	if request.Operation == CapWorkspaceEdit && request.TimeoutMS == 0 {
		request.TimeoutMS = max(1, o.Timeout.Milliseconds())
	}
}

// session checks everything that can be checked before a start, and returns the
// session that the request will have. Its frames are encoded once here, so that
// none can fail later.
func (o *Options) session(request Request) (*Session, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	offer := []Capability{request.Operation}
	for _, option := range request.Operation.Options() {
		if !slices.Contains(o.Withhold, option) {
			offer = append(offer, option)
		}
	}
	session := NewSession(newID(), request, offer)
	for _, encode := range []func() ([]byte, error){session.Initialize, session.Execute, session.Cancel} {
		if _, err := encode(); err != nil {
			return nil, fault.Wrap(fault.Usage, err, "the request is not one of the protocol")
		}
	}
	return session, nil
}

func (o *Options) check() error {
	switch {
	case len(o.Argv) < 1 || len(o.Argv) > maxArguments:
		return fault.New(fault.Usage, "the number of arguments must be 1 to %d, the plugin included", maxArguments)
	case o.Timeout <= 0:
		return fault.New(fault.Usage, "a timeout is required")
	case o.OutputBudget < 0:
		return fault.New(fault.Usage, "the output budget must not be negative")
	}
	for i, argument := range o.Argv {
		if argument == "" || len(argument) > maxArgumentBytes || !utf8.ValidString(argument) || strings.Contains(argument, "\x00") {
			return fault.New(fault.Usage, "argument %d must be 1 to %d bytes of UTF-8 without NUL", i, maxArgumentBytes)
		}
	}
	seen := make(map[string]bool, len(o.Env))
	for i, entry := range o.Env {
		name, _, ok := strings.Cut(entry, "=")
		if !ok || name == "" || seen[name] || strings.Contains(entry, "\x00") {
			return fault.New(fault.Usage, "environment entry %d must be name=value without NUL, no name twice", i)
		}
		seen[name] = true
	}
	return nil
}

// start starts the plugin below a wrapper that takes everything along that the
// plugin will have started. When it fails, nothing of the plugin ran; a group
// that it returns is to be closed all the same.
func (o *Options) start(ctx context.Context) (*process.Group, error) {
	path, err := o.path()
	if err != nil {
		return nil, err
	}
	// Whatever the name is, a FIFO that nobody writes included, opening it does not wait.
	dir, err := os.OpenFile(cmp.Or(o.Dir, "."), os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "its working directory cannot be opened")
	}
	defer dir.Close()
	group, err := process.Start(process.Spec{
		Path: path, Argv: o.Argv, Env: o.Env, Dir: dir, Policy: process.PolicyDescendants,
	})
	if err != nil {
		return nil, err
	}
	if err := group.Release(ctx); err != nil {
		return group, fault.Wrap(fault.ProcessFailed, err, "it could not be started")
	}
	return group, nil
}

// path is where the plugin is: as named, or in this process's PATH.
func (o *Options) path() (string, error) {
	path := o.Argv[0]
	if !strings.Contains(path, "/") && path != "." && path != ".." { // these two are directories, and said to be that
		found, err := exec.LookPath(path)
		if err != nil {
			return "", fault.Wrap(fault.ProcessFailed, err, "it is not in PATH")
		}
		path = found
	}
	path, err := filepath.Abs(path)
	return path, fault.Wrap(fault.IO, err, "its path cannot be made absolute")
}

func peerOf(g *process.Group) peer {
	return peer{
		stdin: g.Stdin, stdout: g.Stdout, stderr: g.Stderr,
		exited: g.Ended(), outputClosed: g.StdoutClosed, stop: g.Stop,
		limit: func() {
			for _, stream := range []*os.File{g.Stdin, g.Stdout, g.Stderr} {
				_ = stream.SetDeadline(time.Now().Add(process.OutputGrace))
			}
		},
	}
}

func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	return hex.EncodeToString(id[:])
}
