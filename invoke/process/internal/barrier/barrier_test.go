package barrier

import (
	"syscall"
	"testing"
)

func TestFailure(t *testing.T) {
	for _, want := range []Failure{{StageExec, syscall.ENOENT}, {StageChdir, syscall.EACCES}, {StageFork, 0x1ff}} {
		if got := Decode(want.Encode()); got != want {
			t.Errorf("%v became %v", want, got)
		}
	}
}

func TestIsSocket(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(pair[1])
	if !isSocket(pair[0]) {
		t.Error("a socket is not seen as one")
	}
	syscall.Close(pair[0])
	if isSocket(pair[0]) {
		t.Error("a closed descriptor is seen as a socket")
	}
}
