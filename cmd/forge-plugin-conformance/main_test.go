package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"hawser/forge"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"forge-plugin-conformance": main,
		"good-plugin":              func() { serve(os.Stdin, os.Stdout) },
		"crlf-plugin":              func() { serve(noCR{os.Stdin}, os.Stdout) },
		"loud-plugin":              func() { fmt.Println("ready"); serve(os.Stdin, os.Stdout) },
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("GORACE", "atexit_sleep_ms=0") // a program of the race detector ends a second late otherwise
			return nil
		},
	})
}

// serve is a plugin for text; log it as any plugin may.
func serve(stdin io.Reader, stdout io.Writer) {
	fmt.Fprintln(os.Stderr, "private: started")
	plugin := forge.Plugin{Capabilities: []forge.Capability{forge.CapText}, In: stdin, Out: stdout}
	err := forge.Serve(plugin, func(_ context.Context, r forge.Request) (forge.Result, error) {
		return forge.Result{Output: strings.ToUpper(r.Input)}, nil
	})
	if err != nil {
		os.Exit(1)
	}
}

// noCR reads as a plugin does that takes CR LF for a line end.
type noCR struct{ source io.Reader }

func (r noCR) Read(p []byte) (int, error) {
	n, err := r.source.Read(p)
	return copy(p, bytes.ReplaceAll(p[:n], []byte("\r"), nil)), err
}
