package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"hawser/internal/home"
	"hawser/lifecycle"
	"hawser/tests/faulttest"
	"hawser/tests/hometest"
)

func init() { faulttest.OneThread() }

func TestMain(m *testing.M) {
	behaviours.Run()
	hometest.DefaultSignals()
	// A program under the race detector lingers for a second by default.
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	testscript.Main(m, map[string]func(){"fm-extension": main})
}

var behaviours = hometest.Behaviours{}

// program is a run of this command in a home, in a process of its own.
func program(home string, args ...string) *exec.Cmd {
	cmd := exec.Command("fm-extension", args...)
	cmd.Env = append(os.Environ(), "FM_HOME="+home)
	return cmd
}

// hostOf does what the commands do, in this process.
func hostOf(path string) *lifecycle.Host {
	return &lifecycle.Host{Home: &home.Home{Path: path, State: path + "/state"}}
}
