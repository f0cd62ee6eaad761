package remote

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hawser/internal/cli"
	"hawser/internal/fault"
	"hawser/internal/home"
)

// TestMain lets this program be the far end, as the program of that name is.
func TestMain(m *testing.M) {
	if os.Getenv("REMOTE_TEST_FAR_END") != "" {
		cli.Main(farEnd())
	}
	os.Exit(m.Run())
}

type failer interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func must(t failer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t failer, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Fatalf("got %v (%s), want %s", err, fault.CodeOf(err), code)
	}
	if line := fault.Line(err); strings.ContainsAny(line, "\n\r") {
		t.Fatalf("not one line: %q", line)
	}
}

func temp(t testing.TB) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return path
}

func write(t failer, path, text string, mode os.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o600))
	must(t, os.Chmod(path, mode))
}

const harbor = "- harbor - the big one (host: harbor-host; root: /opt/fm; home: /home/op/fm; scope: all; projects: a, b; added 2026-01-31)\n"

func TestRoutes(t *testing.T) {
	want := Route{ID: "harbor", Alias: "harbor-host", Root: "/opt/fm", Home: "/home/op/fm"}
	for name, line := range map[string]string{
		"plain":             harbor,
		"no line end":       strings.TrimSuffix(harbor, "\n"),
		"empty prose":       "- harbor -  (host: harbor-host; root: /opt/fm; home: /home/op/fm; scope: ; projects: ; added 2026-01-31)",
		"parentheses":       strings.Replace(harbor, "the big one", "the (very) big :-) one (host: or not)", 1),
		"semicolons":        strings.Replace(harbor, "scope: all", "scope: this; that; home: sweet; root: cause", 1),
		"dashes":            strings.Replace(harbor, "the big one", "a - b - c", 1),
		"half a look-alike": strings.Replace(harbor, "the big one", "once (host: h; root: /r; home: /h)", 1),
		"another half":      strings.Replace(harbor, "projects: a, b", "projects: (host: h; root: /r; home: /h; scope: s)", 1),
		"fixed words":       strings.Replace(harbor, "scope: all", "scope: x; scope: y; projects: z; added 2020-01-01", 1),
		"text around":       "# Secondmates\n\nSee host: and root:.\n" + harbor + "\n* not one (host: x; root: y)\n  - indented\n-\n-x\n",
		"local ones":        "- near - at hand (home: /home/near; scope: x; projects: y; added 2026-01-01)\n" + harbor + "- old - without more\n",
		"local on hosts":    "- near - knows the root: of it (home: /home/near; scope: host: x; projects: y; added 2026-01-01)\n" + harbor,
	} {
		t.Run(name, func(t *testing.T) {
			routes, err := parseRoutes([]byte(line))
			must(t, err)
			if len(routes) != 1 {
				t.Fatalf("%d routes", len(routes))
			}
			routes[0].line = 0
			if routes[0] != want {
				t.Errorf("got %+v", routes[0])
			}
		})
	}
	for name, line := range map[string]string{
		"nothing":            "- ",
		"no summary":         "- harbor\n",
		"id":                 strings.Replace(harbor, "- harbor", "- -harbor", 1),
		"id with a slash":    strings.Replace(harbor, "- harbor", "- a/b", 1),
		"id with a space":    "- har bor (host: h; root: /r; home: /h; scope: s; projects: p; added 2026-01-31)",
		"alias option":       strings.Replace(harbor, "harbor-host", "-oProxyCommand=x", 1),
		"alias user":         strings.Replace(harbor, "harbor-host", "op@harbor", 1),
		"no host":            strings.Replace(harbor, "host: harbor-host; ", "", 1),
		"no root":            strings.Replace(harbor, "root: /opt/fm; ", "", 1),
		"no home":            strings.Replace(harbor, "home: /home/op/fm; ", "", 1),
		"home in root":       strings.Replace(harbor, "/home/op/fm", "/opt/fm/home", 1),
		"root in home":       strings.Replace(harbor, "/opt/fm", "/home/op/fm/root", 1),
		"the same place":     strings.Replace(harbor, "/opt/fm", "/home/op/fm", 1),
		"CR LF":              strings.TrimSpace(harbor) + "\r\n",
		"local with CR LF":   "- near - at hand\r\n",
		"no date":            strings.Replace(harbor, "; added 2026-01-31", "", 1),
		"another order":      strings.Replace(harbor, "root: /opt/fm; home: /home/op/fm", "home: /home/op/fm; root: /opt/fm", 1),
		"relative root":      strings.Replace(harbor, "/opt/fm", "opt/fm", 1),
		"root not clean":     strings.Replace(harbor, "/opt/fm", "/opt/../fm", 1),
		"home with a slash":  strings.Replace(harbor, "/home/op/fm", "/home/op/fm/", 1),
		"home with a tab":    strings.Replace(harbor, "/home/op/fm", "/home/\top/fm", 1),
		"no such day":        strings.Replace(harbor, "01-31", "02-30", 1),
		"something after it": strings.Replace(harbor, ")\n", ") \n", 1),
		"DOS line end":       strings.Replace(harbor, "\n", "\r\n", 1),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseRoutes([]byte("\n" + harbor + line))
			wantCode(t, err, fault.RouteInvalid)
			if !strings.Contains(err.Error(), "line 3") {
				t.Errorf("the line is not named: %v", err)
			}
		})
	}
	for part, line := range map[string]string{
		"it must begin with - <id>": "- harbor\n",
		"(host: <alias> must":       strings.Replace(harbor, "host: harbor-host; ", "", 1),
		"; root: must":              strings.Replace(harbor, "/opt/fm", "opt/fm", 1),
		"; home: must":              strings.Replace(harbor, "home: /home/op/fm; ", "", 1),
		"it must end with ; added":  strings.Replace(harbor, "; added 2026-01-31", "", 1),
	} {
		_, err := parseRoutes([]byte(line))
		if wantCode(t, err, fault.RouteInvalid); !strings.Contains(err.Error(), "line 1: "+part) {
			t.Errorf("%q: %v, which is not about %q", line, err, part)
		}
	}
	_, err := parseRoutes([]byte(harbor + harbor))
	wantCode(t, err, fault.RouteAmbiguous)
	for _, prose := range []string{"the big one", "scope: all", "projects: a, b"} {
		line := strings.Replace(harbor, prose, prose+strings.TrimPrefix(strings.TrimSpace(harbor), "- harbor - the big one"), 1)
		_, err := parseRoutes([]byte("\n" + line))
		wantCode(t, err, fault.RouteAmbiguous)
		if !strings.HasPrefix(err.Error(), "line 2: ") {
			t.Errorf("the line is not named: %v", err)
		}
	}
}

func TestFind(t *testing.T) {
	routes := []Route{{ID: "a", Alias: "one"}, {ID: "one", Alias: "two"}, {ID: "c", Alias: "two"}, {ID: "d", Alias: "three"}}
	for word, id := range map[string]string{"a": "a", "one": "one", "c": "c", "three": "d"} {
		r, err := Find(routes, word)
		must(t, err)
		if r.ID != id {
			t.Errorf("%s is %s", word, r.ID)
		}
	}
	_, err := Find(routes, "two")
	wantCode(t, err, fault.RouteAmbiguous)
	if !strings.Contains(err.Error(), "one, c") {
		t.Errorf("the choice is not named: %v", err)
	}
	_, err = Find(routes, "none")
	wantCode(t, err, fault.RouteMissing)
	for _, word := range []string{"", "-a", "a b", "a/b", "a\n", "ä"} {
		_, err = Find(routes, word)
		wantCode(t, err, fault.Usage)
	}
}

// TestRoutesHoldAnyProse: whatever summary, scope and projects say, a line is the
// route that was meant, or refused because it can be read as another.
func TestRoutesHoldAnyProse(t *testing.T) {
	fragment := rapid.SampledFrom([]string{
		" (host: x", "; root: /y", "; home: /z", "; scope: s", "; projects: p", "; added 2020-01-01)", " - ", "(", ")", ";", " ", "word", "é", "\t", "- ",
	})
	prose := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(fragment, 0, 12).Draw(t, "fragments"), "")
	})
	word := rapid.StringMatching(`[A-Za-z0-9._][A-Za-z0-9._-]{0,10}`)
	dir := rapid.StringMatching(`(/[a-z0-9 ()é-]{1,8}){1,3}`)
	rapid.Check(t, func(t *rapid.T) {
		want := Route{ID: word.Draw(t, "id"), Alias: word.Draw(t, "alias"), Root: dir.Draw(t, "root"), Home: dir.Draw(t, "home")}
		line := fmt.Sprintf("- %s - %s (host: %s; root: %s; home: %s; scope: %s; projects: %s; added 2026-01-31)",
			want.ID, prose.Draw(t, "summary"), want.Alias, want.Root, want.Home, prose.Draw(t, "scope"), prose.Draw(t, "projects"))
		if contains(want.Root, want.Home) || contains(want.Home, want.Root) {
			t.Skip("no two places")
		}
		got, remote, err := parseLine(line)
		if fault.Is(err, fault.RouteAmbiguous) && strings.Count(line, " (host: ") > 1 {
			return
		}
		if err != nil || !remote || got != want {
			t.Fatalf("%s\nis %+v, %v, %v", line, got, remote, err)
		}
	})
}

func FuzzRoutes(f *testing.F) {
	f.Add(harbor)
	f.Add("- near - at hand (home: /home/near; scope: x; projects: y; added 2026-01-01)")
	f.Add("- a - (host: b; root: /c; home: /d; scope: ; projects: ; added 2026-13-01)\n- x")
	f.Fuzz(func(t *testing.T, text string) {
		routes, err := parseRoutes([]byte(text))
		if err != nil {
			if code := fault.CodeOf(err); code != fault.RouteInvalid && code != fault.RouteAmbiguous {
				t.Fatal(err)
			}
			return
		}
		for _, r := range routes {
			if _, err := (Job{Root: r.Root, Home: r.Home, Argv: []string{"fm-x"}}).CommandLine(); err != nil {
				t.Fatalf("%+v is no job's: %v", r, err)
			}
			if strings.HasPrefix(r.Alias, "-") || strings.ContainsAny(r.Alias, " @'\"$`;") {
				t.Fatalf("alias %q", r.Alias)
			}
		}
	})
}

func TestReadRoutes(t *testing.T) {
	dir := temp(t)
	h := &home.Home{Path: dir, State: dir + "/state"}
	file := dir + "/data/secondmates.md"
	read := func() ([]Route, error) { return ReadRoutes(h) }

	routes, err := read()
	if err != nil || len(routes) != 0 {
		t.Fatalf("no file: %v, %v", routes, err)
	}
	write(t, file, harbor, 0o644)
	if routes, err = read(); err != nil || len(routes) != 1 {
		t.Fatalf("%v, %v", routes, err)
	}
	must(t, os.Chmod(file, 0o664))
	_, err = read()
	wantCode(t, err, fault.ModeUnsafe)
	write(t, file, "- harbor", 0o644)
	_, err = read()
	wantCode(t, err, fault.RouteInvalid)
	if !strings.Contains(err.Error(), file) {
		t.Errorf("the file is not named: %v", err)
	}
	write(t, file, strings.Repeat("\n", maxRoutesBytes+1), 0o644)
	_, err = read()
	wantCode(t, err, fault.RouteInvalid)
	must(t, os.Rename(file, dir+"/elsewhere"))
	must(t, os.Symlink(dir+"/elsewhere", file))
	_, err = read()
	wantCode(t, err, fault.LinkUnsafe)
	must(t, os.Chmod(dir+"/data", 0o777))
	_, err = read()
	wantCode(t, err, fault.ModeUnsafe)
}

func genJob() *rapid.Generator[Job] {
	dir := rapid.StringMatching(`(/[a-z$;' é]{1,8}){1,3}`)
	arg := rapid.OneOf(
		rapid.SampledFrom([]string{"", " ", "-n", "--", "$(touch evil)", "`touch evil`", "';touch evil;'", "\n", "*", "~", "\\", "\xff\xfe", "!!", "é"}),
		rapid.StringMatching(`[^\x00]{0,20}`),
	)
	return rapid.Custom(func(t *rapid.T) Job {
		return Job{
			Root: "/root" + dir.Draw(t, "root"), Home: "/home" + dir.Draw(t, "home"),
			Argv: append([]string{"fm-x" + rapid.SampledFrom([]string{"", ".sh"}).Draw(t, "name")}, rapid.SliceOfN(arg, 0, 5).Draw(t, "args")...),
		}
	})
}

var closed = regexp.MustCompile(`^fm-remote-entrypoint\.sh 1( [A-Za-z0-9+/]+={0,2}){3}$`)

func TestJobRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genJob().Draw(t, "job")
		line, err := want.CommandLine()
		must(t, err)
		if !closed.MatchString(line) {
			t.Fatalf("a shell might see something in %q", line)
		}
		got, err := ParseJob(strings.Fields(line)[1:])
		must(t, err)
		if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

func TestJobRefuses(t *testing.T) {
	for name, j := range map[string]Job{
		"relative root":  {"r", "/h", []string{"fm-x"}},
		"no home":        {"/r", "", []string{"fm-x"}},
		"not clean":      {"/r/", "/h", []string{"fm-x"}},
		"control":        {"/r\n", "/h", []string{"fm-x"}},
		"the same":       {"/r", "/r", []string{"fm-x"}},
		"home in root":   {"/r", "/r/h", []string{"fm-x"}},
		"root in home":   {"/h/r", "/h", []string{"fm-x"}},
		"all is in /":    {"/", "/h", []string{"fm-x"}},
		"no command":     {"/r", "/h", nil},
		"other command":  {"/r", "/h", []string{"sh"}},
		"a path":         {"/r", "/h", []string{"../fm-x"}},
		"a path below":   {"/r", "/h", []string{"fm-x/../sh"}},
		"nothing named":  {"/r", "/h", []string{"fm-"}},
		"NUL":            {"/r", "/h", []string{"fm-x", "a\x00b"}},
		"more than fits": {"/r", "/h", []string{"fm-x", strings.Repeat("x", 90_000)}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := j.CommandLine()
			wantCode(t, err, fault.Usage)
		})
	}
	encode := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	root, home, argv := encode("/r"), encode("/h"), encode("fm-x\x00")
	for name, args := range map[string][]string{
		"none":           {},
		"three":          {"1", root, home},
		"five":           {"1", root, home, argv, argv},
		"version":        {"2", root, home, argv},
		"not base64":     {"1", "/r", home, argv},
		"line end":       {"1", root, home, argv[:4] + "\n" + argv[4:]},
		"padding":        {"1", strings.TrimRight(root, "="), home, argv},
		"padding bits":   {"1", "L3J=", home, argv},
		"empty root":     {"1", "", home, argv},
		"not terminated": {"1", root, home, encode("fm-x")},
		"no argument":    {"1", root, home, ""},
		"empty command":  {"1", root, home, encode("\x00")},
		"wrong command":  {"1", root, home, encode("sh\x00-c\x00")},
		"swapped":        {"1", argv, home, root},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseJob(args)
			wantCode(t, err, fault.Usage)
		})
	}
	for n, ok := range map[int]bool{0: true, 1: false} {
		fixed := len("fm-remote-entrypoint.sh 1 L3I= L2g= ")
		j := Job{"/r", "/h", []string{"fm-x", strings.Repeat("x", (MaxCommandBytes-fixed)/4*3-len("fm-x\x00\x00")+n)}}
		line, err := j.CommandLine()
		if ok != (err == nil) {
			t.Errorf("%d bytes over: %d, %v", n, len(line), err)
		}
	}
}

func FuzzParseJob(f *testing.F) {
	f.Add("1 L3I= L2g= Zm0teAA=")
	f.Add("1 L3I= L2g= Zm0teAAtAAA=")
	f.Add("1  L2g= =")
	f.Fuzz(func(t *testing.T, text string) {
		j, err := ParseJob(strings.Split(text, " "))
		if err != nil {
			wantCode(t, err, fault.Usage)
			return
		}
		if line, err := j.CommandLine(); err == nil && line != "fm-remote-entrypoint.sh "+text {
			t.Fatalf("%q comes back as %q", text, line)
		}
	})
}

// run runs a job by a client whose ssh is a script.
func run(t *testing.T, env map[string]string, script string, s Streams, argv ...string) (int, error) {
	t.Helper()
	ssh := temp(t) + "/ssh"
	write(t, ssh, "#!/bin/sh\n"+script, 0o755)
	c, err := NewClient(t.Context(), func(name string) string {
		if name == "FM_SSH_BIN" {
			return ssh
		}
		return env[name]
	})
	must(t, err)
	return c.Run(context.Background(), Route{Alias: "harbor-host", Root: "/r", Home: "/h"}, argv, s)
}

func TestClientAsks(t *testing.T) {
	var out, errs bytes.Buffer
	env := map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": "/h", "SSH_AUTH_SOCK": "/s", "LANG": "C.UTF-8", "LC_ALL": "C", "LC_SECRET": "s", "FM_HOME": "/h",
		"FM_SSH_ALIVE_INTERVAL": "7", "FM_SSH_ALIVE_COUNT_MAX": "2",
	}
	status, err := run(t, env, `printf '%s\n' "$@"; env >&2; read -r line || echo "no input"; exit 7`, Streams{Stdout: &out, Stderr: &errs}, "fm-x", "a b")
	must(t, err)
	if status != 7 {
		t.Errorf("status %d", status)
	}
	const tail = "--\nharbor-host\nfm-remote-entrypoint.sh 1 L3I= L2g= Zm0teABhIGIA\nno input\n"
	if got := out.String(); !strings.HasSuffix(got, tail) || !strings.HasPrefix(got, "-T\n-k\n") ||
		!strings.Contains(got, "ServerAliveInterval=7\n") || !strings.Contains(got, "ServerAliveCountMax=2\n") {
		t.Errorf("ssh got\n%s", got)
	}
	for _, name := range []string{"LANG", "LC_", "FM_"} {
		if strings.Contains("\n"+errs.String(), "\n"+name) {
			t.Errorf("%s is in the environment of ssh:\n%s", name, errs.String())
		}
	}
	if !strings.Contains(errs.String(), "SSH_AUTH_SOCK=/s\n") {
		t.Error("ssh lacks the agent")
	}
}

// TestClientVersions: an option is only given to an ssh that knows it, and none is
// given that takes the place of the user's own.
func TestClientVersions(t *testing.T) {
	for version, knows := range map[string]bool{
		"OpenSSH_7.9p1 Debian-10+deb10u4, OpenSSL 1.1.1n": false,
		"OpenSSH_8.6p1, LibreSSL 2.8.3":                   false,
		"OpenSSH_8.7p1, OpenSSL 3.0.1":                    true,
		"OpenSSH_9.2p1 Debian-2+deb12u10, OpenSSL 3.0.19": true,
		"OpenSSH_10.0p2":                                  true,
		"OpenSSH_for_Windows_9.5":                         true,
		"Sun_SSH_1.5":                                     false,
		"":                                                false,
	} {
		var out bytes.Buffer
		_, err := run(t, nil, `if [ "$1" = -V ]; then echo "`+version+`" >&2; else printf '%s\n' "$@"; fi`, Streams{Stdout: &out}, "fm-x")
		must(t, err)
		for _, option := range []string{"SessionType=default", "StdinNull=no", "ForkAfterAuthentication=no"} {
			if strings.Contains(out.String(), option+"\n") != knows {
				t.Errorf("%s got\n%s", version, out.String())
			}
		}
		if strings.Contains(out.String(), "IgnoreUnknown") {
			t.Error("what the user's configuration ignores is ignored no more")
		}
	}
}

func TestClientStreams(t *testing.T) {
	var out, errs bytes.Buffer
	input := strings.Repeat("\x00\xff\r\n", 100_000)
	status, err := run(t, nil, `cat; printf 'a\000b' >&2`, Streams{strings.NewReader(input), &out, &errs}, "fm-x")
	if err != nil || status != 0 || out.String() != input || errs.String() != "a\x00b" {
		t.Errorf("status %d, %v, %d bytes, %q", status, err, out.Len(), errs.String())
	}
	// Input that nobody reads is no failure.
	status, err = run(t, nil, `exec <&-; exit 0`, Streams{Stdin: strings.NewReader(input)}, "fm-x")
	if err != nil || status != 0 {
		t.Errorf("status %d, %v", status, err)
	}
}

// TestOutput: what is held of the other side is bounded, and ssh does not go on.
func TestOutput(t *testing.T) {
	for n, over := range map[int]bool{0: false, MaxStreamBytes: false, MaxStreamBytes + 1: true} {
		var out Output
		_, err := run(t, nil, fmt.Sprintf("head -c %d /dev/zero", n), Streams{Stdout: &out}, "fm-x")
		if err != nil || len(out.Bytes) != min(n, MaxStreamBytes) || out.Over != over {
			t.Errorf("%d bytes: %d are held, over is %v, %v", n, len(out.Bytes), out.Over, err)
		}
	}
	var out Output
	status, err := run(t, nil, "cat /dev/zero", Streams{Stdout: &out}, "fm-x")
	if err != nil || status == 0 || !out.Over {
		t.Errorf("without end: status %d, over is %v, %v", status, out.Over, err)
	}
}

func TestClientStatuses(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 64": 64, "exit 255": 255, "kill -9 $$": 255, "kill -15 $$": 255} {
		status, err := run(t, nil, script, Streams{}, "fm-x")
		if err != nil || status != want {
			t.Errorf("%s: status %d, %v", script, status, err)
		}
	}
	status, err := run(t, nil, "exit 0", Streams{}, "sh")
	wantCode(t, err, fault.Usage)
	if status != StatusUsage {
		t.Errorf("status %d", status)
	}
	for _, env := range []map[string]string{
		{"FM_SSH_ALIVE_INTERVAL": "0"}, {"FM_SSH_ALIVE_INTERVAL": "-1"}, {"FM_SSH_ALIVE_COUNT_MAX": "3 -o ProxyCommand=x"}, {"FM_SSH_ALIVE_COUNT_MAX": "1e3"},
	} {
		_, err := NewClient(t.Context(), func(name string) string { return env[name] })
		wantCode(t, err, fault.Usage)
	}
	_, err = NewClient(t.Context(), func(name string) string {
		return map[string]string{"FM_SSH_BIN": "/nonexistent/ssh"}[name]
	})
	wantCode(t, err, fault.IO)
}

func TestClientStopsSSH(t *testing.T) {
	dir := temp(t)
	write(t, dir+"/ssh", "#!/bin/sh\n[ \"$1\" != -V ] || exit\ntrap 'echo told > "+dir+"/told; exit 255' TERM\ntouch "+dir+"/started\nwhile :; do sleep 0.01; done\n", 0o755)
	env := func(name string) string {
		return map[string]string{"FM_SSH_BIN": dir + "/ssh", "PATH": os.Getenv("PATH")}[name]
	}
	c, err := NewClient(t.Context(), env)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for {
			if _, err := os.Stat(dir + "/started"); err == nil || ctx.Err() != nil {
				cancel()
				return
			}
		}
	}()
	_, err = c.Run(ctx, Route{Alias: "a", Root: "/r", Home: "/h"}, []string{"fm-x"}, Streams{})
	if err != context.Canceled {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(dir + "/told"); err != nil {
		t.Error("ssh was not asked to end")
	}

	c.time = 300 * time.Millisecond
	status, err := c.Run(context.Background(), Route{Alias: "a", Root: "/r", Home: "/h"}, []string{"fm-x"}, Streams{})
	wantCode(t, err, fault.Timeout)
	if status != StatusUnknown {
		t.Errorf("status %d", status)
	}
}

func TestCheckLocal(t *testing.T) {
	root := temp(t)
	write(t, root+"/bin/fm-x", "", 0o755)
	write(t, root+"/bin/fm-plain", "", 0o644)
	must(t, os.Mkdir(root+"/bin/fm-dir", 0o755))
	must(t, os.Symlink("fm-x", root+"/bin/fm-link"))
	must(t, CheckLocal(root, "fm-x"))
	for _, base := range []string{"fm-plain", "fm-dir", "fm-link", "fm-none", "bin/fm-x", "sh", ""} {
		wantCode(t, CheckLocal(root, base), fault.Usage)
	}
	wantCode(t, CheckLocal("", "fm-x"), fault.Usage)
}
