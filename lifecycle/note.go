package lifecycle

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"hawser/binding"
	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
	"hawser/invoke/process"
)

// notePrefix starts the name of a note, in data/extensions. Every command has a
// name of its own for it: it removes its note without the lock, and can then
// never hit another's.
const notePrefix = home.TempPrefix + "unfinished."

// change is a change of one binding, by the command that makes it.
type change struct {
	command       string
	extensionID   string
	bindingDigest wire.Digest
}

// note says which change a command is about to make. It is written under the
// lifecycle lock before the change, and removed when the command has said what
// it did ([Answer.Told]). So one whose maker is dead belongs to a
// command that was killed between, or that could not print: then the home shows
// the change, and the same command finishes it and says so. If the home does not
// show it, the note says nothing and is cleared.
//
// It is visible, not durable: after a power cut nobody waits for the answer.
type note struct {
	Command       string      `json:"command"`
	ExtensionID   string      `json:"extension_id"`
	BindingDigest wire.Digest `json:"binding_digest"`
	MakerPID      int         `json:"maker_pid"`
	MakerIdentity string      `json:"maker_identity"`
}

var noteDoc = strictjson.Doc{Name: "note of an unfinished command", Limit: 65_536}

func (n note) change() change { return change{n.Command, n.ExtensionID, n.BindingDigest} }

// abandoned reports whether the note's maker is dead. One that cannot be judged
// counts as alive: its note is its own to remove.
func (n note) abandoned() bool {
	return process.Judge(n.MakerPID, n.MakerIdentity).State == process.Extinct
}

// isMade reports whether the registry shows the change.
func (c change) isMade(reg *binding.Registry) bool {
	record, err := reg.ByID(c.extensionID)
	enabled := err == nil && record.Digest == c.bindingDigest
	disables := c.command == retireCommand || c.command == retireTransferCommand
	return enabled != disables
}

// readNote reads a note. One that cannot be read is nobody's: the zero note,
// whose maker no process can be.
func readNote(data *dirfd.Dir, name string) (note, error) {
	text, err := home.ReadPrivate(data, name, noteDoc.Limit)
	if fault.Is(err, fault.IO) {
		return note{}, err
	}
	if err != nil {
		return note{}, nil
	}
	return parseNote(text), nil
}

func parseNote(text []byte) note {
	v, err := noteDoc.Decode(text)
	if err != nil {
		return note{}
	}
	v.Members("command", "extension_id", "binding_digest", "maker_pid", "maker_identity")
	n := note{
		Command:       v.Get("command").String(nil),
		ExtensionID:   v.Get("extension_id").String(wire.CheckExtensionID),
		BindingDigest: wire.Digest(v.Get("binding_digest").String(wire.CheckDigest)),
		MakerPID:      int(v.Get("maker_pid").Int(1, 1<<31-1)),
		MakerIdentity: v.Get("maker_identity").String(nil),
	}
	if v.Err() != nil {
		return note{}
	}
	return n
}

// readNotes returns, by their names, the notes whose makers are dead and whose
// changes the home shows, and removes those whose makers are dead and whose
// changes it does not show.
func (t *transaction) readNotes() error {
	names, err := t.data.Names()
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(t.data.Path()))
	}
	for _, name := range names {
		if !strings.HasPrefix(name, notePrefix) {
			continue
		}
		n, err := readNote(t.data, name)
		if err != nil {
			return err
		}
		if n != (note{}) && !n.abandoned() {
			continue
		}
		reg, err := t.registry()
		switch {
		case err != nil:
			return nil // then no command changes a binding
		case n != (note{}) && n.change().isMade(reg):
			t.left[n.change()] = name
		default:
			if err := t.data.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fault.Wrap(fault.IO, err, "cannot clear the leftover %s", fault.Path(t.data.Path()+"/"+name))
			}
		}
	}
	return nil
}

// wasLeft reports whether a killed command made the change and did not say so.
func (t *transaction) wasLeft(c change) bool { return t.left[c] != "" }

// leave writes this command's note of the change, in the place of one that a
// killed command left of it. Notes of other changes of the extension are history
// from here on.
func (t *transaction) leave(c change) error {
	self, err := process.Self()
	if err != nil {
		return fault.Wrap(fault.PlatformUnsupported, err, "cannot tell this process's own identity; is /proc mounted?")
	}
	text, err := strictjson.Canonical(note{c.command, c.extensionID, c.bindingDigest, os.Getpid(), self.String()})
	if err != nil {
		return fault.Wrap(fault.Internal, err, "cannot encode a note")
	}
	name := t.left[c]
	if name == "" {
		name = notePrefix + strings.TrimPrefix(home.TempName(), home.TempPrefix)
	}
	if err := home.WriteVisible(t.data, home.TempName(), t.data, name, append(text, '\n')); err != nil {
		return err
	}
	t.note, t.made = name, c
	for old, name := range t.left {
		if old.extensionID == c.extensionID && old != c {
			_ = t.data.Remove(name) // one that stays says what is no more: see readNotes
			delete(t.left, old)
		}
	}
	return nil
}

// withdraw removes this command's note after a failure, unless the home shows
// the change all the same: then the same command is to finish it.
func (t *transaction) withdraw() {
	reg, err := t.registry()
	if err == nil && !t.made.isMade(reg) {
		_ = t.data.Remove(t.note)
	}
}

// Answer is what a command that changed a binding has still to say. Until it is
// told, a repetition of the command says it instead.
type Answer struct {
	home *home.Home
	note string
}

func (t *transaction) answer() Answer { return Answer{t.Home, t.note} }

// Told is to be called when the answer was given: printed, or put to use. A
// failure leaves a note that says the truth, so there is none to report.
func (a Answer) Told() {
	if a.note == "" {
		return
	}
	data, err := a.home.Open(home.Data)
	if err != nil {
		return
	}
	defer data.Close()
	_ = data.Remove(a.note)
}
