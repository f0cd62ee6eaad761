package process

// State is what can be said of a recorded process or group. The zero value is
// the safe one: it counts as alive and is never signalled.
type State int

const (
	Uncertain State = iota // it may run; nothing proves whose it is
	Live                   // it runs, and is provably the recorded one
	Extinct                // proved: nothing of it runs
)

func (s State) String() string {
	return [...]string{"uncertain", "live", "extinct"}[s]
}

// Verdict is a State and, for a message, why: one clause that names numbers
// only, such as "process 812 is another one than recorded".
type Verdict struct {
	State  State
	Reason string
}

// TokenVariable is the environment variable that carries an invocation's
// private token, so that members of its group can be proved after their leader
// and their host are gone. A caller that wants this puts it into Spec.Env.
const TokenVariable = "HAWSER_INVOCATION"
