// Package ticket has the value without which no sandbox starts.
package ticket

import (
	"errors"
	"fmt"
)

// ErrRejected means that a sandbox was asked for without an admitted ticket of its own run.
var ErrRejected = errors.New("ticket rejected")

// Ticket says that one run was admitted. The zero value admits nothing.
type Ticket struct{ run string }

// Admit issues the ticket of one run. Only the admission story calls it.
func Admit(run string) Ticket { return Ticket{run: run} }

// Check returns an error wrapping ErrRejected unless the ticket was issued for run.
func (t Ticket) Check(run string) error {
	switch {
	case t.run == "":
		return fmt.Errorf("starting run %q without a ticket: %w", run, ErrRejected)
	case t.run != run:
		return fmt.Errorf("starting run %q with the ticket of run %q: %w", run, t.run, ErrRejected)
	}
	return nil
}
