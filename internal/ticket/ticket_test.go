package ticket

import (
	"errors"
	"testing"
)

func TestVector35_NoSandboxWithoutItsOwnTicket(t *testing.T) {
	if err := (Ticket{}).Check("r1"); !errors.Is(err, ErrRejected) {
		t.Errorf("zero ticket: %v", err)
	}
	if err := Admit("r2").Check("r1"); !errors.Is(err, ErrRejected) {
		t.Errorf("another run's ticket: %v", err)
	}
	if err := (Ticket{}).Check(""); !errors.Is(err, ErrRejected) {
		t.Errorf("zero ticket for an unnamed run: %v", err)
	}
	if err := Admit("r1").Check("r1"); err != nil {
		t.Errorf("its own ticket: %v", err)
	}
}
