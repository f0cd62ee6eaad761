// Package fault is the one error type of the project: a refusal with a stable
// code that scripts match on, and a message that a person can act on.
//
// A fault is made once, at the place that knows what is wrong with which path
// or record; callers that add context use fmt.Errorf with %w and keep the code.
// The package imports nothing of ours, so that every room may use it.
package fault

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Code is the stable word of a refusal. The set is closed: a code never
// changes meaning, and docs/errors.md says for each what to do about it.
type Code string

// The call itself.
const (
	Usage               Code = "usage"
	HomeInvalid         Code = "home-invalid"
	PlatformUnsupported Code = "platform-unsupported"
	LockUnavailable     Code = "lock-unavailable"
	IO                  Code = "io"
	Internal            Code = "internal"
)

// Paths.
const (
	PathUnsafe    Code = "path-unsafe"
	OwnerMismatch Code = "owner-mismatch"
	ModeUnsafe    Code = "mode-unsafe"
	LinkUnsafe    Code = "link-unsafe"
)

// Packages and JSON documents.
const (
	PackageMissing    Code = "package-missing"
	PackageInvalid    Code = "package-invalid"
	PackageOversized  Code = "package-oversized"
	ManifestMissing   Code = "manifest-missing"
	ManifestOversized Code = "manifest-oversized"
	SchemaInvalid     Code = "schema-invalid"
	JSONInvalid       Code = "json-invalid"
	JSONOversized     Code = "json-oversized"
	EntrypointMissing Code = "entrypoint-missing"
	EntrypointInvalid Code = "entrypoint-invalid"
	IntegrityMismatch Code = "integrity-mismatch"
)

// Bindings and their registry.
const (
	ProtocolIncompatible Code = "protocol-incompatible"
	CapabilityMismatch   Code = "capability-mismatch"
	ConsentMissing       Code = "consent-missing"
	AdapterConflict      Code = "adapter-conflict"
	AdapterUnbound       Code = "adapter-unbound"
	BindingExists        Code = "binding-exists"
	BindingMissing       Code = "binding-missing"
	BindingOversized     Code = "binding-oversized"
	BindingInUse         Code = "binding-in-use"
	RegistryInvalid      Code = "registry-invalid"
	RegistryOversized    Code = "registry-oversized"
)

// Invocations.
const (
	HandshakeInvalid         Code = "handshake-invalid"
	RequestIDMismatch        Code = "request-id-mismatch"
	RequestOversized         Code = "request-oversized"
	ResponseInvalid          Code = "response-invalid"
	ResponseOversized        Code = "response-oversized"
	StderrOversized          Code = "stderr-oversized"
	Timeout                  Code = "timeout"
	ProcessFailed            Code = "process-failed"
	ProcessLeak              Code = "process-leak"
	ProcessCleanupFailed     Code = "process-cleanup-failed"
	ProcessIdentityUncertain Code = "process-identity-uncertain"
	OperationUnsupported     Code = "operation-unsupported"
	ExtensionInvalidRequest  Code = "extension-invalid-request"
	ExtensionIncompatible    Code = "extension-incompatible"
	ExtensionConflict        Code = "extension-conflict"
	ExtensionUnavailable     Code = "extension-unavailable"
	ExtensionInternal        Code = "extension-internal"
)

// Sources.
const (
	SourceMissing       Code = "source-missing"
	SourceBusy          Code = "source-busy"
	RegistrationInvalid Code = "registration-invalid"
	ResultInvalid       Code = "result-invalid"
)

// Transfers.
const (
	TransferExists       Code = "transfer-exists"
	TransferMissing      Code = "transfer-missing"
	RetirementIncomplete Code = "retirement-incomplete"
	RetirementPartial    Code = "retirement-partial"
	RouteMissing         Code = "route-missing"
	RouteAmbiguous       Code = "route-ambiguous"
	RouteInvalid         Code = "route-invalid"
)

// Error is a refusal. Its message names the path or record and, where there is
// one, the next step; Cause, when set, is the system's own error.
type Error struct {
	Code  Code
	Msg   string
	Cause error
}

func (e *Error) Error() string {
	if e.Cause == nil {
		return e.Msg
	}
	return e.Msg + ": " + e.Cause.Error()
}

func (e *Error) Unwrap() error { return e.Cause }

// New makes a refusal. The format takes no %w: use Wrap to keep a cause.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Msg: fmt.Sprintf(format, args...)}
}

// Wrap makes a refusal caused by err. It returns a plain nil error when err is
// nil, so that it can end a function.
func Wrap(code Code, err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &Error{Code: code, Msg: fmt.Sprintf(format, args...), Cause: err}
}

// CodeOf returns the code that err carries: that of the outermost *Error in its
// chain, and Internal when there is none.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return Internal
}

// Is reports whether err carries the code.
func Is(err error, code Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}

// Path renders a path for a message: as it is, or quoted when a person could
// not read or copy it otherwise, so that a hostile name cannot forge a line.
func Path(path string) string {
	if utf8.ValidString(path) && path != "" && !strings.ContainsFunc(path, func(r rune) bool {
		return !unicode.IsPrint(r) || r == '"'
	}) {
		return path
	}
	return strconv.Quote(path)
}

// Line renders err as the one line of the contract, without a line end:
// "error[<code>]: <message>". Line breaks and other control characters that a
// system error or a library may have put into the message become spaces.
func Line(err error) string {
	msg := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, err.Error())
	return fmt.Sprintf("error[%s]: %s", CodeOf(err), msg)
}
