package lifecycle

import (
	"context"
	"errors"

	"hawser/binding"
	"hawser/internal/home"
	"hawser/invoke"
)

// List returns the enabled bindings, by extension id. It creates nothing.
//
// Errors: those of the registry.
func (h *Host) List() ([]binding.Record, error) {
	reg, err := h.registry()
	if err != nil {
		return nil, err
	}
	return reg.Records(), nil
}

// Find returns the binding of an extension. It creates nothing.
//
// Errors: binding-missing, those of the registry.
func (h *Host) Find(id string) (binding.Record, error) {
	reg, err := h.registry()
	if err != nil {
		return binding.Record{}, err
	}
	return reg.ByID(id)
}

// Verify revalidates the package of one binding whole and does a live handshake
// (commands: verify). The lock is held only for the first half.
//
// Errors: binding-missing, those of the package's validation and of an
// invocation; lock-unavailable; io.
func (h *Host) Verify(ctx context.Context, id string) (binding.Record, error) {
	return h.use(ctx, "verify "+id, invoke.Purpose{},
		func(reg *binding.Registry) (binding.Record, error) { return reg.ByID(id) },
		func(s *session) error { return nil })
}

// Resolve finds the binding that enables an adapter and verifies it with a live
// handshake (commands: resolve-process-event). Only that one package is hashed.
//
// Errors: adapter-unbound, those of Verify.
func (h *Host) Resolve(ctx context.Context, adapter string) (binding.Record, error) {
	return h.use(ctx, "resolve-process-event "+adapter, invoke.Purpose{},
		func(reg *binding.Registry) (binding.Record, error) { return reg.ByAdapter(adapter) },
		func(s *session) error { return nil })
}

// use is an operation, step by step (processes): under the lock the registry is
// read, one binding picked, its package verified, and the record published;
// without the lock, the handshake and then whatever the operation is.
//
// A home without bindings is left as it is: nothing is created for the lock.
func (h *Host) use(ctx context.Context, command string, purpose invoke.Purpose,
	pick func(*binding.Registry) (binding.Record, error), then func(*session) error) (binding.Record, error) {
	if ok, err := h.has(home.Bindings); err != nil {
		return binding.Record{}, err
	} else if !ok {
		return pick(&binding.Registry{})
	}
	record, s, err := h.reserve(ctx, command, purpose, pick)
	if err != nil {
		return record, err
	}
	err = s.Handshake(ctx)
	if err == nil {
		err = then(s)
	}
	return record, errors.Join(err, s.end())
}

// reserve is the part under the lock.
func (h *Host) reserve(ctx context.Context, command string, purpose invoke.Purpose,
	pick func(*binding.Registry) (binding.Record, error)) (binding.Record, *session, error) {
	l, err := h.lock(ctx, command)
	if err != nil {
		return binding.Record{}, nil, err
	}
	defer l.release()
	reg, err := h.registry()
	if err != nil {
		return binding.Record{}, nil, err
	}
	record, err := pick(reg)
	if err != nil {
		return record, nil, err
	}
	s, err := h.begin(record, purpose)
	return record, s, err
}

// CleanupInvocations settles the chosen records of dead hosts (commands:
// cleanup-invocations). What could not be settled is in the result, each with its
// reason, and is no error of the whole.
//
// Errors: process-cleanup-failed for a file that nobody here knows, which stops
// every cleanup; lock-unavailable; io.
func (h *Host) CleanupInvocations(ctx context.Context, filter invoke.Filter) (invoke.Settled, error) {
	if ok, err := h.has(home.Invocations); !ok {
		return invoke.Settled{}, err
	}
	t, err := h.transact(ctx, "cleanup-invocations", "")
	if err != nil {
		return invoke.Settled{}, err
	}
	defer t.release()
	settled, err := invoke.Settle(h.Home, filter)
	if len(settled.Failed) > 0 {
		err = nil
	}
	return settled, err
}
