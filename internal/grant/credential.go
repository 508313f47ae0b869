package grant

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// Credential describes a secret and where it goes; it never holds the value.
// Exactly one of Env, File and Command is its source.
type Credential struct {
	Profile     string      `json:"profile"`
	Name        string      `json:"name"`              // as rules name it: "profile/name"
	Env         string      `json:"env"`               // variable of the supervisor's environment that holds it
	File        string      `json:"file,omitempty"`    // absolute path of a file that holds it, or "~/" and the rest
	Command     Argv        `json:"command,omitempty"` // program that prints it
	Host        egress.Host `json:"host"`              // the only host it is sent to; zero for a registry's endpoints
	Registry    string      `json:"registry"`          // ecosystem whose endpoints it is sent to, "" for Host
	Header      string      `json:"header"`            // name of the header
	Template    string      `json:"template"`          // value of the header, with {secret}
	Basic       bool        `json:"basic,omitempty"`   // {secret} is the base64 text of Username, a colon and the secret
	Username    string      `json:"username,omitempty"`
	QueryKey    string      `json:"query_key"` // instead of a header
	Required    bool        `json:"required"`
	Placeholder string      `json:"placeholder,omitempty"` // variable inside that holds a stand-in, "" for none
}

// SecretName is what records call the secret: its variable, or else the credential.
func (c Credential) SecretName() string {
	if c.Env != "" {
		return c.Env
	}
	return c.Name
}

// Source says in words where the secret is read.
func (c Credential) Source() string {
	switch {
	case c.Env != "":
		return "variable " + c.Env
	case c.File != "":
		return "file " + c.File
	}
	return "command " + strings.Join(c.Command.Split()[:1], "")
}

// Slot says in words where the secret goes.
func (c Credential) Slot() string {
	switch {
	case c.QueryKey != "":
		return "in the query key " + c.QueryKey
	case c.Basic:
		return "in the header " + c.Header + " as basic password of " + c.Username
	}
	return "in the header " + c.Header + " as " + c.Template
}

// Argv is a command with its arguments, comparable: joined by NUL bytes, which no
// argument can have.
type Argv string

// NewArgv joins arguments, none of which may have a NUL byte.
func NewArgv(args ...string) Argv { return Argv(strings.Join(args, "\x00")) }

// Split returns the arguments, the program first; nil for none.
func (a Argv) Split() []string {
	if a == "" {
		return nil
	}
	return strings.Split(string(a), "\x00")
}

// MarshalJSON writes the list of arguments.
func (a Argv) MarshalJSON() ([]byte, error) { return json.Marshal(a.Split()) }

// Credentials returns the descriptors of secrets.
func (g Grant) Credentials() []Credential { return slices.Clone(g.spec.Credentials) }

// SecretVars returns the names of the variables that hold secrets of this grant, sorted.
func (g Grant) SecretVars() []string {
	var names []string
	for _, c := range g.spec.Credentials {
		if c.Env != "" {
			names = append(names, c.Env)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// checkPlaceholders refuses a placeholder that would be of use on a connection that
// nobody reads along: swapped it could not be there, and so it would reach the host.
func (g Grant) checkPlaceholders() error {
	for _, c := range g.spec.Credentials {
		if c.Placeholder == "" {
			continue
		}
		for _, host := range append(g.CredentialHosts(c.Name), c.Host) {
			if rule := g.policy.Unopened(host); rule != nil {
				return fmt.Errorf("credential %s puts a placeholder into %s, but rule %s does not open connections to %s: leave out one of the two",
					c.Name, c.Placeholder, rule.ID, host)
			}
		}
	}
	return nil
}

// CredentialHosts returns the hosts of the rules that send a credential.
func (g Grant) CredentialHosts(name string) []egress.Host {
	var hosts []egress.Host
	for i := range g.spec.Rules {
		host, exact := g.spec.Rules[i].Host.Exact()
		if exact && g.spec.Rules[i].Credential == name && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}
