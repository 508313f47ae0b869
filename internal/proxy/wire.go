package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// field is one header or trailer line, name and value as they were sent.
type field struct{ name, value string }

// fields keep the order of the wire.
type fields []field

// get returns the first value of a field and how often it occurs.
func (fs fields) get(name string) (value string, count int) {
	for i := range fs {
		if strings.EqualFold(fs[i].name, name) {
			if count == 0 {
				value = fs[i].value
			}
			count++
		}
	}
	return value, count
}

// hasToken reports whether a comma-separated field lists token in any case.
func (fs fields) hasToken(name, token string) bool {
	for i := range fs {
		if strings.EqualFold(fs[i].name, name) && listHas(fs[i].value, token) {
			return true
		}
	}
	return false
}

func listHas(list, token string) bool {
	for item := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(strings.Trim(item, " \t"), token) {
			return true
		}
	}
	return false
}

// wireError is a message that can't be understood in exactly one way. It is
// answered with status (0: not at all) and ends the connection.
type wireError struct {
	status int
	code   egress.Code
	reason string
	// recorded: whoever found it made its row.
	recorded bool
}

func (e *wireError) Error() string { return e.reason }

func malformed(reason string) *wireError {
	return &wireError{status: 400, code: egress.CodeMalformed, reason: reason}
}

// headLimits bound the start line and the header block, in bytes and fields.
type headLimits struct{ line, block, count int }

// A request line of 32 KiB holds every URL that servers take (RFC 9112 section
// 3 asks for at least 8,000 bytes); responses have been seen with 100 KiB of cookies.
var (
	requestLimits  = headLimits{line: 32 << 10, block: 128 << 10, count: 512}
	responseLimits = headLimits{line: 16 << 10, block: 512 << 10, count: 2048}
	trailerLimits  = headLimits{block: 16 << 10, count: 64}
)

// head is a start line and its fields; all strings share one allocation.
type head struct {
	line   string
	fields fields
}

// headReader collects the lines of one head.
type headReader struct {
	br      *bufio.Reader
	limits  headLimits
	lenient bool // a server's message: bare LF and obs-fold are understood, never passed on
	buf     []byte
	ends    []int // end of each line in buf, line ending excluded
}

var headReaders = sync.Pool{New: func() any { return &headReader{buf: make([]byte, 0, 4096), ends: make([]int, 0, 64)} }}

// readHead reads until the empty line. A connection that ends before the first
// byte is io.EOF; other transport errors are returned as they are.
func readHead(br *bufio.Reader, limits headLimits, lenient bool) (head, error) {
	r := headReaders.Get().(*headReader)
	r.br, r.limits, r.lenient = br, limits, lenient
	h, err := r.read(limits.line > 0)
	r.br, r.buf, r.ends = nil, r.buf[:0], r.ends[:0]
	if cap(r.buf) <= 64<<10 {
		headReaders.Put(r)
	}
	return h, err
}

func (r *headReader) read(startLine bool) (head, error) {
	skipped := false
	for {
		start := len(r.buf)
		if err := r.readLine(); err != nil {
			return head{}, err
		}
		if len(r.buf) > start {
			r.ends = append(r.ends, len(r.buf))
			if len(r.ends) > r.limits.count {
				return head{}, r.tooLarge()
			}
			// HTTP/0.9 ends here; waiting for headers would wait forever.
			if len(r.ends) == 1 && startLine && !r.lenient && !bytes.Contains(r.buf, []byte(" HTTP/")) {
				return head{line: string(r.buf)}, malformed("the request line is not METHOD TARGET HTTP/1.1")
			}
			continue
		}
		// RFC 9112 section 2.2: one empty line before a request is ignored.
		if startLine && len(r.ends) == 0 {
			if skipped {
				return head{}, malformed("empty lines instead of a start line")
			}
			skipped = true
			continue
		}
		return r.parse(startLine)
	}
}

// readLine appends one line without its ending to buf.
func (r *headReader) readLine() error {
	start := len(r.buf)
	for {
		part, err := r.br.ReadSlice('\n')
		r.buf = append(r.buf, part...)
		if len(r.ends) == 0 && r.limits.line > 0 && len(r.buf)-start > r.limits.line {
			return &wireError{status: 414, code: egress.CodeMalformed, reason: "the start line is too long"}
		}
		if len(r.buf) > r.limits.block {
			return r.tooLarge()
		}
		switch {
		case err == nil:
			return r.endLine(start)
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(r.buf) > 0:
			return io.ErrUnexpectedEOF
		default:
			return err
		}
	}
}

func (r *headReader) tooLarge() error {
	return &wireError{status: 431, code: egress.CodeMalformed, reason: "the header block is too large"}
}

// endLine cuts the line ending and refuses control characters, bare CR and bare
// LF: each is a place where two parsers disagree about where a message ends.
func (r *headReader) endLine(start int) error {
	end := len(r.buf) - 1
	switch {
	case end > start && r.buf[end-1] == '\r':
		end--
	case !r.lenient:
		return malformed("a line ends in a bare LF")
	}
	for _, c := range r.buf[start:end] {
		if c < ' ' && c != '\t' || c == 0x7f {
			return malformed("a control character in the header block")
		}
	}
	r.buf = r.buf[:end]
	return nil
}

func (r *headReader) parse(startLine bool) (head, error) {
	text := string(r.buf)
	var h head
	ends, start := r.ends, 0
	if startLine {
		h.line, start, ends = text[:ends[0]], ends[0], ends[1:]
	}
	if len(ends) > 0 {
		h.fields = make(fields, 0, len(ends))
	}
	for _, end := range ends {
		line := text[start:end]
		start = end
		if line[0] == ' ' || line[0] == '\t' {
			if !r.lenient || len(h.fields) == 0 {
				return head{}, malformed("a folded header line")
			}
			last := &h.fields[len(h.fields)-1]
			last.value = strings.TrimRight(last.value+" "+strings.Trim(line, " \t"), " ")
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) {
			return head{}, malformed("a header line without a valid name")
		}
		h.fields = append(h.fields, field{name, strings.Trim(value, " \t")})
	}
	return h, nil
}

// tokenChars are the bytes of an HTTP token (RFC 9110 section 5.6.2).
var tokenChars = func() (t [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		t[c] = true
	}
	return t
}()

func isToken(s string) bool {
	for i := range len(s) {
		if !tokenChars[s[i]] {
			return false
		}
	}
	return s != ""
}

const maxMethod = 32

// parseRequestLine splits "METHOD SP target SP HTTP/1.x".
func parseRequestLine(line string) (method, target string, minor int, err error) {
	method, rest, ok := strings.Cut(line, " ")
	target, version, ok2 := strings.Cut(rest, " ")
	if !ok || !ok2 || !isToken(method) || len(method) > maxMethod || target == "" {
		return "", "", 0, malformed("the request line is not METHOD TARGET HTTP/1.1")
	}
	for i := range len(target) {
		if c := target[i]; c <= ' ' || c == 0x7f || c == '#' {
			return "", "", 0, malformed("the request target has a byte that no target may have")
		}
	}
	switch version {
	case "HTTP/1.1":
		return method, target, 1, nil
	case "HTTP/1.0":
		return method, target, 0, nil
	}
	if strings.HasPrefix(version, "HTTP/") {
		return "", "", 0, &wireError{status: 505, code: egress.CodeMalformed, reason: "the HTTP version is not 1.0 or 1.1"}
	}
	return "", "", 0, malformed("the request line is not METHOD TARGET HTTP/1.1")
}

// looksHTTP reports whether the first bytes of a connection can be an HTTP/1
// request line: a method token, then a space. More bytes may be needed.
func looksHTTP(b []byte) (yes, sure bool) {
	for i, c := range b {
		switch {
		case c == ' ' && i > 0:
			return true, true
		case c == '\r' || c == '\n':
			return i <= 1, i > 1 // an empty line may come first
		case !tokenChars[c] || i > maxMethod:
			return false, true
		}
	}
	return true, false
}

// parseStatusLine splits "HTTP/1.x SP 3DIGIT [SP reason]".
func parseStatusLine(line string) (status, minor int, reason string, err error) {
	version, rest, _ := strings.Cut(line, " ")
	code, reason, _ := strings.Cut(rest, " ")
	if len(version) != 8 || !strings.HasPrefix(version, "HTTP/1.") || len(code) != 3 {
		return 0, 0, "", malformed("the upstream's answer is not HTTP/1")
	}
	for _, c := range []byte(code) {
		if c < '0' || c > '9' {
			return 0, 0, "", malformed("the upstream's status is no number")
		}
		status = status*10 + int(c-'0')
	}
	if status < 100 {
		return 0, 0, "", malformed("the upstream's status is below 100")
	}
	if version[7] >= '1' && version[7] <= '9' {
		minor = 1
	}
	return status, minor, reason, nil
}

// parseLength reads a Content-Length: digits only, at most 18 of them.
func parseLength(s string) (int64, error) {
	if s == "" || len(s) > 18 {
		return 0, malformed("Content-Length is no length")
	}
	var n int64
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, malformed("Content-Length is no length")
		}
		n = n*10 + int64(s[i]-'0')
	}
	return n, nil
}

// requestFraming returns the body length of a request: 0 none, -1 chunked. One
// framing field with one value is understood, everything else refused
// (request smuggling, CWE-444).
func requestFraming(fs fields, minor int) (int64, error) {
	length, lengths := fs.get("Content-Length")
	coding, codings := fs.get("Transfer-Encoding")
	switch {
	case lengths+codings == 0:
		return 0, nil
	case lengths+codings > 1:
		return 0, malformed("more than one field says how long the body is")
	case lengths == 1:
		return parseLength(length)
	case minor == 0:
		return 0, malformed("Transfer-Encoding in HTTP/1.0")
	case !strings.EqualFold(coding, "chunked"):
		return 0, &wireError{status: 501, code: egress.CodeMalformed, reason: "a transfer coding other than chunked"}
	}
	return -1, nil
}

// untilClose is the length of a response body that ends with the connection.
const untilClose = -2

// responseFraming returns the body length of a response to method: 0 or more,
// -1 chunked, untilClose (RFC 9112 section 6.3).
func responseFraming(fs fields, status int, method string) (int64, error) {
	if method == "HEAD" || status < 200 || status == 204 || status == 304 {
		return 0, nil
	}
	if coding, n := fs.get("Transfer-Encoding"); n > 0 {
		if n > 1 || !strings.EqualFold(coding, "chunked") {
			return 0, malformed("the upstream uses a transfer coding other than chunked")
		}
		return -1, nil
	}
	if _, n := fs.get("Content-Length"); n == 0 {
		return untilClose, nil
	}
	return agreedLength(fs)
}

// agreedLength accepts a length that is repeated, but only with one value.
func agreedLength(fs fields) (int64, error) {
	length := int64(-1)
	for i := range fs {
		if !strings.EqualFold(fs[i].name, "Content-Length") {
			continue
		}
		for item := range strings.SplitSeq(fs[i].value, ",") {
			n, err := parseLength(strings.Trim(item, " \t"))
			if err != nil {
				return 0, err
			}
			if length >= 0 && n != length {
				return 0, malformed("the upstream sends different lengths")
			}
			length = n
		}
	}
	return length, nil
}

// appendField writes one line of a head.
func appendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}

// h2Preface begins an HTTP/2 connection with prior knowledge (RFC 9113 section 3.4).
var h2Preface = []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

func isPreface(b []byte) bool {
	return len(b) >= 4 && bytes.HasPrefix(h2Preface, b[:min(len(b), len(h2Preface))])
}
