package cas

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"hawser/tree"
)

// big makes a package of nearly the limits: 4,090 entries, 66 MB.
func big(b *testing.B) *tree.Scanned {
	b.Helper()
	root := temp(b) + "/package"
	content := make([]byte, 16_500)
	rand.NewChaCha8([32]byte{}).Read(content)
	for i := range 4000 {
		dir := fmt.Sprintf("%s/directory-%02d", root, i%90)
		must(b, os.MkdirAll(dir, 0o755))
		content[0], content[1] = byte(i), byte(i>>8)
		must(b, os.WriteFile(fmt.Sprintf("%s/file-%04d.js", dir, i), content, 0o644))
	}
	must(b, os.Chmod(root, 0o755))
	return scan(b, root)
}

// BenchmarkInstall includes durability; compare it with cp -r, sync and
// sha256sum of the same files. It removes nothing in between: ext4 searches long
// for an inode that was not deleted recently.
func BenchmarkInstall(b *testing.B) {
	src, versions := big(b), store(b)
	b.SetBytes(src.Bytes())
	for b.Loop() {
		pkg, err := Install(versions, src)
		must(b, err)
		must(b, pkg.Close())
		b.StopTimer()
		must(b, MoveAside(versions, pkg.Tree().Digest()))
		b.StartTimer()
	}
}

// BenchmarkVerify is a full verification with a warm page cache; compare it with
// sha256sum of the same files.
func BenchmarkVerify(b *testing.B) {
	src, versions := big(b), store(b)
	pkg, err := Install(versions, src)
	must(b, err)
	defer pkg.Close()
	b.SetBytes(src.Bytes())
	b.ReportAllocs()
	for b.Loop() {
		must(b, pkg.Verify())
	}
}
