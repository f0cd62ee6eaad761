package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"hawser/tests/hometest"
)

// TestScripts runs testdata/script: what each command prints, how it exits, and
// what it leaves. A script has a home of its own, $FM_HOME, and these commands
// besides testscript's:
//
//	package DIR [kind=K] [id=I] [version=V] [adapters=A,B] [consents=C,D]
//	                      makes a package (package hometest)
//	edit FILE OLD NEW     replaces the first OLD in a file; \n is a line's end
//	refused CODE COMMAND  runs a command that must be refused: exit 1 (2 for
//	                      usage), an empty stdout, and one line with the code
//	status N COMMAND      runs a command that must exit with N
//	event ADAPTER OPERATION [ARG...]
//	                      as COMMAND: fm-extension process-event, which expects
//	                      $ID, $VERSION, $PACKAGE and $BINDING
//	grab NAME REGEXP      sets a variable to what the group in REGEXP matches in
//	                      the last stdout
//	modes MODE PATH...    checks permissions
//	snapshot FILE DIR     writes what is below a directory to a file
//	atrest                checks that nothing temporary is left in the home
//
// and conditions: [root], [shm] ($SHM is on another file system than $WORK).
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:       "testdata/script",
		Condition: condition,
		Setup: func(env *testscript.Env) error {
			home := filepath.Join(env.WorkDir, "home")
			env.Setenv("FM_HOME", home)
			env.Setenv("GORACE", os.Getenv("GORACE"))
			none := "sha256:" + strings.Repeat("0", 64)
			for name, value := range map[string]string{
				"ID": "org.example.sh", "VERSION": "1.0.0", "PACKAGE": none, "BINDING": none, "NONE": none,
			} {
				env.Setenv(name, value)
			}
			if ok, err := condition("shm"); err != nil || !ok {
				return errors.Join(err, os.Mkdir(home, 0o700))
			}
			shm, err := os.MkdirTemp("/dev/shm", "hawser-test-")
			if err != nil {
				return err
			}
			env.Setenv("SHM", shm)
			env.Defer(func() { _ = hometest.Remove(shm) })
			return os.Mkdir(home, 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"package":  scriptPackage,
			"edit":     scriptEdit,
			"refused":  scriptRefused,
			"status":   scriptStatus,
			"grab":     scriptGrab,
			"modes":    scriptModes,
			"snapshot": scriptSnapshot,
			"atrest":   scriptAtRest,
		},
	})
}

func condition(name string) (bool, error) {
	switch name {
	case "root":
		return os.Geteuid() == 0, nil
	case "shm":
		var here, shm unix.Stat_t
		if err := unix.Stat(os.TempDir(), &here); err != nil {
			return false, err
		}
		return unix.Stat("/dev/shm", &shm) == nil && here.Dev != shm.Dev && unix.Access("/dev/shm", unix.W_OK) == nil, nil
	}
	return false, fmt.Errorf("no such condition")
}

func positive(ts *testscript.TestScript, neg bool, args []string, least int, usage string) {
	if neg || len(args) < least {
		ts.Fatalf("usage: %s", usage)
	}
}

func scriptPackage(ts *testscript.TestScript, neg bool, args []string) {
	positive(ts, neg, args, 1, "package DIR [key=value...]")
	var p hometest.Package
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		switch key {
		case "kind":
			p.Kind = value
		case "id":
			p.ID = value
		case "version":
			p.Version = value
		case "adapters":
			p.Adapters = strings.Split(value, ",")
		case "consents":
			p.Consents = strings.Split(value, ",")
		default:
			ts.Fatalf("package: %s?", key)
		}
	}
	ts.Check(p.Write(ts.MkAbs(args[0])))
}

func scriptEdit(ts *testscript.TestScript, neg bool, args []string) {
	positive(ts, neg, args, 3, "edit FILE OLD NEW")
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], `\n`, "\n")
	}
	path := ts.MkAbs(args[0])
	data, err := os.ReadFile(path)
	ts.Check(err)
	if !strings.Contains(string(data), args[1]) {
		ts.Fatalf("%s does not hold %q", args[0], args[1])
	}
	info, err := os.Stat(path)
	ts.Check(err)
	ts.Check(os.Chmod(path, 0o600))
	ts.Check(os.WriteFile(path, []byte(strings.Replace(string(data), args[1], args[2], 1)), 0o600))
	ts.Check(os.Chmod(path, info.Mode()))
}

// exitStatus runs a command and returns its status.
func exitStatus(ts *testscript.TestScript, args []string) int {
	if args[0] == "event" {
		args = append(append([]string{"fm-extension", "process-event"}, args[1:]...),
			"--expect-extension", ts.Getenv("ID"), "--expect-version", ts.Getenv("VERSION"), "--expect-capability-version", "1",
			"--expect-package-digest", ts.Getenv("PACKAGE"), "--expect-binding-digest", ts.Getenv("BINDING"))
	}
	err := ts.Exec(args[0], args[1:]...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	ts.Check(err)
	return 0
}

func scriptStatus(ts *testscript.TestScript, neg bool, args []string) {
	positive(ts, neg, args, 2, "status N COMMAND [ARG...]")
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := exitStatus(ts, args[1:]); got != want {
		ts.Fatalf("exit status %d, not %d", got, want)
	}
}

func scriptRefused(ts *testscript.TestScript, neg bool, args []string) {
	positive(ts, neg, args, 2, "refused CODE COMMAND [ARG...]")
	want := 1
	if args[0] == "usage" {
		want = 2
	}
	if got := exitStatus(ts, args[1:]); got != want {
		ts.Fatalf("exit status %d, not %d", got, want)
	}
	if out := ts.ReadFile("stdout"); out != "" {
		ts.Fatalf("a refusal prints nothing to stdout, but: %q", out)
	}
	line, rest, ended := strings.Cut(ts.ReadFile("stderr"), "\n")
	if !strings.HasPrefix(line, "error["+args[0]+"]: ") || rest != "" || !ended {
		ts.Fatalf("not one line error[%s], but: %q", args[0], ts.ReadFile("stderr"))
	}
}

func scriptGrab(ts *testscript.TestScript, neg bool, args []string) {
	positive(ts, neg, args, 2, "grab NAME REGEXP")
	re, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	match := re.FindStringSubmatch(ts.ReadFile("stdout"))
	if len(match) != 2 {
		ts.Fatalf("no match for one group of %s in %q", args[1], ts.ReadFile("stdout"))
	}
	ts.Setenv(args[0], match[1])
}

func scriptModes(ts *testscript.TestScript, neg bool, args []string) {
	positive(ts, neg, args, 2, "modes MODE PATH...")
	want, err := strconv.ParseUint(args[0], 8, 12)
	ts.Check(err)
	for _, path := range args[1:] {
		info, err := os.Lstat(ts.MkAbs(path))
		ts.Check(err)
		if got := info.Mode() & (fs.ModePerm | fs.ModeSetgid | fs.ModeSetuid | fs.ModeSticky); got != fs.FileMode(want) {
			ts.Fatalf("%s has mode %v, not %04o", path, got, want)
		}
	}
}

func scriptSnapshot(ts *testscript.TestScript, neg bool, args []string) {
	positive(ts, neg, args, 2, "snapshot FILE DIR")
	text, err := hometest.Snapshot(ts.MkAbs(args[1]))
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

func scriptAtRest(ts *testscript.TestScript, neg bool, args []string) {
	left, err := hometest.Leftovers(ts.Getenv("FM_HOME"))
	ts.Check(err)
	if neg != (len(left) > 0) {
		ts.Fatalf("left in the home: %q", left)
	}
}
