// Package transfer brings packages to other homes.
//
// Its one idea: a package on its way is a value that was checked whole. An
// [Envelope] is only ever made by reading one document strictly to its end and
// holding everything in it against everything else; what a receiving home then
// writes is what was checked, and nothing of a document that fails touches a
// path.
//
// # Transfer envelope
//
// One canonical JSON document (RFC 8785) of at most [MaxEnvelopeBytes], with at
// most one LF after it (home: Transfer envelope):
//
//	{
//	  "manifest": {
//	    "entries": [
//	      {"mode": 493, "path": "bin", "sha256": null, "size": 0, "type": "directory"},
//	      {"mode": 493, "path": "bin/run", "sha256": "sha256:…", "size": 42, "type": "file"}
//	    ],
//	    "entry_count": 2,
//	    "extension_id": "org.example.review-feed",
//	    "extension_version": "1.2.3",
//	    "package_digest": "sha256:…",
//	    "schema": "firstmate.extension-package-transfer-manifest.v1",
//	    "total_bytes": 42
//	  },
//	  "manifest_sha256": "sha256:…",
//	  "payloads": [null, "…"],
//	  "schema": "firstmate.extension-package-transfer.v1"
//	}
//
// Entries are in the byte order of their whole paths, which is not the order of
// the tree digest: "lib-x" comes before "lib/a". Every parent directory is listed.
// A payload is the file's content in padded standard base64. manifest_sha256, the
// digest of the canonical manifest, is the transfer's identity: the transfer
// digest.
package transfer
