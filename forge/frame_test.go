package forge

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"hawser/internal/strictjson"
)

const testID = "0123456789abcdef0123456789abcdef"

// head is the begin of every frame of the test session.
const head = `{"version":"v1","id":"` + testID + `","type":`

// The frames as the contract shows them.
var contractFrames = []struct {
	text    string
	message Message
}{
	{
		head + `"initialize","capabilities":["text"],"limits":{"frame_bytes":1048576,"progress_frames":128,"text_bytes":65536,"progress_text_bytes":1024,"commit_subject_bytes":256}}`,
		Initialize{[]Capability{CapText}},
	},
	{head + `"initialized","capabilities":["text"]}`, Initialized{[]Capability{CapText}}},
	{head + `"execute","operation":"text","input":"hello"}`, Request{Operation: CapText, Input: "hello"}},
	{head + `"result","output":"HELLO"}`, Result{Operation: CapText, Output: "HELLO"}},
	{
		head + `"execute","operation":"workspace_edit","workspace":"/operator/path","instruction":"edit the files","timeout_ms":60000}`,
		Request{Operation: CapWorkspaceEdit, Workspace: "/operator/path", Instruction: "edit the files", TimeoutMS: 60000},
	},
	{
		head + `"result","commit_subject":"feat: describe the edit"}`,
		Result{Operation: CapWorkspaceEdit, CommitSubject: "feat: describe the edit"},
	},
	{head + `"result"}`, Result{Operation: CapWorkspaceEdit}},
	{
		head + `"result","summary":"Did it","changes":["one","two"]}`,
		Result{Operation: CapWorkspaceEdit, Report: &Report{"Did it", []string{"one", "two"}}},
	},
	{head + `"progress","sequence":1,"stage":"started","text":"editing"}`, Progress{1, Started, "editing"}},
	{head + `"failure","category":"execution_failed"}`, Failure{ExecutionFailed}},
	{head + `"cancel"}`, Cancel{}},
}

func TestContractFrames(t *testing.T) {
	for _, c := range contractFrames {
		frame, err := Decode([]byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if want := (Frame{testID, c.message}); !reflect.DeepEqual(frame, want) {
			t.Errorf("read %#v, want %#v", frame, want)
		}
		written, err := Encode(frame)
		if err != nil || string(written) != c.text+"\n" {
			t.Errorf("wrote %s, %v", written, err)
		}
	}
}

// violations are frames with one fault each.
var violations = []struct {
	rule  Rule
	frame string
}{
	{RuleBlankLine, ``},
	{RuleLineEnd, head + "\"cancel\"}\r"},
	{RuleLineEnd, "\r"},
	{RuleCompact, ` `},
	{RuleJSON, `null`},
	{RuleJSON, `"text"`},
	{RuleJSON, `[` + head + `"cancel"}]`},
	{RuleJSON, head + `"cancel"`},
	{RuleJSON, head + `"cancel"]`},
	{RuleJSON, head + `"cancel",}`},
	{RuleJSON, head + `,"cancel"}`},
	{RuleJSON, head + `"cancel"}}`},
	{RuleJSON, head + `"cancel"}{}`},
	{RuleJSON, head + `"cancel"} x`},
	{RuleJSON, head + `'cancel'}`},
	{RuleJSON, head + `"initialized","capabilities":["text",]}`},
	{RuleJSON, head + `"initialized","capabilities":[,"text"]}`},
	{RuleJSON, head + `"initialized","capabilities":["text"}`},
	{RuleJSON, head + `"execute","operation":"text","input":NaN}`},
	{RuleJSON, head + `"execute","operation":"text","input":"a` + "\t" + `"}`},
	{RuleJSON, head + `"execute","operation":"text","input":"\ud800"}`},
	{RuleJSON, head + `"execute","operation":"text","input":"\x41"}`},
	{RuleJSON, head + `"progress","sequence":+1,"stage":"started","text":""}`},
	{RuleJSON, "\uFEFF" + head + `"cancel"}`},
	{RuleUTF8, head + `"execute","operation":"text","input":"a` + "\xff" + `"}`},
	{RuleUTF8, head + `"execute","operation":"text","input":"` + "\xed\xa0\x80" + `"}`},
	{RuleCompact, " " + head + `"cancel"}`},
	{RuleCompact, head + ` "cancel"}`},
	{RuleCompact, head + `"cancel" }`},
	{RuleCompact, head + `"cancel"} `},
	{RuleCompact, head + `"cancel"}` + "\t"},
	{RuleCompact, head + `"initialized", "capabilities":["text"]}`},
	{RuleCompact, head + `"initialized" ,"capabilities":["text"]}`},
	{RuleCompact, head + `"initialized","capabilities":[ "text"]}`},
	{RuleCompact, head + `"initialized","capabilities":["text" ]}`},
	{RuleCompact, head + `"initialized","capabilities":["text", "progress"]}`},
	{RuleCompact, head + `"failure","category"` + "\r" + `:"cancelled"}`},
	{RuleDuplicateMember, head + `"cancel","type":"cancel"}`},
	{RuleDuplicateMember, head + `"cancel","t\u0079pe":"cancel"}`},
	{RuleUnknownMember, head + `"cancel","extra":1}`},
	{RuleUnknownMember, head + `"cancel","":{}}`},
	{RuleUnknownMember, head + `"cancel","` + strings.Repeat("long", 100) + `":1}`},
	{RuleUnknownMember, head + `"cancel","output":""}`},
	{RuleUnknownMember, head + `"failure","category":"cancelled","text":""}`},
	{RuleUnknownMember, head + `"initialized","capabilities":["text"],"operation":"text"}`},
	{RuleUnknownMember, head + `"execute","operation":"text","input":"","timeout_ms":1}`},
	{RuleUnknownMember, head + `"result","output":"","commit_subject":"a"}`},
	{RuleMissingMember, `{}`},
	{RuleMissingMember, `{"id":"` + testID + `","type":"cancel"}`},
	{RuleMissingMember, `{"version":"v1","type":"cancel"}`},
	{RuleMissingMember, `{"version":"v1","id":"` + testID + `"}`},
	{RuleMissingMember, head + `"initialized"}`},
	{RuleMissingMember, head + `"initialize","capabilities":["text"]}`},
	{RuleMissingMember, head + `"execute","input":""}`},
	{RuleMissingMember, head + `"execute","operation":"text"}`},
	{RuleMissingMember, head + `"execute","operation":"workspace_edit","workspace":"/","timeout_ms":1}`},
	{RuleMissingMember, head + `"progress","sequence":1,"stage":"started"}`},
	{RuleMissingMember, head + `"failure"}`},
	{RuleMemberType, head + `null}`},
	{RuleMemberType, head + `"initialized","capabilities":"text"}`},
	{RuleMemberType, head + `"initialized","capabilities":[["text"]]}`},
	{RuleMemberType, head + `"initialize","capabilities":["text"],"limits":null}`},
	{RuleMemberType, head + `"execute","operation":"text","input":null}`},
	{RuleMemberType, head + `"execute","operation":"text","input":{"a":{"b":[]}}}`},
	{RuleMemberType, head + `"result","summary":null,"changes":null}`},
	{RuleMemberType, head + `"progress","sequence":1.0,"stage":"started","text":""}`},
	{RuleMemberType, head + `"progress","sequence":1e0,"stage":"started","text":""}`},
	{RuleMemberType, head + `"progress","sequence":-0,"stage":"started","text":""}`},
	{RuleMemberType, head + `"progress","sequence":true,"stage":"started","text":""}`},
	{RuleMemberType, head + `"progress","sequence":"1","stage":"started","text":""}`},
	{RuleVersion, `{"version":"v2","id":"` + testID + `","type":"cancel"}`},
	{RuleVersion, `{"version":"V1","id":"` + testID + `","type":"cancel"}`},
	{RuleID, `{"version":"v1","id":"0123456789ABCDEF0123456789ABCDEF","type":"cancel"}`},
	{RuleID, `{"version":"v1","id":"0123456789abcdef0123456789abcde","type":"cancel"}`},
	{RuleID, `{"version":"v1","id":"0123456789abcdef0123456789abcdef0","type":"cancel"}`},
	{RuleID, `{"version":"v1","id":"g123456789abcdef0123456789abcdef","type":"cancel"}`},
	{RuleType, head + `"hello"}`},
	{RuleType, head + `""}`},
	{RuleLimits, head + `"initialize","capabilities":["text"],"limits":{"frame_bytes":1048577}}`},
	{RuleUnknownMember, head + `"initialize","capabilities":["text"],"limits":{"frame_bytes":1048576,"x":1}}`},
	{RuleMissingMember, head + `"initialize","capabilities":["text"],"limits":{"frame_bytes":1048576}}`},
	{RuleCapabilities, head + `"initialized","capabilities":[]}`},
	{RuleCapabilities, head + `"initialized","capabilities":["progress"]}`},
	{RuleCapabilities, head + `"initialized","capabilities":["text","text"]}`},
	{RuleCapabilities, head + `"initialized","capabilities":["text","Progress"]}`},
	{RuleOperation, head + `"execute","operation":"shell","input":""}`},
	{RuleOperation, head + `"execute","operation":"progress","input":""}`},
	{RulePayload, head + `"execute","operation":"text","input":"` + strings.Repeat("a", MaxTextBytes+1) + `"}`},
	{RulePayload, head + `"execute","operation":"text","input":"` + strings.Repeat("é", MaxTextBytes/2) + `a"}`},
	{RulePayload, head + `"execute","operation":"text","input":"` + strings.Repeat(`\u0041`, MaxTextBytes+1) + `"}`},
	{RulePayload, head + `"execute","operation":"workspace_edit","workspace":"a","instruction":"i","timeout_ms":1}`},
	{RulePayload, head + `"execute","operation":"workspace_edit","workspace":"","instruction":"i","timeout_ms":1}`},
	{RulePayload, head + `"execute","operation":"workspace_edit","workspace":"/a\u0000","instruction":"i","timeout_ms":1}`},
	{RulePayload, head + `"execute","operation":"workspace_edit","workspace":"/` + strings.Repeat("a", MaxWorkspaceBytes) + `","instruction":"i","timeout_ms":1}`},
	{RulePayload, head + `"execute","operation":"workspace_edit","workspace":"/","instruction":"","timeout_ms":1}`},
	{RulePayload, head + `"execute","operation":"workspace_edit","workspace":"/","instruction":"i","timeout_ms":0}`},
	{RulePayload, head + `"execute","operation":"workspace_edit","workspace":"/","instruction":"i","timeout_ms":-1}`},
	{RulePayload, head + `"execute","operation":"workspace_edit","workspace":"/","instruction":"i","timeout_ms":9007199254740992}`},
	{RulePayload, head + `"execute","operation":"workspace_edit","workspace":"/","instruction":"i","timeout_ms":99999999999999999999999}`},
	{RulePayload, head + `"result","output":"` + strings.Repeat("a", MaxTextBytes+1) + `"}`},
	{RuleCommitSubject, head + `"result","commit_subject":""}`},
	{RuleCommitSubject, head + `"result","commit_subject":" a"}`},
	{RuleCommitSubject, head + `"result","commit_subject":"a\u3000"}`},
	{RuleCommitSubject, head + `"result","commit_subject":"a\nb"}`},
	{RuleCommitSubject, head + `"result","commit_subject":"a\u0085b"}`},
	{RuleCommitSubject, head + `"result","commit_subject":"a\u2028b"}`},
	{RuleCommitSubject, head + `"result","commit_subject":"a\u2029b"}`},
	{RuleCommitSubject, head + `"result","commit_subject":"a\u202eb"}`},
	{RuleCommitSubject, head + `"result","commit_subject":"a\u200bb"}`},
	{RuleCommitSubject, head + `"result","commit_subject":"` + strings.Repeat("a", 257) + `"}`},
	{RuleReport, head + `"result","summary":"a"}`},
	{RuleReport, head + `"result","changes":["a"]}`},
	{RuleReport, head + `"result","summary":"a","changes":[]}`},
	{RuleReport, head + `"result","summary":"","changes":["a"]}`},
	{RuleReport, head + `"result","summary":"a ","changes":["a"]}`},
	{RuleReport, head + `"result","summary":"a","changes":["a",""]}`},
	{RuleReport, head + `"result","summary":"a","changes":["a\u0007"]}`},
	{RuleReport, head + `"result","summary":"` + strings.Repeat("a", 1025) + `","changes":["a"]}`},
	{RuleReport, head + `"result","summary":"a","changes":["` + strings.Repeat("a", 257) + `"]}`},
	{RuleReport, head + `"result","summary":"a","changes":["a"` + strings.Repeat(`,"a"`, 12) + `]}`},
	{RuleProgress, head + `"progress","sequence":0,"stage":"started","text":""}`},
	{RuleProgress, head + `"progress","sequence":129,"stage":"started","text":""}`},
	{RuleProgress, head + `"progress","sequence":1,"stage":"done","text":""}`},
	{RuleProgress, head + `"progress","sequence":1,"stage":"started","text":"` + strings.Repeat("a", 1025) + `"}`},
	{RuleCategory, head + `"failure","category":"oops"}`},
}

func TestViolations(t *testing.T) {
	for _, c := range violations {
		r := NewReader(strings.NewReader(head + "\"cancel\"}\n" + c.frame + "\n"))
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		_, err := r.Next()
		v, ok := errors.AsType[*Violation](err)
		if !ok || v.Rule != c.rule || v.Frame != 2 {
			t.Errorf("%.200q: got %v, want rule %s in frame 2", c.frame, err, c.rule)
		}
		if _, again := r.Next(); again != err {
			t.Errorf("%.200q: then %v", c.frame, again)
		}
	}
}

// The largest of everything is still allowed.
func TestLimitsAreInclusive(t *testing.T) {
	report := &Report{strings.Repeat("s", MaxSummaryBytes), []string{}}
	for range MaxChanges {
		report.Changes = append(report.Changes, strings.Repeat("c", MaxChangeBytes))
	}
	for _, message := range []Message{
		Request{Operation: CapText, Input: strings.Repeat("\x01", MaxTextBytes)},
		Request{
			Operation: CapWorkspaceEdit, Workspace: "/" + strings.Repeat("\x02", MaxWorkspaceBytes-1),
			Instruction: strings.Repeat("\x03", MaxInstructionBytes), TimeoutMS: MaxTimeoutMS,
		},
		Result{Operation: CapText, Output: strings.Repeat("é", MaxTextBytes/2)},
		Result{Operation: CapWorkspaceEdit, CommitSubject: strings.Repeat("a", MaxCommitSubjectBytes), Report: report},
		Progress{MaxProgressFrames, Finalizing, strings.Repeat("\x1f", MaxProgressTextBytes)},
	} {
		frame := Frame{testID, message}
		text, err := Encode(frame)
		if err != nil {
			t.Fatal(err)
		}
		got, err := NewReader(bytes.NewReader(text)).Next()
		if err != nil || !reflect.DeepEqual(got, frame) {
			t.Errorf("%s: %v", message.kind(), err)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	for rule, message := range map[Rule]Message{
		RuleUTF8:          Request{Operation: CapText, Input: "\xff"},
		RulePayload:       Request{Operation: CapText, Input: strings.Repeat("a", MaxTextBytes+1)},
		RuleCommitSubject: Result{Operation: CapWorkspaceEdit, CommitSubject: "two\nlines"},
		RuleCapabilities:  Initialized{},
		RuleCategory:      Failure{"oops"},
		RuleOperation:     Request{Operation: CapCancel},
		RuleReport:        Result{Operation: CapWorkspaceEdit, Report: &Report{}},
		RuleType:          nil,
	} {
		_, err := Encode(Frame{testID, message})
		if v, ok := errors.AsType[*Violation](err); !ok || v.Rule != rule {
			t.Errorf("%#v: %v, want rule %s", message, err, rule)
		}
	}
}

// A frame is what is between two LFs, however the bytes arrive.
func TestReaderSplits(t *testing.T) {
	var stream bytes.Buffer
	for _, c := range contractFrames {
		stream.WriteString(c.text + "\n")
	}
	all := stream.Bytes()
	for split := range len(all) {
		checkStream(t, io.MultiReader(bytes.NewReader(all[:split]), bytes.NewReader(all[split:])))
	}
	checkStream(t, iotest.OneByteReader(bytes.NewReader(all)))
	checkStream(t, iotest.DataErrReader(bytes.NewReader(all)))
}

func checkStream(t *testing.T, source io.Reader) {
	t.Helper()
	r := NewReader(source)
	for _, c := range contractFrames {
		frame, err := r.Next()
		if err != nil || !reflect.DeepEqual(frame.Message, c.message) {
			t.Fatalf("got %#v, %v, want %#v", frame, err, c.message)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Fatalf("at the end: %v", err)
	}
}

func TestReaderEnds(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name   string
		source io.Reader
		want   any
	}{
		{"nothing", strings.NewReader(""), io.EOF},
		{"no LF", strings.NewReader(head + `"cancel"}`), RuleUnterminated},
		{"half", strings.NewReader(head), RuleUnterminated},
		{"a failing source", iotest.ErrReader(broken), broken},
		{"an endless line", endless('a'), RuleFrameSize},
		{"an endless blank", endless('\n'), RuleBlankLine},
		{"a source that brings nothing", rarely{new(int), strings.NewReader(head), 1 << 30}, io.ErrNoProgress},
		{"the same after half a frame", io.MultiReader(strings.NewReader(head), rarely{new(int), nil, 1 << 30}), io.ErrNoProgress},
		{"a source that often brings nothing", rarely{new(int), iotest.OneByteReader(strings.NewReader(head)), mostEmptyReads}, RuleUnterminated},
	} {
		_, err := NewReader(c.source).Next()
		if v, ok := errors.AsType[*Violation](err); ok && v.Rule == c.want && v.Frame == 1 {
			continue
		}
		if err != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// rarely brings something with one of so many reads.
type rarely struct {
	count *int
	io.Reader
	every int
}

func (r rarely) Read(p []byte) (int, error) {
	if *r.count++; *r.count%r.every != 0 {
		return 0, nil
	}
	return r.Reader.Read(p)
}

type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

// Exactly the limit is a frame (this one is no JSON object, and said to be
// that); one byte more is not waited for.
func TestFrameSize(t *testing.T) {
	for _, before := range []int{0, 1, 5000} {
		prefix := strings.Repeat(head+"\"cancel\"}\n", before)
		for size, rule := range map[int]Rule{MaxFrameBytes: RuleJSON, MaxFrameBytes + 1: RuleFrameSize} {
			r := NewReader(io.MultiReader(strings.NewReader(prefix+`"`+strings.Repeat("a", size-2)+`"`), strings.NewReader("\n")))
			for range before {
				if _, err := r.Next(); err != nil {
					t.Fatal(err)
				}
			}
			_, err := r.Next()
			if v, ok := errors.AsType[*Violation](err); !ok || v.Rule != rule {
				t.Errorf("%d bytes after %d frames: %v", size, before, err)
			}
		}
	}
}

func genText(limit int) *rapid.Generator[string] {
	return rapid.StringN(-1, -1, limit)
}

// genLine makes texts that pass lineFault, most of the time with odd characters.
func genLine(limit int) *rapid.Generator[string] {
	return rapid.StringN(1, -1, limit).Filter(func(s string) bool { return lineFault(s, limit) == "" })
}

func genCapabilities() *rapid.Generator[[]Capability] {
	return rapid.Custom(func(t *rapid.T) []Capability {
		all := rapid.Permutation(capabilities).Draw(t, "order")
		some := append([]Capability{rapid.SampledFrom([]Capability{CapText, CapWorkspaceEdit}).Draw(t, "operation")},
			all[:rapid.IntRange(0, len(all)).Draw(t, "count")]...)
		var set []Capability
		for _, c := range some {
			if !containsCapability(set, c) {
				set = append(set, c)
			}
		}
		return set
	})
}

func containsCapability(set []Capability, c Capability) bool {
	for _, have := range set {
		if have == c {
			return true
		}
	}
	return false
}

func genReport() *rapid.Generator[*Report] {
	return rapid.Custom(func(t *rapid.T) *Report {
		if rapid.Bool().Draw(t, "no report") {
			return nil
		}
		return &Report{
			Summary: genLine(MaxSummaryBytes).Draw(t, "summary"),
			Changes: rapid.SliceOfN(genLine(MaxChangeBytes), 1, MaxChanges).Draw(t, "changes"),
		}
	})
}

func genRequest() *rapid.Generator[Request] {
	return rapid.Custom(func(t *rapid.T) Request {
		if rapid.Bool().Draw(t, "text") {
			return Request{Operation: CapText, Input: genText(MaxTextBytes).Draw(t, "input")}
		}
		return Request{
			Operation:   CapWorkspaceEdit,
			Workspace:   "/" + strings.ReplaceAll(genText(MaxWorkspaceBytes-1).Draw(t, "workspace"), "\x00", ""),
			Instruction: "i" + genText(MaxInstructionBytes-1).Draw(t, "instruction"),
			TimeoutMS:   rapid.Int64Range(1, MaxTimeoutMS).Draw(t, "timeout"),
		}
	})
}

func genMessage() *rapid.Generator[Message] {
	return rapid.OneOf(
		rapid.Custom(func(t *rapid.T) Message { return Initialize{genCapabilities().Draw(t, "offer")} }),
		rapid.Custom(func(t *rapid.T) Message { return Initialized{genCapabilities().Draw(t, "selection")} }),
		rapid.Custom(func(t *rapid.T) Message { return genRequest().Draw(t, "request") }),
		rapid.Custom(func(t *rapid.T) Message {
			return Progress{
				rapid.IntRange(1, MaxProgressFrames).Draw(t, "sequence"),
				rapid.SampledFrom([]Stage{Started, Working, Finalizing}).Draw(t, "stage"),
				genText(MaxProgressTextBytes).Draw(t, "text"),
			}
		}),
		rapid.Custom(func(t *rapid.T) Message {
			return Result{Operation: CapText, Output: genText(MaxTextBytes).Draw(t, "output")}
		}),
		rapid.Custom(func(t *rapid.T) Message {
			r := Result{Operation: CapWorkspaceEdit, Report: genReport().Draw(t, "report")}
			if rapid.Bool().Draw(t, "subject") {
				r.CommitSubject = genLine(MaxCommitSubjectBytes).Draw(t, "commit subject")
			}
			return r
		}),
		rapid.Custom(func(t *rapid.T) Message {
			return Failure{rapid.SampledFrom([]Category{InvalidRequest, Incompatible, ExecutionFailed, Cancelled}).Draw(t, "category")}
		}),
		rapid.Just[Message](Cancel{}),
	)
}

// What is written is read as the same, wherever the stream is cut, and it is
// what the strict reader of every other document calls compact.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frames := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Frame {
			return Frame{rapid.StringMatching(`[0-9a-f]{32}`).Draw(t, "id"), genMessage().Draw(t, "message")}
		}), 1, 5).Draw(t, "frames")
		var stream []byte
		for _, f := range frames {
			text, err := Encode(f)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := compactDoc.Decode(bytes.TrimSuffix(text, []byte("\n"))); err != nil {
				t.Fatal(err)
			}
			stream = append(stream, text...)
		}
		cut := rapid.IntRange(0, len(stream)).Draw(t, "cut")
		r := NewReader(io.MultiReader(bytes.NewReader(stream[:cut]), bytes.NewReader(stream[cut:])))
		for _, want := range frames {
			got, err := r.Next()
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("got %#v, %v, want %#v", got, err, want)
			}
		}
		if _, err := r.Next(); err != io.EOF {
			t.Fatal(err)
		}
	})
}

var compactDoc = strictjson.Doc{Name: "frame", Limit: MaxFrameBytes, Form: strictjson.CompactForm}

// FuzzReader reads any bytes as a stream, whole and byte by byte: the answer is
// the same, and a frame that is taken is compact JSON and can be written and
// read again.
func FuzzReader(f *testing.F) {
	for _, c := range contractFrames {
		f.Add([]byte(c.text + "\n"))
	}
	for _, c := range violations {
		if len(c.frame) < 1000 {
			f.Add([]byte(c.frame + "\n"))
		}
	}
	f.Add([]byte(contractFrames[0].text + "\n" + contractFrames[2].text + "\n" + head))
	f.Fuzz(func(t *testing.T, stream []byte) {
		r, slow := NewReader(bytes.NewReader(stream)), NewReader(iotest.OneByteReader(bytes.NewReader(stream)))
		rest := stream
		for {
			frame, err := r.Next()
			again, errAgain := slow.Next()
			if fmt.Sprint(err) != fmt.Sprint(errAgain) || !reflect.DeepEqual(frame, again) {
				t.Fatalf("%#v, %v; byte by byte %#v, %v", frame, err, again, errAgain)
			}
			line, after, terminated := bytes.Cut(rest, []byte("\n"))
			if err == nil && !terminated {
				t.Fatal("a frame without LF was taken")
			}
			if v, ok := errors.AsType[*Violation](err); ok {
				if _, err := compactDoc.Decode(line); err == nil && (v.Rule == RuleJSON || v.Rule == RuleUTF8 || v.Rule == RuleCompact || v.Rule == RuleDuplicateMember) {
					t.Fatalf("refused good JSON: %v", v)
				}
			}
			if err != nil {
				return
			}
			if _, err := compactDoc.Decode(line); err != nil {
				t.Fatalf("took a frame that is no compact JSON: %v", err)
			}
			written, err := Encode(frame)
			if err != nil {
				t.Fatalf("took a frame that cannot be written: %v", err)
			}
			if same, err := Decode(bytes.TrimSuffix(written, []byte("\n"))); err != nil || !reflect.DeepEqual(same, frame) {
				t.Fatalf("wrote and read %#v, %v; was %#v", same, err, frame)
			}
			rest = after
		}
	})
}

// BenchmarkReader reads a frame of the largest size, arriving as from a pipe. It
// is refused at the end, for its text; the memory is that of one buffer.
func BenchmarkReader(b *testing.B) {
	const pipe = 64 << 10
	largest := []byte(head + `"execute","operation":"text","input":"`)
	largest = append(append(largest, bytes.Repeat([]byte("a"), MaxFrameBytes-len(largest)-2)...), "\"}\n"...)
	allowed, err := Encode(Frame{testID, Request{Operation: CapText, Input: strings.Repeat("\x01", MaxTextBytes)}})
	if err != nil {
		b.Fatal(err)
	}
	small := []byte(head + `"initialized","capabilities":["text"]}` + "\n")
	for _, c := range []struct {
		name  string
		frame []byte
	}{{"1MiB", largest}, {"64KiBEscaped", allowed}, {"Small", small}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(c.frame)))
			for b.Loop() {
				r := NewReader(&chunks{bytes: c.frame, size: pipe})
				if _, err := r.Next(); err != nil && len(c.frame) < MaxFrameBytes {
					b.Fatal(err)
				}
			}
		})
	}
}

// chunks is a source that gives at most size bytes at once.
type chunks struct {
	bytes []byte
	size  int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.bytes) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.size)], c.bytes)
	c.bytes = c.bytes[n:]
	return n, nil
}
