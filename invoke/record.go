package invoke

import (
	"strings"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
)

const (
	recordSchema  = "firstmate.extension-invocation-owner.v1"
	recordSuffix  = ".owner.json"
	tempPrefix    = home.TempPrefix + "invocation-"
	phaseReserved = "reserved"
	phaseGroup    = "group"
)

// record is who may still be running for an operation (processes: Invocation
// record). GroupPID and GroupIdentity are nil while reserved.
type record struct {
	Schema        string      `json:"schema"`
	Token         wire.Digest `json:"token"`
	Phase         string      `json:"phase"`
	HostPID       int         `json:"host_pid"`
	HostIdentity  string      `json:"host_identity"`
	GroupPID      *int        `json:"group_pid"`
	GroupIdentity *string     `json:"group_identity"`
	ExtensionID   string      `json:"extension_id"`
	BindingDigest wire.Digest `json:"binding_digest"`
	RequestID     wire.Digest `json:"request_id"`
	SourceID      *string     `json:"source_id"`
	Operation     string      `json:"operation"`
}

var recordDoc = strictjson.Doc{Name: "invocation record", Limit: 65_536}

func recordName(token wire.Digest) string { return token.Hex() + recordSuffix }

// tokenOfName is the token of a record's file name, "" for any other name.
func tokenOfName(name string) wire.Digest {
	hex, ok := strings.CutSuffix(name, recordSuffix)
	if !ok {
		return ""
	}
	token, ok := wire.ParseDigest("sha256:" + hex)
	if !ok {
		return ""
	}
	return token
}

// tempName is the name under which a record is written before it is published.
// It names its operation, so that whoever holds the lifecycle lock can tell a
// leftover: an operation makes its first record under that lock, and from then
// on has one.
func tempName(token wire.Digest) string { return tempPrefix + token.Hex() }

func tokenOfTemp(name string) wire.Digest {
	hex, ok := strings.CutPrefix(name, tempPrefix)
	if !ok {
		return ""
	}
	return tokenOfName(hex + recordSuffix)
}

// publish makes r the visible record of its operation, in one step.
//
// Errors: io.
func (r *record) publish(state, dir *dirfd.Dir) error {
	data, err := strictjson.Canonical(r)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "cannot encode an invocation record")
	}
	return home.WriteVisible(state, tempName(r.Token), dir, recordName(r.Token), append(data, '\n'))
}

// parseRecord reads a record; its token must be the one in its file's name.
//
// Errors: json-oversized, json-invalid, schema-invalid.
func parseRecord(token wire.Digest, data []byte) (*record, error) {
	v, err := recordDoc.Decode(data)
	if err != nil {
		return nil, err
	}
	v.Members("schema", "token", "phase", "host_pid", "host_identity", "group_pid", "group_identity",
		"extension_id", "binding_digest", "request_id", "source_id", "operation")
	v.Get("schema").Const(recordSchema)
	v.Get("token").Const(string(token))
	const maxPID = 1<<31 - 1
	r := &record{
		Schema:        recordSchema,
		Token:         token,
		Phase:         v.Get("phase").String(oneOf(phaseReserved, phaseGroup)),
		HostPID:       int(v.Get("host_pid").Int(1, maxPID)),
		HostIdentity:  v.Get("host_identity").String(checkIdentity),
		ExtensionID:   v.Get("extension_id").String(wire.CheckExtensionID),
		BindingDigest: wire.Digest(v.Get("binding_digest").String(wire.CheckDigest)),
		RequestID:     wire.Digest(v.Get("request_id").String(wire.CheckDigest)),
		Operation:     v.Get("operation").String(oneOf(handshake, Poll, Classify, Terminal, Silent)),
	}
	if source := v.Get("source_id"); !source.IsNull() {
		id := source.String(wire.CheckSourceID)
		r.SourceID = &id
	}
	pid, identity := v.Get("group_pid"), v.Get("group_identity")
	if r.Phase == phaseGroup {
		n, text := int(pid.Int(1, maxPID)), identity.String(checkIdentity)
		r.GroupPID, r.GroupIdentity = &n, &text
	} else if !pid.IsNull() || !identity.IsNull() {
		v.Fail("a reserved record names no group")
	}
	return r, v.Err()
}

func checkIdentity(s string) string {
	if s == "" || wire.HasControl(s) {
		return "a process identity"
	}
	return ""
}

func oneOf(words ...string) strictjson.Check {
	return func(s string) string {
		for _, word := range words {
			if s == word {
				return ""
			}
		}
		return "one of " + strings.Join(words, ", ")
	}
}
