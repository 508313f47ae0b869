package fence

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/admission"
	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/handshake"
	"github.com/fractalboxdev/sbx/internal/netns"
	"github.com/fractalboxdev/sbx/internal/sandbox"
)

func TestFloorIsProvedOnlyByTheGateForBothAddresses(t *testing.T) {
	row := func(p *probes, host string) event.Request {
		return event.Request{Path: "/" + p.nonce, Host: host, Port: probePort, Source: event.SourceGate, Code: "host-not-granted"}
	}
	for name, c := range map[string]struct {
		spoil  func(*event.Request)
		proved bool
	}{
		"both at the gate":         {func(*event.Request) {}, true},
		"allowed":                  {func(r *event.Request) { r.Code = "allowed" }, false},
		"refused by a rule":        {func(r *event.Request) { r.Source = event.SourceHandler }, false},
		"another port":             {func(r *event.Request) { r.Port = 443 }, false},
		"another host":             {func(r *event.Request) { r.Host = "198.18.0.1" }, false},
		"somebody else's requests": {func(r *event.Request) { r.Path = "/" }, false},
	} {
		p, err := newProbes()
		if err != nil {
			t.Fatal(err)
		}
		v4, v6 := row(p, probeV4.String()), row(p, probeV6.String())
		c.spoil(&v6)
		p.seen(v4)
		p.seen(v6)
		if err := p.finish(); (err == nil) != c.proved {
			t.Errorf("%s: %v", name, err)
		}
		if p.seen(v4) {
			t.Errorf("%s: after the proof the nonce still hides requests from the record", name)
		}
	}
}

func TestRefusalsNameKindStepAndWhatToDo(t *testing.T) {
	f := &fence{id: "r1", faults: newFaults()}
	for name, c := range map[string]struct {
		err  error
		kind event.RefusalKind
		code string
		says string
		next string
	}{
		"ticket":       {(*admission.Admission)(nil).Check("r1", "", class.Lean), event.RefusedTicket, "no-ticket", "without a ticket", ""},
		"workdir":      {&sandbox.Refusal{What: "too wide", Next: "go elsewhere"}, event.RefusedRecipe, "bad-workdir", "too wide", "go elsewhere"},
		"no userns":    {&handshake.Failure{Step: "unshare-user", Errno: unix.ENOSPC}, event.RefusedSandbox, "", "max_user_namespaces", "sysctl"},
		"forbidden":    {&handshake.Failure{Step: "unshare-user", Errno: unix.EPERM}, event.RefusedSandbox, "", "creating a user namespace: operation not permitted", ""}, // why, and what mends it, depends on the host,
		"idmap":        {&handshake.Failure{Step: "mount-tree", Detail: sandbox.ErrNotIDMappable.Error()}, event.RefusedSandbox, "", "idmapped", "ordinary user"},
		"anything":     {errors.New("odd"), event.RefusedSandbox, "", "odd", ""},
		"a refusal":    {&event.Refusal{Kind: event.RefusedRecipe, Code: "x", Message: "m"}, event.RefusedRecipe, "x", "m", ""},
		"runner ended": {handshake.ErrClosed, event.RefusedSandbox, "", "ended", ""},
	} {
		r, ok := errors.AsType[*event.Refusal](f.refusal("ensure", c.err))
		if !ok || r.Kind != c.kind || r.Code != c.code || r.Name != "r1" || r.Step != "ensure" {
			t.Errorf("%s: %+v", name, r)
			continue
		}
		if !strings.Contains(r.Message, c.says) || !strings.Contains(r.Next, c.next) {
			t.Errorf("%s: %q, next %q", name, r.Message, r.Next)
		}
	}
}

func TestUnverifiedRevokeFailsTheCallWhateverTheCommandReturned(t *testing.T) {
	f := &fence{id: "r1", faults: newFaults()}
	f.receipt.Result.Exit = 0
	f.check("listeners closed", nil)
	f.checkRevoke()
	if f.receipt.Result.Exit != 0 {
		t.Fatalf("everything verified, yet exit %d", f.receipt.Result.Exit)
	}
	f.check("pid namespace empty", errors.New("still there"))
	f.checkRevoke()
	r := f.receipt.Result
	if r.Exit != ExitRefused || r.Refusal == nil || !strings.Contains(r.Refusal.Message, "still there") {
		t.Errorf("%+v", r)
	}
	f.check("lease released", errors.New("locked"))
	f.receipt.Result.Refusal = &event.Refusal{Kind: event.RefusedRecipe, Code: "not-found", Message: "no such command", Next: "look"}
	f.checkRevoke()
	if r := f.receipt.Result.Refusal; r.Code != "not-found" || !strings.Contains(r.Message, "no such command; then ") || !strings.Contains(r.Message, "still there; lease released: locked") || !strings.Contains(r.Next, "look; ") {
		t.Errorf("%+v", r)
	}
}

func TestVector34_FailedRunnerIsKilledThenRevoked(t *testing.T) {
	// A fence without a runner cannot start anything; kill and revoke run all the same.
	out := Run(context.Background(), Options{Argv: []string{"true"}, StateDir: t.TempDir()})
	if out.Exit != ExitRefused || out.Receipt.Result.Refusal == nil {
		t.Fatalf("%+v", out.Receipt.Result)
	}
	var steps []string
	for _, s := range out.Receipt.Steps {
		steps = append(steps, s.Name)
	}
	if got := strings.Join(steps, " "); got != "command kill revoke" {
		t.Errorf("steps: %s", got)
	}
}

func TestVector46_EmptyCommandIsRefused(t *testing.T) {
	for _, argv := range [][]string{nil, {""}, {"  "}} {
		out := Run(context.Background(), Options{Argv: argv, StateDir: t.TempDir()})
		if r := out.Receipt.Result.Refusal; r == nil || r.Code != "empty-command" {
			t.Errorf("%q: %+v", argv, r)
		}
	}
}

func TestProcessIsWatchedOnlyUnderItsParent(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := openProcess(cmd.Process.Pid, 1); err == nil {
		t.Error("a process of another parent was accepted")
	}
	p, err := openProcess(cmd.Process.Pid, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if err := p.await(over); err == nil {
		t.Error("a living process was taken for dead")
	}
	_ = cmd.Process.Kill()
	if err := p.await(t.Context()); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
}

func TestRefusedPacketsBecomeRows(t *testing.T) {
	row := refusedPacket("r1", netns.Packet{Protocol: "udp", Destination: netip.MustParseAddrPort("1.2.3.4:443")})
	if row.Code != "udp-refused" || row.Host != "1.2.3.4" || row.Port != 443 || row.Source != event.SourceNet || row.Verdict != "deny" {
		t.Errorf("%+v", row)
	}
	row = refusedPacket("r1", netns.Packet{Protocol: "icmp", Destination: netip.MustParseAddrPort("[2001:db8::1]:0")})
	if row.Code != "icmp-refused" || row.Host != "2001:db8::1" {
		t.Errorf("%+v", row)
	}
}

// A grant that is not finer than a host is called so in the receipt.
func TestBypass03_UnopenedRulesAreCalledHostOnly(t *testing.T) {
	pattern, err := egress.ParseHostPattern("a.test")
	if err != nil {
		t.Fatal(err)
	}
	path, err := egress.ParsePathPattern("/**", false)
	if err != nil {
		t.Fatal(err)
	}
	g, err := grant.New(grant.Spec{Rules: []egress.Rule{
		{ID: "x/open", Protocol: egress.ProtocolHTTPS, Host: pattern, Methods: []string{"GET"}, Path: path},
		{ID: "x/tunnel", Protocol: egress.ProtocolHTTPS, Host: pattern, Ports: []uint16{8443}, Tunnel: true},
		{ID: "x/tunnel", Protocol: egress.ProtocolHTTPS, Host: pattern, Ports: []uint16{8444}, Tunnel: true},
		{ID: "x/ssh", Protocol: egress.ProtocolTCP, Host: pattern, Ports: []uint16{22}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	got := interception(g)
	if len(got) != 2 || got[0].Name != "interception of x/tunnel" || got[0].Applied || !strings.Contains(got[0].Detail, "host-only") || !strings.Contains(got[0].Detail, "fronted") ||
		got[1].Name != "interception of x/ssh" || got[1].Applied || got[1].Detail != "host and port are all that is policed" {
		t.Errorf("%+v", got)
	}
}
