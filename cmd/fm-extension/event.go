package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"hawser/binding"
	"hawser/internal/cli"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
	"hawser/invoke"
	"hawser/lifecycle"
)

// Statuses of source.poll (commands: process-event).
const (
	exitNoResult = 75
	exitFailed   = 70
)

const resolutionSchema = "fm-extension-process-event-resolution.v1"

func resolveCommand(o *options) *cobra.Command {
	return o.jsonFlag(&cobra.Command{
		Use:     "resolve-process-event <adapter>",
		Short:   "Find and verify the binding that enables an adapter",
		Example: "  fm-extension resolve-process-event review-feed",
		Args:    cli.Args(1, 1, "one adapter name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkAdapter(args[0]); err != nil {
				return err
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			r, err := h.Resolve(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			text, err := resolution(r, o.json)
			if err != nil {
				return err
			}
			return cli.Print(cmd, text)
		},
	})
}

func resolution(r binding.Record, asJSON bool) ([]byte, error) {
	if asJSON {
		return strictjson.Pretty(map[string]any{
			"schema": resolutionSchema, "extension_id": r.ExtensionID, "extension_version": r.ExtensionVersion,
			"capability_version": r.CapabilityVersion, "package_digest": r.PackageDigest, "binding_digest": r.Digest,
		})
	}
	return []byte(strings.Join([]string{resolutionSchema, r.ExtensionID, r.ExtensionVersion,
		fmt.Sprint(r.CapabilityVersion), string(r.PackageDigest), string(r.Digest)}, "\t") + "\n"), nil
}

func checkAdapter(name string) error {
	if must := wire.CheckAdapter(name); must != "" {
		return fault.New(fault.Usage, "adapter %s: must be %s", fault.Path(name), must)
	}
	return nil
}

// eventFlags are the options of process-event as given.
type eventFlags struct {
	extension, version        string
	capability                int
	packageDigest, bindDigest digestFlag
	sourceID, configRef       string
	requestID                 digestFlag
	resultFile                string
}

func eventCommand(o *options) *cobra.Command {
	var f eventFlags
	cmd := &cobra.Command{
		Use:   "process-event <adapter> <operation> --expect-...",
		Short: "Run one operation of a bound package",
		Long: `Run one operation of a bound package, whose identity must be the expected one, as
resolve-process-event prints it.

  source.poll      prints the output of one event; exit 75 for none. Any refusal
                   or failure prints a firstmate.process-event-extension-error.v1
                   document and exits 70.
  result.classify  prints the word of a captured result
  result.terminal  exits 0 for yes and 1 for no or any failure
  result.silent    the same

The verdicts only ask: nothing is changed or settled by them.`,
		Example: `  fm-extension process-event review-feed source.poll \
    --expect-extension org.example.review-feed --expect-version 1.2.3 \
    --expect-capability-version 1 --expect-package-digest sha256:... \
    --expect-binding-digest sha256:... --source-id review-feed-main --config-ref main`,
		Args: cli.Args(2, 2, "an adapter and an operation"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{invoke.Poll, invoke.Classify, invoke.Terminal, invoke.Silent}, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error { return processEvent(cmd, o, &f, args[0], args[1]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.extension, "expect-extension", "", "the extension id (required)")
	flags.StringVar(&f.version, "expect-version", "", "its version (required)")
	flags.IntVar(&f.capability, "expect-capability-version", 0, "the capability version (required)")
	f.packageDigest.add(cmd, "expect-package-digest", "the package digest (required)")
	f.bindDigest.add(cmd, "expect-binding-digest", "the binding digest (required)")
	flags.StringVar(&f.sourceID, "source-id", "", "source.poll: the source id (required)")
	flags.StringVar(&f.configRef, "config-ref", "", "source.poll: the configuration reference (required)")
	f.requestID.add(cmd, "request-id", "source.poll: the idempotence key (default random)")
	flags.StringVar(&f.resultFile, "result-file", "", "result.*: a captured result in this home's inbox (required)")
	return cmd
}

func processEvent(cmd *cobra.Command, o *options, f *eventFlags, adapter, operation string) error {
	expected, requestID, err := f.check(cmd, adapter, operation)
	if err != nil {
		return err
	}
	switch operation {
	case invoke.Poll:
		return poll(cmd, o, f, expected, requestID)
	case invoke.Classify:
		h, err := o.host()
		if err != nil {
			return err
		}
		word, err := h.Classify(cmd.Context(), expected, f.resultFile)
		if err != nil {
			return err
		}
		return cli.Print(cmd, []byte(word+"\n"))
	}
	h, err := o.host()
	if err != nil {
		return err
	}
	yes, err := h.Verdict(cmd.Context(), expected, operation, f.resultFile)
	if err == nil && !yes {
		return cli.Status(1)
	}
	return err
}

// check is the usage of process-event: every fault of the arguments themselves.
func (f *eventFlags) check(cmd *cobra.Command, adapter, operation string) (e lifecycle.Expected, requestID wire.Digest, err error) {
	usage := func(format string, args ...any) (lifecycle.Expected, wire.Digest, error) {
		return e, "", fault.New(fault.Usage, format, args...)
	}
	if err := checkAdapter(adapter); err != nil {
		return e, "", err
	}
	wanted := []string{"result-file"}
	excluded := []string{"source-id", "config-ref", "request-id"}
	switch operation {
	case invoke.Poll:
		wanted, excluded = excluded[:2], wanted
	case invoke.Classify, invoke.Terminal, invoke.Silent:
	default:
		return usage("operation %s: must be one of %s, %s, %s, %s", fault.Path(operation), invoke.Poll, invoke.Classify, invoke.Terminal, invoke.Silent)
	}
	wanted = append(wanted, "expect-extension", "expect-version", "expect-capability-version", "expect-package-digest", "expect-binding-digest")
	for _, name := range wanted {
		if !cmd.Flags().Changed(name) {
			return usage("%s needs --%s", operation, name)
		}
	}
	for _, name := range excluded {
		if cmd.Flags().Changed(name) {
			return usage("%s takes no --%s", operation, name)
		}
	}
	packageDigest, err := f.packageDigest.digest()
	if err != nil {
		return e, "", err
	}
	bindingDigest, err := f.bindDigest.digest()
	if err != nil {
		return e, "", err
	}
	if cmd.Flags().Changed(f.requestID.name) {
		if requestID, err = f.requestID.digest(); err != nil {
			return e, "", err
		}
	}
	if operation != invoke.Poll && f.resultFile == "" {
		return usage("--result-file: must be the path of a captured result")
	}
	if operation == invoke.Poll {
		if must := wire.CheckSourceID(f.sourceID); must != "" {
			return usage("--source-id %s: must be %s", fault.Path(f.sourceID), must)
		}
		if must := wire.CheckConfigRef(f.configRef); must != "" {
			return usage("--config-ref: must be %s", must)
		}
	}
	return lifecycle.Expected{Adapter: adapter, Owner: home.Owner{
		ExtensionID: f.extension, ExtensionVersion: f.version, CapabilityVersion: f.capability,
		PackageDigest: packageDigest, BindingDigest: bindingDigest,
	}}, requestID, nil
}

// poll prints the output of one event, or the evidence of a failure: nothing in
// it is the package's (seed: process-event-adapter/1).
func poll(cmd *cobra.Command, o *options, f *eventFlags, e lifecycle.Expected, requestID wire.Digest) error {
	h, err := o.host()
	var result invoke.PollResult
	if err == nil {
		result, err = h.Poll(cmd.Context(), e, f.sourceID, f.configRef, requestID)
	}
	switch {
	case err != nil && cmd.Context().Err() != nil:
		return err
	case err != nil:
		evidence, encodeErr := lifecycle.Evidence(e.ExtensionID, invoke.Poll, fault.CodeOf(err))
		if encodeErr != nil {
			return encodeErr
		}
		cli.Complain(cmd.ErrOrStderr(), err)
		if err := cli.Print(cmd, evidence); err != nil {
			return err
		}
		return cli.Status(exitFailed)
	case result.Output == "":
		return cli.Status(exitNoResult)
	}
	return cli.Print(cmd, []byte(result.Output))
}
