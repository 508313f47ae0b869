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
	"os"
	"strconv"
	"strings"
	"sync"

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
// Receive from one at a time.
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

// Send writes one message. The files stay the caller's.
func (c *Conn) Send(kind string, body []byte, files ...*os.File) error {
	size := 1 + len(kind) + len(body)
	if len(kind) > 255 || size > MaxFrame {
		return fmt.Errorf("sending message %q: its %d bytes are over the limit of %d", kind, size, MaxFrame)
	}
	frame := make([]byte, 0, 4+size)
	frame = binary.LittleEndian.AppendUint32(frame, uint32(size)) //nolint:gosec // bounded above
	frame = append(append(append(frame, byte(len(kind))), kind...), body...)
	if err := c.write(frame, files); err != nil {
		return fmt.Errorf("sending message %q: %w", kind, err)
	}
	return nil
}

// write sends the frame with the descriptors attached to its first byte.
func (c *Conn) write(frame []byte, files []*os.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	rights := make([]int, len(files))
	for i, f := range files {
		rights[i] = int(f.Fd())
	}
	for len(frame) > 0 {
		part, oob := frame, []byte(nil)
		if len(rights) > 0 {
			part, oob = frame[:1], unix.UnixRights(rights...)
		}
		n, err := unix.SendmsgN(int(c.file.Fd()), part, oob, nil, unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		frame, rights = frame[n:], nil
	}
	return nil
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
