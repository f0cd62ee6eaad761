package tree

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/wire"
)

// The size of a package (wire: Limits). Both are what is still allowed.
const (
	MaxEntries = 4096             // directories and files below the root
	MaxBytes   = 64 * 1024 * 1024 // of file content
)

// Rules says which modes a tree may have. An empty list allows every mode that
// lets neither the group nor others write; else the twelve permission bits must
// be one of the list.
type Rules struct {
	Dir  []uint32 // directories, the root included
	File []uint32
}

// SourceRules returns the rules of a directory that a package comes from:
// installing normalizes its modes.
func SourceRules() Rules { return Rules{} }

// check refuses what no package may hold. The path is for the message.
func (r Rules) check(info dirfd.Info, path func() string) error {
	modes := r.File
	switch {
	case info.IsLink():
		return fault.New(fault.LinkUnsafe, "%s is a symbolic link; a package holds files and directories only", fault.Path(path()))
	case info.IsDir():
		modes = r.Dir
	case !info.IsRegular():
		return fault.New(fault.PackageInvalid, "%s is neither a file nor a directory", fault.Path(path()))
	case info.Nlink != 1:
		return fault.New(fault.LinkUnsafe, "%s has %d hard links; a package's file has one: replace it by a copy", fault.Path(path()), info.Nlink)
	}
	if user := os.Geteuid(); int(info.UID) != user {
		return fault.New(fault.OwnerMismatch, "%s belongs to user %d, not to user %d who runs this", fault.Path(path()), info.UID, user)
	}
	if len(modes) == 0 && info.Perm()&0o022 != 0 {
		return fault.New(fault.ModeUnsafe, "%s can be written by other users (mode %04o): chmod go-w", fault.Path(path()), info.Perm())
	}
	if len(modes) > 0 && !slices.Contains(modes, info.Perm()) {
		return fault.New(fault.ModeUnsafe, "%s has mode %04o instead of %s", fault.Path(path()), info.Perm(), octal(modes))
	}
	return nil
}

// checkDir checks an open directory itself.
func (r Rules) checkDir(dir *dirfd.Dir) error {
	info, err := dir.Info()
	if err != nil {
		return ioFault(err, "cannot read %s", fault.Path(dir.Path()))
	}
	return r.check(info, dir.Path)
}

func octal(modes []uint32) string {
	words := make([]string, len(modes))
	for i, mode := range modes {
		words[i] = fmt.Sprintf("%04o", mode)
	}
	return strings.Join(words, " or ")
}

// validName reports whether name may be a path component in a package.
func validName(name string) bool { return utf8.ValidString(name) && !wire.HasControl(name) }
