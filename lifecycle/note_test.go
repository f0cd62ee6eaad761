package lifecycle

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hawser/binding"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/invoke/process"
	"hawser/tests/hometest"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newHost(t testing.TB) *Host {
	path := hometest.New(t)
	return &Host{Home: &home.Home{Path: path, State: filepath.Join(path, "state")}}
}

// bindAt binds a package in this process and tells it, or not.
func bindAt(t testing.TB, h *Host, pkg string, told bool) *Bound {
	t.Helper()
	bound, err := h.Bind(context.Background(), pkg, binding.Options{Adapters: []string{"sh"}, TrustSameUserCode: true, TimeoutMS: 1000})
	check(t, err)
	if told {
		bound.Told()
	}
	return bound
}

// notes are the names of the home's notes.
func notes(t testing.TB, h *Host) []string {
	t.Helper()
	names, err := filepath.Glob(h.Home.Join(home.Data, notePrefix+"*"))
	check(t, err)
	return names
}

// disown makes the one note of the home one of a process that is dead.
func disown(t testing.TB, h *Host) {
	t.Helper()
	names := notes(t, h)
	if len(names) != 1 {
		t.Fatalf("the notes are %q", names)
	}
	cmd := exec.Command("true")
	check(t, cmd.Run())
	text, err := os.ReadFile(names[0])
	check(t, err)
	text = []byte(strings.Replace(string(text), fmt.Sprintf(`"maker_pid":%d`, os.Getpid()), fmt.Sprintf(`"maker_pid":%d`, cmd.Process.Pid), 1))
	check(t, os.WriteFile(names[0], text, 0o600))
}

func wantRefusal(t testing.TB, err error, says string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, not %q", err, says)
	}
}

// TestNoteOfALivingCommand: a command that has still to say what it did is not
// finished by another.
func TestNoteOfALivingCommand(t *testing.T) {
	h, pkg := newHost(t), hometest.Package{}.Make(t)
	bound := bindAt(t, h, pkg, false)
	_, err := h.Bind(t.Context(), pkg, binding.Options{Adapters: []string{"sh"}, TrustSameUserCode: true, TimeoutMS: 1000})
	wantRefusal(t, err, "bound already")
	if len(notes(t, h)) != 1 {
		t.Error("its note is gone")
	}
	bound.Told()
	bound.Told()
	if len(notes(t, h)) != 0 {
		t.Errorf("the notes are %q", notes(t, h))
	}
}

// TestNoteOfADeadCommand: its repetition finishes it and says so, once.
func TestNoteOfADeadCommand(t *testing.T) {
	h, pkg := newHost(t), hometest.Package{}.Make(t)
	options := binding.Options{Adapters: []string{"sh"}, TrustSameUserCode: true, TimeoutMS: 1000}
	first := bindAt(t, h, pkg, false)
	disown(t, h)
	other := options
	other.TimeoutMS = 2000
	_, err := h.Bind(t.Context(), pkg, other)
	wantRefusal(t, err, "bound already")
	again := bindAt(t, h, pkg, true)
	if again.Digest != first.Digest || again.File != first.File {
		t.Errorf("%v is not %v", again, first)
	}
	_, err = h.Bind(t.Context(), pkg, options)
	wantRefusal(t, err, "bound already")

	_, err = h.RetireBinding(t.Context(), first.ExtensionID, first.Digest)
	check(t, err)
	disown(t, h)
	retired, err := h.RetireBinding(t.Context(), first.ExtensionID, first.Digest)
	check(t, err)
	retired.Told()
	_, err = h.RetireBinding(t.Context(), first.ExtensionID, first.Digest)
	wantRefusal(t, err, "not bound")
}

// TestNoteThatIsHistory: once the binding changed again, what a dead command did
// is nobody's any more.
func TestNoteThatIsHistory(t *testing.T) {
	h, pkg := newHost(t), hometest.Package{}.Make(t)
	bound := bindAt(t, h, pkg, false)
	disown(t, h)
	retired, err := h.RetireBinding(t.Context(), bound.ExtensionID, bound.Digest)
	check(t, err)
	if len(notes(t, h)) != 1 {
		t.Errorf("the notes are %q", notes(t, h))
	}
	retired.Told()
	if len(notes(t, h)) != 0 {
		t.Errorf("the notes are %q", notes(t, h))
	}
}

// TestNotesThatSayNothing are cleared: of changes that were not made, and what
// cannot be read.
func TestNotesThatSayNothing(t *testing.T) {
	h, pkg := newHost(t), hometest.Package{}.Make(t)
	bound := bindAt(t, h, pkg, true)
	self, err := process.Self()
	check(t, err)
	dead := exec.Command("true")
	check(t, dead.Run())
	note := func(command, id string, digest wire.Digest, pid int) string {
		return fmt.Sprintf(`{"binding_digest":"%s","command":"%s","extension_id":"%s","maker_identity":"%s","maker_pid":%d}`, digest, command, id, self, pid)
	}
	for name, content := range map[string]string{
		"bind":    note(bindCommand, "org.example.other", digestA, dead.Process.Pid),
		"another": note(bindCommand, bound.ExtensionID, digestA, dead.Process.Pid),
		"restore": note(restoreCommand, bound.ExtensionID, digestA, dead.Process.Pid),
		"retire":  note(retireCommand, bound.ExtensionID, bound.Digest, dead.Process.Pid),
		"empty":   "",
		"torn":    note(bindCommand, bound.ExtensionID, bound.Digest, dead.Process.Pid)[:50],
		"hostile": note(bindCommand, "../../x", bound.Digest, dead.Process.Pid),
		"no pid":  note(bindCommand, bound.ExtensionID, bound.Digest, 0),
	} {
		check(t, os.WriteFile(h.Home.Join(home.Data, notePrefix+name), []byte(content), 0o600))
	}
	living := h.Home.Join(home.Data, notePrefix+"living")
	check(t, os.WriteFile(living, []byte(note(bindCommand, "org.example.other", digestA, os.Getpid())), 0o600))
	check(t, h.Transact(t.Context(), "look", "", func(*Transaction) error { return nil }))
	if names := notes(t, h); len(names) != 1 || names[0] != living {
		t.Errorf("the notes are %q", names)
	}
}

func FuzzParseNote(f *testing.F) {
	self, err := process.Self()
	check(f, err)
	f.Add([]byte(fmt.Sprintf(`{"binding_digest":"%s","command":"bind","extension_id":"org.example","maker_identity":"%s","maker_pid":7}`, digestA, self)))
	f.Add([]byte(`{"binding_digest":1}`))
	f.Add([]byte("\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		n := parseNote(text)
		if n != (note{}) && (wire.CheckExtensionID(n.ExtensionID) != "" || wire.CheckDigest(string(n.BindingDigest)) != "" || n.MakerPID < 1) {
			t.Errorf("read %+v", n)
		}
	})
}
