// Package invoke runs the code of verified packages: the handshake and the four
// operations of process-event-adapter/1 (seed: Executable protocol; processes:
// An operation, step by step).
//
// It takes nothing but a *binding.Installed, which only the rooms before it can
// make, so a path that nobody verified does not compile here. Where a result
// goes is the caller's.
//
// # One operation
//
// An Operation is reserved under the home's lifecycle lock and lives to its
// Close. From the first to the last it has a record on disk that names who may
// still be running for it:
//
//	Reserve    record: reserved       nothing of the package runs
//	  start    barrier waits          our own code in a new process group
//	  publish  record: group          the group is named before its first instruction
//	  release  entrypoint runs        one request in, one bounded answer out
//	  settle   group proved gone      TERM, 250 ms, KILL, 2 s
//	Close      record removed         only after that proof
//
// A second start within the operation (the invocation after its handshake)
// replaces the record atomically: it is never absent in between.
//
// # What a crash of the host leaves
//
// A reserved record and a barrier that sees its pipe close and exits: nothing
// ran. Or a group record, and perhaps a live group. Settle is the other half:
// it judges each record by the identities in it, stops what is provably the
// recorded group, removes what is provably extinct, and keeps and names what it
// cannot judge (processes: Identity, on Linux; Invocation record).
//
// Records are visible, not durable: a power cut ends every process that they
// could speak of.
package invoke
