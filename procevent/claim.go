package procevent

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
)

const (
	claimSuffix = ".claim"
	claimLimit  = 1 << 16
	// claimTokenSize is the length of a token of ours, in bytes before hex.
	claimTokenSize = 16

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
	Registration fileID // of the registration file
	Terminal     bool   // a terminal verdict was given; the registration is to go

	State *stateRoot // nil in an older claim
}

// stateRoot is where a claim's home keeps its state, as it was then.
type stateRoot struct {
	Path string
	fileID
	UID  int
	Mode uint32
}

// fileID is how a claim names a file: a registration generation, a state root.
type fileID struct{ Dev, Ino uint64 }

func idOf(info dirfd.Info) fileID { return fileID{info.Dev, info.Ino} }

// same compares a recorded file with one that is there. The number of a device
// may be another one after a restart; the inode's is not.
func (id fileID) same(info dirfd.Info, restarted bool) bool {
	return id.Ino == info.Ino && (restarted || id.Dev == info.Dev)
}

func (c *claim) encode() []byte {
	phase := phaseActive
	if c.Terminal {
		phase = phaseTerminal
	}
	lines := []string{
		c.Home, strconv.Itoa(c.PID), c.Token, c.Identity, c.RegDir,
		fmt.Sprintf("%d:%d", c.Registration.Dev, c.Registration.Ino), phase,
	}
	if s := c.State; s != nil {
		lines = append(lines, s.Path, fmt.Sprint(s.Dev), fmt.Sprint(s.Ino), strconv.Itoa(s.UID), fmt.Sprintf("%o", s.Mode))
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

var errClaim = errors.New("it does not have the lines of a claim")

// parseClaim reads a claim. It fails with errClaim.
func parseClaim(data []byte) (*claim, error) {
	if len(data) > claimLimit {
		return nil, errClaim
	}
	text, ok := strings.CutSuffix(string(data), "\n")
	lines := strings.Split(text, "\n")
	if !ok || len(lines) != 7 && len(lines) != 12 {
		return nil, errClaim
	}
	for _, line := range lines {
		if line == "" || wire.HasControl(line) {
			return nil, errClaim
		}
	}
	c := &claim{Home: lines[0], Token: lines[2], Identity: lines[3], RegDir: lines[4], Terminal: lines[6] == phaseTerminal}
	ok = filepath.IsAbs(c.Home) && filepath.IsAbs(c.RegDir) && isClaimToken(c.Token) && (c.Terminal || lines[6] == phaseActive)
	number := func(text string, base int, max uint64) uint64 {
		n, err := strconv.ParseUint(text, base, 64)
		ok = ok && err == nil && n <= max
		return n
	}
	dev, ino, _ := strings.Cut(lines[5], ":")
	c.PID = int(number(lines[1], 10, math.MaxInt32))
	c.Registration = fileID{number(dev, 10, math.MaxUint64), number(ino, 10, math.MaxUint64)}
	if len(lines) == 12 {
		c.State = &stateRoot{
			Path:   lines[7],
			fileID: fileID{number(lines[8], 10, math.MaxUint64), number(lines[9], 10, math.MaxUint64)},
			UID:    int(number(lines[10], 10, math.MaxUint32)),
			Mode:   uint32(number(lines[11], 8, 0o177777)),
		}
		ok = ok && filepath.IsAbs(c.State.Path)
	}
	if !ok || c.PID == 0 {
		return nil, errClaim
	}
	return c, nil
}

// isClaimToken also keeps the token from leading anywhere as part of a name.
func isClaimToken(s string) bool {
	return s != "" && len(s) <= 128 && s[0] != '.' && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	})
}

// writeClaim publishes a claim in one step. The caller holds the source lock. A
// crash before the rename leaves a ".hawser." file that the next writer under
// the same lock replaces.
//
// It is visible, not durable: a restart of the machine ends every claim.
func writeClaim(claims *dirfd.Dir, source string, c *claim) error {
	temp := home.TempPrefix + source
	if err := claims.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(fault.IO, err, "cannot clear the leftover %s", fault.Path(filepath.Join(claims.Path(), temp)))
	}
	return home.WriteVisible(claims, temp, claims, source+claimSuffix, c.encode())
}

// renewClaim gives a claim the time that it is now, if it has the token. A claim
// that is older than the boot is stale, whatever it says; when the clock of the
// machine jumps ahead, so does the time of its boot, over claims of live runners.
func renewClaim(claims *dirfd.Dir, source, token string) {
	data, _, err := readFile(claims, source+claimSuffix, claimLimit)
	if err != nil {
		return
	}
	if c, err := parseClaim(data); err == nil && c.Token == token {
		now := unix.NsecToTimespec(time.Now().UnixNano())
		_ = unix.UtimesNanoAt(claims.Fd(), source+claimSuffix, []unix.Timespec{now, now}, unix.AT_SYMLINK_NOFOLLOW)
	}
}
