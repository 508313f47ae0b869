package resolver

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

// serve runs r on loopback over UDP and TCP and returns the addresses.
func serve(t *testing.T, r *Resolver) (udp, tcp string) {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.ServeUDP(pc) })
	wg.Go(func() { _ = r.ServeTCP(l) })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
		_, _ = pc.Close(), l.Close()
		wg.Wait()
	})
	return pc.LocalAddr().String(), l.Addr().String()
}

func ask(t *testing.T, network, server, name string, kind uint16) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	m.Id = dns.Id()
	m.RecursionDesired = true
	m.Question = []dns.Question{{Name: name, Qtype: kind, Qclass: dns.ClassINET}}
	c := &dns.Client{Net: network, Timeout: 10 * time.Second}
	reply, _, err := c.Exchange(m, server)
	if err != nil {
		t.Fatalf("%s %s %s: %v", network, name, dns.TypeToString[kind], err)
	}
	return reply
}

func firstA(t *testing.T, m *dns.Msg) netip.Addr {
	t.Helper()
	if len(m.Answer) != 1 {
		t.Fatalf("answers: %v", m)
	}
	a, ok := m.Answer[0].(*dns.A)
	if !ok {
		t.Fatalf("answer: %v", m.Answer[0])
	}
	addr, _ := netip.AddrFromSlice(a.A.To4())
	return addr
}

func TestBypass25_EveryNameGetsASyntheticAddress(t *testing.T) {
	r := New(Config{})
	udp, tcp := serve(t, r)
	one := firstA(t, ask(t, "udp", udp, "secret.DENIED.test.", dns.TypeA))
	if !Pool.Contains(one) || one.Compare(netip.MustParseAddr("198.18.1.0")) < 0 {
		t.Errorf("address %v", one)
	}
	if again := firstA(t, ask(t, "tcp", tcp, "secret.denied.test.", dns.TypeA)); again != one {
		t.Errorf("over TCP %v, over UDP %v", again, one)
	}
	if two := firstA(t, ask(t, "udp", udp, "ok.test.", dns.TypeA)); two == one {
		t.Error("two names share an address")
	}
	if name, ok := r.NameOf(one); name != "secret.denied.test" || !ok {
		t.Errorf("NameOf: %q %v", name, ok)
	}
	if name, ok := r.NameOf(netip.MustParseAddr("::ffff:" + one.String())); name == "" || !ok {
		t.Error("the mapped form is not recognised")
	}
}

func TestOtherTypesAreEmpty(t *testing.T) {
	udp, _ := serve(t, New(Config{}))
	for _, kind := range []uint16{dns.TypeAAAA, dns.TypeHTTPS, dns.TypeTXT, dns.TypeSRV, dns.TypeMX, dns.TypeCNAME} {
		m := ask(t, "udp", udp, "ok.test.", kind)
		if m.Rcode != dns.RcodeSuccess || len(m.Answer) != 0 {
			t.Errorf("%s: %v", dns.TypeToString[kind], m)
		}
	}
}

func TestInvalidNamesDoNotExist(t *testing.T) {
	r := New(Config{})
	udp, _ := serve(t, r)
	for _, name := range []string{`evil\000.ok.test.`, `a\032b.test.`, `*.ok.test.`, `a\046b.test.`, "1.2.3.4.", "0x7f.1.", "2130706433.", `\195\164.test.`} {
		if m := ask(t, "udp", udp, name, dns.TypeA); m.Rcode != dns.RcodeNameError {
			t.Errorf("%s: %s", name, dns.RcodeToString[m.Rcode])
		}
	}
	if got := r.Unconnected(); len(got) != 0 {
		t.Errorf("bound: %v", got)
	}
}

func TestLoopbackAndReverse(t *testing.T) {
	r := New(Config{})
	udp, _ := serve(t, r)
	if a := firstA(t, ask(t, "udp", udp, "Localhost.", dns.TypeA)); a != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("localhost: %v", a)
	}
	m := ask(t, "udp", udp, "x.localhost.", dns.TypeAAAA)
	if len(m.Answer) != 1 || !m.Answer[0].(*dns.AAAA).AAAA.Equal(net.IPv6loopback) {
		t.Errorf("x.localhost: %v", m)
	}
	addr, _ := r.Bind("ok.test")
	arpa, err := dns.ReverseAddr(addr.String())
	if err != nil {
		t.Fatal(err)
	}
	m = ask(t, "udp", udp, arpa, dns.TypePTR)
	if len(m.Answer) != 1 || m.Answer[0].(*dns.PTR).Ptr != "ok.test." {
		t.Errorf("PTR: %v", m)
	}
	if m = ask(t, "udp", udp, "8.8.8.8.in-addr.arpa.", dns.TypePTR); m.Rcode != dns.RcodeNameError {
		t.Errorf("a foreign PTR: %v", m)
	}
}

func TestMalformedQuestionsAreSurvived(t *testing.T) {
	udp, tcp := serve(t, New(Config{}))
	conn, err := net.Dial("udp", udp)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	loop := []byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1} // a name that points to itself
	none := []byte{0, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	for _, b := range [][]byte{{}, {1}, make([]byte, 11), make([]byte, 4000), loop, none, append(none, 0xff, 0xff, 0xff)} {
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := net.Dial("tcp", tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	_, _ = stream.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(loop))), loop...))
	_, _ = io.ReadAll(io.LimitReader(stream, 2))
	firstA(t, ask(t, "udp", udp, "still.test.", dns.TypeA))
	firstA(t, ask(t, "tcp", tcp, "still.test.", dns.TypeA))
}

func TestLimitIsReportedOnceAndBindingsStay(t *testing.T) {
	calls := make(chan string, 10)
	r := New(Config{Limit: 3, Overflow: func(name string) { calls <- name }})
	udp, _ := serve(t, r)
	first := firstA(t, ask(t, "udp", udp, "n0.test.", dns.TypeA))
	for i := 1; i < 6; i++ {
		m := ask(t, "udp", udp, fmt.Sprintf("n%d.test.", i), dns.TypeA)
		if want := i >= 3; (m.Rcode == dns.RcodeNameError) != want {
			t.Errorf("n%d: %s", i, dns.RcodeToString[m.Rcode])
		}
	}
	if name := <-calls; name != "n3.test" || len(calls) != 0 {
		t.Errorf("overflow was called with %q and %d more", name, len(calls))
	}
	if again := firstA(t, ask(t, "udp", udp, "n0.test.", dns.TypeA)); again != first {
		t.Errorf("a binding moved from %v to %v", first, again)
	}
	if name, ok := r.NameOf(address(3)); name != "" || !ok {
		t.Errorf("an unbound synthetic address: %q %v", name, ok)
	}
	if _, ok := r.NameOf(netip.MustParseAddr("192.0.2.1")); ok {
		t.Error("a foreign address counts as synthetic")
	}
}

func TestUnconnected(t *testing.T) {
	now := time.Unix(100, 0)
	r := New(Config{Clock: func() time.Time { now = now.Add(time.Second); return now }})
	for _, name := range []string{"a.test", "b.test", "a.test", "c.test"} {
		if _, ok := r.Bind(name); !ok {
			t.Fatal(name)
		}
	}
	r.Connected("c.test")
	r.Connected("unknown.test")
	want := []Name{
		{Name: "a.test", First: time.Unix(101, 0), Last: time.Unix(103, 0), Count: 2},
		{Name: "b.test", First: time.Unix(102, 0), Last: time.Unix(102, 0), Count: 1},
	}
	if diff := cmp.Diff(want, r.Unconnected()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLastAddressOfThePoolIsInside(t *testing.T) {
	if a := address(DefaultLimit - 1); !Pool.Contains(a) || offset(a) != reserved+DefaultLimit-1 {
		t.Errorf("last address %v", a)
	}
}

func BenchmarkQuestion(b *testing.B) {
	r := New(Config{})
	q := dns.Question{Name: "ok.test.", Qtype: dns.TypeA, Qclass: dns.ClassINET}
	for b.Loop() {
		r.answer(new(dns.Msg), q)
	}
}

// The same question has the same answer, over both transports and at once, and what is
// refused is counted as well.
func TestBypass66_AnswersDoNotVary(t *testing.T) {
	r := New(Config{})
	udp, tcp := serve(t, r)
	var mu sync.Mutex
	answers := map[string]map[string]int{}
	var wg sync.WaitGroup
	for range 20 {
		for _, name := range []string{"granted.test.", "unlisted.test.", "UNLISTED.test.", "bad!name.test.", "a..b\\000.test.", "10.0.0.300."} {
			for network, server := range map[string]string{"udp": udp, "tcp": tcp} {
				wg.Go(func() {
					m := new(dns.Msg)
					m.SetQuestion(name, dns.TypeA)
					reply, _, err := (&dns.Client{Net: network, Timeout: 10 * time.Second}).Exchange(m, server)
					text := fmt.Sprint(err)
					if err == nil {
						text = dns.RcodeToString[reply.Rcode]
						for _, a := range reply.Answer {
							text += " " + a.(*dns.A).A.String()
						}
					}
					mu.Lock()
					defer mu.Unlock()
					if answers[name] == nil {
						answers[name] = map[string]int{}
					}
					answers[name][text]++
				})
			}
		}
	}
	wg.Wait()
	for name, got := range answers {
		if len(got) != 1 {
			t.Errorf("%s: %v", name, got)
		}
	}
	refused := r.Refused()
	if len(refused) != 2 && len(refused) != 3 { // a client may refuse to pack the empty label itself
		t.Errorf("%+v", refused)
	}
	for _, n := range refused {
		if n.Count != 40 || n.First.IsZero() || n.Last.Before(n.First) {
			t.Errorf("%+v", n)
		}
	}
}

func TestRefusedNamesAreBounded(t *testing.T) {
	r := New(Config{Limit: 3})
	for i := range 10 {
		r.Bind(fmt.Sprintf("bad!%d", i))
	}
	if got := r.Refused(); len(got) != 3 {
		t.Errorf("%+v", got)
	}
	if n := r.Unlisted(); n != 7 {
		t.Errorf("%d questions are counted as unlisted, want 7", n)
	}
	for i := range 10 { // of the seven beyond the limit, the first goes to Overflow
		r.Bind(fmt.Sprintf("good%d.test", i))
	}
	if n := r.Unlisted(); n != 7+6 {
		t.Errorf("%d questions are counted as unlisted, want 13", n)
	}
}
