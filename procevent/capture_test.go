package procevent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hawser/internal/fault"
	"hawser/internal/strictjson"
)

// A number is used once: any trace of it counts.
func TestNextSequence(t *testing.T) {
	for _, c := range []struct {
		names string
		want  uint64
	}{
		{"", 1},
		{"s.1.result", 2},
		{"s.1.result s.1.adapter s.2.adapter", 3},
		{"s.9.handled s.10.extension", 11},
		{"s.7.anything", 8},
		{"s.7.two.parts", 8},
		{"a.1.2.result", 1}, // of a.1
		{"s.1.5.result", 1}, // of s.1
		{"s.1.5.result s.2.x", 3},
		{"s.01.result s.+1.result s.0.result s..result s.result .s.5.result s.5", 1},
		{"s.9007199254740990.result", 9007199254740991},
		{"other.5.result", 1},
	} {
		inbox := openDir(t)
		for name := range strings.FieldsSeq(c.names) {
			if err := os.WriteFile(filepath.Join(inbox.Path(), name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := nextSequence(inbox, "s"); err != nil || got != c.want {
			t.Errorf("%s: %d, %v; want %d", c.names, got, err, c.want)
		}
	}
	for _, name := range []string{"s.9007199254740991.result", "s.9223372036854775807.handled"} {
		inbox := openDir(t)
		if err := os.WriteFile(filepath.Join(inbox.Path(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := nextSequence(inbox, "s"); !fault.Is(err, fault.ResultInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
}

func TestNextSequenceIsFree(t *testing.T) {
	dir := openDir(t)
	rapid.Check(t, func(t *rapid.T) {
		names, _ := dir.Names()
		for _, name := range names {
			_ = dir.Remove(name)
		}
		for _, name := range rapid.SliceOf(rapid.StringMatching(`[sa][.0-9a]{0,6}\.[1-9][0-9]{0,2}\.(result|adapter|x)`)).Draw(t, "names") {
			if err := os.WriteFile(filepath.Join(dir.Path(), name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		source := rapid.SampledFrom([]string{"s", "s.1", "a", "a.a"}).Draw(t, "source")
		n, err := nextSequence(dir, source)
		if err != nil || n < 1 || n > strictjson.MaxInt {
			t.Fatalf("%d, %v", n, err)
		}
		c := capture{}
		c.Source, c.Sequence = source, n
		names, _ = dir.Names()
		for _, name := range names {
			if strings.HasPrefix(name, c.String()+".") && strings.Count(name, ".") == strings.Count(c.String(), ".")+1 {
				t.Fatalf("%s has the number that is free for %s", name, source)
			}
		}
	})
}

// What is written beyond the limit is drained, and counted.
func TestStaged(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		file, err := os.CreateTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(file.Name())
		defer file.Close()
		limit := rapid.IntRange(0, 40).Draw(t, "limit")
		s := &staged{file: file, limit: limit}
		var all []byte
		for _, part := range rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 20)).Draw(t, "parts") {
			if n, err := s.Write(part); n != len(part) || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
			all = append(all, part...)
		}
		if err := s.sync(); err != nil {
			t.Fatal(err)
		}
		kept := min(limit, len(all))
		got, err := os.ReadFile(file.Name())
		if err != nil || !bytes.Equal(got, all[:kept]) || s.size != kept || s.dropped != len(all)-kept {
			t.Fatalf("%q, %v: %+v", got, err, s)
		}
	})
	// A disk that is full is told at the end, and the writer is drained.
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full")
	}
	s := &staged{file: full, limit: 100}
	defer full.Close()
	for range 3 {
		if n, err := s.Write([]byte("text")); n != 4 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if err := s.sync(); !fault.Is(err, fault.IO) {
		t.Errorf("%v", err)
	}
}

// The pauses grow to five minutes, end with a good poll, and cannot grow beyond
// by a clock that is set back.
func TestFailures(t *testing.T) {
	state := openDir(t)
	path := filepath.Join(state.Path(), failuresName("s"))
	for i, want := range []time.Duration{5, 10, 20, 40, 80, 160, 300, 300, 300} {
		before := time.Now()
		noteFailure(state, "s")
		n, until := failures(state, "s")
		if pause := until.Sub(before); n != i+1 || pause < want*time.Second-time.Second || pause > want*time.Second+time.Since(before)+time.Second {
			t.Errorf("failure %d: %d, %v; want %v", i+1, n, pause, want*time.Second)
		}
	}
	if n, _ := failures(state, "other"); n != 0 {
		t.Error("another source has failures, too")
	}
	forgetFailures(state, "s")
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	forgetFailures(state, "s")
	for _, text := range []string{"", "x", "1", "1 x", "-1 5", "99999999999 5", "3 99999999999999999999", string(bytes.Repeat([]byte("1"), 100)), fmt.Sprint("4 ", time.Now().Add(time.Hour).Unix())} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, until := failures(state, "s"); time.Until(until) > 0 {
			t.Errorf("%q makes a pause until %v", text, until)
		}
	}
	_ = os.Remove(path)
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	if n, until := failures(state, "s"); n != 0 || time.Until(until) > 0 {
		t.Errorf("a link makes %d failures until %v", n, until)
	}
	noteFailure(state, "s")
	if n, _ := failures(state, "s"); n != 1 {
		t.Errorf("noted in the place of a link: %d", n)
	}
}

func FuzzFailures(f *testing.F) {
	f.Add([]byte("3 1700000000\n"))
	f.Add([]byte("-1 1"))
	f.Add([]byte("1 9223372036854775807"))
	dir := openDir(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(filepath.Join(dir.Path(), failuresName("s")), data, 0o600); err != nil {
			t.Fatal(err)
		}
		n, until := failures(dir, "s")
		if n < 0 || time.Until(until) > longestPause {
			t.Fatalf("%q: %d, %v", data, n, until)
		}
		noteFailure(dir, "s")
		if more, _ := failures(dir, "s"); more < 1 {
			t.Fatalf("%q: then %d", data, more)
		}
	})
}

// Staging files of ours are cleared by their exact name.
func TestClearStaged(t *testing.T) {
	dir := openDir(t)
	token := strings.Repeat("0a", 16)
	keep := []string{"s.source", ".s.output", ".s.short.output", ".s.b." + token + ".output", ".t." + token + ".output", ".s." + token, ".s." + token + ".x.output", ".s." + strings.Repeat(".", 32) + ".output"}
	gone := []string{".s." + token + ".output", ".s." + strings.Repeat("1", 32) + ".output"}
	for _, name := range append(keep, gone...) {
		if err := os.WriteFile(filepath.Join(dir.Path(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	clearStaged(dir, "s")
	names, err := dir.Names()
	if err != nil || len(names) != len(keep) {
		t.Errorf("left: %q, %v", names, err)
	}
	for _, name := range gone {
		if _, err := dir.Lstat(name); err == nil {
			t.Errorf("%s is there", name)
		}
	}
}

// What a runner that reconcile started says is read as it is said, and no more.
func TestRefusal(t *testing.T) {
	err := refusal("error[source-busy]: source s has an owner: x]: y")
	if !fault.Is(err, fault.SourceBusy) || err.Error() != "source s has an owner: x]: y" {
		t.Errorf("%v", err)
	}
	for _, line := range []string{"", "owned: s", "panic: x", "error: x", "error[x", "xerror[a]: b"} {
		if err := refusal(line); err != nil {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestParseSequence(t *testing.T) {
	for text, want := range map[string]uint64{"1": 1, "9223372036854775807": 1<<63 - 1} {
		if n, err := ParseSequence(text); err != nil || n != want {
			t.Errorf("%s: %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "0", "01", "+1", "-1", "1 ", "x", "9223372036854775808"} {
		if n, err := ParseSequence(text); !fault.Is(err, fault.Usage) {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
}
