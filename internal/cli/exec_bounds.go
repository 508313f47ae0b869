package cli

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/fence"
)

// boundFlags are the bounds of what one run can make sbx itself hold.
type boundFlags struct {
	names, connections, streams, certificates, destinations, rows int
	heads, bodies, responses, output                              string
}

func (b *boundFlags) addTo(f *pflag.FlagSet) {
	f.IntVar(&b.names, "max-names", 0, "bound the `number` of names that it looks up (default 10000)")
	f.IntVar(&b.connections, "max-connections", 0, "bound the `number` of connections at once (default 1024)")
	f.IntVar(&b.streams, "max-streams", 0, "bound the `number` of HTTP/2 requests at once (default 1024)")
	f.StringVar(&b.heads, "max-heads", "", "bound the heads of requests under way, as a `size` (default 32MiB)")
	f.StringVar(&b.bodies, "max-bodies", "", "bound the request bodies that wait, as a `size` (default 64MiB)")
	f.StringVar(&b.responses, "max-responses", "", "bound what responses hold that are searched for a secret, as a `size` (default 256MiB)")
	f.IntVar(&b.certificates, "max-certificates", 0, "bound the `number` of hosts with a certificate of the run (default 4096)")
	f.IntVar(&b.destinations, "max-destinations", 0, "bound the `number` of recorded destinations of refused packets (default 10000)")
	f.IntVar(&b.rows, "max-rows", 0, "bound the `number` of recorded requests (default 1000000)")
	f.StringVar(&b.output, "max-output", "", "bound what is kept of its output, as a `size` (default 1GiB)")
}

// The least and the most that bounds by number can be.
const (
	largestNames = 100_000 // of the addresses that names are bound to
	largestCount = 1 << 24
	// leastConnections leaves room for the probes that prove the floor.
	leastConnections = 8
)

// parse returns the bounds that were given, zero for the others.
func (b *boundFlags) parse() (fence.Bounds, error) {
	var out fence.Bounds
	for _, n := range []struct {
		flag               string
		value, least, most int
		into               *int
	}{
		{"max-names", b.names, 1, largestNames, &out.Names},
		{"max-connections", b.connections, leastConnections, largestCount, &out.Connections},
		{"max-streams", b.streams, 1, largestCount, &out.Streams},
		{"max-certificates", b.certificates, 1, largestCount, &out.Certificates},
		{"max-destinations", b.destinations, 1, largestCount, &out.Destinations},
		{"max-rows", b.rows, 1, 1 << 30, &out.Rows},
	} {
		if n.value != 0 && (n.value < n.least || n.value > n.most) {
			return out, &usageError{fmt.Sprintf("--%s %d is no number from %d to %d", n.flag, n.value, n.least, n.most), "leave it out for the default"}
		}
		*n.into = n.value
	}
	for _, s := range []struct {
		flag, text string
		into       *int64
	}{{"max-heads", b.heads, &out.HeadBytes}, {"max-bodies", b.bodies, &out.BodyBytes}, {"max-responses", b.responses, &out.Responses}, {"max-output", b.output, &out.Output}} {
		if s.text == "" {
			continue
		}
		var err error
		if *s.into, err = class.ParseSize(s.text); err != nil {
			return out, &usageError{fmt.Sprintf("--%s: %s", s.flag, err), "leave it out for the default"}
		}
	}
	return out, nil
}
