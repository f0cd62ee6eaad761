package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/procevent"
)

// TestModel does at random what people and crashes do to the sources of a home,
// and compares it with a model in memory: what is registered, captured, handled,
// announced and owned. A process that was killed leaves one of the states that
// the contract allows; which one is read, and must be gone on from.
func TestModel(t *testing.T) {
	if checks := flag.Lookup("rapid.checks").Value; checks.String() == "100" {
		check(t, checks.Set("4")) // each step is a process or more
	}
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(t)
		defer m.rig.end(t)
		rt.Repeat(map[string]func(*rapid.T){
			"register":           m.register,
			"register-extension": m.registerExtension,
			"start":              m.start,
			"start, killed":      m.startKilled,
			"wait":               m.wait,
			"wake":               m.wake,
			"runner killed":      m.runnerKilled,
			"reconcile":          m.reconcile,
			"reconcile, killed":  m.reconcileKilled,
			"handled":            m.handle,
			"others take a row":  m.drain,
			"retire":             m.retire,
			"sweep-home":         m.sweep,
			"":                   m.check,
		})
		m.stop(rt)
		m.reconcile(rt)
		m.check(rt)
	})
}

// model is what the home must be.
type model struct {
	t       *testing.T
	rig     *rig
	dir     string // of the events
	sources map[string]*modelSource
	results map[string]*modelResult // by "<source>.<n>"
	queue   []string                // keys
	next    map[string]int
	events  int
}

type modelSource struct {
	external bool
	token    string
	waiter   *running // a start that waits in its FIFO
	leader   int
}

type modelResult struct {
	content           string
	external, handled bool
}

var modelIDs = []string{"a", "a.1", "b"}

func newModel(t *testing.T) *model {
	m := &model{t: t, rig: newExternal(t), sources: map[string]*modelSource{}, results: map[string]*modelResult{}, next: map[string]int{}}
	m.dir = filepath.Join(m.rig.root, "events")
	check(t, os.Mkdir(m.dir, 0o700))
	m.rig.adapter(t, "ci", `case $1 in silent | terminal) grep -q "$1" "$2" ;; *) exit 1 ;; esac`)
	for _, id := range modelIDs {
		m.next[id] = 1
		m.say(id, "none")
		check(t, syscall.Mkfifo(m.fifo(id), 0o600))
	}
	return m
}

func (m *model) event(id string) string { return filepath.Join(m.dir, id) }
func (m *model) fifo(id string) string  { return filepath.Join(m.dir, id+".fifo") }

// say sets what the next poll of a source finds.
func (m *model) say(id, word string) {
	check(m.t, os.WriteFile(m.event(id), []byte(word+"\n"), 0o600))
}

func (m *model) draw(t *rapid.T) string { return rapid.SampledFrom(modelIDs).Draw(t, "source") }

func (m *model) register(t *rapid.T) {
	id := m.draw(t)
	// cat would stop at nothing: a word is a result unless it is none, and that of
	// a FIFO is waited for.
	script := `read -r word <"$1"; case $word in fifo*) read -r word <"${word#fifo }" ;; esac; if [ "$word" != none ]; then echo "$word"; fi`
	err := m.rig.host().Register(context.Background(), "ci", id, []string{"/bin/sh", "-c", script, "sh", m.event(id)})
	old := m.sources[id]
	if old != nil && old.external && old.waiter != nil {
		if !fault.Is(err, fault.SourceBusy) {
			t.Fatalf("registered over a live runner of a package: %v", err)
		}
		return
	}
	check(m.t, err)
	if old == nil {
		old = &modelSource{}
	}
	m.sources[id] = &modelSource{waiter: old.waiter, leader: old.leader}
}

func (m *model) registerExtension(t *rapid.T) {
	id := m.draw(t)
	reg, err := m.rig.host().RegisterExtension(context.Background(), adapter, id, m.event(id))
	old := m.sources[id]
	if old != nil && old.external && old.waiter != nil {
		if !fault.Is(err, fault.SourceBusy) {
			t.Fatalf("registered over a live runner of a package: %v", err)
		}
		return
	}
	check(m.t, err)
	if old == nil {
		old = &modelSource{}
	}
	m.sources[id] = &modelSource{external: true, token: reg.Token, waiter: old.waiter}
}

func (m *model) word(t *rapid.T) string {
	m.events++
	return rapid.SampledFrom([]string{"none", "event %d", "silent event %d", "terminal event %d", "silent and terminal event %d"}).Draw(t, "event")
}

func (m *model) start(t *rapid.T) {
	id := m.draw(t)
	word := m.word(t)
	if strings.Contains(word, "%d") {
		word = fmt.Sprintf(word, m.events)
	}
	m.say(id, word)
	s := m.rig.run(m.t, "start", id)
	m.say(id, "none")
	source := m.sources[id]
	switch {
	case source == nil:
		if s.exit != 1 || !strings.HasPrefix(s.stderr, "error[source-missing]") {
			t.Fatalf("%+v", s)
		}
		return
	case source.waiter != nil:
		if s.exit != 0 || s.stdout != "already owned: "+id+"\n" {
			t.Fatalf("%+v", s)
		}
		return
	}
	m.captured(t, id, source, word, s)
}

// captured is what comes of a start that found the word.
func (m *model) captured(t *rapid.T, id string, source *modelSource, word string, s said) {
	want := ""
	switch {
	case word == "none" && source.external:
		want = "no-result: " + id + " (exit 75)\n"
	case word == "none":
		want = "no-result: " + id + " (exit 0)\n"
	default:
		n := m.next[id]
		m.next[id]++
		m.add(id, n, word, source.external)
		if m.results[fmt.Sprintf("%s.%d", id, n)].handled = strings.Contains(word, "silent"); !strings.Contains(word, "silent") {
			m.announce(fmt.Sprintf("procevent:%s:%d", id, n))
		}
		m.announceAll()
		if strings.Contains(word, "terminal") {
			want = "retired: " + id + " (adapter classified the captured result terminal)\n"
			delete(m.sources, id)
		}
		want += "captured: " + m.rig.result(id, n) + "\n"
	}
	if s.exit != 0 || s.stdout != want || s.stderr != "" {
		t.Fatalf("%+v, want %q", s, want)
	}
}

func (m *model) add(id string, n int, word string, external bool) {
	if !external {
		word += "\n"
	}
	m.results[fmt.Sprintf("%s.%d", id, n)] = &modelResult{content: word, external: external}
}

func (m *model) announce(key string) {
	if !slices.Contains(m.queue, key) {
		m.queue = append(m.queue, key)
	}
}

// announceAll announces every result that is not handled, and returns how many
// were not in the queue.
func (m *model) announceAll() int {
	before := len(m.queue)
	var names []home.ResultName
	for name, r := range m.results {
		if parsed, _, ok := home.ParseResultName(name + ".result"); ok && !r.handled {
			names = append(names, parsed)
		}
	}
	slices.SortFunc(names, func(a, b home.ResultName) int {
		if c := strings.Compare(a.Source, b.Source); c != 0 {
			return c
		}
		return int(a.Sequence) - int(b.Sequence)
	})
	for _, name := range names {
		m.announce(fmt.Sprintf("procevent:%s:%d", name.Source, name.Sequence))
	}
	return len(m.queue) - before
}

func (m *model) startKilled(t *rapid.T) {
	id := m.draw(t)
	source := m.sources[id]
	if source == nil || source.waiter != nil {
		t.Skip("nothing to be killed")
	}
	word := m.word(t)
	if strings.Contains(word, "%d") {
		word = fmt.Sprintf(word, m.events)
	}
	m.say(id, word)
	s := m.rig.start(m.t, id)
	time.Sleep(time.Duration(rapid.IntRange(0, 60).Draw(t, "ms")) * time.Millisecond)
	_ = s.Process.Kill()
	s.ends(m.t)
	m.say(id, "none")
	m.reread(t, id, source, word)
}

// reread takes over what a killed runner left of an event.
func (m *model) reread(t *rapid.T, id string, source *modelSource, word string) {
	m.settle()
	n := m.next[id]
	inbox, err := dirfd.Open(m.rig.state("procevent-inbox"))
	if err == nil {
		defer inbox.Close()
		names, err := inbox.Names()
		check(m.t, err)
		for _, name := range names {
			if r, _, ok := home.ParseResultName(name); ok && r.Source == id {
				m.next[id] = max(m.next[id], int(r.Sequence)+1)
			}
		}
	}
	captured := false
	if _, err := os.Stat(m.rig.result(id, n)); err == nil {
		captured = true
		m.add(id, n, word, source.external)
		_, err := os.Stat(strings.TrimSuffix(m.rig.result(id, n), "result") + "handled")
		m.results[fmt.Sprintf("%s.%d", id, n)].handled = err == nil
		if err == nil && !strings.Contains(word, "silent") {
			t.Fatalf("%q was handled by nobody", word)
		}
	}
	if _, err := os.Stat(m.rig.registration(id)); err != nil {
		if !captured || !strings.Contains(word, "terminal") {
			t.Fatalf("%s is gone, after %q (captured: %t)", id, word, captured)
		}
		delete(m.sources, id)
	}
	// What it announced, it announced in our order.
	for _, key := range m.rig.rows(m.t) {
		if !slices.Contains(m.queue, key) {
			m.queue = append(m.queue, key)
		}
	}
}

// settle ends what killed processes left, with the passes that do.
func (m *model) settle() {
	m.rig.run(m.t, "reconcile")
	m.quiet()
}

// quiet waits until no runner is left but those that wait in their FIFO.
func (m *model) quiet() {
	eventually(m.t, "the runners are done", func() error {
		for _, id := range modelIDs {
			s := m.sources[id]
			if _, err := os.Stat(m.rig.claim(id)); err == nil && (s == nil || s.waiter == nil) {
				return fmt.Errorf("%s has an owner", id)
			}
		}
		return nil
	})
}

// wait makes a source that is idle wait for a word in its FIFO.
func (m *model) wait(t *rapid.T) {
	id := m.draw(t)
	s := m.sources[id]
	if s == nil || s.waiter != nil {
		t.Skip("no idle source")
	}
	m.say(id, "fifo "+m.fifo(id))
	s.waiter = m.rig.start(m.t, id)
	open := awaitReader(m.t, m.fifo(id))
	check(m.t, open.SetDeadline(time.Time{}))
	m.say(id, "none")
}

func (m *model) waiting(t *rapid.T) (string, *modelSource) {
	id := m.draw(t)
	s := m.sources[id]
	if s == nil || s.waiter == nil {
		t.Skip("nobody waits")
	}
	return id, s
}

// wake gives a waiting source its word.
func (m *model) wake(t *rapid.T) {
	id, s := m.waiting(t)
	word := fmt.Sprintf("event %d", m.events)
	m.events++
	event(m.t, m.fifo(id), word)
	said := s.waiter.ends(m.t)
	s.waiter = nil
	// A built-in that was replaced meanwhile is captured as what it was.
	m.capturedAs(t, id, word, said)
}

func (m *model) capturedAs(t *rapid.T, id, word string, s said) {
	external := m.sources[id].external
	if data, err := os.ReadFile(m.rig.result(id, m.next[id])); err == nil && strings.HasSuffix(string(data), "\n") {
		external = false
	}
	if s.exit == 1 && strings.HasPrefix(s.stderr, "error[source-missing]") {
		t.Fatalf("%+v", s)
	}
	m.captured(t, id, &modelSource{external: external}, word, s)
}

// runnerKilled kills a waiting runner outright; its package goes on waiting.
func (m *model) runnerKilled(t *rapid.T) {
	id, s := m.waiting(t)
	kill(m.t, s.waiter.Process.Pid)
	s.waiter.ends(m.t)
	s.waiter = nil
	m.settle()
	for _, key := range m.rig.rows(m.t) {
		if !slices.Contains(m.queue, key) {
			m.queue = append(m.queue, key)
		}
	}
	_ = id
}

func (m *model) reconcile(t *rapid.T) {
	published, started, stopped, uncertain := m.rig.reconcile(m.t)
	m.quiet()
	idle := 0
	for _, s := range m.sources {
		if s.waiter == nil {
			idle++
		}
	}
	if want := m.announceAll(); published != want || started != idle || stopped != 0 || uncertain != 0 {
		t.Fatalf("published=%d started=%d stopped=%d uncertain=%d; want %d %d 0 0", published, started, stopped, uncertain, want, idle)
	}
}

func (m *model) reconcileKilled(t *rapid.T) {
	cmd := m.rig.command("reconcile")
	check(m.t, cmd.Start())
	time.Sleep(time.Duration(rapid.IntRange(0, 40).Draw(t, "ms")) * time.Millisecond)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	m.settle()
	m.announceAll()
}

func (m *model) handle(t *rapid.T) {
	id := m.draw(t)
	n := rapid.IntRange(1, m.next[id]).Draw(t, "n")
	s := m.rig.run(m.t, "handled", id, strconv.Itoa(n))
	r := m.results[fmt.Sprintf("%s.%d", id, n)]
	switch {
	case r == nil:
		if s.exit != 1 || !strings.HasPrefix(s.stderr, "error[source-missing]") {
			t.Fatalf("%+v", s)
		}
	case r.handled:
		if s.exit != 0 || s.stdout != fmt.Sprintf("already-handled: %s %d\n", id, n) {
			t.Fatalf("%+v", s)
		}
	default:
		if s.exit != 0 || s.stdout != fmt.Sprintf("handled: %s %d\n", id, n) {
			t.Fatalf("%+v", s)
		}
		r.handled = true
	}
}

// drain is another program that takes rows from the queue.
func (m *model) drain(t *rapid.T) {
	if len(m.queue) == 0 {
		t.Skip("the queue is empty")
	}
	n := rapid.IntRange(1, len(m.queue)).Draw(t, "rows")
	data, err := os.ReadFile(m.rig.state(".wake-queue"))
	check(m.t, err)
	check(m.t, os.WriteFile(m.rig.state(".wake-queue"), []byte(strings.Join(strings.SplitAfter(string(data), "\n")[n:], "")), 0o600))
	m.queue = slices.Clone(m.queue[n:])
}

func (m *model) retire(t *rapid.T) {
	id := m.draw(t)
	s := m.sources[id]
	args := []string{"retire", id}
	if s != nil && s.external && rapid.Bool().Draw(t, "by its token") {
		args = append(args, "--if-owner", s.token)
	}
	said := m.rig.run(m.t, args...)
	if s != nil && s.external && len(args) == 2 {
		if said.exit != 1 || !strings.HasPrefix(said.stderr, "error[owner-mismatch]") {
			t.Fatalf("%+v", said)
		}
		return
	}
	if said.exit != 0 || said.stdout != "retired: "+id+"\n" {
		t.Fatalf("%+v", said)
	}
	m.retired(t, id)
}

func (m *model) retired(t *rapid.T, id string) {
	if s := m.sources[id]; s != nil && s.waiter != nil {
		if said := s.waiter.ends(m.t); said.exit != 128+int(syscall.SIGTERM) {
			t.Fatalf("the runner: %+v", said)
		}
	}
	delete(m.sources, id)
}

func (m *model) sweep(t *rapid.T) {
	if out := m.rig.must(m.t, "sweep-home"); out != fmt.Sprintf("swept: attempted=%d\n", len(m.sources)) {
		t.Fatalf("%q", out)
	}
	for _, id := range modelIDs {
		m.retired(t, id)
	}
}

// stop ends the waiting runners as a service manager does.
func (m *model) stop(t *rapid.T) {
	for _, s := range m.sources {
		if s.waiter != nil {
			check(m.t, s.waiter.Process.Signal(syscall.SIGTERM))
			s.waiter.ends(m.t)
			s.waiter = nil
		}
	}
}

// check compares the home with the model.
func (m *model) check(t *rapid.T) {
	pending := map[string]int{}
	for name, r := range m.results {
		data, err := os.ReadFile(m.rig.state("procevent-inbox", name+".result"))
		if err != nil || string(data) != r.content {
			t.Fatalf("%s holds %q, %v; want %q", name, data, err, r.content)
		}
		_, ownerErr := os.Stat(m.rig.state("procevent-inbox", name+".extension"))
		_, handledErr := os.Stat(m.rig.state("procevent-inbox", name+".handled"))
		if (ownerErr == nil) != r.external || (handledErr == nil) != r.handled {
			t.Fatalf("%s: %+v, but %v, %v", name, r, ownerErr, handledErr)
		}
		if parsed, _, ok := home.ParseResultName(name + ".result"); ok && !r.handled {
			pending[parsed.Source]++
		}
	}
	found, _ := filepath.Glob(m.rig.state("procevent-inbox", "*.result"))
	if len(found) != len(m.results) {
		t.Fatalf("%d results, want %d", len(found), len(m.results))
	}
	if keys := m.rig.rows(m.t); !slices.Equal(keys, m.queue) {
		t.Fatalf("queue: %q, want %q", keys, m.queue)
	}
	var want []procevent.Row
	for _, id := range modelIDs {
		if s := m.sources[id]; s != nil {
			row := procevent.Row{Source: id, Adapter: "ci", Owner: "none", Pending: pending[id]}
			if s.external {
				row.Adapter = adapter
			}
			if s.waiter != nil {
				row.Owner = "live"
			}
			want = append(want, row)
		}
	}
	list, err := m.rig.host().List()
	if err != nil || list.Failed != nil || list.Notes != nil || !slices.Equal(list.Rows, want) {
		t.Fatalf("list: %+v, %v; want %+v", list, err, want)
	}
}
