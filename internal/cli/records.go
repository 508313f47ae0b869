package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/report"
)

// Bounds of what is read of a run's directory, in bytes and rows. Whoever made
// it is not trusted: it may have been copied from another machine.
const (
	maxRecordLine = 64 << 10
	maxRecordRows = 1_000_000
)

// runDirectory finds the directory of a run: a path, or the id of a run of this
// machine.
func (e *environment) runDirectory(arg string) (string, error) {
	if artifact.ValidID(arg) {
		state, err := e.configuredState()
		if err != nil {
			return "", err
		}
		if dir := filepath.Join(state, "runs", arg); isDirectory(dir) {
			return dir, nil
		}
	}
	if isDirectory(arg) {
		return arg, nil
	}
	return "", &usageError{fmt.Sprintf("there is no run %q", arg), "name a run's id, or a directory that has its records"}
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// eachLine reads JSON Lines. Lines that are none are counted, not trusted.
func eachLine(path string, do func(line []byte) error) (broken int, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) //nolint:forbidigo // needs the flags; nothing is created
	if err != nil {
		return 0, fmt.Errorf("reading records: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return 0, fmt.Errorf("reading records: %s is not a regular file", path)
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 0, 4096), maxRecordLine)
	for rows := 0; lines.Scan(); rows++ {
		if rows == maxRecordRows {
			return broken, fmt.Errorf("reading records: %s has over %d rows", path, maxRecordRows)
		}
		if err := do(lines.Bytes()); err != nil {
			broken++
		}
	}
	if err := lines.Err(); err != nil {
		return broken, fmt.Errorf("reading records: %s: %w", path, err)
	}
	return broken, nil
}

// requestRow is a line of requests.jsonl of either kind.
type requestRow struct {
	event.Request
	Event string `json:"event"`
}

// readRequests returns the decisions of a run, cleaned as records are.
func readRequests(dir string) (rows []event.Request, broken int, err error) {
	broken, err = eachLine(filepath.Join(dir, "requests.jsonl"), func(line []byte) error {
		var row requestRow
		if err := json.Unmarshal(line, &row); err != nil {
			return err
		}
		if row.Event == "" {
			rows = append(rows, row.Request)
		}
		return nil
	})
	return rows, broken, err
}

// readDenied returns what a run was denied: its denials.jsonl, else the denied
// rows of requests.jsonl.
func readDenied(dir string) (rows []event.Denial, broken int, err error) {
	broken, err = eachLine(filepath.Join(dir, "denials.jsonl"), func(line []byte) error {
		var row event.Denial
		if err := json.Unmarshal(line, &row); err != nil {
			return err
		}
		rows = append(rows, row)
		return nil
	})
	if !errors.Is(err, fs.ErrNotExist) {
		return rows, broken, err
	}
	requests, broken, err := readRequests(dir)
	for _, r := range requests {
		if r.Denied() {
			rows = append(rows, event.Denial{
				Host: r.Host, Method: r.Method, Path: r.Path, Code: r.Code, Rule: r.Rule, Port: r.Port, Protocol: r.Protocol,
				Count: 1, WouldDeny: r.WouldDeny, Source: r.Source, Reason: r.Reason,
			})
		}
	}
	return rows, broken, err
}

// readReceipt returns a run's receipt; found is false when there is none.
func readReceipt(dir string) (r event.Receipt, found bool, err error) {
	text, err := readRegular(filepath.Join(dir, artifact.ReceiptFile), artifact.MaxReceipt)
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err != nil {
		return r, false, err
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return r, false, fmt.Errorf("reading the receipt of %s: %w", dir, err)
	}
	return r, true, nil
}

// oneLine makes a text of a record printable.
func oneLine(s string) string { return report.Text(strings.TrimSpace(s), report.MaxText) }
