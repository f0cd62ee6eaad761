package conformance

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"hawser/forge"
	"hawser/internal/fault"
	"hawser/invoke/process"
)

// The test plugin is strict, because it is made of package forge, but for one
// leniency or one misbehaviour. It runs in this process, so that hundreds of them
// can be judged; or, where an exit is judged, as this binary in a process of its
// own, told by variables what to be.
type testPlugin struct {
	operation    forge.Capability
	leniency     string // the scenario whose check it misses
	misbehaviour string
}

const variable = "CONFORMANCE_TEST_PLUGIN"

func TestMain(m *testing.M) {
	if told, ok := os.LookupEnv(variable); ok {
		words := strings.Split(told, ",")
		p := testPlugin{forge.Capability(words[0]), words[1], words[2]}
		os.Exit(p.run(os.Stdin, os.Stdout))
	}
	var err error
	if treesDir, err = os.MkdirTemp("", "conformance-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(treesDir)
	os.Exit(code)
}

// run is the plugin's life. It returns its exit status.
func (p testPlugin) run(stdin io.Reader, stdout io.Writer) int {
	m := misbehaviours[p.misbehaviour]
	served := forge.Plugin{
		Capabilities: append([]forge.Capability{p.operation}, p.operation.Options()...),
		In:           stdin, Out: stdout, Log: io.Discard,
	}
	if p.leniency != "" {
		repaired := p.lenient(stdin)
		defer repaired.Close()
		served.In = repaired
	}
	if m.input != nil {
		served.In = m.input(stdin)
	}
	if m.rewrite != nil {
		served.Out = &rewriter{stdout, m.rewrite, 0}
	}
	handle := edit
	if m.handle != nil {
		handle = m.handle
	}
	err := forge.ServeWithProgress(served, handle)
	if m.after != nil {
		return m.after(stdout)
	}
	if v, ok := errors.AsType[*forge.Violation](err); ok && strings.HasSuffix(p.leniency, "/missing") && v.Rule == forge.RuleOrder {
		return 0
	}
	if err != nil {
		return 1
	}
	return 0
}

// suite is a suite for the plugin as a process.
func (p testPlugin) suite(t testing.TB) *Suite {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &Suite{
		Operation: p.operation, Path: self, Argv: []string{"plugin"}, Timeout: 10 * time.Second,
		Env: []string{
			"PATH=" + os.Getenv("PATH"),
			"GORACE=atexit_sleep_ms=0", // a program of the race detector ends a second late otherwise
			variable + "=" + strings.Join([]string{string(p.operation), p.leniency, p.misbehaviour}, ","),
		},
	}
}

// trees are the work trees of every suite in this process.
var trees = sync.OnceValues(func() (trees struct{ template, scratch *worktree }, err error) {
	if trees.template, err = newWorktree(filepath.Join(treesDir, "template")); err == nil {
		trees.scratch, err = newScratch(trees.template, filepath.Join(treesDir, "scratch"))
	}
	return trees, err
})

var treesDir string

// suiteHere is a suite for the plugin in this process.
func (p testPlugin) suiteHere(t testing.TB) *Suite {
	t.Helper()
	s := &Suite{
		Operation: p.operation, Timeout: 10 * time.Second,
		rejection: 500 * time.Millisecond, // some wait for ever, and would wait longer
		start: func(context.Context) (*plugin, error) {
			inRead, inWrite, err := os.Pipe()
			if err != nil {
				return nil, err
			}
			outRead, outWrite, err := os.Pipe()
			if err != nil {
				return nil, err
			}
			status := make(chan int, 1)
			go func() {
				code := p.run(inRead, outWrite)
				inRead.Close()
				outWrite.Close()
				status <- code
			}()
			settled := sync.OnceValue(func() int { return <-status })
			return &plugin{
				stdin: inWrite, stdout: outRead,
				settle: func(context.Context) process.Ending { return process.Ending{Exit: process.Exit{Code: settled()}} },
				close: func() { // as if it was killed: it loses its streams
					for _, stream := range []*os.File{inRead, inWrite, outRead, outWrite} {
						stream.Close()
					}
					settled()
				},
			}, nil
		},
	}
	if p.operation == forge.CapWorkspaceEdit {
		trees, err := trees()
		if err != nil {
			t.Fatal(err)
		}
		s.template, s.scratch = trees.template, trees.scratch
	}
	return s
}

// edit is the test plugin's operation.
func edit(_ context.Context, r forge.Request, progress forge.ProgressFunc) (forge.Result, error) {
	progress(forge.Started, "one")
	if r.Operation == forge.CapText {
		progress(forge.Finalizing, "two")
		return forge.Result{Output: strings.ToUpper(r.Input)}, nil
	}
	file, err := os.OpenFile(filepath.Join(r.Workspace, "README"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return forge.Result{}, err
	}
	fmt.Fprintln(file, "edited")
	progress(forge.Finalizing, "two")
	return forge.Result{
		CommitSubject: "docs: say that it was edited",
		Report:        &forge.Report{Summary: "Edited the README.", Changes: []string{"README: a line"}},
	}, file.Close()
}

// Leniencies: what a plugin does that misses one check. Each repairs a frame in
// one respect and leaves the rest of it to the strict reader behind.

// lenient returns stdin as a plugin sees it that misses one check, and no other.
func (p testPlugin) lenient(stdin io.Reader) *io.PipeReader {
	stage, name, _ := strings.Cut(p.leniency, "/")
	read, write := io.Pipe()
	go func() {
		l := lines{source: bufio.NewReader(stdin), waits: name == "oversized"}
		id := strings.Repeat("0", 32)
		for number := 1; ; number++ {
			line, end := l.next()
			if found := regexp.MustCompile(`"id":"([0-9a-f]{32})"`).FindSubmatch(line); found != nil && number == 1 {
				id = string(found[1])
			}
			if len(line) > 0 && (stage == "initialize") == (number == 1) {
				line = repair(p.operation, stage, name, id, line)
			}
			if line == nil { // skipped: the next line takes its place
				number--
			}
			_, _ = write.Write(line)
			if end {
				_ = write.Close()
				return
			}
		}
	}()
	return read
}

// lines reads lines with their LF. One that is too long comes in pieces, unless
// it waits for its end.
type lines struct {
	source *bufio.Reader
	waits  bool
}

func (l *lines) next() (line []byte, end bool) {
	for {
		piece, err := l.source.ReadSlice('\n')
		line = append(line, piece...)
		if err == bufio.ErrBufferFull && (l.waits || len(line) <= forge.MaxFrameBytes) {
			continue
		}
		return line, err != nil && err != bufio.ErrBufferFull
	}
}

// repair makes a good frame of a line that has the one defect of the scenario.
func repair(operation forge.Capability, stage, name, id string, line []byte) []byte {
	valid := initializeFrame(id, []forge.Capability{operation})
	if stage == "execute" {
		valid = executeFor(operation, valid)
		if operation == forge.CapWorkspaceEdit {
			valid = valid.with("workspace", quoted(os.TempDir()))
		}
	}
	replace := func(from, to string) []byte { return bytes.Replace(line, []byte(from), []byte(to), 1) }
	members := func(change func(name string, value []byte) []byte) []byte {
		return rebuild(line, valid, change)
	}
	keep := func(_ string, value []byte) []byte { return value }
	defaults := func(names ...string) []byte { // these members get their right values
		return members(func(name string, value []byte) []byte {
			if slices.Contains(names, name) {
				return []byte(valid.text(name))
			}
			return value
		})
	}
	payload, defect, _ := strings.Cut(name, "-")
	switch {
	case name == "missing", name == "oversized":
		return line
	case name == "blank-line":
		if len(line) == 1 {
			return nil
		}
		return line
	case name == "crlf":
		return replace("\r\n", "\n")
	case name == "unterminated":
		return append(line, '\n')
	case name == "truncated":
		return replace("\n", "}\n")
	case name == "trailing-comma":
		return replace(",}\n", "}\n")
	case name == "second-object":
		return replace("{}\n", "\n")
	case name == "array":
		return append(bytes.TrimSuffix(bytes.TrimPrefix(line, []byte("[")), []byte("]\n")), '\n')
	case name == "byte-order-mark":
		return replace("\uFEFF", "")
	case strings.HasPrefix(name, "space-"):
		value := jsontext.Value(bytes.TrimSuffix(line, []byte("\n")))
		_ = value.Compact()
		return append(value, '\n')
	case strings.HasSuffix(name, "invalid-utf8"), strings.HasSuffix(name, "overlong-utf8"):
		return bytes.ToValidUTF8(line, nil)
	case strings.HasPrefix(name, "duplicate-"), name == "limit-twice", strings.HasSuffix(name, "-twice") && stage == "execute", strings.HasSuffix(name, "-contradicted"):
		return members(keep) // the last one counts
	case strings.HasPrefix(name, "unknown-"), name == "limit-unknown", name == "other-payload", name == "execute-members":
		return members(func(name string, value []byte) []byte {
			if valid.index(name) < 0 && limitsObject().index(name) < 0 {
				return nil
			}
			return value
		})
	case name == "cancel-first", name == "cancel-early", name == "result-from-host":
		return nil // skipped; the plugin then waits for ever
	case name == "execute-first":
		return []byte(initializeFrame(id, []forge.Capability{operation}).String() + "\n" + string(line))
	case name == "initialize-again", name == "operation-not-negotiated":
		return []byte(valid.String() + "\n")
	case strings.HasPrefix(name, "version-"), name == "no-version":
		return defaults("version")
	case strings.HasPrefix(name, "id-"), name == "no-id":
		return defaults("id")
	case strings.HasPrefix(name, "type-"), name == "no-type":
		return defaults("type")
	case strings.HasPrefix(name, "capabilit"), strings.HasSuffix(name, "-twice"), name == "no-capabilities", name == "no-operation" && stage == "initialize":
		return defaults("capabilities")
	case strings.HasPrefix(name, "limit"), name == "no-limits", stage == "initialize":
		return defaults("limits")
	case strings.HasPrefix(name, "operation-"), name == "no-operation":
		return defaults("operation")
	case defect == "surrogate":
		return replace(`\ud800`, "")
	case defect == "control":
		return replace("\t", `\t`)
	case payload == "no":
		return defaults(strings.Replace(defect, "timeout", "timeout_ms", 1))
	case payload == "timeout":
		return defaults("timeout_ms")
	default:
		return defaults(payload)
	}
}

// rebuild reads a JSON object as a lax reader does, where the last of two members
// counts, changes its members (nil drops one), and adds those of the valid frame
// that are missing and that change supplies. Members of limits are treated alike.
func rebuild(line []byte, valid object, change func(name string, value []byte) []byte) []byte {
	decoder := jsontext.NewDecoder(bytes.NewReader(line), jsontext.AllowDuplicateNames(true))
	if token, err := decoder.ReadToken(); err != nil || token.Kind() != '{' {
		return line
	}
	var o object
	for decoder.PeekKind() == '"' {
		token, _ := decoder.ReadToken()
		name := token.String()
		value, err := decoder.ReadValue()
		if err != nil {
			return line
		}
		value = change(name, value.Clone())
		if value == nil {
			continue
		}
		if name == "limits" && value.Kind() == '{' {
			value = bytes.TrimSuffix(rebuild(value, object{}, change), []byte("\n"))
		}
		if i := o.index(name); i >= 0 {
			o[i].text = string(value)
		} else {
			o = o.and(name, string(value))
		}
	}
	for _, m := range valid {
		if o.index(m.name) < 0 {
			if value := change(m.name, nil); value != nil {
				o = o.and(m.name, string(value))
			}
		}
	}
	return []byte(o.String() + "\n")
}

// Misbehaviours: what a plugin sends that it must not.

type misbehaviour struct {
	rewrite func(number int, frame string) string // frames as they are written
	handle  forge.ProgressHandler
	input   func(io.Reader) io.Reader
	after   func(stdout io.Writer) int // after the session; returns the exit status
	process bool                       // it needs a process of its own

	operation forge.Capability // text unless said otherwise
	scenario  string           // session/valid unless said otherwise
	rule      forge.Rule
}

type rewriter struct {
	stdout  io.Writer
	rewrite func(int, string) string
	number  int
}

func (r *rewriter) Write(frame []byte) (int, error) {
	r.number++
	_, err := io.WriteString(r.stdout, r.rewrite(r.number, string(frame)))
	return len(frame), err
}

// on changes frames of one type.
func on(kind, from, to string) func(int, string) string {
	return func(_ int, frame string) string {
		if strings.Contains(frame, `"type":"`+kind+`"`) {
			return strings.Replace(frame, from, to, 1)
		}
		return frame
	}
}

func result(r forge.Result) forge.ProgressHandler {
	return func(ctx context.Context, request forge.Request, progress forge.ProgressFunc) (forge.Result, error) {
		if request.Operation == forge.CapWorkspaceEdit {
			_, err := edit(ctx, request, progress)
			return r, err
		}
		return r, nil
	}
}

const workspaceEdit = forge.CapWorkspaceEdit

var misbehaviours = map[string]misbehaviour{
	"banner":           {rule: forge.RuleJSON, rewrite: on("initialized", `{`, "ready\n{")},
	"crlf":             {rule: forge.RuleLineEnd, rewrite: on("initialized", "\n", "\r\n")},
	"space":            {rule: forge.RuleCompact, rewrite: on("initialized", `"type":`, `"type": `)},
	"blank line":       {rule: forge.RuleBlankLine, rewrite: on("progress", `{`, "\n{")},
	"unknown member":   {rule: forge.RuleUnknownMember, rewrite: on("initialized", `"version"`, `"name":"test","version"`)},
	"duplicate member": {rule: forge.RuleDuplicateMember, rewrite: on("initialized", `"version"`, `"version":"v1","version"`)},
	"other version":    {rule: forge.RuleVersion, rewrite: on("initialized", `"v1"`, `"v2"`)},
	"malformed id":     {rule: forge.RuleID, rewrite: on("initialized", `"id":"`, `"id":"0`)},
	"foreign id": {rule: forge.RuleID, rewrite: func(_ int, frame string) string {
		return regexp.MustCompile(`[0-9a-f]{32}`).ReplaceAllString(frame, strings.Repeat("0", 32))
	}},
	"result first":               {rule: forge.RuleOrder, rewrite: on("initialized", `"initialized","capabilities":["text","progress","cancel"]`, `"result","output":""`)},
	"capability not offered":     {rule: forge.RuleCapabilities, rewrite: on("initialized", `"text"`, `"text","agent_report"`)},
	"capability unknown":         {rule: forge.RuleCapabilities, rewrite: on("initialized", `"text"`, `"text","network"`)},
	"capability twice":           {rule: forge.RuleCapabilities, rewrite: on("initialized", `"text"`, `"text","text"`)},
	"no operation":               {rule: forge.RuleCapabilities, rewrite: on("initialized", `"text",`, ``)},
	"progress without selection": {rule: forge.RuleProgress, rewrite: on("initialized", `,"progress"`, ``)},
	"progress from 0":            {rule: forge.RuleProgress, rewrite: on("progress", `"sequence":1`, `"sequence":0`)},
	"progress with a gap":        {rule: forge.RuleProgress, rewrite: on("progress", `"sequence":2`, `"sequence":3`)},
	"progress repeated":          {rule: forge.RuleProgress, rewrite: on("progress", `"sequence":2`, `"sequence":1`)},
	"progress fraction":          {rule: forge.RuleMemberType, rewrite: on("progress", `"sequence":1`, `"sequence":1.0`)},
	"progress stage":             {rule: forge.RuleProgress, rewrite: on("progress", `"started"`, `"begun"`)},
	"progress text":              {rule: forge.RuleProgress, rewrite: on("progress", `"one"`, `"`+strings.Repeat("a", 1025)+`"`)},
	"progress without end": {rule: forge.RuleProgress, rewrite: func(_ int, frame string) string {
		if !strings.Contains(frame, `"sequence":1,`) {
			return frame
		}
		var all strings.Builder
		for n := range forge.MaxProgressFrames + 1 {
			all.WriteString(strings.Replace(frame, `"sequence":1,`, fmt.Sprintf(`"sequence":%d,`, n+1), 1))
		}
		return all.String()
	}},
	"other result":     {rule: forge.RuleMissingMember, rewrite: on("result", `,"output":"HELLO"`, ``)},
	"output null":      {rule: forge.RuleMemberType, rewrite: on("result", `"HELLO"`, `null`)},
	"output too long":  {rule: forge.RulePayload, rewrite: on("result", `HELLO`, strings.Repeat("a", forge.MaxTextBytes+1))},
	"output not UTF-8": {rule: forge.RuleUTF8, rewrite: on("result", `HELLO`, "\xff")},
	"frame too long":   {rule: forge.RuleFrameSize, rewrite: on("result", `HELLO`, strings.Repeat("a", forge.MaxFrameBytes))},
	"unterminated":     {rule: forge.RuleUnterminated, rewrite: on("result", "\n", ``)},
	"failure": {rule: forge.RuleTerminal, handle: func(context.Context, forge.Request, forge.ProgressFunc) (forge.Result, error) {
		return forge.Result{}, forge.Failure{Category: forge.Incompatible}
	}},
	"failure category": {rule: forge.RuleCategory, rewrite: on("result", `"result","output":"HELLO"`, `"failure","category":"unknown"`)},
	"no terminal frame": {rule: forge.RuleTerminal, rewrite: func(_ int, frame string) string {
		if strings.Contains(frame, `"result"`) {
			return ""
		}
		return frame
	}},
	"two terminal frames": {rule: forge.RuleTrailing, rewrite: func(_ int, frame string) string {
		if strings.Contains(frame, `"result"`) {
			return frame + frame
		}
		return frame
	}},
	"trailing byte":     {rule: forge.RuleTrailing, after: func(stdout io.Writer) int { fmt.Fprint(stdout, "x"); return 0 }},
	"trailing line end": {rule: forge.RuleTrailing, after: func(stdout io.Writer) int { fmt.Fprintln(stdout); return 0 }},
	"exit 1":            {rule: forge.RuleExit, after: func(io.Writer) int { return 1 }},
	"dies":              {rule: forge.RuleExit, after: kill, process: true},
	"ends late":         {rule: forge.RuleExit, after: func(io.Writer) int { time.Sleep(time.Hour); return 0 }, process: true},
	"holds stdout":      {rule: forge.RuleExit, after: holdStdout(``), process: true},
	"holds it for long": {rule: forge.RuleExit, after: holdStdout(`trap "" TERM; `), process: true},
	"undetermined": {rule: forge.RuleCapabilities, scenario: "session/byte-by-byte", rewrite: func(number int, frame string) string {
		if number == 1 && sessions.Add(1)%2 == 0 {
			return strings.Replace(frame, `"progress","cancel"`, `"cancel","progress"`, 1)
		}
		return frame
	}},
	"silent unless all is offered": {rule: forge.RuleTerminal, scenario: "session/operation-alone", input: func(stdin io.Reader) io.Reader {
		source := bufio.NewReader(stdin)
		line, _ := source.ReadString('\n')
		if !strings.Contains(line, `"text","progress","cancel"`) {
			return strings.NewReader("")
		}
		return io.MultiReader(strings.NewReader(line), source)
	}},
	"wrong unless all is offered": {rule: forge.RuleJSON, scenario: "session/operation-alone", rewrite: func(number int, frame string) string {
		if number == 1 && !strings.Contains(frame, `"text","progress","cancel"`) {
			return "no options\n"
		}
		return frame
	}},
	"selects what is withheld": {rule: forge.RuleCapabilities, scenario: "session/without-progress", rewrite: on("initialized", `["text","cancel"]`, `["text","progress","cancel"]`)},
	"answers twice": {
		rule: forge.RuleTrailing, scenario: "session/one-operation",
		input: func(stdin io.Reader) io.Reader { return &firstLines{bufio.NewReader(stdin), 2} },
		rewrite: func(_ int, frame string) string {
			if strings.Contains(frame, `"result"`) {
				return frame + frame
			}
			return frame
		},
	},
	"slow to answer cancel": {rule: forge.RuleTerminal, scenario: "session/cancel", handle: func(ctx context.Context, _ forge.Request, _ forge.ProgressFunc) (forge.Result, error) {
		select {
		case <-ctx.Done():
			time.Sleep(time.Second)
			return forge.Result{}, ctx.Err()
		case <-time.After(10 * time.Second):
			return forge.Result{}, nil
		}
	}},
	"slow to end after cancel": {rule: forge.RuleExit, scenario: "session/cancel", process: true, handle: obedient, after: func(io.Writer) int {
		time.Sleep(time.Hour)
		return 0
	}},
	"deaf to cancel": {rule: forge.RuleTerminal, scenario: "session/cancel", process: true, handle: deaf},

	"subject without selection": {operation: workspaceEdit, rule: forge.RuleCommitSubject, rewrite: on("initialized", `,"commit_subject"`, ``)},
	"subject of two lines":      {operation: workspaceEdit, rule: forge.RuleCommitSubject, rewrite: on("result", `docs: say`, `docs:\nsay`)},
	"subject empty":             {operation: workspaceEdit, rule: forge.RuleCommitSubject, rewrite: on("result", `docs: say that it was edited`, ``)},
	"subject null":              {operation: workspaceEdit, rule: forge.RuleMemberType, rewrite: on("result", `"docs: say that it was edited"`, `null`)},
	"subject too long":          {operation: workspaceEdit, rule: forge.RuleCommitSubject, rewrite: on("result", `docs: say`, strings.Repeat("a", 257))},
	"subject with a format":     {operation: workspaceEdit, rule: forge.RuleCommitSubject, rewrite: on("result", `docs: say`, "docs:\u202esay")},
	"report without selection":  {operation: workspaceEdit, rule: forge.RuleReport, rewrite: on("initialized", `,"agent_report"`, ``)},
	"report null":               {operation: workspaceEdit, rule: forge.RuleMemberType, rewrite: on("result", `"summary":"Edited the README.","changes":["README: a line"]`, `"summary":null,"changes":null`)},
	"report without changes":    {operation: workspaceEdit, rule: forge.RuleReport, rewrite: on("result", `,"changes":["README: a line"]`, ``)},
	"report without summary":    {operation: workspaceEdit, rule: forge.RuleReport, rewrite: on("result", `"summary":"Edited the README.",`, ``)},
	"report of no changes":      {operation: workspaceEdit, rule: forge.RuleReport, rewrite: on("result", `"README: a line"`, ``)},
	"report of 13 changes":      {operation: workspaceEdit, rule: forge.RuleReport, rewrite: on("result", `"README: a line"`, `"a"`+strings.Repeat(`,"a"`, 12))},
	"report untrimmed":          {operation: workspaceEdit, rule: forge.RuleReport, rewrite: on("result", `README.`, `README. `)},
	"report of two lines":       {operation: workspaceEdit, rule: forge.RuleReport, rewrite: on("result", `a line`, "a\u2028line")},
	"report too long":           {operation: workspaceEdit, rule: forge.RuleReport, rewrite: on("result", `README.`, strings.Repeat("a", 1024))},
	"change too long":           {operation: workspaceEdit, rule: forge.RuleReport, rewrite: on("result", `a line`, strings.Repeat("a", 256))},
	"text result":               {operation: workspaceEdit, rule: forge.RuleUnknownMember, rewrite: on("result", `"commit_subject":"docs: say that it was edited","summary":"Edited the README.","changes":["README: a line"]`, `"output":""`)},
	"nothing edited": {operation: workspaceEdit, rule: forge.RulePayload, handle: func(context.Context, forge.Request, forge.ProgressFunc) (forge.Result, error) {
		return forge.Result{}, nil
	}},
	"committed": {operation: workspaceEdit, rule: forge.RulePayload, handle: func(ctx context.Context, r forge.Request, progress forge.ProgressFunc) (forge.Result, error) {
		result, err := edit(ctx, r, progress)
		if err == nil {
			tree := &worktree{dir: r.Workspace}
			_, err = tree.git("commit", "--quiet", "--no-gpg-sign", "--all", "-m", "chore: too eager")
		}
		return result, err
	}},
	"stages all": {operation: workspaceEdit, handle: func(ctx context.Context, r forge.Request, progress forge.ProgressFunc) (forge.Result, error) {
		result, err := edit(ctx, r, progress)
		if err == nil {
			stage := exec.Command("git", "add", "--all")
			stage.Dir = r.Workspace
			err = stage.Run()
		}
		return result, err
	}},
	"switched": {operation: workspaceEdit, rule: forge.RulePayload, handle: func(ctx context.Context, r forge.Request, progress forge.ProgressFunc) (forge.Result, error) {
		result, err := edit(ctx, r, progress)
		if err == nil {
			tree := &worktree{dir: r.Workspace}
			_, err = tree.git("checkout", "--quiet", "--detach")
		}
		return result, err
	}},
}

// Legacy results, and those with only one of the options, are as good as any.
var goodResults = map[string]forge.Result{
	"nothing":        {},
	"subject alone":  {CommitSubject: "a"},
	"report alone":   {Report: &forge.Report{Summary: "s", Changes: []string{"c"}}},
	"longest report": {Report: &forge.Report{Summary: strings.Repeat("s", 1024), Changes: slices.Repeat([]string{strings.Repeat("é", 128)}, 12)}},
}

func init() {
	for name, r := range goodResults {
		misbehaviours["good result: "+name] = misbehaviour{handle: result(r)}
	}
}

// Other ways to write the same frames: members in whatever order, ids and names
// with escapes.
var goodWays = map[string]func(int, string) string{
	"order": func(_ int, frame string) string {
		var members []string
		decoder := jsontext.NewDecoder(strings.NewReader(frame))
		_, _ = decoder.ReadToken()
		for decoder.PeekKind() == '"' {
			name, _ := decoder.ReadValue()
			member := string(name) + ":"
			value, _ := decoder.ReadValue()
			members = append(members, member+string(value))
		}
		if sessions.Add(1)%2 == 0 {
			slices.Reverse(members)
		}
		return "{" + strings.Join(members, ",") + "}\n"
	},
	"escapes": func(_ int, frame string) string {
		return regexp.MustCompile(`[0-9a-f]{32}|"id"|"capabilities"|"text"|"sequence"`).ReplaceAllStringFunc(frame, func(text string) string {
			if sessions.Add(1)%2 == 0 {
				return text
			}
			if text[0] == '"' {
				return `"` + escaped(text[1:len(text)-1]) + `"`
			}
			return escaped(text)
		})
	},
}

func init() {
	for name, rewrite := range goodWays {
		misbehaviours["good way: "+name] = misbehaviour{rewrite: rewrite}
	}
}

// sessions counts, for plugins that are not the same each time.
var sessions atomic.Int64

// obedient works until it is cancelled.
func obedient(ctx context.Context, _ forge.Request, _ forge.ProgressFunc) (forge.Result, error) {
	<-ctx.Done()
	return forge.Result{}, ctx.Err()
}

func deaf(context.Context, forge.Request, forge.ProgressFunc) (forge.Result, error) { select {} }

func kill(io.Writer) int {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		return 0
	}
	select {}
}

// holdStdout leaves a child behind that would end when it is told to, unless it
// did something first.
func holdStdout(first string) func(io.Writer) int {
	return func(io.Writer) int {
		child := exec.Command("sh", "-c", first+`echo ready >&2; while :; do sleep 1; done`)
		child.Stdout = os.Stdout
		ready, err := child.StderrPipe()
		if err == nil {
			err = child.Start()
		}
		if err == nil {
			_, err = io.ReadFull(ready, make([]byte, len("ready")))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err) // and passes, which it must not
		}
		return 0
	}
}

// firstLines reads so many lines and then waits for ever, or for the end.
type firstLines struct {
	source *bufio.Reader
	left   int
}

func (f *firstLines) Read(p []byte) (int, error) {
	if f.left == 0 {
		_, err := io.Copy(io.Discard, f.source)
		return 0, cmp.Or(err, io.EOF)
	}
	f.left--
	line, err := f.source.ReadSlice('\n')
	return copy(p, line), err
}

// judge runs scenarios and returns the verdicts by name.
func judge(t testing.TB, s *Suite, scenarios ...Scenario) map[string]Verdict {
	t.Helper()
	verdicts := map[string]Verdict{}
	if err := s.Run(t.Context(), scenarios, func(v Verdict) error { verdicts[v.Scenario.Name] = v; return nil }); err != nil {
		t.Fatal(err)
	}
	return verdicts
}

func named(t testing.TB, operation forge.Capability, name string) Scenario {
	t.Helper()
	for _, s := range Scenarios(operation) {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("there is no scenario %s", name)
	return Scenario{}
}

// A strict plugin passes everything; and the valid sessions, whose times matter,
// as a process too.
func TestStrictPluginPasses(t *testing.T) {
	for _, operation := range []forge.Capability{forge.CapText, forge.CapWorkspaceEdit} {
		p, scenarios := testPlugin{operation: operation}, Scenarios(operation)
		valid := slices.DeleteFunc(slices.Clone(scenarios), func(s Scenario) bool { return !s.valid })
		for how, verdicts := range map[string]map[string]Verdict{
			"in this process": judge(t, p.suiteHere(t), scenarios...),
			"as a process":    judge(t, p.suite(t), valid...),
		} {
			if want := map[string]int{"in this process": len(scenarios), "as a process": len(valid)}[how]; len(verdicts) != want {
				t.Errorf("%s, %s: %d verdicts on %d scenarios", operation, how, len(verdicts), want)
			}
			for name, v := range verdicts {
				if !v.Passed() {
					t.Errorf("%s, %s, %s: %v", operation, how, name, v.Finding)
				}
			}
		}
	}
}

// A plugin that misses one check fails the scenario of that check: nothing else
// in the scenario is wrong.
func TestEachScenarioIsolatesItsDefect(t *testing.T) {
	for _, operation := range []forge.Capability{forge.CapText, forge.CapWorkspaceEdit} {
		for _, s := range Scenarios(operation) {
			if s.valid {
				continue
			}
			t.Run(string(operation)+"/"+s.Name, func(t *testing.T) {
				t.Parallel()
				v := judge(t, testPlugin{operation: operation, leniency: s.Name}.suiteHere(t), s)[s.Name]
				if v.Passed() {
					t.Fatal("a plugin that misses this check passed")
				}
				frame := 0 // of the plugin, that it sent instead of rejecting
				if strings.Contains(v.Finding.What, "came where") {
					frame = map[string]int{"initialize": 1, "execute": 2}[strings.Split(s.Name, "/")[0]]
				}
				if v.Finding.Rule != s.Rule || v.Finding.Frame != frame {
					t.Errorf("got %v, want rule %s, frame %d", v.Finding, s.Rule, frame)
				}
			})
		}
	}
}

// incapable are plugins that cannot do one thing that an operation may need. Each
// is told by what it does to the host's frames: "" makes it reject.
type incapablePlugin struct {
	lacks     string
	operation forge.Capability
	reads     func(line string) string
	fails     []string // the sessions that show it, and no others
}

func (p incapablePlugin) name() string { return string(p.operation) + " without " + p.lacks }

var incapable = []incapablePlugin{
	{"empty input", forge.CapText, unless(`"input":""`), []string{"empty-input"}},
	{"more than ASCII", forge.CapText, ascii, []string{"unicode-input"}},
	{"lines of 64 KiB", forge.CapText, shorter(1 << 16), []string{"largest-frame", "largest-input"}},
	{"lines of 128 KiB", forge.CapText, shorter(1 << 17), []string{"largest-frame"}},
	{"more than ASCII", workspaceEdit, ascii, []string{"unicode-instruction", "unicode-workspace"}},
	{"instructions of more than ASCII", workspaceEdit, unless("äß"), []string{"unicode-instruction"}},
	{"line separators", workspaceEdit, unless("\u2028"), []string{"unicode-instruction"}},
	{"workspaces of more than ASCII", workspaceEdit, unless("é"), []string{"unicode-workspace"}},
	{"workspaces with a space", workspaceEdit, unless(`"workspace":"[^"]* `), []string{"unicode-workspace"}},
	{"lines of 2000 bytes", workspaceEdit, shorter(2000), []string{"largest-frame", "largest-instruction"}},
	{"lines of 64 KiB", workspaceEdit, shorter(1 << 16), []string{"largest-frame", "largest-instruction"}},
	{"lines of 128 KiB", workspaceEdit, shorter(1 << 17), []string{"largest-frame"}},
	{"long instructions", workspaceEdit, unless(strings.Repeat(instruction+" ", 100)), []string{"largest-instruction"}},
	{"times of 32 bits", workspaceEdit, unless(`"timeout_ms":[0-9]{11}`), []string{"largest-timeout"}},
}

func unless(pattern string) func(string) string {
	expression := regexp.MustCompile(pattern)
	return func(line string) string {
		if expression.MatchString(line) {
			return ""
		}
		return line
	}
}

func ascii(line string) string {
	if strings.ContainsFunc(line, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return ""
	}
	return line
}

func shorter(limit int) func(string) string {
	return func(line string) string {
		if len(line) >= limit {
			return ""
		}
		return line
	}
}

func init() {
	for _, p := range incapable {
		misbehaviours[p.name()] = misbehaviour{input: func(stdin io.Reader) io.Reader {
			read, write := io.Pipe()
			go func() {
				defer write.Close()
				source := bufio.NewReader(stdin)
				for {
					line, err := source.ReadString('\n')
					line = p.reads(line)
					if _, gone := io.WriteString(write, line); err != nil || gone != nil || line == "" {
						return
					}
				}
			}()
			return read
		}}
	}
}

// A plugin that cannot do all that is valid fails the sessions that need it.
func TestEachSessionNeedsSomething(t *testing.T) {
	for _, p := range incapable {
		t.Run(p.name(), func(t *testing.T) {
			t.Parallel()
			s := testPlugin{operation: p.operation, misbehaviour: p.name()}.suiteHere(t)
			scenarios := slices.DeleteFunc(Scenarios(p.operation), func(s Scenario) bool { return !s.valid })
			var failed []string
			for name, v := range judge(t, s, scenarios...) {
				if !v.Passed() {
					failed = append(failed, strings.TrimPrefix(name, "session/"))
				}
			}
			if slices.Sort(failed); !slices.Equal(failed, p.fails) {
				t.Errorf("failed %v, want %v", failed, p.fails)
			}
		})
	}
}

// What a plugin must not send fails the valid session that shows it.
func TestMisbehaviours(t *testing.T) {
	for name, m := range misbehaviours {
		if m.rule == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := testPlugin{operation: cmp.Or(m.operation, forge.CapText), misbehaviour: name}
			s := p.suiteHere(t)
			if m.process {
				s = p.suite(t)
			}
			var scenarios []Scenario
			for _, scenario := range slices.Compact([]string{"session/valid", cmp.Or(m.scenario, "session/valid")}) {
				if m.scenario != "session/cancel" || scenario == m.scenario { // else it works for ever
					scenarios = append(scenarios, named(t, p.operation, scenario))
				}
			}
			var last Verdict
			if err := s.Run(t.Context(), scenarios, func(v Verdict) error { last = v; return nil }); err != nil {
				t.Fatal(err)
			}
			if last.Passed() {
				t.Fatal("it passed")
			}
			if last.Finding.Rule != m.rule {
				t.Errorf("got %v, want rule %s", last.Finding, m.rule)
			}
			if m.rule == forge.RuleTrailing && last.Finding.Frame != 5 { // after initialized, two of progress, and the result
				t.Errorf("got %v, want frame 5", last.Finding)
			}
		})
	}
}

// What is late is tried again, three times, and nothing else is.
func TestLateIsTriedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		plugin testPlugin
		late   int // so often the plugin ends late
		name   string
		passes bool
		tries  int
	}{
		"never late":         {testPlugin{}, 0, "session/valid", true, 1},
		"late three times":   {testPlugin{}, 3, "session/valid", true, 4},
		"always late":        {testPlugin{}, 100, "session/valid", false, 4},
		"wrong":              {testPlugin{misbehaviour: "exit 1"}, 0, "session/valid", false, 1},
		"trailing":           {testPlugin{misbehaviour: "trailing byte"}, 0, "session/valid", false, 1},
		"waits to be killed": {testPlugin{leniency: "execute/cancel-early"}, 0, "execute/cancel-early", false, 4},
		"does not reject":    {testPlugin{leniency: "execute/crlf"}, 0, "execute/crlf", false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.plugin.operation = forge.CapText
			s := c.plugin.suiteHere(t)
			start, left := s.start, c.late
			s.start = func(ctx context.Context) (*plugin, error) {
				p, err := start(ctx)
				if err != nil || left == 0 {
					return p, err
				}
				left--
				// Its stdout is held open until it is stopped.
				read, held, err := os.Pipe()
				source, closed := p.stdout, make(chan struct{})
				go func() {
					defer held.Close()
					_, _ = io.Copy(held, source)
					<-closed
				}()
				p.stdout = read
				stop := p.close
				p.close = func() { close(closed); read.Close(); source.Close(); stop() }
				return p, err
			}
			v := judge(t, s, named(t, forge.CapText, c.name))[c.name]
			if v.Passed() != c.passes || v.Tries != c.tries {
				t.Errorf("%d tries, %v; want %d, passed %v", v.Tries, v.Finding, c.tries, c.passes)
			}
		})
	}
}

func TestGoodResults(t *testing.T) {
	for name := range goodResults {
		s := testPlugin{operation: forge.CapWorkspaceEdit, misbehaviour: "good result: " + name}.suiteHere(t)
		for scenario, v := range judge(t, s, named(t, forge.CapWorkspaceEdit, "session/valid"), named(t, forge.CapWorkspaceEdit, "session/without-agent_report")) {
			if !v.Passed() {
				t.Errorf("%s, %s: %v", name, scenario, v.Finding)
			}
		}
	}
}

func TestGoodWays(t *testing.T) {
	for name := range goodWays {
		s := testPlugin{operation: forge.CapText, misbehaviour: "good way: " + name}.suiteHere(t)
		for scenario, v := range judge(t, s, Scenarios(forge.CapText)...) {
			if !v.Passed() {
				t.Errorf("%s, %s: %v", name, scenario, v.Finding)
			}
		}
	}
}

// A lax plugin finds a work tree where a defect at the end of the workspace leads
// it, so that it gives itself away.
func TestBadWorkspacesExist(t *testing.T) {
	trees, err := trees()
	if err != nil {
		t.Fatal(err)
	}
	valid := workspaceFrame(newID(), quoted(trees.scratch.dir))
	tried := 0
	for _, d := range workspaceDefects() {
		var read func(frame string) []string // what lax plugins read
		text := func(frame string) string {  // of the first workspace in the frame
			_, rest, _ := strings.Cut(frame, `"workspace":"`)
			text, _, _ := strings.Cut(rest, `"`)
			return text
		}
		switch d.name {
		case "workspace-invalid-utf8", "workspace-overlong-utf8":
			read = func(frame string) []string {
				bytewise := "" // as package json reads
				for _, r := range text(frame) {
					bytewise += string(r)
				}
				return []string{
					text(frame), bytewise, strings.ToValidUTF8(text(frame), "\uFFFD"), strings.ToValidUTF8(text(frame), ""), strings.ToValidUTF8(text(frame), "?"),
					strings.ReplaceAll(text(frame), "\xc1\xa1", "a"),
				}
			}
		case "workspace-surrogate":
			read = func(frame string) []string {
				var texts []string
				for _, half := range []string{"\xed\xa0\x80", "\uFFFD", "\uFFFD\uFFFD\uFFFD", "?", ""} {
					texts = append(texts, strings.ReplaceAll(text(frame), `\ud800`, half))
				}
				return texts
			}
		case "workspace-control", "workspace-contradicted":
			read = func(frame string) []string { return []string{text(frame), strings.TrimSpace(text(frame))} }
		default:
			continue
		}
		tried++
		for _, path := range read(d.make(valid)) {
			if _, err := os.Stat(filepath.Join(path, "README")); err != nil && (utf8.ValidString(path) || runtime.GOOS == "linux") {
				t.Errorf("%s: %v", d.name, err)
			}
		}
	}
	if tried != 5 {
		t.Errorf("%d scenarios tried", tried)
	}
}

func TestWhatCannotBeStarted(t *testing.T) {
	s := testPlugin{operation: forge.CapText}.suite(t)
	s.Path = filepath.Join(t.TempDir(), "none")
	err := s.Run(t.Context(), Scenarios(forge.CapText), func(Verdict) error { return errors.New("a verdict") })
	if !fault.Is(err, fault.ProcessFailed) {
		t.Errorf("got %v", err)
	}
}

// A plugin that rejects a second execute has the time of a rejection to end, and
// not that of an operation.
func TestSecondExecuteIsRejectedInTime(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	s := testPlugin{operation: forge.CapText}.suite(t)
	s.Timeout, s.rejection = time.Hour, 100*time.Millisecond
	s.Path, s.Argv = sh, []string{"sh", "-c", `read -r line; id=${line#*'"id":"'}
		printf '{"version":"v1","id":"%s","type":"initialized","capabilities":["text"]}\n' "${id%%'"'*}"
		read -r line; read -r line; exec >/dev/null; while :; do sleep 1; done`}
	f := judge(t, s, named(t, forge.CapText, "session/one-operation"))["session/one-operation"].Finding
	if want := late(forge.RuleOrder, "stdout ended, but the plugin did not within 100ms"); f == nil || *f != *want {
		t.Errorf("got %v, want %v", f, want)
	}
}

// A plugin that says nothing rejects everything well, and is told apart at once.
func TestMutePlugin(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	s := testPlugin{operation: forge.CapText}.suite(t)
	s.Path, s.Argv = sh, []string{"sh", "-c", "exit 3"}
	scenarios := []Scenario{
		named(t, forge.CapText, "session/valid"), named(t, forge.CapText, "session/cancel"),
		named(t, forge.CapText, "initialize/crlf"), named(t, forge.CapText, "execute/crlf"),
	}
	for name, v := range judge(t, s, scenarios...) {
		if rejection := strings.HasPrefix(name, "initialize/"); v.Passed() != rejection {
			t.Errorf("%s: %v", name, v.Finding)
		}
	}
}

// A plugin that fails in one offer, whatever way, is tried in the others.
func TestOnlyAMutePluginIsToldApart(t *testing.T) {
	p := testPlugin{operation: forge.CapText}
	var scenarios []Scenario
	for _, s := range Scenarios(p.operation) {
		if s.valid || s.Name == "execute/crlf" {
			scenarios = append(scenarios, s)
		}
	}
	slices.Reverse(scenarios) // so that what fails comes first
	for misbehaviour, want := range map[string][]string{
		"selects what is withheld":     {"session/without-progress"},
		"silent unless all is offered": {"session/operation-alone", "session/without-cancel", "session/without-progress"},
		"wrong unless all is offered":  {"session/operation-alone", "session/without-cancel", "session/without-progress"},
	} {
		p.misbehaviour = misbehaviour
		var failed []string
		for name, v := range judge(t, p.suiteHere(t), scenarios...) {
			if !v.Passed() {
				failed = append(failed, name)
			}
		}
		if slices.Sort(failed); !slices.Equal(failed, want) {
			t.Errorf("%s: failed %v, want %v", misbehaviour, failed, want)
		}
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("interrupted")
	s := testPlugin{operation: forge.CapWorkspaceEdit, misbehaviour: "deaf to cancel"}.suite(t)
	s.Timeout = time.Hour
	launch := s.launch
	s.start = func(ctx context.Context) (*plugin, error) {
		defer cancel(cause) // while the host waits for the plugin
		return launch(ctx)
	}
	err := s.Run(ctx, Scenarios(forge.CapWorkspaceEdit), func(v Verdict) error { return fmt.Errorf("a verdict: %v", v.Finding) })
	if !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

// Whoever gets no verdict waits for none: the run ends, with all that it started.
func TestReportFails(t *testing.T) {
	s, cause, calls := testPlugin{operation: forge.CapWorkspaceEdit}.suite(t), errors.New("nobody reads"), 0
	t.Setenv("TMPDIR", t.TempDir())
	err := s.Run(t.Context(), Scenarios(forge.CapWorkspaceEdit), func(Verdict) error { calls++; return cause })
	if err != cause || calls != 1 {
		t.Errorf("got %v after %d verdicts", err, calls)
	}
	if left, _ := os.ReadDir(os.TempDir()); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

// A plugin that runs Git works on the work tree that it is given, whatever
// repository those who judge it are at.
func TestForeignRepositoryInEnvironment(t *testing.T) {
	foreign, err := newWorktree(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(foreign.dir, "untracked"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	git := filepath.Join(foreign.dir, ".git")
	s := testPlugin{operation: workspaceEdit, misbehaviour: "stages all"}.suite(t)
	s.Env = append(s.Env, "GIT_DIR="+git, "GIT_WORK_TREE="+foreign.dir, "GIT_INDEX_FILE="+filepath.Join(git, "index"))
	if v := judge(t, s, named(t, workspaceEdit, "session/valid"))["session/valid"]; !v.Passed() {
		t.Error(v.Finding)
	}
	status, err := foreign.git("status", "--porcelain")
	if err != nil || string(status) != "?? untracked\n" {
		t.Errorf("the foreign repository has changed: %q, %v", status, err)
	}
}

func TestNamesAndSummaries(t *testing.T) {
	form := regexp.MustCompile(`^(session|initialize|execute)/[a-z0-9_-]+$`)
	for _, operation := range []forge.Capability{forge.CapText, forge.CapWorkspaceEdit} {
		seen := map[string]bool{}
		for _, s := range Scenarios(operation) {
			if seen[s.Name] || s.Summary == "" || (s.Rule == "") != s.valid || !form.MatchString(s.Name) {
				t.Errorf("scenario %+v", s)
			}
			seen[s.Name] = true
		}
	}
}
