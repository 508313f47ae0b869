package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
)

// scriptConn says what it was given, then ends.
type scriptConn struct {
	io.Reader
	net.Conn
}

func (c *scriptConn) Read(p []byte) (int, error)       { return c.Reader.Read(p) }
func (c *scriptConn) Write(p []byte) (int, error)      { return len(p), nil }
func (c *scriptConn) Close() error                     { return nil }
func (c *scriptConn) SetDeadline(time.Time) error      { return nil }
func (c *scriptConn) SetReadDeadline(time.Time) error  { return nil }
func (c *scriptConn) SetWriteDeadline(time.Time) error { return nil }

// ledger checks the property of every path: as many rows as ids, and no faults.
type ledger struct {
	mu     sync.Mutex
	faults []string
}

func (l *ledger) Record(r event.Request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.Contains(r.Reason, "internal error") {
		l.faults = append(l.faults, r.Reason)
	}
	return nil
}

func (l *ledger) Complete(event.Completion) {}

// FuzzConnection states that no bytes from inside make the proxy fail or hang,
// and that none of them reach a host without a grant.
func FuzzConnection(f *testing.F) {
	for _, seed := range []string{
		"GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n", "GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n",
		"CONNECT ok.test:443 HTTP/1.1\r\nHost: ok.test:443\r\n\r\nGET / HTTP/1.1\r\n", "SSH-2.0-x\r\n", "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
		"POST / HTTP/1.1\r\nHost: ok.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Add(h2Script())
	host, err := egress.ParseHostPattern("ok.test")
	if err != nil {
		f.Fatal(err)
	}
	path, err := egress.ParsePathPattern("/**", true)
	if err != nil {
		f.Fatal(err)
	}
	policy, err := egress.Compile([]egress.Rule{
		{ID: "t/h", Protocol: egress.ProtocolHTTP, Host: host, Methods: []string{"GET", "POST"}, Path: path, MaxBody: 4 << 20, WebSocket: true},
		{ID: "t/s", Protocol: egress.ProtocolHTTPS, Host: host, Methods: []string{"GET", "POST"}, Path: path, MaxBody: 1000},
		{ID: "t/t", Protocol: egress.ProtocolHTTPS, Host: host, Ports: []uint16{8443}, Tunnel: true},
	}, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		l := &ledger{}
		s := New(Config{
			Recorder: l, NameOf: func(netip.Addr) (string, bool) { return "ok.test", true },
			Dial: func(_ context.Context, h egress.Host, port uint16, _ egress.AddressAllowance) (net.Conn, error) {
				if h.String() != "ok.test" || port != 80 && port != 443 && port != 8443 {
					t.Errorf("%q dialled %s:%d", data, h, port)
				}
				return nil, &net.DNSError{IsNotFound: true}
			},
			Limits: Limits{Linger: time.Millisecond},
		})
		s.Apply(policy)
		for _, port := range []uint16{80, 443, 8443} {
			c := &scriptConn{Reader: bytes.NewReader(data)}
			s.handlers.Add(1)
			func() {
				defer s.handlers.Done()
				defer s.survive(c)
				s.serveTransparent(c, func(net.Conn) (netip.AddrPort, error) {
					return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, 1, 0}), port), nil
				})
			}()
		}
		c := &scriptConn{Reader: bytes.NewReader(data)}
		func() { defer s.survive(c); s.serveExplicit(c) }()
		if err := s.Close(t.Context()); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if len(l.faults) > 0 {
			t.Errorf("%q: %v", data, l.faults)
		}
	})
}

// h2Script is a small HTTP/2 conversation with prior knowledge.
func h2Script() []byte {
	var out, block bytes.Buffer
	out.WriteString(http2.ClientPreface)
	fr := http2.NewFramer(&out, nil)
	enc := hpack.NewEncoder(&block)
	_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100})
	for _, f := range []hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "ok.test"}, {Name: ":path", Value: "/x"}} {
		_ = enc.WriteField(f)
	}
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	_ = fr.WriteData(1, true, []byte("hello"))
	_ = fr.WriteWindowUpdate(0, 100)
	_ = fr.WritePing(false, [8]byte{})
	_ = fr.WriteRSTStream(1, http2.ErrCodeCancel)
	return out.Bytes()
}
