// Command forge-codex-plugin is a plugin of the Agent Forge plugin protocol v1:
// the operation workspace_edit, done by the Codex command line program, which is
// $CODEX_BIN or codex.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"hawser/forge"
	"hawser/forge/codex"
	"hawser/internal/cli"
)

const help = `forge-codex-plugin takes no arguments: a host speaks the Agent Forge plugin protocol v1
on its stdin and stdout. CODEX_BIN names the Codex program (default codex).

To try it: forge-plugin-conformance -operation workspace_edit -timeout 10m forge-codex-plugin
`

func main() {
	if len(os.Args) > 1 {
		os.Exit(cli.TellArguments("forge-codex-plugin", help, os.Args[1:]))
	}
	if err := forge.ServeWithProgress(forge.Plugin{Capabilities: codex.Capabilities()}, edit); err != nil {
		fmt.Fprintln(os.Stderr, "forge-codex-plugin:", err)
		os.Exit(1)
	}
}

// edit takes a signal that would end this process for a cancellation, so that
// Codex is stopped and its files are removed. A host stops a plugin by TERM, and
// kills it 250 ms later. What was ignored from outside stays ignored.
func edit(ctx context.Context, r forge.Request, progress forge.ProgressFunc) (forge.Result, error) {
	ends := slices.DeleteFunc([]os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM}, signal.Ignored)
	ctx, stop := signal.NotifyContext(ctx, ends...)
	defer stop()
	return codex.Edit(ctx, r, progress)
}
