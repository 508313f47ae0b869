package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// EventKind is what the init reported.
type EventKind byte

// The init's reports, in the order of a run.
const (
	EventPty    EventKind = 'F' // the private pty's master
	EventProved EventKind = 'P' // both probes came back from the floor
	EventAsks   EventKind = 'L' // connects and listens are asked through the descriptor (package ask)
	EventNoUnix EventKind = 'U' // they cannot be: the command has no unix sockets
	EventFailed EventKind = 'E' // a step failed; "exec" means that the command could not be started
	EventExited EventKind = 'X' // the command ended and everything else was killed
)

// Event is one report of the init.
type Event struct {
	Kind   EventKind
	File   *os.File
	Step   string
	Errno  unix.Errno
	Status unix.WaitStatus
}

// maxReport bounds the text of a failure, in bytes.
const maxReport = 200

// SendPlan gives the init its plan; it then proves the floor and waits for Go. Unless
// unanswered is 0, nobody can answer what the kernel would ask about the command.
func (c *Container) SendPlan(s Spec, filter []byte, unanswered unix.Errno) error {
	plan, err := encodePlan(s, filter, unanswered)
	if err != nil {
		return err
	}
	return c.write(plan, "sending the init its plan")
}

// Go lets the init start the command. Nothing hostile runs before.
func (c *Container) Go() error { return c.write([]byte{'G'}, "letting the command start") }

// Signal delivers a signal to the command.
func (c *Container) Signal(s unix.Signal) error {
	return c.write([]byte{byte(s)}, "delivering "+unix.SignalName(s)+" to the command") //nolint:gosec // signal numbers are small
}

func (c *Container) write(b []byte, step string) error {
	if _, err := c.control.Write(b); err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	return nil
}

// Next waits for the init's next report. It returns io.EOF when the init is gone.
func (c *Container) Next() (Event, error) {
	var tag [1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, err := c.receive(tag[:], oob)
	if err != nil {
		return Event{}, fmt.Errorf("reading the init's report: %w", err)
	}
	if n == 0 {
		return Event{}, io.EOF
	}
	e := Event{Kind: EventKind(tag[0])}
	switch e.Kind {
	case EventPty, EventAsks:
		e.File, err = passedFile(oob[:oobn])
	case EventExited:
		status, readErr := c.readNumber()
		e.Status, err = unix.WaitStatus(status), readErr
	case EventNoUnix:
		reason, readErr := c.readNumber()
		e.Errno, err = unix.Errno(reason), readErr
	case EventFailed:
		e.Step, e.Errno, err = c.readFailure()
	case EventProved:
	default:
		err = fmt.Errorf("unknown report %q", tag[0])
	}
	return e, err
}

func (c *Container) receive(b, oob []byte) (n, oobn int, err error) {
	n, oobn, _, _, err = c.control.ReadMsgUnix(b, oob)
	if errors.Is(err, unix.ECONNRESET) || errors.Is(err, io.EOF) {
		return 0, 0, nil
	}
	return n, oobn, err
}

// readNumber reads the command's status, or an errno.
func (c *Container) readNumber() (uint32, error) {
	var b [4]byte
	if _, err := io.ReadFull(c.control, b[:]); err != nil {
		return 0, fmt.Errorf("reading a number of the init's: %w", err)
	}
	return binary.NativeEndian.Uint32(b[:]), nil
}

// readFailure reads "step:errno\n".
func (c *Container) readFailure() (string, unix.Errno, error) {
	var text []byte
	var b [1]byte
	for len(text) < maxReport {
		if _, err := io.ReadFull(c.control, b[:]); err != nil {
			return "", 0, fmt.Errorf("reading the init's failure: %w", err)
		}
		if b[0] == '\n' {
			break
		}
		text = append(text, b[0])
	}
	step, number, _ := strings.Cut(string(text), ":")
	errno, err := strconv.Atoi(number)
	if err != nil {
		return "", 0, fmt.Errorf("reading the init's failure %q: %w", text, err)
	}
	return step, unix.Errno(errno), nil
}

func passedFile(oob []byte) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("receiving a descriptor of the init's: %d messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("receiving a descriptor of the init's: %d descriptors: %w", len(fds), err)
	}
	return os.NewFile(uintptr(fds[0]), "init's"), nil
}
