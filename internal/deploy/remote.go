package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/fractalboxdev/sbx/internal/remote"
	"github.com/fractalboxdev/sbx/internal/verdict"
)

// Remote is a serving sbx as a target.
type Remote struct{ Client *remote.Client }

// Probe asks for a probe, or for the verdict that is kept of an earlier one. A server
// that is busy with another defers it.
func (r Remote) Probe(ctx context.Context, kind verdict.Kind) (verdict.Record, error) {
	status, text, err := r.Client.Ask(ctx, http.MethodPost, "/"+string(kind))
	if err != nil {
		return verdict.Record{}, err
	}
	switch status {
	case http.StatusOK:
		return probed(text, kind)
	case http.StatusTooManyRequests:
		return verdict.Record{Kind: kind, Outcome: verdict.Deferred, Diagnosis: problemIn(text)}, nil
	}
	return verdict.Record{}, fmt.Errorf("the server answered %d: %s", status, problemIn(text))
}

// probed reads a verdict, which has to be one about what was asked for.
func probed(text []byte, kind verdict.Kind) (verdict.Record, error) {
	var v verdict.Record
	if err := decode(text, &v); err != nil {
		return verdict.Record{}, err
	}
	if v.Kind != kind || !v.Outcome.Valid() || v.Deployment == "" {
		return verdict.Record{}, fmt.Errorf("the server answered with outcome %q of %q: this is no sbx", v.Outcome, v.Kind)
	}
	return v, nil
}

// Health asks for the server's health, which comes with 503 unless it is ok.
func (r Remote) Health(ctx context.Context) (Health, error) {
	status, text, err := r.Client.Ask(ctx, http.MethodGet, "/health")
	if err != nil {
		return Health{}, err
	}
	if status != http.StatusOK && status != http.StatusServiceUnavailable {
		return Health{}, fmt.Errorf("the server answered %d: %s", status, problemIn(text))
	}
	var h Health
	if err := decode(text, &h); err != nil {
		return Health{}, err
	}
	if h.Status == "" || (h.Status == OK) != (status == http.StatusOK) {
		return Health{}, fmt.Errorf("the server answered %d with status %q: this is no sbx", status, h.Status)
	}
	return h, nil
}

func decode(text []byte, v any) error {
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("reading the server's answer: %w", err)
	}
	return nil
}

func problemIn(text []byte) string {
	var p struct{ Error string }
	if json.Unmarshal(text, &p) != nil || p.Error == "" {
		return "no reason given"
	}
	return p.Error
}
