package proxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// rawH2 is an HTTP/2 client that can send anything.
type rawH2 struct {
	c    net.Conn
	fr   *http2.Framer
	enc  *hpack.Encoder
	buf  bytes.Buffer
	next uint32
}

func (w *world) rawH2(host string, port uint16) *rawH2 {
	w.t.Helper()
	c := w.rawTLS(host, host, port, "h2")
	if p := c.ConnectionState().NegotiatedProtocol; p != "h2" {
		w.t.Fatalf("ALPN chose %q", p)
	}
	return newRawH2(w.t, c)
}

func newRawH2(t testing.TB, c net.Conn) *rawH2 {
	t.Helper()
	h := &rawH2{c: c, fr: http2.NewFramer(c, c), next: 1}
	h.enc = hpack.NewEncoder(&h.buf)
	h.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	h.fr.AllowIllegalWrites = true
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := h.fr.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return h
}

// headers opens a stream with fields given as name, value, name, value.
func (h *rawH2) headers(t testing.TB, end bool, fields ...string) uint32 {
	t.Helper()
	h.buf.Reset()
	for i := 0; i+1 < len(fields); i += 2 {
		if err := h.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	id := h.next
	h.next += 2
	err := h.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.buf.Bytes(), EndStream: end, EndHeaders: true})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// result reads frames until the stream ends and says how.
func (h *rawH2) result(id uint32) string {
	var out strings.Builder
	for {
		f, err := h.fr.ReadFrame()
		if err != nil {
			return out.String() + "|" + err.Error()
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if f.StreamID == id {
				fmt.Fprintf(&out, "%s ", f.PseudoValue("status"))
			}
		case *http2.DataFrame:
			if f.StreamID == id {
				out.Write(f.Data())
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == id {
				return out.String() + "|RST " + f.ErrCode.String()
			}
		case *http2.GoAwayFrame:
			return out.String() + "|GOAWAY " + f.ErrCode.String()
		}
		if end, ok := f.(interface{ StreamEnded() bool }); ok && f.Header().StreamID == id && end.StreamEnded() {
			return strings.TrimSpace(out.String())
		}
	}
}

// continued opens a stream whose header block needs CONTINUATION frames.
func (h *rawH2) continued(t testing.TB, fields ...string) uint32 {
	t.Helper()
	h.buf.Reset()
	for i := 0; i+1 < len(fields); i += 2 {
		if err := h.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	id := h.next
	h.next += 2
	const part = 16 << 10
	err := h.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.buf.Next(part), EndStream: true})
	for err == nil && h.buf.Len() > 0 {
		more := h.buf.Next(part)
		err = h.fr.WriteContinuation(id, h.buf.Len() == 0, more)
	}
	if err != nil {
		t.Log("the server stopped reading:", err)
	}
	return id
}
