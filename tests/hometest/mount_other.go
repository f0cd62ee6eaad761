//go:build !linux

package hometest

import "errors"

// Mount, Remount and Unmount fail: only Linux is known here.
func Mount(at, options string) error   { return errors.ErrUnsupported }
func Remount(at, options string) error { return errors.ErrUnsupported }
func Unmount(at string) error          { return errors.ErrUnsupported }
