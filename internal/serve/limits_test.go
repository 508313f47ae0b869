package serve

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// dialled opens a connection and says something on it.
func dialled(t *testing.T, l net.Listener, text string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), l.Addr().Network(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

// answerOf is the answer's status and text, and whether the connection ends with it.
func answerOf(t *testing.T, c net.Conn) (status int, ends bool, text string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) { // what was not read of a request that is too long
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Close, string(body)
}

// Whoever holds all connections open without asking anything is let go, and who comes
// after is served.
func TestSilentConnectionsAreLetGo(t *testing.T) {
	l, err := ListenLoopback(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving(t, l, Answers{Health: ready("health")})
	var silent []net.Conn
	for i := range maxConnections {
		text := ""
		if i%2 == 0 { // some begin a request, and never end it
			text = "GET /health HTTP/1.1\r\nHost: " + l.Addr().String() + "\r\nX: "
		}
		silent = append(silent, dialled(t, l, text))
	}
	asked := dialled(t, l, "GET /health HTTP/1.1\r\nHost: "+l.Addr().String()+"\r\n\r\n")
	if status, ends, text := answerOf(t, asked); status != http.StatusOK || !ends {
		t.Errorf("%d, ends %v: %s", status, ends, text)
	}
	for _, c := range silent {
		if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a silent connection: %v", err)
		}
	}
}

func TestRequestsThatAreNoneAreRefused(t *testing.T) {
	l, err := ListenLoopback(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	own := l.Addr().String()
	serving(t, l, Answers{Canary: ready("canary"), Health: ready("health")})
	for name, row := range map[string]struct {
		text string
		want int
	}{
		"a long header":            {"GET /health HTTP/1.1\r\nHost: " + own + "\r\nX: " + strings.Repeat("x", 2*maxHeader) + "\r\n\r\n", 431},
		"many headers":             {"GET /health HTTP/1.1\r\nHost: " + own + strings.Repeat("\r\nX: y", 2*maxHeader) + "\r\n\r\n", 431},
		"a target elsewhere":       {"GET http://rebound.test/health HTTP/1.1\r\nHost: " + own + "\r\n\r\n", 403},
		"no Host":                  {"GET /health HTTP/1.0\r\n\r\n", 403},
		"two Hosts":                {"GET /health HTTP/1.1\r\nHost: " + own + "\r\nHost: rebound.test\r\n\r\n", 400},
		"a body":                   {"POST /canary HTTP/1.1\r\nHost: " + own + "\r\nContent-Length: 1\r\n\r\nx", 400},
		"a body in chunks":         {"POST /canary HTTP/1.1\r\nHost: " + own + "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"an empty Origin":          {"GET /health HTTP/1.1\r\nHost: " + own + "\r\nOrigin: \r\n\r\n", 403},
		"a tunnel":                 {"CONNECT " + own + " HTTP/1.1\r\nHost: " + own + "\r\n\r\n", 404},
		"a path with dots":         {"GET /x/../health HTTP/1.1\r\nHost: " + own + "\r\n\r\n", 404},
		"another spelling of Host": {"GET /health HTTP/1.1\r\nHost: " + own + ".\r\n\r\n", 403},
	} {
		t.Run(name, func(t *testing.T) {
			if status, _, text := answerOf(t, dialled(t, l, row.text)); status != row.want {
				t.Errorf("%d: %s; want %d", status, text, row.want)
			}
		})
	}
}

// A probe that was begun ends, also when who asked for it has gone.
func TestAProbeOutlivesItsCaller(t *testing.T) {
	l, err := ListenLoopback(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	began, gone, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	serving(t, l, Answers{Canary: func(ctx context.Context) (any, int) {
		close(began)
		<-gone
		ended <- ctx.Err()
		return "done", http.StatusOK
	}})
	c := dialled(t, l, "POST /canary HTTP/1.1\r\nHost: "+l.Addr().String()+"\r\nContent-Length: 0\r\n\r\n")
	<-began
	c.Close()
	close(gone)
	if err := <-ended; err != nil {
		t.Errorf("the probe was ended: %v", err)
	}
}

func TestSocketsPlaceIsNobodyElses(t *testing.T) {
	top := t.TempDir()
	dir := func(name string, mode os.FileMode) string {
		path := filepath.Join(top, name)
		if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(name, to string) string {
		path := filepath.Join(top, name)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	mine, open, sticky := dir("mine", 0o700), dir("open", 0o777), dir("sticky", 0o777|os.ModeSticky)
	if err := os.Mkdir(filepath.Join(open, "mine"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		dir  string
		good bool
	}{
		"own":                             {mine, true},
		"by a link of one's own":          {link("link", mine), true},
		"made for it":                     {filepath.Join(mine, "new", "deeper"), true},
		"below a directory of everyone's": {filepath.Join(sticky, "new"), true},
		"in a directory of everyone's":    {sticky, false},
		"below what others write":         {filepath.Join(open, "mine"), false},
		"by a link to there":              {link("trap", filepath.Join(open, "mine")), false},
		"a link to itself":                {link("loop", "loop"), false},
		"a file":                          {link("passwd", "/etc/passwd"), false},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := ListenUnix(t.Context(), filepath.Join(row.dir, "s"), 0)
			if (err == nil) != row.good {
				t.Errorf("listening: %v", err)
			}
			if err == nil {
				l.Close()
			}
		})
	}
	if os.Geteuid() == 0 { // who else could give a link away
		foreign := link("foreign", mine)
		if err := os.Lchown(foreign, 1, 1); err != nil {
			t.Fatal(err)
		}
		if l, err := ListenUnix(t.Context(), filepath.Join(foreign, "s"), 0); err == nil {
			l.Close()
			t.Error("a link of somebody else's was followed")
		}
	}
}
