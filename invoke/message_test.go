package invoke

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hawser/internal/fault"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
)

const (
	requestID = wire.Digest("sha256:1111111111111111111111111111111111111111111111111111111111111111")
	secret    = "s3cret" // of the package: it is in no message
)

var (
	shake = &handshakeRequest{
		Schema: handshakeRequestSchema, RequestID: requestID, HostProtocols: []int{1}, ExtensionID: "org.example", Version: "1.0.0",
		PackageDigest: requestID, Capability: offer{capabilityName, []int{1}, []string{"feed", "feed-slow"}},
	}
	ask = &operationRequest{
		Schema: requestSchema, RequestID: requestID, HostProtocol: 1, ExtensionID: "org.example", Version: "1.0.0",
		PackageDigest: requestID, Capability: capabilityName, CapabilityVersion: 1, Adapter: "feed", Operation: Poll,
	}
	polled = pollInput{"source", "main"}
)

const (
	shaken = `{"schema":"firstmate.extension-handshake-response.v1","request_id":"` + string(requestID) + `","extension_id":"org.example","extension_version":"1.0.0","host_protocol":1,"capability":"process-event-adapter","capability_version":1,"adapter_names":["feed-slow","feed"]}`
	given  = `{"schema":"firstmate.extension-response.v1","request_id":"` + string(requestID) + `","ok":true,"result":{"status":"result","output":"an event"},"error":null}`
	failed = `{"schema":"firstmate.extension-response.v1","request_id":"` + string(requestID) + `","ok":false,"result":null,"error":{"code":"conflict","retryable":false,"diagnostic":"` + secret + `"}}`
)

// answer reads a response to ask as a poll does.
func answer(data []byte) (PollResult, error) {
	v, err := checkResponse(data, ask)
	if err != nil {
		return PollResult{}, err
	}
	return checkPoll(v, ask, polled)
}

// TestRequestsAreTheContracts: the bytes that a package gets.
func TestRequestsAreTheContracts(t *testing.T) {
	request := *ask
	request.Input = polled
	for _, test := range []struct {
		request any
		want    string
	}{
		{shake, `{"capability":{"adapter_names":["feed","feed-slow"],"name":"process-event-adapter","versions":[1]},"extension_id":"org.example","extension_version":"1.0.0","host_protocols":[1],"package_digest":"` + string(requestID) + `","request_id":"` + string(requestID) + `","schema":"firstmate.extension-handshake-request.v1"}` + "\n"},
		{request, `{"adapter":"feed","capability":"process-event-adapter","capability_version":1,"extension_id":"org.example","extension_version":"1.0.0","host_protocol":1,"input":{"config_ref":"main","source_id":"source"},"operation":"source.poll","package_digest":"` + string(requestID) + `","request_id":"` + string(requestID) + `","schema":"firstmate.extension-request.v1"}` + "\n"},
	} {
		got, err := encodeRequest(test.request)
		if err != nil || string(got) != test.want {
			t.Errorf("%v: %s", err, got)
		}
	}
}

func TestRequestLimit(t *testing.T) {
	request := *ask
	request.Operation = Classify
	request.Input = resultInput{"source", 7, ""}
	empty, err := encodeRequest(request)
	if err != nil {
		t.Fatal(err)
	}
	request.Input = resultInput{"source", 7, strings.Repeat("x", 65_536-len(empty))}
	if data, err := encodeRequest(request); err != nil || len(data) != 65_536 {
		t.Errorf("%d bytes: %v", len(data), err)
	}
	request.Input = resultInput{"source", 7, strings.Repeat("x", 65_537-len(empty))}
	if _, err := encodeRequest(request); !fault.Is(err, fault.RequestOversized) {
		t.Errorf("got %v", err)
	}
}

func TestRightAnswers(t *testing.T) {
	if err := checkHandshake([]byte(shaken), shake); err != nil {
		t.Error(err)
	}
	if result, err := answer([]byte(given)); err != nil || result.Output != "an event" {
		t.Errorf("%v, %v", result, err)
	}
	if _, err := answer([]byte(failed)); fault.CodeOf(err) != fault.ExtensionConflict {
		t.Error(err)
	}
}

// TestWrongAnswers changes each member of each right answer to each of many other
// values: none is accepted, and no message holds any of them.
func TestWrongAnswers(t *testing.T) {
	values := []string{
		`null`, `true`, `false`, `0`, `1.0`, `1e0`, `-0`, `2`, `9007199254740993`, `""`, `"` + secret + `"`, `[]`, `["` + secret + `"]`, `{}`, `{"` + secret + `":1}`,
		`"org.example "`, `["feed"]`, `["feed","feed"]`, `["feed","feed-slow","` + secret + `"]`, `"sha256:` + strings.Repeat("2", 64) + `"`,
	}
	for _, right := range []string{shaken, given, failed} {
		check := func(data []byte) error { _, err := answer(data); return err }
		if right == shaken {
			check = func(data []byte) error { return checkHandshake(data, shake) }
		}
		accepted := fault.CodeOf(check([]byte(right)))
		var members map[string]json.RawMessage
		if err := json.Unmarshal([]byte(right), &members); err != nil {
			t.Fatal(err)
		}
		for name, was := range members {
			for _, value := range append(values, "") {
				changed := map[string]json.RawMessage{}
				for n, v := range members {
					changed[n] = v
				}
				changed[name] = json.RawMessage(value)
				if value == "" {
					delete(changed, name)
				}
				data, err := json.Marshal(changed)
				if err != nil {
					t.Fatal(err)
				}
				if value == string(was) {
					continue
				}
				err = check(data)
				if err == nil || accepted != fault.Internal && fault.CodeOf(err) == accepted {
					t.Errorf("accepted: %s", data)
				}
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("%v: for %s", err, data)
				}
			}
		}
	}
}

// TestWhatIsPolledCanBeAskedAbout: an output that is accepted fits every later
// request about it, whatever its sequence.
func TestWhatIsPolledCanBeAskedAbout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom([]string{"x", "\x01", "\n", `"`, `\`, "é", "\u2028", "\U0001F600", "\x7f"}).Draw(t, "unit")
		output := strings.Repeat(unit, rapid.IntRange(1, 33_000).Draw(t, "times"))
		data, err := json.Marshal(map[string]any{
			"schema": responseSchema, "request_id": requestID, "ok": true, "error": nil,
			"result": map[string]string{"status": "result", "output": output},
		})
		if err != nil {
			t.Fatal(err)
		}
		result, err := answer(data)
		if err != nil {
			if !fault.Is(err, fault.ResponseOversized) {
				t.Fatal(err)
			}
			return
		}
		if result.Output != output || len(output) > outputLimit {
			t.Fatalf("%d bytes are accepted", len(output))
		}
		for _, operation := range []string{Classify, Terminal, Silent} {
			request := *ask
			request.Operation = operation
			request.Input = resultInput{polled.SourceID, rand.Uint64N(strictjson.MaxInt) + 1, output}
			if _, err := encodeRequest(request); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func FuzzHandshake(f *testing.F) {
	f.Add([]byte(shaken))
	f.Add([]byte(" " + shaken + "\n"))
	f.Add([]byte("Welcome to " + secret))
	f.Add([]byte("\uFEFF" + shaken))
	f.Add([]byte(shaken + "{}"))
	f.Add([]byte(`{"` + secret + `":"\ud800"}`))
	f.Add([]byte("{\"" + secret + "\":\xff}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		wantOwnWords(t, checkHandshake(data, shake))
	})
}

func FuzzResponse(f *testing.F) {
	f.Add([]byte(given))
	f.Add([]byte(failed))
	f.Add([]byte(strings.Replace(failed, "conflict", secret, 1)))
	f.Add([]byte(strings.Replace(given, "an event", `\u0001`, 1)))
	f.Add([]byte("null"))
	f.Add([]byte("[" + secret))
	f.Fuzz(func(t *testing.T, data []byte) {
		result, err := answer(data)
		if err == nil && len(result.Output) > outputLimit {
			t.Errorf("an output of %d bytes", len(result.Output))
		}
		wantOwnWords(t, err)
		v, err := checkResponse(data, ask)
		if err == nil {
			if word, err := checkClassification(v); err == nil && wire.CheckClassification(word) != "" {
				t.Errorf("classified as %q", word)
			}
		}
	})
}

// wantOwnWords checks that a refusal has a code and is one line without a byte
// of the package.
func wantOwnWords(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if fault.CodeOf(err) == fault.Internal || strings.Contains(err.Error(), secret) || strings.ContainsAny(err.Error(), "\n\x1b") {
		t.Errorf("%s: %q", fault.CodeOf(err), err)
	}
}
