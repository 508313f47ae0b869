package artifact

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/secret"
)

// Finish closes the records, folds denials.jsonl, writes the receipt and takes
// the run out of the list of active ones; Remove leaves it alone until Close. The receipt appears whole or not at
// all; when it cannot be written, the next sweep finds the run. Finish fills in
// the receipt's run, directory and number of denials.
func (r *Run) Finish(receipt event.Receipt) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.finished {
		return fmt.Errorf("finishing run %s: %w", r.id, ErrFinished)
	}
	r.finished = true
	receipt.Run, receipt.Directory = r.id, r.dir
	receipt.Result.Denials, receipt.Result.Would = r.fold.Total(), r.fold.WouldDeny()
	err := errors.Join(
		r.broken,
		r.out.close(),
		r.replay.close(),
		r.requests.Close(),
		r.denials.Close(),
		r.foldDenials(),
		removeTree(r.state, filepath.Join(scratchDir, r.id)),
	)
	if failed := writeReceipt(r.root, receipt, r.opt.Redact); failed != nil {
		return fmt.Errorf("finishing run %s: %w", r.id, errors.Join(err, failed))
	}
	// Moved and not removed: ext4 makes the next files slowly while it passes
	// over the inodes that were freed in the last seconds.
	entry := filepath.Join(runsDir, r.id, StartedFile)
	// Its lock is held until Close: the records may yet be copied.
	if err = errors.Join(err, r.state.Rename(filepath.Join(activeDir, r.id), entry)); err != nil {
		return fmt.Errorf("finishing run %s: %w", r.id, err)
	}
	return nil
}

// Close releases the directory's descriptors, after CopyTo where that is
// wanted. Without Finish, the next sweep finds the run.
func (r *Run) Close() {
	for _, f := range []*os.File{r.lock, r.requests.File, r.denials.File} {
		if f != nil {
			f.Close()
		}
	}
	r.out.close()
	_ = r.replay.close()
	if r.root != nil {
		r.root.Close()
	}
	r.state.Close()
}

// foldDenials rewrites denials.jsonl, unless it says the same already.
func (r *Run) foldDenials() error {
	rows := r.fold.Denials()
	for _, row := range rows {
		if row.Count > 1 {
			return writeDenials(r.root, rows)
		}
	}
	return nil
}

func writeReceipt(root *os.Root, receipt event.Receipt, redact *secret.Redactor) error {
	text, err := json.MarshalIndent(receipt, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the receipt: %w", err)
	}
	return replace(root, ReceiptFile, append(redact.JSON(text), '\n'))
}

func writeDenials(root *os.Root, rows []event.Denial) error {
	var lines []byte
	for _, row := range rows {
		line, err := json.Marshal(row)
		if err != nil {
			return fmt.Errorf("encoding a denial: %w", err)
		}
		lines = append(append(lines, line...), '\n')
	}
	return replace(root, DenialsFile, lines)
}

// replace puts text under name, at once for every reader.
func replace(root *os.Root, name string, text []byte) error {
	temporary := name + ".new"
	// A sweep that died may have left one.
	if err := root.RemoveAll(temporary); err != nil {
		return fmt.Errorf("clearing the way for %s: %w", name, err)
	}
	f, err := create(root, temporary)
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(temporary, name)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}
