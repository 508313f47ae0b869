package coding_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"github.com/fractalboxdev/sbx/internal/coding"
)

// encoders are the codings that can be undone, by the name in a Content-Encoding.
var encoders = map[string]func(io.Writer) io.WriteCloser{
	"gzip":    func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
	"x-gzip":  func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
	"deflate": func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
	"DEFLATE": func(w io.Writer) io.WriteCloser { e, _ := flate.NewWriter(w, 9); return e },
	"br":      func(w io.Writer) io.WriteCloser { return brotli.NewWriter(w) },
	"zstd":    func(w io.Writer) io.WriteCloser { e, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)); return e },
}

func encode(t testing.TB, name, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	e := encoders[name](&b)
	_, err := io.WriteString(e, text)
	if err = errors.Join(err, e.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSizeIsThatOfTheDecodedBody(t *testing.T) {
	for name := range encoders {
		for _, size := range []int{0, 1, 1000, 200_000, 3 << 20} {
			body := encode(t, name, strings.Repeat("z", size))
			if n, err := coding.Size(body, coding.Parse(name), 4<<20); n != int64(size) || err != nil {
				t.Errorf("%s of %d bytes: %d %v", name, size, n, err)
			}
			if n, err := coding.Size(body, coding.Parse(name), int64(size)-1); n < int64(size) || err != nil {
				t.Errorf("%s of %d bytes under a lower limit: %d %v", name, size, n, err)
			}
		}
	}
	for _, value := range []string{"", "identity", " Identity , ", "aws-chunked"} {
		if n, err := coding.Size([]byte("12345"), coding.Parse(value), 1); n != 5 || err != nil {
			t.Errorf("%q: %d %v", value, n, err)
		}
	}
}

func TestSizeOfWhatCannotBeDecoded(t *testing.T) {
	for name := range encoders {
		body := encode(t, name, strings.Repeat("some text ", 5000))
		for what, bad := range map[string][]byte{
			"cut": body[:len(body)-3], "half": body[:len(body)/2], "more": append(bytes.Clone(body), "more"...), "not coded": []byte("plain text, as it seems"),
		} {
			if n, err := coding.Size(bad, coding.Parse(name), 1<<20); !errors.Is(err, coding.ErrCoding) {
				t.Errorf("%s, %s: %d %v", name, what, n, err)
			}
		}
	}
	for _, value := range []string{"compress", "gzip, gzip", "gzip, aws-chunked", "dcb", "gzip;q=1", "\x00"} {
		if _, err := coding.Size([]byte("x"), coding.Parse(value), 10); !errors.Is(err, coding.ErrCoding) {
			t.Errorf("%q: %v", value, err)
		}
	}
}

// What a bomb makes a decoder do ends with the limit, and its window is bounded.
func TestSizeOfABomb(t *testing.T) {
	for name := range encoders {
		body := encode(t, name, strings.Repeat("\x00", 8<<20))
		if n, err := coding.Size(body, coding.Parse(name), 1000); n < 1000 || n > 1<<20 || err != nil {
			t.Errorf("%s: %d %v", name, n, err)
		}
	}
	var b bytes.Buffer
	e, err := zstd.NewWriter(&b, zstd.WithWindowSize(16<<20), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.CopyN(e, zeros{}, 32<<20)
	_ = e.Close()
	if _, err := coding.Size(b.Bytes(), []string{"zstd"}, 64<<20); !errors.Is(err, coding.ErrCoding) {
		t.Errorf("a window of 16 MiB: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
