package conformance

import (
	"slices"
	"strconv"
	"strings"

	"hawser/forge"
)

// object is a JSON object as a host wants to send it, defects included: members
// in their order, each with its text. The defects of a scenario are made here and
// nowhere else, so that everything around them stays valid.
type object []member

type member struct{ name, text string } // both as they stand in the frame, name without quotes

func (o object) String() string {
	var b strings.Builder
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + m.name + `":` + m.text)
	}
	b.WriteByte('}')
	return b.String()
}

// with returns a copy with another text for the member, which it has.
func (o object) with(name, text string) object {
	o = slices.Clone(o)
	o[o.index(name)].text = text
	return o
}

// without returns a copy that lacks the member.
func (o object) without(name string) object {
	o = slices.Clone(o)
	i := o.index(name)
	return slices.Delete(o, i, i+1)
}

// and returns a copy with one member more, at the end.
func (o object) and(name, text string) object {
	return append(slices.Clone(o), member{name, text})
}

// twice returns a copy that has the member once more, under a name that means
// the same.
func (o object) twice(name, again string) object { return o.and(again, o.text(name)) }

func (o object) text(name string) string { return o[o.index(name)].text }

func (o object) index(name string) int {
	return slices.IndexFunc(o, func(m member) bool { return m.name == name })
}

// reversed returns a copy whose members stand in the opposite order.
func (o object) reversed() object {
	o = slices.Clone(o)
	slices.Reverse(o)
	return o
}

// escaped writes every character of a JSON text's name as an escape.
func escaped(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		b.WriteString(`\u00` + strconv.FormatInt(int64(c), 16))
	}
	return b.String()
}

// quoted is for texts that need no escapes.
func quoted(text string) string { return `"` + text + `"` }

func quotedList[T ~string](texts []T) string {
	quotes := make([]string, len(texts))
	for i, text := range texts {
		quotes[i] = quoted(string(text))
	}
	return "[" + strings.Join(quotes, ",") + "]"
}

// limitsObject are the limits of the version.
func limitsObject() object {
	return object{
		{"frame_bytes", strconv.Itoa(forge.MaxFrameBytes)},
		{"progress_frames", strconv.Itoa(forge.MaxProgressFrames)},
		{"text_bytes", strconv.Itoa(forge.MaxTextBytes)},
		{"progress_text_bytes", strconv.Itoa(forge.MaxProgressTextBytes)},
		{"commit_subject_bytes", strconv.Itoa(forge.MaxCommitSubjectBytes)},
	}
}

// frame returns the three members that every frame begins with.
func frame(id, kind string) object {
	return object{{"version", quoted(forge.Version)}, {"id", quoted(id)}, {"type", quoted(kind)}}
}

func initializeFrame(id string, offer []forge.Capability) object {
	return frame(id, "initialize").and("capabilities", quotedList(offer)).and("limits", limitsObject().String())
}

func textFrame(id, input string) object {
	return frame(id, "execute").and("operation", quoted("text")).and("input", input)
}

// instruction is one that a plugin has no reason to fail at.
const instruction = "Append one line to the file README."

func workspaceFrame(id, workspace string) object {
	return frame(id, "execute").
		and("operation", quoted("workspace_edit")).
		and("workspace", workspace).
		and("instruction", quoted(instruction)).
		and("timeout_ms", "60000")
}
