package main

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"hawser/binding"
	"hawser/internal/home"
	"hawser/lifecycle"
	"hawser/tests/faulttest"
	"hawser/tests/hometest"
)

func init() { faulttest.OneThread() }

func TestMain(m *testing.M) {
	hometest.DefaultSignals()
	// A program under the race detector lingers for a second by default.
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	testscript.Main(m, map[string]func(){"fm-procevent": main, "bind": bindMain})
}

// bindMain binds a package in $FM_HOME and prints the binding's digest.
func bindMain() {
	h, err := home.Locate(os.Getenv, os.Args[0])
	var digest string
	if err == nil {
		digest, err = bindIn(h, os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(digest)
}

const (
	extension = "org.example.feed"
	adapter   = "feed"
)

// feed is the package of testdata/adapter.
func feed() (hometest.Package, error) {
	script, err := os.ReadFile("../../procevent/testdata/adapter")
	return hometest.Package{ID: extension, Adapters: []string{adapter}, Script: string(script)}, err
}

func bindIn(h *home.Home, pkg string) (string, error) {
	bound, err := (&lifecycle.Host{Home: h}).Bind(context.Background(), pkg, binding.Options{Adapters: []string{adapter}, TimeoutMS: 60_000, TrustSameUserCode: true})
	if err != nil {
		return "", err
	}
	bound.Told()
	return string(bound.Digest), nil
}
