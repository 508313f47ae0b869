package artifact

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// output is output.log: at most limit bytes of what the command wrote, and a last line
// when there was more. The command itself may go on: its output is passed on whole.
type output struct {
	mu      sync.Mutex
	file    *os.File
	limit   int64 // bytes
	written int64
	full    bool
	masked  io.WriteCloser // ends in append
}

// Write appends p without secrets, or as much of it as the bound allows; the rest is
// dropped.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.masked.Write(p)
}

// appender is what the masked bytes are written to.
type appender struct{ o *output }

// Write appends p; the caller holds the lock.
func (a appender) Write(p []byte) (int, error) { return a.o.append(p) }

func (o *output) append(p []byte) (int, error) {
	if o.file == nil {
		return 0, ErrFinished
	}
	if o.full {
		return len(p), nil
	}
	room := o.limit - o.written
	keep := p[:min(int64(len(p)), room)]
	n, err := o.file.Write(keep)
	o.written += int64(n)
	if err != nil {
		return n, fmt.Errorf("writing %s: %w", OutputFile, err)
	}
	if len(keep) == len(p) {
		return n, nil
	}
	o.full = true
	_, err = fmt.Fprintf(o.file, "\nsbx: the command's output is over %d bytes, the bound of %s; the rest is not kept\n", o.limit, OutputFile)
	if err != nil {
		return n, fmt.Errorf("writing the last line of %s: %w", OutputFile, err)
	}
	return len(p), nil
}

func (o *output) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file == nil {
		return nil
	}
	err := errors.Join(o.masked.Close(), o.file.Close())
	o.file = nil
	return err
}
