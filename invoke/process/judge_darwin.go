package process

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Judge says whether the process recorded as pid and identity still runs. It
// never signals.
func Judge(pid int, identity string) Verdict {
	now, err := readStat(pid)
	switch id := ParseIdentity(identity); {
	case err != nil:
		return Verdict{Extinct, fmt.Sprintf("there is no process %d", pid)}
	case now.zombie:
		return Verdict{Extinct, fmt.Sprintf("process %d is dead and only waits to be reaped", pid)}
	case !id.Known():
		return Verdict{Uncertain, fmt.Sprintf("process %d exists, and its identity was recorded in a form that is unknown here", pid)}
	case now.start != id.Start:
		return Verdict{Extinct, fmt.Sprintf("process %d is another one than recorded", pid)}
	}
	return Verdict{Live, fmt.Sprintf("process %d is running", pid)}
}

// JudgeGroup says whether the process group recorded as its leader's pid and
// identity still runs. Only the leader itself proves it here: the environment of
// other processes cannot be read, so the token proves nothing.
func JudgeGroup(group int, identity, _ string) Verdict {
	if group > 1 && (errors.Is(unix.Kill(-group, 0), unix.ESRCH) || onlyZombies(group)) {
		return Verdict{Extinct, fmt.Sprintf("process group %d is empty", group)}
	}
	switch leader := Judge(group, identity); {
	case group > 1 && leader.State == Live:
		return Verdict{Live, fmt.Sprintf("process group %d is running", group)}
	case leader.State == Extinct && exists(group):
		return leader
	}
	return Verdict{Uncertain, fmt.Sprintf("process group %d exists, and nothing proves that it belongs to the recorded invocation", group)}
}

// StopGroup stops a recorded group that a dead host left behind, if JudgeGroup
// proves it, and says what is then left of it.
func StopGroup(group int, identity, token string) Verdict {
	verdict := JudgeGroup(group, identity, token)
	for _, step := range []struct {
		signal unix.Signal
		span   time.Duration
	}{{unix.SIGTERM, TermToKill}, {unix.SIGKILL, KillToGivingUp}} {
		if verdict.State != Live {
			return verdict
		}
		_ = unix.Kill(-group, step.signal)
		for end := time.Now().Add(step.span); verdict.State == Live && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond)
			verdict = JudgeGroup(group, identity, token)
		}
	}
	return verdict
}

// exists reports that the pid is in use by a process that is no zombie.
func exists(pid int) bool {
	s, err := readStat(pid)
	return err == nil && !s.zombie
}
