package procevent

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"unicode/utf8"

	"hawser/binding"
	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/lifecycle"
)

const (
	registrationSuffix = ".source"
	runnerSuffix       = ".runner"
	registrationLimit  = 1 << 20
	commandLimit       = registrationLimit - 4096 // the rest of a record is less
)

// registered is a registration and the file that it was read from.
type registered struct {
	*home.Registration
	file dirfd.File // held open, so that its inode number is not given out again
	id   fileID     // of the file, as a claim names it
}

func (r *registered) external() bool { return r.Owner != nil }

func (r *registered) close() { r.file.Close() }

// read opens and parses the registration of a source. What turns out to be
// external must be a private file in checked directories; a built-in one may be
// where and how older programs left it.
//
// Errors: source-missing; registration-invalid; those of home.Open and
// home.OpenPrivate for an external one; io.
func (h *Host) read(source string) (*registered, error) {
	missing := fault.New(fault.SourceMissing, "source %s is not registered in this home; see fm-procevent list", source)
	dir, err := h.place(false, home.Procevent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	r, err := readFrom(dir, source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing
	}
	if err != nil {
		return nil, err
	}
	if r.external() {
		err = h.checkExternal(r)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// readIfAny is read that returns nil for a source that is not registered.
func (h *Host) readIfAny(source string) (*registered, error) {
	reg, err := h.read(source)
	if fault.Is(err, fault.SourceMissing) {
		return nil, nil
	}
	return reg, err
}

// readFrom reads a registration from an open directory.
func readFrom(dir *dirfd.Dir, source string) (*registered, error) {
	name := source + registrationSuffix
	path := filepath.Join(dir.Path(), name)
	file, info, data, err := openRead(dir, name, registrationLimit)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, err
	case errors.Is(err, dirfd.ErrLink), errors.Is(err, dirfd.ErrNotRegular):
		return nil, fault.New(fault.RegistrationInvalid, "%s is not a regular file; move it away", fault.Path(path))
	case err != nil:
		return nil, fault.Wrap(fault.IO, err, "cannot open %s", fault.Path(path))
	}
	if len(data) > registrationLimit {
		err = fault.New(fault.RegistrationInvalid, "%s is longer than %d bytes; move it away", fault.Path(path), registrationLimit)
	}
	var reg *home.Registration
	if err == nil {
		reg, err = home.ParseRegistration(source, data)
		if err != nil {
			err = fault.Wrap(fault.RegistrationInvalid, err, "%s; read it, then move it away and register again", fault.Path(path))
		}
	}
	if euid := os.Geteuid(); err == nil && int(info.UID) != euid && (reg.Owner != nil || info.UID != 0) {
		// What is registered runs as us: that is nobody else's to say, wherever the
		// record is.
		err = fault.New(fault.OwnerMismatch, "%s belongs to uid %d, not to you; move it away", fault.Path(path), info.UID)
	}
	if err == nil && reg.Owner != nil && (info.Perm() != 0o600 || info.Nlink != 1) {
		err = fault.New(fault.ModeUnsafe, "%s has mode %04o and %d links instead of 0600 and one; run: chmod 0600 %[1]s", fault.Path(path), info.Perm(), info.Nlink)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return &registered{reg, file, idOf(info)}, nil
}

// checkExternal refuses an external registration in directories that are not
// as they must be: it is the same file by the checked way.
func (h *Host) checkExternal(r *registered) error {
	dir, err := h.Home.Open(home.Procevent)
	if err != nil {
		return err
	}
	defer dir.Close()
	info, err := dir.Lstat(r.Source + registrationSuffix)
	if err != nil || idOf(info) != r.id {
		return fault.New(fault.PathUnsafe, "the registration of %s was replaced while it was read; try again", r.Source)
	}
	return nil
}

// Register registers a built-in source (commands: register): argv will be
// executed in the runner's environment and directory.
//
// Errors: usage; adapter-unbound when no such built-in is installed;
// source-busy when an external registration of that name may not be replaced;
// registration-invalid for one that cannot be read; lock-unavailable; io.
func (h *Host) Register(ctx context.Context, adapter, source string, argv []string) error {
	if err := cmp.Or(CheckAdapter(adapter), CheckSource(source), CheckCommand(argv)); err != nil {
		return err
	}
	if ok, err := h.Home.BuiltinAdapter(adapter); err != nil {
		return err
	} else if !ok {
		return h.noBuiltin(adapter)
	}
	if err := h.settle(ctx, source, false); err != nil {
		return err
	}
	return h.replace(ctx, &home.Registration{Source: source, Adapter: adapter, Argv: argv})
}

func (h *Host) noBuiltin(adapter string) error {
	const bound = "to register a bound package: fm-procevent register-extension"
	if h.Home.Root == "" {
		return fault.New(fault.AdapterUnbound, "no built-in adapter %s: this program is not installed in a root, whose bin would hold its script; set FM_ROOT_OVERRIDE; %s", adapter, bound)
	}
	return fault.New(fault.AdapterUnbound, "no built-in adapter %s: there is no %s; %s", adapter, fault.Path(h.script(adapter)), bound)
}

// CheckCommand checks a built-in's command as a person gives it: what a
// line-based record can hold (home: Registration). Errors: usage.
func CheckCommand(argv []string) error {
	if len(argv) == 0 || argv[0] == "" {
		return fault.New(fault.Usage, "no command given after --")
	}
	size := 0
	for _, arg := range argv {
		if wire.HasControl(arg) || !utf8.ValidString(arg) {
			return fault.New(fault.Usage, "argument %q holds a control character or is not UTF-8, which no record can hold", arg)
		}
		size += len(arg) + 1
	}
	if size > commandLimit {
		return fault.New(fault.Usage, "a command of %d bytes is longer than the %d that a record can hold; put it into a script", size, commandLimit)
	}
	return nil
}

// CheckConfigRef checks a configuration reference as a person gives it. Errors:
// usage.
func CheckConfigRef(ref string) error {
	if ref == "" {
		return fault.New(fault.Usage, "no --config-ref given: it tells the package what to wait for")
	}
	if must := wire.CheckConfigRef(ref); must != "" {
		return fault.New(fault.Usage, "--config-ref: must be %s", must)
	}
	return nil
}

// RegisterExtension registers a source of a bound package (commands:
// register-extension): resolved, verified, handshaken and recorded under one
// hold of the lifecycle lock. The registration has a fresh token.
//
// Errors: usage; those of lifecycle.Host.Enable; source-busy; io.
func (h *Host) RegisterExtension(ctx context.Context, adapter, source, configRef string) (*home.Registration, error) {
	if err := cmp.Or(CheckAdapter(adapter), CheckSource(source), CheckConfigRef(configRef)); err != nil {
		return nil, err
	}
	var reg *home.Registration
	err := h.Enable(ctx, "register-extension "+source, adapter, func(record binding.Record) error {
		owner := lifecycle.OwnerOf(record)
		reg = &home.Registration{Source: source, Adapter: adapter, Owner: &owner, ConfigRef: configRef, Token: string(wire.RandomToken())}
		if _, err := h.settleLocked(source, true); err != nil {
			return err
		}
		return h.replace(ctx, reg)
	})
	return reg, err
}

// replace publishes a registration under the source lock, replacing an old one
// unless that is an external one with an owner. The file is durable before it
// has its name. A crash before the rename leaves a ".hawser." file that the next
// registration of the source replaces.
func (h *Host) replace(ctx context.Context, reg *home.Registration) error {
	claims, err := h.claims(true)
	if err != nil {
		return err
	}
	defer claims.Close()
	lock, err := h.lockSource(ctx, claims, reg.Source, "register")
	if err != nil {
		return err
	}
	defer lock.Release()
	if err := h.checkReplaceable(claims, reg.Source); err != nil {
		return err
	}
	dir, err := h.makePlace(reg.Owner != nil, home.Procevent)
	if err != nil {
		return err
	}
	defer dir.Close()
	state, err := h.place(reg.Owner != nil, home.State)
	if err != nil {
		return err
	}
	defer state.Close()
	temp := registrationTemp + reg.Source
	_ = state.Remove(temp)
	if err := home.ReplaceDurable(state, temp, dir, reg.Source+registrationSuffix, reg.Encode()); err != nil {
		return err
	}
	forgetFailures(state, reg.Source)
	return nil
}

// checkReplaceable refuses to replace an external registration whose runner is
// live, uncertain, orphaned or terminal-pending (commands). One that cannot be
// read belongs to nobody, and its name is not taken over either.
func (h *Host) checkReplaceable(claims *dirfd.Dir, source string) error {
	old, err := h.readIfAny(source)
	if err != nil || old == nil {
		return err
	}
	defer old.close()
	if !old.external() {
		return nil
	}
	o, err := h.owner(claims, source)
	if err != nil {
		return err
	}
	retire := "retire it first: fm-procevent retire " + source + " --if-owner " + old.Token
	switch {
	case o.live():
		return fault.New(fault.SourceBusy, "source %s has a live runner; %s", source, retire)
	case o.doubt(source) != nil:
		return fault.New(fault.SourceBusy, "%v", o.doubt(source))
	case o.orphaned():
		return fault.New(fault.SourceBusy, "source %s has processes of a dead runner; %s", source, retire)
	case o.claim != nil && o.claim.Terminal:
		return fault.New(fault.SourceBusy, "source %s was reported terminal and is about to go; run fm-procevent reconcile, then register again", source)
	}
	return nil
}
