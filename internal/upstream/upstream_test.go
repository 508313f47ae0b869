package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/trap"
)

func host(t testing.TB, s string) egress.Host {
	t.Helper()
	h, err := egress.ParseHost(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// names answers from a table, as the host's resolver would.
func names(table map[string][]string) func(context.Context, string) ([]netip.Addr, error) {
	return func(_ context.Context, name string) ([]netip.Addr, error) {
		list, ok := table[name]
		if !ok {
			return nil, fmt.Errorf("no such host: %s", name)
		}
		var addrs []netip.Addr
		for _, s := range list {
			addrs = append(addrs, netip.MustParseAddr(s))
		}
		return addrs, nil
	}
}

// echo accepts on loopback and counts connections.
func echo(t *testing.T, address string) (port uint16, accepted *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	accepted = new(atomic.Int64)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			wg.Go(func() { defer c.Close(); _, _ = io.Copy(c, c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return netip.MustParseAddrPort(l.Addr().String()).Port(), accepted
}

func roundTrip(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.WriteString(c, "ping"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "ping" {
		t.Fatalf("echo: %q %v", b, err)
	}
}

func TestBypass10_OneBadAddressRefusesTheHost(t *testing.T) {
	port, accepted := echo(t, "127.0.0.1:0")
	d := New(Options{Lookup: names(map[string][]string{"mixed.test": {"192.0.32.10", "127.0.0.1"}})})
	_, err := d.Dial(t.Context(), host(t, "mixed.test"), port, egress.AllowPublic)
	var refused *AddressError
	if !errors.As(err, &refused) || refused.Address != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("a name with a public and a loopback address: %v", err)
	}
	if _, ok := errors.AsType[*egress.AddressError](err); !ok {
		t.Errorf("%v does not wrap *egress.AddressError", err)
	}
	if accepted.Load() != 0 {
		t.Error("something was dialled")
	}
}

func TestSpecialAddressesAreRefused(t *testing.T) {
	d := New(Options{HostAddresses: func() ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("10.1.2.3")}, nil
	}})
	for _, c := range []struct {
		addr string
		a    egress.AddressAllowance
	}{
		{"127.0.0.1", egress.AllowPublic},
		{"::1", egress.AllowRegistry},
		{"10.0.0.1", egress.AllowPublic},
		{"169.254.169.254", egress.AllowInternal},
		{"::ffff:127.0.0.1", egress.AllowRegistry},
		{"64:ff9b::7f00:1", egress.AllowPublic},
		{"0.0.0.0", egress.AllowInternal},
		{"93.184.216.34", egress.AllowPublic}, // the host's own
		{"10.1.2.3", egress.AllowRegistry},    // the host's own
	} {
		var refused *AddressError
		if err := d.Vet(t.Context(), host(t, c.addr), 443, c.a); !errors.As(err, &refused) {
			t.Errorf("%s with allowance %d: %v", c.addr, c.a, err)
		}
	}
	if err := d.Vet(t.Context(), host(t, "10.0.0.1"), 443, egress.AllowRegistry); err != nil {
		t.Errorf("a registry's private address: %v", err)
	}
}

func TestInternalRulesReachLoopback(t *testing.T) {
	port, _ := echo(t, "127.0.0.1:0")
	d := New(Options{Lookup: names(map[string][]string{"up.test": {"127.0.0.1"}})})
	for _, name := range []string{"up.test", "127.0.0.1", HostName} {
		c, err := d.Dial(t.Context(), host(t, name), port, egress.AllowInternal)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		roundTrip(t, c)
		_ = c.Close()
	}
	var refused *AddressError
	if _, err := d.Dial(t.Context(), host(t, HostName), port, egress.AllowRegistry); !errors.As(err, &refused) {
		t.Errorf("%s without internal: %v", HostName, err)
	}
}

func TestRaceGoesOnToTheNextAddress(t *testing.T) {
	port, _ := echo(t, "127.0.0.1:0")
	d := New(Options{Lookup: names(map[string][]string{"two.test": {"127.0.0.2", "127.0.0.1"}, "none.test": {"127.0.0.2", "127.0.0.3"}})})
	c, err := d.Dial(t.Context(), host(t, "two.test"), port, egress.AllowInternal)
	if err != nil {
		t.Fatal(err)
	}
	roundTrip(t, c)
	_ = c.Close()
	if _, err := d.Dial(t.Context(), host(t, "none.test"), port, egress.AllowInternal); err == nil {
		t.Error("a connection to nobody")
	}
}

func TestControlHookRefusesWhatWasNotVetted(t *testing.T) {
	port, accepted := echo(t, "127.0.0.1:0")
	d := New(Options{})
	_, err := d.dialOne(t.Context(), host(t, "up.test"), netip.MustParseAddr("127.0.0.1"), port, egress.AllowPublic)
	var refused *AddressError
	if !errors.As(err, &refused) || accepted.Load() != 0 {
		t.Errorf("dialled past the guard: %v", err)
	}
}

func TestLookupsAreSharedAndShort(t *testing.T) {
	var asked atomic.Int64
	now := time.Unix(100, 0)
	d := New(Options{
		Clock: func() time.Time { return now },
		Lookup: func(context.Context, string) ([]netip.Addr, error) {
			asked.Add(1)
			return []netip.Addr{netip.MustParseAddr("192.0.32.10")}, nil
		},
	})
	h := host(t, "ok.test")
	for range 3 {
		if err := d.Vet(t.Context(), h, 443, egress.AllowPublic); err != nil {
			t.Fatal(err)
		}
	}
	if asked.Load() != 1 {
		t.Errorf("asked %d times", asked.Load())
	}
	now = now.Add(lookupAge)
	if err := d.Vet(t.Context(), h, 443, egress.AllowPublic); err != nil || asked.Load() != 2 {
		t.Errorf("after the answer aged: asked %d times, %v", asked.Load(), err)
	}
}

func TestFailedLookupsAreNotKept(t *testing.T) {
	fail := true
	d := New(Options{Lookup: func(context.Context, string) ([]netip.Addr, error) {
		if fail {
			return nil, errors.New("server misbehaving")
		}
		return []netip.Addr{netip.MustParseAddr("192.0.32.10")}, nil
	}})
	h := host(t, "ok.test")
	if err := d.Vet(t.Context(), h, 443, egress.AllowPublic); err == nil || !strings.Contains(err.Error(), "resolving ok.test") {
		t.Errorf("failing lookup: %v", err)
	}
	fail = false
	if err := d.Vet(t.Context(), h, 443, egress.AllowPublic); err != nil {
		t.Errorf("after it recovered: %v", err)
	}
}

// connectProxy is a CONNECT proxy that maps every name to loopback.
func connectProxy(t *testing.T, auth string) (addr string, seen chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	seen = make(chan string, 8)
	var wg sync.WaitGroup
	serve := func(c net.Conn) {
		defer c.Close()
		br := bufio.NewReader(c)
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		seen <- req.Method + " " + req.Host
		if req.Header.Get("Proxy-Authorization") != auth {
			_, _ = io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
			return
		}
		_, port, _ := net.SplitHostPort(req.Host)
		up, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			return
		}
		defer up.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
		wg.Go(func() { _, _ = io.Copy(up, br); _ = up.(*net.TCPConn).CloseWrite() })
		_, _ = io.Copy(c, up)
	}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serve(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String(), seen
}

func through(raw string) func(*url.URL) (*url.URL, error) {
	return func(*url.URL) (*url.URL, error) { return url.Parse(raw) }
}

func TestCase68_HostProxy(t *testing.T) {
	port, _ := echo(t, "127.0.0.1:0")
	proxy, seen := connectProxy(t, "Basic dTpwQHg=")
	d := New(Options{Proxy: through("http://u:p%40x@" + proxy)})
	c, err := d.Dial(t.Context(), host(t, "only-the-proxy-knows.test"), port, egress.AllowPublic)
	if err != nil {
		t.Fatal(err)
	}
	roundTrip(t, c)
	_ = c.Close()
	if got, want := <-seen, fmt.Sprintf("CONNECT only-the-proxy-knows.test:%d", port); got != want {
		t.Errorf("the proxy saw %q, want %q", got, want)
	}
	if !d.Delegated() {
		t.Error("Delegated is false")
	}
	var refused *AddressError
	for _, name := range []string{"127.0.0.1", "169.254.169.254", "localhost", "a.localhost"} {
		if _, err := d.Dial(t.Context(), host(t, name), port, egress.AllowPublic); !errors.As(err, &refused) {
			t.Errorf("%s through the proxy: %v", name, err)
		}
	}
}

func TestCase68_ProxyAuthenticationIsExplained(t *testing.T) {
	proxy, _ := connectProxy(t, "Basic other")
	d := New(Options{Proxy: through("http://u:secret@" + proxy)})
	_, err := d.Dial(t.Context(), host(t, "ok.test"), 443, egress.AllowPublic)
	var refused *ProxyError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "407") {
		t.Fatalf("%v", err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error holds the password: %v", err)
	}
}

func TestProxySchemes(t *testing.T) {
	d := New(Options{Proxy: through("ftp://proxy.test:1")})
	if _, err := d.Dial(t.Context(), host(t, "ok.test"), 443, egress.AllowPublic); err == nil || !strings.Contains(err.Error(), `"ftp"`) {
		t.Errorf("an unknown scheme: %v", err)
	}
}

func TestSOCKS5(t *testing.T) {
	port, _ := echo(t, "127.0.0.1:0")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b := make([]byte, 512)
		_, _ = io.ReadFull(c, b[:3]) // version, one method, none
		_, _ = c.Write([]byte{5, 0})
		_, _ = io.ReadFull(c, b[:5])
		name := make([]byte, int(b[4])+2)
		_, _ = io.ReadFull(c, name)
		asked <- string(name[:len(name)-2])
		up, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return
		}
		defer up.Close()
		_, _ = c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
		go func() { _, _ = io.Copy(up, c); _ = up.Close() }()
		_, _ = io.Copy(c, up)
	}()
	d := New(Options{Proxy: through("socks5://" + l.Addr().String())})
	c, err := d.Dial(t.Context(), host(t, "ok.test"), port, egress.AllowPublic)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	roundTrip(t, c)
	if got := <-asked; got != "ok.test" {
		t.Errorf("the proxy was asked for %q", got)
	}
}

func TestProxyFromEnvironment(t *testing.T) {
	for _, k := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"} {
		t.Setenv(k, "")
	}
	if ProxyFromEnvironment() != nil {
		t.Error("a proxy without variables")
	}
	t.Setenv("HTTPS_PROXY", "http://proxy.test:3128")
	t.Setenv("NO_PROXY", ".direct.test")
	d := New(Options{Proxy: ProxyFromEnvironment()})
	for name, want := range map[string]bool{"ok.test": true, "a.direct.test": false} {
		u, err := d.proxyFor(host(t, name), 443)
		if err != nil || (u != nil) != want {
			t.Errorf("%s: %v %v", name, u, err)
		}
	}
}

// A fault of whoever resolves names is an error of the request that asked.
func TestAPanicOfTheLookupIsAnError(t *testing.T) {
	d := New(Options{Lookup: func(context.Context, string) ([]netip.Addr, error) { panic("odd") }})
	_, err := d.Dial(t.Context(), host(t, "up.test"), 443, egress.AllowInternal)
	if _, ok := errors.AsType[*trap.Panic](err); !ok {
		t.Errorf("error %v", err)
	}
}
