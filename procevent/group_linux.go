package procevent

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"hawser/invoke/process"
)

// endGroup ends what is left of the process group that this process leads: what
// a built-in's command started and did not wait for. This process gets the TERM
// too, and has a handler for it. The group's number cannot come to mean another
// while its leader asks.
func endGroup() {
	group := unix.Getpgrp()
	if group != os.Getpid() {
		return
	}
	_ = unix.Kill(0, unix.SIGTERM)
	if awaitAlone(group, process.TermToKill) {
		return
	}
	for _, pid := range others(group) {
		killMember(pid, group)
	}
	awaitAlone(group, process.KillToGivingUp)
}

// awaitAlone waits until this process is the only member of the group.
func awaitAlone(group int, span time.Duration) bool {
	for end := time.Now().Add(span); ; time.Sleep(5 * time.Millisecond) {
		if len(others(group)) == 0 {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// others lists the members of the group besides this process. Zombies run
// nothing and do not count.
func others(group int) (pids []int) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		if of, err := unix.Getpgid(pid); err == nil && of == group && !isZombie(name) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func isZombie(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	state := stat[bytes.LastIndexByte(stat, ')')+1:]
	return err == nil && bytes.HasPrefix(state, []byte(" Z"))
}

// killMember kills a process by a pidfd that was opened before it was looked at
// once more, so that no other can be hit that got its number.
func killMember(pid, group int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if of, err := unix.Getpgid(pid); err == nil && of == group {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}
