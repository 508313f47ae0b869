// Package handshake carries named messages and descriptors between the halves of a
// fencing sbx over their socket pair. A frame is four bytes of length (little
// endian), one byte with the length of the name, the name, and the body, whose form
// the name implies. Bodies are bytes: argv and paths need not be text.
package handshake

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// MaxFrame bounds one message, in bytes: argv and environment at their kernel limit fit.
const MaxFrame = 16 << 20

// maxFiles is the most descriptors that one message carries.
const maxFiles = 32

// Failed is the name of the message that says that a step could not be done.
const Failed = "failed"

// ErrClosed means that the other half is gone.
var ErrClosed = errors.New("the other half of sbx ended")

// Message is one named message.
type Message struct {
	Kind  string
	Body  []byte
	Files []*os.File
}

// Int reads a body that is one decimal number.
func (m Message) Int() (int, error) {
	n, err := strconv.Atoi(string(m.Body))
	if err != nil {
		return 0, fmt.Errorf("decoding message %q: %w", m.Kind, err)
	}
	return n, nil
}

// Int is the body that Message.Int reads.
func Int(n int) []byte { return strconv.AppendInt(nil, int64(n), 10) }

// Failure is a step that the other half could not do.
type Failure struct {
	Step   string
	Errno  unix.Errno // 0 when it was not the kernel that said no
	Detail string
}

// Error names the step and the kernel's answer.
func (f *Failure) Error() string {
	switch {
	case f.Detail != "":
		return f.Step + ": " + f.Detail
	case f.Errno != 0:
		return f.Step + ": " + f.Errno.Error()
	}
	return f.Step
}

// Unwrap returns the errno, so that callers can test for it.
func (f *Failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return f.Errno
}

// Encode is the body of a message named Failed: step, errno and detail, separated
// by NUL. The constructor writes the same.
func (f *Failure) Encode() []byte {
	return fmt.Appendf(nil, "%s\x00%d\x00%s", f.Step, int(f.Errno), f.Detail)
}

func decodeFailure(body []byte) error {
	step, rest, _ := strings.Cut(string(body), "\x00")
	number, detail, _ := strings.Cut(rest, "\x00")
	errno, err := strconv.Atoi(number)
	if err != nil {
		return fmt.Errorf("decoding a failure of %q: %w", step, err)
	}
	return &Failure{Step: step, Errno: unix.Errno(errno), Detail: detail}
}

// Conn is one end of the socket pair. Send may be called from several goroutines,
// Receive from one at a time. Waiting costs no thread.
type Conn struct {
	socket *net.UnixConn
	mu     sync.Mutex
}

// New takes over a connected SOCK_STREAM unix socket.
func New(socket *os.File) (*Conn, error) {
	defer socket.Close()
	c, err := net.FileConn(socket)
	if err != nil {
		return nil, fmt.Errorf("taking over the socket between the halves: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("taking over the socket between the halves: it is a %T", c), c.Close())
	}
	return &Conn{socket: u}, nil
}

// Close closes this end; the other half reads ErrClosed, and a Receive that waits
// here returns.
func (c *Conn) Close() error { return c.socket.Close() }

// sendLimit is how long one message may wait for the other half to read.
const sendLimit = 10 * time.Second

// LimitReceive sets until when Receive waits; the zero time means for ever. It also
// ends one that waits already, with os.ErrDeadlineExceeded.
func (c *Conn) LimitReceive(until time.Time) error { return c.socket.SetReadDeadline(until) }

// Send writes one message. The files stay the caller's, in blocking mode.
func (c *Conn) Send(kind string, body []byte, files ...*os.File) error {
	size := 1 + len(kind) + len(body)
	if len(kind) > 255 || size > MaxFrame {
		return fmt.Errorf("sending message %q: its %d bytes are over the limit of %d", kind, size, MaxFrame)
	}
	frame := make([]byte, 0, 4+size)
	frame = binary.LittleEndian.AppendUint32(frame, uint32(size))
	frame = append(append(append(frame, byte(len(kind))), kind...), body...) //nolint:gosec // bounded above
	if err := c.write(frame, files); err != nil {
		return fmt.Errorf("sending message %q: %w", kind, err)
	}
	return nil
}

// write sends the frame with the descriptors attached to its first byte.
func (c *Conn) write(frame []byte, files []*os.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// The other half may be stopped, and its end full.
	if err := c.socket.SetWriteDeadline(time.Now().Add(sendLimit)); err != nil {
		return err
	}
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		n, _, err := c.socket.WriteMsgUnix(frame[:1], unix.UnixRights(fds...), nil)
		if err != nil {
			return err
		}
		frame = frame[n:]
	}
	_, err := c.socket.Write(frame)
	return err
}

// Receive waits for one message. It returns ErrClosed when the other half ended,
// and a *Failure as error for a message named Failed.
func (c *Conn) Receive() (Message, error) {
	var head [4]byte
	files, err := c.readHead(head[:])
	if err != nil {
		return Message{}, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size > MaxFrame || size == 0 {
		return Message{}, fmt.Errorf("receiving a message of %d bytes: the limits are 1 and %d", size, MaxFrame)
	}
	frame := make([]byte, size)
	if err := c.readFull(frame); err != nil {
		return Message{}, err
	}
	name := int(frame[0])
	if 1+name > len(frame) {
		return Message{}, errors.New("receiving a message: its name is longer than itself")
	}
	m := Message{Kind: string(frame[1 : 1+name]), Body: frame[1+name:], Files: files}
	if m.Kind == Failed {
		return m, decodeFailure(m.Body)
	}
	return m, nil
}

// Expect receives one message and refuses one of any other name.
func (c *Conn) Expect(kind string) (Message, error) {
	m, err := c.Receive()
	if err == nil && m.Kind != kind {
		err = fmt.Errorf("receiving message %q: got %q", kind, m.Kind)
	}
	return m, err
}

func (c *Conn) readHead(head []byte) ([]*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(maxFiles*4))
	n, oobn, _, _, err := c.socket.ReadMsgUnix(head, oob)
	if n <= 0 && (err == nil || errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed)) {
		return nil, ErrClosed
	}
	if err != nil {
		return nil, fmt.Errorf("receiving a message: %w", err)
	}
	files, err := parseFiles(oob[:oobn])
	if err != nil {
		return nil, err
	}
	return files, c.readFull(head[n:])
}

func (c *Conn) readFull(b []byte) error {
	if _, err := io.ReadFull(c.socket, b); err != nil {
		return fmt.Errorf("receiving a message: %w", err)
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
