package fence

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/event"
)

// ErrKillLate is a run that was asked to end and did not in time.
var ErrKillLate = errors.New("the run did not end in time")

// Kill asks a running sbx to end its run, as by SIGTERM and the grace, and waits until
// that has taken everything back. With force sbx itself is ended with SIGKILL: the
// sandbox and its way out die with it, and what it left is swept here, for which Kill
// returns what the sweep did. Only the very supervisor of the run can be hit: it is
// held by descriptor before its lock and its time of start are looked at again.
func Kill(ctx context.Context, stateDir string, run artifact.Living, force bool) ([]event.Swept, error) {
	p, err := openSupervisor(stateDir, run)
	if err != nil {
		return nil, err
	}
	defer p.close()
	signals := []unix.Signal{signalStop, unix.SIGCONT} // one that is stopped would not hear it
	if force {
		signals = []unix.Signal{unix.SIGKILL}
	}
	for _, s := range signals {
		if err := unix.PidfdSendSignal(p.fd, s, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return nil, fmt.Errorf("asking run %s to end: %w", run.Run, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, run.Grace+runnerLimit+teardownLimit)
	defer cancel()
	if err := p.await(ctx); err != nil {
		return nil, fmt.Errorf("waiting for run %s: %w", run.Run, ErrKillLate)
	}
	if !force {
		return nil, nil
	}
	return artifact.Sweep(stateDir, lookAfter)
}

func openSupervisor(stateDir string, run artifact.Living) (*process, error) {
	if err := run.SameProcesses(); err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(run.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("looking at run %s: %w", run.Run, artifact.ErrEnded)
	}
	if err != nil {
		return nil, fmt.Errorf("watching the supervisor of run %s: %w", run.Run, err)
	}
	p := &process{fd: fd}
	if err := artifact.CheckSupervisor(stateDir, run); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}
