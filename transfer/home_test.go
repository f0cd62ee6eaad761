package transfer

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"hawser/binding"
	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/strictjson"
	"hawser/internal/wire"
	"hawser/lifecycle"
	"hawser/tests/hometest"
	"hawser/tree"
)

const extension = "org.example.sh"

// rig is a home, and a package in an envelope on its way there.
type rig struct {
	t        testing.TB
	home     string
	host     *lifecycle.Host
	envelope *Envelope
}

func newRig(t testing.TB, pkg hometest.Package) *rig {
	t.Helper()
	return newRigOf(t, pkg.Make(t))
}

func newRigOf(t testing.TB, pkg string) *rig {
	t.Helper()
	path := hometest.New(t)
	r := &rig{t: t, home: path, host: hostOf(path)}
	data, err := PackDirectory(r.host, pkg)
	must(t, err)
	r.envelope, err = Decode(data)
	must(t, err)
	return r
}

func trusting(adapters ...string) binding.Options {
	return binding.Options{Adapters: adapters, TrustSameUserCode: true, TimeoutMS: binding.DefaultTimeoutMS}
}

func (r *rig) receive(options binding.Options) (*Received, error) {
	received, err := ReceiveBind(context.Background(), r.host, r.envelope, options)
	if err == nil {
		received.Told()
	}
	return received, err
}

// received is a home in which the transfer is bound.
func received(t testing.TB) (*rig, *Received) {
	t.Helper()
	r := newRig(t, hometest.Package{})
	return r, r.bound()
}

func (r *rig) bound() *Received {
	r.t.Helper()
	got, err := r.receive(trusting("sh"))
	must(r.t, err)
	return got
}

func (r *rig) retire(transfer, digest wire.Digest) (*Retired, error) {
	retired, err := Retire(context.Background(), r.host, extension, transfer, digest)
	if err == nil {
		retired.Told()
	}
	return retired, err
}

func (r *rig) restore(transfer, digest wire.Digest) (*Received, error) {
	restored, err := Restore(context.Background(), r.host, extension, transfer, digest)
	if err == nil {
		restored.Told()
	}
	return restored, err
}

func (r *rig) snapshot() string {
	r.t.Helper()
	s, err := hometest.Snapshot(r.home)
	must(r.t, err)
	return s
}

// refused checks that do is refused with the code and changes nothing.
func (r *rig) refused(code fault.Code, do func() error) {
	r.t.Helper()
	before := r.snapshot()
	err := do()
	wantCode(r.t, err, code)
	if diff := hometest.Diff(r.snapshot(), before); diff != "" {
		r.t.Errorf("refused with %s, and changed\n%s", code, diff)
	}
}

func (r *rig) verifies() {
	r.t.Helper()
	_, err := r.host.Verify(context.Background(), extension)
	must(r.t, err)
	hometest.CheckAtRest(r.t, r.home)
}

// unit is the staged unit's directory.
func (r *rig) unit() string { return r.envelope.identity().staged(r.host.Home) }

func (r *rig) retained(names ...string) string {
	k := r.envelope.identity()
	return r.host.Home.Join(home.RetiredStaging, append([]string{k.id, k.version}, names...)...)
}

func lines(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		fmt.Fprintf(&b, "%v %s\n", info.Mode(), strings.TrimPrefix(path, dir))
		return err
	}))
	return b.String()
}

func exist(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestReceiveRetireRestore(t *testing.T) {
	r, got := received(t)
	k := r.envelope.identity()
	if want := r.home + "/data/extensions/staging/org.example.sh/1.0.0/" + k.transfer.Hex() + "/package"; got.StagedPackage != want || got.SourcePath != want {
		t.Errorf("staged %s, source %s, want %s", got.StagedPackage, got.SourcePath, want)
	}
	if got, want := lines(t, r.unit()), "drwx------ \ndrwxr-xr-x /package\ndrwxr-xr-x /package/bin\n-rwxr-xr-x /package/bin/adapter\n-rw-r--r-- /package/firstmate-extension.json\n-rw------- /receipt.json\n"; got != want {
		t.Errorf("the unit is\n%swant\n%s", got, want)
	}
	text, err := os.ReadFile(r.unit() + "/receipt.json")
	must(t, err)
	want := fmt.Sprintf(`{
  "extension_id": "org.example.sh",
  "extension_version": "1.0.0",
  "package_digest": "%s",
  "schema": "firstmate.extension-package-transfer-manifest.v1",
  "transfer_digest": "%s"
}
`, r.envelope.PackageDigest(), k.transfer)
	if string(text) != want {
		t.Errorf("receipt\n%s", text)
	}
	r.verifies()
	enabled := r.snapshot()

	r.refused(fault.TransferExists, func() error { _, err := r.receive(trusting("sh")); return err })
	r.refused(fault.RetirementIncomplete, func() error {
		_, err := r.host.RetireBinding(context.Background(), extension, got.Digest)
		return err
	})
	other := wire.DigestOf(nil)
	r.refused(fault.OwnerMismatch, func() error { _, err := r.retire(k.transfer, other); return err })
	r.refused(fault.OwnerMismatch, func() error { _, err := r.retire(other, got.Digest); return err })
	r.refused(fault.BindingExists, func() error { _, err := r.restore(k.transfer, got.Digest); return err })

	retired, err := r.retire(k.transfer, got.Digest)
	must(t, err)
	if retired.RetainedAt != r.retained(k.transfer.Hex()) || !exist(retired.RetainedAt+"/binding.json") || exist(r.unit()) {
		t.Errorf("retained at %s", retired.RetainedAt)
	}
	if records, err := r.host.List(); err != nil || len(records) != 0 {
		t.Errorf("%v, %v", records, err)
	}
	r.refused(fault.TransferMissing, func() error { _, err := r.retire(k.transfer, got.Digest); return err })
	r.refused(fault.TransferMissing, func() error { _, err := r.restore(k.transfer, other); return err })
	r.refused(fault.TransferMissing, func() error { _, err := r.restore(other, got.Digest); return err })
	hometest.CheckAtRest(t, r.home)

	// The same envelope may come again; what is retained is in nobody's way.
	again, err := r.receive(trusting("sh"))
	must(t, err)
	if again.Digest != got.Digest {
		t.Errorf("binding %s, before %s", again.Digest, got.Digest)
	}
	second, err := r.retire(k.transfer, got.Digest)
	must(t, err)
	if second.RetainedAt != r.retained(k.transfer.Hex()+".2") {
		t.Errorf("retained at %s", second.RetainedAt)
	}
	must(t, os.RemoveAll(second.RetainedAt))

	restored, err := r.restore(k.transfer, got.Digest)
	must(t, err)
	if restored.StagedPackage != got.StagedPackage || restored.Digest != got.Digest || restored.File != got.File {
		t.Errorf("restored %+v", restored)
	}
	r.verifies()
	if diff := strings.ReplaceAll(hometest.Diff(r.snapshot(), enabled), "+ drwx------ data/extensions/retired-staging", ""); strings.ContainsAny(diff, "+-") && strings.Count(diff, "\n") > 3 {
		t.Errorf("another home than before the retirement:\n%s", diff)
	}
}

// alterations are what can have happened to a unit, by somebody's hand.
var alterations = map[string]func(t testing.TB, unit string){
	"content":          func(t testing.TB, u string) { must(t, os.WriteFile(u+"/package/bin/adapter", []byte("other"), 0o755)) },
	"executable bit":   func(t testing.TB, u string) { must(t, os.Chmod(u+"/package/bin/adapter", 0o644)) },
	"mode of a file":   func(t testing.TB, u string) { must(t, os.Chmod(u+"/package/firstmate-extension.json", 0o600)) },
	"mode of a dir":    func(t testing.TB, u string) { must(t, os.Chmod(u+"/package/bin", 0o700)) },
	"mode of package":  func(t testing.TB, u string) { must(t, os.Chmod(u+"/package", 0o700)) },
	"mode of the unit": func(t testing.TB, u string) { must(t, os.Chmod(u, 0o755)) },
	"mode of receipt":  func(t testing.TB, u string) { must(t, os.Chmod(u+"/receipt.json", 0o644)) },
	"more in package":  func(t testing.TB, u string) { must(t, os.WriteFile(u+"/package/more", nil, 0o644)) },
	"more in the unit": func(t testing.TB, u string) { must(t, os.WriteFile(u+"/more", nil, 0o600)) },
	"less in package":  func(t testing.TB, u string) { must(t, os.Remove(u+"/package/bin/adapter")) },
	"no package":       func(t testing.TB, u string) { must(t, os.RemoveAll(u+"/package")) },
	"package is a file": func(t testing.TB, u string) {
		must(t, os.RemoveAll(u+"/package"))
		must(t, os.WriteFile(u+"/package", nil, 0o644))
	},
	"package is a link": func(t testing.TB, u string) {
		must(t, os.Rename(u+"/package", filepath.Dir(u)+"/elsewhere"))
		must(t, os.Symlink("../elsewhere", u+"/package"))
	},
	"link in package": func(t testing.TB, u string) {
		must(t, os.Rename(u+"/package/bin/adapter", filepath.Dir(u)+"/elsewhere"))
		must(t, os.Symlink("../../../elsewhere", u+"/package/bin/adapter"))
	},
	"hard link":  func(t testing.TB, u string) { must(t, os.Link(u+"/package/bin/adapter", filepath.Dir(u)+"/elsewhere")) },
	"no receipt": func(t testing.TB, u string) { must(t, os.Remove(u+"/receipt.json")) },
	"empty receipt": func(t testing.TB, u string) {
		must(t, os.WriteFile(u+"/receipt.json", nil, 0o600))
	},
	"another's receipt": func(t testing.TB, u string) {
		data, err := os.ReadFile(u + "/receipt.json")
		must(t, err)
		must(t, os.WriteFile(u+"/receipt.json", bytes.Replace(data, []byte("1.0.0"), []byte("1.0.1"), 1), 0o600))
	},
	"receipt is a link": func(t testing.TB, u string) {
		must(t, os.Rename(u+"/receipt.json", filepath.Dir(u)+"/elsewhere"))
		must(t, os.Symlink("../elsewhere", u+"/receipt.json"))
	},
	// Receipt and package agree, but it is not what was transferred.
	"another package": func(t testing.TB, u string) {
		must(t, os.WriteFile(u+"/package/more", nil, 0o644))
		dir, err := dirfd.Open(u + "/package")
		must(t, err)
		defer dir.Close()
		s, err := tree.Scan(dir, stagedRules())
		must(t, err)
		read, err := s.Hash()
		must(t, err)
		data, err := os.ReadFile(u + "/receipt.json")
		must(t, err)
		old := bytes.Index(data, []byte("package_digest")) + len(`package_digest": "`)
		copy(data[old:], read.Digest())
		must(t, os.WriteFile(u+"/receipt.json", data, 0o600))
	},
}

// TestAlteredUnit: a unit that is not what it was is not retired, and the same
// envelope puts back what can then be.
func TestAlteredUnit(t *testing.T) {
	for name, alter := range alterations {
		t.Run(name, func(t *testing.T) {
			r, got := received(t)
			k := r.envelope.identity()
			alter(t, r.unit())
			before := r.snapshot()
			_, err := r.retire(k.transfer, got.Digest)
			if err == nil || fault.Is(err, fault.IO) || fault.Is(err, fault.Internal) {
				t.Fatalf("retired: %v", err)
			}
			wantCode(t, err, fault.CodeOf(err))
			if diff := hometest.Diff(r.snapshot(), before); diff != "" {
				t.Errorf("refused, and changed\n%s", diff)
			}
			_, err = r.receive(trusting("sh"))
			wantCode(t, err, fault.TransferExists)
			if !exist(r.retained(k.transfer.Hex())) {
				t.Error("what was altered is not kept")
			}
			r.verifies()
			retired, err := r.retire(k.transfer, got.Digest)
			must(t, err)
			if retired.RetainedAt != r.retained(k.transfer.Hex()+".2") {
				t.Errorf("retained at %s", retired.RetainedAt)
			}
			// The altered one among the retained does not hide the whole one.
			_, err = r.restore(k.transfer, got.Digest)
			must(t, err)
			r.verifies()
		})
	}
	t.Run("gone", func(t *testing.T) {
		r, got := received(t)
		must(t, os.RemoveAll(r.unit()))
		r.refused(fault.TransferMissing, func() error { _, err := r.retire(got.TransferDigest, got.Digest); return err })
		_, err := r.receive(trusting("sh"))
		wantCode(t, err, fault.TransferExists)
		_, err = r.retire(got.TransferDigest, got.Digest)
		must(t, err)
	})
}

// TestAlteredRetainedUnit: nor is it restored.
func TestAlteredRetainedUnit(t *testing.T) {
	for name, alter := range alterations {
		t.Run(name, func(t *testing.T) {
			r, got := received(t)
			retired, err := r.retire(got.TransferDigest, got.Digest)
			must(t, err)
			alter(t, retired.RetainedAt)
			before := r.snapshot()
			if _, err = r.restore(got.TransferDigest, got.Digest); err == nil || fault.Is(err, fault.IO) {
				t.Fatalf("restored: %v", err)
			}
			if diff := hometest.Diff(r.snapshot(), before); diff != "" {
				t.Errorf("refused, and changed\n%s", diff)
			}
		})
	}
}

// half makes what a retirement leaves that is interrupted between its moves.
func half(t testing.TB) (*rig, *Received) {
	t.Helper()
	r, got := received(t)
	r.interrupt()
	return r, got
}

// stage makes what a receiver leaves that died between staging and binding.
func (r *rig) stage() {
	r.t.Helper()
	s, err := stage(r.host.Home, r.envelope)
	must(r.t, err)
	s.close()
}

// interrupt makes of a bound transfer what an interrupted retirement leaves.
func (r *rig) interrupt() {
	r.t.Helper()
	must(r.t, os.Rename(filepath.Join(r.home, "config/extensions.d", extension+".json"), r.unit()+"/binding.json"))
}

func TestInterruptedRetirement(t *testing.T) {
	other := wire.DigestOf(nil)
	t.Run("goes on", func(t *testing.T) {
		r, got := half(t)
		r.refused(fault.OwnerMismatch, func() error { _, err := r.retire(got.TransferDigest, other); return err })
		r.refused(fault.TransferMissing, func() error { _, err := r.retire(other, got.Digest); return err })
		r.refused(fault.TransferExists, func() error { _, err := r.receive(trusting("sh")); return err })
		retired, err := r.retire(got.TransferDigest, got.Digest)
		must(t, err)
		if !exist(retired.RetainedAt + "/binding.json") {
			t.Error("without its binding")
		}
		hometest.CheckAtRest(t, r.home)
	})
	t.Run("stopped at the second move", func(t *testing.T) {
		r, got := half(t)
		hidden := filepath.Dir(r.unit()) + "-hidden"
		err := transact(context.Background(), r.host, "test", extension, func(tr *lifecycle.Transaction) error {
			must(t, os.Rename(filepath.Dir(r.unit()), hidden)) // as one sees it who comes too late
			at := &retirement{t: tr, h: r.host.Home, id: extension, transfer: got.TransferDigest, digest: got.Digest}
			return second(at.retain(r.envelope.identity()))
		})
		if !fault.Is(err, fault.IO) || !strings.HasSuffix(err.Error(), "; the binding is disabled already, and the same command goes on") {
			t.Errorf("no way out: %v", err)
		}
		must(t, os.Rename(hidden, filepath.Dir(r.unit())))
		must(t, second(r.retire(got.TransferDigest, got.Digest)))
	})
	t.Run("goes back", func(t *testing.T) {
		r, got := half(t)
		r.refused(fault.TransferExists, func() error { _, err := r.restore(got.TransferDigest, other); return err })
		if err := second(r.restore(got.TransferDigest, other)); !strings.Contains(err.Error(), string(got.Digest)) {
			t.Errorf("no way out: %v", err)
		}
		_, err := r.restore(got.TransferDigest, got.Digest)
		must(t, err)
		r.verifies()
	})
	t.Run("altered", func(t *testing.T) {
		for name, alter := range alterations {
			r, got := half(t)
			alter(t, r.unit())
			before := r.snapshot()
			for _, err := range []error{
				second(r.retire(got.TransferDigest, got.Digest)),
				second(r.restore(got.TransferDigest, got.Digest)),
			} {
				if err == nil || fault.Is(err, fault.IO) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if err := second(r.retire(got.TransferDigest, got.Digest)); !strings.HasSuffix(err.Error(), "receive the same envelope again, which binds it, and then repeat this command") {
				t.Errorf("%s: no way out: %v", name, err)
			}
			if diff := hometest.Diff(r.snapshot(), before); diff != "" {
				t.Errorf("%s: refused, and changed\n%s", name, diff)
			}
			r.bound()
			must(t, second(r.retire(got.TransferDigest, got.Digest)))
		}
	})
	t.Run("altered binding", func(t *testing.T) {
		for _, change := range [][2]string{{"300000", "300001"}, {"org.example.sh", "org.example.sj"}, {"/package\"", "/pakcage\""}, {"{", ""}} {
			r, got := half(t)
			data, err := os.ReadFile(r.unit() + "/binding.json")
			must(t, err)
			must(t, os.WriteFile(r.unit()+"/binding.json", []byte(strings.Replace(string(data), change[0], change[1], 1)), 0o600))
			before := r.snapshot()
			if _, err := r.retire(got.TransferDigest, got.Digest); err == nil || fault.Is(err, fault.IO) {
				t.Errorf("%q: %v", change, err)
			}
			if diff := hometest.Diff(r.snapshot(), before); diff != "" {
				t.Errorf("%q: refused, and changed\n%s", change, diff)
			}
		}
	})
	t.Run("both halves", func(t *testing.T) {
		r, got := half(t)
		data, err := os.ReadFile(r.unit() + "/binding.json")
		must(t, err)
		must(t, os.WriteFile(got.File, data, 0o600))
		r.refused(fault.RetirementPartial, func() error { _, err := r.retire(got.TransferDigest, got.Digest); return err })
		// The refusal says: move that file away if it is the same binding.
		must(t, os.Remove(r.unit()+"/binding.json"))
		_, err = r.retire(got.TransferDigest, got.Digest)
		must(t, err)
	})
	t.Run("bound meanwhile", func(t *testing.T) {
		r, got := half(t)
		bound, err := r.host.Bind(context.Background(), hometest.Package{}.Make(t), trusting("sh"))
		must(t, err)
		bound.Told()
		r.refused(fault.RetirementPartial, func() error { _, err := r.retire(got.TransferDigest, got.Digest); return err })
		// The refusal says: retire what is enabled first.
		gone, err := r.host.RetireBinding(context.Background(), extension, bound.Digest)
		must(t, err)
		gone.Told()
		_, err = r.retire(got.TransferDigest, got.Digest)
		must(t, err)
	})
}

// TestAmbiguousTransfer: while two versions claim a transfer, neither is moved,
// whatever of a retirement or a restoration is done already.
func TestAmbiguousTransfer(t *testing.T) {
	for name, prepare := range map[string]func(testing.TB) (*rig, *Received){"enabled": received, "interrupted": half} {
		t.Run(name, func(t *testing.T) {
			r, got := prepare(t)
			other := filepath.Dir(filepath.Dir(r.unit())) + "/9.9.9/" + filepath.Base(r.unit())
			must(t, os.MkdirAll(filepath.Dir(other), 0o700))
			must(t, hometest.Restore(other, r.unit()))
			r.refused(fault.IntegrityMismatch, func() error { return second(r.retire(got.TransferDigest, got.Digest)) })
			if name == "interrupted" {
				r.refused(fault.IntegrityMismatch, func() error { return second(r.restore(got.TransferDigest, got.Digest)) })
			}
			_, err := r.retire(got.TransferDigest, got.Digest)
			if !strings.Contains(err.Error(), "under versions 1.0.0 and 9.9.9 of "+extension+"; move the wrong one away") {
				t.Errorf("no way out: %v", err)
			}
			must(t, os.RemoveAll(other))
			must(t, second(r.retire(got.TransferDigest, got.Digest)))
		})
	}
}

// TestNothingOfAUnitIsQuoted: what came to stand in a unit's records is told by no
// message.
func TestNothingOfAUnitIsQuoted(t *testing.T) {
	r, got := half(t)
	for _, name := range []string{"/binding.json", "/receipt.json"} {
		data, err := os.ReadFile(r.unit() + name)
		must(t, err)
		spoilt := bytes.Replace(data, []byte("{"), []byte(`{"LEAKME\n\u001b[31m": 1,`), 1)
		must(t, os.WriteFile(r.unit()+name, spoilt, 0o600))
		for _, err := range []error{second(r.retire(got.TransferDigest, got.Digest)), second(r.restore(got.TransferDigest, got.Digest))} {
			wantCode(t, err, fault.SchemaInvalid)
			if strings.Contains(err.Error(), "LEAKME") {
				t.Errorf("%s is quoted: %v", name, err)
			}
		}
		must(t, os.WriteFile(r.unit()+name, data, 0o600))
	}
}

func second[T any](_ T, err error) error { return err }

func TestRetireOfWhatIsNoTransfer(t *testing.T) {
	r := newRig(t, hometest.Package{})
	transfer, other := r.envelope.Digest(), wire.DigestOf(nil)
	r.refused(fault.TransferMissing, func() error { _, err := r.retire(transfer, other); return err })
	r.refused(fault.TransferMissing, func() error { _, err := r.restore(transfer, other); return err })
	wantCode(t, second(Retire(context.Background(), r.host, "../x", transfer, other)), fault.Usage)
	bound, err := r.host.Bind(context.Background(), hometest.Package{}.Make(t), trusting("sh"))
	must(t, err)
	bound.Told()
	r.refused(fault.TransferMissing, func() error { _, err := r.retire(transfer, bound.Digest); return err })
	// A failed bind is no reason to take the binding's place.
	_, err = r.receive(trusting("sh"))
	wantCode(t, err, fault.BindingExists)
	r.verifies()
}

// TestFailedBind: the unit of a bind that failed is retained, and the same
// envelope may come again.
func TestFailedBind(t *testing.T) {
	r := newRig(t, hometest.Package{Consents: []string{"network"}})
	hex := r.envelope.Digest().Hex()
	for _, name := range []string{hex, hex + ".2", hex + ".3"} {
		_, err := r.receive(trusting("sh"))
		wantCode(t, err, fault.ConsentMissing)
		if !strings.Contains(err.Error(), r.retained(name)) || !exist(r.retained(name, "receipt.json")) || exist(r.unit()) {
			t.Errorf("not retained as %s: %v", name, err)
		}
		hometest.CheckAtRest(t, r.home)
	}
	r.refused(fault.Usage, func() error { _, err := r.receive(trusting()); return err })
	r.refused(fault.Usage, func() error { _, err := r.receive(trusting("sh", "sh")); return err })
	_, err := r.receive(trusting("nosuch"))
	wantCode(t, err, fault.CapabilityMismatch)

	options := trusting("sh")
	options.Consents = []string{"network"}
	got, err := r.receive(options)
	must(t, err)
	r.verifies()
	retired, err := r.retire(got.TransferDigest, got.Digest)
	must(t, err)
	if retired.RetainedAt != r.retained(hex+".5") {
		t.Errorf("retained at %s", retired.RetainedAt)
	}
	// Retained without a binding, it is not what restore brings back.
	must(t, os.RemoveAll(retired.RetainedAt))
	r.refused(fault.TransferMissing, func() error { _, err := r.restore(got.TransferDigest, got.Digest); return err })
}

// TestLongHome: a path that no binding can hold is refused before anything is
// written.
func TestLongHome(t *testing.T) {
	r := newRig(t, hometest.Package{})
	fixed := len(r.envelope.identity().source(r.host.Home)) - len(r.home)
	for length, code := range map[int]fault.Code{4096: fault.IO, 4097: fault.PathUnsafe} {
		r.host = hostOf(hometest.Dir(t) + "/")
		r.host.Home.Path += strings.Repeat("h", length-fixed-len(r.host.Home.Path))
		if _, err := r.receive(trusting("sh")); !fault.Is(err, code) {
			t.Errorf("a path of %d bytes: %s", length, fault.CodeOf(err))
		}
	}
}

func TestFailedHandshake(t *testing.T) {
	r := newRig(t, hometest.Package{Script: "#!/bin/sh\nexit 1\n"})
	_, err := r.receive(trusting("sh"))
	wantCode(t, err, fault.ProcessFailed)
	if !exist(r.retained(r.envelope.Digest().Hex(), "package", hometest.Entrypoint)) || exist(r.unit()) {
		t.Error("not retained")
	}
	if records, err := r.host.List(); err != nil || len(records) > 0 {
		t.Errorf("%v, %v", records, err)
	}
	hometest.CheckAtRest(t, r.home)
}

// TestStagedUnitIsTakenUpAgain: the receiver died between staging and binding.
func TestStagedUnitIsTakenUpAgain(t *testing.T) {
	r := newRig(t, hometest.Package{})
	r.stage()
	info, err := os.Stat(r.unit())
	must(t, err)
	wantCode(t, second(r.retire(r.envelope.Digest(), wire.DigestOf(nil))), fault.BindingMissing)
	r.refused(fault.TransferExists, func() error { _, err := r.restore(r.envelope.Digest(), wire.DigestOf(nil)); return err })
	if err := second(r.restore(r.envelope.Digest(), wire.DigestOf(nil))); !strings.HasSuffix(err.Error(), "receive the same envelope again to bind it") {
		t.Errorf("no way out: %v", err)
	}
	_, err = r.receive(trusting("sh"))
	must(t, err)
	now, err := os.Stat(r.unit())
	must(t, err)
	if !os.SameFile(info, now) {
		t.Error("staged anew")
	}
	r.verifies()

	// One that a power cut took a part of is set aside.
	r = newRig(t, hometest.Package{})
	r.stage()
	must(t, os.Truncate(r.unit()+"/receipt.json", 0))
	_, err = r.receive(trusting("sh"))
	must(t, err)
	if !exist(r.retained(r.envelope.Digest().Hex())) {
		t.Error("the torn unit is not kept")
	}
	r.verifies()
}

// TestReceivedByManyAtOnce: one wins, the others find it done.
func TestReceivedByManyAtOnce(t *testing.T) {
	r := newRig(t, hometest.Package{})
	results := make([]error, 16)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() { _, results[i] = r.receive(trusting("sh")) })
	}
	wg.Wait()
	won := 0
	for _, err := range results {
		if err == nil {
			won++
		} else if !fault.Is(err, fault.TransferExists) {
			t.Errorf("%v", err)
		}
	}
	if won != 1 {
		t.Errorf("%d won", won)
	}
	r.verifies()
}

func TestRetireInUse(t *testing.T) {
	r, got := received(t)
	inbox := r.home + "/state/procevent-inbox"
	must(t, os.MkdirAll(inbox, 0o700))
	owner := fmt.Sprintf("schema=fm-procevent-extension-owner.v1\nextension_id=%s\nextension_version=%s\ncapability_version=1\npackage_digest=%s\nbinding_digest=%s\n",
		extension, got.ExtensionVersion, got.PackageDigest, got.Digest)
	for name, text := range map[string]string{"s.1.adapter": "sh\n", "s.1.extension": owner, "s.1.result": "x"} {
		must(t, os.WriteFile(inbox+"/"+name, []byte(text), 0o600))
	}
	r.refused(fault.BindingInUse, func() error { _, err := r.retire(got.TransferDigest, got.Digest); return err })
	must(t, os.WriteFile(inbox+"/s.1.handled", nil, 0o600))
	_, err := r.retire(got.TransferDigest, got.Digest)
	must(t, err)
}

// TestRetireDamagedInstallation: repair comes first, from what is staged.
func TestRetireDamagedInstallation(t *testing.T) {
	r, got := received(t)
	entry := got.PackageRoot + "/" + hometest.Entrypoint
	must(t, os.Chmod(entry, 0o755))
	r.refused(fault.ModeUnsafe, func() error { _, err := r.retire(got.TransferDigest, got.Digest); return err })
	bound, err := r.host.Repair(context.Background(), extension, "")
	must(t, err)
	bound.Told()
	_, err = r.retire(got.TransferDigest, got.Digest)
	must(t, err)
}

func (r *rig) retireDamaged(digest wire.Digest) (*lifecycle.Retired, error) {
	retired, err := RetireDamaged(context.Background(), r.host, extension, digest)
	if err == nil {
		retired.Told()
	}
	return retired, err
}

// TestRetireDamaged: what cannot be repaired, the unit being as damaged as the
// installed package, is retired without its transfer; what can, is not.
func TestRetireDamaged(t *testing.T) {
	packages := map[string]func(t testing.TB, root string){
		"gone":     func(t testing.TB, root string) { must(t, hometest.Remove(root)) },
		"modified": func(t testing.TB, root string) { must(t, os.Chmod(root+"/"+hometest.Entrypoint, 0o755)) },
	}
	units := maps.Clone(alterations)
	units["gone"] = func(t testing.TB, unit string) { must(t, os.RemoveAll(unit)) }
	units["interrupted, and damaged"] = func(t testing.TB, unit string) {
		must(t, os.WriteFile(unit+"/binding.json", nil, 0o600))
	}
	for unit, alter := range units {
		for pkg, damage := range packages {
			t.Run(unit+", package "+pkg, func(t *testing.T) {
				r, got := received(t)
				damage(t, got.PackageRoot)
				r.refused(fault.RetirementIncomplete, func() error { return second(r.retireDamaged(got.Digest)) })
				if _, err := r.retireDamaged(got.Digest); !strings.Contains(err.Error(), "; reinstall it: fm-extension repair "+extension) {
					t.Errorf("no way out: %v", err)
				}
				alter(t, r.unit())
				r.refused(fault.OwnerMismatch, func() error { return second(r.retireDamaged(wire.DigestOf(nil))) })
				_, err := r.retire(got.TransferDigest, got.Digest)
				if err == nil || !strings.HasSuffix(err.Error(), fmt.Sprintf(": fm-extension retire-binding %s --if-binding-digest %s --package-damaged", extension, got.Digest)) {
					t.Errorf("no way out: %v", err)
				}
				retired, err := r.retireDamaged(got.Digest)
				must(t, err)
				if !exist(retired.RetainedAt) || exist(r.unit()) || exist(got.File) || (unit != "gone") != exist(r.retained(got.TransferDigest.Hex())) {
					t.Errorf("retained at %s\n%s", retired.RetainedAt, r.snapshot())
				}
				hometest.CheckAtRest(t, r.home)
				r.refused(fault.BindingMissing, func() error { return second(r.retireDamaged(got.Digest)) })
				if pkg == "gone" {
					r.bound()
					r.verifies()
				}
			})
		}
	}
	t.Run("package whole", func(t *testing.T) {
		r, got := received(t)
		must(t, os.RemoveAll(r.unit()))
		r.refused(fault.Usage, func() error { return second(r.retireDamaged(got.Digest)) })
		if _, err := r.retire(got.TransferDigest, got.Digest); strings.Contains(err.Error(), "--package-damaged") {
			t.Errorf("no way out: %v", err)
		}
	})
	t.Run("killed before its move", func(t *testing.T) {
		r, got := received(t)
		must(t, hometest.Remove(got.PackageRoot))
		must(t, os.Remove(r.unit()+"/receipt.json"))
		must(t, abandon(r.host.Home, got.Record))
		must(t, second(r.retireDamaged(got.Digest)))
		if !exist(r.retained(got.TransferDigest.Hex())) || exist(r.retained(got.TransferDigest.Hex()+".2")) {
			t.Error(r.snapshot())
		}
	})
	t.Run("of no unit", func(t *testing.T) {
		r, got := received(t)
		must(t, hometest.Remove(got.PackageRoot))
		for _, source := range []string{"/x", "/" + extension + "/1.0.0/x/package", strings.TrimPrefix(filepath.Dir(got.SourcePath), r.host.Home.Join(home.Staging)) + "/other"} {
			b := *got.Binding
			b.SourcePath = r.host.Home.Join(home.Staging) + source
			text, digest, err := b.Encode()
			must(t, err)
			must(t, os.WriteFile(got.File, text, 0o600))
			must(t, second(r.retireDamaged(digest)))
			if !exist(r.unit()) {
				t.Errorf("%s: another's unit is gone", source)
			}
		}
	})
}

// TestVanished: what somebody removes under a command is a refusal with a code, or
// was not there.
func TestVanished(t *testing.T) {
	r, got := received(t)
	k := r.envelope.identity()
	must(t, second(r.retire(got.TransferDigest, got.Digest)))
	u, err := findRetained(r.host.Home, extension, got.TransferDigest, got.Digest)
	must(t, err)
	defer u.close()
	must(t, os.RemoveAll(r.host.Home.Join(home.RetiredStaging, extension)))
	must(t, os.RemoveAll(r.host.Home.Join(home.Staging, extension)))
	if names, err := k.retainedNames(r.host.Home); err != nil || len(names) != 0 {
		t.Errorf("%v, %v", names, err)
	}
	for name, step := range map[string]func(*lifecycle.Transaction) error{
		"retain":  func(*lifecycle.Transaction) error { return second(k.retain(r.host.Home)) },
		"restage": func(*lifecycle.Transaction) error { return u.restage(r.host.Home) },
		"disable": func(t *lifecycle.Transaction) error { return t.Disable(got.Record, u.dir, bindingName) },
	} {
		err := transact(context.Background(), r.host, "test", extension, step)
		if !fault.Is(err, fault.IO) {
			t.Errorf("%s: %v (%s)", name, err, fault.CodeOf(err))
		}
	}
}

// TestRestoreDamagedInstallation: a package that is gone is installed again from
// what was transferred. One that is damaged is not passed over in silence.
func TestRestoreDamagedInstallation(t *testing.T) {
	for name, lose := range map[string]func(root string) error{
		"gone":           hometest.Remove,
		"all of it gone": func(root string) error { return hometest.Remove(filepath.Dir(filepath.Dir(root))) },
		"damaged": func(root string) error {
			return os.Chmod(root+"/"+hometest.Entrypoint, 0o755)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, got := received(t)
			_, err := r.retire(got.TransferDigest, got.Digest)
			must(t, err)
			must(t, lose(got.PackageRoot))
			if name == "damaged" {
				r.refused(fault.ModeUnsafe, func() error { return second(r.restore(got.TransferDigest, got.Digest)) })
				if _, err = r.restore(got.TransferDigest, got.Digest); !strings.HasSuffix(err.Error(), "; move it aside, and the same command installs what was transferred again") {
					t.Errorf("no way out: %v", err)
				}
				must(t, os.Rename(got.PackageRoot, filepath.Dir(got.PackageRoot)+"/.aside"))
			}
			_, err = r.restore(got.TransferDigest, got.Digest)
			must(t, err)
			r.verifies()
		})
	}
}

func TestRestoreConflict(t *testing.T) {
	r, got := received(t)
	_, err := r.retire(got.TransferDigest, got.Digest)
	must(t, err)
	bound, err := r.host.Bind(context.Background(), hometest.Package{ID: "org.example.other", Adapters: []string{"sh"}}.Make(t), trusting("sh"))
	must(t, err)
	bound.Told()
	r.refused(fault.AdapterConflict, func() error { _, err := r.restore(got.TransferDigest, got.Digest); return err })
}

func TestReceiptStrict(t *testing.T) {
	r := receipt{identity{"org.example.sh", "1.0.0", wire.DigestOf(nil)}, wire.DigestOf([]byte("p"))}
	data, err := r.encode()
	must(t, err)
	got, err := parseReceipt(data)
	must(t, err)
	if got != r {
		t.Errorf("%+v", got)
	}
	for _, change := range [][2]string{
		{"extension_id", "extension_ID"}, {"org.example.sh", "../x"}, {"1.0.0", "1"}, {"sha256:", "sha512:"}, {"manifest.v1", "manifest.v2"}, {"{", `{"more":1,`},
	} {
		if _, err := parseReceipt(bytes.Replace(data, []byte(change[0]), []byte(change[1]), 1)); !fault.Is(err, fault.SchemaInvalid) {
			t.Errorf("%q: %v", change, err)
		}
	}
	if _, err := parseReceipt(append(data, data...)); !fault.Is(err, fault.JSONInvalid) {
		t.Errorf("two: %v", err)
	}
}

func FuzzReceipt(f *testing.F) {
	data, _ := receipt{identity{"org.example.sh", "1.0.0", wire.DigestOf(nil)}, wire.DigestOf([]byte("p"))}.encode()
	f.Add(data)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseReceipt(data)
		if err != nil {
			if fault.CodeOf(err) == fault.Internal {
				t.Fatal(err)
			}
			return
		}
		again, err := r.encode()
		must(t, err)
		if back, err := parseReceipt(again); err != nil || back != r {
			t.Fatalf("%+v, %v", back, err)
		}
	})
}

// foreign makes of a bound transfer the one that another host of the contract
// makes of the same package, which lists the entries in the order of the tree
// digest: "lib", "lib/a", "lib-x".
func (r *rig) foreign(got *Received) (transfer, digest wire.Digest) {
	r.t.Helper()
	k := r.envelope.identity()
	var entries []tree.Entry
	for _, path := range []string{"bin", "bin/adapter", "firstmate-extension.json", "lib", "lib/a", "lib-x"} {
		e, ok := find(r.envelope.entries, path)
		if !ok {
			r.t.Fatalf("no entry %s", path)
		}
		entries = append(entries, e.Entry)
	}
	canonical, err := strictjson.Canonical(newManifestForm(k.id, k.version, r.envelope.PackageDigest(), entries))
	must(r.t, err)
	k.transfer = wire.DigestOf(canonical)
	if k.transfer == r.envelope.Digest() {
		r.t.Fatal("the orders are the same")
	}
	must(r.t, os.Rename(r.unit(), k.staged(r.host.Home)))
	text, err := receipt{k, r.envelope.PackageDigest()}.encode()
	must(r.t, err)
	must(r.t, os.WriteFile(k.staged(r.host.Home)+"/receipt.json", text, 0o600))
	b := *got.Binding
	b.SourcePath = k.source(r.host.Home)
	text, digest, err = b.Encode()
	must(r.t, err)
	must(r.t, os.WriteFile(got.File, text, 0o600))
	return k.transfer, digest
}

// TestForeignHome: what another host of the contract received, with its entries
// in another order, is retired and restored here like any other; but an envelope
// has one order.
func TestForeignHome(t *testing.T) {
	dir := hometest.Package{}.Make(t)
	must(t, os.Mkdir(dir+"/lib", 0o755))
	must(t, os.WriteFile(dir+"/lib/a", []byte("a"), 0o644))
	must(t, os.WriteFile(dir+"/lib-x", []byte("x"), 0o644))
	r := newRigOf(t, dir)
	transfer, digest := r.foreign(r.bound())
	r.verifies()

	retired, err := r.retire(transfer, digest)
	must(t, err)
	restored, err := r.restore(transfer, digest)
	must(t, err)
	if restored.Digest != digest || exist(retired.RetainedAt) {
		t.Errorf("restored %+v", restored)
	}
	r.verifies()
	_, err = r.receive(trusting("sh"))
	wantCode(t, err, fault.BindingExists)
	_, err = r.retire(transfer, digest)
	must(t, err)
	r.bound()
	r.verifies()
}

// TestUnsafeHome: nothing at all is written into a home that is not private, down
// to the directories of the extension that a command is about. Those of another
// are in nobody's way.
func TestUnsafeHome(t *testing.T) {
	local := hometest.Package{}.Make(t)
	commands := map[string]func(r *rig) error{
		"receive": func(r *rig) error { return second(r.receive(trusting("sh"))) },
		"bind": func(r *rig) error {
			return second(r.host.Bind(context.Background(), local, trusting("sh")))
		},
		"retire":  func(r *rig) error { return second(r.retire(r.envelope.Digest(), wire.DigestOf(nil))) },
		"restore": func(r *rig) error { return second(r.restore(r.envelope.Digest(), wire.DigestOf(nil))) },
	}
	const data = "data/extensions/"
	for _, place := range []string{
		"config", "data", "data/extensions", data + "staging", data + "retired-bindings",
		data + "staging/" + extension, data + "staging/" + extension + "/1.0.0", data + "staging/" + extension + "/2.0.0-rc.1",
		data + "retired-staging/" + extension, data + "retired-staging/" + extension + "/1.0.0",
		data + "packages/" + extension, data + "packages/" + extension + "/1.0.0",
		data + "retired-bindings/" + extension, "state/extensions/" + extension,
	} {
		t.Run(strings.ReplaceAll(place, "/", " "), func(t *testing.T) {
			r := newRig(t, hometest.Package{})
			path := filepath.Join(r.home, place)
			must(t, os.MkdirAll(filepath.Join(r.home, data), 0o700))
			must(t, os.MkdirAll(path, 0o700))
			must(t, os.Chmod(path, 0o777))
			for _, do := range commands {
				r.refused(fault.ModeUnsafe, func() error { return do(r) })
			}
			must(t, os.RemoveAll(path))
			elsewhere := hometest.Dir(t)
			must(t, os.Mkdir(elsewhere+"/extensions", 0o700)) // "data" leads to it
			must(t, os.Symlink(elsewhere, path))
			for _, do := range commands {
				r.refused(fault.PathUnsafe, func() error { return do(r) })
			}
			if left := lines(t, elsewhere); strings.Count(left, "\n") != 2 {
				t.Errorf("written through the link:\n%s", left)
			}
		})
	}

	r := newRig(t, hometest.Package{})
	must(t, os.MkdirAll(r.home+"/data/extensions/staging/org.example.other", 0o700))
	must(t, os.Chmod(r.home+"/data/extensions/staging/org.example.other", 0o777))
	r.bound()
	r.verifies()
}

// TestLeftoversAreCleared: what a crash left of staging is gone after the next
// command that changes a binding, whatever it is about.
func TestLeftoversAreCleared(t *testing.T) {
	r, got := received(t)
	leave := func() {
		for _, dir := range []string{filepath.Dir(r.unit()), filepath.Dir(filepath.Dir(r.unit())) + "/2.0.0"} {
			must(t, os.MkdirAll(dir+"/.hawser.left/package", 0o700))
		}
	}
	leave()
	_, err := r.retire(got.TransferDigest, got.Digest)
	must(t, err)
	hometest.CheckAtRest(t, r.home)
	leave()
	bound, err := r.host.Bind(context.Background(), hometest.Package{ID: "org.example.other", Adapters: []string{"other"}}.Make(t), trusting("other"))
	must(t, err)
	bound.Told()
	hometest.CheckAtRest(t, r.home)
}
