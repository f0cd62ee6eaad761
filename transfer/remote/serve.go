package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/invoke/process"
)

// stopGrace is what whoever stops a host of ours gives it (processes: An
// operation, step by step): a command of ours that is told to stop first stops
// the package that it runs, and proves it gone.
const stopGrace = 3 * time.Second

// defaultPath is for an account whose shell sets none.
const defaultPath = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

// outputTime is how long the near end has to take the output, and leaveOutput how
// long once this process is told to end.
const (
	outputTime  = 30 * time.Second
	leaveOutput = time.Second
)

// Server is the far end of a job.
type Server struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string

	time, outputTime time.Duration
}

// NewServer returns the server of this process.
func NewServer() *Server {
	return &Server{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, time: JobTime, outputTime: outputTime}
}

// Serve runs the job that args are and returns the exit status of this process
// (commands: fm-on). In this order: what args say, root, home and command as
// they are on disk, the whole of stdin, the command in a process group of its
// own, its output. The output is written when the command has ended, so that a
// slow reader holds no command up.
//
// It changes nothing itself. A crash of this process leaves the command to end
// by itself; when ctx ends, the command is stopped.
func (s *Server) Serve(ctx context.Context, args []string) int {
	end, err := s.do(ctx, args)
	if err != nil {
		return s.refuse(ctx, err)
	}
	err = s.output(ctx, end.stdout, append(end.stderr, refusal(end.cause)...))
	switch {
	case err == errUntaken:
		return StatusInternal
	case err != nil:
		return s.refuse(ctx, fault.Wrap(fault.IO, err, "the command ended (%v), but its output cannot be passed on", end.exit))
	case end.cause != nil:
		return StatusOf(end.cause)
	}
	return status(end.exit)
}

// do is the job up to its output.
func (s *Server) do(ctx context.Context, args []string) (*ending, error) {
	job, err := ParseJob(args)
	if err == nil {
		err = checkPlaces(job)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.time, fault.New(fault.Timeout, "the job took more than %v and was stopped", s.time))
	defer cancel()
	input, err := s.input(ctx)
	if err != nil {
		return nil, err
	}
	return s.run(ctx, job, input)
}

// refuse says why, if anybody listens. The status says it too.
func (s *Server) refuse(ctx context.Context, err error) int {
	_ = s.output(ctx, nil, refusal(err))
	return StatusOf(err)
}

// refusal is the line that says why; none when a signal to this process is why:
// whoever sent it knows. It names this host, since whoever reads it is on another.
func refusal(err error) []byte {
	if _, ok := errors.AsType[*fault.Error](err); !ok {
		return nil
	}
	if host, unnamed := os.Hostname(); unnamed == nil {
		err = fmt.Errorf("on %s: %w", fault.Path(host), err)
	}
	return []byte(fault.Line(err) + "\n")
}

// StatusOf returns the exit status of an error of either end.
func StatusOf(err error) int {
	switch fault.CodeOf(err) {
	case fault.Timeout:
		return StatusTimeUp
	case fault.IO, fault.Internal, fault.PlatformUnsupported, fault.ProcessFailed, fault.ProcessCleanupFailed, fault.ResponseOversized:
		return StatusInternal
	}
	return StatusUsage
}

func status(exit process.Exit) int {
	if exit.Signal != 0 {
		return 128 + int(exit.Signal)
	}
	return exit.Code
}

// input reads the whole of stdin.
func (s *Server) input(ctx context.Context) ([]byte, error) {
	select {
	case in := <-collect(s.Stdin, nil):
		if in.over {
			return nil, fault.New(fault.RequestOversized, "standard input has more than %d bytes", MaxStreamBytes)
		}
		return in.data, fault.Wrap(fault.IO, in.err, "cannot read standard input")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// ending is how a command ended, and what it wrote.
type ending struct {
	exit           process.Exit
	cause          error // why it was stopped, if it was
	stdout, stderr []byte
}

// run runs the command in a group of its own until it ends or has to be
// stopped, and proves that nothing is left in the group.
func (s *Server) run(ctx context.Context, j Job, input []byte) (*ending, error) {
	g, err := s.start(ctx, j)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	over := func() { stop(nil) }
	go func() {
		_, _ = g.Stdin.Write(input) // a command need not read it
		_ = g.Stdin.Close()
	}()
	stdout, stderr := collect(g.Stdout, over), collect(g.Stderr, over)

	var cause error
	select {
	case <-g.Ended():
	case <-ctx.Done():
		cause = context.Cause(ctx)
		terminate(g)
	}
	settled := g.Settle(ctx)
	// Only a process outside the group can hold a pipe open now.
	for _, stream := range []*os.File{g.Stdin, g.Stdout, g.Stderr} {
		_ = stream.SetDeadline(time.Now().Add(process.OutputGrace))
	}
	out, errs := <-stdout, <-stderr
	if settled.NotProvedGone {
		return nil, fault.New(fault.ProcessCleanupFailed, "process group %d cannot be proved gone; look at it there", g.Pid())
	}
	if out.over || errs.over { // perhaps the command ended before it was stopped
		cause = fault.New(fault.ResponseOversized, "the command wrote more than %d bytes and was stopped", MaxStreamBytes)
	}
	return &ending{settled.Exit, cause, out.data, errs.data}, nil
}

// start starts the command behind its barrier and releases it. It runs in the
// directory that this process is in, the account's, and gets four variables.
func (s *Server) start(ctx context.Context, j Job) (*process.Group, error) {
	here, err := os.Open(".")
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot open the current directory")
	}
	defer here.Close()
	path := filepath.Join(j.Root, "bin", j.Argv[0])
	g, err := process.Start(process.Spec{
		Path: path,
		Argv: append([]string{path}, j.Argv[1:]...),
		Env:  s.environment(j),
		Dir:  here,
	})
	if err != nil {
		return nil, err
	}
	if err := g.Release(ctx); err != nil {
		g.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fault.Wrap(fault.ProcessFailed, err, "the command did not start")
	}
	return g, nil
}

func (s *Server) environment(j Job) []string {
	path, home := s.Getenv("PATH"), s.Getenv("HOME")
	if path == "" {
		path = defaultPath
	}
	if home == "" {
		if u, err := user.Current(); err == nil {
			home = u.HomeDir
		}
	}
	return []string{"PATH=" + path, "HOME=" + home, "FM_HOME=" + j.Home, "FM_ROOT_OVERRIDE=" + j.Root}
}

// terminate tells the group to end and gives it its time. The leader is reaped
// by nothing but Settle, so until then its number means this group and no other.
func terminate(g *process.Group) {
	_ = unix.Kill(-g.Pid(), unix.SIGTERM)
	select {
	case <-g.Ended():
	case <-time.After(stopGrace):
	}
}

// collected is what came of a stream.
type collected struct {
	data []byte // at most MaxStreamBytes
	over bool   // more came
	err  error
}

// collect reads a stream to its end or one byte over its limit, and then calls
// over.
func collect(stream io.Reader, over func()) <-chan collected {
	done := make(chan collected, 1)
	go func() {
		var c collected
		c.data, c.err = io.ReadAll(io.LimitReader(stream, MaxStreamBytes+1))
		if len(c.data) > MaxStreamBytes {
			c.data, c.over = c.data[:MaxStreamBytes], true
			if over != nil {
				over()
			}
		}
		done <- c
	}()
	return done
}

// errUntaken says that nobody takes what is written. It is no fault: there is
// nobody to tell.
var errUntaken = errors.New("nobody takes the output")

// output writes to both streams. A near end that takes nothing is not waited for:
// the write, which nothing can interrupt, is left to end with this process, and
// nothing may be written after it.
func (s *Server) output(ctx context.Context, stdout, stderr []byte) error {
	done := make(chan error, 1)
	go func() {
		_, err := s.Stdout.Write(stdout)
		_, errErr := s.Stderr.Write(stderr)
		done <- errors.Join(err, errErr)
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(s.outputTime):
		return errUntaken
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(leaveOutput):
		return errUntaken
	}
}

// checkPlaces checks root, home and command on disk: each is a real one, reached
// through no link, and nobody but the user and root chooses what it is.
//
// Errors: home-invalid when there is no home, usage when there is no such program;
// path-unsafe, owner-mismatch, mode-unsafe, link-unsafe; io.
func checkPlaces(j Job) error {
	home, err := dirfd.Open(j.Home)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.HomeInvalid, "there is no home %s; create it there (mkdir -m 700 %[1]s), or correct the route", fault.Path(j.Home))
	}
	if err != nil {
		return openFault(err, j.Home)
	}
	defer home.Close()
	info, err := home.Info()
	if err == nil {
		err = checkOwner(info, j.Home, os.Geteuid())
	}
	if err != nil {
		return openFault(err, j.Home)
	}
	root, err := dirfd.Open(j.Root)
	if err != nil {
		return openFault(err, j.Root)
	}
	defer root.Close()
	bin, err := root.Sub("bin")
	if err != nil {
		return openFault(err, filepath.Join(j.Root, "bin"))
	}
	defer bin.Close()
	for _, dir := range []*dirfd.Dir{root, bin} {
		info, err := dir.Info()
		if err == nil {
			err = checkProgram(info, dir.Path())
		}
		if err != nil {
			return openFault(err, dir.Path())
		}
	}
	path := filepath.Join(bin.Path(), j.Argv[0])
	info, err = bin.Lstat(j.Argv[0])
	switch {
	case err != nil:
		return openFault(err, path)
	case !info.IsRegular():
		return fault.New(fault.LinkUnsafe, "command %s is not a regular file", fault.Path(path))
	case info.Mode&0o111 == 0:
		return fault.New(fault.ModeUnsafe, "command %s is not executable; run: chmod +x %[1]s", fault.Path(path))
	}
	return checkProgram(info, path)
}

// checkProgram checks what is run, or holds it: root may have installed it.
func checkProgram(info dirfd.Info, path string) error {
	if info.Perm()&0o022 != 0 {
		return fault.New(fault.ModeUnsafe, "%s has mode %04o: others may write to it; run: chmod go-w %[1]s", fault.Path(path), info.Perm())
	}
	return checkOwner(info, path, os.Geteuid(), 0)
}

func checkOwner(info dirfd.Info, path string, owners ...int) error {
	if !slices.Contains(owners, int(info.UID)) {
		return fault.New(fault.OwnerMismatch, "%s belongs to uid %d, not to you (uid %d)", fault.Path(path), info.UID, os.Geteuid())
	}
	return nil
}

func openFault(err error, path string) error {
	switch {
	case fault.CodeOf(err) != fault.Internal:
		return err
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.Usage, "there is no %s; install the same release there, or correct the route", fault.Path(path))
	case errors.Is(err, dirfd.ErrLink):
		return fault.New(fault.PathUnsafe, "%s is a link, or is reached through one; give the real path", fault.Path(path))
	case errors.Is(err, syscall.ENOTDIR):
		return fault.New(fault.PathUnsafe, "%s is not a directory", fault.Path(path))
	case errors.Is(err, fs.ErrPermission):
		// Perhaps it is another's, whose mode keeps us out.
		var info unix.Stat_t
		if unix.Lstat(path, &info) == nil && int(info.Uid) != os.Geteuid() {
			return fault.New(fault.OwnerMismatch, "%s belongs to uid %d, and may not be opened by you (uid %d)", fault.Path(path), info.Uid, os.Geteuid())
		}
	}
	return fault.Wrap(fault.IO, err, "cannot open %s", fault.Path(path))
}
