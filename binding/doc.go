// Package binding knows what a package offers and what a home enabled of it:
// the manifest, the binding record, and the registry of a home's bindings. Its
// one idea is that the way from the first to the last is made of decisions on
// values; it starts no process and opens no file.
//
//   - [ReadManifest] reads what a package says of itself, firstmate-extension.json
//     at its root (contract: Package manifest).
//   - [Choose] holds the operator's [Options] against it and settles the [Terms]
//     of a binding: adapters, consents, versions in common, timeout.
//   - [Binding] is the record of one enabled package: identity, installed place,
//     terms (contract: Enabled binding). [Binding.Encode] writes the one file form
//     there is, and the digest over exactly these bytes is the identity by which a
//     binding is retired. Nothing in a binding is random: the same package bound
//     on the same terms is the same bytes.
//   - [Registry] is all bindings of a home, read strictly: a registry with
//     one bad file is refused, never selected around.
//
// # Binding file
//
// <extension id>.json, pretty JSON of at most 65,536 bytes:
//
//	{
//	  "capabilities": [
//	    {
//	      "adapter_names": [
//	        "review-feed"
//	      ],
//	      "name": "process-event-adapter",
//	      "version": 1
//	    }
//	  ],
//	  "consents": {
//	    "artifact_references": false,
//	    "credential_store": false,
//	    "network": true,
//	    "task_metadata": false,
//	    "trusted_same_user_code": true
//	  },
//	  "entrypoint": "bin/firstmate-extension",
//	  "entrypoint_sha256": "sha256:…",
//	  "extension_id": "org.example.review-feed",
//	  "extension_version": "1.2.3",
//	  "host_protocol": 1,
//	  "manifest_sha256": "sha256:…",
//	  "package_digest": "sha256:…",
//	  "package_root": "/home/op/fm/data/extensions/packages/org.example.review-feed/1.2.3/…",
//	  "schema": "firstmate.extension-binding.v1",
//	  "source": {
//	    "kind": "local-directory",
//	    "path": "/home/op/review-feed"
//	  },
//	  "timeout_ms": 300000
//	}
//
// All values here are immutable once made and then safe for concurrent use.
package binding
