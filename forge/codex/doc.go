// Package codex is the operation workspace_edit of the Agent Forge plugin
// protocol, done by the Codex command line program. Its one idea is that Codex is
// believed nothing but the files it changed and one strict JSON object: what it
// prints goes nowhere, and a run that moved HEAD has failed.
//
// # A run
//
//	codex exec --ephemeral --sandbox workspace-write --color never -C <workspace>
//	      --output-schema <file> --output-last-message <file> -
//
// The prompt is on stdin: fixed words, then the instruction. The first file says
// what the final message must be, the second one receives it: an object of at
// most 65,536 bytes with commit_subject, and with summary and changes when the
// report was negotiated.
//
// # Failures
//
// A workspace that is not in a Git work tree, as Git sees it, is invalid_request;
// a cancellation is cancelled; everything else is execution_failed.
package codex
