// Package cas is the content-addressed store of installed packages: a tree
// becomes a read-only directory that is named by its digest. It does not know
// what a package is for.
//
// Its one idea: a name in the store is either absent or a whole package. A
// package is written under a temporary name, made durable, and published by one
// rename that replaces nothing; from then on it is never written again, and
// whoever uses it proves first that it still is what its name says. A [Package]
// is that proof: only this package makes one.
//
// # Layout
//
// Below the home's packages directory (the contract: A home on disk):
//
//	<id>/<version>/                      0700
//	    <tree digest in hex>/            0555
//	        ...                          0555 directories and executables, 0444 files
//	    .hawser.<random>/                a package being written, or the leftover of a crash
//	    .damaged.<tree digest>.<n>/      what a repair has moved aside, for a person to look at
//
// Modes are exact, whatever the umask, the modes of the source and the set-group
// bit of the parent.
//
// # Concurrency and crashes
//
// [Install], [MoveAside] and [Collect] are called with the home's lifecycle lock
// held. Under it every temporary name is a leftover, and Install and Collect
// remove it. [Open] and the methods of Package need no lock and take none. What
// a crash leaves after each step stands at Install.
package cas
