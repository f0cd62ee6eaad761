package hometest

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

// Behaviours are the packages that are Go functions: what each does when the
// host starts its entrypoint. The functions run in the test binary, executed
// again by a two-line shell script, the package's entrypoint: a package that
// starts an installed program by its absolute path is common in the field.
type Behaviours map[string]func(*Start)

// behaviourFlag, as the first argument, makes the test binary a package.
const behaviourFlag = "-hometest-behaviour"

// Run is the package if this process is one, and returns otherwise. Call it
// first in TestMain.
func (b Behaviours) Run() {
	if len(os.Args) < 4 || os.Args[1] != behaviourFlag {
		return
	}
	s := &Start{Args: os.Args[3 : len(os.Args)-1], Verb: os.Args[len(os.Args)-1]}
	do, ok := b[os.Args[2]]
	if !ok {
		fmt.Fprintln(os.Stderr, "no such behaviour")
		os.Exit(3)
	}
	do(s)
	os.Exit(0)
}

// Behaving returns a package with the behaviour, which gets args.
func Behaving(t testing.TB, behaviour string, args ...string) Package {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	words := append([]string{program, behaviourFlag, behaviour}, args...)
	for i, word := range words {
		words[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return Package{
		ID:       "org.example.behaving",
		Adapters: []string{"behaving"},
		// Under the race detector a program lingers for a second by default.
		Script: "#!/bin/sh\nGORACE=atexit_sleep_ms=0 exec " + strings.Join(words, " ") + ` "$@"` + "\n",
	}
}

// Start is one start of a package's entrypoint.
type Start struct {
	Args []string // of Behaving
	Verb string   // handshake or invoke

	request map[string]any
}

// Request reads the request, once.
func (s *Start) Request() map[string]any {
	if s.request == nil {
		data, err := io.ReadAll(os.Stdin)
		if err != nil || json.Unmarshal(data, &s.request) != nil {
			os.Exit(4)
		}
	}
	return s.request
}

// Answer is the right answer: to a handshake, or to an operation with the
// result given. What a test does to it is wrong.
func (s *Start) Answer(result map[string]any) map[string]any {
	request := s.Request()
	if s.Verb == "handshake" {
		capability := request["capability"].(map[string]any)
		return map[string]any{
			"schema":             "firstmate.extension-handshake-response.v1",
			"request_id":         request["request_id"],
			"extension_id":       request["extension_id"],
			"extension_version":  request["extension_version"],
			"host_protocol":      1,
			"capability":         capability["name"],
			"capability_version": 1,
			"adapter_names":      capability["adapter_names"],
		}
	}
	return map[string]any{
		"schema":     "firstmate.extension-response.v1",
		"request_id": request["request_id"],
		"ok":         true,
		"result":     result,
		"error":      nil,
	}
}

// Give prints the right answer.
func (s *Start) Give(result map[string]any) { s.Print(s.Answer(result)) }

// Print prints a document.
func (s *Start) Print(document any) {
	data, err := json.Marshal(document)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(data))
}

// Result is the result of a poll.
func Result(output string) map[string]any {
	return map[string]any{"status": "result", "output": output}
}

// NoResult is the result of a poll that found no event.
func NoResult() map[string]any { return map[string]any{"status": "no-result", "output": ""} }
