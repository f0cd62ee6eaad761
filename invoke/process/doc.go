// Package process runs a program in a process group of its own, bounded, and
// proves that nothing of it is left. It knows processes and nothing of what
// they are for: packages, homes and protocols are its callers'.
//
// # Terms
//
// A group is the set of processes with one group number; the process that
// founded it, whose pid is the number, is its leader. A group is gone when its
// leader is dead and no member runs; zombies run nothing and never count. An
// identity is what tells two processes with the same pid apart. A group is
// pinned while something keeps its number from being given to another.
//
// # A group's life
//
//	g, err := process.Start(spec)        // a barrier waits in a new group
//	defer g.Close()
//	publish(g.Pid(), g.Identity())       // the caller's record of it
//	err = g.Release(ctx)                 // the program runs
//	r := g.Exchange(ctx, request, limits) // or Stdin, Stdout, Stderr and Settle
//
// The barrier is this program, executed again: importing the package is enough.
// (Below PolicyDescendants' wrapper some packages of the program initialize once
// more before it takes over. What they read and print is not on these streams.)
// It becomes the program by execve in place. The other way, a leader of our own
// that stays as the program's parent, would prove the group's identity to the
// end, but costs a waiting source several megabytes. What is given up is small:
// the pid and start time that were recorded at the barrier stay the program's,
// so recovery proves a running (or dead but unreaped) leader exactly; once the
// leader is gone it proves the other members by a private token that the caller
// put into their environment (TokenVariable). A member that dropped the token
// from its environment, in a group whose leader and host are both gone, cannot
// be proved; it is left alone, and its record is kept.
//
// # Guarantees
//
//   - Nothing of the program runs before Release. When the host dies before it,
//     nothing ever ran.
//   - The program starts with descriptors 0, 1 and 2, default signal
//     dispositions, an empty signal mask, the environment and directory given,
//     and the descriptor limit that the host was started with. It is never run
//     by a shell that it does not name itself. Its environment means nothing to
//     the processes of ours that it goes through.
//   - Only the exact group is signalled, by an identity that is pinned, and never
//     a process that was found by its name, parent or user.
//   - Every call ends in bounded time after its context did. What could not be
//     proved is reported (Ending.NotProvedGone), never assumed.
//   - A process that is waited for costs no thread, and after Close no
//     descriptor or goroutine.
//
// # The two policies
//
// PolicyGroup ends exactly the process group. Leaving it (setsid, setpgid) is
// outside the guarantee; a pipe that such a process holds open is noticed
// (Result.HeldOutput) and not waited for.
//
// PolicyDescendants ends everything the program started. A wrapper, once more
// this program, is the child subreaper below the host: it starts the barrier in
// a group of its own, reports the program's end, stops everything when the host
// settles the group or dies, and has the proof when wait says that it has no
// child. It signals none but its own children, whose numbers it alone can free
// by reaping; the children of those become its own as they die. A program that
// keeps starting sessions faster than they can be found outlives it: that is
// bounded and reported, not contained.
//
// # What the kernel is relied on for
//
// Linux 5.10 is needed. From 6.9 on a group is pinned and proved by its leader's
// pidfd; before, by the leader's unreaped zombie, which takes a walk of the
// process table a start. From 5.11 on close_range marks descriptors; before, the
// barrier lists them.
//
// The host becomes a child subreaper, so orphans of a group are its children and
// it reaps them: by their group number, and only while that number is pinned.
// It never waits for just any child: that would steal exits from os/exec. A
// process that escaped its group and died stays a zombie until the host exits.
//
// # Recovery
//
// Judge, JudgeGroup and StopGroup work for a later process, which is not the
// parent: from a record of pid and identity they say extinct, live, or
// uncertain. The zero State is Uncertain, which counts as alive and is never
// signalled.
//
// On other systems than Linux all this is ordinary process-group handling: the
// number is not pinned, and only a live leader can be proved later.
package process
