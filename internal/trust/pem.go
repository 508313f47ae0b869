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

// isBase64 reports whether the bytes are base64 and line ends, with something in it.
func isBase64(body []byte) bool {
	digits := 0
	for _, b := range body {
		switch {
		case b >= 'A' && b <= 'Z', b >= 'a' && b <= 'z', b >= '0' && b <= '9', b == '+', b == '/', b == '=':
			digits++
		case b == '\n', b == '\r':
		default:
			return false
		}
	}
	return digits > 0
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
