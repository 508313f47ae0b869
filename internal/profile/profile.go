// Package profile turns reviewed TOML text into profiles, and profiles with
// vetted inputs into grants. Pure: text in, values out.
package profile

import (
	"github.com/fractalboxdev/sbx/internal/grant"
)

// EndpointSource says where the clients of an ecosystem really ask. Its error
// stops the run before any policy exists.
type EndpointSource func(ecosystem string) ([]grant.Endpoint, error)

// Code names why a recipe was rejected.
type Code string

// The codes of refusals of kind recipe-rejected.
const (
	CodeUnknownProfile     Code = "unknown-profile"
	CodeUnknownInput       Code = "unknown-input"
	CodeMissingInput       Code = "missing-input"
	CodeBadInput           Code = "bad-input"
	CodeUnknownEndpoint    Code = "unknown-endpoint"
	CodeCredentialConflict Code = "credential-conflict"
	CodeBadGrant           Code = "bad-grant"
)

// Refusal says why no grant could be made. Its kind is recipe-rejected.
type Refusal struct {
	Code    Code   // why
	Subject string // the profile or input in question
	Detail  string // one sentence for people
	Nearest string // the known name that is most like Subject, "" for none
	Err     error  // the cause, if there is one
}

func (r *Refusal) Error() string {
	if r.Nearest != "" {
		return r.Detail + " (did you mean " + r.Nearest + "?)"
	}
	return r.Detail
}

func (r *Refusal) Unwrap() error { return r.Err }
