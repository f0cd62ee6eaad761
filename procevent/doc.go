// Package procevent is the sources of a home: registered, polled outside
// anybody's foreground, their results captured durably before anyone hears of
// them, and retired by exact identity (commands: fm-procevent; home:
// Registration, Captured result, Claim, Wake queue).
//
// # Terms
//
// A registration says what a source is: <source>.source in the home. A runner
// is a process that waits for one event of a source; it owns the source by its
// claim, a machine-wide file that binds source, home, process identity and
// registration generation. A capture is the result in the inbox: .result is its
// commit point. A row in the wake queue announces it; .handled ends its life.
//
// # One event
//
//	claim      under the source lock        the source has a live owner
//	poll       no lock                      a package runs, or a built-in's argv
//	stage      .<source>.<token>.output     nothing anybody reads
//	capture    side files, then .result     durable, not announced
//	silent     a valid yes                  handled, never announced
//	announce   a row in the wake queue      durable, announced
//	terminal   a valid yes                  the registration goes, then the claim
//	release    under the source lock        no owner
//
// A crash after any step leaves what the line says. Reconcile goes on from
// there: it releases dead claims with their staging, finishes a terminal
// verdict that was given (the claim says so), announces what is captured and
// not handled, and starts a runner where there is none.
//
// # Owners
//
// An owner is live when the process under its pid is provably the one that
// claimed; then nobody else polls the source, on the whole machine. It is dead
// when that is provably not so. Before a dead owner's claim is released, nothing
// of it can run any more: the process group that it led is empty or was stopped
// (a built-in's command runs there and carries the claim's token in its
// environment), and its invocation records are settled (package invoke). Whatever
// cannot be proved is uncertain: it is left alone, blocks its source and no other,
// and says what a person can do.
//
// A claim older than the boot is stale. So that a clock set ahead does not make
// live ones look older, a runner renews its claim when the clock jumps.
//
// # Whose authority
//
// A runner acts on a result through the capture value that it made itself and
// the descriptors that it opened before the poll. No option, environment
// variable, path or inherited descriptor makes one. The seams of built-in
// scripts (builtin.go) never apply to an external source.
//
// # Locks
//
// Order: lifecycle, source, wake queue. The source lock is held to change
// claims, registrations and captures of that source, never through a poll, a
// verdict or a script. A runner that is told to stop takes no lock; whoever
// stopped it releases its claim.
package procevent
