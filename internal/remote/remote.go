// Package remote asks a serving sbx, over its socket or a URL.
package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 4 << 20

// patience is how long one answer may take: a probe is made within it.
const patience = 5 * time.Minute

// Client asks one server.
type Client struct {
	base string
	http *http.Client
}

// NewSocket is for a server of the caller's or root's that listens on a unix socket. hidden
// is a directory that no sandbox shows, "" for none.
func NewSocket(path, hidden string) (*Client, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("finding the socket %s: %w", path, err)
	}
	abs, inside := place(abs, hidden)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", abs)
		if err != nil {
			return nil, err
		}
		if err := trusted(c, inside); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return c, nil
	}}
	return &Client{base: "http://localhost", http: client(transport)}, nil
}

// place is a socket's path without links to its directory, and whether that is hidden or
// below it.
func place(socket, hidden string) (path string, inside bool) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(socket))
	if err != nil {
		return socket, false // dialling it says why
	}
	path = filepath.Join(dir, filepath.Base(socket))
	hidden, err = filepath.EvalSymlinks(hidden)
	return path, err == nil && filepath.IsAbs(hidden) && (dir == hidden || strings.HasPrefix(dir, strings.TrimSuffix(hidden, "/")+"/"))
}

// NewURL is for a server at an http or https URL, with or without a path.
func NewURL(text string) (*Client, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q is no http or https URL without user, query and fragment", text)
	}
	return &Client{base: strings.TrimSuffix(u.String(), "/"), http: client(http.DefaultTransport)}, nil
}

// errRedirected keeps the question from going elsewhere than where it was put.
var errRedirected = errors.New("the answer is a redirect")

func client(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport: transport, Timeout: patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return errRedirected },
	}
}

// Ask sends a request without body and returns status and text of the answer.
func (c *Client) Ask(ctx context.Context, method, path string) (status int, text []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, http.NoBody)
	if err != nil {
		return 0, nil, fmt.Errorf("asking %s%s: %w", c.base, path, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("asking %s%s: %w", c.base, path, err)
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("reading the answer of %s%s: %w", c.base, path, err)
	case len(text) > maxAnswer:
		return 0, nil, fmt.Errorf("reading the answer of %s%s: longer than %d bytes", c.base, path, maxAnswer)
	}
	return resp.StatusCode, text, nil
}
