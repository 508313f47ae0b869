package host

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// ErrReplaced is a binary that runs and no longer lies where it was started from.
var ErrReplaced = errors.New("the binary was deleted or replaced after this sbx started; restart it")

// Binary is where the running binary lay when the process looked.
type Binary struct{ path string }

// RunningBinary looks where the running binary lies. The kernel follows a file that is
// moved away, so a process that lives long has to look when it starts.
func RunningBinary() Binary {
	path, _ := os.Readlink("/proc/self/exe") // none is never found again
	return Binary{strings.TrimSuffix(path, " (deleted)")}
}

// Check demands that the file there is still the one that runs: what is known of this one
// says nothing of another, which the next caller would run.
func (b Binary) Check() error {
	running, err := os.Stat("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("looking at the running binary: %w", err)
	}
	if found, err := os.Stat(b.path); err != nil || !os.SameFile(running, found) {
		return fmt.Errorf("%s: %w", b.path, ErrReplaced)
	}
	return nil
}
