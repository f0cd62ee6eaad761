package dirfd

import "golang.org/x/sys/unix"

// Info is what the kernel says of a file, as far as anybody here asks. It is
// comparable: two equal values are the same file, unchanged.
type Info struct {
	Dev, Ino uint64
	Mode     uint32 // raw st_mode: type and permissions
	UID      uint32
	Nlink    uint64
	Size     int64 // bytes
	Mtime    int64 // nanoseconds since the epoch
	Ctime    int64
}

// IsDir reports whether it is a directory.
func (i Info) IsDir() bool { return i.Mode&unix.S_IFMT == unix.S_IFDIR }

// IsRegular reports whether it is a regular file.
func (i Info) IsRegular() bool { return i.Mode&unix.S_IFMT == unix.S_IFREG }

// IsLink reports whether it is a symbolic link.
func (i Info) IsLink() bool { return i.Mode&unix.S_IFMT == unix.S_IFLNK }

// Perm returns the twelve permission bits, set-user, set-group and sticky
// included.
func (i Info) Perm() uint32 { return i.Mode & 0o7777 }

// Same reports whether both are the same file, whatever has changed in it.
func (i Info) Same(other Info) bool { return i.Dev == other.Dev && i.Ino == other.Ino }

func fstat(fd int) (Info, error) {
	var st unix.Stat_t
	for {
		if err := unix.Fstat(fd, &st); err == nil {
			return infoOf(&st), nil
		} else if err != unix.EINTR {
			return Info{}, err
		}
	}
}

func lstatat(dir int, name string) (Info, error) {
	var st unix.Stat_t
	for {
		if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
			return infoOf(&st), nil
		} else if err != unix.EINTR {
			return Info{}, err
		}
	}
}

// infoOf converts fields whose types differ between platforms.
func infoOf(st *unix.Stat_t) Info {
	return Info{
		Dev:   uint64(st.Dev),
		Ino:   st.Ino,
		Mode:  uint32(st.Mode),
		UID:   st.Uid,
		Nlink: uint64(st.Nlink),
		Size:  st.Size,
		Mtime: st.Mtim.Nano(),
		Ctime: st.Ctim.Nano(),
	}
}
