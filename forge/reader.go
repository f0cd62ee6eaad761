package forge

import (
	"bytes"
	"errors"
	"io"
)

// Reader reads frames strictly from one side of a session. It is for one
// goroutine.
//
// A frame is read into the buffer it is decoded in. The buffer is small until a
// frame needs more, and then as large as the largest frame and its LF: a frame of
// any size costs one allocation and is never moved as it grows.
type Reader struct {
	source     io.Reader
	buffer     []byte
	start, end int // of what was read and not returned yet
	frames     int
	err        error
}

const (
	smallBuffer   = 4 << 10
	largestBuffer = MaxFrameBytes + 1

	// mostEmptyReads in a row say that a source is broken, as for package bufio.
	mostEmptyReads = 100
)

// NewReader returns a Reader of the frames that source holds from now on. It
// reads ahead.
func NewReader(source io.Reader) *Reader { return &Reader{source: source} }

// Next returns the next frame. It fails with [io.EOF] at an end after a whole
// frame, with a *[Violation] that has its frame number, with [io.ErrNoProgress]
// when the source only returns nothing, or with the source's own error; and from
// then on with the same again.
func (r *Reader) Next() (Frame, error) {
	if r.err != nil {
		return Frame{}, r.err
	}
	frame, err := r.next()
	if v, ok := errors.AsType[*Violation](err); ok {
		v.Frame = r.frames + 1
	}
	r.frames++
	r.err = err
	return frame, err
}

func (r *Reader) next() (Frame, error) {
	line, err := r.line()
	switch {
	case err != nil:
		return Frame{}, err
	case len(line) == 0:
		return Frame{}, violation(RuleBlankLine, "the line is empty")
	case line[len(line)-1] == '\r':
		return Frame{}, violation(RuleLineEnd, "the line ends with CR LF")
	}
	return Decode(line)
}

// line returns the bytes up to the next LF, valid until the next call.
func (r *Reader) line() ([]byte, error) {
	searched, empty := r.start, 0
	for {
		if i := bytes.IndexByte(r.buffer[searched:r.end], '\n'); i >= 0 {
			line := r.buffer[r.start : searched+i]
			r.start = searched + i + 1
			return line, nil
		}
		if r.end-r.start > MaxFrameBytes {
			return nil, violation(RuleFrameSize, "more than %d bytes came without an LF", MaxFrameBytes)
		}
		r.makeRoom()
		searched = r.end
		n, err := r.source.Read(r.buffer[r.end:])
		r.end += n
		switch {
		case n > 0: // what came is looked at first; an error comes again
			empty = 0
		case err == io.EOF && r.end > r.start:
			return nil, violation(RuleUnterminated, "the stream ended in the middle of a frame")
		case err != nil:
			return nil, err
		default:
			if empty++; empty == mostEmptyReads {
				return nil, io.ErrNoProgress
			}
		}
	}
}

// makeRoom sees to it that the buffer can take at least one byte more. Before a
// large frame there is little to move: what one read brought in after the frame
// before it.
func (r *Reader) makeRoom() {
	switch {
	case r.start == r.end:
		r.start, r.end = 0, 0
		if r.buffer == nil {
			r.buffer = make([]byte, smallBuffer)
		}
	case r.end < len(r.buffer):
	case r.start > 0:
		r.end = copy(r.buffer, r.buffer[r.start:r.end])
		r.start = 0
	case len(r.buffer) < largestBuffer:
		larger := make([]byte, largestBuffer)
		copy(larger, r.buffer[:r.end])
		r.buffer = larger
	}
}
