package remote

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hawser/internal/fault"
)

// harborHost is a real sshd on loopback with a far end behind it, and a real ssh
// whose configuration does its worst.
type harborHost struct {
	*far
	client *Client
	dir    string
	evil   string // what exists when something ran that must not

	mu       sync.Mutex
	sessions []*exec.Cmd
}

// newHarbor starts one; more is added to the server's configuration.
func newHarbor(t *testing.T, more string) *harborHost {
	t.Helper()
	for _, program := range []string{"ssh", "/usr/sbin/sshd", "ssh-keygen"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s: %v", program, err)
		}
	}
	h := &harborHost{far: newFar(t), dir: temp(t)}
	h.evil = h.dir + "/evil"
	me, err := user.Current()
	must(t, err)
	for _, key := range []string{"host", "user"} {
		out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", h.dir+"/"+key).CombinedOutput()
		if err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	self, err := os.Executable()
	must(t, err)
	write(t, h.dir+"/path/fm-remote-entrypoint.sh", "#!/bin/sh\necho $$ >"+h.dir+"/far.pid\nREMOTE_TEST_FAR_END=1 exec "+self+` "$@"`+"\n", 0o755)
	// SHLVL makes of bash one that does not read the account's .bashrc, which may
	// wait for whatever it likes.
	write(t, h.dir+"/sshd_config", fmt.Sprintf(`
HostKey %[1]s/host
AuthorizedKeysFile %[1]s/user.pub
StrictModes no
UsePAM no
PidFile none
AcceptEnv *
SetEnv PATH=%[1]s/path:%[2]s SHLVL=1
%[3]s
`, h.dir, os.Getenv("PATH"), more), 0o600)

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var serving sync.WaitGroup
	serving.Add(1)
	go func() {
		defer serving.Done()
		h.listen(t, listener)
	}()
	t.Cleanup(func() {
		listener.Close()
		h.signal(syscall.SIGCONT)
		h.signal(syscall.SIGKILL)
		serving.Wait()
		h.stopFarEnd(t)
	})

	_, port, _ := net.SplitHostPort(listener.Addr().String())
	hostKey, err := os.ReadFile(h.dir + "/host.pub")
	must(t, err)
	write(t, h.dir+"/known_hosts", fmt.Sprintf("[127.0.0.1]:%s %s", port, hostKey), 0o600)
	write(t, h.dir+"/ssh_config", fmt.Sprintf(`
IgnoreUnknown UseKeychain
Host harbor-host
  UseKeychain yes
  HostName 127.0.0.1
  Port %[2]s
  User %[3]s
  IdentityFile %[1]s/user
  IdentitiesOnly yes
  UserKnownHostsFile %[1]s/known_hosts
  GlobalKnownHostsFile none
  SendEnv *
  SetEnv LC_EVIL=1 FM_HOME=%[4]s
  RemoteCommand touch %[4]s
  LocalCommand touch %[4]s
  PermitLocalCommand yes
  RequestTTY force
  ForwardAgent yes
  ForwardX11 yes
  RemoteForward %[4]s.socket 127.0.0.1:1
  ControlMaster auto
  ControlPath %[4]s.master
  ControlPersist yes
  StdinNull yes
  ForkAfterAuthentication yes
  SessionType none
  ServerAliveInterval 0
  BatchMode no
  VisualHostKey yes
  LogLevel DEBUG
`, h.dir, port, me.Username, h.evil), 0o600)
	ssh, err := exec.LookPath("ssh")
	must(t, err)
	write(t, h.dir+"/ssh", fmt.Sprintf("#!/bin/sh\nexec %s -F %s/ssh_config \"$@\"\n", ssh, h.dir), 0o755)
	h.client, err = NewClient(t.Context(), func(name string) string {
		return map[string]string{
			"FM_SSH_BIN": h.dir + "/ssh", "PATH": os.Getenv("PATH"), "HOME": h.dir,
			"LANG": "xx_XX", "LC_ALL": "xx_XX", "LC_SECRET": "evil", "FM_HOME": "/evil",
			"FM_SSH_ALIVE_INTERVAL": "1", "FM_SSH_ALIVE_COUNT_MAX": "1",
		}[name]
	})
	must(t, err)
	h.client.time = time.Minute

	// Whether an sshd can run here at all is not what is tested.
	h.command(t, "fm-true", "exit 0")
	var errs bytes.Buffer
	status, err := h.client.Run(context.Background(), h.route(), []string{"fm-true"}, Streams{Stderr: &errs})
	must(t, err)
	if log, _ := os.ReadFile(h.dir + "/log"); status != 0 {
		t.Fatalf("status %d\n%s\n%s", status, errs.String(), log)
	}
	return h
}

// listen gives each connection an sshd of its own, as inetd would: no port is
// guessed and no daemon is left.
func (h *harborHost) listen(t *testing.T, listener net.Listener) {
	log, err := os.OpenFile(h.dir+"/log", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Error(err)
		return
	}
	defer log.Close()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		socket, err := conn.(*net.TCPConn).File()
		conn.Close()
		if err != nil {
			t.Error(err)
			return
		}
		// As root sshd wants /run/sshd, which a machine without the service has
		// not: the script makes one that nobody else sees.
		cmd := exec.Command("/bin/sh", "-c", `if [ "$(id -u)" = 0 ]; then mount -t tmpfs -o mode=755 tmpfs /run && mkdir -m 755 /run/sshd || exit; fi; exec /usr/sbin/sshd -i -e -f "$0"`, h.dir+"/sshd_config")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if os.Geteuid() == 0 {
			cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = socket, socket, log
		err = cmd.Start()
		socket.Close()
		if err != nil {
			t.Error(err)
			return
		}
		h.mu.Lock()
		h.sessions = append(h.sessions, cmd)
		h.mu.Unlock()
		running.Go(func() { _ = cmd.Wait() })
	}
}

// signal signals every sshd that was started here.
func (h *harborHost) signal(sig syscall.Signal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, cmd := range h.sessions {
		_ = syscall.Kill(-cmd.Process.Pid, sig)
	}
}

// stopFarEnd stops the last job, which nobody waits for any more, and waits for
// its end.
func (h *harborHost) stopFarEnd(t *testing.T) {
	text, err := os.ReadFile(h.dir + "/far.pid")
	if err != nil {
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Error(err)
		return
	}
	self, err := os.Executable()
	must(t, err)
	for {
		// A process that is dead has no program, and another than ours is none of
		// our business.
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || exe != self {
			return
		}
		_ = syscall.Kill(pid, syscall.SIGTERM)
		time.Sleep(time.Millisecond)
	}
}

func (h *harborHost) route() Route {
	return Route{ID: "harbor", Alias: "harbor-host", Root: h.root, Home: h.home}
}

// on runs a script on the other side.
func (h *harborHost) on(t *testing.T, s Streams, script string, args ...string) (int, error) {
	t.Helper()
	h.command(t, "fm-do", script)
	return h.client.Run(context.Background(), h.route(), append([]string{"fm-do"}, args...), s)
}

// clean checks that nothing ran or stays that the configurations wanted.
func (h *harborHost) clean(t *testing.T) {
	t.Helper()
	for _, path := range []string{h.evil, h.evil + ".socket", h.evil + ".master"} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is there", path)
		}
	}
}

func TestOverSSH(t *testing.T) {
	h := newHarbor(t, "")
	hostile := []string{
		"", " ", "a b", "$(touch " + h.evil + ")", "`touch " + h.evil + "`", "'; touch " + h.evil + " #", `"; touch ` + h.evil + ` #`,
		"&& touch " + h.evil, "\n touch " + h.evil, "| tee " + h.evil, "> " + h.evil, "*", "~", "!!", "\\", "-o", "--", "é", "\xff\xfe", "\t\r\n",
	}
	var out, errs bytes.Buffer
	status, err := h.on(t, Streams{Stdout: &out, Stderr: &errs}, `printf '%s\0' "$@"; cat; env | sort >&2; exit 42`, hostile...)
	must(t, err)
	if status != 42 {
		t.Errorf("status %d", status)
	}
	if got, want := out.String(), strings.Join(hostile, "\x00")+"\x00"; got != want {
		t.Errorf("arguments arrive as %q", got)
	}
	env := errs.String()
	if strings.Contains(strings.ToLower(env), "evil") && !strings.Contains(h.dir, "evil") || strings.Contains(env, "LC_") || !strings.Contains(env, "FM_HOME="+h.home+"\n") {
		t.Errorf("environment\n%s", env)
	}
	h.clean(t)
}

func TestOverSSHStreams(t *testing.T) {
	h := newHarbor(t, "")
	input := make([]byte, MaxStreamBytes)
	_, _ = io.ReadFull(rand.Reader, input)
	var out, errs bytes.Buffer
	status, err := h.on(t, Streams{bytes.NewReader(input), &out, &errs}, "tee /dev/stderr")
	must(t, err)
	if status != 0 || !bytes.Equal(out.Bytes(), input) || !bytes.Equal(errs.Bytes(), input) {
		t.Errorf("status %d, %d and %d bytes", status, out.Len(), errs.Len())
	}
	status, err = h.on(t, Streams{Stdin: bytes.NewReader(append(input, 'x')), Stderr: &errs}, "cat")
	must(t, err)
	if status != 64 {
		t.Errorf("one byte over: status %d", status)
	}
	status, err = h.on(t, Streams{Stderr: &errs}, "cat /dev/zero")
	must(t, err)
	if status != 70 {
		t.Errorf("endless output: status %d", status)
	}
	long := strings.Repeat("x", 80_000)
	out.Reset()
	status, err = h.on(t, Streams{Stdout: &out}, `printf %s "$1"`, long)
	must(t, err)
	if status != 0 || out.String() != long {
		t.Errorf("a long argument: status %d, %d bytes", status, out.Len())
	}
	h.clean(t)
}

// TestConfigurationIsOverruled: of what a configuration may want, ssh itself says
// what counts.
func TestConfigurationIsOverruled(t *testing.T) {
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		t.Skipf("needs ssh: %v", err)
	}
	file := temp(t) + "/ssh_config"
	write(t, file, `
IgnoreUnknown GSSAPI*
Host *
  RequestTTY force
  BatchMode no
  EscapeChar ^x
  ForwardAgent yes
  ForwardX11 yes
  RemoteForward 127.0.0.1:2 127.0.0.1:1
  Tunnel yes
  PermitLocalCommand yes
  RemoteCommand touch evil
  ControlMaster auto
  ControlPath evil
  ConnectionAttempts 9
  ConnectTimeout 999
  ServerAliveInterval 0
  ServerAliveCountMax 99
  GSSAPIAuthentication yes
  GSSAPIDelegateCredentials yes
  VisualHostKey yes
  LogLevel DEBUG3
`, 0o600)
	c, err := NewClient(t.Context(), func(name string) string {
		return map[string]string{"FM_SSH_BIN": ssh, "PATH": os.Getenv("PATH")}[name]
	})
	must(t, err)
	out, err := exec.Command(ssh, append(c.arguments(), "-F", file, "-G", "--", "harbor-host")...).Output()
	must(t, err)
	counts := "\n" + string(out)
	for _, want := range []string{
		"requesttty false", "batchmode yes", "escapechar none", "forwardagent no", "forwardx11 no", "clearallforwardings yes", "tunnel false",
		"permitlocalcommand no", "controlmaster false", "connectionattempts 1", "connecttimeout 30", "serveraliveinterval 15",
		"serveralivecountmax 3", "visualhostkey no", "loglevel INFO",
	} {
		if !strings.Contains(counts, "\n"+want+"\n") {
			t.Errorf("not so: %s", want)
		}
	}
	// A client that was built without GSSAPI says nothing of it.
	for _, evil := range []string{"evil", "remoteforward", "gssapidelegatecredentials yes"} {
		if strings.Contains(counts, evil) {
			t.Errorf("still there: %s", evil)
		}
	}
	if t.Failed() {
		t.Log(counts)
	}
}

// TestOverSSHWithBanners: what the account's shell says of its own comes back
// with the rest, unchanged and in its place.
func TestOverSSHWithBanners(t *testing.T) {
	h := newHarbor(t, `ForceCommand echo 'Welcome; $(true)'; echo warning >&2; eval "$SSH_ORIGINAL_COMMAND"`)
	var out, errs bytes.Buffer
	status, err := h.on(t, Streams{Stdout: &out, Stderr: &errs}, "echo answer; echo said >&2; exit 3")
	must(t, err)
	if status != 3 || out.String() != "Welcome; $(true)\nanswer\n" || errs.String() != "warning\nsaid\n" {
		t.Errorf("status %d, %q, %q", status, out.String(), errs.String())
	}
	h.clean(t)
}

func TestOverSSHRefused(t *testing.T) {
	h := newHarbor(t, "")
	var errs bytes.Buffer
	status, err := h.client.Run(context.Background(), h.route(), []string{"fm-none"}, Streams{Stderr: &errs})
	must(t, err)
	if status != 64 || !strings.Contains(errs.String(), "error[usage]") {
		t.Errorf("no such command: status %d, %q", status, errs.String())
	}
	// Without the entrypoint on its PATH the account's shell says 127.
	must(t, os.Remove(h.dir+"/path/fm-remote-entrypoint.sh"))
	if status, _ = h.on(t, Streams{}, "exit 0"); status != 127 {
		t.Errorf("no entrypoint: status %d", status)
	}
	// A host that is not the one known.
	write(t, h.dir+"/known_hosts", "", 0o600)
	if status, _ = h.on(t, Streams{}, "exit 0"); status != 255 {
		t.Errorf("unknown host: status %d", status)
	}
	h.clean(t)
}

// TestOverSSHDeadPeer: a host that stops answering in the middle of a job is
// given up by the keep-alives; one that never answers by the connect time.
func TestOverSSHDeadPeer(t *testing.T) {
	h := newHarbor(t, "")
	h.command(t, "fm-hang", "touch $FM_HOME/started; exec sleep 30")
	go func() {
		for range 10_000 {
			if _, err := os.Stat(h.home + "/started"); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		h.signal(syscall.SIGSTOP)
	}()
	var errs bytes.Buffer
	status, err := h.client.Run(context.Background(), h.route(), []string{"fm-hang"}, Streams{Stderr: &errs})
	must(t, err)
	if status != StatusUnknown || !strings.Contains(errs.String(), "not responding") {
		t.Errorf("status %d, %q", status, errs.String())
	}
	h.signal(syscall.SIGCONT)

	mute, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer mute.Close()
	_, port, _ := net.SplitHostPort(mute.Addr().String())
	write(t, h.dir+"/ssh_config", "Host harbor-host\n  HostName 127.0.0.1\n  Port "+port+"\n", 0o600)
	h.client.connect = time.Second
	status, err = h.on(t, Streams{Stderr: &errs}, "exit 0")
	must(t, err)
	if status != StatusUnknown {
		t.Errorf("mute: status %d, %q", status, errs.String())
	}
	h.client.connect, h.client.time = time.Minute, 300*time.Millisecond
	status, err = h.on(t, Streams{Stderr: &errs}, "exit 0")
	wantCode(t, err, fault.Timeout)
	if status != StatusUnknown {
		t.Errorf("mute and endless: status %d", status)
	}
}

// TestOverSSHCallerStops: whoever stops the near end is not kept waiting.
func TestOverSSHCallerStops(t *testing.T) {
	h := newHarbor(t, "")
	h.command(t, "fm-hang", "touch $FM_HOME/started; exec sleep 5")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel()
		for range 10_000 {
			if _, err := os.Stat(h.home + "/started"); err == nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	_, err := h.client.Run(ctx, h.route(), []string{"fm-hang"}, Streams{})
	if err != context.Canceled {
		t.Errorf("%v", err)
	}
}
