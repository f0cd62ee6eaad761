// Package filesignal_test drives the example package the way a host does, a
// verb and one document through pipes, without a host.
//
// It waits for what the kernel shows of the adapter (its inotify watches, how
// often it went to sleep), never for a time.
package filesignal_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	root    = "../../examples/process-event-extension"
	digest  = "sha256:00000000000000000000000000000000000000000000000000000000000000aa"
	request = "sha256:00000000000000000000000000000000000000000000000000000000000000bb"
	// secret marks what a test puts into a request: it must never be printed back.
	secret = "s3cret"
)

// object is a JSON object that a test builds or received.
type object = map[string]any

// with returns a copy of o in which one member has another value.
func with(o object, member string, value any) object {
	o = maps.Clone(o)
	o[member] = value
	return o
}

func without(o object, member string) object {
	o = maps.Clone(o)
	delete(o, member)
	return o
}

func encode(t *testing.T, o object) string {
	t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func handshakeRequest() object {
	return object{
		"schema":            "firstmate.extension-handshake-request.v1",
		"request_id":        request,
		"host_protocols":    []int{1},
		"extension_id":      "org.firstmate.example.file-signal",
		"extension_version": "1.0.0",
		"package_digest":    digest,
		"capability":        capability(),
	}
}

func capability() object {
	return object{"name": "process-event-adapter", "versions": []int{1}, "adapter_names": []string{"file-signal"}}
}

func invokeRequest(operation string, input object) object {
	return object{
		"schema":             "firstmate.extension-request.v1",
		"request_id":         request,
		"host_protocol":      1,
		"extension_id":       "org.firstmate.example.file-signal",
		"extension_version":  "1.0.0",
		"package_digest":     digest,
		"capability":         "process-event-adapter",
		"capability_version": 1,
		"adapter":            "file-signal",
		"operation":          operation,
		"input":              input,
	}
}

func pollRequest(path string) object {
	return invokeRequest("source.poll", object{"source_id": "s", "config_ref": "file:" + path})
}

// adapter is one running exchange.
type adapter struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
}

// start runs the entrypoint with a verb and a document, in the environment that
// a host gives. A changed adapter is run by a few lines of Python that load it
// as a module and change it first.
func start(t *testing.T, verb, document string, changes ...string) *adapter {
	t.Helper()
	entrypoint, err := filepath.Abs(filepath.Join(root, "bin/firstmate-extension"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	a := &adapter{t: t}
	if len(changes) == 0 {
		a.cmd = exec.CommandContext(ctx, entrypoint, verb)
	} else {
		program := "import sys; sys.dont_write_bytecode = True\n" +
			"from importlib.machinery import SourceFileLoader\n" +
			"from types import ModuleType\n" +
			"adapter = ModuleType('adapter')\n" +
			"SourceFileLoader('adapter', sys.argv[1]).exec_module(adapter)\n" +
			strings.Join(changes, "\n") + "\n" +
			"sys.exit(adapter.main(sys.argv[2:]))\n"
		a.cmd = exec.CommandContext(ctx, "/usr/bin/env", "python3", "-c", program, entrypoint, verb)
	}
	a.cmd.Dir = root
	a.cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG=C", "LC_ALL=C"}
	a.cmd.Stdin = strings.NewReader(document)
	a.cmd.Stdout, a.cmd.Stderr = &a.stdout, &a.stderr
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if a.cmd.ProcessState == nil {
			_ = a.cmd.Process.Kill()
			_ = a.cmd.Wait()
		}
	})
	return a
}

// refused waits for the end of an exchange that must print one line of its own
// on stderr and nothing else.
func (a *adapter) refused(status int) {
	a.t.Helper()
	_ = a.cmd.Wait()
	if got := a.cmd.ProcessState.ExitCode(); got != status {
		a.t.Errorf("exit status %d, want %d; stderr: %s", got, status, &a.stderr)
	}
	if a.stdout.Len() > 0 {
		a.t.Errorf("a refusal has no answer, got: %s", &a.stdout)
	}
	line := a.stderr.String()
	if !strings.HasPrefix(line, "file-signal: ") || strings.Count(line, "\n") != 1 || len(line) > 200 {
		a.t.Errorf("stderr is not one short line: %q", line)
	}
	if strings.Contains(line, secret) {
		a.t.Errorf("stderr relays the request: %q", line)
	}
}

// answer waits for the end of a successful exchange and returns the one document.
func (a *adapter) answer() object {
	a.t.Helper()
	if err := a.cmd.Wait(); err != nil {
		a.t.Fatalf("%v; stderr: %s", err, &a.stderr)
	}
	if a.stderr.Len() > 0 {
		a.t.Errorf("unexpected stderr: %s", &a.stderr)
	}
	if a.stdout.Len() > 65_536 {
		a.t.Errorf("an answer of %d bytes", a.stdout.Len())
	}
	d := json.NewDecoder(&a.stdout)
	var o object
	if err := d.Decode(&o); err != nil {
		a.t.Fatal(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		a.t.Fatalf("something follows the answer: %v", err)
	}
	return o
}

// result returns the result of a response that succeeded.
func (a *adapter) result() object {
	a.t.Helper()
	o := a.response()
	if o["ok"] != true || o["error"] != nil {
		a.t.Fatalf("not a success: %v", o["error"])
	}
	return o["result"].(object)
}

// failure returns the error code of a response that failed.
func (a *adapter) failure() string {
	a.t.Helper()
	o := a.response()
	e, ok := o["error"].(object)
	if o["ok"] != false || o["result"] != nil || !ok || len(e) != 3 {
		a.t.Fatalf("not a failure: %v", o)
	}
	diagnostic, _ := e["diagnostic"].(string)
	if len(diagnostic) < 1 || len(diagnostic) > 512 || strings.Contains(diagnostic, secret) {
		a.t.Errorf("diagnostic %q", diagnostic)
	}
	if _, ok := e["retryable"].(bool); !ok {
		a.t.Errorf("retryable is %v", e["retryable"])
	}
	code, _ := e["code"].(string)
	return code
}

func (a *adapter) response() object {
	a.t.Helper()
	o := a.answer()
	if len(o) != 5 || o["schema"] != "firstmate.extension-response.v1" || o["request_id"] != request {
		a.t.Fatalf("not the response to this request: %v", o)
	}
	return o
}

// output returns what a poll that found its file says.
func (a *adapter) output() string {
	a.t.Helper()
	r := a.result()
	if len(r) != 2 || r["status"] != "result" {
		a.t.Fatalf("not a result: %v", r)
	}
	return r["output"].(string)
}

// eventually waits for a condition that the adapter brings about.
func (a *adapter) eventually(what string, condition func() bool) {
	a.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			a.t.Fatalf("the adapter never came to: %s; stderr: %s", what, &a.stderr)
		}
	}
}

// watching waits until the adapter watches that many directories.
func (a *adapter) watching(directories int) {
	a.t.Helper()
	a.eventually(fmt.Sprintf("%d watched directories", directories), func() bool {
		infos, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", a.cmd.Process.Pid))
		watches := 0
		for _, info := range infos {
			b, _ := os.ReadFile(info)
			watches += bytes.Count(b, []byte("inotify wd:"))
		}
		return watches == directories
	})
}

// looked waits until the adapter went to sleep twice more: in between it looked
// at the file as it is since looked was called.
func (a *adapter) looked() {
	a.t.Helper()
	before := a.sleeps()
	a.eventually("looking again", func() bool { return a.sleeps() >= before+2 })
}

var voluntary = regexp.MustCompile(`(?m)^voluntary_ctxt_switches:\t(\d+)$`)

func (a *adapter) sleeps() int {
	a.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		a.t.Fatalf("the adapter is gone: %v; stdout: %s", err, &a.stdout)
	}
	m := voluntary.FindSubmatch(b)
	if m == nil {
		a.t.Fatalf("the adapter ended early: %s", &a.stdout)
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// depth is the number of directories from the root down to dir, both counted.
func depth(dir string) int { return strings.Count(dir, "/") + 1 }

// tempDir is t.TempDir below no link, as the number of watches needs it.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestPackageTravels(t *testing.T) {
	t.Parallel()
	entries, total := 0, int64(0)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		entries++
		if d.Type().IsRegular() {
			total += info.Size()
		} else if !d.IsDir() {
			t.Errorf("%s is neither file nor directory", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if entries > 128 || total > 524_288 {
		t.Errorf("%d entries, %d bytes: more than a transfer holds", entries, total)
	}
}

func TestHandshakeAgreesWithManifest(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join(root, "firstmate-extension.json"))
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		ID, Version  string
		Capabilities []object
	}
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	r := handshakeRequest()
	r["extension_id"], r["extension_version"], r["capability"] = m.ID, m.Version, m.Capabilities[0]
	got := start(t, "handshake", encode(t, r)).answer()
	want := object{
		"schema":             "firstmate.extension-handshake-response.v1",
		"request_id":         request,
		"extension_id":       m.ID,
		"extension_version":  m.Version,
		"host_protocol":      1.0,
		"capability":         "process-event-adapter",
		"capability_version": 1.0,
		"adapter_names":      []any{"file-signal"},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestHandshakeTakesTheVersionInCommon(t *testing.T) {
	t.Parallel()
	r := handshakeRequest()
	r["host_protocols"] = []int{2, 1}
	r["capability"] = with(capability(), "versions", []int{1, 2})
	got := start(t, "handshake", encode(t, r)).answer()
	if got["host_protocol"] != 1.0 || got["capability_version"] != 1.0 {
		t.Errorf("got %v", got)
	}
}

func TestHandshakeRefuses(t *testing.T) {
	t.Parallel()
	r := handshakeRequest()
	good := encode(t, r)
	for name, document := range map[string]string{
		"nothing":             "",
		"not JSON":            secret,
		"two documents":       good + good,
		"no object":           "[]",
		"byte-order mark":     "\ufeff" + good,
		"invalid UTF-8":       strings.Replace(good, "1.0.0", "1.0.\xff", 1),
		"lone surrogate":      strings.Replace(good, `"1.0.0"`, `"\ud800"`, 1),
		"NaN":                 strings.Replace(good, `[1]`, `[NaN]`, 1),
		"bottomless":          strings.Repeat("[", 60_000),
		"oversized":           good + strings.Repeat(" ", 65_536),
		"member twice":        `{"schema":"` + secret + `",` + good[1:],
		"member twice, below": strings.Replace(good, `"name":`, `"name":"x","name":`, 1),
		"unknown member":      encode(t, with(r, secret, 1)),
		"unknown member deep": encode(t, with(r, "capability", with(capability(), secret, 1))),
		"missing member":      encode(t, without(r, "package_digest")),
		"null member":         encode(t, with(r, "request_id", nil)),
		"other schema":        encode(t, with(r, "schema", "firstmate.extension-request.v1")),
		"short request id":    encode(t, with(r, "request_id", request[:70])),
		"upper-case digest":   encode(t, with(r, "package_digest", strings.ToUpper(digest))),
		"other extension":     encode(t, with(r, "extension_id", "org.example."+secret)),
		"other version":       encode(t, with(r, "extension_version", "1.0.1")),
		"other protocol":      encode(t, with(r, "host_protocols", []int{2})),
		"protocol twice":      encode(t, with(r, "host_protocols", []int{1, 1})),
		"true for 1":          encode(t, with(r, "host_protocols", []any{true})),
		"fraction":            strings.Replace(good, `"host_protocols":[1]`, `"host_protocols":[1.0]`, 1),
		"other capability":    encode(t, with(r, "capability", with(capability(), "name", secret))),
		"other adapter":       encode(t, with(r, "capability", with(capability(), "adapter_names", []string{secret}))),
		"more adapters":       encode(t, with(r, "capability", with(capability(), "adapter_names", []string{"file-signal", secret}))),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start(t, "handshake", document).refused(1)
		})
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	start(t, secret, "").refused(2)
	start(t, "", "").refused(2)
}

func TestResultOperations(t *testing.T) {
	t.Parallel()
	input := object{"source_id": "s", "sequence": 7, "content": "line\nline"}
	for operation, want := range map[string]object{
		"result.classify": {"classification": "file-signal"},
		"result.terminal": {"value": true},
		"result.silent":   {"value": false},
	} {
		t.Run(operation, func(t *testing.T) {
			t.Parallel()
			got := start(t, "invoke", encode(t, invokeRequest(operation, input))).result()
			if !maps.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func TestInvokeFails(t *testing.T) {
	t.Parallel()
	path := "/" + secret
	r := pollRequest(path)
	input := r["input"].(object)
	result := object{"source_id": "s", "sequence": 7, "content": secret}
	ref := func(s string) object { return with(r, "input", with(input, "config_ref", s)) }
	for name, c := range map[string]struct {
		request object
		code    string
	}{
		"unknown member":        {with(r, secret, 1), "invalid-request"},
		"missing member":        {without(r, "adapter"), "invalid-request"},
		"unknown operation":     {invokeRequest(secret, result), "invalid-request"},
		"other version":         {with(r, "extension_version", "2.0.0"), "incompatible"},
		"other protocol":        {with(r, "host_protocol", 2), "incompatible"},
		"other adapter":         {with(r, "adapter", secret), "incompatible"},
		"true for 1":            {with(r, "capability_version", true), "invalid-request"},
		"input no object":       {with(r, "input", secret), "invalid-request"},
		"input of another":      {with(r, "input", result), "invalid-request"},
		"no source":             {with(r, "input", with(input, "source_id", "")), "invalid-request"},
		"sequence 0":            {invokeRequest("result.silent", with(result, "sequence", 0)), "invalid-request"},
		"content no string":     {invokeRequest("result.silent", with(result, "content", nil)), "invalid-request"},
		"reference no path":     {ref(secret), "invalid-request"},
		"reference with host":   {ref("file://host/" + secret), "invalid-request"},
		"reference relative":    {ref("file:" + secret), "invalid-request"},
		"reference to the root": {ref("file:/"), "invalid-request"},
		"reference unclean":     {ref("file:/a/../" + secret), "invalid-request"},
		"reference with NUL":    {ref("file:/a\x00" + secret), "invalid-request"},
		"reference too long":    {ref("file:/" + strings.Repeat("é", 254)), "invalid-request"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if code := start(t, "invoke", encode(t, c.request)).failure(); code != c.code {
				t.Errorf("code %q, want %q", code, c.code)
			}
		})
	}
}

func TestInvokeWithoutRequestID(t *testing.T) {
	t.Parallel()
	start(t, "invoke", encode(t, without(pollRequest("/"+secret), "request_id"))).refused(1)
	start(t, "invoke", encode(t, with(pollRequest("/"+secret), "request_id", secret))).refused(1)
}

func TestPollFindsFile(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"a word":             "done\n",
		"NUL and quotes":     "a\x00\"b\\\r\n\x7f",
		"not ASCII":          "käse \U0001f9c0 \u2028",
		"the largest":        strings.Repeat("x", 32_768),
		"the largest, wider": strings.Repeat("\U0001f9c0", 32_768/4),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "signal")
			write(t, path, content)
			if got := start(t, "invoke", encode(t, pollRequest(path))).output(); got != content {
				t.Errorf("got %.100q, want %.100q", got, content)
			}
		})
	}
}

func TestPollFails(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(path string) error{
		"oversized":     func(p string) error { return os.WriteFile(p, bytes.Repeat([]byte("x"), 32_769), 0o600) },
		"not UTF-8":     func(p string) error { return os.WriteFile(p, []byte(secret+"\xff"), 0o600) },
		"a surrogate":   func(p string) error { return os.WriteFile(p, []byte("\xed\xa0\x80"), 0o600) },
		"mostly quotes": func(p string) error { return os.WriteFile(p, bytes.Repeat([]byte(`"`), 32_768), 0o600) },
		"a directory":   func(p string) error { return os.Mkdir(p, 0o700) },
		"a FIFO":        func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"a loop":        func(p string) error { return os.Symlink(p, p) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), secret)
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			if code := start(t, "invoke", encode(t, pollRequest(path))).failure(); code != "unavailable" {
				t.Errorf("code %q", code)
			}
		})
	}
}

func TestPollFailsOnUnreadableFile(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may read every file: needs an unprivileged user")
	}
	path := filepath.Join(t.TempDir(), "signal")
	write(t, path, "done")
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	if code := start(t, "invoke", encode(t, pollRequest(path))).failure(); code != "unavailable" {
		t.Errorf("code %q", code)
	}
}

func TestPollWaits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		missing string                     // directories that do not exist yet
		before  func(string) error         // what is there when the wait begins
		happens func(string, string) error // how the file comes, given an elsewhere
	}{
		"written": {happens: func(path, _ string) error {
			return os.WriteFile(path, []byte("done"), 0o600)
		}},
		"renamed into place": {happens: func(path, elsewhere string) error {
			return errors.Join(os.WriteFile(elsewhere, []byte("done"), 0o600), os.Rename(elsewhere, path))
		}},
		"linked into place": {happens: func(path, elsewhere string) error {
			return errors.Join(os.WriteFile(elsewhere, []byte("done"), 0o600), os.Link(elsewhere, path))
		}},
		"empty first": {
			before:  func(path string) error { return os.WriteFile(path, nil, 0o600) },
			happens: func(path, _ string) error { return os.WriteFile(path, []byte("done"), 0o600) },
		},
		"empty first, replaced": {
			before: func(path string) error { return os.WriteFile(path, nil, 0o600) },
			happens: func(path, elsewhere string) error {
				return errors.Join(os.WriteFile(elsewhere, []byte("done"), 0o600), os.Rename(elsewhere, path))
			},
		},
		"directories made first": {missing: "a/b/c", happens: func(path, _ string) error {
			return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("done"), 0o600))
		}},
		"directory renamed into place": {missing: "a/b", happens: func(path, elsewhere string) error {
			return errors.Join(
				os.MkdirAll(elsewhere+"/b", 0o700),
				os.WriteFile(elsewhere+"/b/"+filepath.Base(path), []byte("done"), 0o600),
				os.Rename(elsewhere, filepath.Dir(filepath.Dir(path))),
			)
		}},
		"directory instead of a file": {
			missing: "a",
			before:  func(path string) error { return os.WriteFile(filepath.Dir(path), nil, 0o600) },
			happens: func(path, _ string) error {
				return errors.Join(
					os.Remove(filepath.Dir(path)),
					os.Mkdir(filepath.Dir(path), 0o700),
					os.WriteFile(path, []byte("done"), 0o600),
				)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tempDir(t)
			path := filepath.Join(dir, c.missing, "signal")
			if c.before != nil {
				if err := c.before(path); err != nil {
					t.Fatal(err)
				}
			}
			a := start(t, "invoke", encode(t, pollRequest(path)))
			a.watching(depth(dir))
			a.looked()
			if err := c.happens(path, filepath.Join(dir, "elsewhere")); err != nil {
				t.Fatal(err)
			}
			if got := a.output(); got != "done" {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestPollNeverReturnsAHalf(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	path := filepath.Join(dir, "signal")
	a := start(t, "invoke", encode(t, pollRequest(path)))
	a.watching(depth(dir))
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"one ", "two ", "three"} {
		if _, err := f.WriteString(part); err != nil {
			t.Fatal(err)
		}
		a.looked()
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := a.output(); got != "one two three" {
		t.Errorf("got %q", got)
	}
}

const (
	shortly   = "adapter.POLL_SECONDS = 0.4"
	noInotify = "sys.modules['ctypes'] = None"
	noLeases  = "import fcntl; del fcntl.F_SETLEASE"
)

func TestPollEndsWithoutResult(t *testing.T) {
	t.Parallel()
	for name, changes := range map[string][]string{
		"inotify":    {shortly},
		"no inotify": {shortly, noInotify},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "signal")
			write(t, path, "")
			got := start(t, "invoke", encode(t, pollRequest(path)), changes...).result()
			if want := (object{"status": "no-result", "output": ""}); !maps.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func TestPollElsewhereThanLinux(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "signal")
	a := start(t, "invoke", encode(t, pollRequest(path)), noInotify, noLeases)
	a.looked()
	write(t, path, "done")
	if got := a.output(); got != "done" {
		t.Errorf("got %q", got)
	}
}

func TestStopsWhenTold(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			dir := tempDir(t)
			a := start(t, "invoke", encode(t, pollRequest(filepath.Join(dir, "signal"))))
			a.watching(depth(dir))
			if err := a.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			_ = a.cmd.Wait()
			status := a.cmd.ProcessState.Sys().(syscall.WaitStatus)
			if !status.Signaled() || status.Signal() != signal {
				t.Errorf("ended with %v", a.cmd.ProcessState)
			}
			if a.stdout.Len()+a.stderr.Len() > 0 {
				t.Errorf("it still said %q %q", &a.stdout, &a.stderr)
			}
		})
	}
}
