package proxy

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/secret"
)

// Credential is a secret with the one slot of a request that it goes into.
type Credential struct {
	Secret   string       // what records call it
	Value    secret.Value // zero: unset
	Required bool
	Hosts    []egress.Host // of the rules that send it

	Header   string // with Template, in which {secret} stands for the value
	Template string
	Basic    bool // {secret} is the base64 text of Username, a colon and the value
	Username string
	QueryKey string // instead of a header

	// Placeholder is what programs inside hold in place of the value, "" for
	// nothing. Letters and digits only, so that no URL writes it in another way.
	Placeholder string
}

// vault has the credentials of a run. It does not change.
type vault struct {
	slots  map[string]*slot      // by the name that rules have
	hosts  map[egress.Host]*slot // a host has at most one: the grant saw to that
	placed *secret.Finder        // all placeholders
}

// slot is a Credential with what is looked for because of it.
type slot struct {
	Credential
	value    *secret.Finder // in responses
	injected atomic.Int64
}

func newVault(credentials map[string]Credential) *vault {
	v := &vault{slots: map[string]*slot{}, hosts: map[egress.Host]*slot{}}
	var placeholders []string
	for name, c := range credentials {
		sl := &slot{Credential: c, value: secret.NewFinder(c.Value)}
		v.slots[name] = sl
		for _, host := range c.Hosts {
			v.hosts[host] = sl
		}
		placeholders = append(placeholders, c.Placeholder)
	}
	v.placed = secret.NewTextFinder(placeholders...)
	return v
}

// Injected returns how many requests went out with each credential, by the name
// that rules have. One that is sent again counts again.
func (s *Server) Injected() map[string]int64 {
	counts := make(map[string]int64, len(s.vault.slots))
	for name, sl := range s.vault.slots {
		counts[name] = sl.injected.Load()
	}
	return counts
}

// guarded returns the slot of a credentialed host, nil for other hosts. Whatever
// else could say who asks is removed from requests to it.
func (x *exchange) guarded(h *hop) *slot {
	if h.open {
		return nil
	}
	return x.s.vault.hosts[h.ask.Host]
}

// sending returns the slot whose value goes out with a hop: bound to scheme, host,
// port and path by the rule that allows just this request, and only over TLS.
func (x *exchange) sending(h *hop) *slot {
	if h.open || h.rule == nil || h.rule.Credential == "" || h.ask.Protocol != egress.ProtocolHTTPS {
		return nil
	}
	sl := x.s.vault.slots[h.rule.Credential]
	if sl == nil || sl.Value.IsZero() || x.s.vault.hosts[h.ask.Host] != sl {
		return nil
	}
	return sl
}

// admitCredential refuses a request that needs a secret which is unset, and one
// that carries a placeholder anywhere but in its slot.
func (x *exchange) admitCredential(_ context.Context, h *hop) *refusal {
	if name := h.rule.Credential; name != "" {
		sl := x.s.vault.slots[name]
		switch {
		case sl == nil:
			return x.missing(h, name)
		case sl.Required && sl.Value.IsZero():
			return x.missing(h, sl.Secret)
		}
	}
	if where := x.misplaced(h); where != "" {
		return refuse(egress.CodePlaceholder, egress.Describe(h.ask)+": a placeholder in "+where+", where no secret belongs")
	}
	return nil
}

// missing names the secret in the record only.
func (x *exchange) missing(h *hop, name string) *refusal {
	r := refuse(egress.CodeSecretMissing, fmt.Sprintf("%s: the secret %s is not set, and %s requires it", egress.Describe(h.ask), name, h.rule.ID))
	r.mute = true
	return r
}

// misplaced returns the part of a request that holds a placeholder which is not
// swapped there, "" for none.
func (x *exchange) misplaced(h *hop) string {
	v := x.s.vault
	if v.placed.Empty() {
		return ""
	}
	sl := x.sending(h)
	for i := range x.req.fields {
		f := &x.req.fields[i]
		if !holds(v.placed, f.name) && !holds(v.placed, f.value) {
			continue
		}
		// A followed redirect takes nothing of the kind along; see outFields.
		if h.from == "" && (sl == nil || !sl.takes(f, x.req.fields)) {
			return "the header " + egress.CleanPath(f.name)
		}
	}
	if v.placed.HasText(h.ask.Host.String()) { // HTTP/2 has no field for it
		return "the host's name"
	}
	if holds(v.placed, h.ask.Path.Raw()) {
		return "the path"
	}
	if query := h.ask.Query.Raw(); holds(v.placed, query) && (sl == nil || !sl.takesQuery(query, v.placed)) {
		return "the query"
	}
	return ""
}

// holds looks for a placeholder in text and in what URL decoding makes of it.
func holds(f *secret.Finder, text string) bool {
	for range 3 {
		if f.HasText(text) {
			return true
		}
		decoded := unescape(text)
		if decoded == text {
			return false
		}
		text = decoded
	}
	return f.HasText(text)
}

// unescape decodes what is percent-encoded and leaves the rest alone.
func unescape(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) && unhex(s[i+1]) >= 0 && unhex(s[i+2]) >= 0 {
			b = append(b, byte(unhex(s[i+1])<<4|unhex(s[i+2]))) //nolint:gosec // two hexadecimal digits
			i += 2
			continue
		}
		b = append(b, s[i])
	}
	return string(b)
}

// takes reports whether a field that holds a placeholder is the slot, filled in
// one of the ways in which clients send what they take for a token.
func (sl *slot) takes(f *field, fs fields) bool {
	if sl.Header == "" || sl.Placeholder == "" || !strings.EqualFold(f.name, sl.Header) {
		return false
	}
	if _, n := fs.get(sl.Header); n != 1 {
		return false
	}
	if f.value == sl.Placeholder || f.value == strings.Replace(sl.Template, "{secret}", sl.Placeholder, 1) {
		return true
	}
	scheme, rest, _ := strings.Cut(f.value, " ")
	switch strings.ToLower(scheme) {
	case "bearer", "token":
		return rest == sl.Placeholder
	case "basic":
		return sl.takesBasic(rest)
	}
	return false
}

// takesBasic accepts the placeholder as the password, or as the user without one.
func (sl *slot) takesBasic(encoded string) bool {
	text, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(encoded, "="))
	if err != nil {
		return false
	}
	user, password, _ := strings.Cut(string(text), ":")
	named := strings.Contains(user, sl.Placeholder)
	return password == sl.Placeholder && !named || password == "" && user == sl.Placeholder
}

// takesQuery reports whether the only placeholder in a query is the value of the
// slot's key.
func (sl *slot) takesQuery(query string, placed *secret.Finder) bool {
	if sl.QueryKey == "" || sl.Placeholder == "" {
		return false
	}
	found := 0
	for _, p := range pairs(query) {
		switch {
		case !holds(placed, p.text):
		case sl.filled(p):
			found++
		default:
			return false
		}
	}
	return found == 1
}

// queryPair is one part of a query with the separator in front of it.
type queryPair struct{ before, text string }

// name is the raw key.
func (p queryPair) name() string {
	name, _, _ := strings.Cut(p.text, "=")
	return name
}

// pairs cuts a query where some reader would.
func pairs(query string) []queryPair {
	var out []queryPair
	before := ""
	for {
		end := strings.IndexAny(query, "&;")
		if end < 0 {
			return append(out, queryPair{before, query})
		}
		out = append(out, queryPair{before, query[:end]})
		before, query = query[end:end+1], query[end+1:]
	}
}

// header is the field to send.
func (sl *slot) header() field {
	value := sl.Value.Reveal()
	if sl.Basic {
		value = base64.StdEncoding.EncodeToString([]byte(sl.Username + ":" + value))
	}
	return field{sl.Header, strings.Replace(sl.Template, "{secret}", value, 1)}
}
