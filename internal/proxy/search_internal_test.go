package proxy

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"github.com/fractalboxdev/sbx/internal/secret"
)

const hidden = "tok-Hunter22/+&secret"

func hiddenValue(t testing.TB) secret.Value {
	t.Helper()
	v, err := secret.Parse(hidden)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// encoder is one way to encode a body; flushing makes what was written readable.
type encoder interface {
	io.WriteCloser
	Flush() error
}

type plainEncoder struct{ io.Writer }

func (plainEncoder) Flush() error { return nil }
func (plainEncoder) Close() error { return nil }

var encoders = map[string]struct {
	coding string
	make   func(io.Writer) encoder
	decode func(io.Reader) io.Reader
}{
	"identity":    {"", func(w io.Writer) encoder { return plainEncoder{w} }, func(r io.Reader) io.Reader { return r }},
	"gzip":        {"gzip", func(w io.Writer) encoder { return gzip.NewWriter(w) }, func(r io.Reader) io.Reader { return failing(gzip.NewReader(r)) }},
	"stored gzip": {"x-gzip", func(w io.Writer) encoder { e, _ := gzip.NewWriterLevel(w, gzip.NoCompression); return e }, func(r io.Reader) io.Reader { return failing(gzip.NewReader(r)) }},
	"zlib":        {"deflate", func(w io.Writer) encoder { return zlib.NewWriter(w) }, func(r io.Reader) io.Reader { return failing(zlib.NewReader(r)) }},
	"raw deflate": {"deflate", func(w io.Writer) encoder { e, _ := flate.NewWriter(w, 9); return e }, func(r io.Reader) io.Reader { return flate.NewReader(r) }},
	"br":          {"br", func(w io.Writer) encoder { return brotli.NewWriter(w) }, func(r io.Reader) io.Reader { return brotli.NewReader(r) }},
	"zstd": {"zstd", func(w io.Writer) encoder { e, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)); return e }, func(r io.Reader) io.Reader {
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
		return failing(d, err)
	}},
}

func failing(r io.Reader, err error) io.Reader {
	if err != nil {
		return iotest.ErrReader(err)
	}
	return r
}

func encode(t testing.TB, name, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	e := encoders[name].make(&b)
	_, err := io.WriteString(e, text)
	if err = errors.Join(err, e.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// pieces reads at most size bytes at once and ends with err, which comes together
// with the last bytes.
type pieces struct {
	b    []byte
	size int
	err  error
}

func (p *pieces) Read(b []byte) (int, error) {
	n := copy(b, p.b[:min(p.size, len(p.b))])
	p.b = p.b[n:]
	if len(p.b) == 0 {
		return n, p.err
	}
	return n, nil
}

func search(t testing.TB, src io.Reader, coding string, trailer fields) *searched {
	t.Helper()
	list := codings(fields{{"content-encoding", coding}})
	b, err := newSearched(src, secret.NewFinder(hiddenValue(t)), list, func() fields { return trailer })
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// noise is text that compresses a little, so that codings have blocks of all kinds.
func noise(n int) string {
	r := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "line %d of %x tok-Hun\n", r.IntN(50), r.Uint64()>>r.IntN(64))
	}
	return b.String()[:n]
}

func TestSearchedPassesWhatHasNoSecret(t *testing.T) {
	for name, e := range encoders {
		for _, size := range []int{0, 1, 5, 4000, 32 << 10, 70_000, 500_000} {
			coded := encode(t, name, noise(size))
			for _, piece := range []int{1, 7, 1500, 64 << 10} {
				if piece < 100 && size > 70_000 {
					continue
				}
				got, err := io.ReadAll(search(t, &pieces{coded, piece, io.EOF}, e.coding, fields{{"x", "y"}}))
				if err != nil || !bytes.Equal(got, coded) {
					t.Fatalf("%s of %d by %d: %d bytes of %d, %v", name, size, piece, len(got), len(coded), err)
				}
			}
		}
		if got, err := io.ReadAll(search(t, strings.NewReader(""), e.coding, nil)); err != nil || len(got) != 0 {
			t.Errorf("%s: nothing at all: %q %v", name, got, err)
		}
	}
}

// Nothing that was released can be decoded to the secret or to more than its
// beginning would give away, in whatever pieces it comes.
func TestBypass39_SearchedCutsEveryCoding(t *testing.T) {
	shapes := map[string]string{
		"raw": hidden, "basic": base64.StdEncoding.EncodeToString([]byte("x:" + hidden)), "twice": hidden + " and " + hidden,
	}
	for name, e := range encoders {
		for shape, text := range shapes {
			for _, before := range []int{0, 3, 32<<10 - 9, 32<<10 - 1, 32 << 10, 100_000} {
				clear := noise(before)
				coded := encode(t, name, clear+text+noise(5000))
				start, _ := secret.NewFinder(hiddenValue(t)).Find([]byte(clear + text))
				for _, piece := range []int{1, 13, 1500, 64 << 10} {
					got, err := io.ReadAll(search(t, &pieces{coded, piece, io.EOF}, e.coding, nil))
					if !errors.Is(err, errEchoed) {
						t.Fatalf("%s %s after %d by %d: %v", name, shape, before, piece, err)
					}
					seen, _ := io.ReadAll(e.decode(bytes.NewReader(got)))
					if len(seen) > start || !strings.HasPrefix(clear+text, string(seen)) {
						t.Fatalf("%s %s after %d by %d: the client can read %d bytes: %q", name, shape, before, piece, len(seen), seen[max(before-5, 0):])
					}
				}
			}
		}
	}
}

// A read that returns data together with an error does not release what was not
// searched, and what might be the beginning of the secret is dropped.
func TestBypass37_DataTogetherWithAnError(t *testing.T) {
	reset := errors.New("connection reset")
	for name, e := range encoders {
		clear := noise(2000)
		for _, text := range []string{hidden, hidden[:9]} {
			coded := encode(t, name, clear+text)
			for _, piece := range []int{11, 64 << 10} {
				b := search(t, &pieces{coded, piece, reset}, e.coding, nil)
				got, err := io.ReadAll(b)
				if text == hidden && e.coding == "" && !errors.Is(err, errEchoed) || err == nil {
					t.Errorf("%s by %d: %v", name, piece, err)
				}
				seen, _ := io.ReadAll(e.decode(bytes.NewReader(got)))
				if strings.Contains(string(seen), hidden[:5]+hidden[5:9]) || len(seen) > len(clear) {
					t.Errorf("%s by %d: released %q", name, piece, seen[max(0, len(seen)-30):])
				}
				if n, again := b.Read(make([]byte, 10)); n != 0 || again == nil || errors.Is(again, io.EOF) {
					t.Errorf("%s: after the error: %d %v", name, n, again)
				}
			}
		}
	}
}

// What a server flushes is released before it sends more.
func TestSearchedStreams(t *testing.T) {
	for name, e := range encoders {
		r, w := io.Pipe()
		enc := e.make(w)
		seen, decoded := io.Pipe()
		go func() {
			_, err := io.Copy(decoded, search(t, r, e.coding, nil))
			_ = decoded.CloseWithError(err)
		}()
		client := &lazyClient{e.decode, seen, nil}
		for i := range 5 {
			event := fmt.Sprintf("data: %d %s\n\n", i, noise(100))
			written := make(chan error, 1)
			go func() {
				_, err := io.WriteString(enc, event)
				written <- errors.Join(err, enc.Flush())
			}()
			got := make([]byte, len(event))
			if _, err := io.ReadFull(client, got); err != nil || string(got) != event {
				t.Fatalf("%s event %d: %q %v", name, i, got, err)
			}
			if err := <-written; err != nil {
				t.Fatal(err)
			}
		}
		_ = w.Close()
		_, _ = io.Copy(io.Discard, seen)
	}
}

// lazyClient begins to decode when there is something.
type lazyClient struct {
	open func(io.Reader) io.Reader
	from io.Reader
	r    io.Reader
}

func (c *lazyClient) Read(p []byte) (int, error) {
	if c.r == nil {
		c.r = c.open(&lateReader{c.from})
	}
	return c.r.Read(p)
}

// lateReader reads byte by byte, as a decoder that reads nothing ahead.
type lateReader struct{ r io.Reader }

func (l *lateReader) Read(p []byte) (int, error) { return l.r.Read(p[:min(1, len(p))]) }
func (l *lateReader) ReadByte() (byte, error) {
	var b [1]byte
	_, err := io.ReadFull(l.r, b[:])
	return b[0], err
}

func TestSearchedRefusesWhatItCannotSearch(t *testing.T) {
	for _, coding := range []string{"compress", "gzip, br", "dcb", "aes128gcm"} {
		if _, err := newSearched(strings.NewReader("x"), secret.NewFinder(hiddenValue(t)), codings(fields{{"Content-Encoding", coding}}), nil); !errors.Is(err, errUnsearched) {
			t.Errorf("%s: %v", coding, err)
		}
	}
	if list := codings(fields{{"Content-Encoding", "identity, ,GZip"}}); len(list) != 1 || list[0] != "gzip" {
		t.Errorf("%q", list)
	}
	for name, e := range encoders {
		if e.coding == "" {
			continue
		}
		coded := encode(t, name, noise(90_000))
		broken := map[string][]byte{"cut": coded[:len(coded)-20], "other": []byte("this is no coding of the kind at all")}
		if name != "raw deflate" && name != "br" { // without a checksum damage is other text, which is searched
			broken["damaged"] = damage(coded)
		}
		for what, text := range broken {
			if _, err := io.ReadAll(search(t, bytes.NewReader(text), e.coding, nil)); !errors.Is(err, errUnsearched) {
				t.Errorf("%s %s: %v", name, what, err)
			}
		}
	}
}

func damage(b []byte) []byte {
	b = bytes.Clone(b)
	for i := len(b) / 2; i < len(b)/2+40 && i < len(b); i++ {
		b[i] ^= 0x55
	}
	return b
}

func TestSearchedLooksBeyondTheFirstMember(t *testing.T) {
	one, two := encode(t, "gzip", "first "), encode(t, "gzip", "second "+hidden)
	three := encode(t, "gzip", "second")
	if got, err := io.ReadAll(search(t, bytes.NewReader(append(bytes.Clone(one), two...)), "gzip", nil)); !errors.Is(err, errEchoed) || len(got) > len(one) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	both := append(bytes.Clone(one), three...)
	if got, err := io.ReadAll(search(t, &pieces{both, 1, io.EOF}, "gzip", nil)); err != nil || !bytes.Equal(got, both) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Comment = hidden
	_, _ = io.WriteString(w, "clear")
	_ = w.Close()
	if got, err := io.ReadAll(search(t, &b, "gzip", nil)); !errors.Is(err, errEchoed) || len(got) > 0 {
		t.Errorf("in the comment: %q %v", got, err)
	}
	if got, err := io.ReadAll(search(t, bytes.NewReader(append(encode(t, "br", "first"), hidden...)), "br", nil)); err == nil || bytes.Contains(got, []byte(hidden)) {
		t.Errorf("behind the end: %q %v", got, err)
	}
}

func TestSearchedTrailer(t *testing.T) {
	for _, trailer := range []fields{{{"x", hidden}}, {{hidden, "x"}}} {
		if _, err := io.ReadAll(search(t, strings.NewReader("body"), "", trailer)); !errors.Is(err, errEchoed) {
			t.Errorf("%v", err)
		}
	}
}

// What decodes to far more than it is takes no more memory for that.
// What waits for its decoding is counted as it grows, and given back at the end.
func TestSearchedBytesAreCounted(t *testing.T) {
	skipped := append([]byte{0x50, 0x2a, 0x4d, 0x18, 0, 0, 0x30, 0}, make([]byte, 3<<20)...) // a frame without content (RFC 8878 section 3.1.2)
	b := search(t, bytes.NewReader(skipped), "zstd", nil)
	b.room, b.charged = &room{gauge: gauge{limit: b.needs() + 1<<20}}, b.needs()
	if !b.room.take(b.charged) {
		t.Fatal("no room for one")
	}
	if _, err := b.Read(make([]byte, 100)); !errors.Is(err, errNoRoom) {
		t.Errorf("%v", err)
	}
	if used := b.room.used.Load(); used != b.charged || used > b.room.limit || used < b.needs()+900_000 {
		t.Errorf("%d bytes are counted, %d of them charged", used, b.charged)
	}
}

func TestSearchedBomb(t *testing.T) {
	coded := encode(t, "gzip", strings.Repeat("0", 200<<20))
	got, err := io.Copy(io.Discard, search(t, bytes.NewReader(coded), "gzip", nil))
	if err != nil || got != int64(len(coded)) {
		t.Errorf("%d of %d, %v", got, len(coded), err)
	}
}
