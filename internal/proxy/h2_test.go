package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fractalboxdev/sbx/internal/egress"
)

func h2World(t *testing.T, h http.HandlerFunc) (*world, uint16, string) {
	w := newWorld(t)
	port := w.origin(h, false, "good.test", "also.test")
	w.grant(
		rule(t, "good.test", port, "GET,POST", "/**", maxBody(1<<20)), rule(t, "also.test", port, "GET", "/**"),
	)
	return w, port, fmt.Sprintf("good.test:%d", port)
}

func TestCase56_HTTP2Authorities(t *testing.T) {
	w, port, good := h2World(t, hello)
	also := fmt.Sprintf("also.test:%d", port)
	c := w.rawH2("good.test", port)
	for _, x := range []struct {
		fields []string
		result string
		code   string
	}{
		{[]string{":authority", good, ":path", "/x"}, "200 hello GET /x", "allowed"},
		{[]string{":authority", good, ":path", "/x", "host", good}, "200 hello GET /x", "allowed"},
		{[]string{":path", "/x", "host", good}, "200 hello GET /x", "allowed"},
		{[]string{":authority", also, ":path", "/x"}, "421 sbx: authority-mismatch\n", "authority-mismatch"},
		{[]string{":authority", good, ":path", "/x", "host", also}, "421 sbx: authority-mismatch\n", "authority-mismatch"},
		{[]string{":authority", also, ":path", "/x", "host", good}, "421 sbx: authority-mismatch\n", "authority-mismatch"},
		{[]string{":authority", good, ":path", "/x", "host", good, "host", also}, "400 sbx: malformed-request\n", "malformed-request"},
		{[]string{":path", "/x"}, "400 sbx: malformed-request\n", "malformed-request"},
		{[]string{":authority", "x@" + good, ":path", "/x"}, "400 sbx: malformed-request\n", "malformed-request"},
		{[]string{":authority", good, ":path", "x"}, "403 sbx: path-refused\n", "path-refused"},
		{[]string{":authority", good, ":path", "/../x"}, "403 sbx: path-refused test/get,post\n", "path-refused"},
		{[]string{":authority", good, ":path", "/x", "connection", "close"}, "400 sbx: malformed-request\n", "malformed-request"},
		{[]string{":authority", good, ":path", "/x", "transfer-encoding", "chunked"}, "400 sbx: malformed-request\n", "malformed-request"},
		{[]string{":authority", good, ":path", "/x", "upgrade", "h2c"}, "400 sbx: malformed-request\n", "malformed-request"},
		{[]string{":authority", good, ":path", "/x", "te", "gzip"}, "400 sbx: malformed-request\n", "malformed-request"},
		{[]string{":authority", good, ":path", "/x", "content-length", "5"}, "400 sbx: malformed-request\n", "malformed-request"},
		{[]string{":authority", good, ":path", "/x", "content-length", "0", "content-length", "0"}, "400 sbx: malformed-request\n", "malformed-request"},
		{[]string{":authority", good, ":path", "/x", "X-Upper", "1"}, "|RST PROTOCOL_ERROR", "malformed-request"},
		{[]string{":authority", good, ":path", "/x", "x", "a\r\nb"}, "|RST PROTOCOL_ERROR", "malformed-request"},
		{[]string{":authority", good, ":path", "/x", "x\x00", "b"}, "|RST PROTOCOL_ERROR", "malformed-request"},
		{[]string{":authority", good, ":path", "/x", ":path", "/y"}, "|RST PROTOCOL_ERROR", "malformed-request"},
	} {
		before := len(w.rows.all())
		id := c.headers(t, true, append([]string{":method", "GET", ":scheme", "https"}, x.fields...)...)
		if got := c.result(id); got != strings.TrimSpace(x.result) {
			t.Errorf("%q: %q, want %q", x.fields, got, x.result)
		}
		rows := w.rows.recorded(before + 1)[before:]
		if len(rows) != 1 || rows[0].Code != x.code {
			t.Errorf("%q: %+v", x.fields, rows)
		}
	}
	if w.dials.count("also.test") != 0 {
		t.Error("the other host was dialled")
	}
}

func TestHTTP2OtherMethods(t *testing.T) {
	w, port, good := h2World(t, hello)
	c := w.rawH2("good.test", port)
	for _, fields := range [][]string{
		{":method", "CONNECT", ":authority", good},
		{":method", "CONNECT", ":authority", "also.test:443"},
		{":method", "GET /x", ":scheme", "https", ":authority", good, ":path", "/x"},
		{":method", "GET", ":scheme", "http", ":authority", good, ":path", "/x"},
		{":method", "GET", ":scheme", "https", ":authority", good},
		{":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", good, ":path", "/x"},
	} {
		before := len(w.rows.all())
		got := c.result(c.headers(t, true, fields...))
		if !strings.HasPrefix(got, "4") && !strings.HasPrefix(got, "|RST") {
			t.Errorf("%q: %q", fields, got)
		}
		if rows := w.rows.recorded(before + 1)[before:]; len(rows) != 1 || !rows[0].Denied() {
			t.Errorf("%q: %+v", fields, rows)
		}
	}
}

func TestHTTP2BodiesOfAnotherLength(t *testing.T) {
	w, port, good := h2World(t, func(rw http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(rw, err)
	})
	for name, send := range map[string]func(c *rawH2, id uint32){
		"short": func(c *rawH2, id uint32) { _ = c.fr.WriteData(id, true, []byte("abc")) },
		"long":  func(c *rawH2, id uint32) { _ = c.fr.WriteData(id, true, []byte("abcdefgh")) },
	} {
		c := w.rawH2("good.test", port)
		id := c.headers(t, false, ":method", "POST", ":scheme", "https", ":authority", good, ":path", "/x", "content-length", "5")
		send(c, id)
		if got := c.result(id); !strings.Contains(got, "RST PROTOCOL_ERROR") && !strings.HasPrefix(got, "400") {
			t.Errorf("%s: %q", name, got)
		}
	}
	for _, row := range w.rows.all() {
		if row.Verdict == "allow" {
			t.Errorf("%+v", row)
		}
	}
}

func TestHTTP2ConnectionErrors(t *testing.T) {
	w, port, good := h2World(t, hello)
	for name, send := range map[string]func(c *rawH2){
		"even stream": func(c *rawH2) {
			c.next = 2
			c.headers(t, true, ":method", "GET", ":scheme", "https", ":authority", good, ":path", "/x")
		},
		"data on idle":    func(c *rawH2) { _ = c.fr.WriteData(9, true, []byte("x")) },
		"reset of idle":   func(c *rawH2) { _ = c.fr.WriteRSTStream(9, http2.ErrCodeCancel) },
		"window of idle":  func(c *rawH2) { _ = c.fr.WriteWindowUpdate(9, 1) },
		"window overflow": func(c *rawH2) { _ = c.fr.WriteWindowUpdate(0, 1<<31-1) },
		"push": func(c *rawH2) {
			_ = c.fr.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true})
		},
		"bad setting":     func(c *rawH2) { _ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1}) },
		"stray continued": func(c *rawH2) { _ = c.fr.WriteContinuation(1, true, nil) },
	} {
		before := len(w.rows.all())
		c := w.rawH2("good.test", port)
		go send(c)
		if got := c.result(999); !strings.Contains(got, "GOAWAY") && !strings.Contains(got, "reset") && !strings.Contains(got, "EOF") {
			t.Errorf("%s: %q", name, got)
		}
		if rows := w.rows.recorded(before + 1)[before:]; rows[0].Code != "malformed-request" {
			t.Errorf("%s: %+v", name, rows)
		}
	}
}

// A request on a stream below the last one is an error of the connection, and in the
// record; the end of a stream that sbx ended first is neither.
func TestHTTP2StreamsThatGoBackwards(t *testing.T) {
	w, port, good := h2World(t, hello)
	get := []string{":method", "GET", ":scheme", "https", ":authority", good, ":path", "/x"}
	c := w.rawH2("good.test", port)
	c.next = 5
	if got := c.result(c.headers(t, true, get...)); !strings.HasPrefix(got, "200") {
		t.Fatalf("%q", got)
	}
	c.next = 3
	if got := c.result(c.headers(t, true, get...)); got != "|GOAWAY PROTOCOL_ERROR" {
		t.Errorf("a lower stream: %q", got)
	}
	if row := w.rows.recorded(2)[1]; row.Code != "malformed-request" || !strings.Contains(row.Reason, "connection error") {
		t.Errorf("%+v", row)
	}

	c = w.rawH2("good.test", port)
	id := c.headers(t, false, ":method", "PURGE", ":scheme", "https", ":authority", good, ":path", "/x")
	if got := c.result(id); !strings.HasPrefix(got, "403") {
		t.Errorf("a refused one: %q", got)
	}
	w.rows.recorded(3)
	c.next = id
	c.headers(t, true, "x-trailer", "t")
	c.next = id + 2
	if got := c.result(c.headers(t, true, get...)); !strings.HasPrefix(got, "200") {
		t.Errorf("after a trailer that crossed the refusal: %q", got)
	}
}

// A client that breaks the protocol on a request that is under way is in the record,
// whatever became of the request.
func TestHTTP2MalformedTrailersAreRecorded(t *testing.T) {
	for _, ends := range []bool{true, false} {
		w, port, good := h2World(t, func(rw http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		})
		c := w.rawH2("good.test", port)
		id := c.headers(t, ends, ":method", "POST", ":scheme", "https", ":authority", good, ":path", "/x")
		if !ends {
			_ = c.fr.WriteData(id, false, []byte("abc"))
			time.Sleep(50 * time.Millisecond) // it may be read
		} else {
			w.rows.recorded(1)
		}
		c.next = id
		c.headers(t, true, ":path", "/y")
		if got := c.result(id); !strings.Contains(got, "RST PROTOCOL_ERROR") && !strings.HasPrefix(got, "400") {
			t.Errorf("%q", got)
		}
		time.Sleep(50 * time.Millisecond)
		denied := 0
		for _, row := range w.rows.all() {
			if row.Verdict == "deny" {
				denied++
			}
			if row.Verdict == "deny" && (row.Code != "malformed-request" || row.Path != "/x") {
				t.Errorf("%+v", row)
			}
		}
		if denied != 1 {
			t.Errorf("%d rows of %+v", denied, w.rows.all())
		}
	}
}

func TestHTTP2FlowControl(t *testing.T) {
	w, port, good := h2World(t, func(rw http.ResponseWriter, r *http.Request) { _, _ = io.Copy(rw, r.Body) })
	c := w.rawH2("good.test", port)
	if err := c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10}); err != nil {
		t.Fatal(err)
	}
	id := c.headers(t, false, ":method", "POST", ":scheme", "https", ":authority", good, ":path", "/x")
	if err := c.fr.WriteData(id, true, []byte(strings.Repeat("0123456789", 10))); err != nil {
		t.Fatal(err)
	}
	got := 0
	for got < 100 {
		f, err := c.fr.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		d, ok := f.(*http2.DataFrame)
		if !ok {
			continue
		}
		if len(d.Data()) > 10 {
			t.Fatalf("%d bytes in a window of 10", len(d.Data()))
		}
		got += len(d.Data())
		if err := c.fr.WriteWindowUpdate(id, 10); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHTTP2PingAndSettings(t *testing.T) {
	w, port, _ := h2World(t, hello)
	c := w.rawH2("good.test", port)
	if err := c.fr.WritePing(false, [8]byte{1}); err != nil {
		t.Fatal(err)
	}
	acks := 0
	for acks < 2 {
		f, err := c.fr.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := f.(type) {
		case *http2.PingFrame:
			if f.IsAck() && f.Data[0] == 1 {
				acks++
			}
		case *http2.SettingsFrame:
			if f.IsAck() {
				acks++
			}
		}
	}
}

func TestHTTP2RapidReset(t *testing.T) {
	w, port, good := h2World(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	c := w.rawH2("good.test", port)
	go func() { _, _ = io.Copy(io.Discard, c.c) }()
	const n = 500
	for range n {
		id := c.headers(t, true, ":method", "GET", ":scheme", "https", ":authority", good, ":path", "/x")
		if err := c.fr.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
	}
	w.rows.recorded(n)
}

func TestCase42_PriorKnowledge(t *testing.T) {
	w := newWorld(t)
	port := w.origin(hello, true)
	w.grant(rule(t, "ok.test", port, "GET", "/**", plainHTTP))
	c := newRawH2(t, w.raw("denied.test", port))
	id := c.headers(t, true, ":method", "GET", ":scheme", "http", ":authority", fmt.Sprintf("denied.test:%d", port), ":path", "/x")
	if got := c.result(id); got != "520" {
		t.Errorf("%q", got)
	}
	if row := w.rows.recorded(1)[0]; row.Code != string(egress.CodeHostNotGranted) || row.Method != "GET" {
		t.Errorf("%+v", row)
	}
}

func TestHTTP2TooMuchOfEverything(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	port := w.origin(func(http.ResponseWriter, *http.Request) { <-release }, false, "good.test")
	defer close(release)
	w.grant(rule(t, "good.test", port, "GET,POST", "/**", maxBody(1<<30)))
	good := fmt.Sprintf("good.test:%d", port)

	c := w.rawH2("good.test", port)
	id := c.headers(t, false, ":method", "POST", ":scheme", "https", ":authority", good, ":path", "/x")
	go func(fr *http2.Framer, id uint32) {
		for fr.WriteData(id, false, make([]byte, 16<<10)) == nil { // whatever the windows say
		}
	}(c.fr, id)
	if got := c.result(id); !strings.Contains(got, "FLOW_CONTROL_ERROR") && !strings.Contains(got, "reset") {
		t.Errorf("data beyond the windows: %q", got)
	}

	c = w.rawH2("good.test", port)
	fields := []string{":method", "GET", ":scheme", "https", ":authority", good, ":path", "/x"}
	for i := range 14 {
		fields = append(fields, fmt.Sprintf("x-%d", i), strings.Repeat("a", 10<<10))
	}
	before := len(w.rows.all())
	id = c.continued(t, fields...)
	if got := c.result(id); !strings.HasPrefix(got, "431") && !strings.Contains(got, "GOAWAY") && !strings.Contains(got, "RST") && !strings.Contains(got, "reset") {
		t.Errorf("a header block beyond the limit: %q", got)
	}
	if rows := w.rows.recorded(before + 1); !rows[len(rows)-1].Denied() {
		t.Errorf("%+v", rows)
	}
}
