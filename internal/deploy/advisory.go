package deploy

import (
	"context"
	"time"

	"github.com/fractalboxdev/sbx/internal/advisory"
	"github.com/fractalboxdev/sbx/internal/approval"
	"github.com/fractalboxdev/sbx/internal/store"
)

// Advisory is what the operator's advisory says about this version.
type Advisory struct {
	State  advisory.State `json:"state"`
	Detail string         `json:"detail,omitempty"`
	Serial int64          `json:"serial,omitempty"`
	Signer string         `json:"signer,omitempty"`
}

// ReadAdvisory reads the advisory at path, "" for none configured. Whatever keeps it
// from being read and believed leaves the state unknown.
func ReadAdvisory(ctx context.Context, s *store.Store, path, version string, o approval.Options) Advisory {
	if path == "" {
		return Advisory{State: advisory.None}
	}
	a, err := believe(ctx, s, path, version, o)
	if err != nil {
		return Advisory{State: advisory.Unknown, Detail: err.Error()}
	}
	return a
}

func believe(ctx context.Context, s *store.Store, path, version string, o approval.Options) (Advisory, error) {
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	text, signer, err := approval.SignedAdvisory(path, o)
	if err != nil {
		return Advisory{}, err
	}
	a, err := advisory.Parse(text)
	if err != nil {
		return Advisory{}, err
	}
	var seen int64
	err = s.Update(ctx, func(t *store.Tx) (err error) { seen, err = t.SeeAdvisory(a.Serial); return err })
	if err != nil {
		return Advisory{}, err
	}
	state, detail := a.Judge(version, o.Now, seen)
	return Advisory{State: state, Detail: detail, Serial: a.Serial, Signer: signer}, nil
}
