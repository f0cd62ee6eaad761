package process

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// String is the recorded form: "darwin-starttime=<microseconds since 1970>".
func (id Identity) String() string {
	if !id.Known() {
		return id.foreign
	}
	return "darwin-starttime=" + strconv.FormatUint(id.Start, 10)
}

// ParseIdentity reads the recorded form and keeps a text in any other.
func ParseIdentity(text string) Identity {
	value, ok := labelled(text, "darwin-starttime")
	start, isNumber := decimal(value)
	if !ok || !isNumber {
		return Identity{foreign: text}
	}
	return Identity{Start: start}
}

// Self returns the identity of this process.
func Self() (Identity, error) { return Of(os.Getpid()) }

// Of returns the identity of the process that runs under pid now, ESRCH when
// none does.
func Of(pid int) (Identity, error) {
	s, err := readStat(pid)
	if err != nil {
		return Identity{}, err
	}
	if s.zombie {
		return Identity{}, unix.ESRCH
	}
	return Identity{Start: s.start}, nil
}

func identityOfChild(pid int) (Identity, error) {
	s, err := readStat(pid)
	return Identity{Start: s.start}, err
}

// stat is what we read of the kernel's kinfo_proc.
type stat struct {
	pid, group int
	zombie     bool
	start      uint64
}

func statOf(info *unix.KinfoProc) stat {
	const zombie = 5 // SZOMB of sys/proc.h
	began := info.Proc.P_starttime
	return stat{
		pid:    int(info.Proc.P_pid),
		group:  int(info.Eproc.Pgid),
		zombie: info.Proc.P_stat == zombie,
		start:  uint64(began.Sec)*1_000_000 + uint64(began.Usec),
	}
}

func readStat(pid int) (stat, error) {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil || int(info.Proc.P_pid) != pid {
		return stat{}, unix.ESRCH // the answer for a pid that is not in use is empty
	}
	return statOf(info), nil
}

// members returns the processes of one exact process group that are no zombies.
func members(group int) ([]stat, error) {
	infos, err := unix.SysctlKinfoProcSlice("kern.proc.pgrp", group)
	if err != nil {
		return nil, err
	}
	var running []stat
	for i := range infos {
		if s := statOf(&infos[i]); !s.zombie {
			running = append(running, s)
		}
	}
	return running, nil
}

func onlyZombies(group int) bool {
	running, err := members(group)
	return err == nil && len(running) == 0
}
