// Command fm-remote-entrypoint is what fm-on asks for on the other host
// (commands: fm-on).
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"hawser/internal/cli"
	"hawser/internal/fault"
	"hawser/transfer/remote"
)

func main() { cli.Main(command()) }

func command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fm-remote-entrypoint 1 <root> <home> <argv>",
		Short: "Run a command of ours for fm-on on another host",
		Long: `Run a command of ours for fm-on on another host.

All arguments but the version are base64; fm-on makes them. A remote account has
fm-remote-entrypoint.sh on its non-interactive PATH.

The exit status is the command's; 64 for wrong arguments, 70 for an internal
failure, 124 when the job's 360 seconds are up.`,
		Example: "  ssh -T harbor fm-remote-entrypoint.sh 1 L29wdC9mbQ== L2hvbWUvb3AvZm0= Zm0tZXh0ZW5zaW9uLnNoAGxpc3QA",
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			status := remote.NewServer().Serve(cmd.Context(), args)
			if cmd.Context().Err() != nil {
				// Told to end: a last word on stderr could wait for good, if that is
				// what nobody takes.
				os.Exit(status)
			}
			if status != 0 {
				return cli.Status(status)
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		fmt.Fprintln(cmd.ErrOrStderr(), fault.Line(fault.New(fault.Usage, "%v; see fm-remote-entrypoint --help", err)))
		return cli.Status(remote.StatusUsage)
	})
	return cmd
}
