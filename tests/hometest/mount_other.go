//go:build !linux

package hometest

import "errors"

// Mount mounts nothing: only Linux is known here.
func Mount(at, options string) error { return errors.ErrUnsupported }

// Unmount unmounts nothing.
func Unmount(at string) error { return errors.ErrUnsupported }
