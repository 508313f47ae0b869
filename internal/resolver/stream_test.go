package resolver

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// overTCP asks once and returns the open connection.
func overTCP(t *testing.T, server string) *dns.Conn {
	t.Helper()
	c, err := dns.DialTimeout("tcp", server, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if err := askOn(c); err != nil {
		t.Fatal(err)
	}
	return c
}

func askOn(c *dns.Conn) error {
	if err := c.WriteMsg(new(dns.Msg).SetQuestion("a.test.", dns.TypeA)); err != nil {
		return err
	}
	_, err := c.ReadMsg()
	return err
}

func TestALongQuestionEndsItsConnection(t *testing.T) {
	_, tcp := serve(t, New(Config{}))
	for _, length := range []uint16{maxQuestion + 1, 65535} {
		c := overTCP(t, tcp).Conn
		start := time.Now()
		if _, err := c.Write(binary.BigEndian.AppendUint16(nil, length)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(c); err != nil {
			t.Errorf("%d bytes: %v", length, err)
		}
		if took := time.Since(start); took > idleLimit/2 {
			t.Errorf("%d bytes: the connection ended after %v", length, took)
		}
	}
	// The longest question is read: it is malformed, and answered as such.
	c := overTCP(t, tcp)
	long := append([]byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, make([]byte, maxQuestion-12)...)
	if _, err := c.Write(long); err != nil { // a dns.Conn writes the length itself
		t.Fatal(err)
	}
	if _, err := c.ReadMsg(); err != nil {
		t.Errorf("%d bytes: %v", maxQuestion, err)
	}
}

// The length may come byte by byte.
func TestASplitLengthIsCountedAsWell(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	go func() {
		for _, b := range []byte{0xff, 0xff} {
			_, _ = theirs.Write([]byte{b})
		}
		_ = theirs.Close()
	}()
	if _, err := io.ReadFull(&question{Conn: ours}, make([]byte, 2)); !errors.Is(err, errQuestionTooLong) {
		t.Errorf("reading 65535 as the length: %v", err)
	}
}

func TestIdleConnectionsEnd(t *testing.T) {
	_, tcp := serve(t, New(Config{}))
	c := overTCP(t, tcp)
	start := time.Now()
	if _, err := io.ReadAll(c.Conn); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took < idleLimit/2 || took > 2*idleLimit {
		t.Errorf("an idle connection ended after %v", took)
	}
}

// counted is a connection whose end is counted.
type counted struct {
	net.Conn
	open *atomic.Int32
}

func (c *counted) Close() error { c.open.Add(-1); return c.Conn.Close() }

func TestConnectionsAreAdmittedUntilTheyEnd(t *testing.T) {
	var open, refused atomic.Int32
	_, tcp := serve(t, New(Config{Admit: func(c net.Conn) (net.Conn, bool) {
		if open.Add(1) > 2 {
			open.Add(-1)
			refused.Add(1)
			_ = c.Close()
			return nil, false
		}
		return &counted{c, &open}, true
	}}))
	first := overTCP(t, tcp)
	overTCP(t, tcp)
	third, err := net.Dial("tcp", tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	if _, err := io.ReadAll(third); err != nil || refused.Load() != 1 {
		t.Errorf("the third connection: %v, %d refused", err, refused.Load())
	}
	_ = first.Close()
	for limit := time.Now().Add(idleLimit / 2); open.Load() != 1 && time.Now().Before(limit); {
		time.Sleep(time.Millisecond)
	}
	overTCP(t, tcp)
	if refused.Load() != 1 {
		t.Error("the place of a connection that ended was not given back")
	}
}

// exhausted is a listener without descriptors.
type exhausted struct {
	net.Listener
	asked atomic.Int32
}

func (e *exhausted) Accept() (net.Conn, error) {
	e.asked.Add(1)
	return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
}

func TestOutOfDescriptorsIsWaitedFor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &exhausted{Listener: l}
	r := New(Config{})
	ended := make(chan error, 1)
	go func() { ended <- r.ServeTCP(e) }()
	time.Sleep(100 * time.Millisecond)
	if n := e.asked.Load(); n == 0 || n > 20 {
		t.Errorf("accept was tried %d times in 100 ms", n)
	}
	start := time.Now()
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil || time.Since(start) > 50*time.Millisecond {
		t.Errorf("ended with %v after %v", err, time.Since(start))
	}
}
