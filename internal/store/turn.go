package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// turnFile is locked by whoever writes. SQLite alone would let writers of different
// processes ask again and again after pauses that grow: with two hundred of them some
// never get to write within their patience, and most of the time nobody does. The kernel
// queues them (flock(2)) and wakes exactly the next.
const turnFile = "store.turn"

// takeTurn waits until no other process writes; give ends the turn, as does the end of
// this process.
func (s *Store) takeTurn(ctx context.Context) (give func(), err error) {
	fd, err := unix.Open(filepath.Join(s.dir, turnFile), unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", turnFile, err)
	}
	give = func() { _ = unix.Close(fd) } // nothing was written
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return give, nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
		give()
		return nil, fmt.Errorf("locking %s: %w", turnFile, err)
	}
	return s.awaitTurn(ctx, fd, give)
}

func (s *Store) awaitTurn(ctx context.Context, fd int, give func()) (func(), error) {
	mine := make(chan error, 1)
	go func() { mine <- lockWaiting(fd) }()
	limit := time.NewTimer(s.wait)
	defer limit.Stop()
	var err error
	select {
	case err = <-mine:
		if err == nil {
			return give, nil
		}
		give()
		return nil, fmt.Errorf("locking %s: %w", turnFile, err)
	case <-ctx.Done():
		err = ctx.Err()
	case <-limit.C:
		err = &Error{Kind: ErrLocked, Detail: fmt.Sprintf("others have been writing for %s", s.wait)}
	}
	go func() { // a lock that is being waited for cannot be called off
		defer give()
		<-mine //nolint:errcheck // taken or not, it is given back
	}()
	return nil, err
}

func lockWaiting(fd int) error {
	for {
		if err := unix.Flock(fd, unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
