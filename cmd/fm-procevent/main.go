// Command fm-procevent registers sources, runs them, captures and announces
// their results, and retires them (commands: fm-procevent).
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hawser/internal/cli"
	"hawser/internal/fault"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
	"hawser/lifecycle"
	"hawser/procevent"
)

func main() { cli.Main(command()) }

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
	if cli.Interactive(os.Stderr) {
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
	root.PersistentFlags().Var(&o.lockTimeout, "lock-timeout", "how long to wait for a lock")
	root.AddCommand(
		registerCommand(o), registerExtensionCommand(o), startCommand(o), reconcileCommand(o),
		classifyCommand(o), handledCommand(o), retireCommand(o), sweepCommand(o),
		preflightCommand(o), listCommand(o),
	)
	return root
}

func registerCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:     "register <adapter> <source> -- <argv>...",
		Short:   "Register a source of a built-in adapter",
		Example: "  fm-procevent register ci ci-main -- /usr/local/bin/wait-for-build main",
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 2 {
				return fault.New(fault.Usage, "register takes an adapter, a source, -- and a command; see fm-procevent register --help")
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			if err := h.Register(cmd.Context(), args[0], args[1], args[2:]); err != nil {
				return err
			}
			return o.print(cmd, cli.Fact{Name: "registered", Value: fmt.Sprintf("%s (%s)", args[1], args[0])})
		},
	}
}

func registerExtensionCommand(o *options) *cobra.Command {
	var configRef string
	cmd := &cobra.Command{
		Use:   "register-extension <adapter> <source> --config-ref REF",
		Short: "Register a source of a bound package",
		Long: `Register a source of a bound package: the binding of the adapter is verified and
recorded with a fresh owner token, by which alone the source is retired.`,
		Example: "  fm-procevent register-extension review-feed review-feed-main --config-ref main",
		Args:    cli.Args(2, 2, "an adapter and a source"),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := o.host()
			if err != nil {
				return err
			}
			reg, err := h.RegisterExtension(cmd.Context(), args[0], args[1], configRef)
			if err != nil {
				return err
			}
			return o.print(cmd,
				cli.Fact{Name: "registered", Value: fmt.Sprintf("%s (%s from %s@%s)", reg.Source, reg.Adapter, reg.Owner.ExtensionID, reg.Owner.ExtensionVersion)},
				cli.Fact{Name: "owner-token", Value: reg.Token},
				cli.Fact{Name: "retire", Value: fmt.Sprintf("fm-procevent retire %s --if-owner %s", reg.Source, reg.Token)})
		},
	}
	cmd.Flags().StringVar(&configRef, "config-ref", "", "what the package is to wait for: a bounded, non-secret reference (required)")
	return o.jsonFlag(cmd)
}

func startCommand(o *options) *cobra.Command {
	var tell bool
	cmd := &cobra.Command{
		Use:   "start <source>",
		Short: "Wait for one event of a source, capture it and announce it",
		Long: `Wait for one event of a source, capture it and announce it. Blocks for one poll;
a source that has a live owner anywhere on this machine is left to it.`,
		Example: "  fm-procevent start review-feed-main",
		Args:    cli.Args(1, 1, "one source"),
		RunE: func(cmd *cobra.Command, args []string) error {
			report := procevent.Report{
				Out: func(line string) { fmt.Fprintln(cmd.OutOrStdout(), line) },
				Err: func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) },
			}
			if tell {
				report.Owned = procevent.TellOwner()
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			return h.Start(cmd.Context(), args[0], report)
		},
	}
	cmd.Flags().BoolVar(&tell, "tell-owner", false, "tell on descriptor 3 when the source is owned")
	_ = cmd.Flags().MarkHidden("tell-owner")
	return cmd
}

func reconcileCommand(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:   "reconcile",
		Short: "Settle the dead, announce what is captured, start what has no runner",
		Long: `One idempotent pass: settle dead owners and records, announce what is captured
and not handled, and start a runner for each registration that has no live
owner. Run it as often as you like.`,
		Example: "  fm-procevent reconcile",
		Args:    cli.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := o.host()
			if err != nil {
				return err
			}
			r, err := h.Reconcile(cmd.Context())
			if err != nil {
				return err
			}
			text := []byte("reconciled: " + r.String() + "\n")
			if o.json {
				if text, err = strictjson.Pretty(map[string]any{"published": r.Published, "started": r.Started, "stopped": r.Stopped, "uncertain": r.Uncertain}); err != nil {
					return err
				}
			}
			return finish(cmd, text, r.Failed, r.Notes)
		},
	})
}

// finish prints what was done and refuses the rest, a line each. Notes explain
// and fail nothing.
func finish(cmd *cobra.Command, text []byte, failed, notes []error) error {
	if len(text) > 0 {
		if err := cli.Print(cmd, text); err != nil {
			return err
		}
	}
	for _, err := range notes {
		cli.Complain(cmd.ErrOrStderr(), err)
	}
	for _, err := range failed {
		cli.Complain(cmd.ErrOrStderr(), err)
	}
	if len(failed) > 0 {
		return cli.Status(cli.ExitRefused)
	}
	return nil
}

func classifyCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:     "classify <result-file>",
		Short:   "Ask the owner of a captured result what it is",
		Example: "  fm-procevent classify ~/home/state/procevent-inbox/review-feed-main.1.result",
		Args:    cli.Args(1, 1, "one result file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := o.host()
			if err != nil {
				return err
			}
			word, err := h.Classify(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return cli.Print(cmd, []byte(word+"\n"))
		},
	}
}

func handledCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:     "handled <source> <n>",
		Short:   "Acknowledge a captured result",
		Example: "  fm-procevent handled review-feed-main 1",
		Args:    cli.Args(2, 2, "a source and a sequence"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := procevent.ParseSequence(args[1])
			if err != nil {
				return err
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			already, err := h.Handled(args[0], n)
			if err != nil {
				return err
			}
			word := "handled"
			if already {
				word = "already-handled"
			}
			return cli.Print(cmd, fmt.Appendf(nil, "%s: %s %d\n", word, args[0], n))
		},
	}
}

func retireCommand(o *options) *cobra.Command {
	var owner, adapter string
	var absent bool
	cmd := &cobra.Command{
		Use:   "retire <source> [--if-owner TOKEN | --if-matches ADAPTER -- ARGV... | --if-absent]",
		Short: "End a source: its runner, its records, its registration",
		Long: `End a source: stop its runner, settle its records, remove registration and claim.
Without a condition only built-in sources are retired; a condition that does not
hold changes nothing.`,
		Example: `  fm-procevent retire review-feed-main --if-owner sha256:...
  fm-procevent retire ci-main --if-matches ci -- /usr/local/bin/wait-for-build main
  fm-procevent retire ci-main`,
		RunE: func(cmd *cobra.Command, args []string) error {
			condition, err := retireCondition(cmd, args, owner, adapter, absent)
			if err != nil {
				return err
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			if err := h.Retire(cmd.Context(), args[0], condition); err != nil {
				return err
			}
			return cli.Print(cmd, []byte("retired: "+args[0]+"\n"))
		},
	}
	cmd.Flags().StringVar(&owner, "if-owner", "", "retire exactly the external registration with this token")
	cmd.Flags().StringVar(&adapter, "if-matches", "", "retire exactly the built-in registration of this adapter and the command after --")
	cmd.Flags().BoolVar(&absent, "if-absent", false, "clear what a source without a registration left")
	return cmd
}

func retireCondition(cmd *cobra.Command, args []string, owner, adapter string, absent bool) (procevent.Condition, error) {
	flags := cmd.Flags()
	given := 0
	for _, name := range []string{"if-owner", "if-matches", "if-absent"} {
		if flags.Changed(name) {
			given++
		}
	}
	matches := flags.Changed("if-matches")
	dash := cmd.ArgsLenAtDash()
	if given > 1 || matches != (dash == 1) || !matches && len(args) != 1 {
		return procevent.Condition{}, fault.New(fault.Usage, "retire takes a source and at most one condition; see fm-procevent retire --help")
	}
	if flags.Changed("if-owner") {
		if must := wire.CheckDigest(owner); must != "" {
			return procevent.Condition{}, fault.New(fault.Usage, "--if-owner: must be %s, as register-extension printed it", must)
		}
	}
	c := procevent.Condition{IfOwner: owner, IfAbsent: absent}
	if matches {
		c.IfMatches = &procevent.Match{Adapter: adapter, Argv: args[1:]}
	}
	return c, nil
}

func sweepCommand(o *options) *cobra.Command {
	var preflight bool
	cmd := &cobra.Command{
		Use:     "sweep-home",
		Short:   "Retire every source of this home, and insist that nothing of them is left",
		Example: "  fm-procevent sweep-home --preflight\n  fm-procevent sweep-home",
		Args:    cli.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := o.host()
			if err != nil {
				return err
			}
			if preflight {
				failed, err := h.SweepPreflight()
				if err != nil {
					return err
				}
				var text []byte
				if len(failed) == 0 {
					text = []byte("sweep preflight: ready\n")
				}
				return finish(cmd, text, failed, nil)
			}
			swept, err := h.SweepHome(cmd.Context())
			if err != nil {
				return err
			}
			return finish(cmd, fmt.Appendf(nil, "swept: attempted=%d\n", swept.Attempted), swept.Failed, nil)
		},
	}
	cmd.Flags().BoolVar(&preflight, "preflight", false, "only tell whether a sweep would end")
	return cmd
}

func preflightCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:     "binding-retirement-preflight <binding-digest>",
		Short:   "Tell whether anything depends on a binding",
		Example: "  fm-procevent binding-retirement-preflight sha256:...",
		Args:    cli.Args(1, 1, "one binding digest"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if must := wire.CheckDigest(args[0]); must != "" {
				return fault.New(fault.Usage, "binding digest %s: must be %s", fault.Path(args[0]), must)
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			if err := h.CheckRetirable(cmd.Context(), wire.Digest(args[0])); err != nil {
				return err
			}
			return cli.Print(cmd, []byte("binding retirement preflight: ready\n"))
		},
	}
}

func listCommand(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:     "list",
		Short:   "List the sources of this home and their owners",
		Example: "  fm-procevent list\n  fm-procevent list --json",
		Args:    cli.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := o.host()
			if err != nil {
				return err
			}
			var notes []error
			rows, failed, err := h.List(func(err error) { notes = append(notes, err) })
			if err != nil {
				return err
			}
			text, err := listText(rows, o.json)
			if err != nil {
				return err
			}
			if err := finish(cmd, text, nil, notes); err != nil {
				return err
			}
			if failed {
				return cli.Status(cli.ExitRefused)
			}
			return nil
		},
	})
}

func listText(rows []procevent.Listed, asJSON bool) ([]byte, error) {
	if asJSON {
		all := make([]any, 0, len(rows))
		for _, r := range rows {
			all = append(all, map[string]any{"source": r.Source, "adapter": r.Adapter, "owner": r.Owner, "pending": r.Pending})
		}
		return strictjson.Pretty(all)
	}
	if len(rows) == 0 {
		return []byte("no sources registered\n"), nil
	}
	var b strings.Builder
	b.WriteString("SOURCE ADAPTER OWNER PENDING\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "%s %s %s %d\n", r.Source, r.Adapter, r.Owner, r.Pending)
	}
	return []byte(b.String()), nil
}
