package invoke

import (
	"bytes"
	"slices"
	"unicode/utf8"

	"hawser/binding"
	"hawser/internal/fault"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
)

// The four operations of process-event-adapter/1, and the handshake, which is
// an operation only where one is recorded.
const (
	Poll     = "source.poll"
	Classify = "result.classify"
	Terminal = "result.terminal"
	Silent   = "result.silent"

	handshake = "handshake"
)

// Sizes of the executable protocol (wire: Limits).
const (
	envelopeLimit = 65_536
	stderrLimit   = 8_192
	outputLimit   = 32_768
)

const (
	handshakeRequestSchema  = "firstmate.extension-handshake-request.v1"
	handshakeResponseSchema = "firstmate.extension-handshake-response.v1"
	requestSchema           = "firstmate.extension-request.v1"
	responseSchema          = "firstmate.extension-response.v1"

	capabilityName = binding.Capability
)

type handshakeRequest struct {
	Schema        string      `json:"schema"`
	RequestID     wire.Digest `json:"request_id"`
	HostProtocols []int       `json:"host_protocols"`
	ExtensionID   string      `json:"extension_id"`
	Version       string      `json:"extension_version"`
	PackageDigest wire.Digest `json:"package_digest"`
	Capability    offer       `json:"capability"`
}

type offer struct {
	Name         string   `json:"name"`
	Versions     []int    `json:"versions"`
	AdapterNames []string `json:"adapter_names"`
}

type operationRequest struct {
	Schema            string      `json:"schema"`
	RequestID         wire.Digest `json:"request_id"`
	HostProtocol      int         `json:"host_protocol"`
	ExtensionID       string      `json:"extension_id"`
	Version           string      `json:"extension_version"`
	PackageDigest     wire.Digest `json:"package_digest"`
	Capability        string      `json:"capability"`
	CapabilityVersion int         `json:"capability_version"`
	Adapter           string      `json:"adapter"`
	Operation         string      `json:"operation"`
	Input             any         `json:"input"`
}

type pollInput struct {
	SourceID  string `json:"source_id"`
	ConfigRef string `json:"config_ref"`
}

type resultInput struct {
	SourceID string `json:"source_id"`
	Sequence uint64 `json:"sequence"`
	Content  string `json:"content"`
}

// encodeRequest is the canonical request and its LF, within the limit.
func encodeRequest(request any) ([]byte, error) {
	data, err := strictjson.Canonical(request)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "cannot encode a request")
	}
	data = append(data, '\n')
	if len(data) > envelopeLimit {
		return nil, fault.New(fault.RequestOversized, "the request takes %d bytes as JSON; a package is sent at most %d", len(data), envelopeLimit)
	}
	return data, nil
}

// decode reads a response, and tells a common fault from other JSON that is
// none: text that was printed before the answer, or instead of it.
func decode(doc strictjson.Doc, data []byte) (*strictjson.Value, error) {
	v, err := doc.Decode(data)
	if fault.Is(err, fault.JSONInvalid) && utf8.Valid(data) && !startsDocument(data) {
		return nil, fault.New(fault.JSONInvalid, "%s: starts with something else than a JSON object, perhaps a banner; what is not the answer belongs on stderr", doc.Name)
	}
	return v, err
}

func startsDocument(data []byte) bool {
	data = bytes.TrimLeft(data, " \t\r\n")
	return bytes.HasPrefix(data, []byte("{")) || bytes.HasPrefix(data, []byte("\uFEFF"))
}

// checkHandshake holds a handshake response against what was asked (seed:
// Handshake). Every identity must match exactly; adapter names are a set.
func checkHandshake(data []byte, request *handshakeRequest) error {
	doc := strictjson.Doc{
		Name: "handshake response of " + request.ExtensionID, Limit: envelopeLimit,
		Oversized: fault.ResponseOversized, Schema: fault.HandshakeInvalid,
	}
	v, err := decode(doc, data)
	if err != nil {
		return err
	}
	v.Members("schema", "request_id", "extension_id", "extension_version", "host_protocol", "capability", "capability_version", "adapter_names")
	v.Get("schema").Const(handshakeResponseSchema)
	id := v.Get("request_id").String(wire.CheckDigest)
	v.Get("extension_id").Const(request.ExtensionID)
	v.Get("extension_version").Const(request.Version)
	v.Get("host_protocol").Int(binding.HostProtocol, binding.HostProtocol)
	v.Get("capability").Const(capabilityName)
	v.Get("capability_version").Int(int64(request.Capability.Versions[0]), int64(request.Capability.Versions[0]))
	names := v.Get("adapter_names").StringSet(1, 4096, wire.CheckAdapter)
	if err := v.Err(); err != nil {
		return err
	}
	if wire.Digest(id) != request.RequestID {
		return fault.New(fault.RequestIDMismatch, "handshake response of %s: it answers another request", request.ExtensionID)
	}
	if !sameSet(names, request.Capability.AdapterNames) {
		return fault.New(fault.HandshakeInvalid, "handshake response of %s: adapter_names are not the enabled ones", request.ExtensionID)
	}
	return nil
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// checkResponse reads the envelope of an operation's response and returns its
// result, or the package's own failure by its code. The package's diagnostic is
// validated and dropped (seed: Invocation envelope).
func checkResponse(data []byte, request *operationRequest) (*strictjson.Value, error) {
	doc := strictjson.Doc{
		Name: request.Operation + " response of " + request.ExtensionID, Limit: envelopeLimit,
		Oversized: fault.ResponseOversized, Schema: fault.ResponseInvalid,
	}
	v, err := decode(doc, data)
	if err != nil {
		return nil, err
	}
	v.Members("schema", "request_id", "ok", "result", "error")
	v.Get("schema").Const(responseSchema)
	id := v.Get("request_id").String(wire.CheckDigest)
	ok := v.Get("ok").Bool()
	if err := v.Err(); err != nil {
		return nil, err
	}
	if wire.Digest(id) != request.RequestID {
		return nil, fault.New(fault.RequestIDMismatch, "%s: it answers another request", doc.Name)
	}
	if ok {
		if !v.Get("error").IsNull() {
			v.Get("error").Fail("must be null in a successful response")
		}
		return v.Get("result"), v.Err()
	}
	if !v.Get("result").IsNull() {
		v.Get("result").Fail("must be null in a failed response")
	}
	e := v.Get("error")
	e.Members("code", "retryable", "diagnostic")
	code := e.Get("code").String(checkErrorCode)
	retryable := e.Get("retryable").Bool()
	e.Get("diagnostic").String(wire.CheckDiagnostic)
	if err := v.Err(); err != nil {
		return nil, err
	}
	hint := "it says that a retry will not help"
	if retryable {
		hint = "it says that a retry may help"
	}
	return nil, fault.New(fault.Code("extension-"+code), "%s answered %s with the error %s; %s", request.ExtensionID, request.Operation, code, hint)
}

func checkErrorCode(s string) string {
	switch s {
	case "invalid-request", "incompatible", "conflict", "unavailable", "internal":
		return ""
	}
	return "one of the five error codes"
}

// PollResult is the answer to a poll: Output is empty for no result.
type PollResult struct {
	Output string
}

// checkPoll reads the result of source.poll. An output that a later result.*
// request could not carry, escapes and all, is refused here, while the package
// can still be told (wire: Limits).
func checkPoll(v *strictjson.Value, request *operationRequest, input pollInput) (PollResult, error) {
	v.Members("status", "output")
	status := v.Get("status").String(func(s string) string {
		if s != "result" && s != "no-result" {
			return `"result" or "no-result"`
		}
		return ""
	})
	output := v.Get("output").String(nil)
	if (status == "result") != (output != "") {
		v.Get("output").Fail("must be empty for no-result and only then")
	}
	if err := v.Err(); err != nil {
		return PollResult{}, err
	}
	if len(output) > outputLimit {
		return PollResult{}, fault.New(fault.ResponseOversized, "%s response of %s: an output of %d bytes; at most %d are allowed", Poll, request.ExtensionID, len(output), outputLimit)
	}
	later := *request
	later.Operation = Classify
	later.Input = resultInput{input.SourceID, strictjson.MaxInt, output}
	if _, err := encodeRequest(later); err != nil {
		return PollResult{}, fault.New(fault.ResponseOversized, "%s response of %s: the output, escaped as JSON, would not fit a later request of %d bytes", Poll, request.ExtensionID, envelopeLimit)
	}
	return PollResult{output}, nil
}

func checkClassification(v *strictjson.Value) (string, error) {
	v.Members("classification")
	word := v.Get("classification").String(wire.CheckClassification)
	return word, v.Err()
}

func checkVerdict(v *strictjson.Value) (bool, error) {
	v.Members("value")
	yes := v.Get("value").Bool()
	return yes, v.Err()
}
