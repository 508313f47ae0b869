package fence

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/credential"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/proxy"
	"github.com/fractalboxdev/sbx/internal/sandbox"
	"github.com/fractalboxdev/sbx/internal/secret"
)

// heldSecret is a credential of the grant with its value, which stays in this process.
type heldSecret struct {
	grant.Credential
	value       secret.Value
	placeholder string // what the command sees in its place, "" for nothing
}

// readSecrets reads every secret of the grant, before anything runs. Under legacy
// none is needed.
func (f *fence) readSecrets(ctx context.Context) error {
	home, _ := lookup(f.o.Env, "HOME")
	r := credential.Reader{Env: f.o.Env, Home: home, Forbidden: f.forbidden(), RootID: sandbox.RootUID()}
	var values []secret.Value
	for _, c := range f.derived.Grant.Credentials() {
		h := heldSecret{Credential: c}
		if f.o.Position != proxy.Legacy {
			var err error
			if h.value, err = r.Read(ctx, c); err != nil {
				return badSecret(err)
			}
		}
		if c.Placeholder != "" && !h.value.IsZero() {
			h.placeholder = newPlaceholder()
		}
		f.secrets, values = append(f.secrets, h), append(values, h.value)
	}
	f.redactor = secret.NewRedactor(values...)
	if f.o.OnSecrets != nil {
		f.o.OnSecrets(f.redactor)
	}
	return nil
}

// newPlaceholder is letters and digits only, so that no encoding of URLs changes it.
func newPlaceholder() string { return "sbxplaceholder" + strings.ToLower(rand.Text()) }

func badSecret(err error) error {
	r := &event.Refusal{Kind: event.RefusedRecipe, Code: "bad-credential", Message: err.Error(), Cause: err}
	switch {
	case errors.Is(err, secret.ErrNewline):
		r.Next = "store it without the newline at its end, as printf %s writes it"
	case errors.Is(err, credential.ErrUntrusted):
		r.Next = "keep the secret where only you and root can write, outside of the working directory"
	}
	return r
}

// forbidden are the directories that a sandbox of this caller can write.
func (f *fence) forbidden() []string {
	dirs := []string{f.o.Workdir, sandbox.Resolve(f.o.Workdir)}
	if caches, ok := CacheDirectory(f.o.Env); ok {
		dirs = append(dirs, filepath.Clean(caches), sandbox.Resolve(caches))
	}
	return slices.Compact(dirs)
}

// checkExposed refuses to give the command a secret in another way than by its
// requests: the selected profiles say where it goes, and that is not inside.
func (f *fence) checkExposed() error {
	for _, h := range f.secrets {
		find := secret.NewFinder(h.value)
		where := ""
		for _, kv := range f.spec.Env {
			if name, value, _ := strings.Cut(kv, "="); find.HasText(value) {
				where = "the variable " + name
			}
		}
		if slices.ContainsFunc(f.spec.Argv, find.HasText) {
			where = "its arguments"
		}
		for _, file := range f.derived.Files {
			if find.Has([]byte(file.Content)) {
				where = "the file " + file.Path
			}
		}
		if where != "" {
			return &event.Refusal{
				Kind: event.RefusedRecipe, Code: "credential-exposed",
				Message: fmt.Sprintf("the command would see the secret %s in %s, but the selected profiles send it for the command", h.SecretName(), where),
				Next:    "leave it out: sbx adds it to the requests that the profile names",
			}
		}
	}
	return nil
}

// proxyCredentials are the secrets as the proxy needs them.
func (f *fence) proxyCredentials() map[string]proxy.Credential {
	out := make(map[string]proxy.Credential, len(f.secrets))
	for _, h := range f.secrets {
		out[h.Name] = proxy.Credential{
			Secret: h.SecretName(), Value: h.value, Required: h.Required, Hosts: f.derived.Grant.CredentialHosts(h.Name),
			Header: h.Header, Template: h.Template, Basic: h.Basic, Username: h.Username, QueryKey: h.QueryKey,
			Placeholder: h.placeholder,
		}
	}
	return out
}

// secretsUsed is what the receipt says of the secrets: names and counts.
func (f *fence) secretsUsed() []event.Secret {
	injected := map[string]int64{}
	if f.network != nil {
		injected = f.network.proxy.Injected()
	}
	out := make([]event.Secret, 0, len(f.secrets))
	for _, h := range f.secrets {
		s := event.Secret{
			Name: h.SecretName(), Credential: h.Name, Source: h.Source(), Required: h.Required,
			Set: !h.value.IsZero(), Injected: injected[h.Name],
		}
		for _, host := range f.derived.Grant.CredentialHosts(h.Name) {
			s.Hosts = append(s.Hosts, host.String())
		}
		out = append(out, s)
	}
	return out
}
