package main

import (
	"bytes"
	"cmp"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"hawser/binding"
	"hawser/internal/cli"
	"hawser/internal/fault"
	"hawser/lifecycle"
	"hawser/transfer"
	"hawser/transfer/remote"
)

// transferCommands are the commands about packages on their way.
func transferCommands(o *options) []*cobra.Command {
	return []*cobra.Command{packCommand(o), receiveCommand(o), remoteBindCommand(o), retireTransferCommand(o), restoreTransferCommand(o)}
}

func packCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "pack-transfer <package-root>",
		Short: "Print a package as one document, for another home",
		Long: `Print a package as one document, for another home.

A package in transfer has at most 128 entries, 262144 bytes a file, and 524288
bytes in all.`,
		Example: "  fm-extension pack-transfer ~/packages/review-feed > review-feed.json",
		Args:    cli.Args(1, 1, "one package directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := o.host()
			if err != nil {
				return err
			}
			data, err := transfer.PackDirectory(h, args[0])
			if err != nil {
				return err
			}
			return cli.Print(cmd, data)
		},
	}
}

func receiveCommand(o *options) *cobra.Command {
	var given binding.Options
	cmd := &cobra.Command{
		Use:   "receive-transfer-bind --adapter NAME... --trust-same-user-code < envelope",
		Short: "Install and enable a package that pack-transfer printed",
		Long: `Install and enable a package that pack-transfer printed, read from standard input.

The package is staged as it was transferred, then bound as bind does. If binding
it fails, it is moved aside, and the same document may come again.`,
		Example: "  fm-extension receive-transfer-bind --adapter review-feed --trust-same-user-code < review-feed.json",
		Args:    cli.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := given.Check(); err != nil {
				return err
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			widen(os.Stdin)
			envelope, err := cli.Await(cmd.Context(), func() (*transfer.Envelope, error) { return transfer.Read(cmd.InOrStdin()) })
			if err != nil {
				return err
			}
			received, err := transfer.ReceiveBind(cmd.Context(), h, envelope, given)
			if err != nil {
				return err
			}
			return o.tell(cmd, received, receivedFacts(received)...)
		},
	}
	addBindFlags(cmd, &given)
	return o.jsonFlag(cmd)
}

func receivedFacts(r *transfer.Received) []cli.Fact {
	return append(boundFacts(r.Bound),
		cli.Fact{Name: "transfer-digest", Value: string(r.TransferDigest)},
		cli.Fact{Name: "staged-package", Value: r.StagedPackage})
}

func remoteBindCommand(o *options) *cobra.Command {
	var given binding.Options
	cmd := &cobra.Command{
		Use:   "remote-bind <route> <package-root> --adapter NAME... --trust-same-user-code",
		Short: "Install and enable a package of this host in another home",
		Long: `Install and enable a package of this host in another home: pack-transfer here and
receive-transfer-bind there, over fm-on. What the other side prints and its exit
status come back unchanged; 255 says that completion is unknown. Asking again is
safe: what was done is then transfer-exists.`,
		Example:           "  fm-extension remote-bind harbor ~/packages/review-feed --adapter review-feed --trust-same-user-code",
		Args:              cli.Args(2, 2, "a route and a package directory"),
		ValidArgsFunction: routesAndDirectories,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := given.Check(); err != nil {
				return err
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			argv := receiveArguments(given, o.json)
			if cmd.Flags().Changed("lock-timeout") { // the lock is the other home's
				argv = append(argv, "--lock-timeout", o.lockTimeout.String())
			}
			return remoteBind(cmd, h, args[0], args[1], argv)
		},
	}
	addBindFlags(cmd, &given)
	return o.jsonFlag(cmd)
}

func remoteBind(cmd *cobra.Command, h *lifecycle.Host, word, root string, argv []string) error {
	routes, err := remote.ReadRoutes(h.Home)
	if err != nil {
		return err
	}
	route, err := remote.Find(routes, word)
	if err != nil {
		return err
	}
	client, err := remote.NewClient(cmd.Context(), os.Getenv)
	if err != nil {
		return err
	}
	envelope, err := transfer.PackDirectory(h, root)
	if err != nil {
		return err
	}
	var out remote.Output
	status, err := client.Run(cmd.Context(), route, argv, remote.Streams{
		Stdin: bytes.NewReader(envelope), Stdout: &out, Stderr: cmd.ErrOrStderr(),
	})
	switch {
	case err != nil && (cmd.Context().Err() != nil || status != remote.StatusUnknown):
		return err
	case out.Over:
		status, err = remote.StatusUnknown, fault.New(fault.ResponseOversized, "%s sent more than %d bytes: whether the package was bound is unknown; look there before you run it again", route.Alias, remote.MaxStreamBytes)
	case len(out.Bytes) > 0:
		err = cmp.Or(err, cli.Print(cmd, out.Bytes))
	}
	if status == 0 {
		return err
	}
	if err != nil {
		cli.Complain(cmd.ErrOrStderr(), err)
	}
	return cli.Status(status)
}

// routesAndDirectories completes the arguments of remote-bind, and never complains.
func routesAndDirectories(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 1 {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	h, err := cli.Home()
	if err != nil || len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	routes, _ := remote.ReadRoutes(h)
	return remote.IDs(routes), cobra.ShellCompDirectiveNoFileComp
}

// receiveArguments is the command of the other side.
func receiveArguments(given binding.Options, asJSON bool) []string {
	argv := []string{"fm-extension.sh", "receive-transfer-bind", "--trust-same-user-code"}
	for _, name := range given.Adapters {
		argv = append(argv, "--adapter", name)
	}
	for _, fact := range given.Consents {
		argv = append(argv, "--consent", fact)
	}
	argv = append(argv, "--timeout-ms", strconv.FormatInt(given.TimeoutMS, 10))
	if asJSON {
		argv = append(argv, "--json")
	}
	return argv
}

func retireTransferCommand(o *options) *cobra.Command {
	var t, b digestFlag
	cmd := &cobra.Command{
		Use:   "retire-transfer <extension-id> --if-transfer-digest DIGEST --if-binding-digest DIGEST",
		Short: "Disable a binding that came by a transfer, and retain both",
		Long: `Disable a binding that came by a transfer, and retain both as one.

Refused while a registered source, an unhandled result or a running operation
depends on the binding. If it is interrupted, the same command goes on.`,
		Example:           "  fm-extension retire-transfer org.example.review-feed --if-transfer-digest sha256:... --if-binding-digest sha256:...",
		Args:              cli.Args(1, 1, "one extension id"),
		ValidArgsFunction: ids,
		RunE: func(cmd *cobra.Command, args []string) error {
			transferDigest, err := t.digest()
			if err != nil {
				return err
			}
			bindingDigest, err := b.digest()
			if err != nil {
				return err
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			r, err := transfer.Retire(cmd.Context(), h, args[0], transferDigest, bindingDigest)
			if err != nil {
				return err
			}
			return o.tell(cmd, r,
				cli.Fact{Name: "retired-transfer", Value: r.ExtensionID + " " + string(r.TransferDigest)},
				cli.Fact{Name: "retired-binding", Value: r.ExtensionID + " " + string(r.BindingDigest)},
				cli.Fact{Name: "retained-at", Value: r.RetainedAt})
		},
	}
	t.add(cmd, "if-transfer-digest", "the transfer digest that the other side printed (required)")
	b.add(cmd, "if-binding-digest", "the binding digest that the other side printed (required)")
	return o.jsonFlag(cmd)
}

func restoreTransferCommand(o *options) *cobra.Command {
	var t, b digestFlag
	cmd := &cobra.Command{
		Use:     "restore-transfer <extension-id> --transfer-digest DIGEST --binding-digest DIGEST",
		Short:   "Bring a retired transfer back, with its binding",
		Example: "  fm-extension restore-transfer org.example.review-feed --transfer-digest sha256:... --binding-digest sha256:...",
		Args:    cli.Args(1, 1, "one extension id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			transferDigest, err := t.digest()
			if err != nil {
				return err
			}
			bindingDigest, err := b.digest()
			if err != nil {
				return err
			}
			h, err := o.host()
			if err != nil {
				return err
			}
			r, err := transfer.Restore(cmd.Context(), h, args[0], transferDigest, bindingDigest)
			if err != nil {
				return err
			}
			return o.tell(cmd, r, receivedFacts(r)...)
		},
	}
	t.add(cmd, "transfer-digest", "the digest of the transfer (required)")
	b.add(cmd, "binding-digest", "the digest of its binding (required)")
	return o.jsonFlag(cmd)
}
