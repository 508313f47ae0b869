package canary

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/netns"
	"github.com/fractalboxdev/sbx/internal/origin"
	"github.com/fractalboxdev/sbx/internal/prober"
	"github.com/fractalboxdev/sbx/internal/resolver"
)

// The canary's hosts. All lie at the origin, under a name that exists nowhere else
// (RFC 6761, section 6.4).
const (
	unlistedHost = "unlisted.canary.test"
	grantedHost  = "granted.canary.test"
	guardedHost  = "guarded.canary.test" // granted, but not exempt from the address guard
	namesBelow   = ".names.canary.test"
)

// allowed is the first segment of the paths that the grant allows.
const allowed = "allowed"

// profileText is the canary's grant; %d is the origin's own port.
const profileText = `
[profiles.canary]
version = 1
summary = "What the canary may reach"

[[profiles.canary.rules]]
id = "granted"
host = "granted.canary.test"
methods = ["GET"]
path = "/allowed/*"
allow = ["GET /allowed/x"]
deny = ["GET /refused/x", "POST /allowed/x"]

[[profiles.canary.rules]]
id = "guarded"
host = "guarded.canary.test"
ports = [%d]
methods = ["GET"]
path = "/allowed/*"
allow = ["GET /allowed/x"]
deny = ["GET /refused/x"]
`

// world is the outside of one canary: its origin, and what was recorded on the way.
type world struct {
	nonce  string
	origin *origin.Origin
	attack bool
	socket string // in the working directory; "" where nothing may be made there

	mu      sync.Mutex
	records []event.Request
	asked   []string // names that somebody wanted resolved outside
}

func openWorld(ctx context.Context, o Options) (*world, error) {
	served, err := origin.Start(ctx, []string{unlistedHost, grantedHost, guardedHost})
	if err != nil {
		return nil, err
	}
	w := &world{nonce: newNonce(), origin: served, attack: o.Attack}
	if err := w.listenUnix(ctx, o); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// listenUnix puts sockets of the host where the sandbox may look for some.
func (w *world) listenUnix(ctx context.Context, o Options) error {
	if err := w.origin.ListenUnix(ctx, w.abstract()); err != nil || !o.Scratch {
		return err
	}
	w.socket = filepath.Join(o.Fence.Workdir, w.nonce+".socket")
	return w.origin.ListenUnix(ctx, w.socket)
}

func (w *world) abstract() string { return "@sbx-canary-" + w.nonce }

func (w *world) close() { _ = w.origin.Close() }

func (w *world) plan() prober.Plan {
	return prober.Plan{
		Nonce: w.nonce, Allowed: allowed, Attack: w.attack, Abstract: w.abstract(), Socket: w.socket,
		Proxy:    "http://" + net.JoinHostPort(netns.AddressV4.String(), strconv.Itoa(netns.ProxyPort)),
		Unlisted: "https://" + unlistedHost, Granted: "https://" + grantedHost,
		Guarded: "https://" + net.JoinHostPort(guardedHost, strconv.Itoa(int(w.origin.TLS().Port()))),
		Bare:    w.origin.Bare(), UDP: w.origin.UDP(), Synthetic: resolver.Pool,
		// Documentation addresses (RFC 5737, RFC 3849): nothing serves there.
		Servers: []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")},
	}
}

// standIn is the world as the proxy finds it: every name lies at the origin, and
// those of the unlisted and the granted host may be dialled although it is the
// host's own address.
func (w *world) standIn() *fence.StandIn {
	return &fence.StandIn{Lookup: w.lookup, Dial: w.dial, Knows: exempt, Roots: w.origin.Roots()}
}

// Alone is a world of one name, which lies at the address and may be dialled although
// that is the host's own.
func Alone(name string, at netip.AddrPort, roots *x509.CertPool) *fence.StandIn {
	return &fence.StandIn{
		Lookup: func(_ context.Context, asked string) ([]netip.Addr, error) {
			return nil, fmt.Errorf("resolving %s: there is nothing but %s", asked, name)
		},
		Knows: func(host egress.Host) bool { return host.String() == name }, Roots: roots,
		Dial: func(ctx context.Context, _ egress.Host, _ uint16) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", at.String())
		},
	}
}

func exempt(host egress.Host) bool {
	return host.String() == unlistedHost || host.String() == grantedHost
}

func (w *world) lookup(_ context.Context, name string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, name)
	return []netip.Addr{w.origin.TLS().Addr()}, nil
}

func (w *world) dial(ctx context.Context, _ egress.Host, port uint16) (net.Conn, error) {
	target := w.origin.Plain()
	if port == 443 {
		target = w.origin.TLS()
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", target.String())
}

func (w *world) recorded(r event.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records = append(w.records, r)
}

// refusal returns the record of a refused request, told by its path, which has the nonce.
func (w *world) refusal(a prober.Answer, code egress.Code) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.records {
		if r.Path == a.Path && strings.Contains(a.Path, w.nonce) && r.Verdict == "deny" && r.Code == string(code) {
			return true
		}
	}
	return false
}
