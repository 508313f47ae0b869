package proxy

import (
	"strings"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// kind says what a header field is for, as far as forwarding is concerned.
type kind uint8

const (
	kindOther      kind = iota
	kindMinimal         // travels in both modes
	kindHop             // between two neighbours only (RFC 9110 section 7.6.1), or framing that is made anew
	kindOverride        // would make the host judge another method or path than we did
	kindCredential      // from inside, never upstream
	kindCookie          // upstream only where the rule says so
	kindSocket          // part of a websocket handshake
)

// kinds lists the fields that are not kindOther, lower case.
var kinds = makeKinds(map[kind]string{
	kindMinimal: `accept accept-encoding content-type content-encoding git-protocol if-modified-since
		if-none-match if-range range user-agent`,
	kindHop: `connection keep-alive proxy-connection proxy-authenticate proxy-authentication-info te
		transfer-encoding upgrade http2-settings host content-length expect trailer`,
	kindOverride: `x-http-method-override x-http-method x-method-override x-original-url x-rewrite-url
		x-original-uri x-override-url x-original-method x-forwarded-uri x-forwarded-method x-forwarded-prefix
		x-forwarded-host x-host forwarded`,
	kindCredential: `authorization proxy-authorization x-api-key api-key apikey x-apikey x-auth-token x-auth-key
		x-auth-email x-auth-user-service-key x-access-token access-token x-amz-security-token private-token
		job-token deploy-token x-gitlab-token x-github-token x-goog-api-key x-goog-iam-authorization-token
		x-vault-token x-functions-key x-ms-authorization-auxiliary ocp-apim-subscription-key x-token x-secret-key
		x-session-token x-csrf-token x-xsrf-token x-figma-token x-shopify-access-token circle-token
		x-jfrog-art-api x-nuget-apikey npm-otp dpop cf-access-client-id cf-access-client-secret cf-access-token`,
	kindCookie: `cookie cookie2`,
	kindSocket: `sec-websocket-key sec-websocket-version sec-websocket-protocol sec-websocket-extensions origin`,
})

func makeKinds(lists map[kind]string) map[string]kind {
	m := make(map[string]kind)
	for k, list := range lists {
		for name := range strings.FieldsSeq(list) {
			m[name] = k
		}
	}
	return m
}

// kindOf looks a name up without allocating.
func kindOf(name string) kind {
	var buf [48]byte
	if len(name) > len(buf) {
		return kindOther
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case c == '_': // many servers read it as a hyphen (RFC 3875 section 4.1.18)
			c = '-'
		}
		buf[i] = c
	}
	return kinds[string(buf[:len(name)])]
}

// connectionTokens returns what the Connection fields name as hop-by-hop.
func connectionTokens(fs fields) []string {
	var tokens []string
	for i := range fs {
		if !strings.EqualFold(fs[i].name, "Connection") {
			continue
		}
		for token := range strings.SplitSeq(fs[i].value, ",") {
			token = strings.Trim(token, " \t")
			if token != "" && !strings.EqualFold(token, "close") && !strings.EqualFold(token, "keep-alive") {
				tokens = append(tokens, token)
			}
		}
	}
	return tokens
}

func named(tokens []string, name string) bool {
	for _, token := range tokens {
		if strings.EqualFold(token, name) {
			return true
		}
	}
	return false
}

// requestFields returns what travels upstream under a rule, in the client's order
// and spelling, with the normalised host. Nothing else is added.
func requestFields(fs fields, host string, rule *egress.Rule, socket, body bool) fields {
	tokens := connectionTokens(fs)
	out := make(fields, 0, len(fs)+1)
	if _, n := fs.get("Host"); n == 0 {
		out = append(out, field{"Host", host})
	}
	for i := range fs {
		if strings.EqualFold(fs[i].name, "Host") {
			out = append(out, field{fs[i].name, host})
			continue
		}
		if named(tokens, fs[i].name) && !socket || hides(fs[i].name) {
			continue
		}
		if travels(kindOf(fs[i].name), fs[i].name, rule, socket, body) {
			out = append(out, fs[i])
		}
	}
	return out
}

// hides reports whether a name is a listed one for servers that read underscores as
// hyphens: such a field stands beside the one that was judged. Nobody writes it so.
func hides(name string) bool {
	return strings.IndexByte(name, '_') >= 0 && kindOf(name) != kindOther
}

func travels(k kind, name string, rule *egress.Rule, socket, body bool) bool {
	switch k {
	case kindMinimal:
		// A redirect that became a GET has no body to describe.
		return body || !strings.HasPrefix(strings.ToLower(name), "content-")
	case kindCookie:
		return rule.Cookies
	case kindSocket:
		return socket || rule.Headers == egress.HeadersPreserve
	case kindOther:
		return rule.Headers == egress.HeadersPreserve
	case kindHop, kindOverride, kindCredential:
	}
	return false
}

// responseFields returns what travels to the client. The length is kept only
// where it is one the client can rely on.
func responseFields(fs fields, rule *egress.Rule, keepLength bool) fields {
	tokens := connectionTokens(fs)
	out := make(fields, 0, len(fs)+2)
	for i := range fs {
		switch name := fs[i].name; {
		case strings.EqualFold(name, "Content-Length"):
			if !keepLength {
				continue
			}
			keepLength = false // once
		case strings.EqualFold(name, "Set-Cookie"), strings.EqualFold(name, "Set-Cookie2"):
			if !rule.Cookies {
				continue
			}
		case strings.EqualFold(name, "Trailer"):
		case kindOf(name) == kindHop, named(tokens, name):
			continue
		}
		out = append(out, fs[i])
	}
	return out
}

// trailerFields filters what follows a body: nothing there may change framing.
func trailerFields(fs fields, rule *egress.Rule) fields {
	return responseFields(fs, rule, false)
}
