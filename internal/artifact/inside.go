package artifact

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// inside says which process everything inside a sandbox ends with. The kernel lets it
// go only after all of its pid namespace (pid_namespaces(7)).
type inside struct {
	Supervisor
	Init        int    `json:"init"`
	InitStarted uint64 `json:"init_started"` // as PIDStarted
}

// Begun notes the sandbox's first process, before the command starts: what the command
// leaves is only looked at when that has ended, also by a run that finds this one dead.
func (r *Run) Begun(pid int) error {
	started, err := startOf(pid)
	if err != nil {
		return fmt.Errorf("noting the first process of run %s: %w", r.id, err)
	}
	text, err := json.Marshal(struct {
		Init        int    `json:"init"`
		InitStarted uint64 `json:"init_started"`
	}{pid, started})
	if err == nil {
		_, err = r.lock.Write(append([]byte("\n"), text...))
	}
	if err != nil {
		return fmt.Errorf("noting the first process of run %s: %w", r.id, err)
	}
	return nil
}

// endLimit is how long what is inside may take to end after its supervisor was killed.
const endLimit = 10 * time.Second

// awaitEnd waits until nobody is left inside. A process that cannot be seen from here
// is not waited for: it was on another machine, or in a container that is its own.
func (i inside) awaitEnd() error {
	if i.Init <= 0 || (Living{Supervisor: i.Supervisor}).SameProcesses() != nil {
		return nil
	}
	fd, err := unix.PidfdOpen(i.Init, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watching its first process: %w", err)
	}
	defer unix.Close(fd)
	started, err := startOf(i.Init)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || err == nil && started != i.InitStarted {
		return nil // its pid is another's by now
	}
	if err != nil {
		return fmt.Errorf("looking at its first process: %w", err)
	}
	return awaitExit(fd)
}

func awaitExit(pidfd int) error {
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	for until := time.Now().Add(endLimit); ; {
		n, err := unix.Poll(poll, int(max(0, time.Until(until).Milliseconds())))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("watching its first process: %w", err)
		case n == 0:
			return fmt.Errorf("its sbx was killed, and what ran inside has not ended within %s: a later run looks again", endLimit)
		default:
			return nil
		}
	}
}
