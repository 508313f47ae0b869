// Package origin is the canary's own stand-in for the internet: servers on the
// host that would answer if egress were open, and that remember who reached them.
package origin

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Sighting is something that reached the origin.
type Sighting struct {
	Via  string // http, https, tcp, udp
	Text string // path of a request, else the first bytes, at most 256
}

// maxSeen bounds what is read of anybody: the origin listens on the host.
const maxSeen = 256

// Origin serves until Close.
type Origin struct {
	roots *x509.CertPool

	certificate []byte // DER

	http  *http.Server
	plain net.Listener
	tls   net.Listener
	bare  []net.Listener   // TCP without HTTP
	udp   []net.PacketConn // datagrams, over UDP and unix sockets
	serve sync.WaitGroup

	mu    sync.Mutex
	seen  []Sighting
	files map[string][]byte // by path; nil: every path is there
}

// Start listens for HTTP and HTTPS on the loopback, and for bare connections and
// datagrams there and on one address of the host of either family, so that a way out
// that does not lead through the loopback would be seen as well. names are those of
// its certificate.
func Start(ctx context.Context, names []string) (*Origin, error) {
	certificate, roots, err := newCertificate(names)
	if err != nil {
		return nil, err
	}
	o := &Origin{roots: roots, certificate: certificate.Certificate[0]}
	if err := o.listen(ctx, certificate); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

func (o *Origin) listen(ctx context.Context, certificate tls.Certificate) (err error) {
	if o.plain, err = listenTCP(ctx, "127.0.0.1"); err != nil {
		return err
	}
	inner, err := listenTCP(ctx, "127.0.0.1")
	if err != nil {
		return err
	}
	o.tls = tls.NewListener(inner, &tls.Config{
		Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12,
	})
	o.http = &http.Server{Handler: o, ReadHeaderTimeout: 5 * time.Second}
	for _, l := range []net.Listener{o.plain, o.tls} {
		o.serve.Go(func() { _ = o.http.Serve(l) })
	}
	for _, address := range append([]string{"127.0.0.1", "::1"}, hostAddresses()...) {
		o.listenBare(ctx, address)
	}
	if len(o.bare) == 0 || len(o.udp) == 0 {
		return errors.New("starting the canary's origin: the host has no loopback address to listen on")
	}
	return nil
}

// listenBare takes an address if the host has it: IPv6 may be switched off.
func (o *Origin) listenBare(ctx context.Context, address string) {
	if l, err := listenTCP(ctx, address); err == nil {
		o.bare = append(o.bare, l)
		o.serve.Go(func() { o.acceptBare(l) })
	}
	c, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", net.JoinHostPort(address, "0"))
	if err == nil {
		o.udp = append(o.udp, c)
		o.serve.Go(func() { o.readDatagrams(c, "udp") })
	}
}

func listenTCP(ctx context.Context, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, fmt.Errorf("starting the canary's origin on %s: %w", address, err)
	}
	return l, nil
}

// hostAddresses is the first global address of either family.
func hostAddresses() []string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil // the loopback is there all the same
	}
	var out []string
	var have [2]bool
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().IsGlobalUnicast() {
			continue
		}
		family := 0
		if p.Addr().Is6() {
			family = 1
		}
		if !have[family] {
			have[family] = true
			out = append(out, p.Addr().String())
		}
	}
	return out
}

// ListenUnix listens for connections and, with "-datagram" beside it, for datagrams on
// a unix socket: a path, or a name that begins with "@".
func (o *Origin) ListenUnix(ctx context.Context, at string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", at)
	if err != nil {
		return fmt.Errorf("starting the canary's origin: %w", err)
	}
	o.bare = append(o.bare, l)
	o.serve.Go(func() { o.acceptUnix(l) })
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: at + "-datagram", Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("starting the canary's origin: %w", err)
	}
	o.udp = append(o.udp, c)
	o.serve.Go(func() { o.readDatagrams(c, "unix datagram") })
	return nil
}

// acceptUnix notes each connection: reaching it is all that can be wrong.
func (o *Origin) acceptUnix(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		o.note("unix socket", l.Addr().String())
		_ = c.Close()
	}
}

// Roots are what the origin's certificate is to be checked against.
func (o *Origin) Roots() *x509.CertPool { return o.roots }

// Certificate is the origin's certificate, its own authority, in DER.
func (o *Origin) Certificate() []byte { return o.certificate }

// Plain is the address of HTTP.
func (o *Origin) Plain() netip.AddrPort { return addrPort(o.plain.Addr()) }

// TLS is the address of HTTPS.
func (o *Origin) TLS() netip.AddrPort { return addrPort(o.tls.Addr()) }

// Bare are the addresses that take any connection.
func (o *Origin) Bare() []netip.AddrPort {
	var out []netip.AddrPort
	for _, l := range o.bare {
		if p := addrPort(l.Addr()); p.IsValid() {
			out = append(out, p)
		}
	}
	return out
}

// UDP are the addresses that take any datagram.
func (o *Origin) UDP() []netip.AddrPort {
	var out []netip.AddrPort
	for _, c := range o.udp {
		if p := addrPort(c.LocalAddr()); p.IsValid() {
			out = append(out, p)
		}
	}
	return out
}

func addrPort(a net.Addr) netip.AddrPort {
	p, _ := netip.ParseAddrPort(a.String()) // invalid for a unix socket
	return p
}

// Seen is everything that reached the origin so far.
func (o *Origin) Seen() []Sighting {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]Sighting(nil), o.seen...)
}

func (o *Origin) note(via, text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.seen) < 10_000 {
		o.seen = append(o.seen, Sighting{via, text[:min(len(text), maxSeen)]})
	}
}

// Publish makes the origin answer with these files, by path, and with 404 for all others.
func (o *Origin) Publish(files map[string][]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.files = files
}

// published returns the content of a path.
func (o *Origin) published(path string) ([]byte, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.files == nil {
		return []byte("the canary's origin\n"), true
	}
	content, ok := o.files[path]
	return content, ok
}

// ServeHTTP answers with what was published, or everything with 200.
func (o *Origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	via := "http"
	if r.TLS != nil {
		via = "https"
	}
	o.note(via, r.URL.Path)
	content, ok := o.published(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	_, _ = w.Write(content)
}

func (o *Origin) acceptBare(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		o.serve.Go(func() {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(2 * time.Second))
			line, _ := bufio.NewReader(io.LimitReader(c, maxSeen)).ReadString('\n')
			o.note("tcp", strings.TrimSpace(line))
			_, _ = io.WriteString(c, "the canary's origin\n")
		})
	}
}

func (o *Origin) readDatagrams(c net.PacketConn, via string) {
	b := make([]byte, maxSeen)
	for {
		n, _, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		o.note(via, string(b[:n]))
	}
}

// Close ends all servers and waits for them.
func (o *Origin) Close() error {
	var errs []error
	if o.http != nil {
		errs = append(errs, o.http.Close())
	}
	for _, l := range []net.Listener{o.plain, o.tls} {
		if l != nil {
			_ = l.Close() // the server has closed what it served
		}
	}
	for _, l := range o.bare {
		errs = append(errs, l.Close())
	}
	for _, c := range o.udp {
		errs = append(errs, c.Close())
	}
	o.serve.Wait()
	return errors.Join(errs...)
}
