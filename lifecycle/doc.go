// Package lifecycle is a home's transactions: bind, verify, retire, repair,
// restore, and the operations of a bound package, under the home's lifecycle
// lock (seed: Enabled binding; processes: An operation, step by step).
//
// # What is state
//
// A binding is enabled when its file stands in config/extensions.d, and by
// nothing else. Every command that changes that does it in one rename, after
// everything that the file speaks of is durable, and prints only after the
// rename is. Whatever a crash leaves before that rename is inert: an installed
// package that no binding names, or something with a ".hawser." name, which the
// next mutating command clears under the lock.
//
// # A command that was killed after its rename
//
// It has done its work and never said so. So that its repetition can, each
// command leaves a note before the rename (note.go) and removes it when it has
// printed. The same command, finding the note of a dead process and its work
// done, finishes and says so; without a note the same state is a refusal
// (binding-exists, binding-missing).
//
// # Two commands at once
//
// The lock orders everything that changes a binding. list and inspect take no
// lock: they read files that appear and vanish whole. Operations hold it only
// from reading the registry to publishing their record, never through a poll;
// a retirement sees them by that record.
package lifecycle
