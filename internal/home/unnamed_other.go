//go:build !linux

package home

import (
	"os"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
)

// unnamed: elsewhere than Linux there is no file without a name; a config
// directory on another file system is refused by the rename itself (io).
func unnamed(_, _ *dirfd.Dir) (*os.File, error) { return nil, nil }

func linkUnnamed(*os.File, *dirfd.Dir, string, []byte) error {
	return fault.New(fault.PlatformUnsupported, "no unnamed files on this system")
}
