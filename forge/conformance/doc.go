// Package conformance judges plugins of the Agent Forge plugin protocol v1, in
// whatever language they are written. Its one idea is isolation: each scenario
// is one session, in a process of its own, in which exactly one thing is wrong.
// A plugin that misses that one check, and no other, fails that scenario.
//
// # Scenarios
//
//   - session/…: valid sessions. All that the plugin sends is judged: frames,
//     selection, progress numbers, payloads, the end in time with exit 0, and, for
//     workspace_edit, a work tree that changed and a HEAD that did not move.
//   - initialize/…: the first frame is bad. Nothing may come on stdout before a
//     nonzero exit, within RejectionTime.
//   - execute/…: the first frame is good and the second one bad. Exactly the
//     initialized frame may come, with the selection of any session with that
//     offer.
//
// Stdin stays open after a bad frame, so that only the plugin's own check can
// end it in time; only scenarios about the end of stdin close it.
//
// A scenario that failed for nothing but a time of the contract is tried again:
// those are times of the clock, which a busy machine cannot always keep.
//
// What a host cannot force is not judged: a frame too many after execute races
// with the answer, so session/one-operation takes an answer or a rejection, and
// only refuses two answers.
package conformance
