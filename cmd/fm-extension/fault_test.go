package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hawser/internal/wire"
	"hawser/invoke"
	"hawser/tests/faulttest"
	"hawser/tests/hometest"
)

// change is a command that changes something, if only for a while, and the home
// that it is for.
type change struct {
	name    string
	prepare func(t *testing.T, home, pkg string) (args []string)
	// config says that the home's config is a file system of its own, so that
	// no rename leads there.
	config bool
	// killed says that being killed is all that is of interest.
	killed bool
}

const extension = "org.example.sh"

var changes = []change{
	{name: "bind", prepare: toBind},
	{name: "retire-binding", prepare: toRetire},
	{name: "restore-binding", prepare: toRestore},
	{name: "repair", prepare: toRepair},
	{name: "verify", prepare: toVerify},
	{name: "poll", prepare: toPoll, killed: true}, // it fails as no other command
	{name: "bind elsewhere", prepare: toBind, config: true, killed: true},
	{name: "retire-binding elsewhere", prepare: toRetire, config: true},
	{name: "restore-binding elsewhere", prepare: toRestore, config: true},
}

func toBind(t *testing.T, home, pkg string) []string { return bindArgs(pkg) }

func toRetire(t *testing.T, home, pkg string) []string {
	digest := bind(t, home, pkg)
	return []string{"retire-binding", extension, "--if-binding-digest", digest}
}

func toRestore(t *testing.T, home, pkg string) []string {
	digest := bind(t, home, pkg)
	retired, err := hostOf(home).RetireBinding(context.Background(), extension, wire.Digest(digest))
	check(t, err)
	retired.Told()
	return []string{"restore-binding", extension, "--binding-digest", digest}
}

func toRepair(t *testing.T, home, pkg string) []string {
	bind(t, home, pkg)
	entry, err := filepath.Glob(filepath.Join(home, "data/extensions/packages/*/*/*", hometest.Entrypoint))
	check(t, err)
	check(t, os.Chmod(entry[0], 0o755))
	check(t, os.WriteFile(entry[0], []byte("#!/bin/sh\nexit 1\n"), 0o755))
	return []string{"repair", extension}
}

func toVerify(t *testing.T, home, pkg string) []string {
	bind(t, home, pkg)
	return []string{"verify", extension}
}

func toPoll(t *testing.T, home, pkg string) []string {
	out, err := program(home, bindArgs(pkg)...).Output()
	check(t, err)
	event := filepath.Join(hometest.Dir(t), "event")
	check(t, os.WriteFile(event, []byte("an event\n"), 0o600))
	return []string{"process-event", "sh", "source.poll", "--source-id", "s", "--config-ref", event,
		"--expect-extension", extension, "--expect-version", "1.0.0", "--expect-capability-version", "1",
		"--expect-package-digest", printed(string(out), "package-digest"), "--expect-binding-digest", printed(string(out), "binding-digest")}
}

func bindArgs(pkg string) []string {
	return []string{"bind", pkg, "--adapter", "sh", "--trust-same-user-code"}
}

// bind binds the package and returns the binding's digest.
func bind(t *testing.T, home, pkg string) string {
	t.Helper()
	out, err := program(home, bindArgs(pkg)...).Output()
	check(t, err)
	_, rest, _ := strings.Cut(string(out), "binding-digest: ")
	digest, _, _ := strings.Cut(rest, "\n")
	return digest
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// faults are what can happen at a call.
var faults = []struct {
	name string
	at   func(*faultRig, *testing.T, faulttest.Call)
}{
	{"killed", (*faultRig).killed},
	{"EIO", func(r *faultRig, t *testing.T, c faulttest.Call) { r.failed(t, c, "EIO") }},
	{"ENOSPC", func(r *faultRig, t *testing.T, c faulttest.Call) {
		if c.Allocates() {
			r.failed(t, c, "ENOSPC")
		}
	}},
}

// TestFaults kills each mutating command at each of its system calls, and fails
// each of them once. Whatever is left lists and verifies, the same command does
// in the end what it was to do, and then nothing tells that something happened.
func TestFaults(t *testing.T) {
	faulttest.Require(t)
	for _, c := range changes {
		for _, f := range faults {
			if c.killed && f.name != "killed" || c.config && f.name == "ENOSPC" {
				continue
			}
			t.Run(c.name+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				r := newFaultRig(t, c)
				for _, call := range r.calls {
					t.Run(call.String(), func(t *testing.T) {
						r.restore(t)
						f.at(r, t, call)
						if t.Failed() {
							t.Log(call.Text)
						}
					})
				}
			})
		}
	}
}

// faultRig is one command on one home, again and again.
type faultRig struct {
	home, pristine string
	mount          string // "" for none
	args           []string
	calls          []faulttest.Call
	stdout, after  string // without a fault
}

func newFaultRig(t *testing.T, c change) *faultRig {
	r := &faultRig{home: hometest.New(t)}
	r.args = c.prepare(t, r.home, hometest.Package{}.Make(t))
	r.pristine = filepath.Join(hometest.Dir(t), "home")
	check(t, hometest.Restore(r.pristine, r.home))
	if c.config {
		r.mount = filepath.Join(r.home, "config")
		check(t, os.MkdirAll(filepath.Join(r.pristine, "config"), 0o700))
		t.Cleanup(func() { _ = hometest.Unmount(r.mount) })
	}
	r.restore(t)
	r.calls = faulttest.Mutations(t, program(r.home, r.args...))
	r.restore(t)
	out, err := program(r.home, r.args...).Output()
	check(t, err)
	r.stdout, r.after = string(out), r.atRest(t)
	return r
}

// restore makes the home again what it was before the command.
func (r *faultRig) restore(t *testing.T) {
	t.Helper()
	if r.mount == "" {
		check(t, hometest.Restore(r.home, r.pristine))
		return
	}
	_ = hometest.Unmount(r.mount) // there is none the first time
	check(t, hometest.Restore(r.home, r.pristine))
	check(t, hometest.Remove(r.mount))
	check(t, os.Mkdir(r.mount, 0o700))
	if err := hometest.Mount(r.mount, "size=1m,mode=700"); err != nil {
		t.Skipf("needs root with the right to mount: %v", err)
	}
	bindings := filepath.Join(r.pristine, "config/extensions.d")
	if _, err := os.Stat(bindings); err == nil {
		check(t, hometest.Restore(filepath.Join(r.mount, "extensions.d"), bindings))
	}
}

// atRest settles what a killed operation left, as the next retirement or runner
// would, and returns what the home then is.
func (r *faultRig) atRest(t *testing.T) string {
	t.Helper()
	settled, err := hostOf(r.home).CleanupInvocations(context.Background(), invoke.Filter{})
	check(t, errors.Join(append(settled.Failed, err)...))
	hometest.CheckAtRest(t, r.home)
	snapshot, err := hometest.Snapshot(r.home)
	check(t, err)
	return snapshot
}

// whole checks that the home lists, and that what is bound verifies.
func (r *faultRig) whole(t *testing.T) {
	t.Helper()
	records, err := hostOf(r.home).List()
	check(t, err)
	for _, record := range records {
		if r.args[0] == "repair" {
			continue // that is what is to be repaired
		}
		if _, err := hostOf(r.home).Verify(context.Background(), record.ExtensionID); err != nil {
			t.Errorf("what is bound does not verify: %v", err)
		}
	}
}

// again repeats the command, which must do its work and leave no trace of the
// fault.
func (r *faultRig) again(t *testing.T) {
	t.Helper()
	cmd := program(r.home, append(r.args, "--lock-timeout=30s")...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("repeated: %v\n%s", err, stderr.String())
	}
	if string(out) != r.stdout {
		t.Errorf("repeated, it said:\n%s\ninstead of:\n%s", out, r.stdout)
	}
	if diff := hometest.Diff(r.atRest(t), r.after); diff != "" {
		t.Errorf("repeated, it left another home than without the fault:\n%s", diff)
	}
}

func (r *faultRig) killed(t *testing.T, c faulttest.Call) {
	result := c.Kill(t, program(r.home, r.args...))
	if !result.Hit && result.Err != nil {
		t.Fatalf("not killed, but: %v\n%s", result.Err, result.Stderr)
	}
	r.whole(t)
	if result.Hit {
		r.again(t)
	}
}

func (r *faultRig) failed(t *testing.T, c faulttest.Call, errno string) {
	result := c.Fail(t, program(r.home, r.args...), errno)
	r.whole(t)
	if result.RuntimeHit() {
		r.again(t)
		return
	}
	if result.Err == nil {
		if result.Stdout != r.stdout {
			t.Errorf("said:\n%s\ninstead of:\n%s", result.Stdout, r.stdout)
		}
		if notes, _ := filepath.Glob(filepath.Join(r.home, "data/extensions/.hawser.unfinished.*")); len(notes) > 0 {
			r.again(t) // a note that could not be removed lets the command say it once more
		} else if diff := hometest.Diff(r.atRest(t), r.after); diff != "" {
			t.Errorf("succeeded, and left another home than without the fault:\n%s", diff)
		}
		return
	}
	if err := checkRefusal(result, "io"); err != nil {
		t.Error(err)
	}
	r.again(t)
}

// checkRefusal checks that a command was refused as all are (wire: Errors and
// exits): exit 1, nothing on stdout, and one line on stderr, with the code.
func checkRefusal(r faulttest.Result, code string) error {
	line, rest, _ := strings.Cut(r.Stderr, "\n")
	if r.ExitCode() != 1 || r.Stdout != "" || !strings.HasPrefix(line, "error["+code+"]: ") || rest != "" {
		return fmt.Errorf("no refusal with the code %s: %v\nstdout: %q\nstderr: %q", code, r.Err, r.Stdout, r.Stderr)
	}
	return nil
}
