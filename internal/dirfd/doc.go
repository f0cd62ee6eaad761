// Package dirfd is a directory held by its descriptor.
//
// Its one idea: a path is resolved once, by [Open], and no component of it may
// be a symbolic link; from then on everything happens below the descriptor, by
// single names, and never by resolving a path again. What was checked is then
// what is used, even while somebody renames directories or swaps a leaf for a
// link in between (processes: Opening files).
//
// Guarantees:
//
//   - No call follows a symbolic link, in any component. A link where a file or
//     directory is wanted is [ErrLink], told apart from an absent name.
//   - Opening never blocks and never has an effect: a FIFO, socket or device is
//     looked at and refused ([ErrNotRegular]), not opened.
//   - Modes are exact: set by fchmod, whatever the umask, and without the
//     set-group bit that a directory inherits from its parent.
//   - A name that is empty, "." or "..", or that holds a slash or a NUL is
//     refused before the kernel sees it.
//   - A call works on the calling goroutine's thread, retries EINTR, and starts
//     no goroutine: a test can count and fail system calls per thread.
//
// Errors are [*fs.PathError] (or [*os.LinkError] for the renames) with the full
// path, for a person, and the errno, for errors.Is. Which refusal a failure
// means is for the caller to say; this package makes no faults.
package dirfd
