package dogfood

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/fractalboxdev/sbx/internal/canary"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/fence"
	"github.com/fractalboxdev/sbx/internal/verdict"
)

// Command is the subcommand of sbx that makes one pass.
const Command = "dogfood-pass"

// Plan is one pass, as its process is told.
type Plan struct {
	Key     string   `json:"key"`
	Workdir string   `json:"workdir"`
	Argv    []string `json:"argv"`
	// Of the repository that sbx serves itself; empty for one of the world.
	Origin      netip.AddrPort `json:"origin,omitzero"`
	Certificate []byte         `json:"certificate,omitempty"` // DER
}

// repositoryHost is where sbx serves its own repository, under a name that exists
// nowhere else (RFC 6761, section 6.4).
const repositoryHost = "repo.dogfood.test"

// profileText is the grant for sbx's own repository.
const profileText = `
[profiles.dogfood]
version = 1
summary = "Clone the repository that sbx serves itself"

[[profiles.dogfood.rules]]
id = "repository"
host = "repo.dogfood.test"
methods = ["GET"]
path = "/widget.git/**"
allow = ["GET /widget.git/HEAD", "GET /widget.git/info/refs?service=git-upload-pack"]
deny = ["GET /other.git/HEAD", "POST /widget.git/git-receive-pack"]
`

// MakePass takes the plan's command through the fence that o describes. With no origin
// in the plan, o.Derive makes the grant.
func MakePass(ctx context.Context, o fence.Options, text string) (verdict.Pass, error) {
	var p Plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return verdict.Pass{}, fmt.Errorf("reading the plan of a dogfood pass: %w", err)
	}
	o.Argv, o.Workdir, o.Key = p.Argv, p.Workdir, p.Key
	if p.Origin.IsValid() {
		if err := p.standIn(&o); err != nil {
			return verdict.Pass{}, err
		}
	}
	out, stdout, stderr, err := canary.Capture(ctx, o)
	if err != nil {
		return verdict.Pass{}, err
	}
	return passOf(out, stdout, stderr), nil
}

func passOf(out fence.Outcome, stdout, stderr []byte) verdict.Pass {
	r := out.Receipt
	p := verdict.Pass{Run: r.Run, Exit: out.Exit, Deduped: r.Deduped, Output: strings.TrimSpace(string(stdout))}
	if out.Exit != 0 {
		p.Error = strings.TrimSpace(string(stderr))
	}
	if refusal := r.Result.Refusal; refusal != nil {
		p.Error, p.Full = refusal.Message, refusal.Kind == event.RefusedAdmission
		return p
	}
	p.Ran = true
	return p
}

// standIn makes the grant for sbx's own repository, and the origin the only world.
func (p Plan) standIn(o *fence.Options) error {
	if err := canary.Grant(o, "dogfood", profileText); err != nil {
		return err
	}
	certificate, err := x509.ParseCertificate(p.Certificate)
	if err != nil {
		return fmt.Errorf("reading the origin's certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(certificate)
	o.StandIn = canary.Alone(repositoryHost, p.Origin, roots)
	return nil
}
