package main

import (
	"regexp"
	"testing"

	"hawser/tests/faulttest"
	"hawser/tests/hometest"
)

// TestDurableBeforeSaid: a command says what it did only when a loss of power
// could not take it back, and nothing durable ever names what is not.
func TestDurableBeforeSaid(t *testing.T) {
	faulttest.Require(t)
	for _, test := range []struct {
		name    string
		prepare func(t *testing.T, home, pkg string) []string
		order   []string // of its system calls, as strace -y prints them
	}{
		{"bind", toBind, []string{
			`^syncfs\(\d+<[^>]*/packages/org.example.sh/1.0.0/\.hawser\.`, // the package and the directories above it
			`^renameat2\(.*"\.hawser\.[^"]*", .*/packages/org.example.sh/1.0.0>, "[0-9a-f]{64}"`,
			`^fsync\(\d+<[^>]*/packages/org.example.sh/1.0.0>`,
			`^fsync\(\d+<[^>]*/data/extensions/\.hawser\.`, // the binding's content
			`^renameat2\(.*/config/extensions.d>, "org.example.sh.json"`,
			`^fsync\(\d+<[^>]*/config/extensions.d>`,
			`^write\(1<.*"bound: `,
		}},
		{"retire-binding", toRetire, []string{
			`^fsync\(\d+<[^>]*/data/extensions>`,                  // where retired-bindings was made
			`^fsync\(\d+<[^>]*/data/extensions/retired-bindings>`, // and the extension's in it
			`^renameat2\(.*/config/extensions.d>, "org.example.sh.json", .*/retired-bindings/org.example.sh>`,
			`^fsync\(\d+<[^>]*/retired-bindings/org.example.sh>`,
			`^fsync\(\d+<[^>]*/config/extensions.d>`,
			`^write\(1<.*"retired-binding: `,
		}},
		{"restore-binding", toRestore, []string{
			`^renameat2\(.*/retired-bindings/org.example.sh>, .*/config/extensions.d>, "org.example.sh.json"`,
			`^fsync\(\d+<[^>]*/config/extensions.d>`,
			`^fsync\(\d+<[^>]*/retired-bindings/org.example.sh>`,
			`^write\(1<.*"bound: `,
		}},
		{"repair", toRepair, []string{
			`^renameat2\(.*, "[0-9a-f]{64}", .*"\.damaged\.[0-9a-f]{64}\.1"`,
			`^fsync\(\d+<[^>]*/packages/org.example.sh/1.0.0>`,
			`^syncfs\(`,
			`^renameat2\(.*"\.hawser\.[^"]*", .*/packages/org.example.sh/1.0.0>, "[0-9a-f]{64}"`,
			`^fsync\(\d+<[^>]*/packages/org.example.sh/1.0.0>`,
			`^write\(1<.*"bound: `,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			home := hometest.New(t)
			args := test.prepare(t, home, hometest.Package{}.Make(t))
			calls := faulttest.Calls(t, program(home, args...), []string{"write", "fsync", "syncfs", "renameat", "renameat2"},
				func(string, string) bool { return true })
			next := 0
			for _, call := range calls {
				if next < len(test.order) && regexp.MustCompile(test.order[next]).MatchString(call.Text) {
					next++
				}
			}
			if next < len(test.order) {
				t.Errorf("no %s in its place; the calls are:", test.order[next])
				for _, call := range calls {
					t.Log(call.Text)
				}
			}
		})
	}
}
