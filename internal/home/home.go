package home

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
)

// Home is one effective home: three canonical paths and no open descriptor.
// It is a value, safe for concurrent use.
type Home struct {
	Path  string // the home
	Root  string // the root of the installed programs, which holds bin/
	State string // the state root: <home>/state, or FM_STATE_OVERRIDE
}

// Locate finds the effective home (home: "A home on disk"): FM_HOME, else
// FM_ROOT_OVERRIDE, else the root that the program exe is installed in. A home
// named through a link is used by its canonical path. env is os.Getenv or a
// stand-in, exe the absolute path of the running program.
//
// Errors: home-invalid.
func Locate(env func(string) string, exe string) (*Home, error) {
	root, rootErr := installedRoot(exe)
	if v := env("FM_ROOT_OVERRIDE"); v != "" {
		root, rootErr = canonical("FM_ROOT_OVERRIDE", v)
	}
	path, err := root, rootErr
	if v := env("FM_HOME"); v != "" {
		path, err = canonical("FM_HOME", v)
	}
	if err == nil && env("FM_ROOT_OVERRIDE") != "" {
		err = rootErr // built-in adapters were said to be there
	}
	if err != nil {
		return nil, err
	}
	if rootErr != nil {
		// Only the built-in adapters live in the root; a home that was named
		// needs none.
		root = ""
	}
	h := &Home{Path: path, Root: root, State: filepath.Join(path, "state")}
	if v := env("FM_STATE_OVERRIDE"); v != "" {
		if err := recordable("FM_STATE_OVERRIDE", v); err != nil {
			return nil, err
		}
		if !filepath.IsAbs(v) {
			return nil, fault.New(fault.HomeInvalid, "FM_STATE_OVERRIDE: %s is not an absolute path", fault.Path(v))
		}
		h.State = filepath.Clean(v)
	}
	return h, nil
}

func installedRoot(exe string) (string, error) {
	real, err := filepath.EvalSymlinks(exe)
	if err != nil {
		return "", fault.Wrap(fault.HomeInvalid, err, "the program's own path %s cannot be followed; set FM_HOME", fault.Path(exe))
	}
	dir := filepath.Dir(real)
	if filepath.Base(dir) != "bin" {
		return "", fault.New(fault.HomeInvalid, "no home: set FM_HOME to one (this program is not installed as <root>/bin/%s)", filepath.Base(real))
	}
	return filepath.Dir(dir), recordable("the installed root", filepath.Dir(dir))
}

func canonical(name, value string) (string, error) {
	abs := value
	if !filepath.IsAbs(abs) {
		cwd, err := os.Getwd()
		if err != nil {
			return "", fault.Wrap(fault.HomeInvalid, err, "%s: %s is relative to a directory that cannot be read", name, fault.Path(value))
		}
		abs = filepath.Join(cwd, value)
	}
	real, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fault.New(fault.HomeInvalid, "%s: no directory %s; create it first: mkdir -m 700 %[2]s", name, fault.Path(abs))
	}
	if err != nil {
		return "", fault.Wrap(fault.HomeInvalid, err, "%s: %s", name, fault.Path(abs))
	}
	if info, err := os.Stat(real); err != nil || !info.IsDir() {
		return "", fault.New(fault.HomeInvalid, "%s: %s is not a directory", name, fault.Path(abs))
	}
	return real, recordable(name, real)
}

// recordable refuses a path that a line-based record or a message could not
// carry (home: Registration, Claim).
func recordable(name, path string) error {
	if !utf8.ValidString(path) || strings.ContainsFunc(path, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
		return fault.New(fault.HomeInvalid, "%s: %q holds a control character or is not UTF-8, which no record can hold", name, path)
	}
	if len(path) > 4096 {
		return fault.New(fault.HomeInvalid, "%s: the path is longer than 4096 bytes", name)
	}
	return nil
}

// BuiltinAdapter reports whether the root holds a built-in script for the
// adapter, whatever it is: a name that stands there is taken.
func (h *Home) BuiltinAdapter(name string) (bool, error) {
	if h.Root == "" {
		return false, nil
	}
	path := filepath.Join(h.Root, "bin", "fm-procevent-"+name+".sh")
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return false, nil
	}
	return err == nil, fault.Wrap(fault.IO, err, "cannot tell whether %s is a built-in adapter", fault.Path(path))
}

// The places of a home, relative to it or, with a leading "state/", to its
// state root.
const (
	Bindings        = "config/extensions.d"
	Config          = "config"
	Data            = "data/extensions"
	Packages        = "data/extensions/packages"
	Staging         = "data/extensions/staging"
	RetiredBindings = "data/extensions/retired-bindings"
	RetiredStaging  = "data/extensions/retired-staging"
	State           = "state"
	ExtensionState  = "state/extensions"
	Invocations     = "state/extension-invocations"
	Procevent       = "state/procevent"
	Inbox           = "state/procevent-inbox"
)

// Join gives the absolute path of a place and names below it, for messages and
// for what goes into documents.
func (h *Home) Join(place string, names ...string) string {
	base := filepath.Join(h.Path, place)
	if rest, ok := strings.CutPrefix(place, "state"); ok && (rest == "" || rest[0] == '/') {
		base = filepath.Join(h.State, rest)
	}
	return filepath.Join(append([]string{base}, names...)...)
}

// Open opens a place of the home, and the directories below it that names
// lists, each checked. It creates nothing.
//
// Errors: one that is fs.ErrNotExist when a directory on the way is absent;
// path-unsafe, owner-mismatch, mode-unsafe; io.
func (h *Home) Open(place string, names ...string) (*dirfd.Dir, error) {
	return h.walk(nil, place, names)
}

// Make is Open that creates what is missing, each directory in one step with
// its exact mode. What it created is remembered in made, whose Sync makes it
// durable; a nil made forgets it.
func (h *Home) Make(made *Made, place string, names ...string) (*dirfd.Dir, error) {
	if made == nil {
		made = new(Made)
		defer made.Forget()
	}
	return h.walk(made, place, names)
}

// walk opens the place from the home (or the state root) down, one component at
// a time, checking each by what was opened.
func (h *Home) walk(made *Made, place string, names []string) (*dirfd.Dir, error) {
	parts := append(strings.Split(place, "/"), names...)
	base := h.Path
	if parts[0] == "state" && h.State != filepath.Join(h.Path, "state") {
		// An overridden state root stands for "state" itself.
		base, parts = filepath.Dir(h.State), append([]string{filepath.Base(h.State)}, parts[1:]...)
	}
	dir, err := dirfd.Open(base)
	if made != nil && errors.Is(err, fs.ErrNotExist) {
		return nil, h.noBase(base)
	}
	if err != nil {
		return nil, openFault(err, base)
	}
	if base == h.Path {
		if err := checkOpen(dir, checkOwner); err != nil {
			dir.Close()
			return nil, err
		}
	}
	for i, name := range parts {
		next, err := dir.Sub(name)
		if made != nil && errors.Is(err, fs.ErrNotExist) {
			next, err = made.mkdir(dir, name)
		}
		check := checkPrivate
		if i == 0 {
			check = checkTop
		}
		path := filepath.Join(dir.Path(), name)
		if errors.Is(err, fs.ErrPermission) {
			// Perhaps a mode or an owner that keeps us out too.
			if info, statErr := dir.Lstat(name); statErr == nil && info.IsDir() {
				if unsafe := check(path, info); unsafe != nil {
					err = unsafe
				}
			}
		}
		dir.Close()
		if err != nil {
			return nil, openFault(err, path)
		}
		dir = next
		if err := checkOpen(dir, check); err != nil {
			dir.Close()
			return nil, err
		}
	}
	return dir, nil
}

// noBase refuses to make anything below a directory that is not there: neither
// the home itself nor what an overridden state root is in is ours to make.
func (h *Home) noBase(base string) error {
	if base == h.Path {
		return fault.New(fault.HomeInvalid, "the home %s is gone", fault.Path(base))
	}
	return fault.New(fault.HomeInvalid, "FM_STATE_OVERRIDE: no directory %s; create it first: mkdir -p -m 700 %[1]s", fault.Path(base))
}

func openFault(err error, path string) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return err
	case fault.CodeOf(err) != fault.Internal:
		return err
	case errors.Is(err, dirfd.ErrLink):
		return fault.New(fault.PathUnsafe, "%s is a link, or is reached through one; a home's directories are real ones", fault.Path(path))
	case errors.Is(err, syscall.ENOTDIR):
		return fault.New(fault.PathUnsafe, "%s is not a directory; move it away", fault.Path(path))
	}
	return fault.Wrap(fault.IO, err, "cannot open %s", fault.Path(path))
}

// checkOpen holds what was opened against one of the checks below.
func checkOpen(dir *dirfd.Dir, check func(path string, info dirfd.Info) error) error {
	info, err := dir.Info()
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(dir.Path()))
	}
	return check(dir.Path(), info)
}

func checkOwner(path string, info dirfd.Info) error {
	if int(info.UID) != os.Geteuid() {
		return fault.New(fault.OwnerMismatch, "%s belongs to uid %d, not to you (uid %d); use a home of your own", fault.Path(path), info.UID, os.Geteuid())
	}
	return nil
}

// checkTop is for config, data and state.
func checkTop(path string, info dirfd.Info) error {
	if err := checkOwner(path, info); err != nil {
		return err
	}
	if info.Perm()&0o022 != 0 {
		return fault.New(fault.ModeUnsafe, "%s has mode %04o: others may write to it; run: chmod go-w %[1]s", fault.Path(path), info.Perm())
	}
	return nil
}

// checkPrivate is for everything below them.
func checkPrivate(path string, info dirfd.Info) error {
	if err := checkOwner(path, info); err != nil {
		return err
	}
	if info.Perm() != 0o700 {
		return fault.New(fault.ModeUnsafe, "%s has mode %04o instead of 0700; run: chmod 0700 %[1]s", fault.Path(path), info.Perm())
	}
	return nil
}
