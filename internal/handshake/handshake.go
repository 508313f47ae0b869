// Package handshake carries named messages and descriptors between the halves of a
// fencing sbx over their socket pair: four bytes of length (little endian), then JSON.
package handshake

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// MaxFrame bounds one message, in bytes: argv and environment at their kernel limit fit.
const MaxFrame = 16 << 20

// maxFiles is the most descriptors that one message carries.
const maxFiles = 32

// ErrClosed means that the other half is gone.
var ErrClosed = errors.New("the other half of sbx ended")

// Message is one named message. Body is JSON of a type that Kind implies.
type Message struct {
	Kind string          `json:"kind"`
	Body json.RawMessage `json:"body,omitempty"`

	Files []*os.File `json:"-"`
}

// Decode unpacks the body into v.
func (m Message) Decode(v any) error {
	if err := json.Unmarshal(m.Body, v); err != nil {
		return fmt.Errorf("decoding message %q: %w", m.Kind, err)
	}
	return nil
}

// Failure is the body of kind "failed": a step that the other half could not do.
type Failure struct {
	Step   string `json:"step"`
	Errno  int    `json:"errno,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Error names the step and the kernel's answer.
func (f *Failure) Error() string {
	switch {
	case f.Detail != "":
		return f.Step + ": " + f.Detail
	case f.Errno != 0:
		return f.Step + ": " + unix.Errno(f.Errno).Error()
	}
	return f.Step
}

// Unwrap returns the errno, so that callers can test for it.
func (f *Failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return unix.Errno(f.Errno)
}

// Conn is one end of the socket pair. Send may be called from several goroutines,
// Receive from one.
type Conn struct {
	file *os.File
	mu   sync.Mutex
}

// New takes over a connected SOCK_STREAM unix socket.
func New(socket *os.File) *Conn { return &Conn{file: socket} }

// Close closes this end; the other half reads ErrClosed, and so does a Receive that
// waits here. Closing it twice is an error.
func (c *Conn) Close() error {
	_ = unix.Shutdown(int(c.file.Fd()), unix.SHUT_RDWR) // wakes whoever waits in a system call
	return c.file.Close()
}

// Send writes one message. body may be nil. The files stay the caller's.
func (c *Conn) Send(kind string, body any, files ...*os.File) error {
	m := Message{Kind: kind}
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encoding message %q: %w", kind, err)
		}
		m.Body = raw
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encoding message %q: %w", kind, err)
	}
	frame := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(raw)), uint32(len(raw))) //nolint:gosec // bounded by MaxFrame on the other side
	if err := c.write(append(frame, raw...), files); err != nil {
		return fmt.Errorf("sending message %q: %w", kind, err)
	}
	return nil
}

// write sends the frame with the descriptors attached to its first byte.
func (c *Conn) write(frame []byte, files []*os.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	fd := int(c.file.Fd())
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		n, err := unix.SendmsgN(fd, frame[:1], unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
		if err != nil {
			return err
		}
		frame = frame[n:]
	}
	for len(frame) > 0 {
		n, err := unix.SendmsgN(fd, frame, nil, nil, unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		frame = frame[n:]
	}
	return nil
}

// Receive waits for one message. It returns ErrClosed when the other half ended,
// and a *Failure as error for a message of kind "failed".
func (c *Conn) Receive() (Message, error) {
	var head [4]byte
	files, err := c.readHead(head[:])
	if err != nil {
		return Message{}, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size > MaxFrame {
		return Message{}, fmt.Errorf("receiving a message of %d bytes: over the limit of %d", size, MaxFrame)
	}
	raw := make([]byte, size)
	if err := c.readFull(raw); err != nil {
		return Message{}, err
	}
	m := Message{Files: files}
	if err := json.Unmarshal(raw, &m); err != nil {
		return Message{}, fmt.Errorf("decoding a message: %w", err)
	}
	if m.Kind == "failed" {
		f := &Failure{}
		if err := m.Decode(f); err != nil {
			return Message{}, err
		}
		return m, f
	}
	return m, nil
}

// Expect receives one message and refuses any other kind; body may be nil.
func (c *Conn) Expect(kind string, body any) ([]*os.File, error) {
	m, err := c.Receive()
	if err != nil {
		return nil, err
	}
	if m.Kind != kind {
		return nil, fmt.Errorf("receiving message %q: got %q", kind, m.Kind)
	}
	if body == nil {
		return m.Files, nil
	}
	return m.Files, m.Decode(body)
}

func (c *Conn) readHead(head []byte) ([]*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(maxFiles*4))
	var n, oobn int
	err := retry(func() (err error) {
		n, oobn, _, _, err = unix.Recvmsg(int(c.file.Fd()), head, oob, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("receiving a message: %w", closed(err))
	}
	if n == 0 {
		return nil, ErrClosed
	}
	files, err := parseFiles(oob[:oobn])
	if err != nil {
		return nil, err
	}
	return files, c.readFull(head[n:])
}

func (c *Conn) readFull(b []byte) error {
	for len(b) > 0 {
		var n int
		err := retry(func() (err error) {
			n, err = unix.Read(int(c.file.Fd()), b)
			return err
		})
		if err != nil {
			return fmt.Errorf("receiving a message: %w", closed(err))
		}
		if n == 0 {
			return fmt.Errorf("receiving a message: %w", io.ErrUnexpectedEOF)
		}
		b = b[n:]
	}
	return nil
}

func parseFiles(oob []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("receiving descriptors: %w", err)
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, fmt.Errorf("receiving descriptors: %w", err)
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func closed(err error) error {
	if errors.Is(err, unix.ECONNRESET) {
		return ErrClosed
	}
	return err
}
