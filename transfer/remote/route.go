package remote

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
)

// Route is a home on another host: a remote line of data/secondmates.md.
type Route struct {
	ID    string
	Alias string // of the host, for ssh
	Root  string // of the programs there: absolute, clean
	Home  string // the same

	line int
}

const (
	routesName     = "secondmates.md"
	maxRoutesBytes = 1 << 20
)

// ReadRoutes reads the remote lines of the home's data/secondmates.md; none when
// there is no such file. A malformed line refuses the whole file: it may be the
// one that was meant.
//
// Errors: route-invalid naming the line; route-ambiguous for an id on two of
// them, and for a line that can be read as two routes; owner-mismatch, mode-unsafe,
// link-unsafe, path-unsafe; io.
func ReadRoutes(h *home.Home) ([]Route, error) {
	dir, err := h.Open("data")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	text, err := readRoutes(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	routes, err := parseRoutes(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", fault.Path(filepath.Join(dir.Path(), routesName)), err)
	}
	return routes, nil
}

// readRoutes reads the file, which is written by hand and may have any mode
// that lets nobody else choose where our commands go.
func readRoutes(dir *dirfd.Dir) ([]byte, error) {
	path := filepath.Join(dir.Path(), routesName)
	file, info, err := dir.OpenFile(routesName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, err
	case errors.Is(err, dirfd.ErrLink), errors.Is(err, dirfd.ErrNotRegular):
		return nil, fault.New(fault.LinkUnsafe, "%s is not a regular file; put the file itself there", fault.Path(path))
	case err != nil:
		return nil, fault.Wrap(fault.IO, err, "cannot open %s", fault.Path(path))
	}
	defer file.Close()
	if int(info.UID) != os.Geteuid() {
		return nil, fault.New(fault.OwnerMismatch, "%s belongs to uid %d, not to you (uid %d)", fault.Path(path), info.UID, os.Geteuid())
	}
	if info.Perm()&0o022 != 0 {
		return nil, fault.New(fault.ModeUnsafe, "%s has mode %04o: others may write to it; run: chmod go-w %[1]s", fault.Path(path), info.Perm())
	}
	text, err := io.ReadAll(io.LimitReader(file, maxRoutesBytes+1))
	if err == nil && len(text) > maxRoutesBytes {
		return nil, fault.New(fault.RouteInvalid, "%s is larger than %d bytes", fault.Path(path), maxRoutesBytes)
	}
	return text, fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(path))
}

func parseRoutes(text []byte) ([]Route, error) {
	var routes []Route
	at := map[string]int{}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		r, remote, err := parseLine(strings.TrimSuffix(string(line), "\n"))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if !remote {
			continue
		}
		if other, taken := at[r.ID]; taken {
			return nil, fault.New(fault.RouteAmbiguous, "lines %d and %d have the same id %s; give one of them another", other, number, r.ID)
		}
		r.line = number
		at[r.ID] = number
		routes = append(routes, r)
	}
	return routes, nil
}

// grammar is the two forms of a line. Summary, scope and projects are prose and
// may hold anything, also what looks like the fixed words. So the summary takes as
// much as it can, which finds the fixed words from the end, and root and home as
// little as they can. head is what makes a line a second route if it is in prose.
type grammar struct{ remote, head, local, localEnd, fixedWords *regexp.Regexp }

// remoteParts are the remote form in the order of the line, each with what a line
// that goes wrong there is told.
var remoteParts = []struct{ pattern, must string }{
	{`^- (\S+) - .* `, "it must begin with - <id> - <summary>"},
	{`\(host: (\S+)`, "(host: <alias> must come after the summary"},
	{`; root: (/.*?)`, "; root: must come after the host, and be an absolute path"},
	{`; home: (/.*?)`, "; home: must come after the root, and be an absolute path"},
	{`; scope: .*`, "; scope: must come after the home"},
	{`; projects: .*`, "; projects: must come after the scope"},
	{`; added (\d{4}-\d\d-\d\d)\)$`, "it must end with ; added <yyyy-mm-dd>)"},
}

// wrongPart tells what is wrong in a line that the remote form does not match.
func wrongPart(line string) string {
	pattern := ""
	for _, part := range remoteParts {
		if pattern += part.pattern; !regexp.MustCompile(pattern).MatchString(line) {
			return part.must
		}
	}
	return ""
}

// lines is compiled by whoever reads routes, and by no other command.
var lines = sync.OnceValue(func() grammar {
	remote := ""
	for _, part := range remoteParts {
		remote += part.pattern
	}
	return grammar{
		remote:     regexp.MustCompile(remote),
		head:       regexp.MustCompile(`^\S+; root: /.*?; home: /.*?; scope: `),
		local:      regexp.MustCompile(`^- \S+ - .*$`),
		localEnd:   regexp.MustCompile(` \(home: /[^;]*; scope: .*; projects: .*; added \d{4}-\d\d-\d\d\)$`),
		fixedWords: regexp.MustCompile(`\b(host|root): `),
	}
})

// parseLine reads one line; remote reports whether it is a route. A line that
// does not start with "- " is text for people.
func parseLine(line string) (r Route, remote bool, err error) {
	if !strings.HasPrefix(line, "- ") {
		return r, false, nil
	}
	if strings.HasSuffix(line, "\r") {
		return r, false, fault.New(fault.RouteInvalid, "ends in CR LF; save the file with plain LF line ends")
	}
	g := lines()
	m := g.remote.FindStringSubmatch(line)
	if m == nil {
		if g.local.MatchString(line) && (!g.fixedWords.MatchString(line) || g.localEnd.MatchString(line)) {
			return r, false, nil
		}
		return r, false, fault.New(fault.RouteInvalid, "%s; a remote line is: - <id> - <summary> (host: <alias>; root: <dir>; home: <dir>; scope: <text>; projects: <text>; added <yyyy-mm-dd>)", wrongPart(line))
	}
	r = Route{ID: m[1], Alias: m[2], Root: m[3], Home: m[4]}
	if g.heads(line) > 1 || strings.Contains(r.Root+r.Home, headBegin) {
		return r, false, fault.New(fault.RouteAmbiguous, `can be read as more than one route: "(host: …; root: …; home: …; scope: …" stands in it more than once; put the other one in other words`)
	}
	return r, true, r.check(m[5])
}

const headBegin = " (host: "

// heads counts what a route can begin with, down to its prose: if a line has more
// than one, it can be read as more than one route.
func (g grammar) heads(line string) int {
	n := 0
	for part := range strings.SplitSeq(line[:strings.LastIndex(line, "; projects: ")+len("; ")], headBegin) {
		if g.head.MatchString(part) {
			n++
		}
	}
	return n
}

func (r Route) check(added string) error {
	for _, word := range []struct{ what, text string }{{"id", r.ID}, {"host", r.Alias}} {
		if !isName(word.text) {
			return fault.New(fault.RouteInvalid, `%s %s: must be of A-Z, a-z, 0-9, ".", "_" and "-", not starting with "-"`, word.what, fault.Path(word.text))
		}
	}
	for _, dir := range []struct{ what, path string }{{"root", r.Root}, {"home", r.Home}} {
		if must := checkDir(dir.path); must != "" {
			return fault.New(fault.RouteInvalid, "%s %s: must be %s", dir.what, fault.Path(dir.path), must)
		}
	}
	if contains(r.Root, r.Home) || contains(r.Home, r.Root) {
		return fault.New(fault.RouteInvalid, "root %s and home %s: must be separate, neither in the other", fault.Path(r.Root), fault.Path(r.Home))
	}
	if _, err := time.Parse(time.DateOnly, added); err != nil {
		return fault.New(fault.RouteInvalid, "added %s: there is no such day", added)
	}
	return nil
}

// Find returns the route that word names: the id of one, else the host alias
// that exactly one uses. The id comes first, or a home whose id is its host's
// name could not be reached once a second home is there.
//
// Errors: usage for a word that names none in form, route-missing,
// route-ambiguous.
func Find(routes []Route, word string) (Route, error) {
	if !isName(word) {
		return Route{}, fault.New(fault.Usage, `route %s: must be of A-Z, a-z, 0-9, ".", "_" and "-", not starting with "-"`, fault.Path(word))
	}
	var onHost []Route
	for _, r := range routes {
		if r.ID == word {
			return r, nil
		}
		if r.Alias == word {
			onHost = append(onHost, r)
		}
	}
	switch len(onHost) {
	case 0:
		return Route{}, fault.New(fault.RouteMissing, "no remote line of data/%s has the id or the host %s", routesName, word)
	case 1:
		return onHost[0], nil
	}
	return Route{}, fault.New(fault.RouteAmbiguous, "the host %s has more than one home; name the one meant by its id: %s", word, strings.Join(IDs(onHost), ", "))
}

// IDs returns the ids of routes, in their order.
func IDs(routes []Route) []string {
	words := make([]string, len(routes))
	for i, r := range routes {
		words[i] = r.ID
	}
	return words
}
