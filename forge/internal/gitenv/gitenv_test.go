package gitenv

import (
	"slices"
	"testing"
)

func TestWithout(t *testing.T) {
	kept := []string{"PATH=/bin", "GIT_AUTHOR_NAME=a", "GIT_DIRECTORY=x", "GIT_CONFIG_COUNT=0"}
	env := slices.Clone(kept)
	for _, name := range elsewhere {
		env = append(env, name+"=", name+"=/elsewhere=1")
	}
	before := slices.Clone(env)
	if got := Without(env); !slices.Equal(got, kept) || !slices.Equal(env, before) {
		t.Errorf("got %q of %q", got, env)
	}
}
