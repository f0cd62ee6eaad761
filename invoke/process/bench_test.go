package process

import (
	"context"
	"os/exec"
	"testing"
)

// What a start through the barrier costs over a bare one.
func BenchmarkBarrier(b *testing.B) {
	dir := directory(b, "/")
	for b.Loop() {
		g, err := Start(Spec{Path: "/bin/true", Argv: []string{"true"}, Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		if err := g.Release(context.Background()); err != nil {
			b.Fatal(err)
		}
		if r := g.Exchange(context.Background(), nil, bounds); !r.Exit.OK() {
			b.Fatalf("got %+v", r)
		}
		g.Close()
	}
}

func BenchmarkBare(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}
