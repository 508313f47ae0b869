package serve

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serving starts a server and returns a client whose requests all reach it.
func serving(t *testing.T, l net.Listener, a Answers) *http.Client {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- Run(ctx, l, a) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	at := l.Addr()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, at.Network(), at.String())
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func ready(kind string) func(context.Context) (any, int) {
	return func(context.Context) (any, int) { return map[string]string{"kind": kind}, http.StatusOK }
}

func ask(t *testing.T, c *http.Client, method, target, host string, headers ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+host+target, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

func TestBypass67_OnlyThisMachineIsAnswered(t *testing.T) {
	l, err := ListenLoopback(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	own := l.Addr().String()
	_, port, _ := net.SplitHostPort(own)
	c := serving(t, l, Answers{Canary: ready("canary"), Dogfood: ready("dogfood"), Health: ready("health")})
	for name, row := range map[string]struct {
		method, target, host string
		headers              []string
		want                 int
		says                 string
	}{
		"health":                   {"GET", "/health", own, nil, 200, "health"},
		"canary":                   {"POST", "/canary", own, nil, 200, "canary"},
		"dogfood":                  {"POST", "/dogfood", own, nil, 200, "dogfood"},
		"same site":                {"GET", "/health", own, []string{"Sec-Fetch-Site", "none"}, 200, "health"},
		"another name":             {"GET", "/health", "localhost:" + port, nil, 403, "Host"},
		"a name that leads here":   {"GET", "/health", "rebound.test:" + port, nil, 403, "Host"},
		"no port":                  {"GET", "/health", "127.0.0.1", nil, 403, "Host"},
		"another loopback":         {"GET", "/health", "127.0.0.2:" + port, nil, 403, "Host"},
		"of a web page":            {"POST", "/canary", own, []string{"Origin", "http://" + own}, 403, "web"},
		"of a page without origin": {"POST", "/canary", own, []string{"Origin", "null"}, 403, "web"},
		"of another site":          {"GET", "/health", own, []string{"Sec-Fetch-Site", "cross-site"}, 403, "web"},
		"of a neighbour":           {"GET", "/health", own, []string{"Sec-Fetch-Site", "same-site"}, 403, "web"},
		"preflight":                {"OPTIONS", "/canary", own, nil, 405, "POST"},
		"canary by GET":            {"GET", "/canary", own, nil, 405, "POST"},
		"unknown":                  {"GET", "/", own, nil, 404, "/health"},
		"query":                    {"GET", "/health?fresh=1", own, nil, 400, "query"},
	} {
		t.Run(name, func(t *testing.T) {
			status, head, text := ask(t, c, row.method, row.target, row.host, row.headers...)
			if status != row.want || !strings.Contains(text, row.says) {
				t.Errorf("%d: %s; want %d with %q", status, text, row.want, row.says)
			}
			for name := range head {
				if strings.HasPrefix(name, "Access-Control") {
					t.Errorf("%s: %s", name, head.Get(name))
				}
			}
		})
	}
}

func TestOneProbeIsInFlight(t *testing.T) {
	l, err := ListenLoopback(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	began, end := make(chan struct{}), make(chan struct{})
	slow := func(context.Context) (any, int) {
		close(began)
		<-end
		return "done", http.StatusOK
	}
	c := serving(t, l, Answers{Canary: slow, Dogfood: ready("dogfood"), Health: ready("health")})
	first := make(chan int)
	go func() {
		req := &http.Request{Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: l.Addr().String(), Path: "/canary"}}
		resp, err := c.Do(req)
		if err != nil {
			first <- 0
			return
		}
		resp.Body.Close()
		first <- resp.StatusCode
	}()
	<-began
	if status, head, _ := ask(t, c, "POST", "/dogfood", l.Addr().String()); status != 429 || head.Get("Retry-After") == "" {
		t.Errorf("a second probe: %d", status)
	}
	if status, _, _ := ask(t, c, "GET", "/health", l.Addr().String()); status != 200 {
		t.Errorf("health during a probe: %d", status)
	}
	close(end)
	if status := <-first; status != 200 {
		t.Errorf("the first probe: %d", status)
	}
	if status, _, _ := ask(t, c, "POST", "/dogfood", l.Addr().String()); status != 200 {
		t.Errorf("after it: %d", status)
	}
}

// A probe goes on when who asked has gone, and ends with the server.
func TestAProbeEndsWithTheServerOnly(t *testing.T) {
	l, err := ListenLoopback(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	began, ended := make(chan struct{}), make(chan struct{})
	probe := func(ctx context.Context) (any, int) {
		close(began)
		<-ctx.Done()
		close(ended)
		return "ended", http.StatusOK
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, l, Answers{Canary: probe, Dogfood: ready("dogfood"), Health: ready("health")})
	}()
	c := dialled(t, l, "POST /canary HTTP/1.1\r\nHost: "+l.Addr().String()+"\r\n\r\n")
	<-began
	c.Close()
	select {
	case <-ended:
		t.Error("the probe ended with who asked for it")
	case <-time.After(200 * time.Millisecond):
	}
	stop()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the server waits for its probe")
	}
}

func TestSocketIsTheOwnersAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sbx", "serve.sock")
	l, err := ListenUnix(t.Context(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	c := serving(t, l, Answers{Health: ready("health")})
	if status, _, _ := ask(t, c, "GET", "/health", SocketHost); status != 200 {
		t.Errorf("over the socket: %d", status)
	}
	if status, _, _ := ask(t, c, "GET", "/health", "other.test"); status != 403 {
		t.Errorf("under another name: %d", status)
	}
	if _, err := ListenUnix(t.Context(), path, 0); !errors.Is(err, ErrInUse) {
		t.Errorf("a second server: %v", err)
	}
}

func TestSocketsPlaceIsChecked(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	dead, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", stale)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	l, err := ListenUnix(t.Context(), stale, 0)
	if err != nil {
		t.Fatalf("in place of a dead server's: %v", err)
	}
	l.Close()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(t.Context(), file, 0); err == nil {
		t.Error("a file was replaced")
	}
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(t.Context(), filepath.Join(open, "s"), 0); err == nil {
		t.Error("a directory that others write was taken")
	}
}

func TestOnlyLiteralLoopbackAddressesWillDo(t *testing.T) {
	for _, address := range []string{"", ":7080", "0.0.0.0:7080", "localhost:7080", "192.0.2.1:7080", "[::]:7080", "[::ffff:127.0.0.1]:7080", "127.0.0.1", "127.1:7080"} {
		if l, err := ListenLoopback(t.Context(), address); err == nil {
			t.Errorf("%q: listening on %s", address, l.Addr())
			l.Close()
		}
	}
}
