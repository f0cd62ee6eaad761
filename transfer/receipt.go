package transfer

import (
	"errors"
	"path/filepath"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
)

// receipt says which transfer a unit is (home: Receipt).
type receipt struct {
	identity
	pkg wire.Digest
}

var receiptDoc = strictjson.Doc{Name: "transfer receipt", Limit: 65_536}

func (r receipt) encode() ([]byte, error) {
	return strictjson.Pretty(map[string]any{
		"schema":            manifestSchema,
		"extension_id":      r.id,
		"extension_version": r.version,
		"package_digest":    r.pkg,
		"transfer_digest":   r.transfer,
	})
}

// parseReceipt reads a receipt strictly. Errors: json-oversized, json-invalid,
// schema-invalid.
func parseReceipt(data []byte) (receipt, error) {
	v, err := receiptDoc.Decode(data)
	if err != nil {
		return receipt{}, err
	}
	v.Members("schema", "extension_id", "extension_version", "package_digest", "transfer_digest")
	v.Get("schema").Const(manifestSchema)
	r := receipt{
		identity: identity{
			id:       v.Get("extension_id").String(wire.CheckExtensionID),
			version:  v.Get("extension_version").String(wire.CheckVersion),
			transfer: wire.Digest(v.Get("transfer_digest").String(wire.CheckDigest)),
		},
		pkg: wire.Digest(v.Get("package_digest").String(wire.CheckDigest)),
	}
	return r, v.Err()
}

func readReceipt(dir *dirfd.Dir) (receipt, error) {
	data, err := home.ReadPrivate(dir, receiptName, receiptDoc.Limit)
	if err != nil {
		return receipt{}, err
	}
	return parseReceipt(data)
}

// writeReceipt writes the receipt into a directory that nobody sees yet.
func writeReceipt(dir *dirfd.Dir, r receipt) error {
	data, err := r.encode()
	if err != nil {
		return err
	}
	file, err := dir.Create(receiptName, 0o600)
	if err == nil {
		_, err = file.Write(data)
		err = errors.Join(err, file.Close())
	}
	return fault.Wrap(fault.IO, err, "cannot write %s", fault.Path(filepath.Join(dir.Path(), receiptName)))
}
