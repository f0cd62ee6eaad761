package conformance

import (
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"hawser/forge"
)

// script is a session as the host plays it. Everything is valid but for what a
// scenario changes.
type script struct {
	offer      []forge.Capability // the operation and all of its options, unless told otherwise
	input      string             // of text
	directory  string             // how the name of the work tree ends
	initialize func(object) string
	execute    func(object) string

	bytewise bool // frames are written byte by byte
	cancel   bool // the operation is cancelled at once, if that was negotiated
	mayFail  bool // a failure frame is as good as a result
	repeated bool // execute is sent twice: the plugin may reject that
}

// line is a frame as it should be.
func line(o object) string { return o.String() + "\n" }

// dialogue is a script as it is played with one process of the plugin.
type dialogue struct {
	*probe
	script
	runner  *runner
	tree    *worktree // nil for text
	session *forge.Session
	plain   bool // initialize is as hosts send it, with every option

	drained time.Time // when a cancelled session has to be over; zero when none was
}

// begin starts a process for a script. Its stop must be called.
func (r *runner) begin(s script, tree *worktree) (*dialogue, error) {
	plain := s.offer == nil && s.initialize == nil && !s.bytewise
	if s.offer == nil {
		s.offer = append([]forge.Capability{r.Operation}, r.Operation.Options()...)
	}
	if s.initialize == nil {
		s.initialize = line
	}
	if s.execute == nil {
		s.execute = line
	}
	plugin, err := r.start(r.ctx)
	if err != nil {
		return nil, err
	}
	p := newProbe(r.ctx, plugin)
	request := forge.Request{Operation: r.Operation, Input: s.input}
	return &dialogue{
		probe: p, script: s, runner: r, tree: tree, plain: plain,
		session: forge.NewSession(p.id, request, s.offer),
	}, nil
}

func (d *dialogue) initializeObject() object { return initializeFrame(d.id, d.offer) }

func (d *dialogue) executeObject() object {
	if d.tree == nil {
		return textFrame(d.id, quoted(d.input))
	}
	return workspaceFrame(d.id, quoted(d.tree.dir))
}

// say writes a frame.
func (d *dialogue) say(text string, deadline time.Time) {
	if !d.bytewise {
		d.send(text, deadline)
		return
	}
	for _, c := range []byte(text) {
		d.send(string([]byte{c}), deadline)
	}
}

// initialized plays the session up to the plugin's selection.
func (d *dialogue) initialized() *Finding {
	began := time.Now()
	deadline := began.Add(StartTime)
	d.say(d.initialize(d.initializeObject()), deadline)
	frame, f := d.next("initialized", deadline)
	if f != nil {
		return f
	}
	d.runner.started(time.Since(began))
	if f := d.receive(frame); f != nil {
		return f
	}
	return d.runner.determined(d.offer, frame.Message.(forge.Initialized).Capabilities)
}

// receive holds a frame against the session.
func (d *dialogue) receive(frame forge.Frame) *Finding {
	if v, ok := errors.AsType[*forge.Violation](d.session.Receive(frame)); ok {
		return broken(v)
	}
	return nil
}

// rejectsInitialize plays a bad first frame.
func (r *runner) rejectsInitialize(rule forge.Rule, ends bool, s script) (*Finding, error) {
	d, err := r.begin(s, r.scratch)
	if err != nil {
		return nil, err
	}
	defer d.stop()
	deadline := time.Now().Add(r.startTime() + r.rejection)
	d.say(d.initialize(d.initializeObject()), deadline)
	if ends {
		d.closeStdin()
	}
	return d.rejects(rule, deadline), nil
}

// rejectsExecute plays a good first frame and a bad second one.
func (r *runner) rejectsExecute(rule forge.Rule, ends bool, s script) (*Finding, error) {
	if r.isMute() {
		return finding(forge.RuleTerminal, "not tried: the plugin does not answer a valid initialize, see session/valid"), nil
	}
	d, err := r.begin(s, r.scratch)
	if err != nil {
		return nil, err
	}
	defer d.stop()
	if f := d.initialized(); f != nil {
		return f, nil
	}
	deadline := time.Now().Add(r.rejection)
	d.say(d.execute(d.executeObject()), deadline)
	if ends {
		d.closeStdin()
	}
	return d.rejects(rule, deadline), nil
}

// rejects is the verdict on a plugin that got something it must reject: nothing
// on stdout from now on, and a nonzero exit by the deadline (contract:
// Conformance).
func (d *dialogue) rejects(rule forge.Rule, deadline time.Time) *Finding {
	within := d.runner.rejection
	frame, err := d.read(deadline)
	switch _, violation := errors.AsType[*forge.Violation](err); {
	case err == nil:
		return d.found(rule, "it was not rejected: %s came where only a nonzero exit may follow", a(frame.Type()))
	case violation:
		return d.found(rule, "it was not rejected: output came that is not even a frame, where only a nonzero exit may follow")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return late(rule, "it was not rejected within %v: nothing came, and stdout is still open", within)
	}
	exit, ended := d.end(deadline)
	switch {
	case !ended:
		return late(rule, "stdout ended, but the plugin did not within %v", within)
	case exit.OK():
		return finding(rule, "the plugin ended with exit 0 where a nonzero exit is due")
	case exit.Signal != 0:
		return finding(rule, "the plugin ended with %v: a crash is no rejection", exit)
	}
	return nil
}

// converses plays a valid session to its end, and judges all that the plugin sends.
func (r *runner) converses(s script) (*Finding, error) {
	if r.isMute() {
		return finding(forge.RuleTerminal, "not tried: the plugin does not answer a valid initialize, see session/valid"), nil
	}
	tree, err := r.worktree(s.directory)
	if err != nil {
		return nil, err
	}
	d, err := r.begin(s, tree)
	if err != nil {
		return nil, err
	}
	defer d.stop()
	if f := d.initialized(); f != nil {
		if d.plain && d.number == 0 {
			r.setMute()
		}
		return f, nil
	}
	rejected, f := d.operates()
	if f != nil || rejected {
		return f, nil
	}
	if f := d.ends(); f != nil {
		return f, nil
	}
	return d.outcome()
}

// operates plays the session from execute to the terminal frame. A plugin that
// was sent too much may reject instead.
func (d *dialogue) operates() (rejected bool, f *Finding) {
	deadline := time.Now().Add(d.runner.Timeout)
	d.say(d.execute(d.executeObject()), deadline)
	if d.cancel && d.session.Selected(forge.CapCancel) {
		d.say(line(frame(d.id, "cancel")), deadline)
		deadline = time.Now().Add(forge.DrainTime + forge.HostDelay)
		d.drained = deadline
	}
	for d.session.State() != forge.Finished {
		frame, err := d.read(deadline)
		if d.repeated && err == io.EOF {
			return true, d.rejects(forge.RuleOrder, time.Now().Add(d.runner.rejection))
		}
		switch v, violation := errors.AsType[*forge.Violation](err); {
		case violation:
			return false, broken(v)
		case errors.Is(err, os.ErrDeadlineExceeded) && !d.drained.IsZero():
			return false, late(forge.RuleTerminal, "no result or failure came within %v of cancel", forge.DrainTime)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, finding(forge.RuleTerminal, "no result or failure came within %v", d.runner.Timeout)
		case err != nil:
			exit, _ := d.end(time.Now().Add(forge.ClosingTime))
			return false, finding(forge.RuleTerminal, "the output ended without a result or failure; the plugin ended with %v", exit)
		}
		if f := d.receive(frame); f != nil {
			return false, f
		}
	}
	return false, nil
}

// ends closes stdin and wants the end of stdout and exit 0 in time, and nothing else.
func (d *dialogue) ends() *Finding {
	d.closeStdin()
	since, deadline := "the terminal frame", time.Now().Add(forge.ClosingTime+forge.HostDelay)
	if !d.drained.IsZero() { // a host that has cancelled gives no more than DrainTime for everything
		since, deadline = "cancel", d.drained
	}
	switch frame, err := d.read(deadline); {
	case err == nil:
		return d.found(forge.RuleTrailing, "%s came after the terminal frame", a(frame.Type()))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return late(forge.RuleExit, "stdout was still open %v after %s", forge.ClosingTime, since)
	case err != io.EOF:
		return d.found(forge.RuleTrailing, "bytes that are no frame came after the terminal frame")
	}
	switch exit, ended := d.end(deadline); {
	case !ended:
		return late(forge.RuleExit, "the plugin still ran %v after %s", forge.ClosingTime, since)
	case !exit.OK() && !d.repeated:
		return finding(forge.RuleExit, "%v followed the terminal frame, not exit 0", exit)
	}
	return nil
}

// outcome judges what the operation did.
func (d *dialogue) outcome() (*Finding, error) {
	if failure, ok := d.session.Terminal().(forge.Failure); ok {
		if d.mayFail || d.cancel {
			return nil, nil
		}
		return finding(forge.RuleTerminal, "a valid request was answered with failure, category %s", failure.Category), nil
	}
	if d.tree == nil || d.cancel {
		return nil, nil
	}
	if d.tree.moved() {
		return finding(forge.RulePayload, "HEAD of the work tree was moved; a plugin edits and does not commit"), nil
	}
	changed, err := d.tree.changed()
	if err == nil && !changed {
		return finding(forge.RulePayload, "a result came, but nothing in the work tree has changed"), nil
	}
	return nil, err
}

// repeat sends what a frame is twice.
func repeat(o object) string { return strings.Repeat(line(o), 2) }
