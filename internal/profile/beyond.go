package profile

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/grant"
)

// beyond says in words what a permits that b does not, for requests that both
// are about. Nothing is a proof that a permits no more.
func (a atom) beyond(b atom) []string {
	var more []string
	for _, part := range []func(a, b atom) []string{beyondWhen, beyondQuery, beyondBody, beyondSecret, beyondModes, beyondBudget} {
		more = append(more, part(a, b)...)
	}
	return more
}

func when(condition bool, format string, args ...any) []string {
	if !condition {
		return nil
	}
	return []string{fmt.Sprintf(format, args...)}
}

func beyondWhen(a, b atom) []string {
	return when(b.rule.When != "" && a.rule.When != b.rule.When, "without the input %s", b.rule.When)
}

func beyondQuery(a, b atom) []string {
	var more []string
	for _, q := range b.rule.Permission.Query {
		more = append(more, when(!slices.Contains(a.rule.Permission.Query, q), "a query without %s=%s", q.Key, q.Value)...)
	}
	return append(more, when(a.rule.Permission.OddPaths && !b.rule.Permission.OddPaths, "paths with dot and empty segments")...)
}

// beyondBody compares caps and, where b judges bodies, what it demands of them.
func beyondBody(a, b atom) []string {
	x, y := &a.rule.Permission, &b.rule.Permission
	var more []string
	if have, want := x.BodyCap(a.method), y.BodyCap(a.method); have > want {
		more = append(more, fmt.Sprintf("a body of up to %d bytes rather than %d", have, want))
	} else if y.Body.Asserts() && x.MaxBody > y.MaxBody {
		more = append(more, fmt.Sprintf("a decoded body of up to %d bytes rather than %d", x.MaxBody, y.MaxBody))
	}
	more = append(more, when(y.Body.Git != "" && x.Body.Git != y.Body.Git, "bodies that are not git's %s", y.Body.Git)...)
	for _, want := range y.Body.JSON {
		implied := slices.ContainsFunc(x.Body.JSON, func(have egress.JSONAssertion) bool {
			return have.Pointer == want.Pointer && subset(have.OneOf, want.OneOf)
		})
		more = append(more, when(!implied, "bodies in which %s is not %s", want.Pointer, strings.Join(want.OneOf, " or "))...)
	}
	return more
}

func subset(a, b []string) bool {
	return !slices.ContainsFunc(a, func(v string) bool { return !slices.Contains(b, v) })
}

func beyondSecret(a, b atom) []string {
	more := when(b.rule.NoSecret && !a.rule.NoSecret, "credentials of other profiles")
	x, y := a.secret, b.secret
	needed := y.Required && !x.Required
	x.Required, y.Required = false, false
	if x != (grant.Credential{}) && x != y {
		return append(more, "the secret "+describeSecret(x))
	}
	return append(more, when(needed, "without the secret %s", y.SecretName())...)
}

func describeSecret(c grant.Credential) string {
	text := c.SecretName() + " " + c.Slot()
	if c.Env == "" {
		text += " from the " + c.Source()
	}
	return text
}

func beyondModes(a, b atom) []string {
	x, y := a.rule.Permission, b.rule.Permission
	var more []string
	add := func(have, want bool, text string) { more = append(more, when(have && !want, "%s", text)...) }
	add(x.Headers == egress.HeadersPreserve, y.Headers == egress.HeadersPreserve, "all headers (preserve)")
	add(x.Cookies, y.Cookies, "cookies")
	add(x.Redirects == egress.RedirectFollow, y.Redirects == egress.RedirectFollow, "redirects that the proxy follows")
	add(x.Internal, y.Internal, "internal addresses")
	add(x.WebSocket, y.WebSocket, "WebSocket")
	return more
}

// beyondBudget knows that a budget counts for one rule: the same amount in
// another rule is spent a second time.
func beyondBudget(a, b atom) []string {
	x, y := a.rule.Permission.UploadBudget, b.rule.Permission.UploadBudget
	exceeds := func(have, want int64) bool {
		return want > 0 && (have == 0 || have > want || a.rule.ID != b.rule.ID)
	}
	return when(exceeds(x.Bytes, y.Bytes) || exceeds(x.Requests, y.Requests), "another upload budget")
}

// treatment is how requests are treated that several rules let pass: the first
// of them decides.
func (a atom) treatment() string {
	p := a.rule.Permission
	return fmt.Sprint(p.Headers, p.Cookies, p.Redirects, p.Internal, p.WebSocket, p.Tunnel, p.UploadBudget, a.secret)
}

// key identifies an atom by all that it says, but not by its examples and notes.
func (a atom) key() string {
	permission := a.rule.Permission
	permission.ID = a.rule.ID
	text, err := json.Marshal(permission)
	if err != nil {
		return fmt.Sprintf("%#v", a) // cannot be: all of it has been encoded for the digest
	}
	return fmt.Sprint(a.symbol, a.host, a.protocol, a.port, a.method, a.path, a.rule.When, a.secret, string(text))
}

// conflict is two rules for the same request that treat it differently; the first wins.
type conflict struct{ first, second atom }

// conflicts returns them by what both say.
func conflicts(all []atom) map[string]conflict {
	found := map[string]conflict{}
	for i, first := range all {
		for _, second := range all[i+1:] {
			if first.overlaps(second) && first.treatment() != second.treatment() {
				found[first.key()+"\x00"+second.key()] = conflict{first, second}
			}
		}
	}
	return found
}
