package secret

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"slices"
	"strings"
	"unicode/utf16"
)

// minForm is how long a form has to be, in bytes, that says less than the text, so that
// it does not occur by chance. It leaves out base64 of secrets of four bytes.
const minForm = 6

// forms returns how a text is written by programs that encode it, the text first.
func forms(text string) []string {
	out := []string{text}
	add := func(form string) {
		if len(form) >= min(minForm, len(text)) && !slices.Contains(out, form) {
			out = append(out, form)
		}
	}
	for offset := range 3 {
		inner := base64Inside(text, offset)
		if len(inner) < minForm {
			continue
		}
		add(inner)
		add(strings.NewReplacer("+", "-", "/", "_").Replace(inner))
	}
	for _, digits := range []string{"0123456789ABCDEF", "0123456789abcdef"} {
		for _, plain := range plains {
			add(percent(text, plain, digits))
		}
		add(strings.ReplaceAll(percent(text, unreserved+" ", digits), " ", "+"))
	}
	add(hex.EncodeToString([]byte(text)))
	add(strings.ToUpper(hex.EncodeToString([]byte(text))))
	for _, form := range jsonForms(text) {
		add(form)
	}
	add(html.EscapeString(text))
	return out
}

// base64Inside is the part of a base64 text that depends on nothing but text,
// which begins offset bytes after a group of three.
func base64Inside(text string, offset int) string {
	encoded := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("\x00", offset) + text))
	// The first characters hold bits of what is before, the last one of what follows.
	encoded = encoded[(offset*8+5)/6:]
	if (offset+len(text))%3 != 0 {
		encoded = encoded[:len(encoded)-1]
	}
	return encoded
}

// plains are the bytes that URL encoders leave alone: those of RFC 3986 for any part, a
// segment and a path, of JavaScript (encodeURIComponent, encodeURI), Python (quote), Go
// (PathEscape and URL.EscapedPath), Java and HTML forms (URLEncoder, with + for a
// space), and of encoders that leave nothing.
var plains = []string{
	unreserved, unreserved + "!$&'()*,;:@=+", unreserved + "!$&'()*,;:@=+/", unreserved + "!'()*", unreserved + ";,/?:@&=+$#!'()*",
	unreserved + "/", unreserved + "$&+=:@", unreserved + "$&+,/:;=@", unreserved + "*", withoutTilde + "*", "",
}

const (
	withoutTilde = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._"
	unreserved   = withoutTilde + "~"
)

func percent(text, plain, digits string) string {
	var b strings.Builder
	for i := range len(text) {
		c := text[i]
		if strings.IndexByte(plain, c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.WriteString(string([]byte{'%', digits[c>>4], digits[c&15]}))
	}
	return b.String()
}

// jsonForms are the inside of JSON strings: as encoders write them, with escaped
// slashes, and with every character escaped.
func jsonForms(text string) []string {
	var out []string
	for _, safe := range []bool{true, false} {
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(safe)
		if e.Encode(text) != nil {
			continue // cannot be: every string can be encoded
		}
		inner := strings.TrimSuffix(b.String(), "\n")
		inner = inner[1 : len(inner)-1]
		out = append(out, inner, strings.ReplaceAll(inner, "/", `\/`))
	}
	var lower, upper strings.Builder
	for _, unit := range utf16.Encode([]rune(text)) {
		fmt.Fprintf(&lower, `\u%04x`, unit)
		fmt.Fprintf(&upper, `\u%04X`, unit)
	}
	return append(out, lower.String(), upper.String())
}

// QueryEscape writes a secret as the value of a query's pair.
func QueryEscape(v Value) string { return percent(v.Reveal(), unreserved, "0123456789ABCDEF") }
