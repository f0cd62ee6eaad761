package fault

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"unicode"
)

func TestCodeSurvivesWrapping(t *testing.T) {
	cause := &fs.PathError{Op: "open", Path: "/a", Err: fs.ErrPermission}
	made := Wrap(IO, cause, "cannot read %s", Path("/a"))
	err := fmt.Errorf("binding x: %w", made)
	if got := CodeOf(err); got != IO {
		t.Errorf("code %q", got)
	}
	if !Is(err, IO) || Is(err, Internal) {
		t.Error("Is does not find the one code")
	}
	if !errors.Is(err, fs.ErrPermission) {
		t.Error("the cause is lost")
	}
	if got, want := err.Error(), "binding x: cannot read /a: open /a: permission denied"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestOutermostCodeCounts(t *testing.T) {
	if got := CodeOf(Wrap(RegistryInvalid, New(JSONInvalid, "no JSON"), "a binding")); got != RegistryInvalid {
		t.Errorf("code %q", got)
	}
}

func TestErrorOfSomebodyElse(t *testing.T) {
	err := errors.New("surprise")
	if CodeOf(err) != Internal || Is(err, Internal) {
		t.Error("an error without a code is reported as internal but carries no code")
	}
}

func TestWrapOfNothing(t *testing.T) {
	if err := Wrap(IO, nil, "never"); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestPath(t *testing.T) {
	for path, want := range map[string]string{
		"/srv/käse und brot": "/srv/käse und brot",
		"":                   `""`,
		"/a\nerror[io]: b":   `"/a\nerror[io]: b"`,
		"/a\x1b[2J":          `"/a\x1b[2J"`,
		"/a\xff":             `"/a\xff"`,
		`/a"b`:               `"/a\"b"`,
		"/a\u202eb":          `"/a\u202eb"`,
		"/a\u2028b":          `"/a\u2028b"`,
	} {
		if got := Path(path); got != want {
			t.Errorf("Path(%q) = %s, want %s", path, got, want)
		}
	}
}

func TestLineIsOneLine(t *testing.T) {
	err := Wrap(IO, errors.New("first\r\nsecond\x1b[2J\x7f"), "cannot read %s", Path("/a\nb"))
	got := Line(err)
	if want := `error[io]: cannot read "/a\nb": first  second [2J `; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if strings.ContainsFunc(got, unicode.IsControl) {
		t.Error("a control character reaches the terminal")
	}
}
