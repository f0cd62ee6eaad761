package transfer

import (
	"fmt"
	"strings"
	"testing"
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
