package resolver

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// maxQuestion is the longest question that is read over TCP, in bytes. One with every
// option that clients send has a few hundred; what is longer fills memory only.
const maxQuestion = 4096

// idleLimit is how long a connection may take for a question, or wait for the next: a
// few seconds (RFC 7766 section 6.2.3).
const idleLimit = 2 * time.Second

var errQuestionTooLong = errors.New("the question is too long")

// streamServer answers on connections, as many as admit lets in.
func (r *Resolver) streamServer(l net.Listener) *dns.Server {
	return &dns.Server{
		Listener: &listener{Listener: l, admit: r.cfg.Admit, closed: make(chan struct{})}, Handler: r,
		ReadTimeout: idleLimit, IdleTimeout: func() time.Duration { return idleLimit },
		DecorateReader: func(next dns.Reader) dns.Reader { return boundedReader{next} },
	}
}

// listener hands on the connections that are admitted. The server itself takes all of
// them, and asks again without a pause when it is out of descriptors.
type listener struct {
	net.Listener
	admit  func(net.Conn) (net.Conn, bool) // nil: all
	once   sync.Once
	closed chan struct{}
}

// Accept returns the next connection that is admitted.
func (l *listener) Accept() (net.Conn, error) {
	backoff := time.Duration(0)
	for {
		c, err := l.Listener.Accept()
		if err == nil {
			backoff = 0
			if admitted, ok := l.admitted(c); ok {
				return admitted, nil
			}
			continue
		}
		var temporary interface{ Temporary() bool }
		if !errors.As(err, &temporary) || !temporary.Temporary() {
			return nil, err
		}
		// Out of descriptors: wait for connections to end instead of spinning.
		backoff = min(max(2*backoff, 5*time.Millisecond), time.Second)
		select {
		case <-time.After(backoff):
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
}

func (l *listener) admitted(c net.Conn) (net.Conn, bool) {
	if l.admit == nil {
		return c, true
	}
	return l.admit(c)
}

// Close also ends an Accept that waits for descriptors.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// boundedReader ends a connection whose next question is announced as too long, before
// there is memory for it.
type boundedReader struct{ dns.Reader }

// ReadTCP reads one question.
func (b boundedReader) ReadTCP(c net.Conn, timeout time.Duration) ([]byte, error) {
	return b.Reader.ReadTCP(&question{Conn: c}, timeout)
}

// question looks at the length that stands before a question (RFC 1035 section 4.2.2).
type question struct {
	net.Conn
	seen, length int
}

// Read fails when the length is known and too large.
func (q *question) Read(b []byte) (int, error) {
	n, err := q.Conn.Read(b)
	for _, octet := range b[:min(n, 2-q.seen)] {
		q.length = q.length<<8 | int(octet)
		q.seen++
	}
	if q.seen == 2 && q.length > maxQuestion {
		return 0, errQuestionTooLong
	}
	return n, err
}
