// Command forge-ref-plugin is the reference plugin of the Agent Forge plugin
// protocol v1: the operation text, which answers with its input in upper case.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"hawser/forge"
	"hawser/internal/cli"
)

const help = `forge-ref-plugin takes no arguments: a host speaks the Agent Forge plugin protocol v1
on its stdin and stdout.

To try it: forge-plugin-conformance forge-ref-plugin
`

func main() {
	if len(os.Args) > 1 {
		os.Exit(cli.TellArguments("forge-ref-plugin", help, os.Args[1:]))
	}
	plugin := forge.Plugin{Capabilities: []forge.Capability{forge.CapText, forge.CapProgress, forge.CapCancel}}
	if err := forge.ServeWithProgress(plugin, upper); err != nil {
		fmt.Fprintln(os.Stderr, "forge-ref-plugin:", err)
		os.Exit(1)
	}
}

func upper(ctx context.Context, r forge.Request, progress forge.ProgressFunc) (forge.Result, error) {
	progress(forge.Started, "reading the input")
	if err := ctx.Err(); err != nil {
		return forge.Result{}, err
	}
	output := strings.ToUpper(r.Input)
	progress(forge.Finalizing, "sending it in upper case")
	return forge.Result{Output: output}, nil
}
