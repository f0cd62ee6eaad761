package procevent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/invoke"
	"hawser/invoke/process"
)

// ownership is what can be said of a source's owner. The zero value is that of a
// source without a claim.
type ownership struct {
	exists bool   // there is a claim
	claim  *claim // nil when it cannot be read

	runner process.Verdict
	group  process.Verdict // of a dead runner's process group

	stamp     int64 // when the claim was written, in ns of the file system's clock
	restarted bool  // the machine was restarted since
}

// live reports whether a runner owns the source.
func (o *ownership) live() bool { return o.exists && o.runner.State == process.Live }

// orphaned reports whether the runner is dead and its group provably alive.
func (o *ownership) orphaned() bool {
	return o.exists && o.runner.State == process.Extinct && o.group.State == process.Live
}

// doubt says why nothing can be done to the source: its owner, or what a dead
// owner left, may be alive and cannot be proved. nil is for no doubt.
//
// Errors: process-identity-uncertain.
func (o *ownership) doubt(source string) error {
	switch {
	case o.exists && o.runner.State == process.Uncertain:
		return fault.New(fault.ProcessIdentityUncertain, "source %s: %s", source, o.runner.Reason)
	case o.exists && o.group.State == process.Uncertain:
		return uncertainGroup(source, o.claim.PID, o.group.Reason)
	}
	return nil
}

func uncertainGroup(source string, group int, why string) error {
	return fault.New(fault.ProcessIdentityUncertain, "source %s: %s; nothing was signalled. See pgrep -ag %d, end what is the source's, and try again", source, why, group)
}

// owner reads and judges the claim of a source. It changes nothing. claims is
// nil where there is no claim root.
//
// Errors: io.
func (h *Host) owner(claims *dirfd.Dir, source string) (o ownership, err error) {
	if claims == nil {
		return o, nil
	}
	data, info, err := readFile(claims, source+claimSuffix, claimLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	path := filepath.Join(claims.Path(), source+claimSuffix)
	hint := "if no runner of " + source + " is alive, remove it"
	if err != nil {
		return o, fault.Wrap(fault.IO, err, "cannot read the claim %s; %s", fault.Path(path), hint)
	}
	o.exists, o.stamp = true, info.Mtime
	o.claim, err = parseClaim(data)
	boot, bootErr := process.BootTime()
	o.restarted = bootErr == nil && time.Unix(0, info.Mtime).Before(boot)
	o.runner, o.group = process.Verdict{State: process.Extinct}, process.Verdict{State: process.Extinct}
	switch {
	case o.restarted:
		// Whatever it says: nothing that ran before the boot runs now.
		o.runner.Reason = "the machine has been restarted since"
	case err != nil:
		o.runner = process.Verdict{Reason: fmt.Sprintf("the claim %s cannot be understood: %v; %s", fault.Path(path), err, hint)}
	default:
		if o.runner = judgeRunner(o.claim); o.runner.State == process.Extinct {
			o.group = process.JudgeGroup(o.claim.PID, o.claim.group(), o.claim.Token)
		}
	}
	return o, nil
}

// runnerIdentity is the identity of a live process as a claim records it.
//
// Errors: ESRCH (errors.Is) when there is no such process.
func runnerIdentity(pid int) (string, error) {
	// The command line of a process that is ending is empty: for an instant, or
	// until the last of its threads has gone, which a busy machine takes time for.
	const pause, longest = 2 * time.Millisecond, time.Second
	for end := time.Now().Add(longest); ; time.Sleep(pause) {
		id, err := process.Of(pid)
		if err != nil {
			return "", err
		}
		cmdline := commandLine(pid)
		if len(cmdline) > 0 || time.Now().After(end) {
			return identityText(id, cmdline), nil
		}
	}
}

func identityText(id process.Identity, cmdline []byte) string {
	return fmt.Sprintf("linux-starttime=%d cmdline-hex=%x", id.Start, cmdline)
}

// commandLine is empty for a process that is ending.
func commandLine(pid int) []byte {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/cmdline", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	text, filled := make([]byte, 1024), 0
	for {
		n, err := unix.Read(fd, text[filled:])
		if err != nil {
			return nil
		}
		if filled += n; filled < len(text) {
			return text[:filled] // the kernel gives all it has
		}
		text = append(text, make([]byte, len(text))...)
	}
}

// startOf returns the start time in an identity of the form above.
func startOf(identity string) (start uint64, ok bool) {
	first, second, _ := strings.Cut(identity, " ")
	number, isStart := strings.CutPrefix(first, "linux-starttime=")
	_, isCmdline := strings.CutPrefix(second, "cmdline-hex=")
	start, err := strconv.ParseUint(number, 10, 64)
	return start, isStart && isCmdline && err == nil
}

// judgeRunner compares a claim's identity with the process that has its pid. An
// identity in a form that we do not know counts as alive while its pid exists.
func judgeRunner(c *claim) process.Verdict {
	dead := process.Verdict{State: process.Extinct, Reason: fmt.Sprintf("runner %d is dead", c.PID)}
	id, err := process.Of(c.PID)
	if errors.Is(err, syscall.ESRCH) {
		return dead
	}
	if err != nil {
		return process.Verdict{Reason: fmt.Sprintf("process %d exists and cannot be looked at; see ps -p %[1]d", c.PID)}
	}
	start, known := startOf(c.Identity)
	switch {
	case !known:
		return process.Verdict{Reason: fmt.Sprintf("process %d exists, and the claim's identity is in a form that is unknown here; if it is no runner, end it or remove the claim", c.PID)}
	case start != id.Start:
		return process.Verdict{State: process.Extinct, Reason: fmt.Sprintf("process %d is another one than the runner", c.PID)}
	}
	if identityText(id, commandLine(c.PID)) == c.Identity {
		return process.Verdict{State: process.Live, Reason: fmt.Sprintf("runner %d is alive", c.PID)}
	}
	// Perhaps it is ending, or has ended since: a closer look tells.
	switch now, err := runnerIdentity(c.PID); {
	case err != nil:
		return dead
	case now != c.Identity:
		return process.Verdict{Reason: fmt.Sprintf("process %d runs another command than the claim says; see ps -o pid,lstart,args -p %[1]d, and if it is no runner, remove the claim", c.PID)}
	}
	return process.Verdict{State: process.Live, Reason: fmt.Sprintf("runner %d is alive", c.PID)}
}

// group is the identity of the process group that the runner leads, in which a
// built-in's command runs. The claim is of this boot and of these namespaces, so
// its start time is as good as a recorded leader's.
func (c *claim) group() string {
	start, known := startOf(c.Identity)
	id, err := process.Self()
	if !known || err != nil {
		return c.Identity
	}
	id.Start = start
	return id.String()
}

// stopRunner stops the live runner of a source of this home: it is told to, has
// the time for its own clean-up and a margin, and is then killed. A runner of
// another home is not touched. What it then says of the owner is what is left to
// release. The caller holds the source lock.
//
// Errors: process-identity-uncertain for an owner that cannot be judged;
// process-cleanup-failed for one that would not end.
func (h *Host) stopRunner(claims *dirfd.Dir, source string) (o ownership, stopped bool, err error) {
	o, err = h.owner(claims, source)
	if err == nil {
		err = o.doubt(source)
	}
	if err != nil || !o.live() || !h.owns(o) {
		return o, o.orphaned(), err
	}
	start, _ := startOf(o.claim.Identity)
	if !process.Terminate(o.claim.PID, start, stopMargin) {
		return o, false, fault.New(fault.ProcessCleanupFailed, "the runner %d of source %s did not end after KILL; see ps -o pid,stat,wchan,args -p %[1]d", o.claim.PID, source)
	}
	o, err = h.owner(claims, source)
	if err == nil {
		err = o.doubt(source)
	}
	return o, true, err
}

// stopMargin is what a runner that is told to stop has before it is killed: the
// budget of its own stopping and more (processes: An operation, step by step).
const stopMargin = 3 * time.Second

// owns reports whether the claim is of this home, with the state root that this
// command was given: another state root of the same home has sources of its own.
func (h *Host) owns(o ownership) bool {
	if o.claim == nil || o.claim.Home != h.Home.Path {
		return false
	}
	dir := h.Home.Join(home.Procevent)
	if o.claim.RegDir == dir {
		return true
	}
	real, err := filepath.EvalSymlinks(dir)
	return err == nil && o.claim.RegDir == real
}

// release ends a claim whose runner is dead, or is this process. In this order:
//
//	what is left of its group is stopped    the same claim, a smaller group
//	a terminal verdict is finished          a terminal claim of a source that is gone
//	its staging and runner file go          the same claim
//	the claim goes                          nothing
//
// so a crash between is found again by the next release. ended tells that a
// built-in source ended by its terminal verdict. The caller holds the source
// lock, and has settled the records of the source.
//
// Errors: process-cleanup-failed, process-identity-uncertain for a dead runner's
// group; io.
func (h *Host) release(claims *dirfd.Dir, source string, o ownership) (ended bool, err error) {
	if !o.exists {
		return false, nil
	}
	if c := o.claim; c != nil {
		if c.PID != os.Getpid() && !o.restarted {
			if err := stopGroup(source, c); err != nil {
				return false, err
			}
		}
		if c.Terminal {
			builtin, err := finishTerminal(source, o)
			if err != nil {
				return false, err
			}
			ended = builtin && h.owns(o)
		}
		clearStaging(source, o)
	}
	err = claims.Remove(source + claimSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return ended, fault.Wrap(fault.IO, err, "cannot remove the claim of source %s", source)
}

func stopGroup(source string, c *claim) error {
	switch v := process.StopGroup(c.PID, c.group(), c.Token); v.State {
	case process.Live:
		return fault.New(fault.ProcessCleanupFailed, "the process group %d of source %s was stopped and did not end (%s); see pgrep -ag %[1]d", c.PID, source, v.Reason)
	case process.Uncertain:
		return uncertainGroup(source, c.PID, v.Reason)
	}
	return nil
}

// finishTerminal removes the registration generation that a claim names, after
// a terminal verdict: not one that came later under the same name, nor one that
// got the same inode number. It reports whether it removed a built-in's.
func finishTerminal(source string, o ownership) (builtin bool, err error) {
	dir, err := dirfd.Open(o.claim.RegDir)
	if err != nil {
		return false, nil // nothing there can be the one that was registered
	}
	defer dir.Close()
	name := source + registrationSuffix
	info, err := dir.Lstat(name)
	if err != nil || !o.claim.Registration.same(info, o.restarted) || info.Mtime > o.stamp {
		return false, nil
	}
	if reg, err := readFrom(dir, source); err == nil {
		builtin = !reg.external()
		reg.close()
	}
	return builtin, removeDurably(dir, name)
}

func removeDurably(dir *dirfd.Dir, name string) error {
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(fault.IO, err, "cannot remove %s", fault.Path(filepath.Join(dir.Path(), name)))
	}
	return fault.Wrap(fault.IO, dir.Sync(), "cannot make %s durable", fault.Path(dir.Path()))
}

// clearStaging removes what a runner stages and what says that it runs, and
// what another host's runner may have left (home: Claim). Best effort: nothing
// depends on it, and directories that no longer check out are left alone.
func clearStaging(source string, o ownership) {
	if dir, err := dirfd.Open(o.claim.RegDir); err == nil {
		if info, err := dir.Info(); err == nil && int(info.UID) == os.Geteuid() {
			_ = dir.Remove(stagingName(source, o.claim.Token))
			_ = dir.Remove(source + runnerSuffix)
		}
		dir.Close()
	}
	if o.claim.State != nil {
		clearReservations(o)
	}
}

func clearReservations(o ownership) {
	root, err := dirfd.Open(o.claim.State.Path)
	if err != nil {
		return
	}
	defer root.Close()
	info, err := root.Info()
	if err != nil || int(info.UID) != os.Geteuid() || info.Perm()&0o022 != 0 || !o.claim.State.same(info, o.restarted) {
		return
	}
	dir, err := root.Sub("procevent-capture-reservations")
	if err != nil {
		return
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return
	}
	for _, name := range names {
		if strings.HasPrefix(name, ".extension-capture-"+o.claim.Token+".") {
			_ = dir.RemoveAll(name)
		}
	}
}

func stagingName(source, token string) string { return "." + source + "." + token + ".output" }

// clearStaged removes every staging file of ours of a source that nobody owns: a
// power cut may have taken the claim that named it. The caller holds the source
// lock. Best effort, as clearStaging.
func clearStaged(procevent *dirfd.Dir, source string) {
	names, err := procevent.Names()
	if err != nil {
		return
	}
	for _, name := range names {
		token, ok := strings.CutPrefix(strings.TrimSuffix(name, ".output"), "."+source+".")
		// A token of ours has no dot, so this is no other source's.
		if ok && len(token) == 2*claimTokenSize && name == stagingName(source, token) && !strings.Contains(token, ".") {
			_ = procevent.Remove(name)
		}
	}
}

// checkPredecessor refuses to take over from a dead runner of another home that
// left a package running: its record, and the lock to settle it under, are that
// home's.
//
// Errors: process-identity-uncertain.
func (h *Host) checkPredecessor(o ownership, source string) error {
	if o.claim == nil || o.claim.State == nil || h.owns(o) {
		return nil
	}
	found, err := invoke.Look(&home.Home{Path: o.claim.Home, State: o.claim.State.Path}, invoke.Filter{SourceID: source})
	if err != nil {
		return nil // no records that could be judged: that home is gone or refused
	}
	for _, f := range found {
		if f.Malformed == nil && mayRun(f) {
			return fault.New(fault.ProcessIdentityUncertain, "source %s was owned by the home %s, whose package may still run; settle it there first: FM_HOME=%[2]s fm-procevent reconcile", source, fault.Path(o.claim.Home))
		}
	}
	return nil
}
