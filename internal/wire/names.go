package wire

import (
	"path"
	"strings"
	"unicode/utf8"
)

// CheckExtensionID: 1 to 128 bytes, parts of a-z and 0-9 joined by single "."
// or "-".
func CheckExtensionID(s string) string {
	if len(s) > 128 || !isJoined(s, ".-") {
		return `1 to 128 bytes of a-z and 0-9 in parts joined by single "." or "-"`
	}
	return ""
}

// CheckAdapter: an adapter name, 1 to 32 bytes, parts of a-z and 0-9 joined by
// single "-".
func CheckAdapter(s string) string {
	if len(s) > 32 || !isJoined(s, "-") {
		return `1 to 32 bytes of a-z and 0-9 in parts joined by single "-"`
	}
	return ""
}

// CheckClassification: 1 to 64 bytes, formed as an adapter name.
func CheckClassification(s string) string {
	if len(s) > 64 || !isJoined(s, "-") {
		return `1 to 64 bytes of a-z and 0-9 in parts joined by single "-"`
	}
	return ""
}

// CheckVersion: SemVer 2.0.0, without "v", at most 128 bytes.
func CheckVersion(s string) string {
	if len(s) > 128 || !isSemVer(s) {
		return "a semantic version such as 1.2.3 (SemVer 2.0.0) of at most 128 bytes"
	}
	return ""
}

// CheckSourceID: 1 to 64 of A-Z, a-z, 0-9, ".", "_", "-", not starting with ".".
func CheckSourceID(s string) string {
	if s == "" || len(s) > 64 || s[0] == '.' || !all(s, func(c byte) bool { return isAlnum(c) || c == '.' || c == '_' || c == '-' }) {
		return `1 to 64 of A-Z, a-z, 0-9, ".", "_" and "-", not starting with "."`
	}
	return ""
}

// CheckConfigRef: a source configuration reference, 1 to 512 bytes of UTF-8
// without control characters.
func CheckConfigRef(s string) string { return checkText(s) }

// CheckDiagnostic: the diagnostic of a failed response, formed as a
// configuration reference.
func CheckDiagnostic(s string) string { return checkText(s) }

func checkText(s string) string {
	if s == "" || len(s) > 512 || !utf8.ValidString(s) || HasControl(s) {
		return "1 to 512 bytes of UTF-8 without control characters"
	}
	return ""
}

// CheckPackagePath: a path below a package's root, parts joined by "/", none of
// them empty, "." or "..", in UTF-8 without control characters.
func CheckPackagePath(s string) string {
	if !isRelative(s) {
		return `a relative path without empty, "." or ".." parts, in UTF-8 without control characters`
	}
	return ""
}

// CheckEntrypoint: a package path of at most 256 bytes without backslash.
func CheckEntrypoint(s string) string {
	if len(s) > 256 || !isRelative(s) || strings.Contains(s, `\`) {
		return `a relative path of at most 256 bytes without backslash or empty, "." or ".." parts, in UTF-8 without control characters`
	}
	return ""
}

// CheckEnvelopePath: a package path of at most 512 bytes without backslash.
func CheckEnvelopePath(s string) string {
	if len(s) > 512 || !isRelative(s) || strings.Contains(s, `\`) {
		return `a relative path of at most 512 bytes without backslash or empty, "." or ".." parts, in UTF-8 without control characters`
	}
	return ""
}

// CheckBindingPath: a path in a binding, absolute, clean, UTF-8, at most 4,096
// bytes, without NUL, which no path can hold.
func CheckBindingPath(s string) string {
	if len(s) > 4096 || !path.IsAbs(s) || path.Clean(s) != s || !utf8.ValidString(s) || strings.Contains(s, "\x00") {
		return "an absolute, clean path in UTF-8 of at most 4096 bytes"
	}
	return ""
}

// HasControl reports whether s holds a control character, U+0000 to U+001F or
// U+007F. No such value ever gets into a line-based record.
func HasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7F })
}

// isJoined reports whether s is non-empty parts of a-z and 0-9, each two joined
// by one of the separators.
func isJoined(s, separators string) bool {
	separated := true // as before the first part
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z' || isDigit(c):
			separated = false
		case !separated && strings.IndexByte(separators, c) >= 0:
			separated = true
		default:
			return false
		}
	}
	return !separated
}

func isRelative(s string) bool {
	for part := range strings.SplitSeq(s, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return utf8.ValidString(s) && !HasControl(s)
}

// isSemVer follows the grammar of SemVer 2.0.0: three numbers, then perhaps "-"
// and pre-release identifiers, then perhaps "+" and build identifiers. A build
// identifier may have any leading zeros, a numeric pre-release one may not.
func isSemVer(s string) bool {
	s, build, hasBuild := strings.Cut(s, "+")
	core, pre, hasPre := strings.Cut(s, "-")
	numbers := 0
	for n := range strings.SplitSeq(core, ".") {
		if numbers++; !isNumber(n) {
			return false
		}
	}
	return numbers == 3 &&
		(!hasPre || isIdentifiers(pre, func(id string) bool { return isNumber(id) || !all(id, isDigit) })) &&
		(!hasBuild || isIdentifiers(build, func(string) bool { return true }))
}

func isIdentifiers(s string, ok func(string) bool) bool {
	for id := range strings.SplitSeq(s, ".") {
		if id == "" || !all(id, func(c byte) bool { return isAlnum(c) || c == '-' }) || !ok(id) {
			return false
		}
	}
	return true
}

// isNumber: digits without a leading zero.
func isNumber(s string) bool {
	return s != "" && all(s, isDigit) && (s[0] != '0' || s == "0")
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isAlnum(c byte) bool {
	return isDigit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func all(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}
