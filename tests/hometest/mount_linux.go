package hometest

import "golang.org/x/sys/unix"

// Mount mounts an empty file system of its own on the directory at, with options
// such as "size=1m". It needs root.
func Mount(at, options string) error { return unix.Mount("hawser-test", at, "tmpfs", 0, options) }

// Remount gives what Mount mounted other options.
func Remount(at, options string) error {
	return unix.Mount("hawser-test", at, "tmpfs", unix.MS_REMOUNT, options)
}

// Unmount unmounts what Mount mounted.
func Unmount(at string) error { return unix.Unmount(at, unix.MNT_DETACH) }
