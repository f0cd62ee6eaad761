package invoke

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"hawser/binding"
	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/invoke/process"
)

// handshakeTimeout bounds a handshake (wire: Limits).
const handshakeTimeout = 5 * time.Second

// tokenVariable carries the operation's token to the package's processes.
const tokenVariable = process.TokenVariable

// Purpose says what an operation is for; it goes into the record.
type Purpose struct {
	Operation string      // Poll, Classify, Terminal or Silent; "" for a handshake alone
	RequestID wire.Digest // "" for a random one
	SourceID  string      // "" for none
}

// Operation is one use of a package: a handshake, and at most one invocation
// after it, under one record (see the package comment). It is for one
// goroutine, and must be closed.
type Operation struct {
	pkg    *binding.Installed
	env    []string
	record record
	state  *dirfd.Dir // the state root
	dir    *dirfd.Dir // state/extension-invocations
	root   *os.File   // the package root, the child's working directory

	waiting *process.Group // the barrier of the handshake, until it is used

	unproved bool // a group could not be proved gone: the record stays
}

// Reserve begins an operation: it makes the package's private state directory
// and publishes the reserved record. The caller holds the lifecycle lock, under
// which pkg was verified, and may release it afterwards.
//
// A crash leaves a record whose host is dead and that names no group: nothing
// ran, and Settle removes it. The barrier that waits then exits by itself.
//
// Errors: those of home.Make and process.Start; path-unsafe, owner-mismatch, mode-unsafe of
// config/extensions.path; platform-unsupported; io.
func Reserve(h *home.Home, pkg *binding.Installed, purpose Purpose) (*Operation, error) {
	b := pkg.Binding()
	self, err := process.Self()
	if err != nil {
		return nil, fault.Wrap(fault.PlatformUnsupported, err, "cannot tell this process's own identity; is /proc mounted?")
	}
	op := &Operation{pkg: pkg, record: record{
		Schema:        recordSchema,
		Token:         wire.RandomToken(),
		Phase:         phaseReserved,
		HostPID:       os.Getpid(),
		HostIdentity:  self.String(),
		ExtensionID:   b.ExtensionID,
		BindingDigest: pkg.Digest(),
		RequestID:     purpose.RequestID,
		Operation:     purpose.Operation,
	}}
	if op.record.Operation == "" {
		op.record.Operation = handshake
	}
	if op.record.RequestID == "" {
		op.record.RequestID = wire.RandomRequestID()
	}
	if purpose.SourceID != "" {
		op.record.SourceID = &purpose.SourceID
	}
	if err = op.open(h); err == nil {
		// It is started while the record is written: see step 1 of run.
		op.waiting, err = op.start("handshake")
	}
	if err == nil {
		err = op.record.publish(op.state, op.dir)
	}
	if err != nil {
		op.closeFiles()
		return nil, err
	}
	return op, nil
}

func (op *Operation) open(h *home.Home) (err error) {
	if op.env, err = environment(h, op.pkg.Binding(), op.record.Token); err != nil {
		return err
	}
	own, err := h.Make(nil, home.ExtensionState, op.record.ExtensionID)
	if err != nil {
		return err
	}
	own.Close()
	if op.dir, err = h.Make(nil, home.Invocations); err != nil {
		return err
	}
	if op.state, err = h.Open(home.State); err != nil {
		return err
	}
	op.root, err = op.pkg.Dir().File()
	return fault.Wrap(fault.IO, err, "cannot keep the package open")
}

// Close ends the operation and removes its record, unless a group of it could
// not be proved gone.
//
// Errors: io; the record is then left for Settle.
func (op *Operation) Close() error {
	defer op.closeFiles()
	if op.unproved {
		return nil
	}
	err := op.dir.Remove(recordName(op.record.Token))
	return fault.Wrap(fault.IO, err, "cannot remove the invocation record %s", fault.Path(op.recordPath()))
}

func (op *Operation) closeFiles() {
	if op.waiting != nil {
		op.waiting.Close()
	}
	for _, dir := range []*dirfd.Dir{op.dir, op.state} {
		if dir != nil {
			dir.Close()
		}
	}
	if op.root != nil {
		op.root.Close()
	}
}

func (op *Operation) recordPath() string {
	return filepath.Join(op.dir.Path(), recordName(op.record.Token))
}

// Handshake starts the package with the verb handshake and holds its answer
// against the binding (seed: Handshake). It comes before any other use.
//
// Errors: handshake-invalid, request-id-mismatch, and those of run.
func (op *Operation) Handshake(ctx context.Context) error {
	b := op.pkg.Binding()
	request := &handshakeRequest{
		Schema:        handshakeRequestSchema,
		RequestID:     op.handshakeID(),
		HostProtocols: []int{binding.HostProtocol},
		ExtensionID:   b.ExtensionID,
		Version:       b.ExtensionVersion,
		PackageDigest: b.PackageDigest,
		Capability:    offer{capabilityName, []int{int(b.CapabilityVersion)}, b.AdapterNames},
	}
	answer, err := op.run(ctx, "handshake", request, handshakeTimeout)
	if err != nil {
		return err
	}
	return checkHandshake(answer, request)
}

// handshakeID is the record's request id when the handshake is the whole
// operation; the one before an invocation has its own.
func (op *Operation) handshakeID() wire.Digest {
	if op.record.Operation == handshake {
		return op.record.RequestID
	}
	return wire.RandomRequestID()
}

// Poll asks for one event of a source.
//
// Errors: extension-…, response-invalid, response-oversized,
// request-id-mismatch, request-oversized, and those of run.
func (op *Operation) Poll(ctx context.Context, adapter, sourceID, configRef string) (PollResult, error) {
	input := pollInput{sourceID, configRef}
	request := op.request(Poll, adapter, input)
	answer, err := op.run(ctx, "invoke", request, op.pkg.Binding().Timeout())
	if err != nil {
		return PollResult{}, err
	}
	v, err := checkResponse(answer, request)
	if err != nil {
		return PollResult{}, err
	}
	return checkPoll(v, request, input)
}

// Captured is a captured result, as it is sent to the package that it is of.
type Captured struct {
	SourceID string
	Sequence uint64
	Content  string
}

// Classify asks for the word of a captured result. Errors: as Poll.
func (op *Operation) Classify(ctx context.Context, adapter string, c Captured) (string, error) {
	request := op.request(Classify, adapter, resultInput(c))
	answer, err := op.run(ctx, "invoke", request, op.pkg.Binding().Timeout())
	if err != nil {
		return "", err
	}
	v, err := checkResponse(answer, request)
	if err != nil {
		return "", err
	}
	return checkClassification(v)
}

// Verdict asks Terminal or Silent of a captured result. Only a nil error and
// true are a yes. Errors: as Poll.
func (op *Operation) Verdict(ctx context.Context, operation, adapter string, c Captured) (bool, error) {
	request := op.request(operation, adapter, resultInput(c))
	answer, err := op.run(ctx, "invoke", request, op.pkg.Binding().Timeout())
	if err != nil {
		return false, err
	}
	v, err := checkResponse(answer, request)
	if err != nil {
		return false, err
	}
	return checkVerdict(v)
}

func (op *Operation) request(operation, adapter string, input any) *operationRequest {
	b := op.pkg.Binding()
	return &operationRequest{
		Schema:            requestSchema,
		RequestID:         op.record.RequestID,
		HostProtocol:      binding.HostProtocol,
		ExtensionID:       b.ExtensionID,
		Version:           b.ExtensionVersion,
		PackageDigest:     b.PackageDigest,
		Capability:        capabilityName,
		CapabilityVersion: int(b.CapabilityVersion),
		Adapter:           adapter,
		Operation:         operation,
		Input:             input,
	}
}

// run is one start of the entrypoint (processes: An operation, step by step).
// The steps, and what a crash after each leaves:
//
//  1. the barrier waits in a new group     it exits when our end closes
//  2. the record names the group           Settle finds it extinct
//  3. the entrypoint's digest is checked   the same
//  4. the barrier executes the entrypoint  Settle stops the group
//  5. request, answer, exit, proof         the same
//  6. the package's digest is checked      the record of an extinct group
//
// Errors: integrity-mismatch and the others of a package that is not as it was;
// request-oversized, response-oversized, stderr-oversized, timeout,
// process-failed, process-leak, process-cleanup-failed; the context's cause
// when it ended; io.
func (op *Operation) run(ctx context.Context, verb string, request any, timeout time.Duration) ([]byte, error) {
	text, err := encodeRequest(request)
	if err != nil {
		return nil, err
	}
	group := op.waiting
	op.waiting = nil
	if group == nil {
		if group, err = op.start(verb); err != nil {
			return nil, err
		}
	}
	defer group.Close()
	answer, err := op.exchange(ctx, group, verb, text, timeout)
	if group.Stop().NotProvedGone {
		op.unproved = true
		return nil, fault.New(fault.ProcessCleanupFailed, "process group %d of %s did not end after KILL; the record %s is kept. See pgrep -a -g %[1]d, and when it is gone run fm-extension cleanup-invocations",
			group.Pid(), op.record.ExtensionID, fault.Path(op.recordPath()))
	}
	if err != nil {
		return nil, err
	}
	if err := op.pkg.Verify(); err != nil {
		return nil, fmt.Errorf("the package changed while it answered: %w; if it writes there itself, it has to use FIRSTMATE_EXTENSION_STATE instead", err)
	}
	return answer, nil
}

// start starts a barrier for the entrypoint.
func (op *Operation) start(verb string) (*process.Group, error) {
	path := op.pkg.EntrypointPath()
	return process.Start(process.Spec{Path: path, Argv: []string{path, verb}, Env: op.env, Dir: op.root})
}

func (op *Operation) exchange(ctx context.Context, group *process.Group, verb string, request []byte, timeout time.Duration) ([]byte, error) {
	pid, identity := group.Pid(), group.Identity().String()
	op.record.Phase, op.record.GroupPID, op.record.GroupIdentity = phaseGroup, &pid, &identity
	if err := op.record.publish(op.state, op.dir); err != nil {
		return nil, err
	}
	if err := op.pkg.CheckEntrypoint(); err != nil {
		return nil, err
	}
	if err := group.Release(ctx); err != nil {
		return nil, op.startFault(err)
	}
	r := group.Exchange(ctx, request, process.Limits{Timeout: timeout, Stdout: envelopeLimit, Stderr: stderrLimit})
	if err := op.judge(ctx, verb, r, timeout); err != nil {
		return nil, err
	}
	return r.Stdout, nil
}

func (op *Operation) startFault(err error) error {
	if exec, ok := errors.AsType[*process.ExecError](err); ok {
		return fault.New(fault.ProcessFailed, "%s: its entrypoint was not started: %v", op.record.ExtensionID, exec)
	}
	return err
}

// judge tells the ways apart in which an exchange is no answer. The order is
// that of causes: what made us stop the group comes before how it then ended.
func (op *Operation) judge(ctx context.Context, verb string, r process.Result, timeout time.Duration) error {
	who := op.record.ExtensionID
	switch {
	case r.StdoutOver:
		return fault.New(fault.ResponseOversized, "%s wrote more than %d bytes to stdout in answer to %s", who, envelopeLimit, verb)
	case r.StderrOver:
		return fault.New(fault.StderrOversized, "%s wrote more than %d bytes to stderr during %s", who, stderrLimit, verb)
	case r.TimedOut:
		return fault.New(fault.Timeout, "%s did not answer %s within %v", who, verb, timeout)
	case r.Cancelled:
		return context.Cause(ctx)
	case r.Leaked:
		return fault.New(fault.ProcessLeak, "%s left a process running after it answered %s; its processes must end with it", who, verb)
	case !r.Exit.OK():
		return fault.New(fault.ProcessFailed, "%s ended with %v in answer to %s%s", who, r.Exit, verb, op.exitHint(r))
	case r.HeldOutput:
		return fault.New(fault.ProcessLeak, "%s left a process outside its group that holds its stdout open after %s", who, verb)
	}
	if len(bytes.TrimLeft(r.Stdout, " \t\r\n")) == 0 {
		return fault.New(fault.JSONInvalid, "%s exited with success and an empty stdout in answer to %s", who, verb)
	}
	return nil
}

// exitHint says what the statuses of env and of shells usually mean: a missing
// interpreter behind #!/usr/bin/env ends like this, not with a failed start.
func (op *Operation) exitHint(r process.Result) string {
	switch r.Exit.Code {
	case 126:
		return ": usually a program that it needs is there but cannot be executed"
	case 127:
		return ": usually a program that it needs, or the interpreter in its first line, is not in the PATH of packages; list its directory in config/extensions.path"
	}
	return ""
}
