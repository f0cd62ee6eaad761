package binding

import (
	"slices"
	"strings"
)

// Consent is a fact that a package may require the operator to consent to, as
// manifests and the --consent option spell it. Only credential-store changes
// what the host does; the others are honest records (contract: Package manifest).
type Consent string

const (
	Network            Consent = "network"
	CredentialStore    Consent = "credential-store"
	TaskMetadata       Consent = "task-metadata"
	ArtifactReferences Consent = "artifact-references"
)

// consentFacts are all there are.
var consentFacts = [...]Consent{Network, CredentialStore, TaskMetadata, ArtifactReferences}

// ConsentFacts are the facts that --consent takes, for help and completion.
func ConsentFacts() []Consent { return slices.Clone(consentFacts[:]) }

func checkConsent(fact string) string {
	if !slices.Contains(consentFacts[:], Consent(fact)) {
		return "one of " + joined(consentFacts[:])
	}
	return ""
}

// member is the fact's name in a binding.
func (c Consent) member() string { return strings.ReplaceAll(string(c), "-", "_") }

// Consents are the facts that the operator consented to, required or not.
// Trust in same-user code is no member: without it there is no binding.
type Consents struct {
	Network, CredentialStore, TaskMetadata, ArtifactReferences bool
}

// fact returns the place of one of consentFacts.
func (c *Consents) fact(fact Consent) *bool {
	switch fact {
	case Network:
		return &c.Network
	case CredentialStore:
		return &c.CredentialStore
	case TaskMetadata:
		return &c.TaskMetadata
	case ArtifactReferences:
		return &c.ArtifactReferences
	}
	panic("binding: no such consent")
}

func joined[T ~string](words []T) string {
	var b strings.Builder
	for i, w := range words {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(w))
	}
	return b.String()
}
