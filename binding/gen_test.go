package binding_test

import (
	"strings"

	"pgregory.net/rapid"

	"hawser/binding"
	"hawser/internal/wire"
)

// sampleBinding is the binding that the documentation shows.
func sampleBinding() *binding.Binding {
	digest := func(s string) wire.Digest { return wire.DigestOf([]byte(s)) }
	return &binding.Binding{
		ExtensionID:      "org.example.review-feed",
		ExtensionVersion: "1.2.3",
		SourcePath:       "/home/op/review-feed",
		PackageRoot:      "/home/op/fm/data/extensions/packages/org.example.review-feed/1.2.3/" + digest("package").Hex(),
		ManifestSHA256:   digest("manifest"),
		PackageDigest:    digest("package"),
		Entrypoint:       "bin/firstmate-extension",
		EntrypointSHA256: digest("entrypoint"),
		Terms: binding.Terms{
			HostProtocol:      binding.HostProtocol,
			CapabilityVersion: binding.CapabilityVersion,
			AdapterNames:      []string{"review-feed"},
			Consents:          binding.Consents{Network: true},
			TimeoutMS:         binding.DefaultTimeoutMS,
		},
	}
}

func ids() *rapid.Generator[string] {
	return rapid.StringMatching(`[a-z0-9]{1,8}([.-][a-z0-9]{1,8}){0,4}`)
}

func versions() *rapid.Generator[string] {
	return rapid.StringMatching(`(0|[1-9][0-9]{0,3})(\.(0|[1-9][0-9]{0,3})){2}(-[a-z][0-9a-z.]{0,4}[a-z])?(\+[0-9a-z]{1,5})?`).
		Filter(func(s string) bool { return wire.CheckVersion(s) == "" })
}

func adapters() *rapid.Generator[[]string] {
	return rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9]{1,6}(-[a-z0-9]{1,6}){0,3}`), 1, 5, rapid.ID[string])
}

func digests() *rapid.Generator[wire.Digest] {
	return rapid.Map(rapid.StringMatching(`[0-9a-f]{64}`), func(hex string) wire.Digest { return wire.Digest("sha256:" + hex) })
}

// paths are clean, of any characters but NUL.
func paths() *rapid.Generator[string] {
	part := rapid.StringN(1, 12, 60).Filter(func(s string) bool { return !strings.ContainsAny(s, "/\x00") && s != "." && s != ".." })
	return rapid.Map(rapid.SliceOfN(part, 0, 5), func(parts []string) string { return "/" + strings.Join(parts, "/") })
}

func entrypoints() *rapid.Generator[string] {
	return rapid.StringMatching(`[A-Za-z0-9_é"<>& ]{1,12}(/[a-z~]{1,12}){0,3}`)
}

func bindings() *rapid.Generator[*binding.Binding] {
	return rapid.Custom(func(t *rapid.T) *binding.Binding {
		return &binding.Binding{
			ExtensionID:      ids().Draw(t, "id"),
			ExtensionVersion: versions().Draw(t, "version"),
			SourcePath:       paths().Draw(t, "source"),
			PackageRoot:      paths().Draw(t, "root"),
			ManifestSHA256:   digests().Draw(t, "manifest digest"),
			PackageDigest:    digests().Draw(t, "package digest"),
			Entrypoint:       entrypoints().Draw(t, "entrypoint"),
			EntrypointSHA256: digests().Draw(t, "entrypoint digest"),
			Terms: binding.Terms{
				HostProtocol:      binding.HostProtocol,
				CapabilityVersion: binding.CapabilityVersion,
				AdapterNames:      adapters().Draw(t, "adapters"),
				Consents: binding.Consents{
					Network:            rapid.Bool().Draw(t, "network"),
					CredentialStore:    rapid.Bool().Draw(t, "credentials"),
					TaskMetadata:       rapid.Bool().Draw(t, "tasks"),
					ArtifactReferences: rapid.Bool().Draw(t, "artifacts"),
				},
				TimeoutMS: rapid.Int64Range(binding.MinTimeoutMS, binding.MaxTimeoutMS).Draw(t, "timeout"),
			},
		}
	})
}

// replaced is doc with one text changed, which must be there once.
func replaced(doc, old, with string) string {
	if strings.Count(doc, old) != 1 {
		panic("the document does not hold exactly one " + old)
	}
	return strings.Replace(doc, old, with, 1)
}
