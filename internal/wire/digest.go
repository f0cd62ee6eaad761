package wire

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

const digestPrefix = "sha256:"

// Digest is "sha256:" and 64 lower-case hexadecimal digits. The type says that
// the form was checked: convert a string only after [CheckDigest], or with
// [ParseDigest].
type Digest string

// CheckDigest is the check of a digest, and of what looks like one: request
// ids and tokens.
func CheckDigest(s string) string {
	hex, ok := strings.CutPrefix(s, digestPrefix)
	if !ok || len(hex) != 2*sha256.Size || strings.Trim(hex, "0123456789abcdef") != "" {
		return `"sha256:" and 64 lower-case hex digits`
	}
	return ""
}

// ParseDigest returns s as a digest if it is one.
func ParseDigest(s string) (Digest, bool) {
	if CheckDigest(s) != "" {
		return "", false
	}
	return Digest(s), true
}

// DigestOf returns the digest of data.
func DigestOf(data []byte) Digest {
	return DigestFromSum(sha256.Sum256(data))
}

// DigestFromSum returns the digest whose SHA-256 value is sum.
func DigestFromSum(sum [sha256.Size]byte) Digest {
	return Digest(digestPrefix + hex.EncodeToString(sum[:]))
}

// Hex returns the digits alone, as directory and file names hold them.
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), digestPrefix) }

// RandomToken returns a digest-shaped random value: a registration token, the
// token of an invocation record.
func RandomToken() Digest {
	return DigestFromSum(random())
}

// RandomRequestID returns the request id of a handshake, and of a poll outside
// any registration that was given none ("wire: Request ids").
func RandomRequestID() Digest {
	nonce := random()
	return DigestOf(append([]byte("firstmate-extension-request-v1\x00"), nonce[:]...))
}

// PollRequestID returns the request id of a registration's next source.poll. It
// is the same until that sequence is captured, so that a retry keeps its key
// ("wire: Request ids"). The names must have passed their checks: a line end in
// one would be an ambiguity.
func PollRequestID(adapter, source string, sequence uint64, token, packageDigest Digest) Digest {
	return digestOfLines("firstmate-process-event-request-v1",
		adapter, source, strconv.FormatUint(sequence, 10), string(token), string(packageDigest))
}

// ResultRequestID returns the request id of a result.* operation on a captured
// result: the same each time it is asked about the same content ("wire: Request
// ids"). The names must have passed their checks.
func ResultRequestID(operation, adapter, source string, sequence uint64, packageDigest, content Digest) Digest {
	return digestOfLines("hawser-process-event-result-v1",
		operation, adapter, source, strconv.FormatUint(sequence, 10), string(packageDigest), string(content))
}

func digestOfLines(lines ...string) Digest {
	return DigestOf([]byte(strings.Join(lines, "\n") + "\n"))
}

// random never fails: crypto/rand ends the process where the system has none.
func random() (b [sha256.Size]byte) {
	rand.Read(b[:])
	return b
}
