// Command fm-extension binds trusted packages to a home, looks at them, verifies
// them, runs their operations, and retires them (commands: fm-extension).
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hawser/binding"
	"hawser/internal/cli"
	"hawser/internal/fault"
	"hawser/internal/wire"
	"hawser/lifecycle"
)

func main() { cli.Main(command()) }

// options are what every command takes.
type options struct {
	lockTimeout cli.Seconds
	json        bool
}

// host is the host of the effective home.
func (o *options) host() (*lifecycle.Host, error) {
	h, err := cli.Home()
	if err != nil {
		return nil, err
	}
	host := &lifecycle.Host{Home: h, LockTimeout: time.Duration(o.lockTimeout)}
	if cli.Interactive(os.Stderr) && !o.json {
		host.Waiting = func(line string) { fmt.Fprintln(os.Stderr, line) }
	}
	return host, nil
}

func command() *cobra.Command {
	o := &options{lockTimeout: cli.Seconds(lifecycle.DefaultLockTimeout)}
	root := &cobra.Command{
		Use:   "fm-extension",
		Short: "Bind trusted packages to a home, and run, verify and retire them",
		Long: `Bind trusted packages to a home, and run, verify and retire them.

The home is FM_HOME, else FM_ROOT_OVERRIDE, else the root that this program is
installed in. A bound package is code that runs as you, without a sandbox.`,
		Example: `  fm-extension bind ~/packages/review-feed --adapter review-feed --trust-same-user-code
  fm-extension list
  fm-extension verify`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fault.New(fault.Usage, "no command given; see fm-extension --help")
		},
	}
	root.PersistentFlags().Var(&o.lockTimeout, "lock-timeout", "how long to wait for the home's lock: seconds, or 90s, 2m")
	root.AddCommand(
		bindCommand(o), listCommand(o), inspectCommand(o), verifyCommand(o),
		retireCommand(o), repairCommand(o), restoreCommand(o),
		resolveCommand(o), eventCommand(o), cleanupCommand(o),
	)
	root.AddCommand(transferCommands(o)...)
	return root
}

// jsonFlag adds --json to a command that prints more than one fact.
func (o *options) jsonFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&o.json, "json", false, "print one JSON document instead of lines")
	return cmd
}

// boundFacts are the lines of bind.
func boundFacts(b *lifecycle.Bound) []cli.Fact {
	return []cli.Fact{
		{Name: "bound", Value: b.ExtensionID + "@" + b.ExtensionVersion},
		{Name: "binding", Value: b.File},
		{Name: "binding-digest", Value: string(b.Digest)},
		{Name: "package", Value: b.PackageRoot},
		{Name: "package-digest", Value: string(b.PackageDigest)},
		{Name: "verified", Value: fmt.Sprintf("%s/%d (%s)", binding.Capability, b.CapabilityVersion, strings.Join(b.AdapterNames, ","))},
	}
}

// tell prints the answer of a command that changed a binding. One that cannot be
// printed is left for the command's repetition to give.
func (o *options) tell(cmd *cobra.Command, answer interface{ Told() }, facts ...cli.Fact) error {
	if err := o.print(cmd, facts...); err != nil {
		return err
	}
	answer.Told()
	return nil
}

func (o *options) print(cmd *cobra.Command, facts ...cli.Fact) error {
	text, err := cli.Facts(o.json, facts...)
	if err != nil {
		return err
	}
	return cli.Print(cmd, text)
}

// digestFlag is a required option that takes a digest.
type digestFlag struct {
	name  string
	value string
}

func (d *digestFlag) add(cmd *cobra.Command, name, usage string) {
	d.name = name
	cmd.Flags().StringVar(&d.value, name, "", usage)
}

func (d *digestFlag) digest() (wire.Digest, error) {
	if d.value == "" {
		return "", fault.New(fault.Usage, "--%s is missing; it takes a digest", d.name)
	}
	if must := wire.CheckDigest(d.value); must != "" {
		return "", fault.New(fault.Usage, "--%s %s: must be %s", d.name, fault.Path(d.value), must)
	}
	return wire.Digest(d.value), nil
}

// extensionID checks the extension id among the arguments.
func extensionID(id string) error {
	if must := wire.CheckExtensionID(id); must != "" {
		return fault.New(fault.Usage, "extension id %s: must be %s", fault.Path(id), must)
	}
	return nil
}

// ids completes extension ids from the registry, and never complains.
func ids(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	h, err := cli.Home()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	records, _ := (&lifecycle.Host{Home: h}).List()
	var found []string
	for _, r := range records {
		found = append(found, r.ExtensionID)
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}
