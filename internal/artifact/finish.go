package artifact

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fractalboxdev/sbx/internal/event"
)

// Finish closes the records, folds denials.jsonl, writes the receipt and takes
// the run out of the list of active ones. The receipt appears whole or not at
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
	receipt.Result.Denials = r.fold.Total()
	err := errors.Join(
		r.broken,
		r.out.close(),
		r.requests.Close(),
		r.denials.Close(),
		writeDenials(r.root, r.fold.Denials()),
		removeTree(r.state, filepath.Join(scratchDir, r.id)),
	)
	if failed := writeReceipt(r.root, receipt); failed != nil {
		return fmt.Errorf("finishing run %s: %w", r.id, errors.Join(err, failed))
	}
	err = errors.Join(err, r.state.Remove(filepath.Join(activeDir, r.id)), r.lock.Close())
	if err != nil {
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
	if r.root != nil {
		r.root.Close()
	}
	r.state.Close()
}

func writeReceipt(root *os.Root, receipt event.Receipt) error {
	text, err := json.MarshalIndent(receipt, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the receipt: %w", err)
	}
	return replace(root, ReceiptFile, append(text, '\n'))
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
