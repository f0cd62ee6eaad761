package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"hawser/internal/cli"
	"hawser/internal/fault"
	"hawser/internal/wire"
	"hawser/procevent"
)

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
		Use:   "handled <source> <n>",
		Short: "Acknowledge a captured result",
		Long: `Acknowledge a captured result: it is announced no more, and no longer keeps its
binding from being retired. The result itself stays in the inbox.`,
		Example:           "  fm-procevent handled review-feed-main 1",
		Args:              cli.Args(2, 2, "a source and a sequence"),
		ValidArgsFunction: o.sources,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := procevent.CheckSource(args[0]); err != nil {
				return err
			}
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
