package proxy

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/coding"
	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/secret"
)

// FuzzPlaceholder: whatever a program inside sends, the secret leaves only for its own
// host, over TLS, under the rule that sends it, and there only in its slot; and no
// request that holds a placeholder, in whatever form and place, leaves with it.
//
// In the request, \x01 stands for the placeholder, \x02 for it as a password in base64,
// \x03 for it in hexadecimal, \x04 for it with an encoded letter.
func FuzzPlaceholder(f *testing.F) {
	for i, seed := range []string{
		"GET /s?a=1 HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer \x01\r\n\r\n", "GET /s HTTP/1.1\r\nHost: a.test\r\nAuthorization: Basic \x02\r\n\r\n",
		"GET /s?apikey=\x01&b=\x04 HTTP/1.1\r\nHost: a.test\r\n\r\n", "GET /o?key=x;apikey=\x01 HTTP/1.1\r\nHost: a.test\r\nX-Token: \x01\r\nCookie: \x03\r\n\r\n",
		"GET /s/\x04 HTTP/1.1\r\nHost: a.test\r\nConnection: x-\x01\r\nX-\x01: 1\r\n\r\n", "GET /s?apikey=\x01&apikey=\x01#x HTTP/1.1\r\nHost: a.test\r\nauthorization: \x01\r\nAuthorization: token \x01\r\n\r\n",
	} {
		f.Add([]byte(seed), uint8(i))
	}
	slots := map[string]Credential{
		"header": {Header: "Authorization", Template: "Bearer {secret}"},
		"basic":  {Header: "Authorization", Template: "Basic {secret}", Basic: true, Username: "x"},
		"query":  {QueryKey: "apikey"},
		"own":    {Header: "X-Vendor", Template: "v1 {secret}; x"},
	}
	names := []string{"header", "basic", "query", "own"}
	hosts := []string{"https a.test", "https b.test", "http a.test"}
	servers := map[string]*Server{}
	for name, c := range slots {
		servers[name] = fuzzServer(f, c)
	}
	f.Fuzz(func(t *testing.T, text []byte, which uint8) {
		name := names[int(which)%len(names)]
		at := hosts[int(which/4)%len(hosts)]
		for marker, meaning := range map[string]string{
			"\x01": fuzzPlaceholder, "\x02": base64.StdEncoding.EncodeToString([]byte("x:" + fuzzPlaceholder)),
			"\x03": hexOf(fuzzPlaceholder), "\x04": "%" + hexOf(fuzzPlaceholder[:1]) + fuzzPlaceholder[1:],
		} {
			text = bytes.ReplaceAll(text, []byte(marker), []byte(meaning))
		}
		checkSent(t, servers[name], name, at, text)
	})
}

const fuzzPlaceholder = "sbxplaceholderq7w2"

func hexOf(s string) string {
	const digits = "0123456789abcdef"
	var b strings.Builder
	for i := range len(s) {
		b.WriteString(string([]byte{digits[s[i]>>4], digits[s[i]&15]}))
	}
	return b.String()
}

// fuzzServer sends hidden to a.test below /s.
func fuzzServer(f *testing.F, c Credential) *Server {
	value := hiddenValue(f)
	a, err := egress.ParseHost("a.test")
	if err != nil {
		f.Fatal(err)
	}
	c.Secret, c.Value, c.Placeholder, c.Hosts = "T", value, fuzzPlaceholder, []egress.Host{a}
	s := New(Config{Recorder: &ledger{}, Credentials: map[string]Credential{"t/c": c}})
	var rules []egress.Rule
	for id, r := range map[string]struct {
		host, path string
		protocol   egress.Protocol
		secret     bool
	}{
		"t/send": {"a.test", "/s/**", egress.ProtocolHTTPS, true}, "t/open": {"a.test", "/o/**", egress.ProtocolHTTPS, false},
		"t/b": {"b.test", "/**", egress.ProtocolHTTPS, false}, "t/plain": {"a.test", "/**", egress.ProtocolHTTP, true},
	} {
		host, err1 := egress.ParseHostPattern(r.host)
		path, err2 := egress.ParsePathPattern(r.path, true)
		if err := errors.Join(err1, err2); err != nil {
			f.Fatal(err)
		}
		rule := egress.Rule{ID: id, Protocol: r.protocol, Host: host, Methods: []string{"GET", "POST"}, Path: path, Headers: egress.HeadersPreserve, EncodedSlash: true, MaxBody: 10}
		if r.secret {
			rule.Credential = "t/c"
		}
		rules = append(rules, rule)
	}
	policy, err := egress.Compile(rules, nil)
	if err != nil {
		f.Fatal(err)
	}
	s.Apply(policy)
	return s
}

// checkSent takes one request to the bytes that would leave.
func checkSent(t *testing.T, s *Server, slot, at string, text []byte) {
	scheme, host, _ := strings.Cut(at, " ")
	h := &h1{s: s, c: &clientConn{br: bufio.NewReaderSize(bytes.NewReader(text), 4096)}}
	req, err := h.read()
	if err != nil {
		return
	}
	name, _ := egress.ParseHost(host)
	o := &origin{host: name, port: 443, tls: scheme == "https"}
	if !o.tls {
		o.port = 80
	}
	x := &exchange{s: s, snap: s.current.Load(), o: o, req: req}
	hop, r := x.locate()
	if r != nil {
		return
	}
	d := x.snap.policy.Decide(hop.ask)
	if d.Verdict != egress.Allow {
		return
	}
	hop.rule = d.Rule
	if x.admitCredential(t.Context(), hop) != nil {
		return
	}
	fs := x.outFields(hop, false)
	target := x.outTarget(hop)
	sent := (&outgoing{method: req.method, target: target, fields: fs}).appendHead(nil)
	if find := secret.NewTextFinder(fuzzPlaceholder); find.Has(sent) {
		t.Fatalf("%s to %s: the placeholder leaves in %q", slot, at, sent)
	}
	mine := scheme == "https" && host == "a.test" && hop.rule.ID == "t/send"
	find := secret.NewFinder(hiddenValue(t))
	if !mine {
		if find.Has(sent) && !find.Has(text) { // unless it was inside already
			t.Fatalf("%s to %s under %s: the secret leaves in %q", slot, at, hop.rule.ID, sent)
		}
		return
	}
	checkSlot(t, x.s.vault.slots["t/c"], fs, target, find, text)
}

// checkSlot demands the secret in its slot once, and nowhere else.
func checkSlot(t *testing.T, sl *slot, fs fields, target string, find *secret.Finder, text []byte) {
	inside := find.Has(text)
	placed := 0
	for i := range fs {
		switch {
		case sl.Header != "" && strings.EqualFold(fs[i].name, sl.Header):
			placed++
			if fs[i] != sl.header() {
				t.Fatalf("the slot holds %q", fs[i])
			}
		case find.HasText(fs[i].name+fs[i].value) && !inside:
			t.Fatalf("the secret is in the field %q", fs[i])
		}
	}
	path, query, _ := strings.Cut(target, "?")
	for _, p := range pairs(query) {
		switch {
		case sl.QueryKey != "" && p.text == sl.QueryKey+"="+secret.QueryEscape(sl.Value):
			placed++
		case find.HasText(p.text) && !inside:
			t.Fatalf("the secret is in the query's pair %q", p.text)
		}
	}
	if placed != 1 || find.HasText(path) && !inside {
		t.Fatalf("the secret is placed %d times: %q %q", placed, fs, target)
	}
}

// FuzzSearched: a response of a credentialed host is given out unchanged, or it holds the
// secret, in some form, as it is or decoded, and ends with an error before that can be
// read; nothing that was read together with an error, or may be the beginning of the
// secret, is given out before it was searched.
//
// how chooses coding, form, size of pieces, and whether the transport breaks at the end.
func FuzzSearched(f *testing.F) {
	for how := range uint16(40) {
		f.Add([]byte("some text before"), []byte("and after it"), how*577)
	}
	f.Add([]byte(hidden[:9]), []byte(hidden[9:]), uint16(3))
	f.Add(bytes.Repeat([]byte("tok-"), 9000), []byte(nil), uint16(5+8*2))
	codings := []string{"identity", "gzip", "stored gzip", "zlib", "raw deflate", "br", "zstd"}
	forms := []func(string) string{
		func(string) string { return "" }, func(s string) string { return s },
		func(s string) string { return base64.StdEncoding.EncodeToString([]byte("x:" + s)) }, func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte("ab" + s)) },
		hexOf, func(s string) string { return strings.ToUpper(hexOf(s)) }, func(s string) string { return s[:len(s)-1] },
	}
	sizes := []int{1, 2, 3, 7, 64, 1500, 70_000}
	reset := errors.New("connection reset")
	f.Fuzz(func(t *testing.T, before, after []byte, how uint16) {
		name := codings[int(how)%len(codings)]
		form := forms[int(how/7)%len(forms)]
		size := sizes[int(how/49)%len(sizes)]
		broken := how/343%2 == 1
		clear := string(before) + form(hidden) + string(after)
		coded := encode(t, name, clear)
		end := io.EOF
		if broken {
			end = reset
		}
		src := search(t, &pieces{coded, size, end}, encoders[name].coding, nil)
		got, err := io.ReadAll(src)
		find := secret.NewFinder(hiddenValue(t))
		if !bytes.HasPrefix(coded, got) {
			t.Fatalf("%s by %d: %d bytes that were never sent", name, size, len(got))
		}
		holds := find.HasText(clear) || find.Has(coded)
		if err == nil && (holds || broken || !bytes.Equal(got, coded)) {
			t.Fatalf("%s by %d: a clean end of %q", name, size, clear)
		}
		if err != nil && !holds && !broken {
			t.Fatalf("%s by %d: %v, although the secret is not in %q", name, size, err, clear)
		}
		if err == nil {
			return
		}
		seen, _ := io.ReadAll(encoders[name].decode(bytes.NewReader(got)))
		limit := len(clear) - find.Open([]byte(clear))
		if start, _ := find.Find([]byte(clear)); start >= 0 {
			limit = start
		}
		if find.Has(seen) || find.Has(got) || len(seen) > limit {
			t.Fatalf("%s by %d: the client can read %q", name, size, seen)
		}
		if n, again := src.Read(make([]byte, 100)); n != 0 || again == nil || errors.Is(again, io.EOF) {
			t.Fatalf("%s by %d: after the error: %d %v", name, size, n, again)
		}
	})
}

// FuzzMeasured: a body that is decoded on its way is judged as coding.Size judges it
// whole, for any bytes, pieces and limit; what is given out is what came, and all of it
// only when it fits.
func FuzzMeasured(f *testing.F) {
	kinds := []string{"gzip", "deflate", "br", "zstd"}
	for _, name := range []string{"gzip", "zlib", "raw deflate", "br", "zstd"} {
		whole := encode(f, name, noise(3000))
		for which := range uint8(16) {
			f.Add(whole, which, uint16(2999))
			f.Add(whole[:len(whole)-int(which)], which*16, uint16(3000))
			f.Add(append(bytes.Clone(whole), whole...), which*5, uint16(6000))
		}
	}
	sizes := []int{1, 3, 50, 70_000}
	f.Fuzz(func(t *testing.T, body []byte, which uint8, limit uint16) {
		codings := []string{kinds[int(which)%4]}
		size := sizes[int(which/4)%4]
		end := io.EOF
		if which&128 != 0 { // the end comes by itself
			end = nil
		}
		var src io.Reader = &pieces{body, size, end}
		if end == nil {
			src = io.MultiReader(bytes.NewReader(body[:len(body)/2]), bytes.NewReader(body[len(body)/2:]))
		}
		m, err := newMeasured(src, codings, int64(limit), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer m.close()
		got, err := io.ReadAll(m)
		n, want := coding.Size(body, codings, int64(limit))
		if len(body) == 0 { // none is none in every coding
			want, n = err, 0
		}
		switch {
		case !bytes.HasPrefix(body, got):
			t.Fatalf("%d bytes that never came", len(got))
		case want == nil && n <= int64(limit) && (err != nil || len(got) != len(body)):
			t.Fatalf("%s of %d decoded bytes under %d: %v", codings, n, limit, err)
		case want == nil && n > int64(limit) && !errors.Is(err, errOverCap):
			t.Fatalf("%s of %d decoded bytes under %d: %v", codings, n, limit, err)
		case want != nil && len(body) > 0 && !errors.Is(err, coding.ErrCoding) && !errors.Is(err, errOverCap): // what comes first may differ
			t.Fatalf("%s: whole it is %v, on its way %v", codings, want, err)
		}
	})
}
