package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/stdio"
)

// logsEvery is how often a run that is followed is looked at.
const logsEvery = 100 * time.Millisecond

func newRunsLogsCommand(e *environment) *cobra.Command {
	var named runNamed
	var follow, raw bool
	cmd := &cobra.Command{
		Use: "logs [RUN]", Short: "Print what a run's command wrote",
		Long: "Print what a run's command wrote, stdout and stderr as they came. On a terminal it is\n" +
			"filtered as when the command ran.",
		Args: atMostOneRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := e.history()
			if err != nil {
				return err
			}
			id, err := named.resolve(cmd.Context(), h, args)
			if err != nil {
				return err
			}
			return e.printLog(cmd.Context(), h, id, follow, raw)
		},
	}
	named.flags(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the run ends")
	cmd.Flags().BoolVar(&raw, "raw-terminal", false, "do not filter what reaches the terminal")
	return cmd
}

func (e *environment) printLog(ctx context.Context, h *history, id string, follow, raw bool) error {
	path := filepath.Join(h.dir(id), artifact.OutputFile)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0) //nolint:forbidigo // needs the flags; nothing is created
	if err != nil {
		return fmt.Errorf("reading the output of run %s: %w", id, err)
	}
	defer f.Close()
	screen := stdio.NewScreen(e.stdout, raw)
	defer screen.Close()
	for {
		ended := !follow
		if follow {
			// Looked at before the rest is read: what comes after is not missed.
			err := artifact.CheckLiving(h.state, id)
			if err != nil && !errors.Is(err, artifact.ErrEnded) {
				return err
			}
			ended = err != nil
		}
		if _, err := io.Copy(screen, f); err != nil {
			return &exitError{exitStream, fmt.Errorf("printing the output of run %s: %w", id, err)}
		}
		if ended {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(logsEvery):
		}
	}
}
