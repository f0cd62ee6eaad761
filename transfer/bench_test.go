package transfer

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hawser/lifecycle"
	"hawser/tests/hometest"
)

// atTheLimits is a package of 128 entries and 512 KiB.
func atTheLimits() files {
	f := sample()
	size := 0
	for _, content := range f {
		size += len(content)
	}
	n := MaxEntries - len(f)
	for i := range n {
		share := (MaxBytes - size) / (n - i)
		f[fmt.Sprintf("lib/file-%03d", i)] = strings.Repeat(string(rune('a'+i%26)), share)
		size += share
	}
	return f
}

func BenchmarkPack(b *testing.B) {
	root := temp(b)
	atTheLimits().write(b, root)
	b.SetBytes(MaxBytes)
	b.ReportAllocs()
	for b.Loop() {
		s, done := scan(b, root)
		_, err := Pack(s)
		must(b, err)
		done()
	}
}

func BenchmarkDecode(b *testing.B) {
	data := atTheLimits().draft().encode(b)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		_, err := Decode(data)
		must(b, err)
	}
}

// BenchmarkBind and BenchmarkPackAndReceive are the same package at the limits of
// a transfer, bound from where it is and bound by way of an envelope.
func BenchmarkBind(b *testing.B) {
	benchmarkBound(b, func(h *lifecycle.Host, pkg string) {
		bound, err := h.Bind(context.Background(), pkg, trusting("sh"))
		must(b, err)
		bound.Told()
	})
}

func BenchmarkPackAndReceive(b *testing.B) {
	benchmarkBound(b, func(h *lifecycle.Host, pkg string) {
		data, err := PackDirectory(h, pkg)
		must(b, err)
		e, err := Read(bytes.NewReader(data))
		must(b, err)
		received, err := ReceiveBind(context.Background(), h, e, trusting("sh"))
		must(b, err)
		received.Told()
	})
}

func benchmarkBound(b *testing.B, do func(h *lifecycle.Host, pkg string)) {
	pkg := hometest.Package{}.Make(b)
	size := MaxBytes
	for _, name := range []string{"bin/adapter", "firstmate-extension.json"} {
		info, err := os.Stat(filepath.Join(pkg, name))
		must(b, err)
		size -= int(info.Size())
	}
	const n = MaxEntries - 4
	must(b, os.Mkdir(pkg+"/lib", 0o755))
	for i := range n {
		share := size / (n - i)
		must(b, os.WriteFile(fmt.Sprintf("%s/lib/file-%03d", pkg, i), bytes.Repeat([]byte{byte(i)}, share), 0o644))
		size -= share
	}
	for b.Loop() {
		b.StopTimer()
		h := hostOf(hometest.New(b))
		b.StartTimer()
		do(h, pkg)
	}
}
