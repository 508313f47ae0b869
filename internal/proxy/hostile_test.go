package proxy_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A frame is read as a whole, so its length is bounded before there is memory for it.
func TestHTTP2FramesAreBounded(t *testing.T) {
	w, port, good := h2World(t, hello)
	for name, send := range map[string]func(c *rawH2){
		"data": func(c *rawH2) {
			id := c.headers(t, false, ":method", "POST", ":scheme", "https", ":authority", good, ":path", "/x")
			c.frame(http2.FrameData, id, 16<<10+1)
		},
		"headers":  func(c *rawH2) { c.frame(http2.FrameHeaders, 1, 1<<20) },
		"settings": func(c *rawH2) { c.frame(http2.FrameSettings, 0, 6*3000) },
		"unknown":  func(c *rawH2) { c.frame(0xfe, 0, 1<<24-1) },
	} {
		c := w.rawH2("good.test", port)
		before := len(w.rows.all())
		go send(c)
		if got := c.result(999); !strings.Contains(got, "GOAWAY FRAME_SIZE_ERROR") && !strings.Contains(got, "reset") {
			t.Errorf("%s: %q", name, got)
		}
		if rows := w.rows.recorded(before + 1)[before:]; rows[len(rows)-1].Code != "malformed-request" {
			t.Errorf("%s: %+v", name, rows)
		}
	}
	c := w.rawH2("good.test", port)
	id := c.headers(t, false, ":method", "POST", ":scheme", "https", ":authority", good, ":path", "/x")
	if err := c.fr.WriteData(id, true, make([]byte, 16<<10)); err != nil {
		t.Fatal(err)
	}
	if got := c.result(id); !strings.HasPrefix(got, "200") {
		t.Errorf("the largest frame: %q", got)
	}
}

// frame writes a frame of n zero bytes.
func (h *rawH2) frame(kind http2.FrameType, stream uint32, n int) {
	head := binary.BigEndian.AppendUint32([]byte{byte(n >> 16), byte(n >> 8), byte(n), byte(kind), 0}, stream)
	_, _ = h.c.Write(head)
	_, _ = io.CopyN(h.c, zeros{}, int64(n))
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// What may be sent, in whatever numbers and order, leaves the connection usable.
func TestHTTP2Oddities(t *testing.T) {
	w, port, good := h2World(t, hello)
	ask := func(c *rawH2) string {
		return c.result(c.headers(t, true, ":method", "GET", ":scheme", "https", ":authority", good, ":path", "/x"))
	}
	for name, send := range map[string]func(c *rawH2){
		"priority": func(c *rawH2) {
			for i := range 1000 {
				_ = c.fr.WritePriority(uint32(2*i+1), http2.PriorityParam{StreamDep: 7, Weight: 3})
			}
		},
		"table sizes": func(c *rawH2) {
			for _, size := range []uint32{0, 1<<32 - 1, 1, 4096, 65536, 0} {
				_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: size})
			}
		},
		"unknown frames":   func(c *rawH2) { _ = c.fr.WriteRawFrame(0xab, 0xff, 12345, []byte("whatever")) },
		"unknown settings": func(c *rawH2) { _ = c.fr.WriteSettings(http2.Setting{ID: 0x7777, Val: 1}) },
		"goaway":           func(c *rawH2) { _ = c.fr.WriteGoAway(0, http2.ErrCodeNo, []byte("bye")) },
		"windows": func(c *rawH2) {
			_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
		},
		"frame size": func(c *rawH2) { _ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1<<24 - 1}) },
		"late data": func(c *rawH2) {
			id := c.headers(t, true, ":method", "GET", ":scheme", "https", ":authority", good, ":path", "/y")
			_ = c.result(id)
			for range 100 {
				_ = c.fr.WriteData(id, false, make([]byte, 10_000))
			}
			_ = c.fr.WriteRSTStream(id, http2.ErrCodeCancel)
			_ = c.fr.WriteWindowUpdate(id, 1)
		},
		"padding": func(c *rawH2) {
			for range 50 {
				id := c.headers(t, false, ":method", "POST", ":scheme", "https", ":authority", good, ":path", "/y")
				_ = c.fr.WriteDataPadded(id, true, nil, make([]byte, 255))
				if got := c.result(id); !strings.HasPrefix(got, "200") {
					t.Errorf("padding: %q", got)
				}
			}
		},
		"a trailer": func(c *rawH2) {
			id := c.headers(t, false, ":method", "POST", ":scheme", "https", ":authority", good, ":path", "/y")
			c.buf.Reset()
			_ = c.enc.WriteField(hpack.HeaderField{Name: "x-trailer", Value: "t"})
			_ = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.buf.Bytes(), EndHeaders: true, EndStream: true})
			if got := c.result(id); !strings.HasPrefix(got, "200") {
				t.Errorf("a trailer: %q", got)
			}
		},
	} {
		c := w.rawH2("good.test", port)
		send(c)
		if got := ask(c); got != "200 hello GET /x" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// A flood that wants answers is not answered into memory: who does not read is not
// read from.
func TestHTTP2FloodsOfWhatWantsAnswers(t *testing.T) {
	w, port, good := h2World(t, hello)
	for name, send := range map[string]func(c *rawH2) error{
		"ping":     func(c *rawH2) error { return c.fr.WritePing(false, [8]byte{}) },
		"settings": func(c *rawH2) error { return c.fr.WriteSettings() },
		"reset": func(c *rawH2) error {
			return c.fr.WriteRSTStream(c.headers(t, true, ":method", "GET", ":scheme", "https", ":authority", good, ":path", "/x"), http2.ErrCodeCancel)
		},
	} {
		c := w.rawH2("good.test", port)
		for i := range 3000 { // read nothing meanwhile
			if err := send(c); err != nil {
				t.Fatalf("%s: after %d: %v", name, i, err)
			}
		}
		id := c.headers(t, true, ":method", "GET", ":scheme", "https", ":authority", good, ":path", "/last")
		if got := c.result(id); got != "200 hello GET /last" && !strings.Contains(got, "REFUSED_STREAM") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// hostileH2 are what an HTTP/2 server may send instead of a response to stream 1.
var hostileH2 = map[string]func(fr *http2.Framer, block func(fields ...string) []byte){
	"goaway": func(fr *http2.Framer, _ func(...string) []byte) {
		_ = fr.WriteGoAway(0, http2.ErrCodeInternal, []byte("no"))
	},
	"reset":      func(fr *http2.Framer, _ func(...string) []byte) { _ = fr.WriteRSTStream(1, http2.ErrCodeInternal) },
	"no status":  func(fr *http2.Framer, b func(...string) []byte) { headersOf(fr, true, b("x", "y")) },
	"odd status": func(fr *http2.Framer, b func(...string) []byte) { headersOf(fr, true, b(":status", "2x0")) },
	"two statuses": func(fr *http2.Framer, b func(...string) []byte) {
		headersOf(fr, true, b(":status", "200", ":status", "201"))
	},
	"upper case": func(fr *http2.Framer, b func(...string) []byte) { headersOf(fr, true, b(":status", "200", "X-Y", "z")) },
	"line ends": func(fr *http2.Framer, b func(...string) []byte) {
		headersOf(fr, true, b(":status", "200", "x", "a\r\nSet-Cookie: b"))
	},
	"pseudo later": func(fr *http2.Framer, b func(...string) []byte) { headersOf(fr, true, b("x", "y", ":status", "200")) },
	"hints only": func(fr *http2.Framer, b func(...string) []byte) {
		for range 200 {
			headersOf(fr, false, b(":status", "103", "link", strings.Repeat("a", 5000)))
		}
	},
	"data first": func(fr *http2.Framer, _ func(...string) []byte) { _ = fr.WriteData(1, true, []byte("hello")) },
	"even stream": func(fr *http2.Framer, b func(...string) []byte) {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 2, BlockFragment: b(":status", "200"), EndHeaders: true})
	},
	"push": func(fr *http2.Framer, b func(...string) []byte) {
		_ = fr.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: b(":method", "GET"), EndHeaders: true})
	},
	"broken hpack": func(fr *http2.Framer, _ func(...string) []byte) { headersOf(fr, true, bytes.Repeat([]byte{0xff}, 50)) },
	"large headers": func(fr *http2.Framer, b func(...string) []byte) {
		floodOf(fr, b(":status", "200", "x", strings.Repeat("a", 16_000)), true)
	},
	"endless block": func(fr *http2.Framer, b func(...string) []byte) {
		floodOf(fr, b(":status", "200", "x", strings.Repeat("a", 16_000)), false)
	},
	"short": func(fr *http2.Framer, b func(...string) []byte) {
		headersOf(fr, false, b(":status", "200", "content-length", "10"))
		_ = fr.WriteData(1, true, []byte("hello"))
	},
	"long": func(fr *http2.Framer, b func(...string) []byte) {
		headersOf(fr, false, b(":status", "200", "content-length", "3"))
		_ = fr.WriteData(1, true, []byte("hello"))
	},
	"beyond windows": func(fr *http2.Framer, b func(...string) []byte) {
		headersOf(fr, false, b(":status", "200"))
		for range 200 {
			_ = fr.WriteData(1, false, make([]byte, 16<<10))
		}
	},
}

func headersOf(fr *http2.Framer, end bool, block []byte) {
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true, EndStream: end})
}

// floodOf sends a header block of many frames, which ends or does not.
func floodOf(fr *http2.Framer, block []byte, ends bool) {
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block})
	for range 200 {
		if fr.WriteContinuation(1, false, block[1:]) != nil {
			return
		}
	}
	if ends {
		_ = fr.WriteContinuation(1, true, nil)
	}
}

// A server that speaks HTTP/2 badly fails its own requests, and nothing else.
func TestHostileHTTP2Upstreams(t *testing.T) {
	t.Parallel()
	for name, answer := range hostileH2 {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each failure is tried again after a while
			hostileAnswer(t, answer)
		})
	}
}

func hostileAnswer(t *testing.T, answer func(fr *http2.Framer, block func(fields ...string) []byte)) {
	t.Helper()
	w := newWorld(t)
	var conns atomic.Int64
	port := w.rawOriginH2("bad.test", func(c net.Conn) {
		conns.Add(1)
		fr := http2.NewFramer(c, c)
		fr.AllowIllegalWrites = true
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		_ = fr.WriteSettings()
		var buf bytes.Buffer
		enc := hpack.NewEncoder(&buf)
		for {
			f, err := fr.ReadFrame()
			if err != nil {
				return
			}
			if _, ok := f.(*http2.HeadersFrame); ok {
				go func() { _, _ = io.Copy(io.Discard, c) }()
				answer(fr, func(fields ...string) []byte {
					buf.Reset()
					for i := 0; i+1 < len(fields); i += 2 {
						_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
					}
					return bytes.Clone(buf.Bytes())
				})
				return
			}
		}
	})
	good := w.origin(hello, false, "good.test")
	w.grant(rule(t, "bad.test", port, "GET", "/**"), rule(t, "good.test", good, "GET", "/**"))
	got := w.do(w.client(transparentH2), "GET", urlFor("https", "bad.test", port, "/x"), "")
	if got.err == nil && got.status != 502 || got.header.Get("Set-Cookie") != "" {
		t.Errorf("%d %.100q %v", got.status, got.body, got.header)
	}
	if conns.Load() == 0 {
		t.Error("the server was not asked")
	}
	if done := w.rows.completed(1)[0]; done.Error == "" {
		t.Errorf("%+v", done)
	}
	if got := w.do(w.client(transparentH2), "GET", urlFor("https", "good.test", good, "/x"), ""); got.body != "hello GET /x" {
		t.Errorf("another host: %+v", got)
	}
}

// An HTTP/1 server that lies about its message fails it, or has it understood in one way.
func TestHostileHTTP1Upstreams(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, c := range map[string]struct {
		text string
		want string // of the body; "" for an error or a 502
	}{
		"endless header":     {ok + "X: " + strings.Repeat("a", 600<<10), ""},
		"many headers":       {ok + strings.Repeat("X: y\r\n", 3000) + "\r\n", ""},
		"lone CR":            {ok + "X: a\rSet-Cookie: b\r\nContent-Length: 2\r\n\r\nok", ""},
		"NUL":                {ok + "X: a\x00b\r\nContent-Length: 2\r\n\r\nok", ""},
		"folded":             {ok + "X: a\r\n b\r\nContent-Length: 2\r\n\r\nok", "ok"},
		"bare LF":            {"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", "ok"},
		"length and chunks":  {ok + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "ok"},
		"two codings":        {ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", ""},
		"coded chunks":       {ok + "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", ""},
		"negative length":    {ok + "Content-Length: -2\r\n\r\nok", ""},
		"signed chunk":       {ok + "Transfer-Encoding: chunked\r\n\r\n+2\r\nok\r\n0\r\n\r\n", ""},
		"chunk too long":     {ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nokay\r\n0\r\n\r\n", ""},
		"endless extension":  {ok + "Transfer-Encoding: chunked\r\n\r\n2;" + strings.Repeat("a", 10_000) + "\r\nok\r\n0\r\n\r\n", ""},
		"evil trailer":       {ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nContent-Length: 100\r\nTransfer-Encoding: chunked\r\nConnection: x\r\n\r\n", "ok"},
		"cut":                {ok + "Content-Length: 10\r\n\r\nok", ""},
		"status 1000":        {"HTTP/1.1 1000 OK\r\nContent-Length: 2\r\n\r\nok", ""},
		"HTTP/2 on the wire": {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""},
		"no name":            {ok + ": x\r\nContent-Length: 2\r\n\r\nok", ""},
		"space in name":      {ok + "Content-Length : 2\r\n\r\nok", ""},
	} {
		s := rawSite(t, func(conn net.Conn, br *bufio.Reader) {
			readRequest(br)
			_, _ = io.WriteString(conn, c.text)
		}, "ok.test")
		s.allow("ok.test", "GET", "/**")
		eachDoor(t, func(t *testing.T, d door) {
			got := s.do(s.client(d.client), "GET", s.url(d, "ok.test", "/x"), "")
			if c.want == "" && got.err == nil && got.status != 502 || c.want != "" && got.body != c.want {
				t.Errorf("%s: %d %.60q %v", name, got.status, got.body, got.err)
			}
			if got.header.Get("Set-Cookie") != "" {
				t.Errorf("%s: the answer was split: %v", name, got.header)
			}
		})
	}
}

// rawOriginH2 answers each connection with f, over TLS that chose HTTP/2.
func (w *world) rawOriginH2(name string, f func(c net.Conn)) uint16 {
	w.t.Helper()
	leaf, err := w.up.Leaf(name)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.rawOrigin("", func(c net.Conn, br *bufio.Reader) {
		f(tls.Server(&readerConn{Conn: c, r: br}, &tls.Config{Certificates: []tls.Certificate{*leaf}, NextProtos: []string{"h2"}}))
	})
}
