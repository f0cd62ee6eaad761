// Command forge-codex-plugin is a plugin of the Agent Forge plugin protocol v1:
// the operation workspace_edit, done by the Codex command line program, which is
// $CODEX_BIN or codex.
package main

import (
	"fmt"
	"os"

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
	if err := forge.ServeWithProgress(forge.Plugin{Capabilities: codex.Capabilities()}, codex.Edit); err != nil {
		fmt.Fprintln(os.Stderr, "forge-codex-plugin:", err)
		os.Exit(1)
	}
}
