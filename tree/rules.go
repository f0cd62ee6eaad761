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

// judge applies the rules to what is below a root, for one user, whose files they
// must be.
type judge struct {
	Rules
	root place
	user uint32
}

func (r Rules) judge(root *dirfd.Dir) judge {
	return judge{r, place{root, ""}, uint32(os.Geteuid())}
}

// check refuses what no package may hold.
func (j judge) check(info dirfd.Info, at place) error {
	modes := j.File
	switch {
	case info.IsLink():
		return fault.New(fault.LinkUnsafe, "%s is a symbolic link; a package holds files and directories only: replace it by a copy of what it leads to", at)
	case info.IsDir():
		modes = j.Dir
	case !info.IsRegular():
		return fault.New(fault.PackageInvalid, "%s is neither a file nor a directory", at)
	case info.Nlink != 1:
		return fault.New(fault.LinkUnsafe, "%s has %d hard links; a package's file has one: replace it by a copy", at, info.Nlink)
	}
	if info.UID != j.user && len(modes) == 0 {
		return fault.New(fault.OwnerMismatch, "%s belongs to user %d, not to user %d who runs this; for the whole package: chown -R %[3]d %[4]s", at, info.UID, j.user, j.root)
	}
	if info.UID != j.user {
		return fault.New(fault.OwnerMismatch, "%s belongs to user %d, not to user %d who runs this", at, info.UID, j.user)
	}
	if len(modes) == 0 && info.Perm()&0o022 != 0 {
		return fault.New(fault.ModeUnsafe, "%s can be written by other users (mode %04o); for the whole package: chmod -R go-w %s", at, info.Perm(), j.root)
	}
	if len(modes) > 0 && !slices.Contains(modes, info.Perm()) {
		return fault.New(fault.ModeUnsafe, "%s has mode %04o instead of %s", at, info.Perm(), octal(modes))
	}
	return nil
}

// checkDir checks an open directory itself.
func (j judge) checkDir(dir *dirfd.Dir) error {
	info, err := dir.Info()
	if err != nil {
		return ioFault(err, "cannot read %s", place{dir, ""})
	}
	return j.check(info, place{dir, ""})
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
