package process

import (
	"strconv"
	"strings"
)

// Identity says which process a pid meant when it was recorded: a pid is only
// a number, and numbers come back. It is comparable with ==.
//
// On Linux, Start is field 22 of /proc/<pid>/stat (clock ticks since the boot,
// as seen from TimeNamespace), Boot the kernel's boot id, and the namespaces
// are the inodes of /proc/<pid>/ns/pid and …/time, 0 where the kernel has none.
// On macOS, Start is the start time in microseconds since 1970, the rest empty.
type Identity struct {
	Start         uint64
	Boot          string
	PIDNamespace  uint64
	TimeNamespace uint64

	// foreign is the text of an identity in a form that is not ours.
	foreign string
}

// Known reports whether the identity is in a form that can be judged here. The
// zero Identity is not.
func (id Identity) Known() bool { return id.foreign == "" && id != Identity{} }

// decimal reads what strconv.FormatUint writes, and nothing else: an identity
// is compared by value, so that one value must have one text.
func decimal(text string) (uint64, bool) {
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil && strconv.FormatUint(n, 10) == text
}

// labelled returns the value of the word "label=value".
func labelled(word, label string) (string, bool) {
	return strings.CutPrefix(word, label+"=")
}
