package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// test names a test; one without a name is the package itself.
type test struct{ pkg, name string }

func (t test) String() string { return strings.TrimSpace(t.pkg + " " + t.name) }

func (t test) compare(u test) int {
	return cmp.Or(cmp.Compare(t.pkg, u.pkg), cmp.Compare(t.name, u.name))
}

// ending is how a test ended in a run. A test that began and did not end, since
// its process died, failed: that is why failed is the zero value.
type ending int

const (
	failed ending = iota
	passed
	skipped
)

// outcome is what one run says of one test.
type outcome struct {
	ending ending
	output []string
}

// run is one run of many tests.
type run struct {
	name  string
	tests map[test]*outcome
	// ran holds the tests that only stand for their subtests: they were not
	// skipped, whatever became of those.
	ran map[test]bool
}

// event is a line of `go test -json`, as `go doc test2json` describes it; the
// build-output events name the build by ImportPath, and a package that failed
// for it by FailedBuild.
type event struct {
	Action, Package, Test, Output, ImportPath, FailedBuild string
}

// read reads the events of one run. A line that is no event is a mistake of the
// caller, or the output of a run that was cut off: an error either way.
func read(name string, events io.Reader) (*run, error) {
	r := &run{name, map[test]*outcome{}, map[test]bool{}}
	builds := map[string][]string{}
	lines := bufio.NewReader(events)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if err := json.Unmarshal(line, &e); err != nil {
				return nil, fmt.Errorf("%s: line %d: %w", name, n, err)
			}
			r.take(e, builds)
		}
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
}

func (r *run) take(e event, builds map[string][]string) {
	if e.Action == "build-output" {
		builds[e.ImportPath] = append(builds[e.ImportPath], e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	t := test{e.Package, e.Test}
	o := r.tests[t]
	if o == nil {
		o = &outcome{}
		r.tests[t] = o
	}
	switch e.Action {
	case "output":
		o.output = append(o.output, e.Output)
	case "pass":
		o.ending = passed
	case "skip":
		o.ending = skipped
	case "fail":
		o.ending = failed
		o.output = append(o.output, builds[e.FailedBuild]...)
	}
}

// settle removes what only repeats something else: a package that did not fail,
// or failed because a test of it did, and a test that did not fail by itself and
// has subtests. What a removed failure printed goes to a failure below it: the
// stack of a panic is told by the parent.
func (r *run) settle() {
	hasBelow, failedBelow := map[test]bool{}, map[test]bool{}
	for t, o := range r.tests {
		for up, ok := t.parent(); ok; up, ok = up.parent() {
			hasBelow[up] = true
			failedBelow[up] = failedBelow[up] || o.ending == failed
		}
	}
	for _, t := range slices.SortedFunc(maps.Keys(r.tests), test.compare) {
		o := r.tests[t]
		if o.ending != failed || failedBelow[t] {
			continue
		}
		for up, ok := t.parent(); ok; up, ok = up.parent() {
			if above := r.tests[up]; above != nil {
				o.output = append(o.output, above.output...)
				above.output = nil
			}
		}
	}
	maps.DeleteFunc(r.tests, func(t test, o *outcome) bool {
		if o.ending == failed {
			return failedBelow[t]
		}
		r.ran[t] = hasBelow[t]
		return t.name == "" || hasBelow[t]
	})
}

// parent returns the test that t is a subtest of, or its package.
func (t test) parent() (up test, ok bool) {
	if t.name == "" {
		return test{}, false
	}
	i := max(strings.LastIndexByte(t.name, '/'), 0)
	return test{t.pkg, t.name[:i]}, true
}

// sum is what all runs together say.
type sum struct {
	passed   int
	failures []verdict
	skips    []verdict // in every run that met the test
}

// verdict is about one test in one run.
type verdict struct {
	test
	run string
	*outcome
}

func add(runs []*run) sum {
	var s sum
	did := map[test]ending{}
	skips := map[test]verdict{}
	for _, r := range runs {
		r.settle()
		for t, o := range r.tests {
			was, met := did[t]
			switch {
			case o.ending == failed:
				did[t] = failed
				s.failures = append(s.failures, verdict{t, r.name, o})
			case !met || was == skipped:
				did[t] = o.ending
			}
			if o.ending == skipped {
				skips[t] = verdict{t, r.name, o}
			}
		}
	}
	for t, e := range did {
		switch {
		case e == passed:
			s.passed++
		case e == skipped && !slices.ContainsFunc(runs, func(r *run) bool { return r.ran[t] }):
			s.skips = append(s.skips, skips[t])
		}
	}
	order := func(a, b verdict) int {
		return cmp.Or(cmp.Compare(a.run, b.run), a.test.compare(b.test))
	}
	slices.SortFunc(s.failures, order)
	slices.SortFunc(s.skips, order)
	return s
}

// report tells the sum and whether it is good.
func (s sum) report(w io.Writer, allowed *regexp.Regexp) bool {
	bad := map[test]bool{}
	for _, v := range s.failures {
		bad[v.test] = true
		fmt.Fprintf(w, "FAIL  %s (%s)\n", v.test, v.run)
		for _, line := range v.lines() {
			fmt.Fprintln(w, line)
		}
	}
	skipped := 0
	for _, v := range s.skips {
		reason := strings.TrimSpace(strings.Join(v.lines(), ""))
		if allowed.MatchString(reason) {
			skipped++
			fmt.Fprintf(w, "skip  %s: %s\n", v.test, reason)
		} else {
			bad[v.test] = true
			fmt.Fprintf(w, "FAIL  %s ran nowhere: %s\n", v.test, reason)
		}
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", s.passed, len(bad), skipped)
	return len(bad) == 0
}

// frame matches what the testing package and go put around what a test prints.
var frame = regexp.MustCompile(`^\s*(=== |--- |(FAIL|PASS)$|FAIL\t|ok  \t|exit status |$)`)

// lines returns what the test itself printed.
func (o *outcome) lines() []string {
	var lines []string
	for line := range strings.Lines(strings.Join(o.output, "")) {
		if line = strings.TrimRight(line, "\n"); !frame.MatchString(line) {
			lines = append(lines, line)
		}
	}
	return lines
}
