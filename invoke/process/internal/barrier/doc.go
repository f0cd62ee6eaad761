// Package barrier is the launch barrier: this program, executed again in a new
// process group, that waits for its release and then becomes the program to
// run (execve in place). So the host can publish which group it started before
// a byte of that program's code has run.
//
// Any program or test that imports this package can be the barrier. An init
// function recognizes it (argument zero is [Word] and descriptor [ControlFD] is
// a socket) and never returns. The package imports nothing but syscall on
// Linux: the linker initializes it as soon as the runtime and syscall are
// ready, before the packages a command drags in, and a start costs one bare
// runtime start.
//
// For the same reason it is here that a wrapper, of which the package above is the
// rest, puts its program's streams aside ([Streams]).
//
// # Protocol
//
// The barrier's arguments are [Word], the path to execute, and the argument
// vector (with its argument zero). Its environment is the target's, made of no
// meaning on the way ([Shield]). Its descriptors 0, 1 and 2 are the target's;
// [ControlFD] is one end of a stream socket pair, [DirFD] the working directory.
//
// The host writes [Release] to the control socket. When the socket ends first,
// the host is gone: the barrier exits and nothing ran. After a release the
// barrier writes [Executing] as the last thing before execve, and the socket ends
// when execve succeeded (it is close-on-exec). One [Failure] says that nothing was
// executed; so does an end without either, which is a barrier that died.
//
// Before it waits, the barrier resets what a child must not inherit: signal
// dispositions (an ignored signal stays ignored over execve, and Go leaves
// ignored what it found ignored), the signal mask, and every descriptor but 0,
// 1 and 2. The descriptor limit is the one the host was started with: syscall
// restores it around fork and exec.
package barrier
