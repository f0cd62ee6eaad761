package procevent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/lifecycle"
	"hawser/lifecycle/filelock"
)

// DefaultMaxOutput is how much of a built-in's output is captured.
const DefaultMaxOutput = 1_048_576

// Host runs the sources of one home. Its methods may be called by several
// processes at once.
type Host struct {
	*lifecycle.Host

	// Claims is the directory of the machine-wide claims.
	Claims string
	// MaxOutput bounds the captured output of a built-in, in bytes.
	MaxOutput int
}

// NewHost finds where the claims are and how much of a built-in's output is
// captured (home: Claim; wire: Limits). env is os.Getenv or a stand-in.
//
// Errors: usage for a malformed FM_PROCEVENT_MAX_OUTPUT_BYTES; home-invalid
// when there is no place for claims.
func NewHost(h *lifecycle.Host, env func(string) string) (*Host, error) {
	host := &Host{Host: h, MaxOutput: DefaultMaxOutput}
	switch {
	case env("FM_PROCEVENT_CLAIM_ROOT") != "":
		host.Claims = env("FM_PROCEVENT_CLAIM_ROOT")
	case env("XDG_STATE_HOME") != "":
		host.Claims = filepath.Join(env("XDG_STATE_HOME"), "firstmate/procevent-claims")
	case env("HOME") != "":
		host.Claims = filepath.Join(env("HOME"), ".local/state/firstmate/procevent-claims")
	default:
		return nil, fault.New(fault.HomeInvalid, "no place for the claims of sources: set HOME, XDG_STATE_HOME or FM_PROCEVENT_CLAIM_ROOT")
	}
	if !filepath.IsAbs(host.Claims) {
		return nil, fault.New(fault.HomeInvalid, "the claim root %s is not an absolute path; set FM_PROCEVENT_CLAIM_ROOT to one", fault.Path(host.Claims))
	}
	if text := env("FM_PROCEVENT_MAX_OUTPUT_BYTES"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, fault.New(fault.Usage, "FM_PROCEVENT_MAX_OUTPUT_BYTES=%s: must be a positive number of bytes", fault.Path(text))
		}
		host.MaxOutput = n
	}
	return host, nil
}

// CheckSource checks a source id as a person gives it. Errors: usage.
func CheckSource(source string) error {
	if must := wire.CheckSourceID(source); must != "" {
		return fault.New(fault.Usage, "source id %s: must be %s", fault.Path(source), must)
	}
	return nil
}

// CheckAdapter checks an adapter name as a person gives it. Errors: usage.
func CheckAdapter(adapter string) error {
	if must := wire.CheckAdapter(adapter); must != "" {
		return fault.New(fault.Usage, "adapter %s: must be %s", fault.Path(adapter), must)
	}
	return nil
}

// claims opens the claim root, creating it when asked: outside any home, for
// all homes of this user, so its path may lead over the user's own links. It is
// nil, without an error, when there is none.
//
// Errors: owner-mismatch, mode-unsafe; io.
func (h *Host) claims(create bool) (*dirfd.Dir, error) {
	if create {
		if err := mkdirExact(h.Claims); err != nil {
			return nil, fault.Wrap(fault.IO, err, "cannot create the claim root %s", fault.Path(h.Claims))
		}
	}
	dir, err := openFollowing(h.Claims)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	info, err := dir.Info()
	switch {
	case err != nil:
		err = fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(dir.Path()))
	case int(info.UID) != os.Geteuid():
		err = fault.New(fault.OwnerMismatch, "the claim root %s belongs to uid %d, not to you; set FM_PROCEVENT_CLAIM_ROOT", fault.Path(dir.Path()), info.UID)
	case info.Perm()&0o022 != 0:
		err = fault.New(fault.ModeUnsafe, "others may write to the claim root %s (mode %04o); run: chmod go-w %[1]s", fault.Path(dir.Path()), info.Perm())
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// mkdirExact makes a directory with mode 0700 whatever the umask, and what is
// missing above it, unless it is there.
func mkdirExact(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return os.Chmod(path, 0o700)
}

// openFollowing opens a directory by its canonical path, whatever links led to
// it.
//
// Errors: one that is fs.ErrNotExist; io.
func openFollowing(path string) (*dirfd.Dir, error) {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, linkErr := os.Lstat(path); linkErr == nil {
			return nil, fault.New(fault.PathUnsafe, "%s is a link that leads nowhere; move it away", fault.Path(path))
		}
		return nil, err
	}
	var dir *dirfd.Dir
	if err == nil {
		dir, err = dirfd.Open(real)
	}
	return dir, fault.Wrap(fault.IO, err, "cannot open %s", fault.Path(path))
}

// lockSource takes the machine-wide lock of a source.
//
// Errors: lock-unavailable after the lock timeout; those of filelock.Acquire.
func (h *Host) lockSource(ctx context.Context, claims *dirfd.Dir, source, command string) (*filelock.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, h.lockTimeout())
	defer cancel()
	return filelock.Acquire(ctx, claims, source+".flock", command+" "+source, h.Waiting)
}

func (h *Host) lockTimeout() time.Duration {
	if h.LockTimeout > 0 {
		return h.LockTimeout
	}
	return lifecycle.DefaultLockTimeout
}

// place opens a directory of state. For external sources it is checked as every
// directory of a home is. Built-in sources keep their older ways: a state root
// that is a link or has looser modes still serves them (home: A home on disk).
//
// Errors: one that is fs.ErrNotExist; those of home.Open when external; io.
func (h *Host) place(external bool, place string) (*dirfd.Dir, error) {
	if external {
		return h.Home.Open(place)
	}
	return openFollowing(h.Home.Join(place))
}

// makePlace is place that creates what is missing, with mode 0700 whatever the
// umask and the parent's set-group bit: an external source may come later.
func (h *Host) makePlace(external bool, place string) (*dirfd.Dir, error) {
	if external {
		return h.Home.Make(nil, place)
	}
	path := h.Home.Join(place)
	dir, err := openFollowing(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	parent, err := h.makeParent(place)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	made, err := parent.Mkdir(filepath.Base(path), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return openFollowing(path) // somebody else was faster
	}
	return made, fault.Wrap(fault.IO, err, "cannot create %s", fault.Path(path))
}

// makeParent opens what is above a place of state, above the state root by any
// way that leads there.
func (h *Host) makeParent(place string) (*dirfd.Dir, error) {
	if place != home.State {
		return h.makePlace(false, home.State)
	}
	path := filepath.Dir(h.Home.State)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot create %s", fault.Path(path))
	}
	return openFollowing(path)
}
