package artifact

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// A replay is frames: one byte for the stream, four for the length in little-endian
// order, and that many bytes, without secrets. A frame of stream 0 says that the bound
// was reached and the rest is not there.
const (
	frameHead = 5
	maxFrame  = 1 << 20
)

// replayLog writes a replay while the command runs.
type replayLog struct {
	mu      sync.Mutex
	file    *os.File
	room    int64 // bytes until the bound
	streams map[int]io.WriteCloser
}

func (r *Run) openReplay() (*replayLog, error) {
	file, err := create(r.root, ReplayFile)
	if err != nil {
		return nil, err
	}
	l := &replayLog{file: file, room: r.opt.MaxOutput, streams: map[int]io.WriteCloser{}}
	for fd := 1; fd <= 2; fd++ {
		l.streams[fd] = r.opt.Redact.Writer(framer{l, byte(fd)})
	}
	return l, nil
}

// stream returns the writer of one stream; each is masked by itself.
func (l *replayLog) stream(fd int) io.Writer { return lockedWriter{l, l.streams[fd]} }

type lockedWriter struct {
	log *replayLog
	to  io.Writer
}

// Write masks p and appends it.
func (w lockedWriter) Write(p []byte) (int, error) {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	return w.to.Write(p)
}

type framer struct {
	log *replayLog
	fd  byte
}

// Write appends frames; the caller holds the lock.
func (f framer) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		piece := rest[:min(len(rest), maxFrame)]
		rest = rest[len(piece):]
		if err := f.log.append(f.fd, piece); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// append writes one frame with one write. At the bound there is the rest that has room, and
// one last frame.
func (l *replayLog) append(fd byte, p []byte) error {
	switch {
	case l.room < 0:
		return nil
	case l.room < int64(len(p)):
		kept := p[:l.room]
		l.room = -1
		if len(kept) > 0 {
			if err := l.write(fd, kept); err != nil {
				return err
			}
		}
		return l.write(0, nil)
	}
	l.room -= int64(len(p))
	return l.write(fd, p)
}

func (l *replayLog) write(fd byte, p []byte) error {
	frame := append(make([]byte, 0, frameHead+len(p)), fd)
	frame = binary.LittleEndian.AppendUint32(frame, uint32(len(p))) //nolint:gosec // at most maxFrame
	if _, err := l.file.Write(append(frame, p...)); err != nil {
		return fmt.Errorf("writing %s: %w", ReplayFile, err)
	}
	return nil
}

func (l *replayLog) close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := errors.Join(l.streams[1].Close(), l.streams[2].Close(), l.file.Close())
	l.file = nil
	return err
}

// ErrCut says that a replay ends before the output did: it was over the bound.
var ErrCut = errors.New("the rest of the output was not kept")

// Replay reads what a run wrote, also while it still does.
type Replay struct {
	file *os.File
	head [frameHead]byte
	buf  []byte
	at   int64
}

// OpenReplay opens the replay of a run of a state directory.
func OpenReplay(stateDir, id string) (*Replay, error) {
	if !ValidID(id) {
		return nil, fmt.Errorf("opening the output of run %q: not a run id", id)
	}
	state, err := openState(stateDir, false)
	if err != nil {
		return nil, fmt.Errorf("opening the output of run %s: %w", id, err)
	}
	defer state.Close()
	file, err := state.Open(filepath.Join(runsDir, id, ReplayFile))
	if err != nil {
		return nil, fmt.Errorf("opening the output of run %s: %w", id, err)
	}
	return &Replay{file: file}, nil
}

// Next returns the next piece and its stream; the bytes are good until the next call.
// io.EOF says that there is none, or none yet; ErrCut that there will be none.
func (r *Replay) Next() (fd int, piece []byte, err error) {
	if _, err := r.file.ReadAt(r.head[:], r.at); err != nil {
		return 0, nil, err
	}
	size := binary.LittleEndian.Uint32(r.head[1:])
	switch {
	case r.head[0] == 0:
		return 0, nil, ErrCut
	case r.head[0] > 2 || size > maxFrame:
		return 0, nil, fmt.Errorf("reading %s: it is damaged at byte %d", ReplayFile, r.at)
	}
	if cap(r.buf) < int(size) {
		r.buf = make([]byte, size)
	}
	r.buf = r.buf[:size]
	if _, err := r.file.ReadAt(r.buf, r.at+frameHead); err != nil {
		return 0, nil, err
	}
	r.at += frameHead + int64(size)
	return int(r.head[0]), r.buf, nil
}

// Close ends the reading.
func (r *Replay) Close() error { return r.file.Close() }
