package procevent

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/invoke/process"
)

const (
	claimSuffix = ".claim"
	claimLimit  = 1 << 16

	phaseActive   = "active"
	phaseTerminal = "terminal"
)

// claim is who owns a source on this machine (home: Claim): one line a field,
// in this order.
type claim struct {
	Home         string
	PID          int
	Token        string
	Identity     string // of the runner
	RegDir       string
	Registration string // "<device>:<inode>" of the registration file
	Terminal     bool   // a terminal verdict was given; the registration is to go

	State *stateRoot // nil in an older claim
}

// stateRoot is where a claim's home keeps its state, as it was then.
type stateRoot struct {
	Path     string
	Dev, Ino uint64
	UID      int
	Mode     uint32
}

// fileID is how a claim names a registration generation.
func fileID(info dirfd.Info) string { return fmt.Sprintf("%d:%d", info.Dev, info.Ino) }

func (c *claim) encode() []byte {
	phase := phaseActive
	if c.Terminal {
		phase = phaseTerminal
	}
	lines := []string{c.Home, strconv.Itoa(c.PID), c.Token, c.Identity, c.RegDir, c.Registration, phase}
	if s := c.State; s != nil {
		lines = append(lines, s.Path, strconv.FormatUint(s.Dev, 10), strconv.FormatUint(s.Ino, 10), strconv.Itoa(s.UID), strconv.FormatUint(uint64(s.Mode), 8))
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

var errClaim = errors.New("it does not have the lines of a claim")

// parseClaim reads a claim. It fails with errClaim.
func parseClaim(data []byte) (*claim, error) {
	if len(data) == 0 || len(data) > claimLimit || data[len(data)-1] != '\n' {
		return nil, errClaim
	}
	lines := strings.Split(string(data[:len(data)-1]), "\n")
	if len(lines) != 7 && len(lines) != 12 {
		return nil, errClaim
	}
	for _, line := range lines {
		if line == "" || wire.HasControl(line) {
			return nil, errClaim
		}
	}
	c := &claim{Home: lines[0], Token: lines[2], Identity: lines[3], RegDir: lines[4], Registration: lines[5], Terminal: lines[6] == phaseTerminal}
	pid, err := strconv.Atoi(lines[1])
	dev, ino, ok := strings.Cut(c.Registration, ":")
	if err != nil || pid < 1 || !filepath.IsAbs(c.Home) || !filepath.IsAbs(c.RegDir) || !isClaimToken(c.Token) ||
		!ok || !isNumber(dev) || !isNumber(ino) || !c.Terminal && lines[6] != phaseActive {
		return nil, errClaim
	}
	c.PID = pid
	if len(lines) == 7 {
		return c, nil
	}
	s := &stateRoot{Path: lines[7]}
	var errs [4]error
	s.Dev, errs[0] = strconv.ParseUint(lines[8], 10, 64)
	s.Ino, errs[1] = strconv.ParseUint(lines[9], 10, 64)
	s.UID, errs[2] = strconv.Atoi(lines[10])
	mode, modeErr := strconv.ParseUint(lines[11], 8, 32)
	s.Mode, errs[3] = uint32(mode), modeErr
	if errors.Join(errs[:]...) != nil || !filepath.IsAbs(s.Path) {
		return nil, errClaim
	}
	c.State = s
	return c, nil
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}

// isClaimToken also keeps the token from leading anywhere as part of a name.
func isClaimToken(s string) bool {
	if s == "" || len(s) > 128 || s[0] == '.' {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	})
}

// ownership is what can be said of a source's owner.
type ownership struct {
	claim *claim // nil when there is none, or none that can be read
	// State is Extinct when nobody owns the source: no claim, or a dead one.
	process.Verdict
	group process.Verdict // of a dead runner's process group
	stamp int64           // of the claim file, ns
}

// live reports whether a runner owns the source.
func (o *ownership) live() bool { return o.claim != nil && o.State == process.Live }

// orphaned reports whether the runner is dead and its group provably alive.
func (o *ownership) orphaned() bool {
	return o.claim != nil && o.State == process.Extinct && o.group.State == process.Live
}

// uncertain reports whether nothing can be done to the source: its owner, or
// what a dead owner left, may be alive and cannot be proved.
func (o *ownership) uncertain() bool {
	return o.State == process.Uncertain || o.group.State == process.Uncertain
}

// reason says for a message why the owner cannot be judged.
func (o *ownership) reason() string {
	if o.State == process.Uncertain {
		return o.Reason
	}
	return o.group.Reason
}

var noOwner = ownership{Verdict: process.Verdict{State: process.Extinct}, group: process.Verdict{State: process.Extinct}}

// owner reads and judges the claim of a source. It changes nothing.
//
// Errors: those of reading a file.
func (h *Host) owner(claims *dirfd.Dir, source string) (ownership, error) {
	name := source + claimSuffix
	path := filepath.Join(claims.Path(), name)
	file, info, err := claims.OpenFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return noOwner, nil
	}
	if err != nil {
		return ownership{}, fault.Wrap(fault.IO, err, "cannot read the claim %s; if no runner of %s is alive, remove it", fault.Path(path), source)
	}
	defer file.Close()
	data := make([]byte, min(info.Size, claimLimit)+1)
	n, err := file.Read(data)
	if err != nil && n == 0 && info.Size > 0 {
		return ownership{}, fault.Wrap(fault.IO, err, "cannot read the claim %s", fault.Path(path))
	}
	boot, bootErr := process.BootTime()
	beforeBoot := bootErr == nil && time.Unix(0, info.Mtime).Before(boot)
	c, err := parseClaim(data[:n])
	switch {
	case err != nil && beforeBoot:
		return ownership{Verdict: process.Verdict{State: process.Extinct}, group: process.Verdict{State: process.Extinct}, stamp: info.Mtime}, nil
	case err != nil:
		why := fmt.Sprintf("the claim %s cannot be read: %v; if no runner of %s is alive, remove it", fault.Path(path), err, source)
		return ownership{Verdict: process.Verdict{Reason: why}, group: process.Verdict{State: process.Extinct}, stamp: info.Mtime}, nil
	}
	o := ownership{claim: c, stamp: info.Mtime}
	if beforeBoot {
		// Whatever it says: nothing of an earlier boot runs, and device numbers
		// may have changed.
		o.Verdict = process.Verdict{State: process.Extinct, Reason: "the claim is older than the boot"}
		o.group = o.Verdict
		return o, nil
	}
	o.Verdict = judgeRunner(c)
	o.group = process.Verdict{State: process.Extinct}
	if o.State == process.Extinct {
		o.group = judgeRunnerGroup(c)
	}
	return o, nil
}

// runnerIdentity is the identity of a live process as a claim records it.
func runnerIdentity(pid int) (text string, start uint64, err error) {
	id, err := process.Of(pid)
	if err != nil {
		return "", 0, err
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", 0, err
	}
	return fmt.Sprintf("linux-starttime=%d cmdline-hex=%s", id.Start, hex.EncodeToString(cmdline)), id.Start, nil
}

// parseRunnerIdentity returns the start time of an identity in the form above.
func parseRunnerIdentity(text string) (start uint64, ok bool) {
	first, second, ok := strings.Cut(text, " ")
	number, isStart := strings.CutPrefix(first, "linux-starttime=")
	_, isCmdline := strings.CutPrefix(second, "cmdline-hex=")
	if !ok || !isStart || !isCmdline {
		return 0, false
	}
	start, err := strconv.ParseUint(number, 10, 64)
	return start, err == nil
}

// judgeRunner compares a claim's identity with the process that has its pid. An
// identity in a form that we do not know counts as alive while its pid exists.
func judgeRunner(c *claim) process.Verdict {
	start, known := parseRunnerIdentity(c.Identity)
	now, nowStart, err := runnerIdentity(c.PID)
	switch {
	case errors.Is(err, syscall.ESRCH):
		return process.Verdict{State: process.Extinct, Reason: fmt.Sprintf("runner %d is dead", c.PID)}
	case err != nil:
		return process.Verdict{Reason: fmt.Sprintf("process %d exists and cannot be looked at", c.PID)}
	case !known:
		return process.Verdict{Reason: fmt.Sprintf("process %d exists, and the claim's identity is in a form that is unknown here", c.PID)}
	case start != nowStart:
		return process.Verdict{State: process.Extinct, Reason: fmt.Sprintf("process %d is another one than the runner", c.PID)}
	case now != c.Identity:
		return process.Verdict{Reason: fmt.Sprintf("process %d runs another command than the claim says", c.PID)}
	}
	return process.Verdict{State: process.Live, Reason: fmt.Sprintf("runner %d is alive", c.PID)}
}

// judgeRunnerGroup judges the process group that a dead runner led: a built-in's
// command runs in it. The claim is of this boot, and its start time is as good
// as a recorded leader's.
func judgeRunnerGroup(c *claim) process.Verdict {
	return process.JudgeGroup(c.PID, groupIdentity(c), c.Token)
}

// stopRunnerGroup ends what judgeRunnerGroup proved.
func stopRunnerGroup(c *claim) process.Verdict {
	return process.StopGroup(c.PID, groupIdentity(c), c.Token)
}

func groupIdentity(c *claim) string {
	start, known := parseRunnerIdentity(c.Identity)
	self, err := process.Self()
	if !known || err != nil {
		return c.Identity
	}
	self.Start = start
	return self.String()
}

// writeClaim publishes a claim in one step. The caller holds the source lock. A
// crash before the rename leaves a ".hawser." file that the next holder of the
// same lock replaces.
func writeClaim(claims *dirfd.Dir, source string, c *claim) error {
	temp := home.TempPrefix + source
	if err := claims.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(fault.IO, err, "cannot clear the leftover %s", fault.Path(filepath.Join(claims.Path(), temp)))
	}
	return home.WriteVisible(claims, temp, claims, source+claimSuffix, c.encode())
}

// release ends a claim whose runner is dead, or is this process: what the runner
// may have left goes first, the claim last, so that a crash between is found
// again. A terminal verdict that was given is finished. The caller holds the
// source lock, and has settled the records of the source.
//
// Errors: process-cleanup-failed, process-identity-uncertain for what a dead
// runner's group is; io.
func (h *Host) release(claims *dirfd.Dir, source string, o ownership) error {
	if c := o.claim; c != nil {
		if c.PID != os.Getpid() && o.group.State != process.Extinct {
			switch v := stopRunnerGroup(c); v.State {
			case process.Live:
				return fault.New(fault.ProcessCleanupFailed, "the process group %d of source %s was stopped and did not end (%s); see ps -o pid,stat,wchan,args -g %[1]d", c.PID, source, v.Reason)
			case process.Uncertain:
				return uncertainGroup(source, c.PID, v.Reason)
			}
		}
		if c.Terminal {
			if err := finishTerminal(source, o); err != nil {
				return err
			}
		}
		clearStaging(source, c)
	}
	err := claims.Remove(source + claimSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fault.Wrap(fault.IO, err, "cannot remove the claim of source %s", source)
}

func uncertainGroup(source string, group int, why string) error {
	return fault.New(fault.ProcessIdentityUncertain, "source %s: %s; nothing was signalled. See ps -o pid,lstart,args -g %d, end what is the source's, and try again", source, why, group)
}

// finishTerminal removes the registration generation that a claim names, after
// a terminal verdict: not one that came later under the same name, nor one that
// got the same inode number.
func finishTerminal(source string, o ownership) error {
	dir, err := dirfd.Open(o.claim.RegDir)
	if err != nil {
		return nil // nothing there can be the one that was registered
	}
	defer dir.Close()
	name := source + registrationSuffix
	info, err := dir.Lstat(name)
	if err != nil || fileID(info) != o.claim.Registration || info.Mtime > o.stamp {
		return nil
	}
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(fault.IO, err, "cannot remove the registration %s", fault.Path(filepath.Join(dir.Path(), name)))
	}
	return fault.Wrap(fault.IO, dir.Sync(), "cannot make %s durable", fault.Path(dir.Path()))
}

// clearStaging removes what a runner stages and what says that it runs, and
// what another host's runner may have left (home: Claim). Best effort: nothing
// depends on it, and directories that no longer check out are left alone.
func clearStaging(source string, c *claim) {
	if dir, err := dirfd.Open(c.RegDir); err == nil {
		if info, err := dir.Info(); err == nil && int(info.UID) == os.Geteuid() {
			_ = dir.Remove(stagingName(source, c.Token))
			_ = dir.Remove(source + runnerSuffix)
		}
		dir.Close()
	}
	if c.State == nil {
		return
	}
	root, err := dirfd.Open(c.State.Path)
	if err != nil {
		return
	}
	defer root.Close()
	info, err := root.Info()
	if err != nil || int(info.UID) != os.Geteuid() || info.Dev != c.State.Dev || info.Ino != c.State.Ino {
		return
	}
	reservations, err := root.Sub("procevent-capture-reservations")
	if err != nil {
		return
	}
	defer reservations.Close()
	names, err := reservations.Names()
	if err != nil {
		return
	}
	for _, name := range names {
		if strings.HasPrefix(name, ".extension-capture-"+c.Token+".") {
			_ = reservations.RemoveAll(name)
		}
	}
}

func stagingName(source, token string) string { return "." + source + "." + token + ".output" }
