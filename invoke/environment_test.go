package invoke

import (
	"path/filepath"
	"strings"
	"testing"

	"hawser/internal/fault"
)

func FuzzParseSearchPath(f *testing.F) {
	f.Add([]byte("/opt/node/bin\n\n/home/me/bin\n"))
	f.Add([]byte("relative\n"))
	f.Add([]byte("/a:/b"))
	f.Add([]byte("/a/../b\r\n"))
	f.Add([]byte("/\xff\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dirs, err := parseSearchPath("/home/config/extensions.path", data)
		if err != nil {
			if !fault.Is(err, fault.PathUnsafe) || strings.ContainsAny(err.Error(), "\n\r\x1b") {
				t.Errorf("%q", err)
			}
			return
		}
		for _, dir := range dirs {
			if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || strings.ContainsAny(dir, ":\n\x00") {
				t.Errorf("accepted %q", dir)
			}
		}
	})
}
