// Package forge is the Agent Forge plugin protocol v1, both sides of it: a host
// that runs one operation of a plugin in a fresh process, and the plugin's end of
// the same pipes. Its one idea is that a session is strict to the byte: it ends
// with one answer that was wholly checked, or with the one rule that was broken.
//
// # A session
//
//	host                                plugin
//	initialize: what it offers     ──▶
//	                               ◀──  initialized: what it selects
//	execute: one operation         ──▶
//	                               ◀──  progress, up to 128 times, if selected
//	cancel, if selected            ──▶
//	                               ◀──  result or failure, once
//	end of stdin                   ──▶
//	                               ◀──  end of stdout, exit 0, within 250 ms
//
// A frame is one compact JSON object and an LF, at most 1,048,576 bytes long
// without it. Every frame has version, id and type; which members follow is told
// by the types [Initialize], [Initialized], [Request], [Progress], [Result],
// [Failure] and [Cancel], whose fields state the limits. [Rule] lists every rule
// that can be broken.
//
// # Reading frames
//
// [Reader] finds the frames and [Decode] reads them: no whitespace outside
// strings, no name twice, no member too many or too few, no null, no 1.0 for an
// integer, valid UTF-8 and whole surrogate pairs. The one strict reader of the
// other documents validates a document, and then splits it as its schema asks,
// with a copy for the form; a frame of a mebibyte is read here in the pass that
// finds its members, in the buffer it arrived in. What is taken here is taken
// there too; a test holds the two together. A frame that is written is read by
// the same rules first.
//
// # The host
//
// [Run] starts the plugin below a wrapper of ours (package process, policy
// descendants), drives a [Session], and returns when nothing of the plugin is
// left: children in sessions of their own, and children that lost their parents,
// included. The [Outcome] says which of seven things happened. The contract
// decides each race between them:
//
//   - A budget that is exceeded while the context is live stays the outcome.
//   - Otherwise a context that ended before Run returns is the outcome, over
//     success, violations and whatever the cleanup did to the processes.
//   - Otherwise the first violation, the exit status included, is the outcome.
//
// # The plugin
//
// [Serve] and [ServeWithProgress] are a whole plugin but for what it does; one
// that is written in another language is judged by package conformance. A
// plugin that refuses the host's frames writes nothing more and ends with an
// error.
//
// The protocol separates authority; it is no sandbox. A plugin is trusted
// code of the same user.
package forge
