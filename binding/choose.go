package binding

import (
	"fmt"
	"slices"
	"strings"

	"hawser/internal/fault"
	"hawser/internal/wire"
)

// Options are what the operator asks of a bind, as given.
type Options struct {
	Adapters          []string // --adapter, at least one
	TrustSameUserCode bool     // --trust-same-user-code
	Consents          []string // --consent; saying one twice says it once
	TimeoutMS         int64    // --timeout-ms, else DefaultTimeoutMS
}

// Check is the first step of a bind, before anything of a package is looked at
// (commands: fm-extension). Codes: usage for a fault of the arguments
// themselves, then consent-missing without the trust in same-user code.
func (o Options) Check() error {
	if len(o.Adapters) == 0 {
		return fault.New(fault.Usage, "no adapter given; name each one to enable with --adapter NAME")
	}
	for i, name := range o.Adapters {
		if must := wire.CheckAdapter(name); must != "" {
			return fault.New(fault.Usage, "--adapter %q: must be %s", name, must)
		}
		if slices.Contains(o.Adapters[:i], name) {
			return fault.New(fault.Usage, "--adapter %s is given twice", name)
		}
	}
	for _, fact := range o.Consents {
		if must := checkConsent(fact); must != "" {
			return fault.New(fault.Usage, "--consent %q: must be %s", fact, must)
		}
	}
	if o.TimeoutMS < MinTimeoutMS || o.TimeoutMS > MaxTimeoutMS {
		return fault.New(fault.Usage, "--timeout-ms %d: must be %d to %d", o.TimeoutMS, MinTimeoutMS, MaxTimeoutMS)
	}
	if !o.TrustSameUserCode {
		return fault.New(fault.ConsentMissing,
			"a bound package runs as you, without a sandbox; add --trust-same-user-code if you trust its code that far")
	}
	return nil
}

// Choose settles the terms of a binding, in the order of a bind: adapters, then
// consents, then versions in common (commands: fm-extension). Codes: those of
// [Options.Check], capability-mismatch, consent-missing, protocol-incompatible.
func Choose(m *Manifest, o Options) (Terms, error) {
	if err := o.Check(); err != nil {
		return Terms{}, err
	}
	if err := checkOffered(m, o.Adapters); err != nil {
		return Terms{}, err
	}
	consents, err := grant(m, o.Consents)
	if err != nil {
		return Terms{}, err
	}
	protocol, err := highestCommon("host protocol", m, m.HostProtocols, HostProtocol)
	if err != nil {
		return Terms{}, err
	}
	version, err := highestCommon(Capability+" version", m, m.CapabilityVersions, CapabilityVersion)
	if err != nil {
		return Terms{}, err
	}
	return Terms{
		HostProtocol:      protocol,
		CapabilityVersion: version,
		AdapterNames:      slices.Clone(o.Adapters),
		Consents:          consents,
		TimeoutMS:         o.TimeoutMS,
	}, nil
}

func checkOffered(m *Manifest, adapters []string) error {
	for _, name := range adapters {
		if !slices.Contains(m.AdapterNames, name) {
			return fault.New(fault.CapabilityMismatch, "%s@%s does not offer the adapter %s; it offers %s",
				m.ID, m.Version, name, few(m.AdapterNames))
		}
	}
	return nil
}

func grant(m *Manifest, given []string) (Consents, error) {
	var consents Consents
	for _, fact := range given {
		*consents.fact(Consent(fact)) = true
	}
	var missing []string
	for _, fact := range m.RequiredConsents {
		if !*consents.fact(fact) {
			missing = append(missing, "--consent "+string(fact))
		}
	}
	if len(missing) > 0 {
		return Consents{}, fault.New(fault.ConsentMissing, "%s@%s requires a consent that was not given; if you consent, add %s",
			m.ID, m.Version, strings.Join(missing, " "))
	}
	return consents, nil
}

// highestCommon is simple as long as this host speaks one version of each.
func highestCommon(what string, m *Manifest, offered []int64, ours int64) (int64, error) {
	if !slices.Contains(offered, ours) {
		return 0, fault.New(fault.ProtocolIncompatible, "%s@%s has no %s in common with this host, which speaks %d; use a version of the package that offers it",
			m.ID, m.Version, what, ours)
	}
	return ours, nil
}

// few lists names for a message, a manifest's thousands cut short.
func few(names []string) string {
	const most = 8
	if len(names) <= most {
		return joined(names)
	}
	return fmt.Sprintf("%s and %d more", joined(names[:most]), len(names)-most)
}
