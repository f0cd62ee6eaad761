// Package transfer brings packages to other homes.
//
// Its one idea: a package on its way is a value that was checked whole. An
// [Envelope] is only ever made by reading one document strictly to its end and
// holding everything in it against everything else; what a receiving home then
// writes ([ReceiveBind]) is what was checked, and nothing of a document that fails
// touches a path.
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
//
// # A transfer in a home
//
// What was received is a unit (home: A home on disk):
//
//	data/extensions/staging/<id>/<version>/<transfer digest in hex>/   0700
//	    package/        0755 directories and executables, 0644 files
//	    receipt.json    0600, pretty JSON: schema (the manifest's), extension_id,
//	                    extension_version, package_digest, transfer_digest
//	    binding.json    only between the two moves of a retirement
//
// A unit proves itself: the transfer manifest is made again from its package, and
// its digest must be the unit's name. (Or that of the manifest with its entries in
// the order of the tree digest, which is how another host received it.) Only a whole unit is bound, retired or
// restored; its binding is one whose source is the unit's package.
//
//	staged, no binding      nothing depends on it: the receiver died, and the same
//	                        envelope takes it up again
//	staged, bound           the binding is enabled
//	staged, binding.json    a retirement or restoration was interrupted between its
//	                        moves: either command goes on
//	retired-staging         a retired unit with its binding, or what came of a bind
//	                        that failed; ".2", ".3" where the name was taken
//
// All that happens is one rename from one of these to another, under the home's
// lifecycle lock; what is temporary has a ".hawser." name beside the unit and is
// cleared by the next command that changes a binding. So no transfer is ever burnt:
// whatever is refused, the same command or the envelope's coming again leads on.
package transfer
