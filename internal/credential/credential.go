// Package credential reads secrets from where their descriptors say: a variable
// of the supervisor's environment, a file or a command. It runs before anything
// hostile does and takes nothing from what a sandbox can write.
package credential

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/secret"
)

// Reader knows whose secrets are read.
type Reader struct {
	Env  []string // the caller's environment, KEY=VALUE
	Home string   // what "~/" stands for, and HOME of commands
	// Forbidden are directories that a sandbox can write: no secret and no program
	// below them counts.
	Forbidden []string
	// RootID is the uid that root's files show, 0 but in some user namespaces.
	RootID int
}

// Error says which secret could not be read, and why. It never holds a value.
type Error struct {
	Secret string // name
	Source string
	Err    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("reading the secret %s from the %s: %v", e.Secret, e.Source, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Read returns the secret of a descriptor, the zero Value when it is unset: a
// variable that is missing or empty, a file that does not exist, nothing printed
// by the command. Every failure is an *Error.
func (r Reader) Read(ctx context.Context, c grant.Credential) (secret.Value, error) {
	text, err := r.text(ctx, c)
	if err == nil {
		var v secret.Value
		if v, err = secret.Parse(text); err == nil {
			return v, nil
		}
	}
	return secret.Value{}, &Error{c.SecretName(), c.Source(), err}
}

func (r Reader) text(ctx context.Context, c grant.Credential) (string, error) {
	switch {
	case c.Env != "":
		return r.variable(c.Env), nil
	case c.File != "":
		return r.file(c.File)
	}
	return r.command(ctx, c.Command.Split())
}

// variable returns the last value of a variable, as programs see it.
func (r Reader) variable(name string) string {
	found := ""
	for _, kv := range r.Env {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			found = value
		}
	}
	return found
}

func (r Reader) expand(name string) (string, error) {
	rest, below := strings.CutPrefix(name, "~/")
	switch {
	case !below:
		return name, nil
	case !path.IsAbs(r.Home):
		return "", fmt.Errorf("finding %s: there is no home directory", name)
	}
	return path.Join(r.Home, rest), nil
}
