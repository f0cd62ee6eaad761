package remote

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hawser/internal/fault"
)

const (
	defaultAliveInterval = 15 // seconds
	defaultAliveCountMax = 3
	connectTime          = 30 * time.Second
	// clientTime bounds what no keep-alive does: a host that dies while it
	// authenticates. It is above everything that a job may take.
	clientTime = connectTime + JobTime + stopGrace + outputTime + 10*time.Second
	// leaveTime is how long ssh has to end when it is told to.
	leaveTime = 3 * time.Second
	// versionTime is how long ssh has to say its version, which takes no network.
	versionTime = 10 * time.Second
)

// Client is the near end: it runs jobs by OpenSSH's client. It is a value, safe
// for concurrent use.
type Client struct {
	ssh           string // its path
	knowsSessions bool   // ssh does: see sessionOptions
	aliveInterval int    // seconds
	aliveCountMax int
	env           []string
	connect, time time.Duration // to a connection, and to the end
}

// NewClient returns the client that the environment asks for: FM_SSH_BIN,
// FM_SSH_ALIVE_INTERVAL (seconds) and FM_SSH_ALIVE_COUNT_MAX. env is os.Getenv
// or a stand-in. It asks ssh for its version.
//
// Errors: usage for a value that is out of its range, io when there is no ssh.
func NewClient(ctx context.Context, env func(string) string) (*Client, error) {
	c := &Client{env: sshEnvironment(env), connect: connectTime, time: clientTime}
	var err error
	if c.aliveInterval, err = positive(env, "FM_SSH_ALIVE_INTERVAL", defaultAliveInterval); err != nil {
		return nil, err
	}
	if c.aliveCountMax, err = positive(env, "FM_SSH_ALIVE_COUNT_MAX", defaultAliveCountMax); err != nil {
		return nil, err
	}
	bin := env("FM_SSH_BIN")
	if bin == "" {
		bin = "ssh"
	}
	if c.ssh, err = exec.LookPath(bin); err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot find the OpenSSH client %s; install it, or name it with FM_SSH_BIN", fault.Path(bin))
	}
	c.knowsSessions = c.isAtLeast(ctx, 8, 7)
	return c, nil
}

var versionLine = regexp.MustCompile(`OpenSSH_(?:\w+_)?(\d+)\.(\d+)`)

// isAtLeast reports whether ssh is of a version or a later one. One that does not
// say is not.
func (c *Client) isAtLeast(ctx context.Context, major, minor int) bool {
	ctx, cancel := context.WithTimeout(ctx, versionTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.ssh, "-V")
	cmd.Env = c.env
	cmd.WaitDelay = leaveTime
	var said Output
	cmd.Stdout, cmd.Stderr = &said, &said
	_ = cmd.Run() // what it said is all that counts
	m := versionLine.FindSubmatch(said.Bytes)
	if m == nil {
		return false
	}
	is, _ := strconv.Atoi(string(m[1]))
	also, _ := strconv.Atoi(string(m[2]))
	return is > major || is == major && also >= minor
}

// positive reads a number; 0 would turn keep-alives off.
func positive(env func(string) string, name string, usual int) (int, error) {
	text := env(name)
	if text == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 3600 {
		return 0, fault.New(fault.Usage, "%s=%s: must be 1 to 3600", name, fault.Path(text))
	}
	return n, nil
}

// sshEnvironment is all that ssh gets: what it needs to find keys, tickets and
// programs. A "SendEnv LANG LC_*" in a configuration then finds nothing to
// send; no option could take it back.
func sshEnvironment(env func(string) string) []string {
	var kept []string
	for _, name := range []string{"PATH", "HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK", "KRB5CCNAME", "XDG_RUNTIME_DIR"} {
		if value := env(name); value != "" {
			kept = append(kept, name+"="+value)
		}
	}
	return kept
}

// arguments are ssh's, in front of the host. The first value that ssh meets for
// an option is the one that counts, and these come before any configuration.
func (c *Client) arguments() []string {
	options := []string{
		// No terminal, and nothing that would ask at one.
		"RequestTTY=no",
		"BatchMode=yes",
		"EscapeChar=none",
		// Nothing but this one command goes through.
		"ForwardAgent=no",
		"ForwardX11=no",
		"ClearAllForwardings=yes",
		"Tunnel=no",
		"PermitLocalCommand=no",
		// What is said on stderr is the other side's, but for what failed. A peer
		// that stopped answering is said at INFO, and nowhere below.
		"LogLevel=INFO",
		"VisualHostKey=no",
		// The command and its environment are ours alone. A first SetEnv keeps
		// those of the configuration out.
		"RemoteCommand=none",
		"SetEnv=LC_ALL=C",
		// A shared connection has somebody else's options, and its master would
		// outlive us with our stderr.
		"ControlMaster=no",
		"ControlPath=none",
		// A dead peer is noticed, and nothing is tried twice.
		"ConnectionAttempts=1",
		fmt.Sprintf("ConnectTimeout=%d", int(c.connect.Seconds())),
		fmt.Sprintf("ServerAliveInterval=%d", c.aliveInterval),
		fmt.Sprintf("ServerAliveCountMax=%d", c.aliveCountMax),
	}
	if c.knowsSessions {
		options = append(options, sessionOptions...)
	}
	// No tickets are handed on. A client without GSSAPI refuses the option's name,
	// and takes the letter.
	args := []string{"-T", "-k"}
	for _, option := range options {
		args = append(args, "-o", option)
	}
	return args
}

// sessionOptions make one command of a session, whatever the configuration says
// about it. Before OpenSSH 8.7 no configuration can say it, and the option is
// refused; to have it ignored (IgnoreUnknown) would take back what the user's
// configuration has ignored.
var sessionOptions = []string{"SessionType=default", "StdinNull=no", "ForkAfterAuthentication=no"}

// Output holds what the other side prints until it is to be printed here. The far
// end passes at most MaxStreamBytes on; of one that sends more only so much is
// kept, and ssh is stopped. It is not safe for concurrent use.
type Output struct {
	Bytes []byte
	Over  bool // more came
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	kept := min(len(p), MaxStreamBytes-len(o.Bytes))
	o.Bytes = append(o.Bytes, p[:kept]...)
	if kept < len(p) {
		o.Over = true
		return kept, io.ErrShortWrite
	}
	return kept, nil
}

// Streams are the standard streams of a job. A nil Stdin is empty; files are
// ssh's own, so that what the other side sends arrives as it is.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Run runs a command of the route's root in the route's home, and returns its
// exit status, or StatusUnknown when the transport failed: what became of the
// job is then unknown, and nothing is retried.
//
// Errors, with the status to exit with: usage for arguments that cannot be a
// job, io when ssh could not be started, and nothing was run then; timeout with
// StatusUnknown when ssh did not end and was stopped. When ctx ends, ssh is
// stopped, and the error is the cause.
func (c *Client) Run(ctx context.Context, r Route, argv []string, s Streams) (status int, err error) {
	line, err := Job{Root: r.Root, Home: r.Home, Argv: argv}.CommandLine()
	if err != nil {
		return StatusOf(err), err
	}
	bounded, cancel := context.WithTimeout(ctx, c.time)
	defer cancel()
	cmd := exec.CommandContext(bounded, c.ssh, append(c.arguments(), "--", r.Alias, line)...)
	cmd.Env = c.env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Stdin, s.Stdout, s.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = leaveTime
	if err := cmd.Start(); err != nil {
		if ctx.Err() != nil {
			return StatusInternal, context.Cause(ctx)
		}
		return StatusInternal, fault.Wrap(fault.IO, err, "cannot start the OpenSSH client %s", fault.Path(c.ssh))
	}
	// Its errors say less than its state: a job that does not read its input is
	// no failure.
	_ = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return StatusUnknown, context.Cause(ctx)
	case bounded.Err() != nil:
		return StatusUnknown, fault.New(fault.Timeout, "no answer from %s in %v: whether the job was done is unknown; look there before you run it again", r.Alias, c.time)
	case !cmd.ProcessState.Exited(): // a signal ended it
		return StatusUnknown, nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

// CheckLocal refuses a command that is not installed here, in the local root:
// both ends run the same release, so that is a mistake better told before
// anything is sent.
//
// Errors: usage.
func CheckLocal(root, base string) error {
	if err := CheckCommand(base); err != nil {
		return err
	}
	if root == "" {
		return fault.New(fault.Usage, "this program is not installed in a root, whose bin would hold %s; set FM_ROOT_OVERRIDE", base)
	}
	path := root + "/bin/" + base
	if isExecutable(path) {
		return nil
	}
	// A build tree has the programs, and not the names that installing adds.
	if program, ok := strings.CutSuffix(path, ".sh"); ok && isExecutable(program) {
		return fault.New(fault.Usage, "command %s: there is no executable file %s; install here and there: make install ROOT=<dir>, or ask for %s",
			base, fault.Path(path), strings.TrimSuffix(base, ".sh"))
	}
	return fault.New(fault.Usage, "command %s: there is no executable file %s; see what is in %s", base, fault.Path(path), fault.Path(root+"/bin"))
}

func isExecutable(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
