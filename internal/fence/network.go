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
	"time"

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
	targets   int // the bound of destinations of refused packets
	observe   func(event.Request)
	trap      trap.Trap // of the servers' goroutines
	servers   sync.WaitGroup
}

// newNetwork makes the servers, at the floor. cfg has the credentials and the
// position of the run.
func newNetwork(o Options, run string, log recorder, authority *pki.Authority, p *probes, cfg proxy.Config) *network {
	n := &network{
		authority: authority, probes: p, log: log, run: run, position: cfg.Position, observe: o.OnRequest,
		names: cmp.Or(o.Bounds.Names, resolver.DefaultLimit), targets: cmp.Or(o.Bounds.Destinations, defaultDestinations),
		tls: &tls.Config{MinVersion: tls.VersionTLS12},
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
	if more := n.resolver.Unlisted(); more > 0 {
		n.recordMissing(event.SourceDNS, egress.CodeBoundNames, fmt.Sprintf(
			"%d more questions were for names beyond the %d, valid or not, that are recorded", more, n.names))
	}
}

// recordMissing says that there was more than has rows: one row without a host.
func (n *network) recordMissing(source event.Source, code egress.Code, reason string) {
	row := event.Request{Time: time.Now().UTC(), Run: n.run, Source: source, Verdict: "deny", Code: string(code), Reason: reason}
	if n.position != proxy.Enforce {
		row.Position = n.position.String()
	}
	_ = n.log.Record(row)
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
	n.endPackets()
	errs := []error{n.proxy.Close(ctx), n.resolver.Close(ctx)}
	done := make(chan struct{})
	go func() { n.servers.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		errs = append(errs, errors.New("closing the sandbox's listeners: a server did not end"))
	}
	if n.packets != nil {
		errs = append(errs, n.packets.Close())
	}
	return errors.Join(errs...)
}
