package main

import (
	"regexp"
	"strings"
	"testing"
)

var nothing = regexp.MustCompile(`^\b$`)

// sumOf adds up runs given by name and events, and returns what is reported.
func sumOf(t *testing.T, allowed *regexp.Regexp, runs ...string) (string, bool) {
	t.Helper()
	var rs []*run
	for i := 0; i < len(runs); i += 2 {
		r, err := read(runs[i], strings.NewReader(runs[i+1]))
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	var b strings.Builder
	good := add(rs).report(&b, allowed)
	return b.String(), good
}

// lastLine is what people and machines look for.
func lastLine(report string) string {
	lines := strings.Split(strings.TrimSuffix(report, "\n"), "\n")
	return lines[len(lines)-1]
}

const (
	packagePassed = `{"Action":"pass","Package":"p"}` + "\n"
	packageFailed = `{"Action":"fail","Package":"p"}` + "\n"
	aPassed       = `{"Action":"run","Package":"p","Test":"A"}` + "\n" + `{"Action":"pass","Package":"p","Test":"A"}` + "\n"
	aSkipped      = `{"Action":"output","Package":"p","Test":"A","Output":"    a_test.go:1: needs root\n"}` + "\n" +
		`{"Action":"skip","Package":"p","Test":"A"}` + "\n"
	aFailed = `{"Action":"output","Package":"p","Test":"A","Output":"    a_test.go:1: got 1\n"}` + "\n" +
		`{"Action":"fail","Package":"p","Test":"A"}` + "\n"
	aBegan = `{"Action":"run","Package":"p","Test":"A"}` + "\n" +
		`{"Action":"output","Package":"p","Test":"A","Output":"panic: no\n"}` + "\n"
	bPassed      = `{"Action":"pass","Package":"p","Test":"B"}` + "\n"
	subPassed    = `{"Action":"pass","Package":"p","Test":"A/one"}` + "\n"
	subFailed    = `{"Action":"fail","Package":"p","Test":"A/one"}` + "\n"
	subSkipped   = `{"Action":"skip","Package":"p","Test":"A/one"}` + "\n"
	buildFailed  = `{"Action":"build-output","ImportPath":"p.test","Output":"p.go:1: undefined: x\n"}` + "\n" + `{"Action":"build-fail","ImportPath":"p.test"}` + "\n" + `{"Action":"fail","Package":"p","FailedBuild":"p.test"}` + "\n"
	withoutTests = `{"Action":"skip","Package":"p"}` + "\n"
)

func TestSum(t *testing.T) {
	root := regexp.MustCompile("root")
	for name, c := range map[string]struct {
		allowed *regexp.Regexp
		runs    []string
		last    string
		says    string // somewhere in the report
	}{
		"nothing":                   {nothing, nil, "0 passed, 0 failed, 0 skipped", ""},
		"a package without tests":   {nothing, []string{"x", withoutTests}, "0 passed, 0 failed, 0 skipped", ""},
		"passed":                    {nothing, []string{"x", aPassed + bPassed + packagePassed}, "2 passed, 0 failed, 0 skipped", ""},
		"passed in both":            {nothing, []string{"x", aPassed, "y", aPassed}, "1 passed, 0 failed, 0 skipped", ""},
		"failed":                    {nothing, []string{"x", aFailed + bPassed + packageFailed}, "1 passed, 1 failed, 0 skipped", "FAIL  p A (x)\n    a_test.go:1: got 1\n"},
		"failed in one":             {nothing, []string{"x", aFailed, "y", aPassed}, "0 passed, 1 failed, 0 skipped", "FAIL  p A (x)"},
		"failed in the other":       {nothing, []string{"x", aPassed, "y", aFailed}, "0 passed, 1 failed, 0 skipped", "FAIL  p A (y)"},
		"failed in both":            {nothing, []string{"x", aFailed, "y", aFailed}, "0 passed, 1 failed, 0 skipped", "FAIL  p A (y)"},
		"failed after a skip":       {nothing, []string{"x", aSkipped, "y", aFailed}, "0 passed, 1 failed, 0 skipped", "FAIL  p A (y)"},
		"skipped in one":            {nothing, []string{"x", aSkipped, "y", aPassed}, "1 passed, 0 failed, 0 skipped", ""},
		"skipped in the other":      {nothing, []string{"x", aPassed, "y", aSkipped}, "1 passed, 0 failed, 0 skipped", ""},
		"skipped in both":           {nothing, []string{"x", aSkipped, "y", aSkipped}, "0 passed, 1 failed, 0 skipped", "FAIL  p A ran nowhere: a_test.go:1: needs root\n"},
		"skipped, allowed":          {root, []string{"x", aSkipped}, "0 passed, 0 failed, 1 skipped", "skip  p A: a_test.go:1: needs root\n"},
		"skipped for another cause": {regexp.MustCompile("tmpfs"), []string{"x", aSkipped}, "0 passed, 1 failed, 0 skipped", "ran nowhere"},
		"a panic":                   {nothing, []string{"x", aBegan + packageFailed}, "0 passed, 1 failed, 0 skipped", "FAIL  p A (x)\npanic: no\n"},
		"a build":                   {nothing, []string{"x", buildFailed}, "0 passed, 1 failed, 0 skipped", "FAIL  p (x)\np.go:1: undefined: x\n"},
		"a package by itself":       {nothing, []string{"x", aPassed + packageFailed}, "1 passed, 1 failed, 0 skipped", "FAIL  p (x)"},
		"subtests only count":       {nothing, []string{"x", subPassed + aPassed}, "1 passed, 0 failed, 0 skipped", ""},
		"a subtest panicked":        {nothing, []string{"x", subFailed + aBegan + packageFailed}, "0 passed, 1 failed, 0 skipped", "FAIL  p A/one (x)\npanic: no\n"},
		"a subtest failed":          {nothing, []string{"x", subFailed + aFailed + packageFailed}, "0 passed, 1 failed, 0 skipped", "FAIL  p A/one (x)"},
		"a test beside its subtest": {nothing, []string{"x", subPassed + aFailed + packageFailed}, "1 passed, 1 failed, 0 skipped", "FAIL  p A (x)"},
		"a subtest ran nowhere":     {nothing, []string{"x", subSkipped + aPassed, "y", aSkipped}, "0 passed, 1 failed, 0 skipped", "FAIL  p A/one ran nowhere"},
		"with subtests in one":      {nothing, []string{"x", subPassed + aPassed, "y", aSkipped}, "1 passed, 0 failed, 0 skipped", ""},
		"with subtests in other":    {nothing, []string{"x", aSkipped, "y", subPassed + aPassed}, "1 passed, 0 failed, 0 skipped", ""},
	} {
		t.Run(name, func(t *testing.T) {
			report, good := sumOf(t, c.allowed, c.runs...)
			if got := lastLine(report); got != c.last {
				t.Errorf("last line %q, want %q", got, c.last)
			}
			if !strings.Contains(report, c.says) {
				t.Errorf("the report does not say %q:\n%s", c.says, report)
			}
			if want := strings.Contains(c.last, " 0 failed"); good != want {
				t.Errorf("good is %v", good)
			}
		})
	}
}

func TestReadRefusesWhatIsNoEvent(t *testing.T) {
	if _, err := read("x", strings.NewReader(aPassed+"go: cannot find module\n")); err == nil || !strings.Contains(err.Error(), "x: line 3") {
		t.Errorf("got %v", err)
	}
}
