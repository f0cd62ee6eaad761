package process

import (
	"bytes"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// stat is what we read of /proc/<pid>/stat (proc_pid_stat(5)).
type stat struct {
	pid, parent, group int
	state              byte
	threads            int
	start              uint64
}

// dead reports that nothing of the process runs. A process whose first thread
// ended before the others shows as a zombie too, but has threads left.
func (s stat) dead() bool {
	switch s.state {
	case 'Z', 'X', 'x':
		return s.threads <= 1
	}
	return false
}

// parseStat reads the one line of a stat file. The second field, the name of
// the program, is the program's choice and may hold spaces, parentheses and
// line ends: fields are counted from the last parenthesis.
func parseStat(text []byte) (stat, bool) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 1 || end < open {
		return stat{}, false
	}
	const third = 3 // the number of the first field after the name
	fields := bytes.Fields(text[end+1:])
	if len(fields) <= 22-third || len(fields[0]) != 1 {
		return stat{}, false
	}
	var s stat
	ok := true
	number := func(text []byte) int {
		n, err := strconv.Atoi(string(text))
		ok = ok && err == nil
		return n
	}
	s.pid = number(bytes.TrimSpace(text[:open]))
	s.state = fields[0][0]
	s.parent = number(fields[4-third])
	s.group = number(fields[5-third])
	s.threads = number(fields[20-third])
	start, err := strconv.ParseUint(string(fields[22-third]), 10, 64)
	s.start = start
	return s, ok && err == nil && s.pid > 0
}

// readStat returns the stat of a process or zombie, ESRCH when there is none.
func readStat(pid int) (stat, error) {
	return readStatAt(unix.AT_FDCWD, "/proc/"+strconv.Itoa(pid)+"/stat")
}

func readStatAt(dir int, path string) (stat, error) {
	fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return stat{}, unix.ESRCH
	}
	if err != nil {
		return stat{}, err
	}
	defer unix.Close(fd)
	var text [1024]byte // 52 numbers and a name of 64 bytes at most
	n, err := unix.Read(fd, text[:])
	if err != nil {
		return stat{}, err
	}
	s, ok := parseStat(text[:n])
	if !ok {
		return stat{}, unix.EPROTO
	}
	return s, nil
}

// everyProcess calls visit for every process and zombie in /proc. The answer is
// not atomic: a process born during the walk may be missing. Of a process that
// /proc hides from this user (mount option hidepid) it tells the group alone,
// which the system call does not hide; that counts as running and unproved.
func everyProcess(visit func(stat)) error {
	proc, err := os.Open("/proc")
	if err != nil {
		return err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		s, err := readStatAt(int(proc.Fd()), name+"/stat")
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			s.pid = pid
			s.group, err = unix.Getpgid(pid)
		}
		if errors.Is(err, unix.ESRCH) {
			continue // it ended during the walk
		}
		if err != nil {
			return err
		}
		visit(s)
	}
	return nil
}

// members returns the processes of one exact process group, those that run and
// those that are zombies. What they are a member of is only a number: the
// caller knows what pins it.
func members(group int) (running, zombies []stat, err error) {
	err = everyProcess(func(s stat) {
		switch {
		case s.group != group:
		case s.dead():
			zombies = append(zombies, s)
		default:
			running = append(running, s)
		}
	})
	return running, zombies, err
}

// onlyZombies reports that a group runs nothing: two walks in a row, which a
// process that forks and exits between would have to slip through twice, found
// no member but zombies.
func onlyZombies(group int) bool {
	for range 2 {
		running, _, err := members(group)
		if err != nil || len(running) > 0 {
			return false
		}
	}
	return true
}
