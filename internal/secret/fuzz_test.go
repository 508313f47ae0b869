package secret_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/fractalboxdev/sbx/internal/secret"
)

// FuzzSearch: a secret is found in every form that programs write it in, in whatever
// text and pieces; the pieces say the same as the whole, and what they call open is
// where a form that follows begins.
func FuzzSearch(f *testing.F) {
	f.Add("hunter22", []byte("before"), []byte("after"), uint16(0))
	f.Add("hunter22/+&secret==", []byte("huntehunter2"), []byte("hunter22"), uint16(0x123))
	f.Add("täßt \"<&>\\", []byte{0xff, 0x00}, []byte("%"), uint16(0xfff))
	f.Add("aaaaaaa", []byte("aaaaa"), []byte("aaa"), uint16(3))
	f.Fuzz(func(t *testing.T, text string, before, after []byte, how uint16) {
		v, err := secret.Parse(text)
		if err != nil || v.IsZero() || len(text) > 200 || !utf8.ValidString(text) {
			return
		}
		find := secret.NewFinder(v)
		which := int(how%16) % 8
		if which > 5 && len(text) < 5 {
			return // in base64, four bytes leave too little that does not hang on what is around
		}
		written := forms(text, before, after)[which]
		stream := append(append(bytes.Clone(before), written...), after...)
		if !find.Has(stream) {
			t.Fatalf("%q is not found in %q", text, stream)
		}
		s := secret.NewSearch(find)
		size, found, rest := int(how/16)+1, false, stream
		seen := 0
		for len(rest) > 0 && !found {
			piece := rest[:min(size, len(rest))]
			rest = rest[len(piece):]
			var open int
			open, found = s.Next(piece)
			seen += len(piece)
			if !found && (open > seen || find.Has(stream[:seen]) || find.Open(stream[:seen]) != open) {
				t.Fatalf("%q: %d bytes of %q are open, %d as a whole", text, open, stream[:seen], find.Open(stream[:seen]))
			}
		}
		if !found {
			t.Fatalf("%q is in %q, and not in its pieces of %d", text, stream, size)
		}
		if start, end := find.Find(stream); start < 0 || end > len(stream) || !find.Has(stream[start:end]) {
			t.Fatalf("%q: found from %d to %d of %q", text, start, end, stream)
		}
	})
}

func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		return ""
	}
	return string(b)
}

// forms are ways to write a secret, with text around it that is encoded along.
func forms(text string, before, after []byte) [8][]byte {
	around := func(s string) []byte { return append(append(bytes.Clone(before), s...), after...) }
	asJSON := quoted(text)
	return [8][]byte{
		[]byte(text),
		[]byte(hex.EncodeToString(around(text))),
		[]byte(strings.ToUpper(hex.EncodeToString([]byte(text)))),
		[]byte(url.QueryEscape(text)),
		[]byte(url.PathEscape(text)),
		[]byte(asJSON[1 : len(asJSON)-1]),
		[]byte(base64Around(base64.StdEncoding, around(text))),
		[]byte(base64Around(base64.RawURLEncoding, around(text))),
	}
}

func base64Around(e *base64.Encoding, b []byte) string { return e.EncodeToString(b) }
