package sbxtest

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
)

// Received is one request as a server of the world got it.
type Received struct {
	Method   string
	Host     string // Host header or :authority
	Target   string // the request target, as sent
	Protocol string // HTTP/1.1 or HTTP/2.0
	TLS      bool
	Header   http.Header
	Body     []byte // what the handler had read of it by the end
}

// Server is one host of the world.
type Server struct {
	Name  string
	Addrs []netip.Addr // IPv4 first

	mu       sync.Mutex
	received []*Received
}

// Requests is what the server has received so far. Bodies are complete for
// requests whose handler is done.
func (s *Server) Requests() []Received {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Received, len(s.received))
	for i, r := range s.received {
		all[i] = *r
		all[i].Body = slices.Clone(r.Body)
	}
	return all
}

// Serve starts a host of the world under any name: HTTPS on port 443, over
// HTTP/1.1 and HTTP/2 with a certificate of the lab's CA, and HTTP on port 80.
func (l *Lab) Serve(name string, handler http.Handler) *Server {
	l.t.Helper()
	s := l.addServer(name)
	for _, addr := range s.Addrs {
		l.serveHTTP(s, l.listen(addr, 80), handler)
		l.serveHTTP(s, tls.NewListener(l.listen(addr, 443), l.serverTLS(name, "h2", "http/1.1")), handler)
	}
	return s
}

// addServer gives name its addresses, once.
func (l *Lab) addServer(name string) *Server {
	l.t.Helper()
	if l.world == nil {
		l.t.Fatal("a lab with the real network has no servers")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.servers[name]; s != nil {
		return s
	}
	addrs, err := l.world.address(name)
	if err != nil {
		l.t.Fatal(err)
	}
	l.writeHosts()
	s := &Server{Name: name, Addrs: addrs}
	l.servers[name] = s
	return s
}

func (l *Lab) listen(addr netip.Addr, port uint16) net.Listener {
	l.t.Helper()
	listener, err := l.world.listen(netip.AddrPortFrom(addr, port))
	if err != nil {
		l.t.Fatal(err)
	}
	return listener
}

func (l *Lab) serverTLS(name string, protocols ...string) *tls.Config {
	l.t.Helper()
	leaf, err := l.ca.leaf(name)
	if err != nil {
		l.t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{leaf}, NextProtos: protocols}
}

func (l *Lab) serveHTTP(s *Server, listener net.Listener, handler http.Handler) {
	server := &http.Server{
		Handler:   s.recording(handler),
		ErrorLog:  log.New(io.Discard, "", 0), // clients that give up are part of the tests
		Protocols: new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	l.t.Cleanup(func() {
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			l.t.Errorf("serving %s: %v", s.Name, err)
		}
	})
}

// recording notes each request before the handler sees it.
func (s *Server) recording(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := &Received{
			Method: r.Method, Host: r.Host, Target: r.RequestURI, Protocol: r.Proto,
			TLS: r.TLS != nil, Header: r.Header.Clone(),
		}
		s.mu.Lock()
		s.received = append(s.received, got)
		s.mu.Unlock()
		var body bytes.Buffer
		r.Body = tee{io.TeeReader(r.Body, &body), r.Body}
		handler.ServeHTTP(w, r)
		s.mu.Lock()
		got.Body = body.Bytes()
		s.mu.Unlock()
	})
}

// tee is a body that is copied as it is read.
type tee struct {
	io.Reader
	io.Closer
}

// Raw is a host that records exact bytes.
type Raw struct {
	*Server

	mu    sync.Mutex
	conns []*bytes.Buffer
}

// Received is what each connection to the host has sent so far, in the order
// of their opening. Over TLS it is what was inside.
func (r *Raw) Received() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([][]byte, len(r.conns))
	for i, c := range r.conns {
		all[i] = slices.Clone(c.Bytes())
	}
	return all
}

// Protocol is what a raw host speaks below the bytes that it records.
type Protocol uint8

// PlainTCP records the stream itself; OverTLS1 and OverTLS2 record what is
// inside TLS after negotiating http/1.1 or h2.
const (
	PlainTCP Protocol = iota
	OverTLS1
	OverTLS2
)

// ServeRaw starts a host that records every byte and answers with what talk
// writes. The connection is closed when talk returns.
func (l *Lab) ServeRaw(name string, port uint16, below Protocol, talk func(net.Conn)) *Raw {
	l.t.Helper()
	raw := &Raw{Server: l.addServer(name)}
	for _, addr := range raw.Addrs {
		listener := l.listen(addr, port)
		switch below {
		case OverTLS1:
			listener = tls.NewListener(listener, l.serverTLS(name, "http/1.1"))
		case OverTLS2:
			listener = tls.NewListener(listener, l.serverTLS(name, "h2"))
		case PlainTCP:
		}
		go raw.accept(listener, talk)
		l.t.Cleanup(func() { _ = listener.Close() })
	}
	return raw
}

func (r *Raw) accept(listener net.Listener, talk func(net.Conn)) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // closed at the end of the test
		}
		log := &bytes.Buffer{}
		r.mu.Lock()
		r.conns = append(r.conns, log)
		r.mu.Unlock()
		go func() {
			defer conn.Close()
			talk(&recordedConn{Conn: conn, raw: r, log: log})
		}()
	}
}

// recordedConn notes what is read from it.
type recordedConn struct {
	net.Conn
	raw *Raw
	log *bytes.Buffer
}

// Read reads and records.
func (c *recordedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.raw.mu.Lock()
	c.log.Write(p[:n])
	c.raw.mu.Unlock()
	return n, err
}
