package process

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Judge says whether the process recorded as pid and identity still runs
// (processes: Identity, on Linux). It never signals.
//
// Extinct: another boot, no such pid, a zombie, or the same pid with another
// start time. Uncertain: the pid is in use, and the identity is of another pid
// or time namespace or in a form that is not ours.
func Judge(pid int, identity string) Verdict {
	id := ParseIdentity(identity)
	if verdict, judged := judgeSurroundings(id); judged {
		return verdict
	}
	now, err := readStat(pid)
	switch {
	case errors.Is(err, unix.ESRCH) && !exists(pid):
		return Verdict{Extinct, fmt.Sprintf("there is no process %d", pid)}
	case err != nil:
		return Verdict{Uncertain, fmt.Sprintf("process %d exists, but cannot be looked at", pid)}
	case now.dead():
		return Verdict{Extinct, fmt.Sprintf("process %d is dead and only waits to be reaped", pid)}
	case !id.Known():
		return Verdict{Uncertain, fmt.Sprintf("process %d exists, and its identity was recorded in a form that is unknown here", pid)}
	case !sameClock(id):
		return Verdict{Uncertain, fmt.Sprintf("process %d exists, and was recorded in another time namespace", pid)}
	case now.start != id.Start:
		return Verdict{Extinct, fmt.Sprintf("process %d is another one than recorded", pid)}
	}
	return Verdict{Live, fmt.Sprintf("process %d is running", pid)}
}

// JudgeGroup says whether the process group recorded as its leader's pid and
// identity still runs, and whether it is provably ours: Live. It never signals.
//
// The proof is the leader's start time, even as a zombie's, for it keeps the
// number of its group. A leader that is gone leaves the members of that exact
// group number: all of them must carry token in their environment and have
// started no earlier than the leader. A process that runs under the leader's
// pid with another start time proves the group extinct: a number is not given
// out again while a group or session of that number has members. A group of
// zombies only is extinct.
func JudgeGroup(group int, identity, token string) Verdict {
	r := newRecorded(group, identity, token)
	defer r.unpin()
	return r.judge()
}

// StopGroup stops a recorded group that a dead host left behind, if JudgeGroup
// proves it, and says what is then left: Extinct when it is gone, Live when it
// was not gone KillToGivingUp after KILL, Uncertain, having signalled nothing
// that is not proved, otherwise. It takes at most TermToKill and KillToGivingUp.
//
// A crash within leaves a smaller group under the same record.
func StopGroup(group int, identity, token string) Verdict {
	r := newRecorded(group, identity, token)
	defer r.unpin()
	verdict := r.judge()
	for _, step := range []struct {
		signal unix.Signal
		span   time.Duration
	}{{unix.SIGTERM, TermToKill}, {unix.SIGKILL, KillToGivingUp}} {
		if verdict.State != Live {
			return verdict
		}
		verdict = r.stop(step.signal, step.span)
	}
	return verdict
}

// recorded is a group of which only the record is left.
type recorded struct {
	group    int
	identity Identity
	token    string

	running []stat         // the members that the last look found
	proved  map[int]uint64 // members proved once, pid to start time: they stay proved
	pin     int            // the leader's pidfd, checked; -1 without
}

func newRecorded(group int, identity, token string) *recorded {
	return &recorded{group: group, identity: ParseIdentity(identity), token: token, proved: map[int]uint64{}, pin: -1}
}

// judge looks at the group. A program in the midst of an execve shows an empty
// environment for an instant, so a missing proof is looked for again.
func (r *recorded) judge() Verdict {
	for tries := 3; ; tries-- {
		verdict := r.look()
		if verdict.State != Uncertain || tries == 1 || !r.identity.Known() {
			return verdict
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (r *recorded) look() Verdict {
	if verdict, judged := judgeSurroundings(r.identity); judged {
		return verdict
	}
	if r.group <= 1 { // kill would take it for something else than a group
		return Verdict{Uncertain, fmt.Sprintf("%d is not the number of a process group", r.group)}
	}
	if errors.Is(unix.Kill(-r.group, 0), unix.ESRCH) {
		return Verdict{Extinct, fmt.Sprintf("process group %d is empty", r.group)}
	}
	before := r.lookAtLeader()
	if before == stranger {
		return Verdict{Extinct, fmt.Sprintf("process %d is another one than recorded", r.group)}
	}
	var err error
	if r.running, _, err = members(r.group); err != nil {
		return Verdict{Uncertain, fmt.Sprintf("the members of process group %d cannot be listed", r.group)}
	}
	if len(r.running) == 0 && onlyZombies(r.group) {
		return Verdict{Extinct, fmt.Sprintf("process group %d has only dead members, which wait to be reaped", r.group)}
	}
	if !r.identity.Known() {
		return Verdict{Uncertain, fmt.Sprintf("process group %d exists, and its identity was recorded in a form that is unknown here", r.group)}
	}
	if !sameClock(r.identity) {
		return Verdict{Uncertain, fmt.Sprintf("process group %d exists, and was recorded in another time namespace", r.group)}
	}
	// The leader, before and after the walk, pinned the number all along.
	pinned := before == ours && r.lookAtLeader() == ours || r.pinHolds()
	for _, member := range r.running {
		if !pinned && r.proved[member.pid] != member.start && !r.carriesToken(member) {
			return Verdict{Uncertain, fmt.Sprintf("process %d is in process group %d, and nothing proves that it belongs to the recorded invocation", member.pid, r.group)}
		}
		r.proved[member.pid] = member.start
	}
	return Verdict{Live, fmt.Sprintf("process group %d is running", r.group)}
}

type whose int

const (
	nobodys  whose = iota // no process has the leader's pid, or nothing can be said of it
	ours                  // the recorded leader, running or a zombie
	stranger              // another process
)

// lookAtLeader compares the process under the leader's pid with the record, and
// pins the leader's identity when it is there.
func (r *recorded) lookAtLeader() whose {
	if !r.identity.Known() || !sameClock(r.identity) {
		return nobodys
	}
	fd := -1
	if r.pin < 0 {
		fd, _ = unix.PidfdOpen(r.group, 0) // before the reading, which then says whose it is
	}
	leader, err := readStat(r.group)
	if err == nil && leader.start == r.identity.Start {
		r.pin = max(r.pin, fd)
		return ours
	}
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	if err != nil {
		return nobodys
	}
	return stranger
}

// pinHolds reports that the group whose leader was pinned still has members, so
// that its number cannot have come to mean another since.
func (r *recorded) pinHolds() bool {
	return r.pin >= 0 && groupSignals() && !errors.Is(signalGroup(r.pin, 0), unix.ESRCH)
}

func (r *recorded) unpin() {
	if r.pin >= 0 {
		_ = unix.Close(r.pin)
		r.pin = -1
	}
}

// carriesToken reports that a member is proved by its environment. An
// environment that cannot be read proves nothing.
func (r *recorded) carriesToken(member stat) bool {
	if member.start < r.identity.Start {
		return false
	}
	environ, err := os.ReadFile("/proc/" + strconv.Itoa(member.pid) + "/environ")
	return err == nil && r.token != "" &&
		slices.Contains(strings.Split(string(environ), "\x00"), TokenVariable+"="+r.token)
}

// stop signals the proved members and waits, at most for span, until the group
// is extinct or not provable any more. KILL is repeated, for members born since.
func (r *recorded) stop(sig unix.Signal, span time.Duration) Verdict {
	const first, longest = time.Millisecond, 16 * time.Millisecond
	end := time.Now().Add(span)
	for pause := first; ; pause = min(2*pause, longest) {
		if pause == first || sig == unix.SIGKILL {
			r.signal(sig)
		}
		time.Sleep(pause)
		verdict := r.judge()
		if verdict.State != Live || time.Now().After(end) {
			return verdict
		}
	}
}

// signal reaches the whole group at once, also what forks meanwhile, while its
// leader is pinned; otherwise each member that the last look proved, by a pidfd
// of its own. Never kill with the group's number: nothing of ours pins it.
func (r *recorded) signal(sig unix.Signal) {
	if r.pinHolds() {
		_ = signalGroup(r.pin, sig)
		return
	}
	for _, member := range r.running {
		signalExactly(member, sig, func(now stat) bool { return now.group == r.group })
	}
}

// judgeSurroundings judges what needs no look at a process: another boot ended
// everything, and what runs in another pid namespace has other numbers there.
func judgeSurroundings(id Identity) (verdict Verdict, judged bool) {
	here, err := surroundings()
	switch {
	case err != nil:
		return Verdict{Uncertain, "the boot and the namespaces of this process cannot be read"}, true
	case !id.Known():
		return Verdict{}, false
	case id.Boot != here.Boot:
		return Verdict{Extinct, "the machine has been restarted since"}, true
	case id.PIDNamespace != here.PIDNamespace:
		return Verdict{Uncertain, "it was recorded in another pid namespace (another container) and cannot be judged from here"}, true
	}
	return Verdict{}, false
}

// sameClock reports that the start times of id are comparable with those we
// read: field 22 moves with the reader's time namespace.
func sameClock(id Identity) bool {
	here, err := surroundings()
	return err == nil && id.TimeNamespace == here.TimeNamespace
}

// exists asks the kernel itself, which hides no process as /proc may.
func exists(pid int) bool { return !errors.Is(unix.Kill(pid, 0), unix.ESRCH) }
