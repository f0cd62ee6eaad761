package remote

import (
	"encoding/base64"
	"strings"
	"time"

	"hawser/internal/fault"
	"hawser/internal/wire"
)

// The limits of a remote job (wire: Limits).
const (
	MaxStreamBytes  = 1_048_576 // of stdin, stdout and stderr each
	MaxCommandBytes = 120_000   // of the whole command: one exec string holds 131,071
	JobTime         = 360 * time.Second
)

// Exit statuses that are not a command's own.
const (
	StatusUsage    = 64
	StatusInternal = 70
	StatusTimeUp   = 124
	StatusUnknown  = 255
)

// What the far end is called, and the version of what follows it. Remote
// accounts have the name on their PATH.
const (
	entrypointName = "fm-remote-entrypoint.sh"
	jobVersion     = "1"
)

// Job is a command of ours in another home.
type Job struct {
	Root string   // of the programs there: absolute, clean
	Home string   // the home there, the same
	Argv []string // the command's base name and its arguments
}

// CommandLine returns what ssh asks the other account's shell for. All of it is
// letters, digits and "+/=.- " but for the order, which is ours.
//
// Errors: usage, also for more than MaxCommandBytes.
func (j Job) CommandLine() (string, error) {
	if err := j.check(); err != nil {
		return "", err
	}
	encode := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	line := strings.Join([]string{
		entrypointName, jobVersion, encode(j.Root), encode(j.Home), encode(strings.Join(j.Argv, "\x00") + "\x00"),
	}, " ")
	if len(line) > MaxCommandBytes {
		return "", fault.New(fault.Usage, "the arguments come to %d bytes in transport, more than %d; give long ones on standard input", len(line), MaxCommandBytes)
	}
	return line, nil
}

// ParseJob reads what follows the name in a CommandLine.
//
// Errors: usage.
func ParseJob(args []string) (Job, error) {
	if len(args) != 4 {
		return Job{}, fault.New(fault.Usage, "fm-remote-entrypoint takes a version and three words in base64, not %d argument(s); fm-on is the way to call this", len(args))
	}
	if args[0] != jobVersion {
		return Job{}, fault.New(fault.Usage, "fm-remote-entrypoint speaks version %s only; install the same release on both hosts", jobVersion)
	}
	texts := make([]string, 3)
	for i, word := range args[1:] {
		text, err := base64.StdEncoding.Strict().DecodeString(word)
		// The decoder skips line ends.
		if err != nil || base64.StdEncoding.EncodeToString(text) != word {
			return Job{}, fault.New(fault.Usage, "argument %d is not padded standard base64", i+2)
		}
		texts[i] = string(text)
	}
	argv, terminated := strings.CutSuffix(texts[2], "\x00")
	if !terminated {
		return Job{}, fault.New(fault.Usage, "the argument vector does not end in a NUL")
	}
	j := Job{Root: texts[0], Home: texts[1], Argv: strings.Split(argv, "\x00")}
	return j, j.check()
}

func (j Job) check() error {
	if must := checkDir(j.Root); must != "" {
		return fault.New(fault.Usage, "root %s: must be %s", fault.Path(j.Root), must)
	}
	if must := checkDir(j.Home); must != "" {
		return fault.New(fault.Usage, "home %s: must be %s", fault.Path(j.Home), must)
	}
	if contains(j.Root, j.Home) || contains(j.Home, j.Root) {
		return fault.New(fault.Usage, "root %s and home %s: must be separate, neither in the other", fault.Path(j.Root), fault.Path(j.Home))
	}
	for _, arg := range j.Argv {
		if strings.Contains(arg, "\x00") {
			return fault.New(fault.Usage, "an argument holds a NUL, which none can")
		}
	}
	if len(j.Argv) == 0 {
		return fault.New(fault.Usage, "no command given")
	}
	return CheckCommand(j.Argv[0])
}

// isName reports whether a route, a host alias or a command is of the one
// alphabet that no shell and no option parser reads anything into.
func isName(s string) bool {
	return s != "" && s[0] != '-' && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == ""
}

// CheckCommand refuses what is not the base name of a command of ours. Errors:
// usage.
func CheckCommand(base string) error {
	if !isName(base) || !strings.HasPrefix(base, "fm-") || base == "fm-" {
		return fault.New(fault.Usage, "command %s: must be the base name of one of ours, such as fm-extension.sh", fault.Path(base))
	}
	return nil
}

func checkDir(path string) string {
	if wire.CheckBindingPath(path) != "" || wire.HasControl(path) {
		return "an absolute, clean path in UTF-8 without control characters"
	}
	return ""
}

// contains reports whether path is dir or below it; both are clean.
func contains(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
