// Command fm-procevent registers sources, runs them, captures and announces
// their results, and retires them (commands: fm-procevent).
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"hawser/internal/cli"
	"hawser/internal/fault"
	"hawser/lifecycle"
	"hawser/procevent"
)

func main() { cli.Main(command()) }

func command() *cobra.Command {
	o := &options{lockTimeout: cli.Seconds(lifecycle.DefaultLockTimeout)}
	root := &cobra.Command{
		Use:   "fm-procevent",
		Short: "Run long-polling sources, and capture and announce their results",
		Long: `Run long-polling sources, and capture and announce their results.

A source is registered once, waits outside anybody's foreground, and is retired
by exact identity. Its result is on disk before anyone hears of it.`,
		Example: `  fm-procevent register-extension review-feed review-feed-main --config-ref main
  fm-procevent reconcile
  fm-procevent list`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fault.New(fault.Usage, "no command given; see fm-procevent --help")
		},
	}
	root.PersistentFlags().Var(&o.lockTimeout, "lock-timeout", "how long to wait for a lock: seconds, or 90s, 2m")
	root.AddCommand(
		registerCommand(o), registerExtensionCommand(o), startCommand(o), reconcileCommand(o),
		classifyCommand(o), handledCommand(o), retireCommand(o), sweepCommand(o),
		preflightCommand(o), listCommand(o),
	)
	return root
}

// options are what every command takes.
type options struct {
	lockTimeout cli.Seconds
	json        bool
}

func (o *options) host() (*procevent.Host, error) {
	h, err := cli.Home()
	if err != nil {
		return nil, err
	}
	host := &lifecycle.Host{Home: h, LockTimeout: time.Duration(o.lockTimeout)}
	if cli.Interactive(os.Stderr) && !o.json {
		host.Waiting = func(line string) { fmt.Fprintln(os.Stderr, line) }
	}
	return procevent.NewHost(host, os.Getenv)
}

func (o *options) jsonFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&o.json, "json", false, "print one JSON document instead of lines")
	return cmd
}

func (o *options) print(cmd *cobra.Command, facts ...cli.Fact) error {
	text, err := cli.Facts(o.json, facts...)
	if err != nil {
		return err
	}
	return cli.Print(cmd, text)
}

// finish prints what was done and refuses the rest, a line each (wire: Errors and
// exits). Notes explain and fail nothing.
func finish(cmd *cobra.Command, text []byte, failed, notes []error) error {
	if len(text) > 0 {
		if err := cli.Print(cmd, text); err != nil {
			return err
		}
	}
	for _, err := range append(notes, failed...) {
		cli.Complain(cmd.ErrOrStderr(), err)
	}
	if len(failed) > 0 {
		return cli.Status(cli.ExitRefused)
	}
	return nil
}

// sources completes source ids, and never complains.
func (o *options) sources(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	h, err := o.host()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ids, _ := h.Sources()
	return ids, cobra.ShellCompDirectiveNoFileComp
}
