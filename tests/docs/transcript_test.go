// Package docs_test keeps the documents true: it runs what they show, and holds
// what they list against the code.
//
// # Transcripts
//
// A block that is fenced as "console" is a transcript. Each line that begins
// with "$ " is typed into one shell for the whole document, in the root of the
// project, with an empty HOME; a line that ends in a backslash goes on in the
// next. What follows is what it must print, stdout and stderr together, where
//
//   - /home/op stands for HOME,
//   - hex digits and an ellipsis stand for a whole digest, the same one wherever
//     the document shows the same digits, in what is typed too,
//   - a number of ten digits stands for any, a time,
//   - a line with nothing but an ellipsis stands for any lines.
//
// A command may fail only where the document shows its error line. In a block
// fenced as "console wait" each command is repeated until it prints what is
// shown. A block whose fence says file=PATH is written to that file in HOME.
package docs_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const root = "../.."

// bin is the directory of the built programs.
var bin string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if bin = os.Getenv("HAWSER_BIN"); bin == "" {
		dir, err := os.MkdirTemp("", "hawser-docs.")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		build := exec.Command("go", "build", "-buildvcs=false", "-o", dir+"/", "./cmd/...")
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s%v\n", out, err)
			return 1
		}
		bin = dir
	}
	return m.Run()
}

func TestTranscripts(t *testing.T) {
	for _, name := range documents(t) {
		blocks := read(t, name)
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			s := newSession(t)
			for _, b := range blocks {
				if file, ok := strings.CutPrefix(b.option, "file="); ok {
					s.write(file, strings.Join(b.lines, "\n")+"\n")
				} else if b.language == "console" {
					s.replay(name, b)
				}
			}
		})
	}
}

// A person follows one page after another: what a page begins with can be typed
// in the HOME that others were followed in.
func TestPagesInOneHome(t *testing.T) {
	s := newSession(t)
	for range 2 {
		for _, name := range documents(t) {
			s.begin(name)
		}
	}
	if printed, status := s.run("diff -r examples/process-event-extension ~/file-signal"); status != 0 {
		t.Errorf("~/file-signal is not the example any more:\n%s", strings.Join(printed, "\n"))
	}
}

// begin follows a page to the end of its first transcript.
func (s *session) begin(name string) {
	s.t.Helper()
	for _, b := range read(s.t, name) {
		if file, ok := strings.CutPrefix(b.option, "file="); ok {
			s.write(file, strings.Join(b.lines, "\n")+"\n")
		} else if b.language == "console" {
			s.replay(name, b)
			return
		}
	}
}

// documents are the pages that this test keeps, relative to the root.
func documents(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob(root + "/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"README.md"}
	for _, page := range pages {
		names = append(names, "docs/"+filepath.Base(page))
	}
	return names
}

// block is one fenced block.
type block struct {
	language, option string
	line             int // of its first line, from 1
	lines            []string
}

func read(t *testing.T, name string) []block {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []block
	var open *block
	for i, line := range strings.Split(string(text), "\n") {
		switch {
		case open == nil && strings.HasPrefix(line, "```"):
			language, option, _ := strings.Cut(line[3:], " ")
			open = &block{language: language, option: option, line: i + 2}
		case open != nil && line == "```":
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.lines = append(open.lines, line)
		}
	}
	if open != nil {
		t.Fatalf("%s:%d: the block has no end", name, open.line)
	}
	return blocks
}

// step is a command and what it must print.
type step struct {
	line    int
	command string
	shown   []string
}

func (b block) steps() (steps []step) {
	goesOn := false
	for i, line := range b.lines {
		command, typed := strings.CutPrefix(line, "$ ")
		switch {
		case goesOn:
			steps[len(steps)-1].command += "\n" + line
		case typed:
			steps = append(steps, step{line: b.line + i, command: command})
		case len(steps) > 0:
			last := &steps[len(steps)-1]
			last.shown = append(last.shown, line)
			continue
		}
		goesOn = strings.HasSuffix(line, `\`)
	}
	return steps
}

// session is one shell in a HOME of its own.
type session struct {
	t       *testing.T
	home    string
	stdin   io.WriteCloser
	output  *os.File
	lines   *bufio.Reader
	digests digests
}

func newSession(t *testing.T) *session {
	t.Helper()
	home, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	programs, err := filepath.Abs(bin)
	if err != nil {
		t.Fatal(err)
	}
	shell := exec.Command("bash", "--norc", "--noprofile")
	shell.Dir = root
	shell.Env = []string{"HOME=" + home, "PATH=" + programs + ":/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "LC_ALL=C.UTF-8", "TMPDIR=" + os.TempDir()}
	output, far, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	shell.Stdout, shell.Stderr = far, far
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := shell.StdinPipe()
	if err == nil {
		err = shell.Start()
	}
	far.Close()
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, home: home, stdin: stdin, output: output, lines: bufio.NewReader(output), digests: digests{}}
	t.Cleanup(func() {
		stdin.Close()
		if t.Failed() { // what was typed last may never end
			_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
		}
		_ = shell.Wait()
		output.Close()
		s.sweep(shell.Env)
	})
	// Many systems have this mask; a document must work there.
	s.run("umask 002")
	return s
}

// sweep ends what a document left running and makes installed packages
// removable.
func (s *session) sweep(env []string) {
	homes, _ := filepath.Glob(s.home + "/*/state")
	for _, state := range homes {
		sweep := exec.Command(filepath.Join(bin, "fm-procevent"), "sweep-home")
		sweep.Env = append(env, "FM_HOME="+filepath.Dir(state))
		if out, err := sweep.CombinedOutput(); err != nil {
			s.t.Errorf("sweep-home: %v\n%s", err, out)
		}
	}
	_ = filepath.WalkDir(s.home, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o700)
		}
		return err
	})
}

func (s *session) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.home, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// replay types a block's commands and compares.
func (s *session) replay(name string, b block) {
	s.t.Helper()
	for _, step := range b.steps() {
		command, err := s.digests.fill(step.command)
		if err != nil {
			s.t.Fatalf("%s:%d: %v", name, step.line, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		for {
			printed, status := s.run(command)
			bound, same := s.digests.match(step.shown, printed)
			refused := strings.Contains("\n"+strings.Join(step.shown, "\n"), "\nerror[")
			if same && (status == 0 || refused) {
				s.digests = bound
				break
			}
			if b.option == "wait" && ctx.Err() == nil {
				time.Sleep(20 * time.Millisecond)
				continue
			}
			s.t.Fatalf("%s:%d: $ %s\nprints (status %d)\n%s\nnot\n%s", name, step.line, step.command, status,
				strings.Join(printed, "\n"), strings.Join(step.shown, "\n"))
		}
	}
}

// run types one command and returns what it printed, a line each, with /home/op
// for HOME, and its exit status.
func (s *session) run(command string) (printed []string, status int) {
	s.t.Helper()
	const marker = "--- exit status "
	_ = s.output.SetReadDeadline(time.Now().Add(2 * time.Minute))
	if _, err := fmt.Fprintf(s.stdin, "{\n%s\n} </dev/null; printf '\\n%s%%d\\n' $?\n", command, marker); err != nil {
		s.t.Fatal(err)
	}
	var text strings.Builder
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			s.t.Fatalf("$ %s\n%sthen: %v", command, text.String(), err)
		}
		if number, ok := strings.CutPrefix(line, marker); ok {
			status, err = strconv.Atoi(strings.TrimSpace(number))
			if err != nil {
				s.t.Fatal(err)
			}
			break
		}
		text.WriteString(line)
	}
	all := strings.ReplaceAll(text.String(), s.home, "/home/op")
	all = strings.TrimSuffix(strings.TrimSuffix(all, "\n"), "\n") // the marker's own, and the last line's
	if all == "" {
		return nil, status
	}
	return strings.Split(all, "\n"), status
}

// digests are the hex digits that the abbreviations of a document stand for.
type digests map[string]string

var (
	abbreviated = regexp.MustCompile(`([0-9a-f]{4,})…`)
	placeholder = regexp.MustCompile(`[0-9a-f]{4,}…|\b[0-9]{10}\b`)
)

// fill puts whole digests into a command.
func (d digests) fill(command string) (string, error) {
	var err error
	filled := abbreviated.ReplaceAllStringFunc(command, func(short string) string {
		digits, ok := d[short]
		if !ok {
			err = fmt.Errorf("%s was not printed before", short)
		}
		return digits
	})
	return filled, err
}

// match compares what is shown with what was printed, and returns the digests
// that are known then.
func (d digests) match(shown, printed []string) (digests, bool) {
	if len(shown) == 0 {
		return d, len(printed) == 0
	}
	if shown[0] == "…" {
		for i := range len(printed) + 1 {
			if bound, ok := d.match(shown[1:], printed[i:]); ok {
				return bound, true
			}
		}
		return nil, false
	}
	if len(printed) == 0 {
		return nil, false
	}
	bound, ok := d.matchLine(shown[0], printed[0])
	if !ok {
		return nil, false
	}
	return bound.match(shown[1:], printed[1:])
}

func (d digests) matchLine(shown, printed string) (digests, bool) {
	var pattern strings.Builder
	var names []string
	rest := 0
	for _, at := range placeholder.FindAllStringIndex(shown, -1) {
		pattern.WriteString(regexp.QuoteMeta(shown[rest:at[0]]))
		name := shown[at[0]:at[1]]
		if strings.HasSuffix(name, "…") {
			pattern.WriteString(`([0-9a-f]{64})`)
		} else {
			pattern.WriteString(`([0-9]{10})`)
			name = "" // a time stands for itself
		}
		names = append(names, name)
		rest = at[1]
	}
	pattern.WriteString(regexp.QuoteMeta(shown[rest:]))
	values := regexp.MustCompile("^" + pattern.String() + "$").FindStringSubmatch(printed)
	if values == nil {
		return nil, false
	}
	bound := maps.Clone(d)
	for i, name := range names {
		value := values[i+1]
		if known, ok := bound[name]; ok && known != value {
			return nil, false
		}
		if name != "" {
			bound[name] = value
		}
	}
	return bound, true
}
