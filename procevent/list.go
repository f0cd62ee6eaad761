package procevent

import (
	"errors"
	"io/fs"

	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/invoke"
	"hawser/invoke/process"
)

// Listed is what list says.
type Listed struct {
	Rows []Row
	// Failed are the registrations that are malformed or refused, which have no
	// row, each named with what to do about it.
	Failed []error
	// Notes say why an owner is uncertain or orphaned, and what a person can do.
	Notes []error
}

// Row is one source.
type Row struct {
	Source, Adapter string
	Owner           string // live, none, orphaned or uncertain
	Pending         int    // results that are captured and not handled
}

// List describes the sources of this home (commands: list). It changes nothing.
//
// Errors: those that keep the list from being made at all.
func (h *Host) List() (*Listed, error) {
	claims, err := h.claims(false)
	if err != nil {
		return nil, err
	}
	if claims != nil {
		defer claims.Close()
	}
	pending, err := h.pendingCounts()
	if err != nil {
		return nil, err
	}
	l := &Listed{}
	err = h.eachSource(func(source string, reg *registered, err error) {
		var o ownership
		if err == nil {
			o, err = h.owner(claims, source)
		}
		if err != nil {
			l.Failed = append(l.Failed, err)
			return
		}
		word, why := ownerWord(source, o)
		if word == "none" && reg.external() {
			word, why = h.leftWord(source)
		}
		if why != nil {
			l.Notes = addOnce(l.Notes, why)
		}
		l.Rows = append(l.Rows, Row{source, reg.Adapter, word, pending[source]})
	})
	return l, err
}

// ownerWord is what a source's claim says of its owner, and why if a person
// should know.
func ownerWord(source string, o ownership) (string, error) {
	doubt := o.doubt(source)
	switch {
	case o.live():
		return "live", nil
	case doubt != nil:
		return "uncertain", doubt
	case o.orphaned():
		return "orphaned", fault.New(fault.ProcessIdentityUncertain, "source %s: its runner %d is dead and its command still runs; fm-procevent reconcile ends it", source, o.claim.PID)
	}
	return "none", nil
}

// leftWord is what the records say of an external source without an owner. They
// are looked at after its claim: a host that dies in between is dead then.
func (h *Host) leftWord(source string) (string, error) {
	records, err := h.look(invoke.Filter{SourceID: source})
	if err != nil {
		return "uncertain", err
	}
	for _, f := range records {
		switch {
		case f.Malformed != nil:
			return "uncertain", f.Malformed
		case !mayRun(f):
		case f.Host.State == process.Uncertain:
			return "uncertain", foreign(f)
		case f.Group.State == process.Live:
			return "orphaned", fault.New(fault.ProcessIdentityUncertain, "source %s: its runner is dead and its package still runs; fm-procevent reconcile ends it", source)
		default:
			return "uncertain", fault.New(fault.ProcessIdentityUncertain, "source %s has no live runner, and its package may still run: %s; end what is the source's, or remove %s", source, f.Group.Reason, fault.Path(f.Record))
		}
	}
	return "none", nil
}

func (h *Host) pendingCounts() (map[string]int, error) {
	inbox, err := h.place(false, home.Inbox)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer inbox.Close()
	results, err := home.Results(inbox)
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, r := range results {
		if !r.Handled {
			counts[r.Source]++
		}
	}
	return counts, nil
}
