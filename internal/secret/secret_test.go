package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/url"
	"strings"
	"testing"
)

const token = `s3cr3t/+&"T0k<en>\é=~ok`

func value(t *testing.T, text string) Value {
	t.Helper()
	v, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestValueNeverPrints(t *testing.T) {
	v := value(t, token)
	outer := struct {
		Name   string
		Public Value
		hidden Value
		list   []Value
	}{"n", v, v, []Value{v}}
	texts := []string{v.String(), v.GoString()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T%v"} {
		texts = append(texts, strings.ReplaceAll(fmt.Sprintf(verb, v), "%!v(MISSING)", ""), fmt.Sprintf(verb, outer), fmt.Sprintf(verb, &v))
	}
	encoded, err := json.Marshal(outer)
	if err != nil {
		t.Fatal(err)
	}
	keyed, err := json.Marshal(map[Value]int{v: 1})
	if err != nil {
		t.Fatal(err)
	}
	texts = append(texts, string(encoded), string(keyed), fmt.Sprint(errors.New(v.String())))
	f := NewFinder(v)
	for _, text := range texts {
		if f.HasText(text) || strings.Contains(text, token) {
			t.Errorf("printed: %q", text)
		}
	}
	if v.Reveal() != token || !strings.Contains(string(encoded), `"Public":"[secret]"`) {
		t.Errorf("%q %s", v.Reveal(), encoded)
	}
}

func TestVector23_ValuesAreRefusedAndNeverTrimmed(t *testing.T) {
	for text, want := range map[string]error{
		"good-hunter": nil, "": nil, "with space": nil, "hunter\n": ErrNewline, "hunter\r\n": ErrNewline, "\n": ErrNewline,
		"hun\nter": ErrControl, "hunter\r": ErrControl, "hun\x00ter": ErrControl, "hunter\x7f": ErrControl, "\thunter": ErrControl,
		"abc": ErrShort, strings.Repeat("x", MaxLength+1): ErrLong,
	} {
		v, err := Parse(text)
		if !errors.Is(err, want) || err == nil && v.Reveal() != text || err != nil && !v.IsZero() {
			t.Errorf("%q: %v", text, err)
		}
		if err != nil && len(text) > 3 && strings.Contains(err.Error(), strings.TrimSpace(text)) {
			t.Errorf("the error shows the value: %v", err)
		}
	}
}

// written are ways in which programs write a secret into something larger.
func written(s string) map[string]string {
	quoted, _ := json.Marshal("x" + s + "y")
	out := map[string]string{
		"raw": "token=" + s + ".", "query": "a=" + url.QueryEscape(s), "path": "/" + url.PathEscape(s) + "/",
		"hex": hex.EncodeToString([]byte("<" + s + ">")), "HEX": strings.ToUpper(hex.EncodeToString([]byte(s))),
		"json": string(quoted), "json slashes": strings.ReplaceAll(string(quoted), "/", `\/`), "html": html.EscapeString("<b>" + s),
		"lower percent": strings.ToLower(url.QueryEscape("x")) + percent(s, unreserved, "0123456789abcdef"), "all percent": percent(s, "", "0123456789ABCDEF"),
	}
	for before := range 6 {
		for after := range 3 {
			text := []byte(strings.Repeat("u", before) + s + strings.Repeat(":", after))
			out[fmt.Sprintf("base64 %d %d", before, after)] = "Basic " + base64.StdEncoding.EncodeToString(text)
			out[fmt.Sprintf("base64url %d %d", before, after)] = base64.RawURLEncoding.EncodeToString(text)
		}
	}
	return out
}

func TestFindsEveryFormAcrossPieces(t *testing.T) {
	f := NewFinder(value(t, token), Value{})
	for name, text := range written(token) {
		if !f.HasText(text) {
			t.Errorf("%s: not found in %q", name, text)
		}
		for size := 1; size < 9; size++ {
			s, released := NewSearch(f), 0
			hit := false
			for at := 0; at < len(text) && !hit; at += size {
				var open int
				piece := text[at:min(at+size, len(text))]
				if open, hit = s.Next([]byte(piece)); !hit {
					released = at + len(piece) - open
				}
			}
			start, _ := f.Find([]byte(text))
			if !hit || released > start {
				t.Errorf("%s in pieces of %d: found %v, %d bytes released, the secret begins at %d", name, size, hit, released, start)
			}
		}
	}
	if f.HasText(strings.ReplaceAll(token, "T0k", "xxx")) || (*Finder)(nil).HasText(token) {
		t.Error("found what is not there")
	}
}

func TestWriterMasksAcrossWrites(t *testing.T) {
	r := NewRedactor(value(t, token), value(t, "other-secret"))
	for name, text := range written(token) {
		whole := "before " + text + " other-secret after"
		for size := 1; size < len(whole)+1; size += 1 + size/4 {
			var b bytes.Buffer
			w := r.Writer(&b)
			for at := 0; at < len(whole); at += size {
				if n, err := w.Write([]byte(whole[at:min(at+size, len(whole))])); err != nil || n == 0 {
					t.Fatal(n, err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if got := b.String(); r.finder.HasText(got) || !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, Masked+" after") {
				t.Errorf("%s by %d: %q", name, size, got)
			}
		}
	}
	var b bytes.Buffer
	w := (*Redactor)(nil).Writer(&b)
	_, _ = w.Write([]byte(token))
	if b.String() != token {
		t.Errorf("the nil redactor wrote %q", b.String())
	}
}

// The beginning of a secret is not lost when nothing follows.
func TestWriterPassesOnWhatIsNoSecret(t *testing.T) {
	r := NewRedactor(value(t, token))
	var b bytes.Buffer
	w := r.Writer(&b)
	for _, c := range []byte("x" + token[:9] + "y" + token[:5]) {
		_, _ = w.Write([]byte{c})
	}
	if err := w.Close(); err != nil || b.String() != "x"+token[:9]+"y"+token[:5] {
		t.Errorf("%q %v", b.String(), err)
	}
}

func TestJSONStaysJSON(t *testing.T) {
	r := NewRedactor(value(t, "12345678"), value(t, `q"uo\te`), value(t, "name"))
	in := `{"name": "x12345678y", "n": 12345678, "l": ["q\"uo\\te", "a\\"], "o": {"k":"name"}}` + "\n"
	out := r.JSON([]byte(in))
	want := `{"name": "x[secret]y", "n": 12345678, "l": ["[secret]", "a\\"], "o": {"k":"[secret]"}}` + "\n"
	if string(out) != want || !json.Valid(out) {
		t.Errorf("got  %s\nwant %s", out, want)
	}
	if got := r.Texts([]string{"a", "12345678"}); got[1] != Masked {
		t.Errorf("%q", got)
	}
}
