package procevent

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"hawser/internal/fault"
)

// startMargin is what a runner may take to own its source beyond the locks that
// it may have to wait for.
const startMargin = 10 * time.Second

// start starts a runner for each source, all at once, and waits until each owns
// its source or has ended.
func (p *pass) start(ctx context.Context, sources []string) {
	var runners []*launched
	for _, source := range sources {
		if ctx.Err() != nil {
			break
		}
		l, err := p.launch(source)
		if err != nil {
			p.fail(fault.Wrap(fault.IO, err, "cannot start a runner for source %s", source))
			continue
		}
		runners = append(runners, l)
	}
	end := time.Now().Add(2*p.lockTimeout() + startMargin) // its records, its source
	for _, l := range runners {
		owned, err := l.answer(ctx, end)
		if owned {
			p.Started++
		}
		if err != nil && ctx.Err() == nil {
			p.note(err)
		}
	}
}

// launched is a runner that was started and has not said yet whether it owns its
// source.
type launched struct {
	source string
	said   *os.File
	cmd    *exec.Cmd
}

// launch starts this program again as a runner in a session of its own, which
// outlives this process. Its standard output and error are a pipe, which is read
// up to the first line: that tells what came of the start and is no authority.
func (h *Host) launch(source string) (*launched, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	near, far, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer far.Close()
	cmd := exec.Command(exe, "start", "--tell-owner", fmt.Sprintf("--lock-timeout=%v", h.lockTimeout()), "--", source)
	cmd.Stdout, cmd.Stderr = far, far
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		near.Close()
		return nil, err
	}
	return &launched{source, near, cmd}, nil
}

// answer reads the runner's first line.
//
// Errors: what the runner was refused for; internal when it said nothing.
func (l *launched) answer(ctx context.Context, end time.Time) (owned bool, err error) {
	defer l.said.Close()
	_ = l.said.SetReadDeadline(end)
	defer context.AfterFunc(ctx, func() { _ = l.said.SetReadDeadline(time.Unix(1, 0)) })()
	line, _ := bufio.NewReader(l.said).ReadString('\n')
	line = strings.TrimSuffix(line, "\n")
	switch {
	case line == OwnedLine(l.source):
		_ = l.cmd.Process.Release() // it lives on
		return true, nil
	case line == "already owned: "+l.source:
		_ = l.cmd.Wait()
		return false, nil
	}
	_ = l.cmd.Process.Release()
	err = refusal(line)
	if fault.Is(err, fault.SourceMissing) {
		return false, nil // retired meanwhile
	}
	if err == nil {
		err = fault.New(fault.Internal, "the runner of source %s did not say that it owns the source; to see why: fm-procevent start %[1]s", l.source)
	}
	return false, err
}

// refusal is the fault in a line that this program printed (wire: Errors and
// exits), nil in any other.
func refusal(line string) error {
	line, ok := strings.CutPrefix(line, "error[")
	code, message, isLine := strings.Cut(line, "]: ")
	if !ok || !isLine {
		return nil
	}
	return fault.New(fault.Code(code), "%s", message)
}

// OwnedLine is what a runner that reconcile started says first, once it owns its
// source.
func OwnedLine(source string) string { return "owned: " + source }
