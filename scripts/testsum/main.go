// Command testsum adds up runs of tests, told as the events of `go test -json`:
// what failed, with its output; what was skipped everywhere; and, as the last
// line, "<n> passed, <n> failed, <n> skipped".
//
//	testsum [-allow-skip REGEXP] EVENTS…
//
// Each file is one run and named for it. A test counts once, whatever the number
// of runs: it failed if it failed in one of them, passed if it passed in one, and
// was skipped if no run ran it. A test that was skipped is a test that nobody
// ran, so it is counted as failed, unless the reason it gave matches REGEXP.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

func main() {
	allow := flag.String("allow-skip", "", "count a skip whose reason matches `REGEXP` as skipped, not as failed")
	flag.Parse()
	allowed := regexp.MustCompile(`^\b$`) // nothing
	if *allow != "" {
		var err error
		if allowed, err = regexp.Compile(*allow); err != nil {
			fmt.Fprintln(os.Stderr, "testsum:", err)
			os.Exit(2)
		}
	}

	var runs []*run
	for _, path := range flag.Args() {
		r, err := readFile(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, "testsum:", err)
			os.Exit(2)
		}
		runs = append(runs, r)
	}
	if !add(runs).report(os.Stdout, allowed) {
		os.Exit(1)
	}
}

func readFile(path string) (*run, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return read(filepath.Base(path), f)
}
