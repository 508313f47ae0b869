package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// dialled is the context key of the connection that transport2 is to use.
type dialled struct{}

// transport2 speaks HTTP/2 over the connection in its context and dials nothing.
func transport2() *http.Transport {
	given := func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, ok := ctx.Value(dialled{}).(net.Conn)
		if !ok {
			return nil, errors.New("no connection was given")
		}
		return c, nil
	}
	t := &http.Transport{
		DialContext: given, DialTLSContext: given,
		DisableCompression:     true,
		MaxResponseHeaderBytes: int64(responseLimits.block),
		Protocols:              new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			// Only a connection whose other end has vanished fails this.
			SendPingTimeout: time.Minute,
			// What a client does not read waits here, for each of its requests.
			MaxReceiveBufferPerStream:     512 << 10,
			MaxReceiveBufferPerConnection: 64 << 20,
		},
	}
	t.Protocols.SetHTTP2(true)
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// speak2 begins HTTP/2 on a connection and reserves its first request.
func (p *pool) speak2(ctx context.Context, c *upConn) (*http.ClientConn, error) {
	scheme := "http"
	if c.key.tls {
		scheme = "https"
	}
	address := net.JoinHostPort(c.key.host.String(), strconv.Itoa(int(c.key.port)))
	cc, err := p.h2t.NewClientConn(context.WithValue(ctx, dialled{}, c.nc), scheme, address)
	if err != nil {
		return nil, fmt.Errorf("beginning HTTP/2 with %s: %w", address, err)
	}
	if err := cc.Reserve(); err != nil {
		return nil, fmt.Errorf("reserving a request at %s: %w", address, err)
	}
	return cc, nil
}

// roundTrip2 sends a request over HTTP/2 and returns the final response's head.
func roundTrip2(ctx context.Context, cc shared, o *outgoing) (*response, error) {
	o.begun = o.stream != nil
	if o.expects {
		if err := o.proceed(); err != nil {
			return nil, err
		}
	}
	o.sends++ // as far as is known
	ctx, cancel := context.WithCancel(ctx)
	if o.left != nil {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: o.left})
	}
	resp, err := cc.RoundTrip(o.request2(ctx)) //nolint:bodyclose // closed by the response's close
	if err != nil {
		cancel()
		if o.stream != nil {
			return nil, err
		}
		return nil, unanswered{err, true}
	}
	out := response2(resp, o.method)
	out.address = cc.address
	out.close = func(bool) {
		cancel() // resets the stream when it has not ended
		_ = resp.Body.Close()
		if o.stream != nil {
			o.interrupt()
		}
	}
	return out, nil
}

// request2 builds the request so that the target's bytes are the client's own
// and no header is made up.
func (o *outgoing) request2(ctx context.Context) *http.Request {
	scheme := "http"
	if o.key.tls {
		scheme = "https"
	}
	req := &http.Request{
		Method:        o.method,
		URL:           &url.URL{Scheme: scheme, Host: o.host, Opaque: "//" + o.host + o.target},
		Host:          o.host,
		Header:        make(http.Header, len(o.fields)+1),
		ContentLength: o.length,
	}
	if strings.HasPrefix(o.target, "/") && !strings.HasPrefix(o.target, "//") || o.target == "*" {
		req.URL.Opaque = o.target
	}
	for i := range o.fields {
		name := http.CanonicalHeaderKey(o.fields[i].name)
		req.Header[name] = append(req.Header[name], o.fields[i].value)
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header["User-Agent"] = nil // keeps the transport from adding its own
	}
	switch {
	case o.stream != nil:
		req.Body = io.NopCloser(o.stream)
	case len(o.body) > 0:
		req.Body = io.NopCloser(bytes.NewReader(o.body))
	case o.declares:
		req.Body = http.NoBody
	}
	return req.WithContext(ctx)
}

func response2(resp *http.Response, method string) *response {
	out := &response{
		status:   resp.StatusCode,
		fields:   sortedFields(resp.Header),
		length:   resp.ContentLength,
		bodyless: method == "HEAD" || resp.StatusCode == 204 || resp.StatusCode == 304,
		body:     resp.Body,
		trailer:  func() fields { return sortedFields(resp.Trailer) },
		waits:    func() bool { return true },
	}
	if _, n := out.fields.get("Content-Length"); n == 0 && out.length > 0 {
		out.length = -1
	}
	return out
}

// sortedFields lists a header in a fixed order; HTTP/2 libraries do not keep one.
func sortedFields(h http.Header) fields {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	fs := make(fields, 0, len(h))
	for _, name := range names {
		for _, value := range h[name] {
			fs = append(fs, field{name, value})
		}
	}
	return fs
}
