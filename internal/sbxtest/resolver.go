package sbxtest

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// resolver is the world's name server. It knows the lab's servers, and
// remembers whatever it was asked.
type resolver struct {
	mu    sync.Mutex
	names map[string][]netip.Addr
	asked []string
}

// serveNames starts the resolver over UDP and TCP.
func (w *world) serveNames(t testing.TB) (*resolver, error) {
	r := &resolver{names: map[string][]netip.Addr{}}
	at := netip.AddrPortFrom(netip.MustParseAddr(resolverV4), 53)
	var udp net.PacketConn
	err := w.within(w.space, func() (err error) {
		if err = own(at.Addr()); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp", at.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("starting the world's name server: %w", err)
	}
	tcp, err := w.listen(at)
	if err != nil {
		return nil, err
	}
	for _, s := range []*dns.Server{{PacketConn: udp, Handler: r}, {Listener: tcp, Handler: r}} {
		done := make(chan struct{})
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { defer close(done); _ = s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { _ = s.Shutdown(); <-done })
	}
	return r, nil
}

// ServeDNS answers for the lab's servers and denies all other names.
func (r *resolver) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	answer := new(dns.Msg).SetReply(q)
	for _, question := range q.Question {
		r.mu.Lock()
		r.asked = append(r.asked, dns.TypeToString[question.Qtype]+" "+strings.TrimSuffix(question.Name, "."))
		addrs, known := r.names[strings.ToLower(strings.TrimSuffix(question.Name, "."))]
		r.mu.Unlock()
		if !known {
			answer.Rcode = dns.RcodeNameError
		}
		for _, a := range addrs {
			answer.Answer = append(answer.Answer, record(question, a)...)
		}
	}
	_ = w.WriteMsg(answer) // the client is gone
}

func record(q dns.Question, a netip.Addr) []dns.RR {
	header := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 1}
	switch {
	case q.Qtype == dns.TypeA && a.Is4():
		return []dns.RR{&dns.A{Hdr: header, A: a.AsSlice()}}
	case q.Qtype == dns.TypeAAAA && a.Is6():
		return []dns.RR{&dns.AAAA{Hdr: header, AAAA: a.AsSlice()}}
	}
	return nil
}

func (r *resolver) add(name string, addrs []netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names[name] = addrs
}

// Lookups is every question that reached the world's name server so far, as
// in "A ok.test". Names in /etc/hosts need none.
func (l *Lab) Lookups() []string {
	l.t.Helper()
	if l.world == nil {
		l.t.Fatal("a lab with the real network has no name server")
	}
	r := l.world.resolver
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked)
}
