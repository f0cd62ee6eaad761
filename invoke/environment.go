package invoke

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"hawser/binding"
	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
)

const pathFile = "extensions.path"

// environment is the whole environment of a package's process (processes:
// Environment of the child). token is the operation's private word, by which
// recovery recognizes members of a group whose leader is gone.
func environment(h *home.Home, b *binding.Binding, token wire.Digest) ([]string, error) {
	path, err := searchPath(h)
	if err != nil {
		return nil, err
	}
	env := []string{
		"PATH=" + path,
		"LANG=C",
		"LC_ALL=C",
		"FIRSTMATE_EXTENSION_ID=" + b.ExtensionID,
		"FIRSTMATE_EXTENSION_VERSION=" + b.ExtensionVersion,
		"FIRSTMATE_EXTENSION_STATE=" + h.Join(home.ExtensionState, b.ExtensionID),
	}
	if b.Consents.CredentialStore {
		for _, name := range []string{"HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "SSH_AUTH_SOCK"} {
			if value, ok := os.LookupEnv(name); ok {
				env = append(env, name+"="+value)
			}
		}
	}
	return append(env, tokenVariable+"="+string(token)), nil
}

// searchPath is the fixed PATH, preceded by the directories that the operator
// listed in config/extensions.path: absolute, owned by root or the user, and
// writable by no one else.
//
// Errors: path-unsafe, owner-mismatch, mode-unsafe, link-unsafe, io.
func searchPath(h *home.Home) (string, error) {
	fixed := "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
	if runtime.GOOS == "darwin" {
		fixed = "/opt/homebrew/bin:" + fixed
	}
	config, err := h.Open(home.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return fixed, nil
	}
	if err != nil {
		return "", err
	}
	defer config.Close()
	data, err := home.ReadPrivate(config, pathFile, envelopeLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return fixed, nil
	}
	if err != nil {
		return "", err
	}
	name := h.Join(home.Config, pathFile)
	if len(data) > envelopeLimit {
		return "", fault.New(fault.PathUnsafe, "%s is longer than %d bytes", fault.Path(name), envelopeLimit)
	}
	dirs, err := parseSearchPath(name, data)
	if err != nil {
		return "", err
	}
	for _, dir := range dirs {
		if err := checkSearchDir(name, dir); err != nil {
			return "", err
		}
	}
	return strings.Join(append(dirs, fixed), ":"), nil
}

// parseSearchPath reads the lines of the file: directories in form only. Empty
// lines are passed over.
func parseSearchPath(file string, data []byte) ([]string, error) {
	var dirs []string
	for line := range strings.SplitSeq(string(data), "\n") {
		switch {
		case line == "":
		case wire.CheckBindingPath(line) != "" || strings.Contains(line, ":"):
			return nil, fault.New(fault.PathUnsafe, "%s: %s is not an absolute, clean path without a colon; correct the line", fault.Path(file), fault.Path(line))
		default:
			dirs = append(dirs, line)
		}
	}
	return dirs, nil
}

func checkSearchDir(file, dir string) error {
	open, err := dirfd.Open(dir)
	if real, evalErr := filepath.EvalSymlinks(dir); errors.Is(err, dirfd.ErrLink) && evalErr == nil {
		return fault.New(fault.PathUnsafe, "%s: %s is reached through a link; write %s instead", fault.Path(file), fault.Path(dir), fault.Path(real))
	}
	if err != nil {
		return fault.Wrap(fault.PathUnsafe, err, "%s: %s is not a real directory; correct or remove the line", fault.Path(file), fault.Path(dir))
	}
	defer open.Close()
	info, err := open.Info()
	switch {
	case err != nil:
		return fault.Wrap(fault.IO, err, "%s: cannot read %s", fault.Path(file), fault.Path(dir))
	case info.UID != 0 && int(info.UID) != os.Geteuid():
		return fault.New(fault.OwnerMismatch, "%s: %s belongs to uid %d, neither root nor you; remove the line", fault.Path(file), fault.Path(dir), info.UID)
	case info.Perm()&0o022 != 0:
		return fault.New(fault.ModeUnsafe, "%s: others may write to %s (mode %04o); run: chmod go-w %[2]s", fault.Path(file), fault.Path(dir), info.Perm())
	}
	return nil
}
