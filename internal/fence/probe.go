package fence

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sandbox"
)

// Where the init's probes go: documentation addresses (RFC 5737, RFC 3849), which
// nothing serves. Only the redirect and the floor can answer for them.
var (
	probeV4 = netip.MustParseAddr("192.0.2.1")
	probeV6 = netip.MustParseAddr("2001:db8::1")
)

const probePort = 80

// probes watches for the init's two requests among the proxy's records.
type probes struct {
	nonce string

	mu      sync.Mutex
	arrived map[string]bool
	over    bool
}

func newProbes() (*probes, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("making the probe's nonce: %w", err)
	}
	return &probes{nonce: hex.EncodeToString(b[:]), arrived: map[string]bool{}}, nil
}

func (p *probes) plan() sandbox.Probe {
	return sandbox.Probe{V4: probeV4.As4(), V6: probeV6.As16(), Port: probePort, Nonce: p.nonce}
}

// seen takes in the record of a probe: the gate's refusal of exactly the address
// that was dialled. Once the floor is proved nothing is a probe any more.
func (p *probes) seen(r event.Request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || !strings.HasPrefix(r.Path, "/"+p.nonce) {
		return false
	}
	p.arrived[r.Host] = r.Source == event.SourceGate && r.Code == string(egress.CodeHostNotGranted) && r.Port == probePort
	return true
}

// finish ends the proof and says whether both arrived at the floor.
func (p *probes) finish() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	for _, a := range []netip.Addr{probeV4, probeV6} {
		if !p.arrived[a.String()] {
			return errors.New("proving the floor: the probe to " + a.String() + " did not arrive at the gate with its destination")
		}
	}
	return nil
}
