// Package remote runs a command of ours in another home, over the system's
// OpenSSH client: the two ends of fm-on (commands: fm-on).
//
// Its one idea: what crosses is a [Job], and a job is data. Root, home and
// argument vector travel in base64 behind fixed words, so that no argument is
// ever part of a shell's syntax, whatever shell the other account has; and the
// other end runs nothing but a command of ours, checked, in an environment of
// four variables, bounded in time and bytes.
//
//	fm-remote-entrypoint.sh 1 <base64 root> <base64 home> <base64 of NUL-terminated argv>
//
// [ReadRoutes] knows which homes there are, [Client] is the near end, [Server]
// the far one.
//
// # Exit statuses
//
// The command's own status comes back unchanged, 128 and the number of the
// signal that ended it. What is not the command's:
//
//	64   wrong arguments, at either end; nothing was run
//	70   an internal failure, or an output over its limit
//	124  the job's time is up
//	255  the transport failed, or completion is unknown; nothing is retried
package remote
