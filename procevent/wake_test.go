package procevent

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/lifecycle"
	"hawser/tests/hometest"
)

func openDir(t testing.TB) *dirfd.Dir {
	t.Helper()
	dir, err := dirfd.Open(hometest.Dir(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

func result(source string, n uint64) row {
	return row{"feed", home.ResultName{Source: source, Sequence: n}}
}

// A row is what the contract says, and holds nothing but names that were checked.
func TestRow(t *testing.T) {
	got := result("a.b", 7).line(time.Unix(1_700_000_000, 999), 42)
	if want := "1700000000\t42\tcheck\tprocevent:a.b:7\tcheck: procevent feed a.b 7\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestTake(t *testing.T) {
	for _, c := range []struct {
		name, text string
		keys       []string
		highest    uint64
		torn       bool
	}{
		{"empty", "", nil, 0, false},
		{"rows", "1\t5\tcheck\ta:1\tx\n1\t3\tsignal\tb\ty\tz\n", []string{"a:1", "b"}, 5, false},
		{"malformed rows", "1\t9\tcheck\ta:1\n\n\t\t\t\nnonsense\n1\tx\tcheck\tb\ty\n", []string{"b"}, 0, false},
		{"a torn row", "1\t5\tcheck\ta:1\tx\n1\t6\tcheck\tb:1\tcheck: proce", []string{"a:1"}, 5, true},
		{"only a torn row", "1\t6", nil, 0, true},
		{"zeros of a power cut", "1\t5\tcheck\ta:1\tx\n\x00\x00\x00", []string{"a:1"}, 5, true},
		{"numbers that are none", "1\t-5\tcheck\ta\tx\n1\t99999999999999999999\tcheck\tb\tx\n", []string{"a", "b"}, 0, false},
	} {
		q := &queue{keys: map[string]bool{}}
		q.take([]byte(c.text))
		want := map[string]bool{}
		for _, key := range c.keys {
			want[key] = true
		}
		if !reflect.DeepEqual(q.keys, want) || q.highest != c.highest || q.torn != c.torn {
			t.Errorf("%s: %+v", c.name, q)
		}
	}
}

func FuzzTake(f *testing.F) {
	f.Add([]byte("1\t5\tcheck\tprocevent:s:1\tcheck: procevent feed s 1\n"))
	f.Add([]byte("1\t6\tcheck\tprocevent:s:1\tcheck: proc"))
	f.Add([]byte("\n\t\t\t\t\n\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		q := &queue{keys: map[string]bool{}}
		q.take(data)
		if q.torn != (len(data) > 0 && data[len(data)-1] != '\n') {
			t.Fatalf("%q: torn is %t", data, q.torn)
		}
		if q.highest+1 == 0 {
			t.Fatal("no number is left after the highest")
		}
		// A row that follows is read as itself, whatever came before.
		if q.torn {
			data = append(data, '\n')
		}
		next := &queue{keys: map[string]bool{}}
		next.take(append(data, result("s", 1).line(time.Unix(1, 0), q.highest+1)...))
		if next.torn || !next.keys["procevent:s:1"] || next.highest <= q.highest {
			t.Fatalf("%q: then %+v", data, next)
		}
	})
}

// TestQueueModel appends against a model: what others wrote stays, what is held
// is not appended again, and numbers go up from the counter, or from the highest
// row without one.
func TestQueueModel(t *testing.T) {
	dir := hometest.Dir(t)
	rapid.Check(t, func(t *rapid.T) {
		path := filepath.Join(dir, queueName)
		for _, name := range []string{queueName, queueSeq} {
			_ = os.Remove(filepath.Join(dir, name))
		}
		state, err := dirfd.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer state.Close()
		host := &Host{Host: &lifecycle.Host{LockTimeout: time.Minute}}
		text, held, last := "", map[string]bool{}, uint64(0) // the model
		hasCounter, highest := false, uint64(0)
		line := rapid.SampledFrom([]string{"nonsense\n", "\n", "1\t2\tcheck\n", "1\t900\tsignal\tother\tx\n", "1\t7\tcheck\tprocevent:b:1\tx\n", "1\t8\tcheck\tprocevent:c:1\tche"})
		t.Repeat(map[string]func(*rapid.T){
			"others write": func(t *rapid.T) {
				if text != "" && !strings.HasSuffix(text, "\n") {
					t.Skip("nobody appends to a torn line")
				}
				text += line.Draw(t, "line")
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			},
			"others take": func(*rapid.T) {
				text, highest = "", 0
				clear(held)
				_ = os.Remove(path)
			},
			"the counter is lost": func(*rapid.T) {
				hasCounter = false
				_ = os.Remove(filepath.Join(dir, queueSeq))
			},
			"the counter is damaged": func(t *rapid.T) {
				hasCounter = false
				if err := os.WriteFile(filepath.Join(dir, queueSeq), []byte(rapid.SampledFrom([]string{"", "x", "-1", "1 2", strings.Repeat("1", 99)}).Draw(t, "counter")), 0o600); err != nil {
					t.Fatal(err)
				}
			},
			"announce": func(t *rapid.T) {
				var rows []row
				for _, source := range rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 1, 4).Draw(t, "sources") {
					rows = append(rows, result(source, 1))
				}
				reread := &queue{keys: map[string]bool{}}
				reread.take([]byte(text))
				held, highest = reread.keys, reread.highest
				var fresh []row
				for _, r := range rows {
					if !held[r.key()] {
						held[r.key()] = true
						fresh = append(fresh, r)
					}
				}
				n, err := host.announce(t.Context(), state, rows)
				if err != nil || n != len(fresh) {
					t.Fatalf("%d rows, %v; want %d", n, err, len(fresh))
				}
				got, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if len(fresh) > 0 {
					if text != "" && !strings.HasSuffix(text, "\n") {
						text += "\n"
					}
					if !hasCounter {
						last = highest
					}
					hasCounter = true
				}
				appended, ok := strings.CutPrefix(string(got), text)
				if !ok {
					t.Fatalf("%q does not begin with %q", got, text)
				}
				want := ""
				for _, r := range fresh {
					last++
					_, rest, _ := strings.Cut(r.line(time.Time{}, last), "\t")
					stamp, _, _ := strings.Cut(appended[min(len(appended), len(want)):], "\t")
					want += stamp + "\t" + rest
				}
				if appended != want {
					t.Fatalf("appended %q, want %q", appended, want)
				}
				text = string(got)
			},
			"": func(t *rapid.T) {
				if names, err := state.Names(); err != nil || len(names) > 2 {
					t.Fatalf("left: %q, %v", names, err)
				}
			},
		})
	})
}

// This capture's row comes first, then the others in their order.
func TestFirst(t *testing.T) {
	c := &capture{ResultName: home.ResultName{Source: "c", Sequence: 1}}
	for _, test := range []struct{ rows, want string }{{"", ""}, {"ab", "ab"}, {"c", "c"}, {"cab", "cab"}, {"abcd", "cabd"}, {"abc", "cab"}} {
		var rows []row
		for _, source := range test.rows {
			rows = append(rows, result(string(source), 1))
		}
		got := ""
		for _, r := range c.first(rows) {
			got += r.Source
		}
		if got != test.want {
			t.Errorf("%s becomes %s, not %s", test.rows, got, test.want)
		}
	}
}

// A result is announced under the name of the adapter that it was captured for,
// if that is one; the others are announced whatever becomes of it.
func TestPending(t *testing.T) {
	inbox := openDir(t)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(inbox.Path(), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	adapters := []string{"feed\n", "feed", "", "Feed\n", "feed\n\n", "feed\tx\n", strings.Repeat("a", 32) + "\n", strings.Repeat("a", 33) + "\n", strings.Repeat("a", 100) + "\n"}
	for i, adapter := range adapters {
		write(fmt.Sprintf("s.%d.result", i+1), "")
		write(fmt.Sprintf("s.%d.adapter", i+1), adapter)
	}
	write("s.20.result", "")        // no adapter at all
	write("s.21.adapter", "feed\n") // no result
	write("s.22.result", "")        // handled
	write("s.22.adapter", "feed\n")
	write("s.22.handled", "")
	if err := os.Symlink("s.1.adapter", filepath.Join(inbox.Path(), "s.23.adapter")); err != nil {
		t.Fatal(err)
	}
	write("s.23.result", "")
	var bad []string
	rows, err := pending(inbox, func(err error) {
		if !fault.Is(err, fault.ResultInvalid) || !strings.Contains(err.Error(), "fm-procevent handled s ") {
			t.Errorf("%v", err)
		}
		bad = append(bad, err.Error())
	})
	if err != nil || len(rows) != 2 || rows[0] != (row{"feed", home.ResultName{Source: "s", Sequence: 1}}) || rows[1].Sequence != 7 || len(bad) != len(adapters)-2+2 {
		t.Errorf("%+v, %v, bad: %q", rows, err, bad)
	}
}
