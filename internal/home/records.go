package home

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/wire"
)

// OwnerSchema is the word of an external owner's record.
const OwnerSchema = "fm-procevent-extension-owner.v1"

// recordLimit bounds a line-based record; ours are below 4 KiB, a built-in's
// argv may be long.
const recordLimit = 1 << 20

// Owner is the immutable identity of the package that a registration or a
// captured result belongs to (home: Registration, Captured result).
type Owner struct {
	ExtensionID       string
	ExtensionVersion  string
	CapabilityVersion int
	PackageDigest     wire.Digest
	BindingDigest     wire.Digest
}

// Registration is one registered source. A built-in one has a nil Owner and its
// argv; an external one has its owner, configuration reference and token.
type Registration struct {
	Source    string
	Adapter   string
	Argv      []string
	Owner     *Owner
	ConfigRef string
	Token     string
}

// ParseRegistration reads the record of source (home: Registration). A record
// with some of the external keys but not exactly their shape belongs to nobody
// and is never taken for a built-in one.
//
// Errors: registration-invalid.
func ParseRegistration(source string, data []byte) (*Registration, error) {
	refuse := func(format string, args ...any) (*Registration, error) {
		return nil, fault.New(fault.RegistrationInvalid, "registration of %s: %s", fault.Path(source), fmt.Sprintf(format, args...))
	}
	if why := wire.CheckSourceID(source); why != "" {
		return refuse("its source id must be %s", why)
	}
	head, args, err := splitRecord(data)
	if err != nil {
		return refuse("%v", err)
	}
	if len(head) == 0 || head[0].key != "adapter" {
		return refuse("the first line is not adapter=")
	}
	reg := &Registration{Source: source, Adapter: head[0].value}
	if why := wire.CheckAdapter(reg.Adapter); why != "" {
		return refuse("adapter must be %s", why)
	}
	if len(head) == 2 && head[1].key == "argc" {
		if len(args) == 0 || head[1].value != strconv.Itoa(len(args)) {
			return refuse("argc does not count the %d arguments", len(args))
		}
		reg.Argv = args
		return reg, nil
	}
	order := []string{"adapter", "owner", "extension_schema", "extension_id", "extension_version", "capability_version",
		"package_digest", "binding_digest", "config_ref", "registration_token", "argc"}
	if len(head) != len(order) || len(args) != 0 {
		return refuse("it has neither the lines of a built-in record nor those of an external one")
	}
	for i, key := range order {
		if head[i].key != key {
			return refuse("line %d is not %s=", i+1, key)
		}
	}
	if head[1].value != "extension" || head[10].value != "0" {
		return refuse("owner or argc is not that of an external record")
	}
	reg.Owner, err = parseOwner(head[2:8])
	if err != nil {
		return refuse("%v", err)
	}
	reg.ConfigRef, reg.Token = head[8].value, head[9].value
	if why := wire.CheckConfigRef(reg.ConfigRef); why != "" {
		return refuse("config_ref must be %s", why)
	}
	if why := wire.CheckDigest(reg.Token); why != "" {
		return refuse("registration_token must be %s", why)
	}
	return reg, nil
}

// Encode is the inverse of ParseRegistration. The values must be valid.
func (r *Registration) Encode() []byte {
	var b bytes.Buffer
	line := func(key, value string) { b.WriteString(key + "=" + value + "\n") }
	line("adapter", r.Adapter)
	if r.Owner != nil {
		line("owner", "extension")
		b.Write(r.Owner.lines("extension_schema"))
		line("config_ref", r.ConfigRef)
		line("registration_token", r.Token)
	}
	line("argc", strconv.Itoa(len(r.Argv)))
	b.WriteString("argv:\n")
	for _, arg := range r.Argv {
		b.WriteString(arg + "\n")
	}
	return b.Bytes()
}

// ParseOwner reads the content of the .extension side file at path of a
// captured result.
//
// Errors: result-invalid.
func ParseOwner(path string, data []byte) (*Owner, error) {
	fields, err := keyedLines(data)
	if err == nil && (len(fields) != 6 || fields[0].key != "schema") {
		err = errors.New("it does not have the six lines of an owner")
	}
	var owner *Owner
	if err == nil {
		fields[0].key = "extension_schema"
		owner, err = parseOwner(fields)
	}
	return owner, fault.Wrap(fault.ResultInvalid, err, "owner of a captured result %s", fault.Path(path))
}

// Encode is the inverse of ParseOwner.
func (o *Owner) Encode() []byte { return o.lines("schema") }

func (o *Owner) lines(schemaKey string) []byte {
	return []byte(schemaKey + "=" + OwnerSchema +
		"\nextension_id=" + o.ExtensionID +
		"\nextension_version=" + o.ExtensionVersion +
		"\ncapability_version=" + strconv.Itoa(o.CapabilityVersion) +
		"\npackage_digest=" + string(o.PackageDigest) +
		"\nbinding_digest=" + string(o.BindingDigest) + "\n")
}

type field struct{ key, value string }

func parseOwner(fields []field) (*Owner, error) {
	for i, key := range []string{"extension_schema", "extension_id", "extension_version", "capability_version", "package_digest", "binding_digest"} {
		if fields[i].key != key {
			return nil, errors.New("there is no " + key + " where it must be")
		}
	}
	if fields[0].value != OwnerSchema {
		return nil, errors.New("it is not of schema " + OwnerSchema)
	}
	o := &Owner{ExtensionID: fields[1].value, ExtensionVersion: fields[2].value}
	if why := wire.CheckExtensionID(o.ExtensionID); why != "" {
		return nil, errors.New("extension_id must be " + why)
	}
	if why := wire.CheckVersion(o.ExtensionVersion); why != "" {
		return nil, errors.New("extension_version must be " + why)
	}
	n, err := strconv.Atoi(fields[3].value)
	if err != nil || n < 1 || strconv.Itoa(n) != fields[3].value {
		return nil, errors.New("capability_version is not a positive number")
	}
	o.CapabilityVersion = n
	for _, f := range fields[4:6] {
		if why := wire.CheckDigest(f.value); why != "" {
			return nil, errors.New(f.key + " must be " + why)
		}
	}
	o.PackageDigest, o.BindingDigest = wire.Digest(fields[4].value), wire.Digest(fields[5].value)
	return o, nil
}

// splitRecord splits a registration into its keyed lines and its arguments.
func splitRecord(data []byte) ([]field, []string, error) {
	head, rest, ok := bytes.Cut(data, []byte("\nargv:\n")) // a value may end in "argv:"
	if !ok {
		return nil, nil, errors.New("there is no argv: line")
	}
	fields, err := keyedLines(append(head[:len(head):len(head)], '\n'))
	if err != nil {
		return nil, nil, err
	}
	args, err := lines(rest)
	return fields, args, err
}

func keyedLines(data []byte) ([]field, error) {
	all, err := lines(data)
	if err != nil {
		return nil, err
	}
	fields := make([]field, len(all))
	for i, line := range all {
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			return nil, errors.New("line " + strconv.Itoa(i+1) + " is not key=value")
		}
		fields[i] = field{key, value}
	}
	return fields, nil
}

// lines splits LF-terminated lines, none of which holds a control character.
func lines(data []byte) ([]string, error) {
	if len(data) == 0 {
		return nil, nil
	}
	if data[len(data)-1] != '\n' {
		return nil, errors.New("the last line has no end")
	}
	all := strings.Split(string(data[:len(data)-1]), "\n")
	for i, line := range all {
		if !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
			return nil, errors.New("line " + strconv.Itoa(i+1) + " holds a control character or is not UTF-8")
		}
	}
	return all, nil
}

// ReadRegistration reads and parses <source>.source in the procevent directory.
//
// Errors: one that is fs.ErrNotExist; registration-invalid; those of ReadPrivate.
func ReadRegistration(procevent *dirfd.Dir, source string) (*Registration, error) {
	data, err := ReadPrivate(procevent, source+".source", recordLimit)
	if err != nil {
		return nil, err
	}
	if len(data) > recordLimit {
		return nil, fault.New(fault.RegistrationInvalid, "registration of %s: longer than %d bytes", source, recordLimit)
	}
	return ParseRegistration(source, data)
}

// Sources lists the source ids that have a .source file, in byte order, those
// with a malformed name included.
//
// Errors: io.
func Sources(procevent *dirfd.Dir) ([]string, error) {
	names, err := procevent.Names()
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(procevent.Path()))
	}
	var sources []string
	for _, name := range names {
		if source, ok := strings.CutSuffix(name, ".source"); ok && source != "" {
			sources = append(sources, source)
		}
	}
	slices.Sort(sources) // the suffix made another order of the names
	return sources, nil
}

// ResultName is the name of a captured result: a source id and a sequence. The
// sequence stands between the last two dots, since a source id may hold some.
type ResultName struct {
	Source   string
	Sequence uint64
}

// ParseResultName splits "<source>.<n>.<suffix>".
func ParseResultName(name string) (r ResultName, suffix string, ok bool) {
	rest, suffix, ok := cutLast(name)
	if !ok {
		return r, "", false
	}
	source, number, ok := cutLast(rest)
	if !ok || wire.CheckSourceID(source) != "" {
		return r, "", false
	}
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != number {
		return r, "", false
	}
	return ResultName{source, n}, suffix, true
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, '.')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// String is the name without its suffix.
func (r ResultName) String() string { return r.Source + "." + strconv.FormatUint(r.Sequence, 10) }

// Result is what the inbox holds of one captured result.
type Result struct {
	ResultName
	HasExtension bool // an .extension side file stands beside it
	Handled      bool
}

// Results lists the captured results of an inbox: what has a .result, which is
// the commit point. Side files without one are leftovers and not listed. The
// order is by source and sequence.
//
// Errors: io.
func Results(inbox *dirfd.Dir) ([]Result, error) {
	names, err := inbox.Names()
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot list %s", fault.Path(inbox.Path()))
	}
	found := map[ResultName]*Result{}
	committed := map[ResultName]bool{}
	for _, name := range names {
		r, suffix, ok := ParseResultName(name)
		if !ok {
			continue
		}
		res := found[r]
		if res == nil {
			res = &Result{ResultName: r}
			found[r] = res
		}
		switch suffix {
		case "result":
			committed[r] = true
		case "extension":
			res.HasExtension = true
		case "handled":
			res.Handled = true
		}
	}
	var results []Result
	for r := range committed {
		results = append(results, *found[r])
	}
	slices.SortFunc(results, func(a, b Result) int {
		if c := strings.Compare(a.Source, b.Source); c != 0 {
			return c
		}
		return int(int64(a.Sequence) - int64(b.Sequence))
	})
	return results, nil
}

// ReadOwner reads the .extension side file of a captured result.
//
// Errors: one that is fs.ErrNotExist when the result is a built-in's;
// result-invalid; those of ReadPrivate.
func ReadOwner(inbox *dirfd.Dir, r ResultName) (*Owner, error) {
	data, err := ReadPrivate(inbox, r.String()+".extension", recordLimit)
	if err != nil {
		return nil, err
	}
	return ParseOwner(filepath.Join(inbox.Path(), r.String()+".extension"), data)
}
