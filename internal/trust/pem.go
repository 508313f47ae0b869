package trust

import "bytes"

var (
	begin = []byte("-----BEGIN CERTIFICATE-----")
	end   = []byte("-----END CERTIFICATE-----")
)

// certificates calls yield for each certificate of a PEM text: the base64
// between its marks, as it stands. Comments, other blocks and blocks with
// anything but base64 are passed over.
func certificates(text []byte, yield func(body []byte)) {
	for {
		at := bytes.Index(text, begin)
		if at < 0 {
			return
		}
		text = text[at+len(begin):]
		stop := bytes.Index(text, end)
		if stop < 0 {
			return
		}
		if body := text[:stop]; isBase64(body) {
			yield(body)
			text = text[stop+len(end):]
		}
	}
}

// The classes of bytes in a certificate's body. The zero value belongs nowhere.
const (
	lineEnd = 1
	digit   = 2
)

// class is a table, since a host's bundle of 200 KB is gone through at each start.
var class = [256]uint8{
	'\n': lineEnd, '\r': lineEnd, '+': digit, '/': digit, '=': digit,
	'0': digit, '1': digit, '2': digit, '3': digit, '4': digit, '5': digit, '6': digit, '7': digit, '8': digit, '9': digit,
	'A': digit, 'B': digit, 'C': digit, 'D': digit, 'E': digit, 'F': digit, 'G': digit, 'H': digit, 'I': digit,
	'J': digit, 'K': digit, 'L': digit, 'M': digit, 'N': digit, 'O': digit, 'P': digit, 'Q': digit, 'R': digit,
	'S': digit, 'T': digit, 'U': digit, 'V': digit, 'W': digit, 'X': digit, 'Y': digit, 'Z': digit,
	'a': digit, 'b': digit, 'c': digit, 'd': digit, 'e': digit, 'f': digit, 'g': digit, 'h': digit, 'i': digit,
	'j': digit, 'k': digit, 'l': digit, 'm': digit, 'n': digit, 'o': digit, 'p': digit, 'q': digit, 'r': digit,
	's': digit, 't': digit, 'u': digit, 'v': digit, 'w': digit, 'x': digit, 'y': digit, 'z': digit,
}

// isBase64 reports whether the bytes are base64 and line ends, with something in it.
func isBase64(body []byte) bool {
	var any uint8
	for _, b := range body {
		c := class[b]
		if c == 0 {
			return false
		}
		any |= c
	}
	return any&digit != 0
}

// plain reports whether a text is in plain form already, as distributions write it:
// nothing but certificates, a line end after each, LF only.
func plain(text []byte) bool {
	if !bytes.HasPrefix(text, begin) || !bytes.HasSuffix(text, append(bytes.Clone(end), '\n')) || bytes.IndexByte(text, '\r') >= 0 {
		return false
	}
	for len(text) > 0 {
		stop := bytes.Index(text, end)
		if stop < 0 || !bytes.HasPrefix(text, begin) || !isBase64(text[len(begin):stop]) {
			return false
		}
		text = text[stop+len(end):]
		if text[0] != '\n' {
			return false
		}
		text = text[1:]
	}
	return true
}

// appendCertificates appends the certificates of text to out in plain form.
func appendCertificates(out, text []byte) []byte {
	certificates(text, func(body []byte) { out = appendCertificate(out, body) })
	return out
}

func appendCertificate(out, body []byte) []byte {
	out = append(out, begin...)
	out = append(out, '\n')
	body = bytes.Trim(body, "\r\n")
	if bytes.IndexByte(body, '\r') < 0 {
		out = append(out, body...)
	} else {
		for _, b := range body {
			if b != '\r' {
				out = append(out, b)
			}
		}
	}
	out = append(out, '\n')
	out = append(out, end...)
	return append(out, '\n')
}

// identity is the certificate's base64 without line ends, to compare by.
func identity(body []byte) string {
	id := make([]byte, 0, len(body))
	for _, b := range body {
		if b != '\n' && b != '\r' {
			id = append(id, b)
		}
	}
	return string(id)
}
