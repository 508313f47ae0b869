// Package deploy knows which deployment of sbx this is, what has been proved of it,
// and whether that is enough to let hostile code in.
package deploy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/host"
	"github.com/fractalboxdev/sbx/internal/store"
	"github.com/fractalboxdev/sbx/internal/verdict"
)

// Options are what identifies a deployment beside the host.
type Options struct {
	Profiles   string   // text of the built-in profile set
	Config     []string // the operator's files, whether or not they exist
	Libseccomp string
	Binary     host.Binary // the running one, as it lay when sbx started
}

// Identify computes the deployment. The binary's digest comes from the store where
// the file has not changed since. A binary that was replaced since it started has none.
func Identify(ctx context.Context, s *store.Store, o Options) (verdict.Deployment, error) {
	if err := o.Binary.Check(); err != nil {
		return verdict.Deployment{}, fmt.Errorf("identifying the deployment: %w", err)
	}
	binary, err := binaryDigest(ctx, s)
	if err != nil {
		return verdict.Deployment{}, err
	}
	config := map[string]string{}
	for _, path := range o.Config {
		text, err := os.ReadFile(path)
		switch {
		case path == "" || errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return verdict.Deployment{}, fmt.Errorf("identifying the deployment: %w", err)
		}
		config[path] = digest(text)
	}
	who := "user"
	if os.Geteuid() == 0 {
		who = "root"
	}
	return verdict.Deployment{
		Binary: binary, Profiles: digest([]byte(o.Profiles)), Config: config, Libseccomp: o.Libseccomp,
		Who: who, Host: host.New(host.Options{}).Identity(),
	}, nil
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// binaryDigest is the SHA-256 of the running binary: of the very file that runs.
func binaryDigest(ctx context.Context, s *store.Store) (string, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("identifying the binary: %w", err)
	}
	defer f.Close()
	name, err := fileName(f)
	if err != nil {
		return "", err
	}
	var known string
	err = s.View(ctx, func(t *store.Tx) (err error) { known, err = t.Digest(name); return err })
	if err != nil || known != "" {
		return known, err
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", fmt.Errorf("identifying the binary: %w", err)
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	return sum, s.Update(ctx, func(t *store.Tx) error { return t.PutDigest(name, sum, time.Now()) })
}

// fileName names a file by what changes when its content does.
func fileName(f *os.File) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", fmt.Errorf("identifying the binary: %w", err)
	}
	return fmt.Sprintf("%d %d %d %d.%d %d.%d", st.Dev, st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec), nil
}

// Known is what is kept about one deployment.
type Known struct {
	Canary  *verdict.Record `json:"canary"` // nil where there is none
	Attack  *verdict.Record `json:"attack"`
	Dogfood *verdict.Record `json:"dogfood"`
}

// Recall reads what is kept about a deployment, fresh or not.
func Recall(ctx context.Context, s *store.Store, deployment string) (Known, error) {
	var k Known
	err := s.View(ctx, func(t *store.Tx) error {
		for kind, at := range map[verdict.Kind]**verdict.Record{verdict.Canary: &k.Canary, verdict.Attack: &k.Attack, verdict.Dogfood: &k.Dogfood} {
			r, err := t.Verdict(deployment, kind)
			if err != nil {
				return err
			}
			*at = r
		}
		return nil
	})
	return k, err
}

// Fresh returns a verdict that may be served in place of a new run, nil for none.
func Fresh(ctx context.Context, s *store.Store, deployment string, kind verdict.Kind, now time.Time) (*verdict.Record, error) {
	var r *verdict.Record
	err := s.View(ctx, func(t *store.Tx) (err error) { r, err = t.Verdict(deployment, kind); return err })
	if err != nil || r == nil || !r.Fresh(deployment, now) {
		return nil, err
	}
	return r, nil
}

// Remember keeps a verdict about a deployment. One that is deferred is none.
func Remember(ctx context.Context, s *store.Store, r verdict.Record) error {
	if r.Outcome == verdict.Deferred {
		return nil
	}
	return s.Update(ctx, func(t *store.Tx) error { return t.PutVerdict(r) })
}

// Cleared reports whether a fresh pass of the deployment is known and no fresh
// failure: the condition of exec --require-canary and of health. why says what is
// missing, "" when cleared.
func Cleared(k Known, deployment string, now time.Time) (why string) {
	passed := false
	for _, r := range []*verdict.Record{k.Canary, k.Attack} {
		if r == nil || !r.Fresh(deployment, now) {
			continue
		}
		switch r.Outcome {
		case verdict.Passed:
			passed = true
		case verdict.Failed:
			return fmt.Sprintf("the %s of %s failed: %s", r.Kind, r.At.Format(time.RFC3339), r.Diagnosis)
		case verdict.Inconclusive, verdict.Deferred:
		}
	}
	switch {
	case passed:
		return ""
	case k.Canary != nil && k.Canary.Fresh(deployment, now):
		return "the canary was inconclusive: " + k.Canary.Diagnosis
	case k.Canary != nil:
		return "the last canary of this deployment is too old: " + k.Canary.At.Format(time.RFC3339)
	}
	return "no canary is known of this deployment"
}
