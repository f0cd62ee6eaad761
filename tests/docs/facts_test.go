package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The manual of errors has exactly the codes that there are.
func TestErrorCodes(t *testing.T) {
	codes := map[string]bool{}
	for _, file := range parseDir(t, "internal/fault") {
		for _, decl := range file.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			for _, spec := range group.Specs {
				value := spec.(*ast.ValueSpec)
				if name, ok := value.Type.(*ast.Ident); ok && name.Name == "Code" {
					codes[literal(t, value.Values[0])] = true
				}
			}
		}
	}
	told := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(text(t, "docs/errors.md"), -1) {
		if told[row[1]] {
			t.Errorf("docs/errors.md tells of %s twice", row[1])
		}
		told[row[1]] = true
	}
	if len(codes) < 50 {
		t.Fatalf("only %d codes were found", len(codes))
	}
	compare(t, "docs/errors.md, codes", told, codes)
}

// The pages tell of every variable of ours that the programs read, and of no
// other.
func TestEnvironmentVariables(t *testing.T) {
	read := map[string]bool{}
	ours := regexp.MustCompile(`^(FM|CODEX)_[A-Z_]*[A-Z]$`)
	eachFile(t, func(_ string, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			if basic, ok := n.(*ast.BasicLit); ok && basic.Kind == token.STRING {
				if value := literal(t, basic); ours.MatchString(value) {
					read[value] = true
				}
			}
			return true
		})
	})
	told := map[string]bool{}
	for _, name := range regexp.MustCompile("`((?:FM|CODEX)_[A-Z_]+)`").FindAllStringSubmatch(allText(t), -1) {
		told[name[1]] = true
	}
	compare(t, "the pages, variables", told, read)
}

// The pages tell of every program, command and option; each --help has an
// example; and what the pages tell of is there.
func TestCommands(t *testing.T) {
	programs, err := os.ReadDir(root + "/cmd")
	if err != nil {
		t.Fatal(err)
	}
	pages := allText(t)
	for _, dir := range programs {
		program := dir.Name()
		if !strings.Contains(pages, "`"+program+"`") {
			t.Errorf("no page tells of the program %s", program)
		}
		if _, err := os.Stat(filepath.Join(bin, program)); err != nil {
			t.Errorf("%s is not among the built programs", program)
			continue
		}
		out, err := exec.Command(filepath.Join(bin, program), "--version").Output()
		if name, version, _ := strings.Cut(string(out), " "); err != nil || name != program || version == "" {
			t.Errorf("%s --version: %v, %q", program, err, out)
		}
		known := map[string]bool{"completion": true}
		for _, command := range append([]string{""}, subcommands(help(t, program))...) {
			known[command] = true
			checkHelp(t, pages, program, command)
		}
		if len(known) == 2 {
			continue // the program is its only command
		}
		typed := regexp.MustCompile("[`$(] ?" + program + ` ([a-z][a-z-]*)`)
		for _, m := range typed.FindAllStringSubmatch(pages, -1) {
			if !known[m[1]] {
				t.Errorf("the pages tell of %s %s, which is no command", program, m[1])
			}
		}
	}
}

func checkHelp(t *testing.T, pages, program, command string) {
	t.Helper()
	name := strings.TrimSpace(program + " " + command)
	if !strings.Contains(pages, name) {
		t.Errorf("no page tells of %s", name)
	}
	text := help(t, program, command)
	if !strings.Contains(text, "\nExamples:\n") && strings.Contains(text, "\nUsage:\n") {
		t.Errorf("%s --help has no example", name)
	}
	for _, option := range regexp.MustCompile(`(?m)^ {6}(--[a-z-]+)`).FindAllStringSubmatch(text, -1) {
		if !regexp.MustCompile(regexp.QuoteMeta(option[1]) + `\b`).MatchString(pages) {
			t.Errorf("no page tells of %s %s", name, option[1])
		}
	}
}

func help(t *testing.T, program string, command ...string) string {
	t.Helper()
	args := append(slices.DeleteFunc(command, func(s string) bool { return s == "" }), "--help")
	out, err := exec.Command(filepath.Join(bin, program), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// subcommands reads them off a --help, but for those that every program has.
func subcommands(help string) (names []string) {
	_, list, ok := strings.Cut(help, "\nAvailable Commands:\n")
	if !ok {
		return nil
	}
	for line := range strings.Lines(list) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" {
			return names
		}
		if name != "completion" && name != "help" {
			names = append(names, name)
		}
	}
	return names
}

// Links lead to files, and to headings of pages.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, page := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(prose(text(t, page)), -1) {
			target, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			to := page
			if target != "" {
				to = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
			} else if heading != "" && !slices.Contains(anchors(text(t, to)), heading) {
				t.Errorf("%s links to %s, and there is no such heading", page, m[1])
			}
		}
	}
}

// prose is a page without its fenced blocks.
func prose(page string) string {
	return regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(page, "")
}

// anchors are the names of a page's headings, as the forges make them.
func anchors(page string) (names []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(prose(page), -1) {
		name := strings.ToLower(heading[1])
		name = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(name, "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// The architecture page has a sentence for every library, and every room.
func TestArchitecture(t *testing.T) {
	page := text(t, "docs/architecture.md")
	modules := required(t)
	used := map[string]bool{}
	rooms := map[string]bool{}
	eachFile(t, func(name string, file *ast.File) {
		if filepath.Base(name) == "doc.go" {
			rooms[filepath.ToSlash(filepath.Dir(name))] = true
		}
		for _, spec := range file.Imports {
			imported := literal(t, spec.Path)
			for _, module := range modules {
				if imported == module || strings.HasPrefix(imported, module+"/") {
					used[module] = true
				}
			}
		}
	})
	for _, module := range modules {
		if strings.Contains(text(t, "go.mod"), "tool "+module) {
			used[module] = true
		}
	}
	for module := range used {
		if !strings.Contains(page, "`"+module+"`") {
			t.Errorf("docs/architecture.md does not tell of the library %s", module)
		}
	}
	for room := range rooms {
		if !strings.Contains(page, "`"+room+"`") && !strings.Contains(room, "/internal/") {
			t.Errorf("docs/architecture.md does not tell of the room %s", room)
		}
	}
}

func required(t *testing.T) (modules []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^\s+(\S+) v`).FindAllStringSubmatch(text(t, "go.mod"), -1) {
		modules = append(modules, m[1])
	}
	if len(modules) == 0 {
		t.Fatal("go.mod requires nothing")
	}
	return modules
}

// The page of performance has every bar that is measured, and no other.
func TestBars(t *testing.T) {
	measured, told := map[string]bool{}, map[string]bool{}
	files, err := filepath.Glob(root + "/tests/bench/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		for _, m := range regexp.MustCompile(`bar\{name: "([a-z-]+)"`).FindAllStringSubmatch(text(t, "tests/bench/"+filepath.Base(file)), -1) {
			measured[m[1]] = true
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(text(t, "docs/performance.md"), -1) {
		told[row[1]] = true
	}
	compare(t, "docs/performance.md, bars", told, measured)
}

// What the pages tell to make can be made.
func TestMakeTargets(t *testing.T) {
	makefile := text(t, "Makefile")
	for _, m := range regexp.MustCompile("(?m)(?:^ *|`)make ([a-z]+)").FindAllStringSubmatch(allText(t), -1) {
		if !regexp.MustCompile(`(?m)^` + m[1] + `:`).MatchString(makefile) {
			t.Errorf("the pages tell of make %s, which there is not", m[1])
		}
	}
}

// compare reports what is on one side only.
func compare(t *testing.T, what string, told, is map[string]bool) {
	t.Helper()
	for name := range told {
		if !is[name] {
			t.Errorf("%s: %s is told of and there is none", what, name)
		}
	}
	for name := range is {
		if !told[name] {
			t.Errorf("%s: %s is not told of", what, name)
		}
	}
}

func text(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func allText(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, page := range documents(t) {
		all.WriteString(text(t, page))
	}
	return all.String()
}

// eachFile parses every Go file of the project; name is relative to the root.
func eachFile(t *testing.T, visit func(name string, file *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{".git", "testdata", "bin"}, d.Name()) && path != root {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err == nil {
			visit(name, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func parseDir(t *testing.T, dir string) (files []*ast.File) {
	t.Helper()
	eachFile(t, func(name string, file *ast.File) {
		if filepath.Dir(name) == dir && !strings.HasSuffix(name, "_test.go") {
			files = append(files, file)
		}
	})
	return files
}

func literal(t *testing.T, e ast.Expr) string {
	t.Helper()
	basic, ok := e.(*ast.BasicLit)
	if !ok {
		t.Fatalf("%T is no literal", e)
	}
	value, err := strconv.Unquote(basic.Value)
	if err != nil {
		t.Fatal(err)
	}
	return value
}
