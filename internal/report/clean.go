package report

import (
	"strings"
	"unicode/utf8"

	"github.com/fractalboxdev/sbx/internal/event"
)

// Bounds in bytes of what a record holds of text that the sandbox chose.
const (
	MaxPath   = 512
	MaxHost   = 255
	MaxMethod = 64
	MaxText   = 1024
)

// maxAuthorities bounds the list of disagreeing authorities of one request.
const maxAuthorities = 8

// Clean returns the request with every hostile byte made visible ASCII and
// every field bounded: the path without query and fragment, the host in lower
// case without trailing dot. Cleaning twice changes nothing more.
func Clean(r event.Request) event.Request {
	r.Host = cleanHost(r.Host)
	r.Method = Part(r.Method, MaxMethod)
	r.Path = Part(withoutQuery(r.Path), MaxPath)
	r.Code = Part(r.Code, MaxMethod)
	r.Protocol = Part(r.Protocol, MaxMethod)
	r.Rule = Text(r.Rule, MaxText)
	r.Reason = Text(r.Reason, MaxText)
	r.Process = Text(r.Process, MaxHost)
	r.RedirectedFrom = cleanRedirect(r.RedirectedFrom)
	r.Authorities = cleanList(r.Authorities)
	return r
}

// cleanRedirect cleans a method and a URL.
func cleanRedirect(from string) string {
	method, target, found := strings.Cut(from, " ")
	if !found {
		return Part(withoutQuery(from), MaxText)
	}
	return Part(method, MaxMethod) + " " + Part(withoutQuery(target), MaxText-MaxMethod-1)
}

func cleanList(in []string) []string {
	if len(in) == 0 {
		return nil
	}
	out := make([]string, 0, min(len(in), maxAuthorities))
	for _, s := range in[:min(len(in), maxAuthorities)] {
		out = append(out, Part(s, MaxHost))
	}
	return out
}

func cleanHost(h string) string {
	return strings.ToLower(Part(strings.TrimRight(h, "."), MaxHost))
}

// withoutQuery keeps what is before the first query or fragment mark: tokens
// travel there.
func withoutQuery(p string) string {
	if i := strings.IndexAny(p, "?#"); i >= 0 {
		return p[:i]
	}
	return p
}

// Part percent-encodes every byte of s that is not printable ASCII, and spaces,
// as URLs do, and cuts the result to at most limit bytes, ending in "...".
func Part(s string, limit int) string {
	return bounded(s, limit, func(b byte) bool { return b > ' ' && b < 0x7f }, appendPercent)
}

// Text escapes every character of s that is not printable ASCII, as in \x1b or
// \u202e, and cuts the result to at most limit bytes, ending in "...".
func Text(s string, limit int) string {
	return bounded(s, limit, func(b byte) bool { return b >= ' ' && b < 0x7f }, appendEscape)
}

// bounded copies plain bytes and lets escape append the rest; an escape is
// never cut in half.
func bounded(s string, limit int, plain func(byte) bool, escape func([]byte, string) ([]byte, int)) string {
	if len(s) <= limit && allPlain(s, plain) {
		return s
	}
	const mark = "..."
	out := make([]byte, 0, limit)
	cut := 0 // the longest prefix that leaves room for the mark
	for s != "" {
		var next []byte
		n := 1
		if plain(s[0]) {
			next = append(out, s[0])
		} else {
			next, n = escape(out, s)
		}
		if len(next) > limit {
			return string(out[:cut]) + mark
		}
		out, s = next, s[n:]
		if len(out)+len(mark) <= limit {
			cut = len(out)
		}
	}
	return string(out)
}

func allPlain(s string, plain func(byte) bool) bool {
	for i := range len(s) {
		if !plain(s[i]) {
			return false
		}
	}
	return true
}

const hexDigits = "0123456789ABCDEF"

func appendPercent(out []byte, s string) ([]byte, int) {
	return append(out, '%', hexDigits[s[0]>>4], hexDigits[s[0]&15]), 1
}

func appendEscape(out []byte, s string) ([]byte, int) {
	c, n := utf8.DecodeRuneInString(s)
	if c < 0x80 || (c == utf8.RuneError && n == 1) {
		return append(out, '\\', 'x', lowerHex(s[0]>>4), lowerHex(s[0]&15)), 1
	}
	if c > 0xffff {
		out = append(out, '\\', 'U', '0', '0')
		out = append(out, lowerHex(byte(c>>20&15)), lowerHex(byte(c>>16&15)))
	} else {
		out = append(out, '\\', 'u')
	}
	return append(out, lowerHex(byte(c>>12&15)), lowerHex(byte(c>>8&15)),
		lowerHex(byte(c>>4&15)), lowerHex(byte(c&15))), n
}

func lowerHex(b byte) byte {
	return "0123456789abcdef"[b&15]
}
