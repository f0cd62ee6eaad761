package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
		"naive-plugin":             naive,
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

// naive edits whatever it is told to, and what it is not told it takes for the
// working directory.
func naive() {
	input := bufio.NewReader(os.Stdin)
	read := func() map[string]any {
		line, _ := input.ReadString('\n')
		var frame map[string]any
		if json.Unmarshal([]byte(line), &frame) != nil {
			os.Exit(1)
		}
		return frame
	}
	head := fmt.Sprintf(`{"version":"v1","id":%q,"type":`, read()["id"])
	fmt.Println(head + `"initialized","capabilities":["workspace_edit"]}`)
	workspace, _ := read()["workspace"].(string)
	file, err := os.OpenFile(filepath.Join(workspace, "README"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		os.Exit(1)
	}
	fmt.Fprintln(file, "edited")
	fmt.Println(head + `"result"}`)
}

// noCR reads as a plugin does that takes CR LF for a line end.
type noCR struct{ source io.Reader }

func (r noCR) Read(p []byte) (int, error) {
	n, err := r.source.Read(p)
	return copy(p, bytes.ReplaceAll(p[:n], []byte("\r"), nil)), err
}
