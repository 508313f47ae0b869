package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"

	"golang.org/x/net/http/httpproxy"
	netproxy "golang.org/x/net/proxy"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// ProxyFromEnvironment reads HTTPS_PROXY, HTTP_PROXY and NO_PROXY, in upper and
// lower case, of this process: the host's settings, never the sandbox's.
func ProxyFromEnvironment() func(*url.URL) (*url.URL, error) {
	cfg := httpproxy.FromEnvironment()
	if cfg.HTTPProxy == "" && cfg.HTTPSProxy == "" {
		return nil
	}
	return cfg.ProxyFunc()
}

// ProxyError is what the host's own proxy said instead of opening a tunnel.
type ProxyError struct {
	Proxy  string // without userinfo
	Status string
}

// Error names the proxy, its answer, and for 407 what to do.
func (e *ProxyError) Error() string {
	hint := ""
	if len(e.Status) >= 3 && e.Status[:3] == "407" {
		hint = " (put user and password into HTTPS_PROXY)"
	}
	return fmt.Sprintf("the host's proxy %s answered %s%s", e.Proxy, e.Status, hint)
}

// proxyFor returns the host's proxy for a destination, nil for none. The
// variables tell schemes apart, a dialer knows ports.
func (d *Dialer) proxyFor(host egress.Host, port uint16) (*url.URL, error) {
	if d.opts.Proxy == nil || host.String() == HostName {
		return nil, nil
	}
	u := &url.URL{Scheme: "https", Host: host.InURL() + ":" + strconv.Itoa(int(port))}
	if port == 80 {
		u.Scheme = "http"
	}
	proxy, err := d.opts.Proxy(u)
	if err != nil {
		// The cause repeats the setting, password included.
		return nil, fmt.Errorf("reading the host's proxy settings for %s: HTTPS_PROXY or HTTP_PROXY is not a URL", u.Host)
	}
	return proxy, nil
}

// checkDelegated is all that can be checked when a proxy resolves the name:
// literals, and names that mean the proxy's own machine.
func (d *Dialer) checkDelegated(host egress.Host, a egress.AddressAllowance) error {
	if addr, ok := host.Addr(); ok {
		if err := d.check(addr, a); err != nil {
			return &AddressError{Host: host.String(), Address: addr, Err: err}
		}
		return nil
	}
	if name := host.String(); a != egress.AllowInternal && (name == "localhost" || isUnder(name, "localhost")) {
		err := &egress.AddressError{Addr: netip.IPv6Loopback(), Range: "the proxy's own machine"}
		return &AddressError{Host: name, Address: err.Addr, Err: err}
	}
	return nil
}

func isUnder(name, parent string) bool {
	n := len(name) - len(parent)
	return n > 0 && name[n-1] == '.' && name[n:] == parent
}

// dialProxy opens a tunnel to target through an http, https or socks5 proxy.
func dialProxy(ctx context.Context, proxy *url.URL, target string) (net.Conn, error) {
	switch proxy.Scheme {
	case "http", "https":
		return dialConnect(ctx, proxy, target)
	case "socks5", "socks5h":
		return dialSOCKS(ctx, proxy, target)
	}
	return nil, fmt.Errorf("dialling %s: the host's proxy has the scheme %q; http, https and socks5 are known", target, proxy.Scheme)
}

func dialSOCKS(ctx context.Context, proxy *url.URL, target string) (net.Conn, error) {
	var auth *netproxy.Auth
	if proxy.User != nil {
		password, _ := proxy.User.Password()
		auth = &netproxy.Auth{User: proxy.User.Username(), Password: password}
	}
	s, err := netproxy.SOCKS5("tcp", hostPort(proxy, "1080"), auth, &net.Dialer{})
	if err != nil {
		return nil, fmt.Errorf("setting up the host's proxy %s: %w", proxy.Host, err)
	}
	c, err := s.(netproxy.ContextDialer).DialContext(ctx, "tcp", target)
	if err != nil {
		return nil, fmt.Errorf("dialling %s through the host's proxy: %w", target, err)
	}
	return c, nil
}

func dialConnect(ctx context.Context, proxy *url.URL, target string) (net.Conn, error) {
	port := "80"
	if proxy.Scheme == "https" {
		port = "443"
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", hostPort(proxy, port))
	if err != nil {
		return nil, fmt.Errorf("dialling the host's proxy: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	tunnel, err := connect(ctx, c, proxy, target)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return tunnel, nil
}

func connect(ctx context.Context, c net.Conn, proxy *url.URL, target string) (net.Conn, error) {
	if proxy.Scheme == "https" {
		t := tls.Client(c, &tls.Config{ServerName: proxy.Hostname(), MinVersion: tls.VersionTLS12})
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("opening TLS to the host's proxy %s: %w", proxy.Host, err)
		}
		c = t
	}
	head := "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n"
	if proxy.User != nil {
		password, _ := proxy.User.Password()
		userinfo := proxy.User.Username() + ":" + password
		head += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(userinfo)) + "\r\n"
	}
	if _, err := c.Write([]byte(head + "\r\n")); err != nil {
		return nil, fmt.Errorf("asking the host's proxy %s: %w", proxy.Host, err)
	}
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, fmt.Errorf("reading the answer of the host's proxy %s: %w", proxy.Host, err)
	}
	_ = resp.Body.Close() // a CONNECT's 2xx has no body, and others end the connection
	if resp.StatusCode/100 != 2 {
		return nil, &ProxyError{Proxy: proxy.Host, Status: resp.Status}
	}
	if br.Buffered() == 0 {
		return c, nil
	}
	return &bufferedConn{Conn: c, br: br}, nil
}

// bufferedConn gives back what was read together with the proxy's answer: a
// server that speaks first may be that quick.
type bufferedConn struct {
	net.Conn
	br *bufio.Reader
}

// Read drains the buffer before the connection.
func (c *bufferedConn) Read(p []byte) (int, error) { return c.br.Read(p) }

func hostPort(u *url.URL, port string) string {
	if p := u.Port(); p != "" {
		port = p
	}
	return net.JoinHostPort(u.Hostname(), port)
}
