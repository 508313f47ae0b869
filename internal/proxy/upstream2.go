package proxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// roundTrip2 sends a request over HTTP/2 and returns the final response's head.
func roundTrip2(ctx context.Context, cc shared, o *outgoing) (*response, error) {
	if o.expects {
		if err := o.proceed(); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	resp, err := cc.RoundTrip(o.request2(ctx))
	if err != nil {
		cancel()
		if o.stream != nil {
			return nil, err
		}
		return nil, unsent{err}
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
		name := strings.ToLower(o.fields[i].name)
		req.Header[name] = append(req.Header[name], o.fields[i].value)
	}
	if _, ok := req.Header["user-agent"]; !ok {
		req.Header["user-agent"] = nil // keeps the transport from adding its own
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
