package transfer

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"testing"

	"pgregory.net/rapid"

	"hawser/internal/fault"
	"hawser/internal/wire"
	"hawser/tests/hometest"
)

// model is what a home knows of one transfer and its extension.
type model struct {
	staged bool // the unit is in staging
	half   bool // and has the binding in it
	bound  bool // the binding is enabled
	local  bool // another binding of the extension is, from a local directory
	with   int  // units retained with the binding
	plain  int  // without
}

// TestModel goes any way through the commands and the crashes between their
// steps, and knows of each what it must say and leave.
func TestModel(t *testing.T) {
	r := newRig(t, hometest.Package{})
	pkg := hometest.Package{}.Make(t)
	transfer := r.envelope.Digest()
	digest := r.bound().Digest // nothing in a binding is random
	empty := r.home + ".empty"
	must(t, os.Mkdir(empty, 0o700))

	rapid.Check(t, func(t *rapid.T) {
		must(t, hometest.Restore(r.home, empty))
		var m model
		var local wire.Digest

		want := func(err error, code fault.Code) {
			t.Helper()
			if code == "" && err != nil || code != "" && !fault.Is(err, code) {
				t.Fatalf("got %v (%s), want %q in %+v", err, fault.CodeOf(err), code, m)
			}
		}
		// admit is what receiving does before it binds.
		admit := func() (code fault.Code) {
			if m.bound || m.staged && m.half {
				m.staged = true
				return fault.TransferExists
			}
			return ""
		}
		t.Repeat(map[string]func(*rapid.T){
			"receive": func(*rapid.T) {
				_, err := r.receive(trusting("sh"))
				if code := admit(); code != "" {
					want(err, code)
				} else if m.local {
					want(err, fault.BindingExists)
					m.staged, m.plain = false, m.plain+1
				} else {
					want(err, "")
					m.staged, m.bound = true, true
				}
			},
			"receive in vain": func(*rapid.T) {
				_, err := r.receive(trusting("none"))
				if code := admit(); code != "" {
					want(err, code)
				} else {
					want(err, fault.CapabilityMismatch)
					m.staged, m.plain = false, m.plain+1
				}
			},
			"retire": func(*rapid.T) {
				_, err := r.retire(transfer, digest)
				switch {
				case m.bound && m.staged, !m.bound && !m.local && m.staged && m.half:
					want(err, "")
					m.staged, m.half, m.bound, m.with = false, false, false, m.with+1
				case m.local && m.staged && m.half:
					want(err, fault.RetirementPartial)
				case !m.bound && !m.local && m.staged:
					want(err, fault.BindingMissing)
				default:
					want(err, fault.TransferMissing)
				}
			},
			"restore": func(*rapid.T) {
				_, err := r.restore(transfer, digest)
				switch {
				case m.bound || m.local:
					want(err, fault.BindingExists)
				case m.staged && !m.half:
					want(err, fault.TransferExists)
				case m.staged:
					want(err, "")
					m.half, m.bound = false, true
				case m.with > 0:
					want(err, "")
					m.with, m.staged, m.bound = m.with-1, true, true
				default:
					want(err, fault.TransferMissing)
				}
			},
			"bind another": func(t *rapid.T) {
				bound, err := r.host.Bind(context.Background(), pkg, trusting("sh"))
				if m.bound || m.local {
					want(err, fault.BindingExists)
					return
				}
				want(err, "")
				bound.Told()
				m.local, local = true, bound.Digest
			},
			"retire another": func(t *rapid.T) {
				if !m.local {
					t.Skip("there is none")
				}
				retired, err := r.host.RetireBinding(context.Background(), extension, local)
				want(err, "")
				retired.Told()
				m.local = false
			},
			"crash after staging": func(t *rapid.T) {
				if m.staged || m.bound {
					t.Skip("nothing is received")
				}
				r.stage()
				m.staged = true
			},
			"crash between the moves": func(t *rapid.T) {
				if !m.bound || !m.staged {
					t.Skip("nothing is retired")
				}
				r.interrupt()
				m.bound, m.half = false, true
			},
			"lose the unit": func(*rapid.T) {
				must(t, os.RemoveAll(r.unit()))
				m.staged, m.half = false, false
			},
			"": func(t *rapid.T) {
				if got := look(t, r, digest); got != m {
					t.Fatalf("the home is %+v, and should be %+v", got, m)
				}
			},
		})
	})
}

// look reads the model off the home.
func look(t *rapid.T, r *rig, digest wire.Digest) (m model) {
	m.staged, m.half = exist(r.unit()+"/receipt.json"), exist(r.unit()+"/binding.json")
	record, err := r.host.Find(extension)
	if !fault.Is(err, fault.BindingMissing) {
		must(t, err)
		m.bound, m.local = record.Digest == digest, record.Digest != digest
	}
	retained, err := os.ReadDir(r.retained())
	if !errors.Is(err, fs.ErrNotExist) {
		must(t, err)
	}
	for _, unit := range retained {
		if exist(r.retained(unit.Name(), "binding.json")) {
			m.with++
		} else {
			m.plain++
		}
	}
	left, err := hometest.Leftovers(r.home)
	must(t, err)
	if len(left) > 0 {
		t.Fatalf("left in the home: %q", left)
	}
	return m
}
