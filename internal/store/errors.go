package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	sqlite3 "github.com/mattn/go-sqlite3"
)

// What can be wrong with a store. Test for it with errors.Is.
var (
	ErrCorrupt  = errors.New("the store is damaged")
	ErrLocked   = errors.New("the store is in use by another process")
	ErrFull     = errors.New("the disk of the store is full")
	ErrForeign  = errors.New("the store is not safe to use")
	ErrNewer    = errors.New("the store was made by a newer sbx")
	ErrReadOnly = errors.New("the store cannot be written")
	ErrMissing  = errors.New("there is no store")
	ErrBroken   = errors.New("the store cannot be used") // anything else that SQLite says
)

// Error is a fault of the store. Nothing runs on a store that has one.
type Error struct {
	Kind          error  // one of the above
	Path          string // of the file
	Doing, Detail string
	Cause         error // nil when sbx found the fault itself
}

// Error says what failed, on which file, and why.
func (e *Error) Error() string {
	text := fmt.Sprintf("%s: %v (%s)", e.Doing, e.Kind, e.Path)
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap returns kind and cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// Code names the kind, as in "store-damaged".
func (e *Error) Code() string {
	for kind, code := range map[error]string{
		ErrCorrupt: "damaged", ErrLocked: "locked", ErrFull: "full", ErrForeign: "foreign", ErrNewer: "newer", ErrReadOnly: "read-only", ErrMissing: "missing",
	} {
		if errors.Is(e.Kind, kind) {
			return "store-" + code
		}
	}
	return "store-failed"
}

// Next says what the person can do.
func (e *Error) Next() string {
	switch {
	case errors.Is(e.Kind, ErrCorrupt) && filepath.Base(e.Path) != File:
		return "restore it, or move it away, and know that what it remembers is then forgotten"
	case errors.Is(e.Kind, ErrCorrupt):
		return "\"sbx state check\" says what is damaged; move " + e.Path + " and its -wal and -shm files away to begin anew, and know that what was spent, revoked or finished is then forgotten"
	case errors.Is(e.Kind, ErrLocked):
		return "try again; if it stays, find who holds it: fuser " + e.Path
	case errors.Is(e.Kind, ErrFull):
		return "make room on that file system, or set state_dir in the operator configuration to another"
	case errors.Is(e.Kind, ErrForeign):
		return "give it to yourself alone (chown, chmod go=), or choose another with state_dir or XDG_STATE_HOME"
	case errors.Is(e.Kind, ErrNewer):
		return "use the newer sbx, or another state directory (state_dir, XDG_STATE_HOME)"
	case errors.Is(e.Kind, ErrReadOnly):
		return "make it writable for you, or choose another with state_dir or XDG_STATE_HOME"
	case errors.Is(e.Kind, ErrMissing):
		return "the first \"sbx exec\" makes it, as does \"sbx state migrate\""
	}
	return "\"sbx state check\" looks at all of it"
}

// explain turns what SQLite or the system says into an *Error. Errors that are none
// of the store's own, such as a cancelled context, pass.
func (s *Store) explain(doing string, err error) error {
	if own, ok := errors.AsType[*Error](err); ok {
		if own.Path == "" {
			own.Path = s.Path()
		}
		if own.Doing == "" {
			own.Doing = doing
		}
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return &Error{Kind: kindOf(err), Path: s.Path(), Doing: doing, Cause: err}
}

// kindOf sorts result codes (sqlite.org/rescode.html) and errnos.
func kindOf(err error) error {
	errno := syscall.Errno(0)
	if e, ok := errors.AsType[sqlite3.Error](err); ok {
		errno = e.SystemErrno
		switch e.Code {
		case sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
			return ErrCorrupt
		case sqlite3.ErrBusy, sqlite3.ErrLocked, sqlite3.ErrProtocol:
			return ErrLocked
		case sqlite3.ErrFull:
			return ErrFull
		case sqlite3.ErrReadonly, sqlite3.ErrPerm:
			return ErrReadOnly
		}
	}
	errors.As(err, &errno)
	switch {
	case errno == syscall.ENOSPC, errno == syscall.EDQUOT:
		return ErrFull
	case errno == syscall.EROFS, errors.Is(errno, fs.ErrPermission):
		return ErrReadOnly
	}
	return ErrBroken
}
