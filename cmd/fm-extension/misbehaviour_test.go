package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"hawser/tests/hometest"
)

// secret is in everything that a misbehaving package says; it must never be
// said again.
const secret = "s3cret"

// misbehaviour is a way in which a package does not what it should, and how it
// is told from all others: by the code, and by words of the message.
type misbehaviour struct {
	name string
	do   func(*hometest.Start)
	code string // "" for a package that is in order all the same
	says string // of stderr, what follows the code
}

// print prints text as it is.
func print(text string) func(*hometest.Start) {
	return func(s *hometest.Start) {
		s.Request()
		fmt.Print(text)
	}
}

// answering prints the right answer with one member set to another value, or
// removed if that is nil.
func answering(member string, value any) func(*hometest.Start) {
	return func(s *hometest.Start) {
		answer := maps.Clone(s.Answer(hometest.NoResult()))
		answer[member] = value
		if value == nil {
			delete(answer, member)
		}
		s.Print(answer)
	}
}

// giving is a successful poll with this result.
func giving(result map[string]any) func(*hometest.Start) {
	return func(s *hometest.Start) { s.Give(result) }
}

// failing is a failed response with this error.
func failing(e map[string]any) func(*hometest.Start) {
	return func(s *hometest.Start) {
		answer := s.Answer(nil)
		answer["ok"], answer["error"] = false, e
		s.Print(answer)
	}
}

func failure(code string, retryable bool, diagnostic string) map[string]any {
	return map[string]any{"code": code, "retryable": retryable, "diagnostic": diagnostic}
}

// after answers rightly, and then does something.
func after(do func(*hometest.Start)) func(*hometest.Start) {
	return func(s *hometest.Start) {
		s.Give(hometest.NoResult())
		do(s)
	}
}

func exit(code int) func(*hometest.Start) {
	return func(*hometest.Start) { os.Exit(code) }
}

func write(file *os.File, n int) func(*hometest.Start) {
	return func(*hometest.Start) {
		_, _ = file.WriteString(strings.Repeat(secret, n/len(secret)) + strings.Repeat("x", n%len(secret)))
	}
}

// forever writes until nobody reads any more.
func forever(file *os.File) func(*hometest.Start) {
	return func(s *hometest.Start) {
		for {
			if _, err := file.WriteString(strings.Repeat(secret+"\n", 1000)); err != nil {
				hang(s)
			}
		}
	}
}

func hang(*hometest.Start) { select {} }

func ignoreTerm(s *hometest.Start) {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	select {}
}

// pad answers rightly and fills stdout to n bytes with white space.
func pad(n int) func(*hometest.Start) {
	return func(s *hometest.Start) {
		var b bytes.Buffer
		stdout := os.Stdout
		r, w, _ := os.Pipe()
		os.Stdout = w
		s.Give(hometest.NoResult())
		w.Close()
		os.Stdout = stdout
		_, _ = io.Copy(&b, r)
		fmt.Print(b.String() + strings.Repeat(" ", n-b.Len()))
	}
}

const long = "0123456789abcdef"

// atAnyTime are told apart the same way at a handshake and at an operation,
// whose response's own code is given by RESPONSE.
var atAnyTime = []misbehaviour{
	{"in order", giving(hometest.NoResult()), "", ""},
	{"white space around", func(s *hometest.Start) { fmt.Print("\n \t"); s.Give(hometest.NoResult()); fmt.Print("\r\n ") }, "", ""},
	{"stdout at its limit", pad(65_536), "", ""},
	{"stdout over its limit", pad(65_537), "response-oversized", "more than 65536 bytes to stdout"},
	{"stdout without end", forever(os.Stdout), "response-oversized", "more than 65536 bytes to stdout"},
	{"stderr at its limit", after(write(os.Stderr, 8192)), "", ""},
	{"stderr over its limit", after(write(os.Stderr, 8193)), "stderr-oversized", "more than 8192 bytes to stderr"},
	{"stderr without end", forever(os.Stderr), "stderr-oversized", "more than 8192 bytes to stderr"},

	{"exit status", after(exit(3)), "process-failed", "ended with exit 3"},
	{"a program not found", exit(127), "process-failed", "not in the PATH of packages"},
	{"a program not executable", exit(126), "process-failed", "cannot be executed"},
	{"a signal", func(s *hometest.Start) { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} }, "process-failed", "ended with signal 9 (killed)"},
	{"silence", print(""), "json-invalid", "exited with success and an empty stdout"},
	{"white space", print(" \n"), "json-invalid", "exited with success and an empty stdout"},
	{"a banner", func(s *hometest.Start) { fmt.Println("Welcome to " + secret); s.Give(nil) }, "json-invalid", "perhaps a banner"},
	{"only a banner", print(secret + "\n"), "json-invalid", "perhaps a banner"},
	{"a banner after it", after(print(secret)), "json-invalid", "something follows the document"},
	{"a second document", after(print("{}")), "json-invalid", "something follows the document"},
	{"half a document", print(`{"schema":"` + secret), "json-invalid", "ends in the middle"},
	{"a byte-order mark", func(s *hometest.Start) { fmt.Print("\uFEFF"); s.Give(nil) }, "json-invalid", "byte-order mark"},
	{"not UTF-8", print("{\"" + secret + "\":\"\xff\"}"), "json-invalid", "not valid UTF-8"},
	{"a lone surrogate", print(`{"` + secret + `":"\ud800"}`), "json-invalid", "not valid JSON"},
	{"a raw control character", print("{\"" + secret + "\":\"\x01\"}"), "json-invalid", "not valid JSON"},
	{"a member twice", print(`{"` + secret + `":1,"\u0073` + secret[1:] + `":2}`), "json-invalid", "stands twice"},
	{"nested too deep", print(`{"` + secret + `":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + "}"), "json-invalid", "nested deeper than 64"},
	{"null", print("null"), "RESPONSE", "must be an object"},
	{"an array", print(`["` + secret + `"]`), "RESPONSE", "must be an object"},
	{"a string", print(`"` + secret + `"`), "RESPONSE", "must be an object"},
	{"an unknown member", answering(secret, true), "RESPONSE", "unknown member at line 1"},
	{"a missing member", answering("request_id", nil), "RESPONSE", `member "request_id" is missing`},
	{"another schema", answering("schema", secret), "RESPONSE", "schema: must be"},
	{"a request id that is none", answering("request_id", secret), "RESPONSE", "request_id: must be"},
	{"another request's id", answering("request_id", "sha256:"+strings.Repeat(long, 4)), "request-id-mismatch", "it answers another request"},

	{"a process left in its group", after(leave(false, nil)), "process-leak", "left a process running"},
	{"a process left with stdout", after(leave(false, os.Stdout)), "process-leak", "left a process running"},
	{"children that end first", func(s *hometest.Start) {
		for range 10 {
			if exec.Command("/bin/true").Run() != nil {
				os.Exit(6)
			}
		}
		s.Give(hometest.NoResult())
	}, "", ""},
}

var atHandshake = []misbehaviour{
	{"another extension", answering("extension_id", "org.example."+secret), "handshake-invalid", "extension_id: must be"},
	{"another version", answering("extension_version", "9.9.9"), "handshake-invalid", "extension_version: must be"},
	{"another protocol", answering("host_protocol", 2), "handshake-invalid", "host_protocol: must be"},
	{"a protocol with a fraction", func(s *hometest.Start) { s.Print(rawMember(s, "host_protocol", "1.0")) }, "handshake-invalid", "without fraction"},
	{"a protocol with an exponent", func(s *hometest.Start) { s.Print(rawMember(s, "host_protocol", "1e0")) }, "handshake-invalid", "without fraction, exponent"},
	{"another capability", answering("capability", secret), "handshake-invalid", "capability: must be"},
	{"a capability as an object", answering("capability", map[string]any{"name": "process-event-adapter"}), "handshake-invalid", "capability: must be a string"},
	{"another capability version", answering("capability_version", 2), "handshake-invalid", "capability_version: must be"},
	{"no adapter", answering("adapter_names", []string{}), "handshake-invalid", "adapter_names: the number of elements"},
	{"another adapter", answering("adapter_names", []string{secret}), "handshake-invalid", "adapter_names are not the enabled ones"},
	{"an adapter too many", answering("adapter_names", []string{"behaving", secret}), "handshake-invalid", "adapter_names are not the enabled ones"},
	{"an adapter twice", answering("adapter_names", []string{"behaving", "behaving"}), "handshake-invalid", "stands in the array twice"},
	{"a member that is null", func(s *hometest.Start) { s.Print(rawMember(s, "adapter_names", "null")) }, "handshake-invalid", "adapter_names: must be an array"},
	{"an answer to the other verb", func(s *hometest.Start) {
		s.Request()
		(&hometest.Start{Args: s.Args, Verb: "invoke"}).Print(map[string]any{"schema": "firstmate.extension-response.v1"})
	}, "handshake-invalid", ""},
	{"stdout held from another session", after(leave(true, os.Stdout)), "process-leak", "left a process outside its group"},
	// A process in another session that holds nothing is outside the guarantee.
	{"hanging", hang, "timeout", "did not answer handshake within 5s"},
	{"hanging and ignoring TERM", ignoreTerm, "timeout", "did not answer handshake within 5s"},
	{"closing stdout and lingering", after(func(s *hometest.Start) { os.Stdout.Close(); hang(s) }), "timeout", "did not answer handshake within 5s"},
}

var atPoll = []misbehaviour{
	{"invalid-request", failing(failure("invalid-request", false, secret)), "extension-invalid-request", "with the error invalid-request; it says that a retry will not help"},
	{"incompatible", failing(failure("incompatible", false, secret)), "extension-incompatible", "with the error incompatible"},
	{"conflict", failing(failure("conflict", false, secret)), "extension-conflict", "with the error conflict"},
	{"unavailable", failing(failure("unavailable", true, secret)), "extension-unavailable", "with the error unavailable; it says that a retry may help"},
	{"internal", failing(failure("internal", false, strings.Repeat("é", 256))), "extension-internal", "with the error internal"},
	{"another error code", failing(failure(secret, false, secret)), "response-invalid", "error.code: must be one of the five"},
	{"an empty diagnostic", failing(failure("internal", false, "")), "response-invalid", "error.diagnostic: must be 1 to 512 bytes"},
	{"a long diagnostic", failing(failure("internal", false, strings.Repeat("é", 256)+"e")), "response-invalid", "error.diagnostic: must be 1 to 512 bytes"},
	{"a diagnostic of two lines", failing(failure("internal", false, secret+"\n"+secret)), "response-invalid", "error.diagnostic: must be 1 to 512 bytes"},
	{"an error without retryable", failing(map[string]any{"code": "internal", "diagnostic": secret}), "response-invalid", `member "retryable" is missing`},
	{"an error with more in it", failing(map[string]any{"code": "internal", "retryable": true, "diagnostic": secret, "trace": secret}), "response-invalid", "unknown member"},
	{"an error and exit status", func(s *hometest.Start) { failing(failure("unavailable", true, secret))(s); os.Exit(1) }, "process-failed", "ended with exit 1"},
	{"success with an error", answering("error", failure("internal", false, secret)), "response-invalid", "error: must be null"},
	{"failure with a result", func(s *hometest.Start) {
		answer := s.Answer(hometest.Result(secret))
		answer["ok"], answer["error"] = false, failure("internal", false, secret)
		s.Print(answer)
	}, "response-invalid", "result: must be null"},
	{"failure without an error", answering("ok", false), "response-invalid", "result: must be null"},
	{"ok as a number", answering("ok", 1), "response-invalid", "ok: must be true or false"},

	{"no result object", answering("result", secret), "response-invalid", "result: must be an object"},
	{"another status", giving(map[string]any{"status": secret, "output": ""}), "response-invalid", "result.status: must be"},
	{"a result without output", giving(map[string]any{"status": "result", "output": ""}), "response-invalid", "result.output: must be empty for no-result and only then"},
	{"no result with output", giving(map[string]any{"status": "no-result", "output": secret}), "response-invalid", "result.output: must be empty"},
	{"an output that is null", giving(map[string]any{"status": "no-result", "output": nil}), "response-invalid", "result.output: must be a string"},
	{"more in the result", giving(map[string]any{"status": "result", "output": secret, "next": secret}), "response-invalid", "unknown member"},
	{"a verdict", giving(map[string]any{"value": true}), "response-invalid", "is missing"},
	{"an output over its limit", giving(hometest.Result(strings.Repeat("é", 16_384) + "x")), "response-oversized", "an output of 32769 bytes"},
	{"an output that escapes make too long", giving(hometest.Result(strings.Repeat("\x01", 10_860))), "response-oversized", "escaped as JSON, would not fit"},

	{"hanging", hang, "timeout", "did not answer invoke within 1s"},
	{"hanging and ignoring TERM", ignoreTerm, "timeout", "did not answer invoke within 1s"},
	{"closing all and lingering", after(func(s *hometest.Start) { os.Stdout.Close(); os.Stderr.Close(); hang(s) }), "timeout", "did not answer invoke within 1s"},
}

// polls are polls that are in order, and what they print.
var polls = map[string]string{
	"a line":              "a line\n",
	"no line end":         "no line end",
	"not only ASCII":      "\u00e9\u2028\U0001F600\x7f\"\\/</>",
	"control characters":  "\x00\x01\x1f\t\r\n",
	"as long as possible": strings.Repeat("é", 16_384),
	"as much as fits":     strings.Repeat("\x01", 10_000),
}

func init() {
	for _, m := range append(atAnyTime, atHandshake...) {
		behaviours["handshake: "+m.name] = atVerb("handshake", m.do)
	}
	for _, m := range append(atAnyTime, atPoll...) {
		behaviours["poll: "+m.name] = atVerb("invoke", m.do)
	}
	for name, output := range polls {
		behaviours["poll of "+name] = atVerb("invoke", giving(hometest.Result(output)))
	}
}

// TestMisbehavingAtHandshake: a package that does not shake hands is not bound,
// and the refusal says why, in words of ours alone.
func TestMisbehavingAtHandshake(t *testing.T) {
	for _, m := range append(atAnyTime, atHandshake...) {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, "handshake: "+m.name)
			stdout, stderr, code := s.run(t, s.bindArgs()...)
			if m.code == "" {
				if code != 0 || stderr != "" {
					t.Errorf("exit %d: %s", code, stderr)
				}
				s.gone(t)
				return
			}
			checkSaid(t, stderr, strings.ReplaceAll(m.code, "RESPONSE", "handshake-invalid"), m.says)
			if code != 1 || stdout != "" {
				t.Errorf("exit %d, and on stdout: %q", code, stdout)
			}
			if strings.Contains(m.name, "another session") {
				opened(t, s.leave).Close() // ends what was left
				eventually(t, "what was let go stays", func() error {
					if _, alive := s.look(t); alive {
						return errors.New("alive")
					}
					return nil
				})
			} else {
				s.gone(t)
			}
			records, err := hostOf(s.home).List()
			check(t, err)
			if len(records) != 0 {
				t.Error("it is bound")
			}
			hometest.CheckAtRest(t, s.home)
		})
	}
}

func checkSaid(t *testing.T, stderr, code, says string) {
	t.Helper()
	line, rest, _ := strings.Cut(stderr, "\n")
	if !strings.HasPrefix(line, "error["+code+"]: ") || rest != "" || !strings.Contains(line, says) {
		t.Errorf("not error[%s] and %q, but: %s", code, says, stderr)
	}
	if strings.Contains(stderr, secret) {
		t.Errorf("the package's words are in: %s", stderr)
	}
}

// TestMisbehavingAtPoll: a failed poll leaves evidence on stdout, with the code
// and nothing of the package.
func TestMisbehavingAtPoll(t *testing.T) {
	for _, m := range append(atAnyTime, atPoll...) {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, "poll: "+m.name)
			if m.code == "timeout" {
				s.bind(t, "--timeout-ms", "1000")
			} else {
				s.bind(t)
			}
			stdout, stderr, code := s.run(t, s.pollArgs("s")...)
			if m.code == "" {
				if code != 75 || stdout != "" || stderr != "" {
					t.Errorf("exit %d, %q: %s", code, stdout, stderr)
				}
				s.gone(t)
				return
			}
			want := strings.ReplaceAll(m.code, "RESPONSE", "response-invalid")
			checkSaid(t, stderr, want, m.says)
			evidence := fmt.Sprintf(`{"code":"%s","extension_id":"org.example.behaving","operation":"source.poll","schema":"firstmate.process-event-extension-error.v1"}`+"\n", want)
			if code != 70 || stdout != evidence {
				t.Errorf("exit %d, and on stdout: %q", code, stdout)
			}
			s.gone(t)
			hometest.CheckAtRest(t, s.home)
		})
	}
}

func TestPollPrintsTheOutputAsItIs(t *testing.T) {
	for name, output := range polls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, "poll of "+name)
			s.bind(t)
			stdout, stderr, code := s.run(t, s.pollArgs("s")...)
			if code != 0 || stdout != output || stderr != "" {
				t.Errorf("exit %d, %q: %s", code, stdout, stderr)
			}
			s.gone(t)
		})
	}
}

// TestEntrypointsThatDoNotStart: what the system says of a program is told apart.
func TestEntrypointsThatDoNotStart(t *testing.T) {
	elf := "\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 9) + "\x02\x00\xf7\x00" + strings.Repeat("\x00", 44) // e_machine 247, BPF
	for name, test := range map[string]struct{ script, says string }{
		"no interpreter":                        {"#!/no/such/" + secret + "\n", "the interpreter it needs is missing or cannot run; install it"},
		"an interpreter that env does not find": {"#!/usr/bin/env no-such-" + secret + "\n", "the interpreter in its first line, is not in the PATH of packages; list its directory in config/extensions.path"},
		"another architecture":                  {elf, "it is a program for another architecture"},
		"neither program nor script":            {"echo " + secret + "\n", "it is neither a program of this system nor a script that starts with #!"},
		"half a program":                        {"\x7fELF", "it is neither a program of this system nor a script that starts with #!"},
		"nothing":                               {"\n", "it is neither a program of this system nor a script that starts with #!"},
		"an interpreter that is a directory":    {"#!/etc\n", "the interpreter it needs is missing or cannot run"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &stage{home: hometest.New(t), pkg: hometest.Package{Adapters: []string{"behaving"}, Script: test.script}.Make(t)}
			stdout, stderr, code := s.run(t, s.bindArgs()...)
			checkSaid(t, stderr, "process-failed", test.says)
			if code != 1 || stdout != "" {
				t.Errorf("exit %d, and on stdout: %q", code, stdout)
			}
			hometest.CheckAtRest(t, s.home)
		})
	}
}

// rawMember is the right answer with one member as the text given.
func rawMember(s *hometest.Start, member, text string) map[string]any {
	answer := s.Answer(hometest.NoResult())
	answer[member] = json.RawMessage(text)
	return answer
}
