package binding_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hawser/binding"
	"hawser/internal/fault"
)

func feed() *binding.Manifest {
	return &binding.Manifest{
		ID: "org.example.feed", Version: "1.0.0", HostProtocols: []int64{2, 1}, Entrypoint: "run",
		CapabilityVersions: []int64{1, 3}, AdapterNames: []string{"a", "b", "c"},
		RequiredConsents: []binding.Consent{binding.CredentialStore, binding.Network},
	}
}

func willing() binding.Options {
	return binding.Options{
		Adapters: []string{"c", "a"}, TrustSameUserCode: true,
		Consents: []string{"network", "task-metadata", "credential-store", "network"}, TimeoutMS: binding.MinTimeoutMS,
	}
}

func TestChoose(t *testing.T) {
	got, err := binding.Choose(feed(), willing())
	want := binding.Terms{
		HostProtocol: 1, CapabilityVersion: 1, AdapterNames: []string{"c", "a"}, TimeoutMS: 100,
		Consents: binding.Consents{Network: true, CredentialStore: true, TaskMetadata: true},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestChooseRefuses(t *testing.T) {
	for _, c := range []struct {
		spoil   func(*binding.Manifest, *binding.Options)
		code    fault.Code
		message string
	}{
		{func(_ *binding.Manifest, o *binding.Options) { o.Adapters = nil }, fault.Usage, `--adapter NAME`},
		{func(_ *binding.Manifest, o *binding.Options) { o.Adapters = []string{"a", "c", "a"} }, fault.Usage, `--adapter a is given twice`},
		{func(_ *binding.Manifest, o *binding.Options) { o.Adapters = []string{"A\n"} }, fault.Usage, `--adapter "A\n": must be 1 to 32`},
		{func(_ *binding.Manifest, o *binding.Options) { o.Consents = []string{"net\n"} }, fault.Usage, `--consent "net\n": must be one of network, `},
		{func(_ *binding.Manifest, o *binding.Options) { o.Consents = []string{"trusted-same-user-code"} }, fault.Usage, `must be one of`},
		{func(_ *binding.Manifest, o *binding.Options) { o.TimeoutMS = 99 }, fault.Usage, `--timeout-ms 99: must be 100 to 3600000`},
		{func(_ *binding.Manifest, o *binding.Options) { o.TimeoutMS = 3_600_001 }, fault.Usage, `--timeout-ms 3600001: must be`},
		{func(_ *binding.Manifest, o *binding.Options) { o.TrustSameUserCode = false }, fault.ConsentMissing, `add --trust-same-user-code`},
		{func(_ *binding.Manifest, o *binding.Options) { o.Adapters = []string{"a", "d"} }, fault.CapabilityMismatch, `does not offer the adapter d; it offers a, b, c`},
		{func(_ *binding.Manifest, o *binding.Options) { o.Consents = nil }, fault.ConsentMissing, `add --consent credential-store --consent network`},
		{func(m *binding.Manifest, _ *binding.Options) { m.HostProtocols = []int64{2} }, fault.ProtocolIncompatible, `no host protocol in common`},
		{func(m *binding.Manifest, _ *binding.Options) { m.CapabilityVersions = []int64{2} }, fault.ProtocolIncompatible, `no process-event-adapter version in common`},
	} {
		m, o := feed(), willing()
		c.spoil(m, &o)
		_, err := binding.Choose(m, o)
		if !fault.Is(err, c.code) || !strings.Contains(err.Error(), c.message) {
			t.Errorf("got [%s] %v, want [%s] %s", fault.CodeOf(err), err, c.code, c.message)
		}
	}
}

// With several things wrong the first step of a bind that meets one refuses.
func TestChooseOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steps := []struct {
			spoil func(*binding.Manifest, *binding.Options)
			code  fault.Code
		}{
			{func(_ *binding.Manifest, o *binding.Options) { o.TimeoutMS = 0 }, fault.Usage},
			{func(_ *binding.Manifest, o *binding.Options) { o.TrustSameUserCode = false }, fault.ConsentMissing},
			{func(m *binding.Manifest, _ *binding.Options) { m.AdapterNames = []string{"z"} }, fault.CapabilityMismatch},
			{func(_ *binding.Manifest, o *binding.Options) { o.Consents = nil }, fault.ConsentMissing},
			{func(m *binding.Manifest, _ *binding.Options) { m.HostProtocols = []int64{2} }, fault.ProtocolIncompatible},
		}
		m, o := feed(), willing()
		want := fault.Code("")
		for _, step := range slices.Backward(steps) {
			if rapid.Bool().Draw(t, "wrong") {
				step.spoil(m, &o)
				want = step.code
			}
		}
		if _, err := binding.Choose(m, o); (err == nil) != (want == "") || err != nil && !fault.Is(err, want) {
			t.Fatalf("got %v, want code %q", err, want)
		}
	})
}

func TestMessageCutsNamesShort(t *testing.T) {
	m := feed()
	m.AdapterNames = strings.Split(strings.Repeat("n ", 1000)+"n", " ")
	_, err := binding.Choose(m, willing())
	if !fault.Is(err, fault.CapabilityMismatch) || !strings.HasSuffix(err.Error(), "n, n and 993 more") {
		t.Error(err)
	}
}

func TestConsentFacts(t *testing.T) {
	binding.ConsentFacts()[0] = "changed"
	if got := binding.ConsentFacts(); !slices.Equal(got, []binding.Consent{"network", "credential-store", "task-metadata", "artifact-references"}) {
		t.Error(got)
	}
}
