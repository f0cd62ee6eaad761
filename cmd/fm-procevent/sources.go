package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"hawser/internal/cli"
	"hawser/internal/fault"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
	"hawser/procevent"
)

func registerCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "register <adapter> <source> -- <argv>...",
		Short: "Register a source of a built-in adapter",
		Long: `Register a source of a built-in adapter. The command is executed as it is, by no
shell, in the runner's environment and directory, its stderr dropped. Whatever it
writes to stdout is a result, whatever its exit.`,
		Example: "  fm-procevent register ci ci-main -- /usr/local/bin/wait-for-build main",
		RunE: func(cmd *cobra.Command, args []string) error {
			args, dash := afterDash(cmd, args, 2)
			if dash != 2 {
				return fault.New(fault.Usage, "register takes an adapter, a source, -- and a command; see fm-procevent register --help")
			}
			adapter, source, argv := args[0], args[1], args[2:]
			if err := cmp.Or(procevent.CheckAdapter(adapter), procevent.CheckSource(source), procevent.CheckCommand(argv)); err != nil {
				return err
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			if err := h.Register(cmd.Context(), adapter, source, argv); err != nil {
				return err
			}
			return o.print(cmd, cli.Fact{Name: "registered", Value: fmt.Sprintf("%s (%s)", source, adapter)})
		},
	}
}

// afterDash returns the arguments, and how many stand before the "--" that
// begins a command. A source id that starts with a dash needs an earlier "--"
// before it, which ends the options: where fewer than want stand before the
// first one, the next one after want begins the command.
func afterDash(cmd *cobra.Command, args []string, want int) ([]string, int) {
	dash := cmd.ArgsLenAtDash()
	if dash >= 0 && dash < want && len(args) > want && args[want] == "--" {
		return slices.Delete(slices.Clone(args), want, want+1), want
	}
	return args, dash
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
			if err := cmp.Or(procevent.CheckAdapter(args[0]), procevent.CheckSource(args[1]), procevent.CheckConfigRef(configRef)); err != nil {
				return err
			}
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
				cli.Fact{Name: "retire", Value: retireLine(reg.Source, reg.Token)})
		},
	}
	cmd.Flags().StringVar(&configRef, "config-ref", "", "what the package is to wait for: a bounded, non-secret reference (required)")
	return o.jsonFlag(cmd)
}

// retireLine is what a person pastes to retire a registration: an id that starts
// with a dash goes after a lone "--".
func retireLine(source, token string) string {
	if strings.HasPrefix(source, "-") {
		return "fm-procevent retire --if-owner " + token + " -- " + source
	}
	return "fm-procevent retire " + source + " --if-owner " + token
}

func startCommand(o *options) *cobra.Command {
	tell := false
	cmd := &cobra.Command{
		Use:   "start <source>",
		Short: "Wait for one event of a source, capture it and announce it",
		Long: `Wait for one event of a source, capture it and announce it. Blocks for one poll;
a source that has a live owner anywhere on this machine is left to it.`,
		Example:           "  fm-procevent start review-feed-main",
		Args:              cli.Args(1, 1, "one source"),
		ValidArgsFunction: o.sources,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := procevent.CheckSource(args[0]); err != nil {
				return err
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			out := &output{o: o, cmd: cmd}
			report := procevent.Report{
				Out: out.say,
				Err: func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) },
			}
			if tell {
				report.Owned = func() { out.print([]byte(procevent.OwnedLine(args[0]) + "\n")) }
			}
			if err := h.Start(cmd.Context(), args[0], report); err != nil {
				return err
			}
			return out.end()
		},
	}
	cmd.Flags().BoolVar(&tell, "tell-owner", false, "say first when the source is owned")
	_ = cmd.Flags().MarkHidden("tell-owner") // what reconcile listens to
	return o.jsonFlag(cmd)
}

// output prints facts as they come or, as JSON, all of them at the end.
type output struct {
	o     *options
	cmd   *cobra.Command
	facts []cli.Fact
	err   error // of the first print that failed
}

func (out *output) say(name, value string) {
	if out.o.json {
		out.facts = append(out.facts, cli.Fact{Name: strings.ReplaceAll(name, " ", "-"), Value: value})
		return
	}
	out.print([]byte(name + ": " + value + "\n"))
}

func (out *output) print(text []byte) { out.err = cmp.Or(out.err, cli.Print(out.cmd, text)) }

func (out *output) end() error {
	if out.o.json {
		return out.o.print(out.cmd, out.facts...)
	}
	return out.err
}

func reconcileCommand(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:   "reconcile",
		Short: "Settle the dead, announce what is captured, start what has no runner",
		Long: `One idempotent pass: settle dead owners and records, announce what is captured
and not handled, and start a runner for each registration that has no live
owner. Run it as often as you like.

Of what it prints, published counts new rows in the wake queue, started the
runners that own their source now, stopped what dead or unregistered runners had
left running, and uncertain what could not be proved and was left alone. It exits
1 when a record was malformed or a start failed; the others are served.`,
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

func retireCommand(o *options) *cobra.Command {
	var f retireFlags
	cmd := &cobra.Command{
		Use:   "retire <source> [--if-owner TOKEN | --if-matches ADAPTER -- ARGV... | --if-absent]",
		Short: "End a source: its runner, its records, its registration",
		Long: `End a source: stop its runner, settle its records, remove registration and claim.
Without a condition only built-in sources are retired; a condition that does not
hold changes nothing.`,
		Example: `  fm-procevent retire review-feed-main --if-owner sha256:...
  fm-procevent retire ci-main --if-matches ci -- /usr/local/bin/wait-for-build main
  fm-procevent retire ci-main`,
		ValidArgsFunction: o.sources,
		RunE: func(cmd *cobra.Command, args []string) error {
			condition, err := f.condition(cmd, args)
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
	cmd.Flags().StringVar(&f.owner, "if-owner", "", "retire exactly the external registration with this token")
	cmd.Flags().StringVar(&f.adapter, "if-matches", "", "retire exactly the built-in registration of this adapter and the command after --")
	cmd.Flags().BoolVar(&f.absent, "if-absent", false, "clear what a source without a registration left")
	return cmd
}

// retireFlags are the conditions of retire as given.
type retireFlags struct {
	owner, adapter string
	absent         bool
}

func (f *retireFlags) condition(cmd *cobra.Command, args []string) (procevent.Condition, error) {
	given := 0
	for _, name := range []string{"if-owner", "if-matches", "if-absent"} {
		if cmd.Flags().Changed(name) {
			given++
		}
	}
	matches := cmd.Flags().Changed("if-matches")
	dash := -1
	if matches {
		args, dash = afterDash(cmd, args, 1)
	}
	if given > 1 || matches != (dash == 1) || !matches && len(args) != 1 {
		return procevent.Condition{}, fault.New(fault.Usage, "retire takes a source and at most one condition; see fm-procevent retire --help")
	}
	c := procevent.Condition{IfOwner: f.owner, IfAbsent: f.absent}
	if err := procevent.CheckSource(args[0]); err != nil {
		return c, err
	}
	if cmd.Flags().Changed("if-owner") {
		if must := wire.CheckDigest(f.owner); must != "" {
			return c, fault.New(fault.Usage, "--if-owner: must be %s, as register-extension printed it", must)
		}
	}
	if matches {
		c.IfMatches = &procevent.Match{Adapter: f.adapter, Argv: args[1:]}
		return c, cmp.Or(procevent.CheckAdapter(f.adapter), procevent.CheckCommand(args[1:]))
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
				if err != nil || len(failed) > 0 {
					return cmp.Or(err, finish(cmd, nil, failed, nil))
				}
				return cli.Print(cmd, []byte("sweep preflight: ready\n"))
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

func listCommand(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:   "list",
		Short: "List the sources of this home and their owners",
		Long: `List the sources of this home, their owners and how many results wait to be
handled. An owner is live (a runner waits), none, orphaned (the runner is dead and
what it started still runs; reconcile ends it) or uncertain (it cannot be proved;
the line on stderr says what to do).`,
		Example: "  fm-procevent list\n  fm-procevent list --json",
		Args:    cli.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := o.host()
			if err != nil {
				return err
			}
			listed, err := h.List()
			if err != nil {
				return err
			}
			text, err := listText(listed.Rows, len(listed.Failed) > 0, o.json)
			if err != nil {
				return err
			}
			return finish(cmd, text, listed.Failed, listed.Notes)
		},
	})
}

func listText(rows []procevent.Row, failed, asJSON bool) ([]byte, error) {
	if asJSON {
		all := make([]any, 0, len(rows))
		for _, r := range rows {
			all = append(all, map[string]any{"source": r.Source, "adapter": r.Adapter, "owner": r.Owner, "pending": r.Pending})
		}
		return strictjson.Pretty(all)
	}
	if len(rows) == 0 && !failed {
		return []byte("no sources registered\n"), nil
	}
	var b strings.Builder
	b.WriteString("SOURCE ADAPTER OWNER PENDING\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "%s %s %s %d\n", r.Source, r.Adapter, r.Owner, r.Pending)
	}
	return []byte(b.String()), nil
}
