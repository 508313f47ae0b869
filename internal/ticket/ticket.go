// Package ticket has the value without which no sandbox starts.
package ticket

import (
	"bytes"
	"crypto/hmac"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrRejected means that a sandbox was asked for without an admitted ticket of its own.
var ErrRejected = errors.New("ticket rejected")

// Why a ticket is rejected.
const (
	CodeMissing  = "no-ticket"
	CodeTampered = "tampered"
	CodeRun      = "other-run"
	CodeSandbox  = "other-sandbox"
	CodePool     = "other-pool"
	CodeExpired  = "expired"
	CodeReturned = "given-back"
	CodeLost     = "lost" // the store does not know it any more
)

// Rejected is an error wrapping ErrRejected.
type Rejected struct{ Code, Message string }

func (r *Rejected) Error() string { return r.Message }

// Unwrap returns ErrRejected.
func (r *Rejected) Unwrap() error { return ErrRejected }

// Claims are what a ticket is for.
type Claims struct {
	Run     string    `json:"run"`
	Sandbox string    `json:"sandbox,omitempty"` // the key of a kept sandbox; "" for one of the run's own
	Class   string    `json:"class"`             // whose pool it came from
	Expires time.Time `json:"expires"`           // no sandbox starts on it from then on
}

// MAC authenticates parts for one purpose, under a key that only the issuer has.
type MAC func(purpose string, parts ...[]byte) []byte

// purpose keeps tickets apart from whatever else is authenticated under the key, and
// begins their text.
const purpose = "sbx-ticket-v1"

// Ticket says that one run was admitted to one pool, for one sandbox. The zero value
// admits nothing, and one that the holder of the key did not issue as it is is rejected.
type Ticket struct {
	claims []byte // as JSON, in the very bytes that were sealed
	seal   []byte
}

// Issue makes a ticket. Only the admission story calls it.
func Issue(c Claims, mac MAC) (Ticket, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return Ticket{}, fmt.Errorf("issuing the ticket of run %s: %w", c.Run, err)
	}
	return Ticket{claims: text, seal: mac(purpose, text)}, nil
}

// Check returns a *Rejected unless the ticket was issued under the key of mac for the
// wanted run, sandbox and class, and has not expired; want's own expiry does not matter.
func (t Ticket) Check(want Claims, now time.Time, mac MAC) error {
	if len(t.claims) == 0 {
		return rejected(CodeMissing, "starting run %q without a ticket", want.Run)
	}
	if !hmac.Equal(t.seal, mac(purpose, t.claims)) {
		return rejected(CodeTampered, "starting run %q with a ticket that this store did not issue", want.Run)
	}
	var c Claims
	if err := json.Unmarshal(t.claims, &c); err != nil {
		return rejected(CodeTampered, "starting run %q with a ticket that cannot be read: %v", want.Run, err)
	}
	switch {
	case want.Run == "" || c.Run != want.Run:
		return rejected(CodeRun, "starting run %q with the ticket of run %q", want.Run, c.Run)
	case c.Sandbox != want.Sandbox:
		return rejected(CodeSandbox, "starting sandbox %q with a ticket for sandbox %q", want.Sandbox, c.Sandbox)
	case want.Class == "" || c.Class != want.Class:
		return rejected(CodePool, "starting run %q in pool %q with a ticket for pool %q", want.Run, want.Class, c.Class)
	case !now.Before(c.Expires):
		return rejected(CodeExpired, "starting run %q with a ticket that expired at %s", want.Run, c.Expires.UTC().Format(time.RFC3339))
	}
	return nil
}

// Reject returns a *Rejected for what only the issuer can know.
func Reject(code, message string) error { return rejected(code, "%s", message) }

func rejected(code, format string, args ...any) error {
	return &Rejected{code, fmt.Sprintf(format, args...)}
}

// MarshalText writes the ticket so that it can be handed to another process.
func (t Ticket) MarshalText() ([]byte, error) {
	if len(t.claims) == 0 {
		return nil, errors.New("writing a ticket: it is none")
	}
	b64 := base64.RawURLEncoding
	return []byte(purpose + "." + b64.EncodeToString(t.claims) + "." + b64.EncodeToString(t.seal)), nil
}

// UnmarshalText reads what MarshalText wrote. Only Check tells whether it is genuine.
func (t *Ticket) UnmarshalText(text []byte) error {
	parts := strings.Split(string(text), ".")
	if len(parts) != 3 || parts[0] != purpose {
		return rejected(CodeTampered, "reading a ticket: it is none")
	}
	b64 := base64.RawURLEncoding.Strict()
	claims, err := b64.DecodeString(parts[1])
	seal, failed := b64.DecodeString(parts[2])
	if err = errors.Join(err, failed); err != nil || len(bytes.TrimSpace(claims)) == 0 {
		return rejected(CodeTampered, "reading a ticket: it is none")
	}
	t.claims, t.seal = claims, seal
	return nil
}
