package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hawser/internal/fault"
	"hawser/tests/hometest"
)

// homeModel is what a home is to its users: which extensions are enabled, and
// which bindings are retained.
type homeModel struct {
	enabled, retained map[string]bool
}

func (m homeModel) clone() homeModel {
	return homeModel{maps.Clone(m.enabled), maps.Clone(m.retained)}
}

// An action is one command about one extension.
type action struct {
	command string // bind, retire-binding or restore-binding
	id      string
}

func (a action) String() string { return a.command + " " + a.id }

// apply says what an action does, and its code if it is refused.
func (m homeModel) apply(a action) (homeModel, fault.Code) {
	next := m.clone()
	switch a.command {
	case "retire-binding":
		if !m.enabled[a.id] {
			return m, fault.BindingMissing
		}
		delete(next.enabled, a.id)
		next.retained[a.id] = true
		return next, ""
	case "restore-binding":
		if !m.retained[a.id] {
			return m, fault.BindingMissing
		}
		delete(next.retained, a.id)
	}
	if m.enabled[a.id] {
		return m, fault.BindingExists
	}
	for id := range m.enabled {
		if modelPackages[id] == modelPackages[a.id] {
			return m, fault.AdapterConflict
		}
	}
	next.enabled[a.id] = true
	return next, ""
}

// modelPackages are extensions and their adapters: two want the same one.
var modelPackages = map[string]string{"org.a": "one", "org.b": "two", "org.c": "one", "org.d": "three"}

// modelHome is a home under test, beside its model.
type modelHome struct {
	*stage
	t     *rapid.T
	model homeModel
	args  map[action][]string
}

// TestModel runs random commands in a home: alone, two at once, and killed at a
// random moment and repeated. After each it holds what the model says.
func TestModel(t *testing.T) {
	t.Parallel()
	sources := map[string]string{}
	for id, adapter := range modelPackages {
		sources[id] = hometest.Package{ID: id, Adapters: []string{adapter}}.Make(t)
	}
	ids := slices.Sorted(maps.Keys(modelPackages))
	actions := rapid.Custom(func(t *rapid.T) action {
		return action{
			rapid.SampledFrom([]string{"bind", "bind", "retire-binding", "restore-binding"}).Draw(t, "command"),
			rapid.SampledFrom(ids).Draw(t, "id"),
		}
	})
	s := &stage{home: hometest.New(t)}
	retained, args := learn(t, s, ids, sources)
	pristine := filepath.Join(hometest.Dir(t), "home")
	check(t, hometest.Restore(pristine, s.home))
	rapid.Check(t, func(rt *rapid.T) {
		check(t, hometest.Restore(s.home, pristine))
		m := &modelHome{stage: s, t: rt, model: homeModel{map[string]bool{}, maps.Clone(retained)}, args: args}
		for range rapid.IntRange(1, 4).Draw(rt, "steps") {
			switch rapid.IntRange(0, 5).Draw(rt, "how") {
			case 0:
				after := time.Duration(rapid.IntRange(0, 60_000).Draw(rt, "after")) * time.Microsecond
				m.killed(t, actions.Draw(rt, "killed"), after)
			case 1:
				m.both(t, actions.Draw(rt, "one"), actions.Draw(rt, "other"))
			default:
				m.alone(t, actions.Draw(rt, "alone"))
			}
		}
	})
}

// learn binds and retires every extension once and returns the arguments of every
// action: nothing in a binding is random, so its digest is known from then on.
func learn(t *testing.T, s *stage, ids []string, sources map[string]string) (retained map[string]bool, args map[action][]string) {
	retained, args = map[string]bool{}, map[action][]string{}
	for _, id := range ids {
		bind := []string{"bind", sources[id], "--adapter", modelPackages[id], "--trust-same-user-code"}
		digest := printed(s.must(t, bind...), "binding-digest")
		retire := []string{"retire-binding", id, "--if-binding-digest", digest}
		s.must(t, retire...)
		args[action{"bind", id}] = bind
		args[action{"retire-binding", id}] = retire
		args[action{"restore-binding", id}] = []string{"restore-binding", id, "--binding-digest", digest}
		retained[id] = true
	}
	return retained, args
}

// do runs an action and returns the code of its refusal.
func (m *modelHome) do(t *testing.T, a action) fault.Code {
	return codeOf(m.start(t, m.args[a]...))
}

func codeOf(r *running) fault.Code {
	_, stderr, code := r.end()
	if code == 0 {
		return ""
	}
	said, _, _ := strings.Cut(strings.TrimPrefix(stderr, "error["), "]")
	return fault.Code(said)
}

func (m *modelHome) alone(t *testing.T, a action) {
	next, want := m.model.apply(a)
	if got := m.do(t, a); got != want {
		m.t.Fatalf("%v: %q, not %q", a, got, want)
	}
	m.model = next
	m.check(t)
}

// both runs two actions at once: what comes of it is what comes of one after the
// other, in either order.
func (m *modelHome) both(t *testing.T, a, b action) {
	ra, rb := m.start(t, m.args[a]...), m.start(t, m.args[b]...)
	got := fmt.Sprintf("%q %q", codeOf(ra), codeOf(rb))
	first, codeA := m.model.apply(a)
	ab, codeB := first.apply(b)
	if got == fmt.Sprintf("%q %q", codeA, codeB) && m.holds(ab) {
		m.model = ab
	} else {
		first, codeB := m.model.apply(b)
		ba, codeA := first.apply(a)
		if got != fmt.Sprintf("%q %q", codeA, codeB) || !m.holds(ba) {
			m.t.Fatalf("%v and %v at once: %s, after %+v", a, b, got, m.model)
		}
		m.model = ba
	}
	m.check(t)
}

// killed kills an action at some moment and repeats it: the home is what it was
// before or after, and in the end what it is after.
func (m *modelHome) killed(t *testing.T, a action, after time.Duration) {
	next, want := m.model.apply(a)
	r := m.start(t, m.args[a]...)
	time.AfterFunc(after, func() { _ = r.Process.Kill() })
	switch code := codeOf(r); {
	case r.ProcessState.Exited() && code != want: // it was faster
		m.t.Fatalf("%v: %q, not %q", a, code, want)
	case r.ProcessState.Exited():
		m.model = next
		m.check(t)
		return
	}
	if !m.holds(m.model) && !m.holds(next) {
		m.t.Fatalf("%v, killed, left something between %+v and %+v", a, m.model, next)
	}
	if got := m.do(t, a); got != want {
		m.t.Fatalf("%v, killed and repeated: %q, not %q", a, got, want)
	}
	m.must(t, "cleanup-invocations")
	m.model = next
	m.check(t)
}

// holds reports whether the home enables what the model says.
func (m *modelHome) holds(model homeModel) bool {
	records, err := hostOf(m.home).List()
	if err != nil {
		m.t.Fatal(err)
	}
	enabled := map[string]bool{}
	for _, r := range records {
		enabled[r.ExtensionID] = true
	}
	return maps.Equal(enabled, model.enabled)
}

// check checks that the home is what the model says, verifies, and holds nothing
// that no command may leave.
func (m *modelHome) check(t *testing.T) {
	if !m.holds(m.model) {
		m.t.Fatalf("the home does not hold %+v", m.model)
	}
	for id := range m.model.enabled {
		if _, err := hostOf(m.home).Verify(t.Context(), id); err != nil {
			m.t.Fatal(err)
		}
	}
	left, err := hometest.Leftovers(m.home)
	if err != nil || len(left) > 0 {
		m.t.Fatalf("left in the home: %q, %v", left, err)
	}
}
