package lifecycle

import (
	"errors"
	"io/fs"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
)

// noteName is the one note of a home, in data/extensions. It is only ever
// touched under the lifecycle lock.
const noteName = home.TempPrefix + "unfinished"

// note says which change of a binding is about to be made. It is written before
// the change and removed after the change is durable, before anything is
// printed, so one that is found belongs to a command that was killed between
// (or before: then the home does not show the change, and the note says
// nothing). It is visible, not durable: after a power cut nobody waits for the
// command's answer.
type note struct {
	Command       string      `json:"command"`
	ExtensionID   string      `json:"extension_id"`
	BindingDigest wire.Digest `json:"binding_digest"`
}

var noteDoc = strictjson.Doc{Name: "note of an unfinished command", Limit: 65_536}

// readNote returns the note that a killed command left, or the zero note. One
// that cannot be read says nothing.
func readNote(data *dirfd.Dir) (note, error) {
	text, err := home.ReadPrivate(data, noteName, noteDoc.Limit)
	if errors.Is(err, fs.ErrNotExist) || fault.Is(err, fault.ModeUnsafe) || fault.Is(err, fault.LinkUnsafe) {
		return note{}, nil
	}
	if err != nil {
		return note{}, err
	}
	v, err := noteDoc.Decode(text)
	if err != nil {
		return note{}, nil
	}
	v.Members("command", "extension_id", "binding_digest")
	n := note{v.Get("command").String(nil), v.Get("extension_id").String(wire.CheckExtensionID), wire.Digest(v.Get("binding_digest").String(wire.CheckDigest))}
	if v.Err() != nil {
		return note{}, nil
	}
	return n, nil
}

// leave writes the note.
func (n note) leave(data *dirfd.Dir) error {
	text, err := strictjson.Canonical(n)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "cannot encode a note")
	}
	return home.WriteVisible(data, home.TempName(), data, noteName, append(text, '\n'))
}

// take removes the note: the command is about to say what it did. A failure
// leaves a note that says the truth, so it is no refusal.
func (n note) take(data *dirfd.Dir) {
	_ = data.Remove(noteName)
}
