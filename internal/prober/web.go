package prober

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

type way int

const (
	viaTransparent way = iota // as if there were no proxy
	viaExplicit               // through the proxy variables' proxy
)

// request is one leg.
type request struct {
	name     string
	base     string // scheme and authority
	segment  string // first of the path; the nonce follows
	way      way
	verified bool
}

// web has a client for each way and each kind of trust. Connections are not shared:
// each leg proves a whole connection.
type web struct {
	nonce string
	proxy *url.URL
}

func newWeb(p Plan) *web {
	proxy, _ := url.Parse(p.Proxy) // without it the explicit legs report their error
	return &web{nonce: p.Nonce, proxy: proxy}
}

// unlisted are the legs to the unlisted host. The verified transparent one over
// HTTPS is what most programs do.
func (w *web) unlisted(p Plan) []request {
	plain := strings.Replace(p.Unlisted, "https:", "http:", 1)
	return []request{
		{"https, verified", p.Unlisted, "https-verified", viaTransparent, true},
		{"https, unverified", p.Unlisted, "https-unverified", viaTransparent, false},
		{"http", plain, "http", viaTransparent, false},
		{"https by proxy, verified", p.Unlisted, "https-proxy-verified", viaExplicit, true},
		{"https by proxy, unverified", p.Unlisted, "https-proxy-unverified", viaExplicit, false},
		{"http by proxy", plain, "http-proxy", viaExplicit, false},
	}
}

// ask sends one request over a connection of its own and does not follow redirects.
func (w *web) ask(ctx context.Context, q request) Answer {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	path := "/" + q.segment + "/" + w.nonce
	a := Answer{Name: q.name, Path: path, TLS: strings.HasPrefix(q.base, "https:"), Verified: q.verified, Explicit: q.way == viaExplicit}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, q.base+path, nil)
	if err != nil {
		a.Error = err.Error()
		return a
	}
	var tunnel int
	transport := w.transport(q, &tunnel)
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		a.Status, a.Error = tunnel, err.Error()
		return a
	}
	a.Status = resp.StatusCode
	_ = resp.Body.Close()
	return a
}

// transport of one leg. The status of a proxy that refuses the tunnel itself ends
// in refused.
func (w *web) transport(q request, refused *int) *http.Transport {
	t := &http.Transport{
		DisableKeepAlives: true,
		// Without verification the leg tells whether TLS reaches the proxy at all.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: !q.verified, MinVersion: tls.VersionTLS12}, //nolint:gosec // see above
	}
	if q.way == viaExplicit {
		t.Proxy = http.ProxyURL(w.proxy)
		t.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
			if resp.StatusCode != http.StatusOK {
				*refused = resp.StatusCode
				return fmt.Errorf("the proxy answered %s", resp.Status)
			}
			return nil
		}
	}
	return t
}
