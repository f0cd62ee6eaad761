package procevent

import (
	"fmt"
	"strings"
	"time"

	"hawser/internal/dirfd"
	"hawser/internal/home"
)

// Pauses between the restarts of a source whose polls keep failing (commands:
// start): doubled each time, at most five minutes.
const (
	firstPause   = 5 * time.Second
	longestPause = 5 * time.Minute
)

// failuresName is where a source's failures in a row are counted, in the state
// root. The file is a hint: without it, or with another content, there is no
// pause.
func failuresName(source string) string { return home.TempPrefix + "failures-" + source }

// noteFailure counts one more failure and sets when reconcile may restart the
// source.
func noteFailure(state *dirfd.Dir, source string) {
	n, _ := failures(state, source)
	n++
	pause := longestPause
	if n < 8 {
		pause = min(longestPause, firstPause<<(n-1))
	}
	temp := failuresTemp + source
	_ = state.Remove(temp)
	text := fmt.Sprintf("%d %d\n", n, time.Now().Add(pause).Unix())
	_ = home.WriteVisible(state, temp, state, failuresName(source), []byte(text))
}

// forgetFailures ends the pauses: the source was polled well, or is another one.
func forgetFailures(state *dirfd.Dir, source string) { _ = state.Remove(failuresName(source)) }

// failures returns how often in a row the source failed, and until when
// reconcile waits.
func failures(state *dirfd.Dir, source string) (n int, until time.Time) {
	data, _, err := readFile(state, failuresName(source), 64)
	if err != nil {
		return 0, time.Time{}
	}
	var seconds int64
	if _, err := fmt.Sscanf(strings.TrimSpace(string(data)), "%d %d", &n, &seconds); err != nil || n < 0 || n > 1<<20 {
		return 0, time.Time{}
	}
	until = time.Unix(seconds, 0)
	if time.Until(until) > longestPause {
		return 0, time.Time{} // the clock was set back
	}
	return n, until
}
