package proxy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
)

func hello(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Proto", r.Proto)
	fmt.Fprintf(w, "hello %s %s", r.Method, r.RequestURI)
}

func TestBypass20_OnePipelineForAllWaysIn(t *testing.T) {
	w := newWorld(t)
	secure, plain := w.origin(hello, false, "ok.test"), w.origin(hello, true)
	w.grant(
		rule(t, "ok.test", secure, "GET", "/allowed/**"),
		rule(t, "ok.test", plain, "GET", "/allowed/**", plainHTTP),
	)
	for name, how := range ways {
		for scheme, port := range map[string]uint16{"https": secure, "http": plain} {
			t.Run(name+" "+scheme, func(t *testing.T) {
				c := w.client(how)
				for _, want := range []struct {
					method, url string
					status      int
					body        string
				}{
					{"GET", urlFor(scheme, "ok.test", port, "/allowed/x?y=1"), 200, "hello GET /allowed/x?y=1"},
					{"HEAD", urlFor(scheme, "ok.test", port, "/allowed/x"), 200, ""},
					{"GET", urlFor(scheme, "ok.test", port, "/other"), 403, "sbx: path-not-granted test/get\n"},
					{"POST", urlFor(scheme, "ok.test", port, "/allowed/x"), 403, "sbx: method-not-granted test/get\n"},
					{"GET", urlFor(scheme, "ok.test", port, "/allowed/%2e%2e/other"), 403, "sbx: path-refused test/get\n"},
					{"GET", urlFor(scheme, "denied.test", port, "/allowed/x"), 520, ""},
				} {
					before := len(w.rows.all())
					got := w.do(c, want.method, want.url, "")
					if got.err != nil || got.status != want.status || got.body != want.body {
						t.Errorf("%s %s: %d %q %v", want.method, want.url, got.status, got.body, got.err)
					}
					if n := len(w.rows.all()) - before; n != 1 {
						t.Errorf("%s %s: %d records", want.method, want.url, n)
					}
				}
			})
		}
	}
	if n := w.dials.count("denied.test"); n != 0 {
		t.Errorf("the ungranted host was dialled %d times", n)
	}
}

func TestGateReasonPhrase(t *testing.T) {
	w := newWorld(t)
	got := exchangeRaw(t, w.raw("unlisted.test", 80), "GET /x?secret HTTP/1.1\r\nHost: unlisted.test\r\n\r\n")
	want := "HTTP/1.1 520 sbx host-not-granted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
	if got != want {
		t.Errorf("got %q", got)
	}
	row := w.rows.recorded(1)[0]
	if row.Source != event.SourceGate || row.Verdict != "deny" || row.Code != "host-not-granted" || row.Path != "/x" || row.Host != "unlisted.test" || row.Port != 80 || row.Run != "run-1" {
		t.Errorf("%+v", row)
	}
}

func TestFloorApplyFloor(t *testing.T) {
	w := newWorld(t)
	started, gone := make(chan struct{}), make(chan struct{})
	port := w.origin(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			close(started)
			<-r.Context().Done()
			close(gone)
			return
		}
		hello(rw, r)
	}, false, "ok.test")
	c := w.client(transparent)
	url := urlFor("https", "ok.test", port, "/x")
	if w.server.Applied() {
		t.Error("a new server has a policy")
	}
	if got := w.do(c, "GET", url, ""); got.status != 520 {
		t.Errorf("at the floor: %d %v", got.status, got.err)
	}
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	if got := w.do(c, "GET", url, ""); got.status != 200 || !w.server.Applied() {
		t.Errorf("with the grant: %d %v", got.status, got.err)
	}
	inFlight := w.rawTLS("ok.test", "ok.test", port)
	fmt.Fprintf(inFlight, "GET /hang HTTP/1.1\r\nHost: ok.test:%d\r\n\r\n", port)
	<-started
	w.server.Floor()
	if b, err := io.ReadAll(inFlight); err == nil || len(b) > 0 {
		t.Errorf("a request in flight survived the floor: %q", b)
	}
	<-gone // the upstream connection is closed, too
	if got := w.do(c, "GET", url, ""); got.status != 520 || w.server.Applied() {
		t.Errorf("back at the floor: %d %v", got.status, got.err)
	}
}

func TestUnrecordedRequestsAreRefused(t *testing.T) {
	w := newWorld(t)
	var reached atomic.Int64
	port := w.origin(func(http.ResponseWriter, *http.Request) { reached.Add(1) }, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	w.rows.fail = errors.New("disk full")
	got := w.do(w.client(transparent), "GET", urlFor("https", "ok.test", port, "/x"), "")
	if got.status != 403 || got.body != "sbx: record-failed\n" || reached.Load() != 0 {
		t.Errorf("%d %q, upstream reached %d times", got.status, got.body, reached.Load())
	}
}

func TestRecordAndCompletion(t *testing.T) {
	w := newWorld(t)
	port := w.origin(hello, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "POST", "/**", maxBody(100)))
	got := w.do(w.client(transparent), "POST", urlFor("https", "ok.test", port, "/p"), "12345")
	if got.status != 200 {
		t.Fatalf("%d %v", got.status, got.err)
	}
	done := w.rows.completed(1)[0]
	row := w.rows.all()[0]
	if row.ID == 0 || row.ID != done.ID || row.Verdict != "allow" || row.Code != "allowed" || row.Rule != "test/post" || row.Protocol != "https" {
		t.Errorf("row %+v", row)
	}
	if done.Status != 200 || done.Sent != 5 || done.Received != int64(len(got.body)) || done.Error != "" || !strings.HasPrefix(done.Address, "127.0.0.1:") {
		t.Errorf("completion %+v", done)
	}
}

func TestUpstreamCertificateIsNotADenial(t *testing.T) {
	w := newWorld(t)
	port := w.origin(hello, false, "other.test")
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	got := w.do(w.client(transparent), "GET", urlFor("https", "ok.test", port, "/x"), "")
	if got.status != 502 || !strings.Contains(got.body, "upstream certificate") {
		t.Errorf("%d %q %v", got.status, got.body, got.err)
	}
	if done := w.rows.completed(1)[0]; !strings.Contains(done.Error, "certificate") || done.Status != 502 {
		t.Errorf("completion %+v", done)
	}
	for _, row := range w.rows.all() {
		if row.Denied() {
			t.Errorf("a denial: %+v", row)
		}
	}
}

func TestInternalAddressIsADenial(t *testing.T) {
	w := newWorld(t)
	port := w.origin(hello, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET", "/**", func(r *egress.Rule) { r.Internal = false }))
	got := w.do(w.client(transparent), "GET", urlFor("https", "ok.test", port, "/x"), "")
	if got.status != 403 || got.body != "sbx: address-refused test/get\n" {
		t.Errorf("%d %q %v", got.status, got.body, got.err)
	}
	rows := w.rows.all()
	if len(rows) != 1 || rows[0].Code != "address-refused" || rows[0].Verdict != "deny" || w.dials.count("ok.test") != 0 {
		t.Errorf("rows %+v, %d dials", rows, w.dials.count("ok.test"))
	}
}

func TestCloseEndsEverything(t *testing.T) {
	w := newWorld(t)
	started := make(chan struct{})
	port := w.origin(func(_ http.ResponseWriter, r *http.Request) { close(started); <-r.Context().Done() }, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	aborted := make(chan error, 1)
	go func() {
		aborted <- w.do(w.client(transparentH2), "GET", urlFor("https", "ok.test", port, "/x"), "").err
	}()
	<-started
	idle := w.raw("ok.test", port)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := w.server.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-aborted; err == nil {
		t.Error("a request survived Close")
	}
	if _, err := io.ReadAll(idle); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Errorf("an idle connection survived Close: %v", err)
	}
}

func TestConnectionLimit(t *testing.T) {
	w := newWorld(t, func(c *proxyConfig) { c.Limits.Connections = 2 })
	w.grant(rule(t, "ok.test", 443, "GET", "/**"))
	w.raw("ok.test", 443)
	w.raw("ok.test", 443)
	if third, err := w.dial(t.Context(), "ok.test", 443); err == nil {
		defer third.Close()
		if _, err := io.ReadAll(third); err == nil {
			t.Error("the connection beyond the limit ended without an error")
		}
	}
	if row := w.rows.recorded(1)[0]; row.Code != "bound-connections" {
		t.Errorf("%+v", row)
	}
}

func TestTrustMayComeAfterNew(t *testing.T) {
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	w := newWorld(t, func(c *proxyConfig) { c.UpstreamTLS = trust })
	trust.RootCAs = x509.NewCertPool()
	trust.RootCAs.AddCert(w.up.Certificate())
	port := w.origin(hello, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	if got := w.do(w.client(transparent), "GET", urlFor("https", "ok.test", port, "/x"), ""); got.status != 200 {
		t.Errorf("%d %q %v", got.status, got.body, got.err)
	}
}
