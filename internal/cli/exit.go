package cli

import (
	"errors"
	"fmt"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/config"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/profile"
	"github.com/fractalboxdev/sbx/internal/registry"
	"github.com/fractalboxdev/sbx/internal/store"
)

// Exit statuses of commands other than exec (docs/cli.md).
const (
	exitNegative = 1   // the answer is no: explain, doctor
	exitRefused  = 125 // sbx refused or failed
	exitStream   = 255 // what was asked for could not be written
)

// exitError ends the program with a status. Without an error there is nothing
// more to say.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// ExitCode returns the status.
func (e *exitError) ExitCode() int { return e.code }

// usageError is a command line that means nothing, with what to type instead.
type usageError struct{ what, next string }

func (e *usageError) Error() string { return e.what }

// exit is the one place where an error becomes words and a status.
func (e *environment) exit(err error) int {
	if failed := e.out.Err(); err == nil && failed != nil {
		err = &exitError{exitStream, fmt.Errorf("writing the answer: %w", failed)}
	}
	if err == nil {
		return 0
	}
	code := exitRefused
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		code = coded.ExitCode()
	}
	var silent *exitError
	if errors.As(err, &silent) && silent.err == nil {
		return code
	}
	e.say.Error(err, nextStep(err))
	return code
}

// nextStep says what the person can do about an error, "" when nobody knows.
func nextStep(err error) string {
	var usage *usageError
	var refusal *event.Refusal
	var recipe *profile.Refusal
	var file *config.FileError
	var memory *store.Error
	var step *refusedStep
	switch {
	case errors.As(err, &step):
		return step.next
	case errors.As(err, &usage):
		return usage.next
	case errors.As(err, &refusal) && refusal.Next != "":
		return refusal.Next
	case errors.As(err, &recipe):
		return recipeStep(recipe)
	case errors.As(err, &file):
		return "correct the file; \"sbx config show\" then prints what is in force"
	case errors.As(err, &memory):
		return memory.Next()
	case errors.Is(err, artifact.ErrForeign), errors.Is(err, config.ErrUnsafe):
		return "give it to yourself alone, or choose another with XDG_STATE_HOME or XDG_CONFIG_HOME"
	}
	return ""
}

func recipeStep(r *profile.Refusal) string {
	switch r.Code {
	case profile.CodeUnknownProfile:
		return "\"sbx profiles list\" has all names"
	case profile.CodeMissingInput:
		return "add --input " + r.Subject + "=..."
	case profile.CodeUnknownInput, profile.CodeBadInput:
		return "\"sbx profiles show NAME\" has the inputs of a profile"
	case profile.CodeUnknownEndpoint:
		if errors.Is(r, registry.ErrUnknown) {
			return "name it in the operator's configuration, as in: [registries] " + r.Subject + " = [\"https://...\"]"
		}
	case profile.CodeCredentialConflict, profile.CodeBadGrant:
	}
	return ""
}
