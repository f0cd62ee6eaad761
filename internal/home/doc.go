// Package home knows the layout of a home and opens its directories.
//
// A home is a directory of the operator's that holds, below config/, data/ and
// state/, everything Hawser keeps: the contract's page "A home on disk" is the
// list. This package turns the environment into a Home, opens each of its
// directories by descriptor with every check that the contract asks for, and
// reads and writes the small private files in them. It knows what the
// line-based records say (registrations, owners of captured results), because
// several rooms read them, but not what anybody does about it.
//
// # What is checked
//
// From the home down, every directory of ours on the way is a real directory of
// the current user, never a link. config, data and state may have any mode that
// is not group- or world-writable; every directory below them is exactly 0700,
// every file exactly 0600 with one link. A refusal is path-unsafe, link-unsafe,
// owner-mismatch or mode-unsafe, names the path and what to run, and comes
// before anything is written. Functions named Open… create nothing; functions
// named Make… create what is missing.
//
// # Temporaries
//
// Everything temporary is named ".hawser." and a suffix, and is made where the
// contract allows it: in data/extensions for bindings, receipts and retained
// files, in the state root for state, beside a new directory for the directory
// itself. Publication is one rename. What a crash leaves under such a name is
// cleared by the next holder of the lifecycle lock.
package home
