package profile

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/grant"
)

func (d *credentialDoc) build(name string) (grant.Credential, error) {
	c := grant.Credential{
		Name: name, Env: d.Env, File: d.File, Command: grant.NewArgv(d.Command...), Header: d.Header, Template: d.Template,
		Basic: d.Basic, Username: d.Username, QueryKey: d.QueryKey, Required: d.Required, Placeholder: d.Placeholder,
	}
	if c.Basic {
		c.Header, c.Template = "Authorization", "Basic {secret}"
	}
	for _, check := range []func() error{d.checkSource, d.checkSlot, d.checkPlaceholder} {
		if err := check(); err != nil {
			return c, err
		}
	}
	if ecosystem, ok := ecosystemOf(d.Host); ok {
		c.Registry = ecosystem
		return c, nil
	}
	host, err := egress.ParseHost(d.Host)
	c.Host = host
	return c, err
}

// checkSource demands exactly one place that the secret is read from.
func (d *credentialDoc) checkSource() error {
	switch {
	case (d.Env != "" || d.File == "" && len(d.Command) == 0) && !envName.MatchString(d.Env):
		return fmt.Errorf("env %q is not the name of a variable; env, file or command is wanted", d.Env)
	case d.Env != "" && d.File != "", d.Env != "" && len(d.Command) > 0, d.File != "" && len(d.Command) > 0:
		return errors.New("one of env, file and command is wanted, not several")
	case d.File != "" && !isPlainPath(strings.TrimPrefix(d.File, "~")):
		return fmt.Errorf("file %q is neither an absolute path without . and .. nor one that begins with ~/", d.File)
	case len(d.Command) > 0 && !isPlainPath(d.Command[0]):
		return fmt.Errorf("command %q does not begin with the absolute path of a program", d.Command)
	case slices.ContainsFunc(d.Command, func(arg string) bool { return strings.ContainsRune(arg, 0) }):
		return errors.New("command has a NUL byte")
	}
	return nil
}

func isPlainPath(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && p != "/" && !strings.ContainsRune(p, 0)
}

// checkSlot demands exactly one place in the request that the secret goes to.
func (d *credentialDoc) checkSlot() error {
	inHeader := headerName.MatchString(d.Header) && strings.Count(d.Template, "{secret}") == 1 && !strings.ContainsFunc(d.Template, isControl)
	given := d.Header != "" || d.Template != ""
	switch {
	case d.Username != "" && !d.Basic:
		return errors.New("username belongs to basic = true")
	case d.Basic && (given || d.QueryKey != ""), d.QueryKey != "" && given:
		return errors.New("either a header, basic or query_key is wanted")
	case strings.ContainsFunc(d.Username, isControl) || strings.Contains(d.Username, ":"):
		return errors.New("username has a colon or a control character")
	case d.QueryKey != "" && !queryKeyName.MatchString(d.QueryKey):
		return fmt.Errorf("query_key %q may only have letters, digits, hyphens, underscores and dots", d.QueryKey)
	case d.QueryKey == "" && !d.Basic && !inHeader:
		return errors.New("a header and a template with one {secret}, or query_key, is wanted")
	case framingHeader(d.Header):
		return fmt.Errorf("header %s is part of how the message is framed or routed", d.Header)
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

var queryKeyName = lazily(`^[A-Za-z0-9_.-]+$`)

// framingHeader names the fields that a secret in them would change the message by.
func framingHeader(name string) bool {
	return slices.Contains([]string{
		"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect", "keep-alive",
		"proxy-connection", "content-encoding", "content-type", "range", "accept-encoding",
	}, strings.ToLower(name))
}

func (d *credentialDoc) checkPlaceholder() error {
	if d.Placeholder != "" && !envName.MatchString(d.Placeholder) {
		return fmt.Errorf("placeholder %q is not the name of a variable", d.Placeholder)
	}
	return nil
}

// checkSecretRule refuses what a rule with a credential cannot have: responses
// that cannot be searched for the secret, and a second identity of the command's.
func checkSecretRule(r egress.Rule) error {
	switch {
	case r.WebSocket:
		return errors.New("websocket and credential exclude each other: frames cannot be searched for the secret")
	case r.Cookies:
		return errors.New("cookies and credential exclude each other: the command's cookies could name another account")
	}
	return nil
}
