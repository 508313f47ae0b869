// Package prober is the canary's half inside the sandbox: it asks the network and
// the kernel as a hostile command would, and reports what they said. It judges
// nothing.
package prober

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"
)

// Plan is what to ask.
type Plan struct {
	Nonce     string           `json:"nonce"` // in every path, name and payload of this run
	Proxy     string           `json:"proxy"` // the sandbox's explicit proxy
	Unlisted  string           `json:"unlisted"`
	Granted   string           `json:"granted"` // URLs up to and without the path, scheme https
	Guarded   string           `json:"guarded"`
	Allowed   string           `json:"allowed"`            // first segment of the paths that the grant allows
	Bare      []netip.AddrPort `json:"bare"`               // of the host, which take any connection
	UDP       []netip.AddrPort `json:"udp"`                // of the host, which take any datagram
	Servers   []netip.Addr     `json:"servers"`            // name servers of the world
	Synthetic netip.Prefix     `json:"synthetic"`          // where the sandbox's resolver takes its addresses from
	Attack    bool             `json:"attack"`             // also try the self-attack suite
	Abstract  string           `json:"abstract,omitempty"` // unix sockets of the host, with "-datagram" beside each;
	Socket    string           `json:"socket,omitempty"`   // the first begins with "@", the second lies in the working directory
}

// Answer is what one request got.
type Answer struct {
	Name     string `json:"name"`
	Path     string `json:"path"` // as sent; tells the request apart in the records of the run
	TLS      bool   `json:"tls"`
	Verified bool   `json:"verified"`
	Explicit bool   `json:"explicit"` // through the proxy variables
	Status   int    `json:"status"`   // 0: none
	Error    string `json:"error,omitempty"`
}

// Try is one attempt to reach something beside the proxy.
type Try struct {
	What   string `json:"what"`
	Target string `json:"target"`
	Said   string `json:"said,omitempty"`  // what came back
	Error  string `json:"error,omitempty"` // name of the errno where there is one
}

// Report is what the sandbox said.
type Report struct {
	Unlisted  []Answer  `json:"unlisted"`
	Granted   Answer    `json:"granted"`
	Refused   Answer    `json:"refused"`
	Guarded   Answer    `json:"guarded"`
	Names     []Try     `json:"names"`     // questions of DNS; Said lists the addresses
	Bare      []Try     `json:"bare"`      // connections without HTTP
	Datagrams []Try     `json:"datagrams"` // UDP
	Calls     []Try     `json:"calls"`     // system calls; Said is the errno that is expected
	Walls     Walls     `json:"walls"`
	Attempts  []Attempt `json:"attempts,omitempty"` // of the self-attack suite
}

// limit is how long a single probe may take.
const limit = 5 * time.Second

// Run does everything at once and takes as long as the slowest probe.
func Run(ctx context.Context, p Plan) (Report, error) {
	var r Report
	var tasks sync.WaitGroup
	web := newWeb(p)
	unlisted := web.unlisted(p)
	r.Unlisted = make([]Answer, len(unlisted))
	for i, q := range unlisted {
		tasks.Go(func() { r.Unlisted[i] = web.ask(ctx, q) })
	}
	tasks.Go(func() { r.Granted = web.ask(ctx, request{"granted path", p.Granted, p.Allowed, viaTransparent, true}) })
	tasks.Go(func() { r.Refused = web.ask(ctx, request{"refused path", p.Granted, "refused", viaTransparent, true}) })
	tasks.Go(func() { r.Guarded = web.ask(ctx, request{"guarded name", p.Guarded, p.Allowed, viaTransparent, true}) })
	tasks.Go(func() { r.Names = askNames(ctx, p) })
	tasks.Go(func() { r.Bare = connectBare(ctx, p) })
	tasks.Go(func() { r.Datagrams = sendDatagrams(ctx, p) })
	var unixTries []Try
	tasks.Go(func() { unixTries = connectHost(ctx, p) })
	r.Calls = directCalls()
	var err error
	r.Walls, err = readWalls()
	tasks.Wait()
	r.Walls.Unix = unixTries
	if p.Attack {
		r.Attempts = Attack(ctx, p)
	}
	return r, err
}

// Main is Run as a command: the plan is JSON in text, the report JSON on w.
func Main(ctx context.Context, text string, w io.Writer) error {
	var p Plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return fmt.Errorf("reading the canary's plan: %w", err)
	}
	r, err := Run(ctx, p)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(w).Encode(r); err != nil {
		return fmt.Errorf("reporting to the canary: %w", err)
	}
	return nil
}
