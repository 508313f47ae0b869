package profile

import (
	"strconv"

	"github.com/fractalboxdev/sbx/internal/grant"
)

// RefusalKind is the kind of every Refusal of this package.
const RefusalKind = "recipe-rejected"

// EndpointSource says where the clients of an ecosystem really ask. Its error
// stops the run before any policy exists.
type EndpointSource = func(ecosystem string) ([]grant.Endpoint, error)

// Code names why a recipe was rejected.
type Code string

// The codes of refusals.
const (
	CodeUnknownProfile     Code = "unknown-profile"
	CodeUnknownInput       Code = "unknown-input"
	CodeMissingInput       Code = "missing-input"
	CodeBadInput           Code = "bad-input"
	CodeUnknownEndpoint    Code = "unknown-endpoint"
	CodeCredentialConflict Code = "credential-conflict"
	CodeBadGrant           Code = "bad-grant"
)

// Refusal says why no grant could be made. Its kind is RefusalKind.
type Refusal struct {
	Code    Code   `json:"code"`
	Subject string `json:"subject"`           // the profile, input or ecosystem in question
	Detail  string `json:"detail"`            // one sentence for people
	Nearest string `json:"nearest,omitempty"` // the known name that is most like Subject
	Err     error  `json:"-"`                 // the cause, if there is one
}

func (r *Refusal) Error() string {
	text := r.Detail
	if r.Nearest != "" {
		text += " (did you mean " + r.Nearest + "?)"
	}
	return text
}

func (r *Refusal) Unwrap() error { return r.Err }

// quote makes a name of the user's printable.
func quote(s string) string { return strconv.QuoteToASCII(s) }
