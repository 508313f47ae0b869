package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/grant"
)

// askTimeout bounds asking a client for its default.
const askTimeout = 30 * time.Second

// endpoint reads a registry's URL. Userinfo is dropped; a query or fragment, and
// hosts and paths with more than one meaning, are errors. Errors do not repeat
// the URL, which may hold a password.
func endpoint(ecosystem, role string, s setting) (grant.Endpoint, error) {
	fail := func(why string) (grant.Endpoint, error) {
		return grant.Endpoint{}, fmt.Errorf("reading the endpoint in %s: %w", s.source, errors.New(why))
	}
	if strings.Contains(s.value, "$") {
		return fail("variables in it are not filled in; write the URL out, or name it in operator configuration")
	}
	u, err := url.Parse(s.value)
	if err != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.Opaque != "" {
		return fail("it is not a plain URL")
	}
	req, err := egress.ParseURL(s.value)
	if err != nil {
		return fail("it is not an http or https URL with an exact host")
	}
	if req.Path.Odd() != "" {
		return fail("the path of the URL is refused: " + req.Path.Odd())
	}
	e := egress.Endpoint{Protocol: req.Protocol, Host: req.Host, Port: req.Port, BasePath: strings.TrimRight(req.Path.Raw(), "/")}
	return grant.Endpoint{Ecosystem: ecosystem, Role: role, Endpoint: e, URL: urlOf(e), Source: s.source}, nil
}

// urlOf writes an endpoint without trailing slash.
func urlOf(e egress.Endpoint) string {
	text := e.Protocol.String() + "://" + e.Host.InURL()
	if e.Port != e.Protocol.DefaultPort() {
		text += fmt.Sprintf(":%d", e.Port)
	}
	return text + e.BasePath
}

// builder collects the endpoints of one ecosystem, each once.
type builder struct {
	ecosystem string
	answer    answer
	operator  []string // roles that operator configuration fills: nothing else adds to them
	err       error    // the first one; later calls do nothing
}

func (b *builder) add(role string, s setting) {
	if b.err != nil || slices.Contains(b.operator, role) {
		return
	}
	e, err := endpoint(b.ecosystem, role, s)
	if err != nil {
		b.err = err
		return
	}
	same := func(have grant.Endpoint) bool { return have.Endpoint == e.Endpoint && have.Role == e.Role }
	if !slices.ContainsFunc(b.answer.endpoints, same) {
		b.answer.endpoints = append(b.answer.endpoints, e)
	}
}

func (b *builder) setenv(name, value string) {
	b.answer.env = append(b.answer.env, grant.EnvVar{Name: name, Value: value})
}

// done puts the default index first; without one there is no answer.
func (b *builder) done() (*answer, error) {
	slices.SortStableFunc(b.answer.endpoints, func(x, y grant.Endpoint) int {
		return cmp.Compare(min(len(x.Role), 1), min(len(y.Role), 1))
	})
	if b.err == nil && b.first() == "" {
		b.err = ErrUnknown
	}
	return &b.answer, b.err
}

// first returns the URL of the default index.
func (b *builder) first() string {
	for _, e := range b.answer.endpoints {
		if e.Role == "" {
			return e.URL
		}
	}
	return ""
}

// begin adds what operator configuration has. An entry is a URL, or role=URL as in
// "checksums=https://sums.test" and "@scope=https://npm.test". With a default
// index, that is all; otherwise the files tell the roles that are left.
func (r *Resolver) begin(ecosystem string) (b *builder, complete bool) {
	b = &builder{ecosystem: ecosystem}
	var roles []string
	for _, text := range r.opts.Operator[b.ecosystem] {
		role, address := splitEntry(text)
		if role == "" && ecosystem == "python" {
			address, _ = splitIndex(address)
		}
		b.add(role, setting{address, "operator configuration"})
		roles = append(roles, role)
	}
	b.operator = roles
	return b, slices.Contains(roles, "") || b.err != nil
}

// splitEntry reads an operator's entry; the default index has no role.
func splitEntry(text string) (role, address string) {
	role, address, ok := strings.Cut(text, "=")
	if !ok || strings.Contains(role, "/") {
		return "", text
	}
	return role, address
}

// clientVar returns a variable of the client when operator configuration lets those count.
func (r *Resolver) clientVar(names ...string) (setting, bool) {
	if !r.opts.ClientEnvAllowed {
		return setting{}, false
	}
	for _, name := range names {
		if value := r.opts.Env[name]; value != "" {
			return setting{value, "the variable " + name}, true
		}
	}
	return setting{}, false
}

// ask is the last resort: the client's own word about its built-in default.
func (r *Resolver) ask(b *builder, why error) {
	if b.err != nil {
		return
	}
	if r.opts.AskDefault == nil {
		b.err = fmt.Errorf("%w: %w; name them in operator configuration", ErrUnknown, why)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	urls, err := r.opts.AskDefault(ctx, b.ecosystem)
	if err != nil {
		b.err = fmt.Errorf("%w: asking the client for its default: %w; name them in operator configuration", ErrUnknown, err)
		return
	}
	for _, text := range urls {
		b.add("", setting{text, b.ecosystem + "'s own answer"})
	}
}
