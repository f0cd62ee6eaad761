package hometest

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

//go:embed packages
var packages embed.FS

// Entrypoint is the entrypoint of every package made here.
const Entrypoint = "bin/adapter"

// Package is a package to be written. The zero value is a valid one.
type Package struct {
	Kind     string   // bash, node, python or sh; "" is sh
	ID       string   // "" is org.example.<kind>
	Version  string   // "" is 1.0.0
	Adapters []string // nil is the kind
	Consents []string // required

	// Script, if not "", is the content of the entrypoint instead of the kind's.
	Script string
}

func (p Package) withDefaults() Package {
	if p.Kind == "" {
		p.Kind = "sh"
	}
	if p.ID == "" {
		p.ID = "org.example." + p.Kind
	}
	if p.Version == "" {
		p.Version = "1.0.0"
	}
	if p.Adapters == nil {
		p.Adapters = []string{p.Kind}
	}
	return p
}

// Manifest is the package's manifest.
func (p Package) Manifest() map[string]any {
	p = p.withDefaults()
	return map[string]any{
		"schema":         "firstmate.extension-manifest.v1",
		"id":             p.ID,
		"version":        p.Version,
		"host_protocols": []int{1},
		"entrypoint":     Entrypoint,
		"capabilities": []any{map[string]any{
			"name": "process-event-adapter", "versions": []int{1}, "adapter_names": p.Adapters,
		}},
		"required_consents": append([]string{}, p.Consents...),
	}
}

// Write makes the package in the new directory dir.
func (p Package) Write(dir string) error {
	p = p.withDefaults()
	bin := filepath.Join(dir, filepath.Dir(Entrypoint))
	if err := makePrivate(dir, bin); err != nil {
		return err
	}
	manifest, err := json.MarshalIndent(p.Manifest(), "", "  ")
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, "firstmate-extension.json"), manifest, 0o644); err != nil {
		return err
	}
	if p.Script != "" {
		return writeFile(filepath.Join(dir, Entrypoint), []byte(p.Script), 0o755)
	}
	entries, err := fs.ReadDir(packages, "packages/"+p.Kind)
	if err != nil {
		return fmt.Errorf("no package of kind %s: %w", p.Kind, err)
	}
	for _, e := range entries {
		data, err := fs.ReadFile(packages, "packages/"+p.Kind+"/"+e.Name())
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if e.Name() == filepath.Base(Entrypoint) {
			mode = 0o755
		}
		if err := writeFile(filepath.Join(bin, e.Name()), data, mode); err != nil {
			return err
		}
	}
	return nil
}

// Make is Write in a new directory, whose path it returns.
func (p Package) Make(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(Dir(t), "package")
	if err := p.Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// makePrivate and writeFile give exact modes, whatever the umask.
func makePrivate(dirs ...string) error {
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(path string, data []byte, mode fs.FileMode) error {
	if err := os.WriteFile(path, data, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}
