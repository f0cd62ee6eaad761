package procevent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hawser/internal/dirfd"
	"hawser/internal/fault"
	"hawser/internal/home"
	"hawser/internal/wire"
	"hawser/lifecycle/linklock"
)

const (
	queueName = ".wake-queue"
	queueSeq  = ".wake-queue.seq"
	queueLock = ".wake-queue.lock"
	// queueLimit is above what any queue that is read can come to.
	queueLimit = 64 << 20
)

// row is what announces a captured result. Nothing in it is a package's or a
// built-in's output (home: Wake queue).
type row struct {
	adapter string
	home.ResultName
}

func (r row) key() string {
	return "procevent:" + r.Source + ":" + strconv.FormatUint(r.Sequence, 10)
}

func (r row) line(now time.Time, sequence uint64) string {
	return fmt.Sprintf("%d\t%d\tcheck\t%s\tcheck: procevent %s %s %d\n", now.Unix(), sequence, r.key(), r.adapter, r.Source, r.Sequence)
}

// announce appends a row for each result that the queue does not hold yet, and
// returns how many. The queue is shared with other programs, so it is touched
// under their lock only, and rows of others, malformed ones too, stay as they
// are.
//
// The sequence is written before the rows: a crash between skips numbers, and
// never gives one out twice. A crash within the append leaves a line without an
// end; the next append ends it, and announces again what it was to announce.
//
// Errors: lock-unavailable; link-unsafe; io.
func (h *Host) announce(ctx context.Context, state *dirfd.Dir, rows []row) (int, error) {
	if len(rows) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, h.lockTimeout())
	defer cancel()
	lock, err := linklock.Acquire(ctx, state, queueLock, h.Waiting)
	if err != nil {
		return 0, err
	}
	defer lock.Release()
	if err := linklock.Sweep(state, queueLock); err != nil {
		return 0, err
	}
	q, err := openQueue(state)
	if err != nil {
		return 0, err
	}
	defer q.file.Close()
	return q.append(state, rows)
}

// queue is the open queue and what was read of it.
type queue struct {
	file    *os.File
	keys    map[string]bool // of whole rows
	highest uint64          // sequence of any row
	torn    bool            // the last line has no end
}

func openQueue(state *dirfd.Dir) (*queue, error) {
	path := filepath.Join(state.Path(), queueName)
	// Non-blocking: opening a FIFO must not hang.
	fd, err := unix.Openat(state.Fd(), queueName, unix.O_RDWR|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO) {
		return nil, notRegular(path)
	}
	if err != nil {
		return nil, fault.Wrap(fault.IO, err, "cannot open %s", fault.Path(path))
	}
	q := &queue{file: os.NewFile(uintptr(fd), path), keys: map[string]bool{}}
	if info, err := q.file.Stat(); err == nil && info.Size() == 0 && info.Mode().IsRegular() {
		_ = q.file.Chmod(0o600) // perhaps just made, under a strange umask
	}
	if err := q.read(); err != nil {
		q.file.Close()
		return nil, err
	}
	return q, nil
}

func notRegular(path string) error {
	return fault.New(fault.LinkUnsafe, "%s is not a regular file; move it away", fault.Path(path))
}

func (q *queue) read() error {
	info, err := q.file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		return notRegular(q.file.Name())
	}
	var data []byte
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(q.file, queueLimit+1))
	}
	if err == nil && len(data) > queueLimit {
		err = errors.New("it is too long to be read")
	}
	if err != nil {
		return fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(q.file.Name()))
	}
	q.take(data)
	return nil
}

// take reads what the queue holds. A line of another form is somebody else's, or
// the rest of a crash: it announces nothing.
func (q *queue) take(data []byte) {
	for line := range strings.Lines(string(data)) {
		line, q.torn = strings.CutSuffix(line, "\n")
		q.torn = !q.torn
		fields := strings.Split(line, "\t")
		if len(fields) < 5 || q.torn {
			continue
		}
		q.keys[fields[3]] = true
		if n, err := strconv.ParseUint(fields[1], 10, 62); err == nil {
			q.highest = max(q.highest, n)
		}
	}
}

func (q *queue) append(state *dirfd.Dir, rows []row) (int, error) {
	var fresh []row
	for _, r := range rows {
		if !q.keys[r.key()] {
			q.keys[r.key()] = true
			fresh = append(fresh, r)
		}
	}
	if len(fresh) == 0 {
		return 0, nil
	}
	next, err := q.takeSequences(state, uint64(len(fresh)))
	if err != nil {
		return 0, err
	}
	var text strings.Builder
	if q.torn {
		text.WriteByte('\n')
	}
	now := time.Now()
	for i, r := range fresh {
		text.WriteString(r.line(now, next+uint64(i)))
	}
	_, err = q.file.WriteString(text.String())
	if err == nil {
		err = q.file.Sync()
	}
	if err == nil {
		err = state.Sync() // the queue may be new
	}
	if err != nil {
		return 0, fault.Wrap(fault.IO, err, "cannot append to %s", fault.Path(q.file.Name()))
	}
	return len(fresh), nil
}

// takeSequences returns the first of n fresh sequence numbers. A missing or
// malformed counter goes on after the highest row.
func (q *queue) takeSequences(state *dirfd.Dir, n uint64) (uint64, error) {
	path := filepath.Join(state.Path(), queueSeq)
	last := q.highest
	data, _, err := readFile(state, queueSeq, 64)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, dirfd.ErrLink), errors.Is(err, dirfd.ErrNotRegular):
		return 0, notRegular(path)
	case err != nil:
		return 0, fault.Wrap(fault.IO, err, "cannot read %s", fault.Path(path))
	default:
		if value, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 62); err == nil {
			last = value
		}
	}
	temp := home.TempPrefix + "wake-queue-seq"
	_ = state.Remove(temp) // a crash's; nobody else writes it without the lock
	if err := home.WriteVisible(state, temp, state, queueSeq, []byte(strconv.FormatUint(last+n, 10)+"\n")); err != nil {
		return 0, err
	}
	return last + 1, nil
}

// pending lists the captured results in an inbox that are not handled. A result
// whose adapter cannot be read is passed to bad, and the others are still
// announced.
func pending(inbox *dirfd.Dir, bad func(error)) ([]row, error) {
	results, err := home.Results(inbox)
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, r := range results {
		if r.Handled {
			continue
		}
		adapter, err := readAdapter(inbox, r.ResultName)
		if err != nil {
			bad(err)
			continue
		}
		rows = append(rows, row{adapter, r.ResultName})
	}
	return rows, nil
}

// first puts the row of this result, if it has one, before the others (commands:
// start).
func (c *capture) first(rows []row) []row {
	if i := slices.IndexFunc(rows, func(r row) bool { return r.ResultName == c.ResultName }); i > 0 {
		own := rows[i]
		copy(rows[1:], rows[:i])
		rows[0] = own
	}
	return rows
}

// readAdapter reads the .adapter side file of a captured result.
//
// Errors: result-invalid, naming what to do.
func readAdapter(inbox *dirfd.Dir, r home.ResultName) (string, error) {
	path := filepath.Join(inbox.Path(), r.String()+".adapter")
	data, _, err := readFile(inbox, r.String()+".adapter", 64)
	if err == nil {
		if name, ok := strings.CutSuffix(string(data), "\n"); ok && wire.CheckAdapter(name) == "" {
			return name, nil
		}
		err = errors.New("it does not hold an adapter name")
	}
	return "", fault.Wrap(fault.ResultInvalid, err, "captured result %d of %s cannot be announced: %s; read the result, then: fm-procevent handled %[2]s %[1]d", r.Sequence, r.Source, fault.Path(path))
}
