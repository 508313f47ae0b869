package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestCase43_EventsArriveAtOnce lets the origin send an event only after the
// client has seen the one before: any buffering would stop the test.
func TestCase43_EventsArriveAtOnce(t *testing.T) {
	w := newWorld(t)
	next := make(chan struct{})
	port := w.origin(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		rw.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(rw).Flush()
		for i := range 5 {
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
			fmt.Fprintf(rw, "data: %d\n\n", i)
			_ = http.NewResponseController(rw).Flush()
		}
	}, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	for name, how := range ways {
		resp, err := w.client(how).Get(urlFor("https", "ok.test", port, "/x")) // headers come before any event
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		br := bufio.NewReader(resp.Body)
		for i := range 5 {
			next <- struct{}{}
			line, err := br.ReadString('\n')
			if err != nil || line != fmt.Sprintf("data: %d\n", i) {
				t.Fatalf("%s: %q %v", name, line, err)
			}
			_, _ = br.ReadString('\n')
		}
		if _, err := br.ReadByte(); err != io.EOF {
			t.Errorf("%s: after the last event: %v", name, err)
		}
		_ = resp.Body.Close()
	}
}

// TestCase43_UploadsDribbleToo is a conversation in which each side waits for the other.
func TestCase43_UploadsDribbleToo(t *testing.T) {
	w := newWorld(t)
	port := w.origin(func(rw http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(rw)
		_ = rc.EnableFullDuplex()
		rw.WriteHeader(http.StatusOK)
		_ = rc.Flush()
		b := make([]byte, 64)
		for {
			n, err := r.Body.Read(b)
			_, _ = rw.Write(b[:n])
			_ = rc.Flush()
			if err != nil {
				return
			}
		}
	}, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "POST", "/**", maxBody(8<<20)))
	for _, how := range []way{transparentH2, explicitH2} {
		pr, pw := io.Pipe()
		req, err := http.NewRequestWithContext(t.Context(), "POST", urlFor("https", "ok.test", port, "/x"), pr)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := w.client(how).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4)
		for i := range 20 {
			want := fmt.Sprintf("%04d", i)
			if _, err := io.WriteString(pw, want); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != want {
				t.Fatalf("%q %v", b, err)
			}
		}
		_ = pw.Close()
		if _, err := resp.Body.Read(b); err != io.EOF {
			t.Errorf("at the end: %v", err)
		}
		_ = resp.Body.Close()
	}
}

func TestCase46_ClientThatGivesUp(t *testing.T) {
	w := newWorld(t)
	started, gone := make(chan struct{}), make(chan struct{})
	port := w.origin(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does net/http notice that its client left
		started <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	}, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET,POST", "/**", maxBody(100)))
	for name, how := range ways {
		for _, method := range []string{"GET", "POST"} {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				var body io.Reader
				if method == "POST" {
					body = strings.NewReader("body")
				}
				req, err := http.NewRequestWithContext(ctx, method, urlFor("https", "ok.test", port, "/x"), body)
				if err == nil {
					var resp *http.Response
					if resp, err = w.client(how).Do(req); err == nil {
						_ = resp.Body.Close()
					}
				}
				ended <- err
			}()
			<-started
			cancel()
			<-gone // the upstream request ends with its client
			if err := <-ended; err == nil {
				t.Errorf("%s %s: a response", name, method)
			}
		}
	}
	for _, done := range w.rows.completed(2 * len(ways)) {
		if done.Error != "the client left" || done.Status != 0 {
			t.Errorf("%+v", done)
		}
	}
}

func TestClientThatGivesUpReading(t *testing.T) {
	w := newWorld(t)
	gone := make(chan struct{})
	port := w.origin(func(rw http.ResponseWriter, r *http.Request) {
		block := make([]byte, 1<<20)
		for {
			if _, err := rw.Write(block); err != nil {
				gone <- struct{}{}
				return
			}
		}
	}, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	for _, how := range ways {
		resp, err := w.client(how).Get(urlFor("https", "ok.test", port, "/x"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.CopyN(io.Discard, resp.Body, 3<<20)
		_ = resp.Body.Close()
		<-gone
	}
}

func TestConnectionsAreReused(t *testing.T) {
	for name, how := range ways {
		w := newWorld(t)
		port := w.origin(hello, false, "ok.test")
		w.grant(rule(t, "ok.test", port, "GET", "/**"))
		c := w.client(how)
		for range 20 {
			if got := w.do(c, "GET", urlFor("https", "ok.test", port, "/x"), ""); got.status != 200 {
				t.Fatalf("%s: %d %v", name, got.status, got.err)
			}
		}
		if n := w.dials.count("ok.test"); n != 1 {
			t.Errorf("%s: %d dials for 20 requests", name, n)
		}
	}
}

func TestCase51_ABurstOfRequests(t *testing.T) {
	w := newWorld(t)
	port := w.origin(hello, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	for name, how := range ways {
		c := w.client(how)
		results := make(chan answer)
		for i := range 300 {
			go func() { results <- w.do(c, "GET", urlFor("https", "ok.test", port, fmt.Sprintf("/%d", i)), "") }()
		}
		for range 300 {
			if got := <-results; got.status != 200 {
				t.Errorf("%s: %d %v", name, got.status, got.err)
			}
		}
	}
}

func TestUpstreamDiesInMidBody(t *testing.T) {
	w := newWorld(t)
	port := w.origin(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = rw.Write(make([]byte, 100_000))
		_ = http.NewResponseController(rw).Flush()
		panic(http.ErrAbortHandler)
	}, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	for name, how := range ways {
		if got := w.do(w.client(how), "GET", urlFor("https", "ok.test", port, "/x"), ""); got.err == nil {
			t.Errorf("%s: a clean response of %d bytes", name, len(got.body))
		}
	}
	for _, done := range w.rows.completed(len(ways)) {
		if done.Error == "" {
			t.Errorf("%+v", done)
		}
	}
}
