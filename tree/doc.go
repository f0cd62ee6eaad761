// Package tree is a package directory: what may be in it, its entries, and its
// one digest. It knows no manifests and no homes.
//
// Its one idea: a directory is looked at once as a structure and once as
// content, and both must agree.
//
//   - [Scan] walks the structure and reads no content: it refuses what a package
//     may not hold, and stops at the limits. The result is a [Scanned].
//   - [Scanned.Hash] and [Scanned.CopyTo] read each file once; the bytes that are
//     hashed are the bytes that are copied. A file or directory that is not
//     exactly what the scan saw, before and after it was read, is refused. The
//     result is a [Tree], which only this package can make. [Verify] does both
//     in one pass for a tree whose digest is known.
//
// # What may be in a package
//
// Directories and regular files, below a root that is one of them (the contract:
// Discovery and package installation):
//
//   - no symbolic link and no second hard link of a file (link-unsafe)
//   - nothing else: no FIFO, socket or device (package-invalid)
//   - nothing of another user, the root included (owner-mismatch)
//   - no mode that the [Rules] refuse, the root included (mode-unsafe)
//   - no name that is not UTF-8 or holds a control character (package-invalid)
//   - at most [MaxEntries] entries and [MaxBytes] bytes (package-oversized)
//
// # The tree digest
//
// SHA-256 over the ASCII text "firstmate-package-tree-v1", a NUL, then a record
// an entry (wire: Digests and identities):
//
//	D NUL <path> NUL x NUL
//	F NUL <path> NUL <x or -> NUL <size> NUL <content digest> NUL
//
// Entries are walked depth first, in each directory in the byte order of their
// names, a directory before its content; the root has no record. That is not
// the byte order of whole paths: "a", "a/b", "a.txt". A file is x when any of
// its three execute bits is set.
//
// # Bounds
//
// A walk holds one descriptor a level of depth, two while copying: a tree
// deeper than the descriptors that the process may open is refused with the
// system's words (io), like every other failure to read or write. Memory holds
// the entries (at most MaxEntries) and a buffer for each of the GOMAXPROCS files
// that are read at once, whatever their sizes. With GOMAXPROCS 1 everything
// happens on the calling goroutine.
package tree
