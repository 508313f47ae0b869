package proxy_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
)

// door is one of the ways in which a request reaches the proxy: every one ends at the
// same pipeline, and a test of that goes through each.
type door struct {
	name   string
	scheme string
	client way // for whole clients
	// open returns a connection on which raw HTTP/1 to a host can be written.
	open func(w *world, host string, port uint16) net.Conn
}

var doors = []door{
	{"plain HTTP", "http", transparent, func(w *world, host string, port uint16) net.Conn { return w.raw(host, port) }},
	{"transparent TLS", "https", transparent, func(w *world, host string, port uint16) net.Conn { return w.rawTLS(host, host, port) }},
	{"explicit CONNECT", "https", explicit, func(w *world, host string, port uint16) net.Conn {
		return w.overTLS(w.connect(host, port), host)
	}},
}

// overTLS makes the handshake of a client that trusts the run's authority.
func (w *world) overTLS(c net.Conn, sni string, protos ...string) *tls.Conn {
	w.t.Helper()
	t := tls.Client(c, &tls.Config{ServerName: sni, RootCAs: w.roots(), NextProtos: protos, InsecureSkipVerify: sni == ""})
	if err := t.HandshakeContext(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return t
}

// site is a world with one origin behind every door.
type site struct {
	*world
	ports map[string]uint16 // by scheme
}

func newSite(t testing.TB, h http.HandlerFunc, names []string, options ...option) *site {
	w := newWorld(t, options...)
	return &site{w, map[string]uint16{"http": w.origin(h, true), "https": w.origin(h, false, names...)}}
}

// rawSite answers the raw connections of every door with f.
func rawSite(t testing.TB, f func(c net.Conn, br *bufio.Reader), name string, options ...option) *site {
	w := newWorld(t, options...)
	return &site{w, map[string]uint16{"http": w.rawOrigin("", f), "https": w.rawOrigin(name, f)}}
}

// allow grants rules that hold for every door.
func (s *site) allow(hosts, methods, path string, f ...func(*egress.Rule)) {
	s.t.Helper()
	s.grant(s.rules(hosts, methods, path, f...)...)
}

func (s *site) rules(hosts, methods, path string, f ...func(*egress.Rule)) []egress.Rule {
	s.t.Helper()
	var rules []egress.Rule
	for host := range strings.FieldsSeq(hosts) {
		rules = append(rules, rule(s.t, host, s.ports["https"], methods, path, f...))
		rules = append(rules, rule(s.t, host, s.ports["http"], methods, path, append(f, plainHTTP)...))
	}
	return rules
}

// url is where a door finds a path of a host.
func (s *site) url(d door, host, path string) string {
	return urlFor(d.scheme, host, s.ports[d.scheme], path)
}

// authority is the Host of a host behind a door.
func (s *site) authority(d door, host string) string {
	return fmt.Sprintf("%s:%d", host, s.ports[d.scheme])
}

// ask writes text, in which HOST stands for the authority of host, to a new
// connection, and returns all that comes back with the rows that it made.
func (s *site) ask(d door, host, text string) (string, []event.Request) {
	s.t.Helper()
	before := len(s.world.rows.all())
	c := d.open(s.world, host, s.ports[d.scheme])
	defer c.Close()
	got := exchangeRaw(s.t, c, strings.ReplaceAll(text, "HOST", s.authority(d, host)))
	return got, s.world.rows.all()[before:]
}

// answer is ask for one request: its answer is read, and no more awaited.
func (s *site) answer(d door, host, method, text string) (answer, []event.Request) {
	s.t.Helper()
	before := len(s.world.rows.all())
	c := d.open(s.world, host, s.ports[d.scheme])
	defer c.Close()
	go func() { _, _ = io.WriteString(c, strings.ReplaceAll(text, "HOST", s.authority(d, host))) }()
	got := readAnswer(bufio.NewReader(c), method)
	return got, s.world.rows.all()[before:]
}

// eachDoor runs f as a subtest for every door.
func eachDoor(t *testing.T, f func(t *testing.T, d door)) {
	t.Helper()
	for _, d := range doors {
		t.Run(d.name, func(t *testing.T) { f(t, d) })
	}
}

// denied checks that rows are one denial with a code.
func denied(t testing.TB, what string, rows []event.Request, code egress.Code) {
	t.Helper()
	if len(rows) != 1 || !rows[0].Denied() || rows[0].Code != string(code) {
		t.Errorf("%s: want one denial %s, got %+v", what, code, rows)
	}
}
