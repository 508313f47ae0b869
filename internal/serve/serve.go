// Package serve answers questions about this deployment over HTTP, to callers of this
// machine only: a socket of the owner's, or a literal loopback address.
package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"
)

// SocketHost is the Host that callers of the socket name, which has no address.
const SocketHost = "localhost"

// Answers are what the server answers with: a value for JSON and a status.
type Answers struct {
	Canary  func(context.Context) (any, int)
	Dogfood func(context.Context) (any, int)
	Health  func(context.Context) (any, int)
}

// within makes a probe end by itself or with the server, and not when who asked for it
// has gone: its verdict is kept.
func (a Answers) within(ctx context.Context) Answers {
	canary, dogfood := a.Canary, a.Dogfood
	a.Canary = func(context.Context) (any, int) { return canary(ctx) }
	a.Dogfood = func(context.Context) (any, int) { return dogfood(ctx) }
	return a
}

// ErrInUse is a socket that another server listens on.
var ErrInUse = errors.New("another server listens there")

// ListenUnix makes a socket that only the owner can use, in a directory that is the
// owner's alone, and takes the place of one that a dead server left. rootUID is the uid
// that root's files show, 0 but in some user namespaces.
func ListenUnix(ctx context.Context, path string, rootUID int) (net.Listener, error) {
	dir, err := place(filepath.Dir(path), rootUID)
	if err == nil {
		err = alone(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	path = filepath.Join(dir, filepath.Base(path))
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	// The mode has to be right from the first moment on.
	old := unix.Umask(0o177)
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	return l, nil
}

// removeStale removes a socket that nobody listens on.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking at the old socket: %w", err)
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("listening on %s: there is something that is no socket", path)
	}
	if c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path); err == nil {
		_ = c.Close()
		return fmt.Errorf("listening on %s: %w", path, ErrInUse)
	}
	return os.Remove(path)
}

// ListenLoopback listens on a literal loopback address with a port, as in
// "127.0.0.1:7080"; names and all other addresses are refused.
func ListenLoopback(ctx context.Context, address string) (net.Listener, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().IsLoopback() || at.Addr().Is4In6() || at.Addr().Zone() != "" {
		return nil, fmt.Errorf("listening on %q: only a literal loopback address with a port will do, as in 127.0.0.1:7080", address)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at.String())
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	return l, nil
}

// The bounds of the server. Whoever may connect could otherwise hold its descriptors.
const (
	maxConnections = 64
	headerTime     = 5 * time.Second  // for a request to arrive, from its connection on
	answerTime     = 10 * time.Second // for an answer to be taken
	maxHeader      = 16 << 10         // bytes
)

// Run serves until the context ends, and probes end with it; other requests in flight may
// finish. A connection serves one request.
func Run(ctx context.Context, l net.Listener, a Answers) error {
	s := &http.Server{
		Handler: newHandler(l.Addr(), a.within(ctx)), ReadHeaderTimeout: headerTime, ReadTimeout: headerTime, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	s.SetKeepAlivesEnabled(false)
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(netutil.LimitListener(l, maxConnections)) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serving: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return s.Shutdown(grace)
}

// handler is the whole protocol.
type handler struct {
	host    string // the only Host that is answered
	answers Answers
	probing sync.Mutex // held during a probe: there is one at a time
}

func newHandler(at net.Addr, a Answers) http.Handler {
	h := &handler{host: SocketHost, answers: a}
	if at.Network() != "unix" {
		h.host = at.String()
	}
	return h
}

// ServeHTTP refuses whatever a web page could have sent, then routes.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Type", "application/json")
	head.Set("Cache-Control", "no-store")
	head.Set("X-Content-Type-Options", "nosniff")
	if why := h.foreign(r); why != "" {
		say(w, http.StatusForbidden, problem{why})
		return
	}
	wanted := map[string]string{"/health": http.MethodGet, "/canary": http.MethodPost, "/dogfood": http.MethodPost}[r.URL.Path]
	switch {
	case wanted == "":
		say(w, http.StatusNotFound, problem{"there are /health, /canary and /dogfood"})
	case r.Method != wanted:
		head.Set("Allow", wanted)
		say(w, http.StatusMethodNotAllowed, problem{"use " + wanted})
	case r.ContentLength != 0 || r.URL.RawQuery != "":
		say(w, http.StatusBadRequest, problem{"a request has neither body nor query"})
	default:
		h.answer(w, r)
	}
}

// foreign says why a request may come from a web page or through another name of this
// machine, "" when it cannot.
func (h *handler) foreign(r *http.Request) string {
	site := r.Header.Get("Sec-Fetch-Site")
	switch {
	case r.Host != h.host:
		return "Host has to be " + h.host
	case len(r.Header.Values("Origin")) > 0:
		return "requests of web pages are not answered"
	case site != "" && site != "none" && site != "same-origin":
		return "requests of web pages are not answered"
	}
	return ""
}

func (h *handler) answer(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		v, status := h.answers.Health(r.Context())
		say(w, status, v)
		return
	}
	if !h.probing.TryLock() {
		w.Header().Set("Retry-After", strconv.Itoa(1))
		say(w, http.StatusTooManyRequests, problem{"a probe is in flight; its verdict will be kept for you"})
		return
	}
	defer h.probing.Unlock()
	ask := h.answers.Canary
	if r.URL.Path == "/dogfood" {
		ask = h.answers.Dogfood
	}
	v, status := ask(r.Context())
	say(w, status, v)
}

// problem is the answer to a request that gets none.
type problem struct {
	Error string `json:"error"`
}

func say(w http.ResponseWriter, status int, v any) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"error":"the answer could not be encoded"}`)
	}
	// A connection without deadlines, as in a test's recorder, has none to miss.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime))
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // the caller may have gone
}
