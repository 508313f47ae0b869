package prober

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"
)

// patience is how long an attempt waits for an answer. Silence is an answer, too.
const patience = time.Second

// closed is what a connection says that ends without an answer.
const closed = "closed"

func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
}

// hostOf is the name in one of the plan's URLs.
func hostOf(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// connection opens one to the address of host: the proxy's, whatever is dialled.
func (a *attacker) connection(host string, port uint16) (net.Conn, error) {
	addr, err := a.address(host)
	if err != nil {
		return nil, err
	}
	return a.dial(netip.AddrPortFrom(addr, port))
}

func (a *attacker) dial(to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(a.ctx, patience)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return c, c.SetDeadline(time.Now().Add(patience))
}

// secured is a TLS connection to dialled with another name in its greeting.
func (a *attacker) secured(dialled, sni string, protocols ...string) (net.Conn, error) {
	c, err := a.connection(dialled, 443)
	if err != nil {
		return nil, err
	}
	t := tls.Client(c, &tls.Config{ServerName: sni, NextProtos: protocols, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // an attacker checks nothing
	if err := t.HandshakeContext(a.ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return t, nil
}

// speak writes text and returns the statuses of all answers, as in "403,400".
func speak(c net.Conn, err error, text string) string {
	if err != nil {
		return refusedHandshake(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		return closed
	}
	return statuses(c)
}

// refusedHandshake folds the ways in which TLS says no into one word.
func refusedHandshake(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || strings.Contains(err.Error(), "tls: ") ||
		nameOf(err) == "ECONNRESET" || nameOf(err) == "EPIPE" {
		return closed
	}
	return nameOf(err)
}

func statuses(c net.Conn) string {
	r := bufio.NewReader(c)
	var out []string
	for len(out) < 8 {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			break
		}
		out = append(out, strconv.Itoa(resp.StatusCode))
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	if len(out) == 0 {
		return closed
	}
	return strings.Join(out, ",")
}

// get is a request line with its headers.
func get(target, host string, headers ...string) string {
	lines := append([]string{"GET " + target + " HTTP/1.1", "Host: " + host}, headers...)
	return strings.Join(append(lines, "", ""), "\r\n")
}

// secret is a path that nothing may reach: the origin knows the nonce.
func (a *attacker) secret(segment string) string { return "/" + segment + "/" + a.Nonce }

// viaTLS speaks over TLS to the granted host.
func viaTLS(text func(*attacker) string) func(*attacker) string {
	return func(a *attacker) string {
		granted := hostOf(a.Granted)
		c, err := a.secured(granted, granted)
		return speak(c, err, text(a))
	}
}

// viaHTTP speaks plain HTTP to the granted host's address.
func viaHTTP(text func(*attacker) string) func(*attacker) string {
	return func(a *attacker) string {
		c, err := a.connection(hostOf(a.Granted), 80)
		return speak(c, err, text(a))
	}
}

// viaProxy speaks to the explicit proxy.
func viaProxy(text func(*attacker) string) func(*attacker) string {
	return func(a *attacker) string {
		u, err := url.Parse(a.Proxy)
		if err != nil {
			return err.Error()
		}
		at, err := netip.ParseAddrPort(u.Host)
		if err != nil {
			return err.Error()
		}
		c, err := a.dial(at)
		return speak(c, err, text(a))
	}
}

// authorityAttempts name one host to the policy and another to the packet
// (bypasses 1 to 15).
func authorityAttempts() []attempt {
	const no = "421|520|400|403|closed"
	host := func(host string) func(*attacker) string {
		return func(a *attacker) string {
			return get(a.secret("host"), strings.ReplaceAll(strings.ReplaceAll(host, "{u}", hostOf(a.Unlisted)), "{g}", hostOf(a.Granted)))
		}
	}
	all := []attempt{
		{"fronting: greeting granted, Host not", no, viaTLS(host("{u}"))},
		{"fronting: greeting not granted, Host is", no, func(a *attacker) string {
			c, err := a.secured(hostOf(a.Granted), hostOf(a.Unlisted))
			return speak(c, err, get(a.secret("sni"), hostOf(a.Granted)))
		}},
		{"no name in the greeting", no, func(a *attacker) string {
			c, err := a.secured(hostOf(a.Granted), "")
			return speak(c, err, get(a.secret("nosni"), hostOf(a.Unlisted)))
		}},
		{"target names one host, Host another", no, viaTLS(func(a *attacker) string {
			return get("https://"+hostOf(a.Unlisted)+a.secret("absolute"), hostOf(a.Granted))
		})},
		{"plain HTTP: address granted, Host not", no, viaHTTP(host("{u}"))},
		{"plain HTTP: target not granted, Host is", no, viaHTTP(func(a *attacker) string {
			return get("http://"+hostOf(a.Unlisted)+a.secret("absolute"), hostOf(a.Granted))
		})},
		{"explicit: target not granted, Host is", no, viaProxy(func(a *attacker) string {
			return get("http://"+hostOf(a.Unlisted)+a.secret("absolute"), hostOf(a.Granted))
		})},
		{"explicit: user name before the host", no, viaProxy(func(a *attacker) string {
			return get("http://"+hostOf(a.Granted)+"@"+hostOf(a.Unlisted)+a.secret("userinfo"), hostOf(a.Granted))
		})},
		{"explicit: tunnel to one, greeting of another", no, tunnelTo},
		{"a tunnel inside the intercepted one", no + "|405", viaTLS(func(a *attacker) string {
			return "CONNECT " + hostOf(a.Unlisted) + ":443 HTTP/1.1\r\nHost: " + hostOf(a.Unlisted) + ":443\r\n\r\n"
		})},
		{"HTTP/2: authority not granted", no, func(a *attacker) string { return speakH2(a, hostOf(a.Unlisted), a.secret("h2")) }},
	}
	for name, odd := range map[string]string{
		"NUL": "{g}\x00.{u}", "trailing dot": "{u}.", "two dots": "{u}..", "upper case": "UNLISTED.CANARY.TEST", "brackets": "[{u}]",
		"a second Host": "{g}\r\nHost: {u}", "another port": "{g}:8443", "white space": "{g} {u}", "tab": "{g}\t{u}", "comma": "{g},{u}",
		"percent": "%75nlisted.canary.test", "number": "2130706433", "octal": "0177.0.0.1", "hex": "0x7f.1", "short": "127.1",
		"mapped": "[::ffff:127.0.0.1]", "empty": "", "full-width dot": "unlisted\uff0ecanary.test",
	} {
		all = append(all, attempt{"odd Host: " + name, no, viaTLS(host(odd))}, attempt{"odd Host, plain: " + name, no, viaHTTP(host(odd))})
	}
	return all
}

func tunnelTo(a *attacker) string {
	u, err := url.Parse(a.Proxy)
	if err != nil {
		return err.Error()
	}
	c, err := (&net.Dialer{Timeout: patience}).DialContext(a.ctx, "tcp", u.Host)
	if err != nil {
		return nameOf(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	granted := hostOf(a.Granted)
	fmt.Fprintf(c, "CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\n\r\n", granted, granted)
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // a tunnel has none
	if err != nil {
		return closed
	}
	if resp.StatusCode != http.StatusOK {
		return strconv.Itoa(resp.StatusCode)
	}
	t := tls.Client(c, &tls.Config{ServerName: hostOf(a.Unlisted), InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // an attacker checks nothing
	if err := t.HandshakeContext(a.ctx); err != nil {
		return refusedHandshake(err)
	}
	return speak(t, nil, get(a.secret("tunnel"), hostOf(a.Unlisted)))
}

// pathAttempts leave the granted path in spellings that a server may resolve
// (bypasses 14 to 22).
func pathAttempts() []attempt {
	var all []attempt
	for name, path := range map[string]string{
		"dot segments": "/allowed/../refused/{n}", "encoded": "/allowed/%2e%2e/refused/{n}", "half encoded": "/allowed/.%2e/refused/{n}",
		"twice encoded": "/allowed/%252e%252e/refused/{n}", "with parameter": "/allowed/..;/refused/{n}", "with encoded parameter": "/allowed/..%3b/refused/{n}",
		"backslash": "/allowed/..\\refused\\{n}", "encoded backslash": "/allowed/..%5crefused%5c{n}", "encoded slash": "/allowed/..%2frefused%2f{n}",
		"NUL": "/allowed/{n}%00", "empty segment": "/allowed//{n}", "leading slashes": "//refused/{n}", "neighbour": "/allowed-too/{n}",
		"deeper": "/allowed/{n}/deeper", "upper case": "/ALLOWED/{n}", "no slash": "allowed/{n}", "asterisk": "*", "overlong dot": "/allowed/%c0%ae%c0%ae/refused/{n}",
		"control": "/allowed/{n}%0d%0aX:y", "fragment": "/refused/{n}#/allowed/x", "question in path": "/refused/{n}%3f/allowed/x",
	} {
		text := func(a *attacker) string {
			return get(strings.ReplaceAll(path, "{n}", a.Nonce), hostOf(a.Granted), "Connection: close")
		}
		all = append(all, attempt{name, "403|400|closed", viaTLS(text)})
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get", "GET\x0b"} {
		all = append(all, attempt{"method " + strconv.Quote(method), "403|400|405|closed", viaTLS(func(a *attacker) string {
			return method + " " + a.secret(a.Allowed) + " HTTP/1.1\r\nHost: " + hostOf(a.Granted) + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
		})})
	}
	return all
}

// framingAttempts hide one request in another (bypasses 17 to 21).
func framingAttempts() []attempt {
	hidden := func(a *attacker) string {
		return "GET " + a.secret("smuggled") + " HTTP/1.1\r\nHost: " + hostOf(a.Granted) + "\r\n\r\n"
	}
	var all []attempt
	for name, headers := range map[string]string{
		"two lengths": "Content-Length: 0\r\nContent-Length: 40\r\n", "list of lengths": "Content-Length: 0, 40\r\n", "length with sign": "Content-Length: +40\r\n",
		"length and chunked": "Content-Length: 40\r\nTransfer-Encoding: chunked\r\n", "chunked twice": "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
		"chunked, hidden": "Transfer-Encoding:\x0bchunked\r\n", "identity": "Transfer-Encoding: identity\r\nContent-Length: 0\r\n", "chunked last but one": "Transfer-Encoding: chunked, gzip\r\n",
		"folded header": "X: y\r\n Content-Length: 40\r\n", "bare newline": "X: y\nContent-Length: 40\r\n", "bare return": "X: y\rContent-Length: 40\r\n",
		"space before colon": "Content-Length : 40\r\n", "NUL in a header": "X: \x00\r\n", "no name": ": y\r\n",
	} {
		all = append(all, attempt{name, "400|403|411|501|closed", viaTLS(func(a *attacker) string {
			return "GET " + a.secret("refused") + " HTTP/1.1\r\nHost: " + hostOf(a.Granted) + "\r\n" + headers + "\r\n" + hidden(a)
		})})
	}
	return append(all,
		attempt{"pipelined behind a granted one", "200|403|closed", viaTLS(func(a *attacker) string { // the origin tells whether the second got through
			return get(a.secret(a.Allowed), hostOf(a.Granted)) + hidden(a)
		})},
		attempt{"HTTP/1.0, kept alive", "200|400|403|505|closed", viaTLS(func(a *attacker) string {
			return strings.Replace(get(a.secret(a.Allowed), hostOf(a.Granted), "Connection: keep-alive"), "HTTP/1.1", "HTTP/1.0", 1) + hidden(a)
		})},
		attempt{"upgrade to h2c", "400|403|421|501|520", viaHTTP(func(a *attacker) string {
			return get(a.secret("h2c"), hostOf(a.Granted), "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
		})},
		attempt{"h2c without asking", "400|403|505|520|closed", viaHTTP(func(*attacker) string { return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" })},
		attempt{"upgrade to a websocket", "400|403|426|501", viaTLS(func(a *attacker) string {
			return get(a.secret(a.Allowed), hostOf(a.Granted), "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
		})},
		attempt{"no HTTP at all", "400|520|closed", viaTLS(func(a *attacker) string { return a.Nonce + "\n" })},
		attempt{"SSH on the HTTPS port", "400|403|520|closed", func(a *attacker) string {
			c, err := a.connection(hostOf(a.Granted), 443)
			return speak(c, err, "SSH-2.0-"+a.Nonce+"\r\n")
		}},
	)
}

// speakH2 sends one GET over HTTP/2 and returns the answer's status.
func speakH2(a *attacker, authority, path string) string {
	granted := hostOf(a.Granted)
	c, err := a.secured(granted, granted, "h2")
	if err != nil {
		return refusedHandshake(err)
	}
	defer c.Close()
	return exchangeH2(c, [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", authority}, {":path", path}})
}

// exchangeH2 is a client of RFC 9113 as small as it gets: preface, settings, one
// HEADERS frame; then frames are read until one has a status.
func exchangeH2(c net.Conn, fields [][2]string) string {
	var block strings.Builder
	encoder := hpack.NewEncoder(&block)
	for _, f := range fields {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	const settings, headers, endBoth = 4, 1, 0x5
	_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+frame(settings, 0, 0, "")+frame(headers, endBoth, 1, block.String()))
	status := closed
	decoder := hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == ":status" {
			status = f.Value
		}
	})
	var head [9]byte
	for status == closed {
		if _, err := io.ReadFull(c, head[:]); err != nil {
			break
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(c, payload); err != nil {
			break
		}
		if head[3] == headers {
			_, _ = decoder.Write(payload)
		}
	}
	return status
}

func frame(kind, flags, stream byte, payload string) string {
	n := len(payload)
	return string([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, flags, 0, 0, 0, stream}) + payload //nolint:gosec // three bytes of length
}
