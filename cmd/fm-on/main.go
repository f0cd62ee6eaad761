// Command fm-on runs a command of ours in another home, over ssh (commands:
// fm-on).
package main

import (
	"context"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"hawser/internal/cli"
	"hawser/internal/fault"
	"hawser/transfer/remote"
)

func main() { cli.Main(command()) }

func command() *cobra.Command {
	var stdin bool
	cmd := &cobra.Command{
		Use:   "fm-on [--stdin] <route> <command> [args...]",
		Short: "Run a command of ours in another home",
		Long: `Run a command of ours in another home, over ssh.

A route is the id of a remote line in the home's data/secondmates.md, or the host
alias that exactly one of them uses. The command is one of this root's bin/, where
make install puts those that end in .sh. What it prints and its exit status come
back unchanged.

fm-on completion bash (zsh, fish) prints a completion script.

Other statuses: 64 wrong arguments, nothing was run; 70 an internal failure; 124
the job's 360 seconds are up; 255 the transport failed or completion is unknown:
nothing is tried again.`,
		Example: `  fm-on harbor fm-extension.sh list
  fm-on --stdin harbor fm-extension.sh receive-transfer-bind --adapter feed --trust-same-user-code < envelope.json`,
		ValidArgsFunction: complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			status, err := run(cmd, stdin, args)
			return end(cmd, status, err)
		},
	}
	cmd.CompletionOptions.DisableDefaultCmd = !asksForCompletion(os.Args[1:])
	cmd.Flags().BoolVar(&stdin, "stdin", false, "pass standard input on, at most 1048576 bytes (else it is empty)")
	cmd.Flags().SetInterspersed(false) // what follows the route is the command's
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return end(cmd, remote.StatusUsage, fault.New(fault.Usage, "%v; see fm-on --help", err))
	})
	return cmd
}

// asksForCompletion reports whether the arguments ask for a completion script. Any
// others that begin with that word are about a route of that name: no command of
// ours is called as a shell.
func asksForCompletion(args []string) bool {
	return len(args) == 2 && args[0] == "completion" && slices.Contains([]string{"bash", "zsh", "fish", "powershell"}, args[1])
}

// end says what is wrong, unless a signal to this process is, and makes the
// status the exit's.
func end(cmd *cobra.Command, status int, err error) error {
	if err != nil && cmd.Context().Err() != nil {
		return err
	}
	if err != nil {
		cli.Complain(cmd.ErrOrStderr(), err)
	}
	if status == 0 {
		return nil
	}
	return cli.Status(status)
}

func run(cmd *cobra.Command, stdin bool, args []string) (status int, err error) {
	if len(args) < 2 {
		err := fault.New(fault.Usage, "fm-on takes a route and a command; see fm-on --help")
		return remote.StatusOf(err), err
	}
	route, client, err := prepare(cmd.Context(), args[0], args[1])
	if err != nil {
		return remote.StatusOf(err), err
	}
	streams := remote.Streams{Stdout: os.Stdout, Stderr: os.Stderr}
	if stdin {
		streams.Stdin = os.Stdin
	}
	return client.Run(cmd.Context(), route, args[1:], streams)
}

// prepare is everything that can be refused before ssh is started.
func prepare(ctx context.Context, word, command string) (route remote.Route, client *remote.Client, err error) {
	h, err := cli.Home()
	if err != nil {
		return route, nil, err
	}
	routes, err := remote.ReadRoutes(h)
	if err != nil {
		return route, nil, err
	}
	if route, err = remote.Find(routes, word); err != nil {
		return route, nil, err
	}
	if err := remote.CheckLocal(h.Root, command); err != nil {
		return route, nil, err
	}
	client, err = remote.NewClient(ctx, os.Getenv)
	return route, client, err
}

// complete completes routes, and never complains.
func complete(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	h, err := cli.Home()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	routes, _ := remote.ReadRoutes(h)
	return remote.IDs(routes), cobra.ShellCompDirectiveNoFileComp
}
