package transfer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/invoke"
	"hawser/lifecycle"
	"hawser/tests/faulttest"
	"hawser/tests/hometest"
)

func init() { faulttest.OneThread() }

// commandFlag, as the first argument, makes the test binary a command: a
// process of its own, to be killed.
const commandFlag = "-transfer-command"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == commandFlag {
		if err := command(os.Args[2], os.Args[3], os.Args[4:]); err != nil {
			fmt.Fprintln(os.Stderr, fault.Line(err))
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// command does what the program does for the command of that name, and prints
// the facts of its answer.
func command(name, path string, args []string) error {
	ctx, h := context.Background(), hostOf(path)
	switch name {
	case "receive":
		file, err := os.Open(args[0])
		if err != nil {
			return err
		}
		e, err := Read(file)
		if err != nil {
			return err
		}
		received, err := ReceiveBind(ctx, h, e, trusting("sh"))
		if err != nil {
			return err
		}
		return tell(received, received.File, received.Digest, received.TransferDigest, received.StagedPackage)
	case "retire":
		retired, err := Retire(ctx, h, extension, wire.Digest(args[0]), wire.Digest(args[1]))
		if err != nil {
			return err
		}
		return tell(retired, retired.RetainedAt)
	}
	restored, err := Restore(ctx, h, extension, wire.Digest(args[0]), wire.Digest(args[1]))
	if err != nil {
		return err
	}
	return tell(restored, restored.File, restored.Digest, restored.TransferDigest, restored.StagedPackage)
}

func tell(answer interface{ Told() }, facts ...any) error {
	if _, err := fmt.Println(facts...); err != nil {
		return fault.Wrap(fault.IO, err, "standard output")
	}
	answer.Told()
	return nil
}

func hostOf(path string) *lifecycle.Host {
	return &lifecycle.Host{Home: &home.Home{Path: path, State: path + "/state"}}
}

// interruptible are the commands, each on a home that it has work in.
var interruptible = []struct {
	name    string
	prepare func(t *testing.T, r *rig, envelope string) (args []string)
	// killOnly says that what fails here fails in another of them too.
	killOnly bool
	// config says that the home's config is a file system of its own, so that no
	// rename leads there.
	config bool
}{
	{name: "receive", prepare: toReceive},
	{name: "receive of a staged unit", killOnly: true, prepare: func(t *testing.T, r *rig, envelope string) []string {
		r.stage()
		return toReceive(t, r, envelope)
	}},
	{name: "retire", prepare: toRetire},
	{name: "retire between its moves", killOnly: true, prepare: func(t *testing.T, r *rig, envelope string) []string {
		args := toRetire(t, r, envelope)
		r.interrupt()
		return args
	}},
	{name: "restore", prepare: toRestore},
	{name: "restore between its moves", killOnly: true, prepare: func(t *testing.T, r *rig, envelope string) []string {
		args := toRetire(t, r, envelope)
		r.interrupt()
		args[0] = "restore"
		return args
	}},
	{name: "restore without its package", killOnly: true, prepare: func(t *testing.T, r *rig, envelope string) []string {
		args := toRestore(t, r, envelope)
		must(t, hometest.Remove(filepath.Join(r.home, "data/extensions/packages")))
		return args
	}},
	{name: "retire elsewhere", prepare: toRetire, config: true},
	{name: "restore elsewhere", prepare: toRestore, config: true},
}

func toReceive(_ *testing.T, r *rig, envelope string) []string {
	return []string{"receive", r.home, envelope}
}

func toRetire(_ *testing.T, r *rig, _ string) []string {
	got := r.bound()
	return []string{"retire", r.home, string(got.TransferDigest), string(got.Digest)}
}

func toRestore(t *testing.T, r *rig, _ string) []string {
	got := r.bound()
	_, err := r.retire(got.TransferDigest, got.Digest)
	must(t, err)
	return []string{"restore", r.home, string(got.TransferDigest), string(got.Digest)}
}

// TestFaults kills each command at each of its mutating system calls, and fails
// each of them once. Whatever is left verifies, and the same command does in the
// end what it was to do. Then one thing may tell of what happened: a bind that
// failed leaves what it received in retired-staging.
func TestFaults(t *testing.T) {
	faulttest.Require(t)
	for _, c := range interruptible {
		for _, errno := range []string{"", "ENOSPC", "EIO"} {
			name := "killed"
			if errno != "" {
				name = errno
			}
			if errno != "" && c.killOnly || errno == "ENOSPC" && c.name != "receive" { // which is what takes space
				continue
			}
			t.Run(c.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				f := newFaultRig(t, c.prepare, c.config)
				for _, call := range f.calls {
					if errno == "ENOSPC" && !call.Allocates() {
						continue
					}
					t.Run(call.String(), func(t *testing.T) {
						f.reset(t)
						if errno == "" {
							f.killed(t, call)
						} else {
							f.failed(t, call, errno)
						}
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
	*rig
	pristine      string
	mount         string // "" for none
	args          []string
	calls         []faulttest.Call
	stdout, after string // without a fault
}

func newFaultRig(t *testing.T, prepare func(*testing.T, *rig, string) []string, config bool) *faultRig {
	f := &faultRig{rig: newRig(t, hometest.Package{}), pristine: filepath.Join(hometest.Dir(t), "home")}
	envelope := filepath.Join(hometest.Dir(t), "envelope.json")
	must(t, os.WriteFile(envelope, f.envelope.encode(), 0o600))
	f.args = prepare(t, f.rig, envelope)
	must(t, hometest.Restore(f.pristine, f.home))
	if config {
		f.mount = filepath.Join(f.home, "config")
		t.Cleanup(func() { _ = hometest.Unmount(f.mount) })
	}
	f.reset(t)
	f.calls = faulttest.Mutations(t, f.command())
	f.reset(t)
	f.stdout = f.run(t)
	f.after = f.atRest(t)
	return f
}

// reset makes the home again what it was before the command.
func (f *faultRig) reset(t *testing.T) {
	t.Helper()
	if f.mount == "" {
		must(t, hometest.Restore(f.home, f.pristine))
		return
	}
	_ = hometest.Unmount(f.mount) // there is none the first time
	must(t, hometest.Restore(f.home, f.pristine))
	must(t, hometest.Remove(f.mount))
	must(t, os.Mkdir(f.mount, 0o700))
	if err := hometest.Mount(f.mount, "size=1m,mode=700"); err != nil {
		t.Skipf("needs root with the right to mount: %v", err)
	}
	must(t, hometest.Restore(filepath.Join(f.mount, "extensions.d"), filepath.Join(f.pristine, "config/extensions.d")))
}

func (f *faultRig) command() *exec.Cmd {
	self, err := os.Executable()
	must(f.t, err)
	cmd := exec.Command(self, append([]string{commandFlag}, f.args...)...)
	// A program under the race detector lingers for a second by default.
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	return cmd
}

func (f *faultRig) run(t *testing.T) string {
	t.Helper()
	cmd := f.command()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v\n%s", err, stderr.String())
	}
	return string(out)
}

// atRest settles what a killed operation left, as the next retirement would, and
// returns what the home then is.
func (f *faultRig) atRest(t *testing.T) string {
	t.Helper()
	_, err := f.host.CleanupInvocations(context.Background(), invoke.Filter{})
	must(t, err)
	hometest.CheckAtRest(t, f.home)
	snapshot, err := hometest.Snapshot(f.home)
	must(t, err)
	return snapshot
}

// whole checks that the home lists, and that what is bound verifies.
func (f *faultRig) whole(t *testing.T) {
	t.Helper()
	records, err := f.host.List()
	must(t, err)
	for _, record := range records {
		_, err := f.host.Verify(context.Background(), record.ExtensionID)
		must(t, err)
	}
}

// again repeats the command, which must say what it says without a fault.
func (f *faultRig) again(t *testing.T) {
	t.Helper()
	if out := f.run(t); out != f.stdout {
		t.Errorf("repeated, it said %q instead of %q", out, f.stdout)
	}
}

func (f *faultRig) same(t *testing.T, after string) {
	t.Helper()
	if diff := hometest.Diff(after, f.after); diff != "" {
		t.Errorf("another home than without the fault:\n%s", diff)
	}
}

func (f *faultRig) killed(t *testing.T, c faulttest.Call) {
	result := c.Kill(t, f.command())
	if !result.Hit && result.Err != nil {
		t.Fatalf("not killed, but: %v\n%s", result.Err, result.Stderr)
	}
	f.whole(t)
	if result.Hit { // a run may go another way than the one that listed the calls
		f.again(t)
	}
	f.same(t, f.atRest(t))
}

func (f *faultRig) failed(t *testing.T, c faulttest.Call, errno string) {
	result := c.Fail(t, f.command(), errno)
	for range 10 {
		if !strings.HasPrefix(result.Stderr, "runtime: netpollBreak") {
			break
		}
		// The runtime's own write to its poller was the Nth this time.
		f.reset(t)
		result = c.Fail(t, f.command(), errno)
	}
	f.whole(t)
	notes, _ := filepath.Glob(filepath.Join(f.home, "data/extensions/.hawser.unfinished.*"))
	switch {
	case result.Err != nil:
		line, rest, _ := strings.Cut(result.Stderr, "\n")
		if result.ExitCode() != 1 || result.Stdout != "" || rest != "" || !strings.HasPrefix(line, "error[io]: ") {
			t.Errorf("no refusal: %v, %q, %q", result.Err, result.Stdout, result.Stderr)
		}
		f.again(t)
	case result.Stdout != f.stdout:
		t.Errorf("said %q instead of %q", result.Stdout, f.stdout)
	case len(notes) > 0: // one that could not be removed lets the command say it once more
		f.again(t)
	}
	after := f.atRest(t)
	if f.args[0] == "receive" {
		after = withoutRetired(after)
	}
	f.same(t, after)
}

func withoutRetired(snapshot string) string {
	var b strings.Builder
	for line := range strings.Lines(snapshot) {
		if !strings.Contains(line, " data/extensions/retired-staging") {
			b.WriteString(line)
		}
	}
	return b.String()
}
