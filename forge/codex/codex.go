package codex

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hawser/forge"
	"hawser/internal/fault"
	"hawser/internal/strictjson"
	"hawser/invoke/process"
)

// Capabilities are those of a plugin whose handler is [Edit].
func Capabilities() []forge.Capability {
	return append([]forge.Capability{forge.CapWorkspaceEdit}, forge.CapWorkspaceEdit.Options()...)
}

// maxOutput is how many bytes Codex may print.
const maxOutput = 1 << 20

// Edit is a [forge.ProgressHandler]: it lets the program $CODEX_BIN (codex)
// follow the request's instruction in its workspace. It is for one request a
// process, and inherits its environment to Codex.
func Edit(ctx context.Context, request forge.Request, progress forge.ProgressFunc) (forge.Result, error) {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, milliseconds(request.TimeoutMS))
	defer cancel()
	result, err := edit(ctx, request, progress)
	if err != nil && caller.Err() != nil {
		err = caller.Err() // whatever went wrong then
	}
	return result, err
}

func milliseconds(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// edit makes a directory of its own for the files of the run. It goes as soon as
// ctx ends, because a host that has cancelled may kill this process before Codex
// has been stopped. When the process is killed without that the directory stays
// where temporary files are; it holds nothing but a schema and the final message.
func edit(ctx context.Context, request forge.Request, progress forge.ProgressFunc) (forge.Result, error) {
	progress(forge.Started, "looking at the work tree")
	tree, err := openWorktree(ctx, request.Workspace)
	if err != nil {
		return forge.Result{}, err
	}
	dir, err := os.MkdirTemp("", "forge-codex-")
	if err != nil {
		return forge.Result{}, fault.Wrap(fault.IO, err, "cannot make a directory for the files of the run")
	}
	remove := func() { _ = os.RemoveAll(dir) }
	defer remove()
	defer context.AfterFunc(ctx, remove)()
	report := slices.Contains(request.Selected, forge.CapAgentReport)
	schema, message := filepath.Join(dir, "schema.json"), filepath.Join(dir, "message.json")
	if err := os.WriteFile(schema, messageSchema(report), 0o600); err != nil {
		return forge.Result{}, fault.Wrap(fault.IO, err, "cannot write the schema of the final message")
	}

	progress(forge.Working, "Codex is at work")
	if err := run(ctx, tree.dir, prompt(request.Instruction, report),
		"exec", "--ephemeral", "--sandbox", "workspace-write", "--color", "never", "-C", tree.dir,
		"--output-schema", schema, "--output-last-message", message, "-"); err != nil {
		return forge.Result{}, err
	}

	progress(forge.Finalizing, "checking what Codex did")
	if err := tree.checkHead(ctx); err != nil {
		return forge.Result{}, err
	}
	return readMessage(message, report)
}

// run runs Codex in a process group of its own, to its end or that of ctx, and
// stops it when it prints too much. Nothing of what it prints is kept.
func run(ctx context.Context, dir, prompt string, args ...string) error {
	name := cmp.Or(os.Getenv("CODEX_BIN"), "codex")
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return fault.Wrap(fault.ProcessFailed, err, "cannot find Codex; set CODEX_BIN to where it is")
	}
	workspace, err := os.Open(dir)
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot open the workspace")
	}
	defer workspace.Close()
	output, theirs, err := os.Pipe()
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot make a pipe")
	}
	defer output.Close()
	codex, err := process.Start(process.Spec{
		Path: path, Argv: append([]string{name}, args...), Env: environment(), Dir: workspace,
		Stdout: theirs, Stderr: theirs,
	})
	theirs.Close()
	if err != nil {
		return err
	}
	defer codex.Close()
	if err := codex.Release(ctx); err != nil {
		return fault.Wrap(fault.ProcessFailed, err, "cannot start Codex")
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { // until Codex has read it, or is gone
		_, _ = io.WriteString(codex.Stdin, prompt)
		_ = codex.Stdin.Close()
	}()
	printed := make(chan int64, 1)
	go func() {
		n := count(output)
		if n > maxOutput {
			stop()
		}
		printed <- n
	}()
	ending := codex.Settle(ctx)
	// What it printed last may still be in the pipe, and a process that left the
	// group may hold that open. Whoever has cancelled does not wait for it.
	grace := process.OutputGrace
	if ending.Cause != nil {
		grace = 0
	}
	_ = output.SetReadDeadline(time.Now().Add(grace))
	if <-printed > maxOutput {
		return fault.New(fault.ResponseOversized, "Codex printed more than %d bytes", maxOutput)
	}
	switch {
	case ending.Cause != nil:
		return fault.Wrap(fault.ProcessFailed, ending.Cause, "Codex was stopped")
	case ending.NotProvedGone:
		return fault.New(fault.ProcessCleanupFailed, "Codex left a process that could not be stopped")
	case !ending.Exit.OK():
		return fault.New(fault.ProcessFailed, "Codex ended with %v", ending.Exit)
	}
	return nil
}

// count reads to the end, or one byte past maxOutput. It is a variable for tests
// of what is still unread when Codex has ended.
var count = func(output io.Reader) int64 {
	n, _ := io.Copy(io.Discard, io.LimitReader(output, maxOutput+1))
	return n
}

// messageDoc is the final message.
var messageDoc = strictjson.Doc{Name: "final message of Codex", Limit: 65_536}

// readMessage reads what Codex left. It may be anything that has a name: a FIFO
// or a device would be waited for, and a link leads elsewhere.
func readMessage(path string, report bool) (forge.Result, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return forge.Result{}, fault.New(fault.ResponseInvalid, "Codex left no final message")
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO): // a link, a socket
		return forge.Result{}, notFile()
	case err != nil:
		return forge.Result{}, fault.Wrap(fault.IO, err, "cannot read the final message of Codex")
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return forge.Result{}, fault.Wrap(fault.IO, err, "cannot read the final message of Codex")
	}
	if !info.Mode().IsRegular() {
		return forge.Result{}, notFile()
	}
	data, err := messageDoc.Read(file)
	if err != nil {
		return forge.Result{}, err
	}
	v, err := messageDoc.Decode(data)
	if err != nil {
		return forge.Result{}, err
	}
	members := []string{"commit_subject"}
	if report {
		members = append(members, "summary", "changes")
	}
	v.Members(members...)
	result := forge.Result{CommitSubject: v.Get("commit_subject").String(nonEmpty)}
	if report {
		result.Report = &forge.Report{
			Summary: v.Get("summary").String(nonEmpty),
			Changes: v.Get("changes").Strings(1, forge.MaxChanges, nonEmpty),
		}
	}
	return result, v.Err() // what the protocol wants of the texts is checked when they are sent
}

func notFile() error {
	return fault.New(fault.ResponseInvalid, "Codex left something else than a file as its final message")
}

// nonEmpty keeps an empty text from being taken for an absent one.
func nonEmpty(text string) string {
	if text == "" {
		return "at least one byte"
	}
	return ""
}

// prompt is what Codex reads.
func prompt(instruction string, report bool) string {
	var b strings.Builder
	b.WriteString("Edit the files of the Git work tree in the current directory as the instruction below says. " +
		"Leave your edits in the files: do not commit, and do not switch, create or move branches. " +
		"Your final message is one JSON object and nothing else. Its commit_subject is the subject line of a commit " +
		"of your edits, one line of at most 256 bytes, as in \"feat: describe the edit\".")
	if report {
		b.WriteString(" Its summary is one line of at most 1024 bytes on what you did, and its changes are 1 to 12 lines " +
			"of at most 256 bytes each, one for each thing that you changed.")
	}
	b.WriteString("\n\nInstruction:\n\n")
	b.WriteString(instruction)
	b.WriteString("\n")
	return b.String()
}

// messageSchema is the JSON schema of the final message. Lengths are in
// characters there, and in bytes in the protocol, which has the last word.
func messageSchema(report bool) []byte {
	required, properties := `"commit_subject"`, `"commit_subject":{"type":"string","minLength":1,"maxLength":256}`
	if report {
		required += `,"summary","changes"`
		properties += `,"summary":{"type":"string","minLength":1,"maxLength":1024}` +
			`,"changes":{"type":"array","minItems":1,"maxItems":12,"items":{"type":"string","minLength":1,"maxLength":256}}`
	}
	return []byte(`{"type":"object","additionalProperties":false,"required":[` + required + `],"properties":{` + properties + "}}\n")
}
