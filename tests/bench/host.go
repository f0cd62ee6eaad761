package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// What fm-extension may cost.
func init() {
	bars = append(bars,
		bar{name: "bind", what: "bind a package of 4,090 entries and 66 MB", unit: milliseconds,
			setUp: bindBig, limit: times(1)},
		bar{name: "verify", what: "verify it", unit: milliseconds,
			setUp: verifyBig, limit: times(0.4)},
		bar{name: "verify-memory", what: "peak resident memory of that", unit: megabytes, rounds: 3, needsProc: true,
			setUp: memoryOfVerify, limit: atMost(24, megabytes)},
		bar{name: "small", what: "verify a small package, over its handshake run bare", unit: milliseconds, each: 10,
			setUp: verifySmall, limit: plus(6, milliseconds)},
		bar{name: "polls", what: "16 polls of 3 s at once", unit: milliseconds, rounds: 3,
			setUp: pollAtOnce, limit: atMost(3300, milliseconds)},
		bar{name: "resolve", what: "resolve one of 128 bound packages of 512 KiB, over one of one", unit: milliseconds, each: 5,
			setUp: resolveOne, limit: plus(6, milliseconds)},
		bar{name: "resolve-reads", what: "what that reads: its own package, twice at most, and the records", unit: megabytes, needsProc: true,
			setUp: readsOfResolve, limit: atMost(1.5, megabytes)},
		bar{name: "transfer", what: "pack 512 KiB in 128 entries, receive and bind them, over binding them", unit: milliseconds, each: 5,
			setUp: transferSmall, limit: plus(15, milliseconds)},
	)
}

// bigFiles and the sizes below make a package of nearly the limits.
const (
	bigDirs  = 88
	bigFiles = 4000
	bigSize  = 16_490
)

// entrypoint answers a handshake at once and a poll after 3 s, with the shell's
// own means: it costs one process, two with the sleep.
const entrypoint = `#!/bin/sh
read -r request
id=${request#*'"request_id":"'}
id=${id%%'"'*}
case $1 in
handshake) echo '{"schema":"firstmate.extension-handshake-response.v1","request_id":"'"$id"'","extension_id":"@ID@","extension_version":"1.0.0","host_protocol":1,"capability":"process-event-adapter","capability_version":1,"adapter_names":["@ADAPTER@"]}' ;;
invoke) sleep 3 && echo '{"schema":"firstmate.extension-response.v1","request_id":"'"$id"'","ok":true,"result":{"status":"no-result","output":""},"error":null}' ;;
esac
`

const manifest = `{"schema":"firstmate.extension-manifest.v1","id":"@ID@","version":"1.0.0","host_protocols":[1],"entrypoint":"run",
"capabilities":[{"name":"process-event-adapter","versions":[1],"adapter_names":["@ADAPTER@"]}],"required_consents":[]}
`

// pkg is a package directory.
type pkg struct{ dir, id, adapter string }

// makePackage writes a package with some files beside manifest and entrypoint.
func (s *site) makePackage(name string, files, size, dirs int) (pkg, error) {
	p := pkg{s.fresh("package"), "org.hawser.bench-" + name, "bench-" + name}
	fill := strings.NewReplacer("@ID@", p.id, "@ADAPTER@", p.adapter)
	if err := os.Mkdir(p.dir, 0o755); err != nil {
		return p, err
	}
	if err := os.WriteFile(filepath.Join(p.dir, "firstmate-extension.json"), []byte(fill.Replace(manifest)), 0o644); err != nil {
		return p, err
	}
	if err := os.WriteFile(filepath.Join(p.dir, "run"), []byte(fill.Replace(entrypoint)), 0o755); err != nil {
		return p, err
	}
	random := rand.NewChaCha8([32]byte{})
	content := make([]byte, size)
	for i := range files {
		dir := p.dir
		if dirs > 0 {
			dir = filepath.Join(p.dir, fmt.Sprintf("directory-%02d", i%dirs))
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return p, err
			}
		}
		_, _ = random.Read(content) // never fails
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%04d.js", i)), content, 0o644); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (s *site) big() (pkg, error) { return s.makePackage("big", bigFiles, bigSize, bigDirs) }

// home is a home of a run.
type home struct {
	*site
	path string
}

func (s *site) makeHome() (home, error) {
	h := home{s, s.fresh("home")}
	return h, os.Mkdir(h.path, 0o700)
}

// command is one of the programs in this home.
func (h home) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(h.bin, program), args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + h.dir, "FM_HOME=" + h.path}
	return cmd
}

func (h home) bind(ctx context.Context, p pkg) error {
	_, err := timed(h.bindCommand(ctx, p))
	return err
}

func (h home) bindCommand(ctx context.Context, p pkg) *exec.Cmd {
	return h.command(ctx, "fm-extension", "bind", p.dir, "--adapter", p.adapter, "--trust-same-user-code")
}

// bound is a home in which packages are bound.
func (s *site) bound(ctx context.Context, packages ...pkg) (home, error) {
	h, err := s.makeHome()
	for _, p := range packages {
		if err == nil {
			err = h.bind(ctx, p)
		}
	}
	return h, err
}

// timed runs a command and returns how long it took, in milliseconds.
func timed(cmd *exec.Cmd) (float64, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr.String())
	}
	return float64(took) / float64(time.Millisecond), err
}

func shell(ctx context.Context, script string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "/bin/sh", append([]string{"-ec", script, "sh"}, args...)...)
}

func bindBig(_ context.Context, s *site) (reached, floor side, err error) {
	p, err := s.big()
	reached = func(ctx context.Context) (float64, error) {
		h, err := s.makeHome()
		if err != nil {
			return 0, err
		}
		return timed(h.bindCommand(ctx, p))
	}
	floor = func(ctx context.Context) (float64, error) {
		return timed(shell(ctx, `cp -r "$1" "$2"; sync -f "$2"; find "$2" -type f -exec sha256sum {} + >/dev/null`, p.dir, s.fresh("copy")))
	}
	return reached, floor, err
}

func verifyBig(ctx context.Context, s *site) (reached, floor side, err error) {
	p, err := s.big()
	if err != nil {
		return nil, nil, err
	}
	h, err := s.bound(ctx, p)
	return h.verify(p), func(ctx context.Context) (float64, error) {
		return timed(shell(ctx, `find "$1" -type f -exec sha256sum {} + >/dev/null`, p.dir))
	}, err
}

func (h home) verify(p pkg) side {
	return func(ctx context.Context) (float64, error) {
		return timed(h.command(ctx, "fm-extension", "verify", p.id))
	}
}

func memoryOfVerify(ctx context.Context, s *site) (reached, floor side, err error) {
	p, err := s.big()
	if err != nil {
		return nil, nil, err
	}
	h, err := s.bound(ctx, p)
	return func(ctx context.Context) (float64, error) {
		return peak(h.command(ctx, "fm-extension", "verify", p.id))
	}, nil, err
}

// peak runs a command and returns its peak resident memory. It is sampled: the
// figure of wait4 would count what this process held when it forked.
func peak(cmd *exec.Cmd) (highest float64, err error) {
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			return highest, err
		case <-time.After(time.Millisecond):
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
			highest = max(highest, field(status, "VmHWM:")*1024/1e6)
		}
	}
}

// field is the number in a line of a file below /proc, 0 for none.
func field(text []byte, name string) float64 {
	_, rest, _ := strings.Cut(string(text), name)
	word := strings.Fields(rest + " 0")[0]
	n, _ := strconv.ParseFloat(word, 64)
	return n
}

func verifySmall(ctx context.Context, s *site) (reached, floor side, err error) {
	p, err := s.makePackage("small", 3, 1000, 1)
	if err != nil {
		return nil, nil, err
	}
	h, err := s.bound(ctx, p)
	return h.verify(p), p.bare("handshake"), err
}

// bare runs the entrypoint without a host.
func (p pkg) bare(verbs ...string) side {
	return func(ctx context.Context) (total float64, err error) {
		for _, verb := range verbs {
			cmd := exec.CommandContext(ctx, filepath.Join(p.dir, "run"), verb)
			cmd.Stdin = strings.NewReader(`{"request_id":"sha256:00"}` + "\n")
			cmd.Env = []string{"PATH=/usr/bin:/bin"}
			took, err := timed(cmd)
			if err != nil {
				return 0, err
			}
			total += took
		}
		return total, nil
	}
}

func pollAtOnce(ctx context.Context, s *site) (reached, floor side, err error) {
	p, err := s.makePackage("polled", 3, 1000, 1)
	if err != nil {
		return nil, nil, err
	}
	h, err := s.bound(ctx, p)
	if err != nil {
		return nil, nil, err
	}
	line, err := h.command(ctx, "fm-extension", "resolve-process-event", p.adapter).Output()
	resolved := strings.Split(strings.TrimSpace(string(line)), "\t")
	if err != nil || len(resolved) != 6 {
		return nil, nil, fmt.Errorf("cannot resolve: %q, %v", line, err)
	}
	poll := func(ctx context.Context, i int) error {
		return noResult(h.command(ctx, "fm-extension", "process-event", p.adapter, "source.poll",
			"--source-id", fmt.Sprintf("source-%d", i), "--config-ref", "none",
			"--expect-extension", resolved[1], "--expect-version", resolved[2], "--expect-capability-version", resolved[3],
			"--expect-package-digest", resolved[4], "--expect-binding-digest", resolved[5]))
	}
	bare := p.bare("handshake", "invoke")
	return atOnce(16, poll), atOnce(16, func(ctx context.Context, _ int) error {
		_, err := bare(ctx)
		return err
	}), nil
}

// noResult runs a poll that must end with the status of no result.
func noResult(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 75 {
		return fmt.Errorf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// atOnce runs n of something side by side and returns how long all took.
func atOnce(n int, do func(context.Context, int) error) side {
	return func(ctx context.Context) (float64, error) {
		g, ctx := errgroup.WithContext(ctx)
		began := time.Now()
		for i := range n {
			g.Go(func() error { return do(ctx, i) })
		}
		err := g.Wait()
		return float64(time.Since(began)) / float64(time.Millisecond), err
	}
}

// many are 128 packages of 512 KiB, made and bound once.
var many struct {
	sync.Once
	packages []pkg
	home     home
	err      error
}

func (s *site) many(ctx context.Context) ([]pkg, home, error) {
	many.Do(func() {
		for i := range 128 {
			p, err := s.makePackage(fmt.Sprintf("of-many-%03d", i), 32, 16<<10, 4)
			if err != nil {
				many.err = err
				return
			}
			many.packages = append(many.packages, p)
		}
		many.home, many.err = s.bound(ctx, many.packages...)
	})
	return many.packages, many.home, many.err
}

func (h home) resolve(p pkg) side {
	return func(ctx context.Context) (float64, error) {
		return timed(h.command(ctx, "fm-extension", "resolve-process-event", p.adapter))
	}
}

func resolveOne(ctx context.Context, s *site) (reached, floor side, err error) {
	packages, all, err := s.many(ctx)
	if err != nil {
		return nil, nil, err
	}
	one, err := s.bound(ctx, packages[64])
	return all.resolve(packages[64]), one.resolve(packages[64]), err
}

func readsOfResolve(ctx context.Context, s *site) (reached, floor side, err error) {
	packages, all, err := s.many(ctx)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context) (float64, error) {
		return reads(all.command(ctx, "fm-extension", "resolve-process-event", packages[64].adapter))
	}, nil, nil
}

func transferSmall(_ context.Context, s *site) (reached, floor side, err error) {
	const files, dirs = 114, 12
	p, err := s.makePackage("transferred", files, 4500, dirs) // and manifest and entrypoint: 128 entries
	reached = func(ctx context.Context) (float64, error) {
		h, err := s.makeHome()
		if err != nil {
			return 0, err
		}
		pack := h.command(ctx, "fm-extension", "pack-transfer", p.dir)
		receive := h.command(ctx, "fm-extension", "receive-transfer-bind", "--adapter", p.adapter, "--trust-same-user-code")
		if receive.Stdin, err = pack.StdoutPipe(); err != nil {
			return 0, err
		}
		began := time.Now()
		if err := pack.Start(); err != nil {
			return 0, err
		}
		_, err = timed(receive)
		took := float64(time.Since(began)) / float64(time.Millisecond)
		return took, errors.Join(err, pack.Wait())
	}
	floor = func(ctx context.Context) (float64, error) {
		h, err := s.makeHome()
		if err != nil {
			return 0, err
		}
		return timed(h.bindCommand(ctx, p))
	}
	return reached, floor, err
}

// reads runs a command and returns what it and its children read. The account of
// a process holds those of the children that it waited for: here it is a shell's.
func reads(cmd *exec.Cmd) (float64, error) {
	cmd.Args = append([]string{"sh", "-ec", `"$@" >/dev/null; cat /proc/$$/io`, "sh", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	account, err := cmd.Output()
	return field(account, "rchar:") / 1e6, err
}
