package conformance

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hawser/forge"
	"hawser/forge/internal/gitenv"
	"hawser/internal/fault"
)

// Suite says which plugin is judged, and for which operation.
//
// For workspace_edit the plugin starts in a work tree that nobody looks at
// afterwards: one that takes a bad workspace for its working directory edits no
// other files. Paths among its arguments are absolute, then. It does not get the
// variables that lead Git to another repository: those of whoever judges are
// theirs.
type Suite struct {
	Operation forge.Capability // forge.CapText or forge.CapWorkspaceEdit
	Path      string           // of the plugin, absolute
	Argv      []string         // of the plugin, with argument zero
	Env       []string         // of the plugin, "name=value", no name twice

	// Timeout is how long a valid operation may take. Nothing else takes that
	// long: a plugin has StartTime for initialized, RejectionTime to reject,
	// forge.ClosingTime to end, and forge.DrainTime for both after cancel. The two
	// of the host are granted with its own forge.HostDelay.
	Timeout time.Duration

	// Stderr receives what the plugin writes there; nil drops it.
	Stderr *os.File

	// For tests, which judge hundreds of plugins.
	rejection time.Duration                          // instead of RejectionTime
	start     func(context.Context) (*plugin, error) // instead of launch
	template  *worktree                              // that each valid session gets a copy of
	scratch   *worktree                              // where plugins start, and for whoever edits where it should reject
}

// StartTime is how long a plugin may take from its start to initialized.
const StartTime = 10 * time.Second

// RejectionTime is how long a plugin may take to reject what it must reject.
// Before initialize it is still starting: what that took in the valid sessions is
// granted in addition.
const RejectionTime = 2 * time.Second

// retries is how often a scenario is tried again that failed for nothing but a
// time of the contract. Those are times of the clock, and a machine that is busy
// may not give a process its turn within; a plugin that is late is so each time.
const retries = 3

// Scenario is one session with the plugin, in a process of its own.
type Scenario struct {
	Name    string     // "initialize/crlf"; stable
	Rule    forge.Rule // that it is about; "" for a valid session
	Summary string     // one line: what the host does

	valid bool
	run   func(*runner) (*Finding, error)
}

// Verdict is what came of a scenario.
type Verdict struct {
	Scenario Scenario
	Finding  *Finding // nil when the plugin passed
	Tries    int      // 1, and more when all before the last failed for nothing but time
	Took     time.Duration
}

// Passed reports whether the plugin passed.
func (v Verdict) Passed() bool { return v.Finding == nil }

// Run judges the plugin by the scenarios and calls report with each verdict, in
// the order of the scenarios. It fails when it cannot judge: with process-failed
// when the plugin cannot be started, with io, or with the context's error. An
// error of report ends it too: nobody would learn of the verdicts that follow.
// Nothing is left of the plugin, nor of the work trees that were made for it.
//
// Valid sessions run alone, because a plugin has a quarter of a second to end
// them; the rejections, with their two seconds, run side by side.
func (s *Suite) Run(ctx context.Context, scenarios []Scenario, report func(Verdict) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	judged := *s
	if judged.rejection == 0 {
		judged.rejection = RejectionTime
	}
	if judged.Operation == forge.CapWorkspaceEdit {
		judged.Env = gitenv.Without(judged.Env)
	}
	r := &runner{Suite: judged, starts: judged.start == nil, ctx: ctx, stop: stop, selections: map[string]string{}}
	if r.starts {
		r.start = r.launch
	}
	defer r.close()
	if err := r.open(); err != nil {
		return err
	}
	verdicts := make([]chan Verdict, len(scenarios))
	for i := range verdicts {
		verdicts[i] = make(chan Verdict, 1)
	}
	r.running.Go(func() { r.judgeAll(scenarios, verdicts) })
	defer r.running.Wait()
	for i := range verdicts {
		select {
		case verdict := <-verdicts[i]:
			if err := report(verdict); err != nil {
				stop(err)
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// runner is one run of a suite.
type runner struct {
	Suite
	ctx     context.Context
	stop    context.CancelCauseFunc // ends the run, because it cannot judge
	starts  bool                    // a plugin is a process, which takes its time to start
	running sync.WaitGroup

	dir    string // of the work trees
	copies int

	mu         sync.Mutex
	starting   time.Duration     // the longest that a valid session took from the start to initialized
	selections map[string]string // the first one for an offer
	mute       bool              // the plugin answered the plainest initialize with nothing at all
}

func (r *runner) open() (err error) {
	if r.Operation != forge.CapWorkspaceEdit {
		return nil
	}
	if r.dir, err = os.MkdirTemp("", "forge-conformance-"); err != nil {
		return fault.Wrap(fault.IO, err, "cannot make a directory for work trees")
	}
	if r.dir, err = filepath.EvalSymlinks(r.dir); err != nil {
		return fault.Wrap(fault.IO, err, "cannot make a directory for work trees")
	}
	if r.template != nil {
		return nil
	}
	if r.template, err = newWorktree(filepath.Join(r.dir, "template")); err != nil {
		return err
	}
	r.scratch, err = newScratch(r.template, filepath.Join(r.dir, "scratch"))
	return err
}

func (r *runner) close() {
	if r.dir != "" {
		_ = os.RemoveAll(r.dir)
	}
}

// worktree returns a work tree of its own for a valid session, in a directory
// whose name ends so; nil for text.
func (r *runner) worktree(end string) (*worktree, error) {
	if r.template == nil {
		return nil, nil
	}
	r.mu.Lock()
	r.copies++
	dir := filepath.Join(r.dir, strconv.Itoa(r.copies)+end)
	r.mu.Unlock()
	return r.template.copyTo(dir)
}

// judgeAll runs the valid scenarios one by one and then the others side by side.
func (r *runner) judgeAll(scenarios []Scenario, verdicts []chan Verdict) {
	judge := func(i int) {
		if r.ctx.Err() != nil {
			return
		}
		verdict, err := r.judge(scenarios[i])
		if err != nil {
			r.stop(err)
			return
		}
		verdicts[i] <- verdict
	}
	if r.starts && !slices.ContainsFunc(scenarios, func(s Scenario) bool { return s.valid }) {
		_, _ = r.converses(script{input: "hello"}) // to learn how long a start takes, and whether there is one
	}
	for i := range scenarios {
		if scenarios[i].valid {
			judge(i)
		}
	}
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range scenarios {
		if !scenarios[i].valid {
			slots <- struct{}{}
			r.running.Go(func() {
				judge(i)
				<-slots
			})
		}
	}
}

// judge plays a scenario until the plugin passes or fails for more than time.
func (r *runner) judge(s Scenario) (Verdict, error) {
	v := Verdict{Scenario: s}
	began := time.Now()
	for again := true; again; again = v.Finding != nil && v.Finding.late && v.Tries <= retries {
		var err error
		if v.Finding, err = s.run(r); err != nil {
			return v, err
		}
		if r.ctx.Err() != nil { // what the session came to is our doing
			return v, context.Cause(r.ctx)
		}
		v.Tries++
	}
	v.Took = time.Since(began)
	return v, nil
}

// determined holds the initialized frame against that of the sessions before
// with the same offer. It is deterministic (contract: Conformance): as an object,
// in which only the id is another one, the order and the escapes of members do
// not matter, and the order of capabilities does.
func (r *runner) determined(offer, selected []forge.Capability) *Finding {
	r.mu.Lock()
	defer r.mu.Unlock()
	key, selection := strings.Join(words(offer), ","), strings.Join(words(selected), ",")
	first, seen := r.selections[key]
	if !seen {
		r.selections[key] = selection
		return nil
	}
	if selection != first {
		f := finding(forge.RuleCapabilities, "initialized selects %s, and in another session with the same offer it was %s", selection, first)
		f.Frame = 1
		return f
	}
	return nil
}

// started notes how long a plugin took to start.
func (r *runner) started(took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting = max(r.starting, took)
}

func (r *runner) startTime() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.starting
}

func words[T ~string](list []T) []string {
	words := make([]string, len(list))
	for i, word := range list {
		words[i] = string(word)
	}
	return words
}

func (r *runner) isMute() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mute
}

func (r *runner) setMute() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mute = true
}
