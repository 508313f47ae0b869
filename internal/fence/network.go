package fence

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/netns"
	"github.com/fractalboxdev/sbx/internal/pki"
	"github.com/fractalboxdev/sbx/internal/proxy"
	"github.com/fractalboxdev/sbx/internal/resolver"
	"github.com/fractalboxdev/sbx/internal/trap"
	"github.com/fractalboxdev/sbx/internal/upstream"
)

// recorder is where decisions go before they are acted on.
type recorder interface {
	Record(event.Request) error
	Complete(event.Completion)
}

// network is everything of a run that serves the sandbox's way out.
type network struct {
	authority *pki.Authority
	resolver  *resolver.Resolver
	proxy     *proxy.Server
	dialer    *upstream.Dialer
	tls       *tls.Config // towards upstreams; nothing is dialled before apply
	probes    *probes
	packets   *os.File
	log       recorder
	run       string
	position  proxy.Position
	names     int // the bound of names
	observe   func(event.Request)
	trap      trap.Trap // of the servers' goroutines
	lost      atomic.Int64
	servers   sync.WaitGroup
}

// newNetwork makes the servers, at the floor. cfg has the credentials and the
// position of the run.
func newNetwork(o Options, run string, log recorder, authority *pki.Authority, p *probes, cfg proxy.Config) *network {
	n := &network{
		authority: authority, probes: p, log: log, run: run, position: cfg.Position, observe: o.OnRequest,
		names: cmp.Or(o.Bounds.Names, resolver.DefaultLimit),
		tls:   &tls.Config{MinVersion: tls.VersionTLS12},
	}
	dialer, way := routes(o.StandIn)
	n.dialer, way, cfg = dialer, brokenRoute(way), brokenProxy(cfg)
	n.resolver = resolver.New(resolver.Config{Limit: o.Bounds.Names, Overflow: n.overflow, Admit: n.admit})
	cfg.Run, cfg.Recorder, cfg.Certificate = run, n, authority.Leaf
	cfg.NameOf, cfg.Vet, cfg.Dial, cfg.UpstreamTLS = n.nameOf, way.Vet, way.Dial, n.tls
	n.proxy = proxy.New(cfg)
	return n
}

// admit counts a connection to the resolver among those of the proxy: they hold the
// same descriptors and the same memory.
func (n *network) admit(c net.Conn) (net.Conn, bool) { return n.proxy.Admit(c) }

// nameOf also notes that a name that was looked up is now being connected to.
func (n *network) nameOf(a netip.Addr) (string, bool) {
	name, synthetic := n.resolver.NameOf(a)
	if name != "" {
		n.resolver.Connected(name)
	}
	return name, synthetic
}

// Record takes the probes out of the stream: they are the floor's proof, not the
// command's requests.
func (n *network) Record(r event.Request) error {
	if n.probes.seen(r) {
		return nil
	}
	if err := fault("go/request", 0); err != nil {
		return err
	}
	if err := n.log.Record(r); err != nil {
		return err
	}
	n.observed(r)
	return nil
}

// Complete passes on what became of a request.
func (n *network) Complete(c event.Completion) { n.log.Complete(c) }

func (n *network) overflow(name string) {
	_ = n.log.Record(event.Request{
		Time: time.Now().UTC(), Run: n.run, Source: event.SourceDNS, Protocol: "dns", Host: name, Verdict: "deny",
		Code: string(egress.CodeBoundNames), Reason: fmt.Sprintf("the run has asked for more than %d names", n.names),
	})
}

// serve takes the listeners, in the order of netns.Names.
func (n *network) serve(files []*os.File) error {
	if len(files) != len(netns.Names) {
		return fmt.Errorf("receiving the sandbox's listeners: %d of %d", len(files), len(netns.Names))
	}
	by := map[string]*os.File{}
	for i, f := range files {
		by[netns.Names[i]] = f
	}
	var errs []error
	errs = append(errs,
		n.serveStream(by["transparent-v4"], n.serveTransparent), n.serveStream(by["transparent-v6"], n.serveTransparent),
		n.serveStream(by["explicit-v4"], n.proxy.ServeExplicit),
		n.serveStream(by["resolver-tcp-v4"], n.resolver.ServeTCP), n.serveStream(by["resolver-tcp-v6"], n.resolver.ServeTCP),
		n.serveDatagrams(by["resolver-udp-v4"]), n.serveDatagrams(by["resolver-udp-v6"]))
	n.readPackets(by["packet-log"])
	return errors.Join(errs...)
}

func (n *network) serveTransparent(l net.Listener) error { return n.proxy.Serve(l, netns.Original) }

func (n *network) serveStream(f *os.File, serve func(net.Listener) error) error {
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("serving %s: %w", f.Name(), err)
	}
	n.servers.Go(func() { defer n.trap.Catch(); _ = fault("go/serve", 0); _ = serve(l) })
	return nil
}

func (n *network) serveDatagrams(f *os.File) error {
	defer f.Close()
	if n.brokenNames(f) {
		return nil
	}
	c, err := net.FilePacketConn(f)
	if err != nil {
		return fmt.Errorf("serving %s: %w", f.Name(), err)
	}
	n.servers.Go(func() { defer n.trap.Catch(); _ = n.resolver.ServeUDP(c) })
	return nil
}

// readPackets records each refused destination once.
func (n *network) readPackets(f *os.File) {
	// Reading must end when the file is closed, so it may not block the thread.
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	_ = f.Close()
	if err != nil || unix.SetNonblock(fd, true) != nil {
		return
	}
	n.packets = os.NewFile(uintptr(fd), "packet-log")
	known := map[netns.Packet]bool{}
	n.servers.Go(func() {
		defer n.trap.Catch()
		_ = netns.ReadPackets(n.packets, func(p netns.Packet) {
			if len(known) < maxDestinations && !known[p] {
				_ = fault("go/packets", 0)
				known[p] = true
				_ = n.log.Record(refusedPacket(n.run, p))
			}
		}, func() { n.lost.Add(1) })
	})
}

// maxDestinations bounds what one run may make the supervisor remember.
const maxDestinations = 10_000

func refusedPacket(run string, p netns.Packet) event.Request {
	code := egress.CodeUDP
	if p.Protocol != "udp" {
		code = egress.CodeICMP
	}
	return event.Request{
		Time: time.Now().UTC(), Run: run, Source: event.SourceNet, Protocol: p.Protocol,
		Host: p.Destination.Addr().Unmap().String(), Port: p.Destination.Port(), Verdict: "deny", Code: string(code),
		Reason: p.Protocol + " never leaves the sandbox",
	}
}

// recordUnconnected notes the names that were looked up but never connected to and
// that no rule grants: a lookup alone can carry data.
func (n *network) recordUnconnected(policy *egress.Policy) {
	if n.position == proxy.Legacy {
		return
	}
	for _, name := range n.resolver.Refused() {
		n.recordName(name, "the name is no valid host name: NXDOMAIN")
	}
	for _, name := range n.resolver.Unconnected() {
		host, err := egress.ParseHost(name.Name)
		if err == nil && policy.GrantsHost(host) {
			continue
		}
		n.recordName(name, "the name was looked up, nothing was sent anywhere")
	}
}

func (n *network) recordName(name resolver.Name, reason string) {
	row := event.Request{
		Time: name.First.UTC(), Run: n.run, Source: event.SourceDNS, Protocol: "dns", Host: egress.CleanPath(name.Name), Verdict: "deny",
		Code: string(egress.CodeNameNotGranted), Reason: reason,
	}
	if n.position == proxy.Report {
		row.Verdict, row.WouldDeny, row.Position = "allow", true, n.position.String()
	}
	_ = n.log.Record(row)
}

// close ends all servers and waits for them.
func (n *network) close(ctx context.Context) error {
	var errs []error
	if n.packets != nil {
		errs = append(errs, n.packets.Close())
	}
	errs = append(errs, n.proxy.Close(ctx), n.resolver.Close(ctx))
	done := make(chan struct{})
	go func() { n.servers.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		errs = append(errs, errors.New("closing the sandbox's listeners: a server did not end"))
	}
	return errors.Join(errs...)
}
