// Package architecture_test holds the rule that no compiler holds: imports go
// one way, and a room knows only the rooms that it is built on.
package architecture_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "hawser/"

// ground is what every room may stand on; these four know each other in this order.
var ground = []string{"internal/fault", "internal/dirfd", "internal/wire", "internal/strictjson"}

// rooms says what each room may import besides the ground. What is not listed is
// forbidden: a new edge is a decision, made here.
var rooms = map[string][]string{
	"internal/home":  {},
	"internal/cli":   {"internal/home"},
	"tree":           {},
	"cas":            {"internal/home", "tree"},
	"binding":        {"tree", "cas"},
	"invoke/process": {},
	"invoke/adapter": {},
	"invoke":         {"internal/home", "tree", "cas", "binding", "invoke/process"},
	"forge":          {"invoke/process"},
	"lifecycle":      {"internal/home", "tree", "cas", "binding", "invoke", "invoke/process"},
	"transfer":       {"internal/home", "tree", "cas", "binding", "invoke", "invoke/process", "lifecycle"},
	"procevent":      {"internal/home", "binding", "invoke", "invoke/process", "lifecycle"},
	"cmd": {
		"internal/home", "internal/cli", "tree", "cas", "binding", "invoke", "invoke/process", "invoke/adapter",
		"lifecycle", "transfer", "procevent", "forge",
	},
	"examples": {"invoke/adapter", "forge"},
}

// free may import everything and is imported by nothing.
var free = []string{"scripts", "tests"}

// roomOf returns the room that a package, named relative to the module, is in:
// the longest name in the table that is the package or above it.
func roomOf(pkg string) string {
	for name := pkg; name != "."; name = path.Dir(name) {
		if _, ok := rooms[name]; ok || slices.Contains(ground, name) || slices.Contains(free, name) {
			return name
		}
	}
	return ""
}

func mayImport(from, to string) bool {
	if from == to || slices.Contains(free, from) {
		return true
	}
	if i := slices.Index(ground, from); i >= 0 {
		return slices.Contains(ground[:i], to)
	}
	return slices.Contains(ground, to) || slices.Contains(rooms[from], to)
}

func TestImportsGoOneWay(t *testing.T) {
	const root = "../.."
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == ".git" || d.Name() == "vendor") {
			return fs.SkipDir
		}
		// A test may look at its room from above.
		if d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		from := roomOf(filepath.ToSlash(filepath.Dir(rel)))
		if from == "" {
			t.Errorf("%s is in no room: add it to the table in this test and to the architecture page", rel)
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range f.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			pkg, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			if to := roomOf(pkg); to == "" || !mayImport(from, to) {
				t.Errorf("%s imports %s: %s must not know it", rel, pkg, from)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
