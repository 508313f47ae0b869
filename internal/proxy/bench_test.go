package proxy_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
)

// keepAlive sends n requests on one connection and reads the answers.
func keepAlive(b *testing.B, c net.Conn, host string, n int) {
	br := bufio.NewReaderSize(c, 64<<10)
	req := []byte("GET /x HTTP/1.1\r\nHost: " + host + "\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n")
	for range n {
		if _, err := c.Write(req); err != nil {
			b.Error(err)
			return
		}
		if got := readAnswer(br, "GET"); got.err != nil || got.status != 200 {
			b.Errorf("%d %v", got.status, got.err)
			return
		}
	}
}

// fastOrigin answers every request with the same bytes.
func (w *world) fastOrigin(name string, size int) uint16 {
	answer := append([]byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: "+strconv.Itoa(size)+"\r\n\r\n"), make([]byte, size)...)
	return w.rawOrigin(name, func(c net.Conn, br *bufio.Reader) {
		for readRequest(br) != "" {
			if _, err := c.Write(answer); err != nil {
				return
			}
		}
	})
}

func benchmarkRequests(b *testing.B, tlsName string, clients int) {
	w := newWorld(b)
	port := w.fastOrigin(tlsName, 1024)
	if tlsName == "" {
		w.grant(rule(b, "ok.test", port, "GET", "/**", plainHTTP))
	} else {
		w.grant(rule(b, "ok.test", port, "GET", "/**"))
	}
	host := fmt.Sprintf("ok.test:%d", port)
	conns := make([]net.Conn, clients)
	for i := range conns {
		conns[i] = w.raw("ok.test", port)
		if tlsName != "" {
			conns[i] = tls.Client(conns[i], &tls.Config{RootCAs: w.roots(), ServerName: "ok.test"})
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() { keepAlive(b, c, host, (b.N+clients-1)/clients) })
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

func BenchmarkRequestsTLS1(b *testing.B)    { benchmarkRequests(b, "ok.test", 1) }
func BenchmarkRequestsTLS32(b *testing.B)   { benchmarkRequests(b, "ok.test", 32) }
func BenchmarkRequestsPlain1(b *testing.B)  { benchmarkRequests(b, "", 1) }
func BenchmarkRequestsPlain32(b *testing.B) { benchmarkRequests(b, "", 32) }

// BenchmarkNewConnections measures TCP, TLS and one request on each connection.
func BenchmarkNewConnections(b *testing.B) {
	w := newWorld(b)
	port := w.fastOrigin("ok.test", 16)
	w.grant(rule(b, "ok.test", port, "GET", "/**"))
	host, roots := fmt.Sprintf("ok.test:%d", port), w.roots()
	b.ResetTimer()
	for range b.N {
		raw, err := w.dial(b.Context(), "ok.test", port)
		if err != nil {
			b.Fatal(err)
		}
		keepAlive(b, tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: "ok.test"}), host, 1)
		_ = raw.Close()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "conn/s")
}

func benchmarkDownload(b *testing.B, how way) {
	w := newWorld(b)
	const size = 64 << 20
	port := w.origin(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Length", strconv.Itoa(size))
		chunk := make([]byte, 256<<10)
		for range size / len(chunk) {
			if _, err := rw.Write(chunk); err != nil {
				return
			}
		}
	}, false, "ok.test")
	w.grant(rule(b, "ok.test", port, "GET", "/**"))
	c := w.client(how)
	c.Timeout = 0
	b.SetBytes(size)
	b.ResetTimer()
	for range b.N {
		resp, err := c.Get(urlFor("https", "ok.test", port, "/x"))
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		if err != nil || n != size {
			b.Fatalf("%d bytes, %v", n, err)
		}
		_ = resp.Body.Close()
	}
}

func BenchmarkDownloadH1(b *testing.B) { benchmarkDownload(b, transparent) }
func BenchmarkDownloadH2(b *testing.B) { benchmarkDownload(b, transparentH2) }
