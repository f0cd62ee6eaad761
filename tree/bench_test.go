package tree

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"hawser/internal/dirfd"
)

// big makes a package of nearly the limits: 4,090 entries, 66 MB.
func big(b *testing.B) *dirfd.Dir {
	b.Helper()
	root := filepath.Join(b.TempDir(), "package")
	content := make([]byte, 16_500)
	rand.NewChaCha8([32]byte{}).Read(content)
	for d := range 90 {
		dir := fmt.Sprintf("%s/directory-%02d", root, d)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		for f := range (4090 - 90 + d) / 90 {
			content[0], content[1] = byte(d), byte(f)
			if err := os.WriteFile(fmt.Sprintf("%s/file-%03d.js", dir, f), content, 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	dir, err := dirfd.Open(root)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { dir.Close() })
	return dir
}

func BenchmarkScan(b *testing.B) {
	dir := big(b)
	b.ReportAllocs()
	for b.Loop() {
		s, err := Scan(dir, SourceRules())
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(s.Count()), "entries")
	}
}

func BenchmarkVerify(b *testing.B) {
	dir := big(b)
	b.ReportAllocs()
	for b.Loop() {
		t, err := read(dir, SourceRules())
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(t.Bytes())
	}
}

func BenchmarkHash(b *testing.B) {
	dir := big(b)
	b.ReportAllocs()
	for b.Loop() {
		s, err := Scan(dir, SourceRules())
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.Hash(); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(s.Bytes())
	}
}
