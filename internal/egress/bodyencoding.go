package egress

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"

	"github.com/fractalboxdev/sbx/internal/coding"
)

var errBodySize = errors.New("the decoded body is larger than the cap")

func bodyCode(err error) Code {
	switch {
	case errors.Is(err, errBodySize):
		return CodeBodyTooLarge
	case errors.Is(err, coding.ErrCoding):
		return CodeBodyEncoding
	}
	return CodeBodyAssertion
}

// decodeBody undoes gzip, which git uses, under a cap in bytes; other codings
// are refused, so that nothing is judged in a form that the origin does not see.
func decodeBody(body []byte, encoding string, limit int64) ([]byte, error) {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "", "identity":
		if int64(len(body)) > limit {
			return nil, errBodySize
		}
		return body, nil
	case "gzip", "x-gzip":
		return gunzip(body, limit)
	}
	return nil, errors.New("the content encoding is not gzip")
}

func gunzip(body []byte, limit int64) ([]byte, error) {
	source := bytes.NewReader(body)
	reader, err := gzip.NewReader(source)
	if err != nil {
		return nil, errors.New("the gzip header is malformed")
	}
	reader.Multistream(false) // origins differ in what they do with a second member
	plain, err := io.ReadAll(io.LimitReader(reader, limit+1))
	switch {
	case err != nil:
		return nil, errors.New("the gzip stream is malformed")
	case int64(len(plain)) > limit:
		return nil, errBodySize
	case source.Len() > 0:
		return nil, errors.New("bytes follow the gzip stream")
	}
	return plain, nil
}
