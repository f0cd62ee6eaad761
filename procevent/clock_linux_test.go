package procevent

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A claim is renewed by whom its token is, and by nobody else.
func TestRenewClaim(t *testing.T) {
	claims := openDir(t)
	path := filepath.Join(claims.Path(), "s.claim")
	longAgo := time.Unix(1_000_000_000, 0)
	for _, c := range []struct {
		text, token string
		renewed     bool
	}{
		{wholeClaim, "0123456789abcdef0123456789abcdef", true},
		{wholeClaim, "1123456789abcdef0123456789abcdef", false},
		{"nonsense", "", false},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, longAgo, longAgo); err != nil {
			t.Fatal(err)
		}
		before := time.Now().Add(-time.Second)
		renewClaim(claims, "s", c.token)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.ModTime().After(before); got != c.renewed {
			t.Errorf("%.20q with %s: renewed: %t", c.text, c.token, got)
		}
		if data, _ := os.ReadFile(path); string(data) != c.text {
			t.Errorf("it now holds %q", data)
		}
	}
	renewClaim(claims, "absent", "x")
}

// Waiting for a jump of the clock ends when it is to end. (No test sets the
// clock.)
func TestOnClockSetStops(t *testing.T) {
	for range 100 {
		onClockSet(func() { t.Error("the clock of the machine was set") })()
	}
	if left, _ := filepath.Glob("/proc/self/fd/*"); len(left) > 50 {
		t.Errorf("%d descriptors are open", len(left))
	}
}
