package resolver

import (
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// ttl in seconds: a binding holds for the whole run, so caching is harmless.
const ttl = 300

// ServeDNS answers one question. Nothing it reads is ever sent anywhere else.
func (r *Resolver) ServeDNS(w dns.ResponseWriter, req *dns.Msg) {
	// A fault while answering hostile bytes must not end the run.
	defer func() { _ = recover() }()
	reply := new(dns.Msg)
	reply.SetReply(req)
	reply.RecursionAvailable = true
	if opt := req.IsEdns0(); opt != nil {
		reply.SetEdns0(dns.MinMsgSize*2, opt.Do())
	}
	if len(req.Question) == 1 {
		r.answer(reply, req.Question[0])
	}
	// The client is gone when this fails; there is nobody to tell.
	_ = w.WriteMsg(reply)
}

func (r *Resolver) answer(reply *dns.Msg, q dns.Question) {
	name := strings.ToLower(strings.TrimSuffix(q.Name, "."))
	switch {
	case q.Qclass != dns.ClassINET && q.Qclass != dns.ClassANY:
		return
	case name == "": // the root: exists, holds nothing
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		loopback(reply, q)
	case strings.HasSuffix(name, ".in-addr.arpa") || strings.HasSuffix(name, ".ip6.arpa"):
		r.reverse(reply, q, name)
	default:
		r.forward(reply, q, name)
	}
}

// forward gives the synthetic address of any valid name. Other types exist but
// are empty, so that clients go on with the A record at once.
func (r *Resolver) forward(reply *dns.Msg, q dns.Question, name string) {
	addr, ok := r.Bind(name)
	if !ok {
		reply.Rcode = dns.RcodeNameError
		return
	}
	if q.Qtype == dns.TypeA || q.Qtype == dns.TypeANY {
		reply.Answer = append(reply.Answer, recordA(q.Name, addr))
	}
}

func loopback(reply *dns.Msg, q dns.Question) {
	switch q.Qtype {
	case dns.TypeA, dns.TypeANY:
		reply.Answer = append(reply.Answer, recordA(q.Name, netip.AddrFrom4([4]byte{127, 0, 0, 1})))
	case dns.TypeAAAA:
		h := header(q.Name, dns.TypeAAAA)
		reply.Answer = append(reply.Answer, &dns.AAAA{Hdr: h, AAAA: net.IPv6loopback})
	}
}

func (r *Resolver) reverse(reply *dns.Msg, q dns.Question, name string) {
	bound, ok := r.NameOf(reverseAddr(name))
	if !ok || bound == "" {
		reply.Rcode = dns.RcodeNameError
		return
	}
	if q.Qtype == dns.TypePTR || q.Qtype == dns.TypeANY {
		h := header(q.Name, dns.TypePTR)
		reply.Answer = append(reply.Answer, &dns.PTR{Hdr: h, Ptr: bound + "."})
	}
}

// reverseAddr parses d.c.b.a.in-addr.arpa; anything else is the zero address.
func reverseAddr(name string) netip.Addr {
	labels := strings.Split(strings.TrimSuffix(name, ".in-addr.arpa"), ".")
	if len(labels) != 4 {
		return netip.Addr{}
	}
	var b [4]byte
	for i, label := range labels {
		n, err := strconv.ParseUint(label, 10, 8)
		if err != nil {
			return netip.Addr{}
		}
		b[3-i] = byte(n)
	}
	return netip.AddrFrom4(b)
}

func recordA(name string, addr netip.Addr) dns.RR {
	return &dns.A{Hdr: header(name, dns.TypeA), A: addr.AsSlice()}
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}
