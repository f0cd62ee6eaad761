package process

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"hawser/internal/fault"
)

// String is the recorded form (processes: Invocation record):
// "linux-starttime=<n> boot-id=<uuid> pid-ns=<inode> time-ns=<inode>".
func (id Identity) String() string {
	if !id.Known() {
		return id.foreign
	}
	return fmt.Sprintf("linux-starttime=%d boot-id=%s pid-ns=%d time-ns=%d",
		id.Start, id.Boot, id.PIDNamespace, id.TimeNamespace)
}

// ParseIdentity reads the recorded form. A text in any other form, as other
// hosts of the contract write it, is kept: it judges as alive while its pid or
// group exists. It never fails.
func ParseIdentity(text string) Identity {
	words := strings.Split(text, " ")
	if len(words) != 4 {
		return Identity{foreign: text}
	}
	boot, isBoot := labelled(words[1], "boot-id")
	id := Identity{Boot: boot}
	ok := isBoot && isUUID(boot)
	for _, field := range []struct {
		word, label string
		value       *uint64
	}{
		{words[0], "linux-starttime", &id.Start},
		{words[2], "pid-ns", &id.PIDNamespace},
		{words[3], "time-ns", &id.TimeNamespace},
	} {
		value, isField := labelled(field.word, field.label)
		number, isNumber := decimal(value)
		ok = ok && isField && isNumber
		*field.value = number
	}
	if !ok {
		return Identity{foreign: text}
	}
	return id
}

// isUUID accepts the form that the kernel prints boot ids in.
func isUUID(text string) bool {
	if len(text) != 36 {
		return false
	}
	for i, c := range []byte(text) {
		switch {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case c < '0' || c > '9' && c < 'a' || c > 'f':
			return false
		}
	}
	return true
}

// surroundings is the part of an identity that all processes we can start or
// judge by start time have in common. A process cannot change its own: unshare
// and setns only move its later children.
var surroundings = sync.OnceValues(func() (Identity, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Identity{}, fault.Wrap(fault.PlatformUnsupported, err, "cannot read the boot id")
	}
	pidns, err := namespace("self", "pid")
	if err != nil {
		return Identity{}, fault.Wrap(fault.PlatformUnsupported, err, "cannot read the pid namespace of this process")
	}
	timens, err := namespace("self", "time")
	if err != nil {
		return Identity{}, fault.Wrap(fault.PlatformUnsupported, err, "cannot read the time namespace of this process")
	}
	return Identity{Boot: strings.TrimSpace(string(boot)), PIDNamespace: pidns, TimeNamespace: timens}, nil
})

// namespace returns the inode of a namespace of a process, 0 for a kind that
// this kernel was built without.
func namespace(pid, kind string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat("/proc/"+pid+"/ns/"+kind, &st)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	return st.Ino, err
}

// Self returns the identity of this process, for a record that others judge.
// It fails with platform-unsupported where /proc is not mounted.
func Self() (Identity, error) { return Of(os.Getpid()) }

// Of returns the identity of the process that runs under pid now; the error is
// ESRCH (errors.Is) when none does, a zombie included. It reads, pins the
// process by a pidfd and reads again, so that both readings are of one process.
// It is for processes in the pid namespace of this one; their time namespace
// is taken to be ours, as it is of everything we start.
func Of(pid int) (Identity, error) {
	id, err := surroundings()
	if err != nil {
		return Identity{}, err
	}
	first, err := readStat(pid)
	if err != nil {
		return Identity{}, err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return Identity{}, err
	}
	defer unix.Close(fd)
	second, err := readStat(pid)
	if err != nil {
		return Identity{}, err
	}
	if first.start != second.start || second.dead() {
		return Identity{}, unix.ESRCH
	}
	id.Start = second.start
	return id, nil
}

// identityOfChild is Of for a child that nobody has reaped, dead or not: its
// number is still its own.
func identityOfChild(pid int) (Identity, error) {
	id, err := surroundings()
	if err != nil {
		return Identity{}, err
	}
	child, err := readStat(pid)
	id.Start = child.start
	return id, err
}
