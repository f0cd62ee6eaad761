package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"hawser/tests/hometest"
)

// TestFullDisk binds, retires and restores in a home whose file system is full
// at each point in turn, for good: one file or block more than before at each
// try. A refusal says so, and is done over as soon as there is room.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root with the right to mount")
	}
	pkg := hometest.Package{}.Make(t)
	for name, option := range map[string]string{"inodes": "nr_inodes=%d", "blocks": "nr_blocks=%d"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := hometest.New(t)
			if err := hometest.Mount(home, "mode=700,"+plenty); err != nil {
				t.Skipf("needs root with the right to mount: %v", err)
			}
			t.Cleanup(func() { _ = hometest.Unmount(home) })
			for _, change := range []struct {
				name string
				args func(digest string) []string
			}{
				{"bind", func(string) []string { return bindArgs(pkg) }},
				{"retire", func(digest string) []string {
					return []string{"retire-binding", extension, "--if-binding-digest", digest}
				}},
				{"restore", func(digest string) []string {
					return []string{"restore-binding", extension, "--binding-digest", digest}
				}},
			} {
				t.Run(change.name, func(t *testing.T) {
					fill(t, home, pkg, option, change.args)
				})
			}
		})
	}
}

// plenty is room for all: limits can be changed, but not made of none.
const plenty = "nr_inodes=10000,nr_blocks=10000"

// fill runs one command with ever more room, until it succeeds at once.
func fill(t *testing.T, home, pkg, option string, args func(digest string) []string) {
	refused := 0
	for room := 2; room < 200; room++ {
		check(t, hometest.Remount(home, plenty))
		emptied(t, home)
		digest := ""
		if a := args(""); a[0] != "bind" {
			digest = bind(t, home, pkg)
			if a[0] == "restore-binding" {
				_, err := program(home, "retire-binding", extension, "--if-binding-digest", digest).Output()
				check(t, err)
			}
		}
		if hometest.Remount(home, fmt.Sprintf(option, room)) != nil {
			continue // the home itself takes more
		}
		stdout, stderr, code := (&stage{home: home}).run(t, args(digest)...)
		if code == 0 {
			hometest.CheckAtRest(t, home)
			if refused == 0 {
				t.Errorf("%d was room enough at once", room)
			}
			return
		}
		if !strings.HasPrefix(stderr, "error[io]: ") || !strings.HasSuffix(stderr, "no space left on device\n") || stdout != "" {
			t.Fatalf("%d: exit %d, %q: %s", room, code, stdout, stderr)
		}
		refused++
		check(t, hometest.Remount(home, plenty))
		if out, err := program(home, args(digest)...).Output(); err != nil {
			t.Fatalf("%d: with room again: %v %s", room, err, out)
		}
		hometest.CheckAtRest(t, home)
	}
	t.Fatal("there is never enough room")
}

// emptied removes everything from a home.
func emptied(t *testing.T, home string) {
	t.Helper()
	entries, err := os.ReadDir(home)
	check(t, err)
	for _, e := range entries {
		check(t, hometest.Remove(home+"/"+e.Name()))
	}
}
