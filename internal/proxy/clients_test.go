package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// tool runs a program that knows only the proxy variables and the run's CA.
func (w *world) tool(name string, args ...string) (string, error) {
	w.t.Helper()
	ca := filepath.Join(w.t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, w.run.CertificatePEM(), 0o600); err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.CommandContext(w.t.Context(), name, args...)
	proxy := "http://" + w.explicit.String()
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.t.TempDir(), "https_proxy=" + proxy, "http_proxy=" + proxy, "CURL_CA_BUNDLE=" + ca, "SSL_CERT_FILE=" + ca, "NODE_EXTRA_CA_CERTS=" + ca}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// patient gives real clients the time that they have in a run: they read their
// certificates between the connection and its first byte.
func patient(c *proxyConfig) { c.Limits.Sniff = 0 }

// TestCurl uses a client that is not ours, with its own HTTP/2 library.
func TestCurl(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Log("no curl on this machine; the other tests speak with net/http and raw sockets")
		return
	}
	w := newWorld(t, patient)
	port := w.origin(func(rw http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(rw, "%s %s %d", r.Proto, r.Method, n)
	}, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET,PUT,POST", "/ok/**", maxBody(8<<20)))
	file := filepath.Join(t.TempDir(), "upload")
	if err := os.WriteFile(file, make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	url := urlFor("https", "ok.test", port, "/ok/x")
	for _, c := range []struct{ args, want string }{
		{"--http1.1 " + url, "HTTP/1.1 GET 0"},
		{"--http2 " + url, "HTTP/2.0 GET 0"},
		{"--http1.1 -T " + file + " " + url, "HTTP/1.1 PUT 3145728"},
		{"--http2 -T " + file + " " + url, "HTTP/2.0 PUT 3145728"},
		{"--http1.1 -H Transfer-Encoding:chunked -T " + file + " " + url, "HTTP/1.1 PUT 3145728"},
		{"--http2 -d body " + url, "HTTP/2.0 POST 4"},
		{"--http1.1 -o /dev/null -w %{http_code} " + urlFor("https", "ok.test", port, "/no"), "403"},
		{"--http2 -o /dev/null -w %{http_code} " + urlFor("https", "ok.test", port, "/no"), "403"},
		{"--http1.1 -w %{http_code} https://unlisted.test/", "520"},
		{"--http2 -w %{http_code} https://unlisted.test/", "520"},
		{"-w %{http_code} http://unlisted.test/", "520"},
		{"--http1.1 -A yarn/1.22.22 -w %{http_code} https://unlisted.test/", "403"}, // it repeats any 5xx
		{"--http2 -A yarn/1.22.22 -w %{http_code} https://unlisted.test/", "403"},
		{"--http1.1 -o /dev/null -w %{http_code} -T " + file + " " + urlFor("https", "ok.test", port, "/no"), "403"},
		{"--http2 -o /dev/null -w %{http_code} -T " + file + " " + urlFor("https", "ok.test", port, "/no"), "403"},
	} {
		got, err := w.tool("curl", append([]string{"-sS"}, strings.Fields(c.args)...)...)
		if err != nil || got != c.want {
			t.Errorf("curl %s: %q %v, want %q", c.args, got, err, c.want)
		}
	}
}

// TestNode speaks with nghttp2 and the TLS of another implementation.
func TestNode(t *testing.T) {
	if _, err := exec.LookPath("node"); err != nil {
		t.Log("no node on this machine; the other tests speak with net/http and raw sockets")
		return
	}
	w := newWorld(t, patient)
	port := w.origin(hello, false, "ok.test")
	w.grant(rule(t, "ok.test", port, "GET", "/**"))
	script := `
const net = require('net'), tls = require('tls'), http2 = require('http2');
const [host, port] = process.argv[1].split(':');
const proxy = new URL(process.env.https_proxy);
const s = net.connect(proxy.port, proxy.hostname, () => s.write('CONNECT ' + host + ':' + port + ' HTTP/1.1\r\nHost: ' + host + ':' + port + '\r\n\r\n'));
s.once('data', () => {
  const c = http2.connect('https://' + host + ':' + port, { createConnection: () => tls.connect({ socket: s, servername: host, ALPNProtocols: ['h2'] }) });
  let left = 20;
  for (let i = 0; i < 20; i++) {
    const r = c.request({ ':path': '/n' + i });
    let body = '';
    r.on('data', d => body += d);
    r.on('end', () => { if (body !== 'hello GET /n' + i) console.log('bad', body); if (--left === 0) { console.log('done'); c.close(); } });
  }
});`
	if got, err := w.tool("node", "-e", script, fmt.Sprintf("ok.test:%d", port)); err != nil || strings.TrimSpace(got) != "done" {
		t.Errorf("%q %v", got, err)
	}
}
