package proxy

import (
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/secret"
)

// outFields returns the fields of a hop as they leave: filtered by its rule, on a
// credentialed host without whatever else says who asks, and with the secret.
func (x *exchange) outFields(h *hop, socket bool) fields {
	body := h.ask.BodyLength != 0 || h.from == ""
	if h.open {
		return openFields(x.req.fields, h.host, socket)
	}
	out := requestFields(x.req.fields, h.host, h.rule, socket, body)
	if placed := x.s.vault.placed; !placed.Empty() {
		out = slices.DeleteFunc(out, func(f field) bool { return holds(placed, f.value) })
	}
	if sl := x.guarded(h); sl != nil {
		out = slices.DeleteFunc(out, func(f field) bool { return identifies(&f) || strings.EqualFold(f.name, sl.Header) })
	}
	if sl := x.sending(h); sl != nil && sl.Header != "" {
		out = append(out, sl.header())
	}
	return out
}

// openFields returns all fields but those that are between two neighbours.
func openFields(fs fields, host string, socket bool) fields {
	tokens := connectionTokens(fs)
	out := make(fields, 0, len(fs)+1)
	if _, n := fs.get("Host"); n == 0 {
		out = append(out, field{"Host", host})
	}
	for i := range fs {
		switch {
		case strings.EqualFold(fs[i].name, "Host"):
			out = append(out, field{fs[i].name, host})
		case kindOf(fs[i].name) == kindHop, named(tokens, fs[i].name) && !socket:
		default:
			out = append(out, fs[i])
		}
	}
	return out
}

// identifying are parts of header names that say who asks, besides the known
// names of kindCredential; schemes are those of header values (RFC 9110 section 11).
var (
	identifying = strings.Fields(`auth token secret pass pwd credential session cookie signature jwt bearer
		apikey api-key api_key access-key access_key accesskey client-id client_id saml oidc sso-`)
	schemes = strings.Fields(`bearer basic token digest negotiate ntlm hawk hoba mutual vapid aws4-hmac-sha256`)
	// harmless names look like identities and are none.
	harmless = strings.Fields(`idempotency-key sec-websocket-key :authority`)
)

// identifies reports whether a header field looks like it says who asks.
func identifies(f *field) bool {
	if kindOf(f.name) == kindMinimal {
		return false
	}
	name := strings.ReplaceAll(strings.ToLower(f.name), "_", "-")
	if slices.Contains(harmless, name) {
		return false
	}
	if strings.HasSuffix(name, "-key") || name == "key" || slices.ContainsFunc(identifying, func(s string) bool { return strings.Contains(name, s) }) {
		return true
	}
	scheme, _, more := strings.Cut(strings.ReplaceAll(strings.ToLower(f.value), "\t", " "), " ")
	return more && slices.Contains(schemes, scheme)
}

// identityKeys are query keys that say who asks: OAuth 2 (RFC 6750 section 2.3),
// API keys, and presigned URLs of the large object stores.
var identityKeys = strings.Fields(`access_token api_key apikey api-key key token auth auth_token authtoken authorization
	bearer bearer_token private_token job_token id_token refresh_token oauth_token session session_id sessionid session_token sid
	jwt password passwd pass pwd secret client_secret sig signature x-amz-credential x-amz-signature x-amz-security-token
	personal_access_token x_api_key private-token x-goog-credential x-goog-signature awsaccesskeyid googleaccessid subscription-key`)

// outTarget is the request target of a hop as it leaves, with the secret where it
// goes into the query.
func (x *exchange) outTarget(h *hop) string {
	sl := x.guarded(h)
	if sl == nil {
		return egress.Target(h.ask.Path, h.ask.Query)
	}
	target := h.ask.Path.Raw()
	query, present := h.ask.Query.Raw(), h.ask.Query.Present()
	send := x.sending(h)
	if present {
		kept := sl.strip(query, h.rule, send)
		present = kept != "" || query == ""
		query = kept
	}
	if send != nil && send.QueryKey != "" && !hasKey(query, send.QueryKey) {
		if present && query != "" {
			query += "&"
		}
		query += send.QueryKey + "=" + secret.QueryEscape(send.Value)
		present = true
	}
	if !present {
		return target
	}
	return target + "?" + query
}

// strip removes the pairs of a query that say who asks and that the rule does not
// demand, and puts the secret where its placeholder stands. A query without any
// of them keeps its bytes.
func (sl *slot) strip(query string, rule *egress.Rule, send *slot) string {
	all := pairs(query)
	kept := slices.DeleteFunc(slices.Clone(all), func(p queryPair) bool {
		return sl.foreign(p.name(), rule) && (send == nil || !send.filled(p))
	})
	if len(kept) == len(all) && !slices.ContainsFunc(all, func(p queryPair) bool { return send != nil && send.filled(p) }) {
		return query
	}
	var b strings.Builder
	for i, p := range kept {
		if i > 0 {
			b.WriteString(p.before)
		}
		if send != nil && send.filled(p) {
			p.text = send.QueryKey + "=" + secret.QueryEscape(send.Value)
		}
		b.WriteString(p.text)
	}
	return b.String()
}

// filled reports whether a pair is the slot with the placeholder in it.
func (sl *slot) filled(p queryPair) bool {
	return sl.QueryKey != "" && sl.Placeholder != "" && p.text == sl.QueryKey+"="+sl.Placeholder
}

func (sl *slot) foreign(name string, rule *egress.Rule) bool {
	for i := range rule.Query {
		if name == rule.Query[i].Key {
			return false
		}
	}
	if sl.QueryKey != "" && egress.KeyMeans(name, sl.QueryKey) {
		return true
	}
	// Some servers end a key at NUL, and some read hyphens as underscores.
	cut, _, _ := strings.Cut(name, "%00")
	folded := foldKey(unescape(unescape(name)))
	return slices.ContainsFunc(identityKeys, func(key string) bool {
		return egress.KeyMeans(name, key) || egress.KeyMeans(cut, key) || egress.KeyMeans(folded, foldKey(key))
	})
}

func foldKey(key string) string { return strings.ReplaceAll(key, "-", "_") }

func hasKey(query, key string) bool {
	return slices.ContainsFunc(pairs(query), func(p queryPair) bool { return p.name() == key })
}
