package procevent

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hawser/internal/dirfd"
	"hawser/internal/wire"
)

const olderClaim = `/home/a
812
0123456789abcdef0123456789abcdef
linux-starttime=123456 cmdline-hex=736c65657000
/home/a/state/procevent
2049:131
active
`

const wholeClaim = olderClaim + `/mnt/state
2050
2
1000
700
`

func TestParseClaim(t *testing.T) {
	want := &claim{
		Home: "/home/a", PID: 812, Token: "0123456789abcdef0123456789abcdef", Identity: "linux-starttime=123456 cmdline-hex=736c65657000",
		RegDir: "/home/a/state/procevent", Registration: fileID{2049, 131},
	}
	got, err := parseClaim([]byte(olderClaim))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("seven lines: %+v, %v", got, err)
	}
	if text := string(want.encode()); text != olderClaim {
		t.Errorf("encoded as %q", text)
	}
	want.State = &stateRoot{"/mnt/state", fileID{2050, 2}, 1000, 0o700}
	want.Terminal = true
	terminal := strings.Replace(wholeClaim, "\nactive\n", "\nterminal\n", 1)
	got, err = parseClaim([]byte(terminal))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("twelve lines: %+v, %v", got, err)
	}
	if text := string(want.encode()); text != terminal {
		t.Errorf("encoded as %q", text)
	}
	// Tokens of other hosts, and modes as they may write them.
	for _, old := range []struct{ old, new string }{{"0123456789abcdef0123456789abcdef", "A-b_c.9"}, {"\n700\n", "\n0755\n"}, {"\n700\n", "\n40700\n"}} {
		if _, err := parseClaim([]byte(strings.Replace(wholeClaim, old.old, old.new, 1))); err != nil {
			t.Errorf("%q instead of %q: %v", old.new, old.old, err)
		}
	}
}

// TestEveryDamagedClaimIsRefused drops, doubles, empties and alters each line.
func TestEveryDamagedClaimIsRefused(t *testing.T) {
	damaged := map[string]string{"empty": "", "no end": strings.TrimSuffix(wholeClaim, "\n"), "carriage returns": strings.ReplaceAll(wholeClaim, "\n", "\r\n")}
	lines := strings.SplitAfter(wholeClaim, "\n")[:12]
	wrong := []string{"home/a", "-1", "../token", "", "state/procevent", "2049", "ended", "state", "-1", "x", "1e3", "0888"}
	for i, line := range lines {
		with := func(new string) string {
			return strings.Join(append(append(append([]string{}, lines[:i]...), new), lines[i+1:]...), "")
		}
		number := string(rune('a' + i))
		damaged["dropped "+number] = with("")
		damaged["doubled "+number] = with(line + line)
		damaged["emptied "+number] = with("\n")
		damaged["wrong "+number] = with(wrong[i] + "\n")
		damaged["NUL in "+number] = with("\x00" + line)
	}
	for _, pid := range []string{"0", "2147483648", "99999999999999999999", "1.0"} {
		damaged["pid "+pid] = strings.Replace(wholeClaim, "\n812\n", "\n"+pid+"\n", 1)
	}
	for _, token := range []string{".hidden", "a/b", "a b", strings.Repeat("a", 129)} {
		damaged["token "+token] = strings.Replace(wholeClaim, "0123456789abcdef0123456789abcdef", token, 1)
	}
	for _, file := range []string{":131", "2049:", "2049:131:1", "2049:-1", "a:b", "18446744073709551616:1"} {
		damaged["registration "+file] = strings.Replace(wholeClaim, "2049:131", file, 1)
	}
	damaged["too long"] = strings.Replace(wholeClaim, "/home/a\n", "/home/"+strings.Repeat("a", claimLimit)+"\n", 1)
	for name, text := range damaged {
		if c, err := parseClaim([]byte(text)); !errors.Is(err, errClaim) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

func TestClaimRoundTrip(t *testing.T) {
	path := rapid.StringMatching(`/[a-zé ._=:/-]{0,40}`)
	rapid.Check(t, func(t *rapid.T) {
		c := &claim{
			Home:         path.Draw(t, "home"),
			PID:          rapid.IntRange(1, 1<<22).Draw(t, "pid"),
			Token:        rapid.StringMatching(`[A-Za-z0-9_-][A-Za-z0-9._-]{0,40}`).Draw(t, "token"),
			Identity:     rapid.StringMatching(`[a-z=0-9 -]{1,60}`).Draw(t, "identity"),
			RegDir:       path.Draw(t, "directory"),
			Registration: fileID{rapid.Uint64().Draw(t, "dev"), rapid.Uint64().Draw(t, "ino")},
			Terminal:     rapid.Bool().Draw(t, "terminal"),
		}
		if rapid.Bool().Draw(t, "whole") {
			c.State = &stateRoot{path.Draw(t, "state"), fileID{rapid.Uint64().Draw(t, "dev"), rapid.Uint64().Draw(t, "ino")},
				rapid.IntRange(0, 1<<32-1).Draw(t, "uid"), rapid.Uint32Range(0, 0o7777).Draw(t, "mode")}
		}
		got, err := parseClaim(c.encode())
		if err != nil || !reflect.DeepEqual(got, c) {
			t.Fatalf("%q reads as %+v, %v", c.encode(), got, err)
		}
	})
}

func FuzzParseClaim(f *testing.F) {
	f.Add([]byte(olderClaim))
	f.Add([]byte(wholeClaim))
	f.Add([]byte(strings.Replace(wholeClaim, "active", "terminal", 1)))
	f.Add([]byte(strings.Repeat("\n", 12)))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseClaim(data)
		if err != nil {
			if !errors.Is(err, errClaim) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if strings.ContainsAny(c.Token, "/\x00\n") || c.Token[0] == '.' || c.PID < 1 || wire.HasControl(c.Home) {
			t.Fatalf("accepted %+v", c)
		}
		again, err := parseClaim(c.encode())
		if err != nil || !reflect.DeepEqual(again, c) || bytes.Count(c.encode(), []byte("\n")) != bytes.Count(data, []byte("\n")) {
			t.Fatalf("%q reads as %+v, and that as %+v, %v", data, c, again, err)
		}
	})
}

// A device may have another number after a restart, an inode has not.
func TestFileIDSame(t *testing.T) {
	id := fileID{1, 2}
	for _, c := range []struct {
		dev, ino        uint64
		restarted, want bool
	}{{1, 2, false, true}, {1, 2, true, true}, {9, 2, false, false}, {9, 2, true, true}, {1, 9, false, false}, {1, 9, true, false}} {
		if got := id.same(dirfd.Info{Dev: c.dev, Ino: c.ino}, c.restarted); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

func TestStartOf(t *testing.T) {
	for text, want := range map[string]struct {
		start uint64
		ok    bool
	}{
		"linux-starttime=12 cmdline-hex=":       {12, true},
		"linux-starttime=12 cmdline-hex=61 62":  {12, true},
		"linux-starttime=-1 cmdline-hex=61":     {0, false},
		"linux-starttime= cmdline-hex=61":       {0, false},
		"linux-starttime=12":                    {12, false},
		"starttime=12 cmdline-hex=61":           {0, false},
		"":                                      {0, false},
		"linux-starttime=12 boot-id=0 pid-ns=1": {12, false},
	} {
		if start, ok := startOf(text); ok != want.ok || ok && start != want.start {
			t.Errorf("%q: %d, %t", text, start, ok)
		}
	}
}
