package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"hawser/binding"
	"hawser/internal/cli"
	"hawser/internal/fault"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
	"hawser/invoke"
	"hawser/lifecycle"
	"hawser/transfer"
)

func bindCommand(o *options) *cobra.Command {
	var given binding.Options
	cmd := &cobra.Command{
		Use:   "bind <package-root> --adapter NAME... --trust-same-user-code",
		Short: "Install a package and enable it",
		Long: `Install a package and enable it.

The package is validated, copied read-only under its tree digest, asked to shake
hands, and enabled by one atomic record. A refusal leaves nothing enabled.`,
		Example: `  fm-extension bind ~/packages/review-feed --adapter review-feed --trust-same-user-code
  fm-extension bind ./feed --adapter feed --adapter feed-slow --consent network --timeout-ms 60000 --trust-same-user-code`,
		Args: cli.Args(1, 1, "one package directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := given.Check(); err != nil {
				return err
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			bound, err := h.Bind(cmd.Context(), args[0], given)
			if err != nil {
				return err
			}
			return o.tell(cmd, bound, boundFacts(bound)...)
		},
	}
	addBindFlags(cmd, &given)
	return o.jsonFlag(cmd)
}

// addBindFlags adds the bind options.
func addBindFlags(cmd *cobra.Command, given *binding.Options) {
	flags := cmd.Flags()
	flags.StringArrayVar(&given.Adapters, "adapter", nil, "an adapter of the package to enable; repeat for more")
	flags.StringArrayVar(&given.Consents, "consent", nil, "a fact that you consent to: "+consentList()+"; repeat for more")
	flags.Int64Var(&given.TimeoutMS, "timeout-ms", binding.DefaultTimeoutMS, "bound of one invocation in milliseconds")
	flags.BoolVar(&given.TrustSameUserCode, "trust-same-user-code", false, "you trust this package to run as you, without a sandbox")
	_ = cmd.RegisterFlagCompletionFunc("consent", cobra.FixedCompletions(strings.Split(consentList(), ", "), cobra.ShellCompDirectiveNoFileComp))
}

func consentList() string {
	var facts []string
	for _, fact := range binding.ConsentFacts() {
		facts = append(facts, string(fact))
	}
	return strings.Join(facts, ", ")
}

const noBindings = "no extension bindings\n"

func listCommand(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:     "list",
		Short:   "List the enabled bindings",
		Example: "  fm-extension list\n  fm-extension list --json",
		Args:    cli.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := o.host()
			if err != nil {
				return err
			}
			records, err := h.List()
			if err != nil {
				return err
			}
			text, err := listText(records, o.json)
			if err != nil {
				return err
			}
			return cli.Print(cmd, text)
		},
	})
}

func listText(records []binding.Record, asJSON bool) ([]byte, error) {
	if asJSON {
		rows := make([]any, 0, len(records))
		for _, r := range records {
			rows = append(rows, map[string]any{
				"extension": r.ExtensionID, "version": r.ExtensionVersion, "capability": capability(r),
				"adapters": r.AdapterNames, "package_digest": r.PackageDigest,
			})
		}
		return strictjson.Pretty(rows)
	}
	if len(records) == 0 {
		return []byte(noBindings), nil
	}
	var b strings.Builder
	b.WriteString("EXTENSION VERSION CAPABILITY ADAPTERS PACKAGE_DIGEST\n")
	for _, r := range records {
		fmt.Fprintf(&b, "%s %s %s %s %s\n", r.ExtensionID, r.ExtensionVersion, capability(r), strings.Join(r.AdapterNames, ","), r.PackageDigest)
	}
	return []byte(b.String()), nil
}

func capability(r binding.Record) string {
	return fmt.Sprintf("%s/%d", binding.Capability, r.CapabilityVersion)
}

func inspectCommand(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:               "inspect <extension-id>",
		Short:             "Print an enabled binding",
		Example:           "  fm-extension inspect org.example.review-feed",
		Args:              cli.Args(1, 1, "one extension id"),
		ValidArgsFunction: ids,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := extensionID(args[0]); err != nil {
				return err
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			record, err := h.Find(args[0])
			if err != nil {
				return err
			}
			text, _, err := record.Encode()
			if err != nil {
				return err
			}
			return cli.Print(cmd, text)
		},
	})
}

func verifyCommand(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:   "verify [<extension-id>]",
		Short: "Revalidate installed packages whole and shake hands with each",
		Example: `  fm-extension verify
  fm-extension verify org.example.review-feed`,
		Args:              cli.Args(0, 1, "at most one extension id"),
		ValidArgsFunction: ids,
		RunE:              func(cmd *cobra.Command, args []string) error { return verify(cmd, o, args) },
	})
}

// verify prints each package as it is verified and refuses the others a line
// each.
func verify(cmd *cobra.Command, o *options, args []string) error {
	for _, id := range args {
		if err := extensionID(id); err != nil {
			return err
		}
	}
	h, err := o.host()
	if err != nil {
		return err
	}
	if len(args) == 0 {
		records, err := h.List()
		if err != nil {
			return err
		}
		for _, r := range records {
			args = append(args, r.ExtensionID)
		}
		if len(args) == 0 && !o.json {
			return cli.Print(cmd, []byte(noBindings))
		}
	}
	rows := make([]any, 0, len(args))
	failed := 0
	for _, id := range args {
		r, err := h.Verify(cmd.Context(), id)
		if err != nil && (cmd.Context().Err() != nil || len(args) == 1) {
			return err
		}
		if err != nil {
			cli.Complain(cmd.ErrOrStderr(), fmt.Errorf("%s: %w", id, err))
			failed++
			continue
		}
		name := r.ExtensionID + "@" + r.ExtensionVersion
		rows = append(rows, map[string]any{"verified": name, "package_digest": r.PackageDigest})
		if !o.json {
			if err := cli.Print(cmd, fmt.Appendf(nil, "verified: %s %s\n", name, r.PackageDigest)); err != nil {
				return err
			}
		}
	}
	if o.json {
		text, err := strictjson.Pretty(rows)
		if err != nil {
			return err
		}
		if err := cli.Print(cmd, text); err != nil {
			return err
		}
	}
	if failed > 0 {
		return cli.Status(cli.ExitRefused)
	}
	return nil
}

func retireCommand(o *options) *cobra.Command {
	var digest digestFlag
	var damaged bool
	cmd := &cobra.Command{
		Use:   "retire-binding <extension-id> --if-binding-digest DIGEST",
		Short: "Disable a binding of exactly this identity, and retain it",
		Long: `Disable a binding of exactly this identity, and retain it.

Refused while a registered source, an unhandled result or a running operation
depends on it. The installed package stays; restore-binding brings the binding
back.`,
		Example:           "  fm-extension retire-binding org.example.review-feed --if-binding-digest sha256:...",
		Args:              cli.Args(1, 1, "one extension id"),
		ValidArgsFunction: ids,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := digest.digest()
			if err != nil {
				return err
			}
			if err := extensionID(args[0]); err != nil {
				return err
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			retire := h.RetireBinding
			if damaged {
				retire = func(ctx context.Context, id string, digest wire.Digest) (*lifecycle.Retired, error) {
					return transfer.RetireDamaged(ctx, h, id, digest)
				}
			}
			r, err := retire(cmd.Context(), args[0], d)
			if err != nil {
				return err
			}
			return o.tell(cmd, r,
				cli.Fact{Name: "retired-binding", Value: r.ExtensionID + " " + string(r.BindingDigest)},
				cli.Fact{Name: "retained-at", Value: r.RetainedAt})
		},
	}
	digest.add(cmd, "if-binding-digest", "the digest that bind printed (required)")
	cmd.Flags().BoolVar(&damaged, "package-damaged", false, "retire although the installed package fails its validation")
	return o.jsonFlag(cmd)
}

func repairCommand(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:   "repair <extension-id> [<package-root>]",
		Short: "Reinstall the damaged or missing package of a binding",
		Long: `Reinstall the damaged or missing package of an enabled binding from its
recorded source, or from the directory given, if every digest matches. The
damaged tree is moved aside.`,
		Example: `  fm-extension repair org.example.review-feed
  fm-extension repair org.example.review-feed ~/backup/review-feed`,
		Args:              cli.Args(1, 2, "an extension id and at most one package directory"),
		ValidArgsFunction: ids,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := extensionID(args[0]); err != nil {
				return err
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			bound, err := h.Repair(cmd.Context(), args[0], strings.Join(args[1:], ""))
			if err != nil {
				return err
			}
			return o.tell(cmd, bound, boundFacts(bound)...)
		},
	})
}

func restoreCommand(o *options) *cobra.Command {
	var digest digestFlag
	cmd := &cobra.Command{
		Use:     "restore-binding <extension-id> --binding-digest DIGEST",
		Short:   "Bring a retired binding back",
		Example: "  fm-extension restore-binding org.example.review-feed --binding-digest sha256:...",
		Args:    cli.Args(1, 1, "one extension id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := digest.digest()
			if err != nil {
				return err
			}
			if err := extensionID(args[0]); err != nil {
				return err
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			bound, err := h.RestoreBinding(cmd.Context(), args[0], d)
			if err != nil {
				return err
			}
			return o.tell(cmd, bound, boundFacts(bound)...)
		},
	}
	digest.add(cmd, "binding-digest", "the digest that bind and retire-binding printed (required)")
	return o.jsonFlag(cmd)
}

// printCleaned prints what was cleaned and refuses the rest a line each. If there
// is only the rest, it is a refusal like any other.
func printCleaned(cmd *cobra.Command, o *options, settled invoke.Settled) error {
	if settled.Cleaned > 0 || len(settled.Failed) == 0 {
		if err := o.print(cmd, cli.Fact{Name: "cleaned-invocations", Value: fmt.Sprint(settled.Cleaned)}); err != nil {
			return err
		}
	}
	for _, err := range settled.Failed {
		cli.Complain(cmd.ErrOrStderr(), err)
	}
	if len(settled.Failed) > 0 {
		return cli.Status(cli.ExitRefused)
	}
	return nil
}

func cleanupCommand(o *options) *cobra.Command {
	var source string
	var digest digestFlag
	cmd := &cobra.Command{
		Use:   "cleanup-invocations [--source-id S | --binding-digest D]",
		Short: "Settle the records of operations whose host died",
		Long: `Settle the records of operations whose host died: a process group that one of
them left is stopped if it is provably the recorded one, and what is provably
gone is removed. What cannot be proved is left alone and named.`,
		Example: "  fm-extension cleanup-invocations\n  fm-extension cleanup-invocations --source-id review-feed-main",
		Args:    cli.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter := invoke.Filter{SourceID: source}
			if cmd.Flags().Changed("source-id") {
				if must := wire.CheckSourceID(source); must != "" {
					return fault.New(fault.Usage, "--source-id %s: must be %s", fault.Path(source), must)
				}
			}
			if cmd.Flags().Changed("binding-digest") {
				d, err := digest.digest()
				if err != nil {
					return err
				}
				filter.BindingDigest = d
			}
			if filter.SourceID != "" && filter.BindingDigest != "" {
				return fault.New(fault.Usage, "--source-id and --binding-digest exclude each other")
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			settled, err := h.CleanupInvocations(cmd.Context(), filter)
			if err != nil {
				return err
			}
			return printCleaned(cmd, o, settled)
		},
	}
	cmd.Flags().StringVar(&source, "source-id", "", "only records of this source")
	digest.add(cmd, "binding-digest", "only records of this binding")
	return cmd
}
