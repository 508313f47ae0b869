package egress_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

const lfsType = "application/vnd.git-lfs+json"

func gz(tb testing.TB, s string) string {
	tb.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(s)); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

// TestVector14_JSONBody: upload, not JSON and duplicate keys are refused, download passes.
func TestVector14_JSONBody(t *testing.T) {
	r := egress.Rule{MaxBody: 4096, Body: egress.BodyRule{JSON: []egress.JSONAssertion{{Pointer: "/operation", OneOf: []string{"download"}}}}}
	allowed := []string{
		`{"operation":"download"}`,
		` {"objects":[{"oid":"x","size":1.5e3}],"operation":"down\u006coad","ref":null} ` + "\n",
		`{"x":{"operation":"upload"},"operation":"download"}`,
	}
	for _, body := range allowed {
		if code, why := r.JudgeBody([]byte(body), "", lfsType); code != egress.CodeAllowed {
			t.Errorf("%s: %s %s", body, code, why)
		}
	}
	for _, body := range []string{
		``, `null`, `"download"`, `[]`, `{}`, `operation=download`, `{"operation":"upload"}`, `{"operation":["download"]}`,
		`{"operation":"download","operation":"upload"}`, `{"operation":"upload","operation":"download"}`,
		`{"operation":"download","operatio\u006e":"upload"}`, `{"operation":"download","OPERATION":"upload"}`,
		`{"operation":"download","\u212aey":1,"key":2,"KEY":3}`,
		`{"x":{"a":1,"a":2},"operation":"download"}`, `{"x":[{"a":1,"A":2}],"operation":"download"}`,
		`{"operation":"download"}{"operation":"upload"}`, `{"operation":"download"} x`, `{"operation":"download",}`, `{"operation":"download"`,
		"\xef\xbb\xbf" + `{"operation":"download"}`, `{"operation":"download","x":"` + "\xff" + `"}`,
		`{'operation':'download'}`, `{operation:"download"}`, `{"operation":"download"/**/}`, `{"operation":"DOWNLOAD"}`, `{"operation":"download "}`,
		`{"operation":"download","x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`,
		`{"operation":"download","x":NaN}`,
	} {
		if code, why := r.JudgeBody([]byte(body), "", lfsType); code != egress.CodeBodyAssertion || why == "" {
			t.Errorf("%s: %s %s", body, code, why)
		}
	}
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16", "application/jsonx", "multipart/form-data; boundary=x", "text/json", "application/json, text/plain"} {
		if code, _ := r.JudgeBody([]byte(allowed[0]), "", kind); code != egress.CodeBodyAssertion {
			t.Errorf("content type %q: %s", kind, code)
		}
	}
	for _, kind := range []string{"application/json", "Application/JSON; charset=UTF-8"} {
		if code, why := r.JudgeBody([]byte(allowed[0]), "identity", kind); code != egress.CodeAllowed {
			t.Errorf("content type %q: %s %s", kind, code, why)
		}
	}
}

func TestJSONPointers(t *testing.T) {
	body := []byte(`{"a/b":{"m~n":["x","y"]},"":"empty","n":1}`)
	for pointer, want := range map[string]egress.Code{
		"/a~1b/m~0n/1":  egress.CodeAllowed,
		"/a~1b/m~0n/0":  egress.CodeBodyAssertion,
		"/a~1b/m~0n/01": egress.CodeBodyAssertion,
		"/a~1b/m~0n/-":  egress.CodeBodyAssertion,
		"/a~1b/m~0n/2":  egress.CodeBodyAssertion,
		"/a/b":          egress.CodeBodyAssertion,
		"/n":            egress.CodeBodyAssertion,
		"/n/1":          egress.CodeBodyAssertion,
	} {
		r := egress.Rule{MaxBody: 99, Body: egress.BodyRule{JSON: []egress.JSONAssertion{{Pointer: pointer, OneOf: []string{"y", "1"}}}}}
		if code, why := r.JudgeBody(body, "", "application/json"); code != want {
			t.Errorf("%s: %s %s", pointer, code, why)
		}
	}
}

// pkt makes pkt-lines; the words flush and delim stand for those packets.
func pkt(lines ...string) string {
	var b strings.Builder
	for _, line := range lines {
		switch line {
		case "flush":
			b.WriteString("0000")
		case "delim":
			b.WriteString("0001")
		default:
			fmt.Fprintf(&b, "%04x%s", len(line)+4, line)
		}
	}
	return b.String()
}

const (
	gitType = "application/x-git-upload-pack-request"
	oid     = "0123456789abcdef0123456789abcdef01234567"
)

// TestCase67_GitBody: all reads pass in protocol versions 0, 1 and 2, packed or
// not; what is not a read is refused.
func TestCase67_GitBody(t *testing.T) {
	r := egress.Rule{MaxBody: 1 << 16, Body: egress.BodyRule{Git: egress.GitUploadPack}}
	for name, body := range map[string]string{
		"v0 clone":   pkt("want "+oid+" multi_ack_detailed side-band-64k\n", "want "+oid+"\n", "flush", "done\n"),
		"v0 shallow": pkt("want "+oid+" x\n", "shallow "+oid, "deepen 1\n", "deepen-since 5\n", "deepen-not refs/x\n", "filter blob:none\n", "flush", "have "+oid+"\n", "flush"),
		"v0 nothing": pkt("flush"),
		"v2 ls-refs": pkt("command=ls-refs\n", "agent=git/2.39", "object-format=sha1", "delim", "peel\n", "symrefs\n", "ref-prefix refs/heads/\n", "flush"),
		"v2 fetch":   pkt("command=fetch", "agent=git/2.39", "delim", "thin-pack", "want "+oid+"\n", "done\n", "flush"),
		"v2 both":    pkt("command=ls-refs\n", "flush", "command=fetch\n", "delim", "flush"),
	} {
		for encoding, sent := range map[string]string{"": body, "gzip": gz(t, body), "x-gzip": gz(t, body)} {
			if code, why := r.JudgeBody([]byte(sent), encoding, gitType); code != egress.CodeAllowed {
				t.Errorf("%s, %q: %s %s", name, encoding, code, why)
			}
		}
	}
	for name, body := range map[string]string{
		"empty":            "",
		"receive-pack":     pkt(oid+" "+oid+" refs/heads/main\x00report-status\n", "flush"),
		"v2 push":          pkt("command=push\n", "flush"),
		"v2 object-info":   pkt("command=object-info\n", "flush"),
		"v2 bundle-uri":    pkt("command=bundle-uri", "flush"),
		"v2 second":        pkt("command=ls-refs\n", "flush", "command=object-info\n", "flush"),
		"v2 twice":         pkt("command=ls-refs\n", "command=fetch\n", "flush"),
		"v2 hidden":        pkt("command=ls-refs\n", "delim", "command=object-info\n", "flush"),
		"v2 no command":    pkt("command=ls-refs\n", "flush", "agent=x\n", "flush"),
		"v2 bare":          pkt("command=ls-refs\n", "flush", "fetch\n", "flush"),
		"v0 then v2":       pkt("want "+oid+"\n", "flush", "command=object-info\n", "flush"),
		"v0 other":         pkt("push " + oid + "\n"),
		"raw pack":         "PACK\x00\x00\x00\x02",
		"cut":              "0032want",
		"bad length":       "zzzzwant",
		"length 3":         "0003",
		"length 1 past":    pkt("done\n") + "0",
		"signed length":    "+010want x\n",
		"underscore":       "0_10want x\n",
		"longer than real": "fff5" + strings.Repeat("x", 70000),
	} {
		if code, why := r.JudgeBody([]byte(body), "", gitType); code == egress.CodeAllowed || why == "" {
			t.Errorf("%s: %s %s", name, code, why)
		}
	}
	ok := pkt("flush")
	for _, kind := range []string{"", "application/json", "application/x-git-receive-pack-request"} {
		if code, _ := r.JudgeBody([]byte(ok), "", kind); code != egress.CodeBodyAssertion {
			t.Errorf("content type %q: %s", kind, code)
		}
	}
}

// Caps count decoded bytes, and what comes after the judged bytes is refused.
func TestEncodedBodies(t *testing.T) {
	r := egress.Rule{MaxBody: 1000, Body: egress.BodyRule{JSON: []egress.JSONAssertion{{Pointer: "/a", OneOf: []string{"b"}}}}}
	body := `{"a":"b"}`
	bomb := gz(t, body+strings.Repeat(" ", 1<<20))
	for _, c := range []struct {
		encoding, body string
		want           egress.Code
	}{
		{"gzip", gz(t, body), egress.CodeAllowed},
		{" GZIP ", gz(t, body), egress.CodeAllowed},
		{"gzip", bomb, egress.CodeBodyTooLarge},
		{"", body + strings.Repeat(" ", 1000), egress.CodeBodyTooLarge},
		{"gzip", gz(t, body) + gz(t, ` `), egress.CodeBodyAssertion},
		{"gzip", gz(t, body) + "x", egress.CodeBodyAssertion},
		{"gzip", gz(t, body)[:12], egress.CodeBodyAssertion},
		{"gzip", body, egress.CodeBodyAssertion},
		{"gzip", "", egress.CodeBodyAssertion},
		{"br", body, egress.CodeBodyAssertion},
		{"gzip, gzip", gz(t, gz(t, body)), egress.CodeBodyAssertion},
		{"identity, gzip", gz(t, body), egress.CodeBodyAssertion},
	} {
		if code, why := r.JudgeBody([]byte(c.body), c.encoding, "application/json"); code != c.want {
			t.Errorf("%q, %d bytes: %s %s, want %s", c.encoding, len(c.body), code, why, c.want)
		}
	}
}
