package hometest

import (
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// DefaultSignals lets the programs that the tests start see the default
// dispositions of the signals that end them, even where the tests themselves are
// run with some ignored (by nohup, or in the background of a script). Only a
// test binary of that name does anything: the programs under test are told apart
// by theirs.
func DefaultSignals() {
	if !strings.HasSuffix(filepath.Base(os.Args[0]), ".test") {
		return
	}
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		if signal.Ignored(sig) {
			// A handler, unlike being ignored, does not outlive execve.
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}
