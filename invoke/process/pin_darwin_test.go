package process

import "testing"

func pinWith(t *testing.T, pidfd bool) {
	if pidfd {
		t.Skip("there is one way here")
	}
}

func blockSignals() {}
