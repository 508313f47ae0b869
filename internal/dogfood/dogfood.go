// Package dogfood rehearses with sbx what it is for: a real clone in a real sandbox
// under an idempotency key, asked for a second time.
package dogfood

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fractalboxdev/sbx/internal/origin"
	"github.com/fractalboxdev/sbx/internal/verdict"
)

// Options say what to rehearse.
type Options struct {
	// Repo is a public repository, as in owner/name; "" for one that sbx serves itself.
	Repo string
	// Pass makes one pass, in a process of its own: a fencing sbx is split before it starts.
	Pass func(ctx context.Context, plan string) (verdict.Pass, error)
	// Forget lets the key be used again, when everything is over.
	Forget func(ctx context.Context, key string) error
}

// Run rehearses. The error is one of sbx's own making; whatever the fence refused is a
// verdict.
func Run(ctx context.Context, o Options) (verdict.Record, error) {
	dir, err := os.MkdirTemp("", "sbx-dogfood-")
	if err != nil {
		return verdict.Record{}, fmt.Errorf("making a directory for the clone: %w", err)
	}
	p := Plan{Key: "dogfood-" + rand.Text(), Workdir: dir}
	r, err := rehearse(ctx, o, &p)
	err = errors.Join(err, o.Forget(ctx, p.Key), os.RemoveAll(dir))
	if err != nil {
		return verdict.Record{}, err
	}
	evidence, err := json.Marshal(r)
	if err != nil {
		return verdict.Record{}, fmt.Errorf("encoding what was rehearsed: %w", err)
	}
	record := verdict.Record{Kind: verdict.Dogfood, Run: r.First.Run, At: time.Now().UTC(), Evidence: evidence}
	record.Outcome, record.Diagnosis = verdict.JudgeDogfood(r)
	return record, nil
}

func rehearse(ctx context.Context, o Options, p *Plan) (r verdict.Rehearsal, err error) {
	url := "https://github.com/" + o.Repo
	if o.Repo == "" {
		served, commit, err := serveRepository(ctx)
		if err != nil {
			return r, err
		}
		defer served.Close()
		url, r.Want = "https://"+repositoryHost+"/widget.git", commit
		p.Origin, p.Certificate = served.TLS(), served.Certificate()
	}
	// Each clone has a name of its own, so that a second one would show.
	p.Argv = []string{"sh", "-c", `git clone --quiet "$0" "clone.$$" && git -C "clone.$$" rev-parse HEAD`, url}
	text, err := json.Marshal(p)
	if err != nil {
		return r, fmt.Errorf("encoding the plan of a pass: %w", err)
	}
	if r.First, err = o.Pass(ctx, string(text)); err != nil {
		return r, err
	}
	if r.First.Ran && r.First.Exit == 0 {
		if r.Second, err = o.Pass(ctx, string(text)); err != nil {
			return r, err
		}
	}
	r.Clone, r.Clones, err = look(p.Workdir)
	return r, err
}

func serveRepository(ctx context.Context) (*origin.Origin, string, error) {
	files, commit, err := origin.Repository("Cloned by sbx dogfood.\n")
	if err != nil {
		return nil, "", err
	}
	served, err := origin.Start(ctx, []string{repositoryHost})
	if err != nil {
		return nil, "", err
	}
	published := map[string][]byte{}
	for path, content := range files {
		published["/widget.git/"+path] = content
	}
	served.Publish(published)
	return served, commit, nil
}

// look reads from outside, without git, at which commit the clones are.
func look(dir string) (commit string, clones int, err error) {
	all, err := filepath.Glob(filepath.Join(dir, "clone.*"))
	if err != nil || len(all) == 0 {
		return "", 0, err
	}
	root, err := os.OpenRoot(all[0])
	if err != nil {
		return "", len(all), fmt.Errorf("looking at the clone: %w", err)
	}
	defer root.Close()
	head, err := root.ReadFile(".git/HEAD")
	if ref, symbolic := strings.CutPrefix(strings.TrimSpace(string(head)), "ref: "); err == nil && symbolic {
		head, err = root.ReadFile(filepath.Join(".git", filepath.FromSlash(ref)))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", len(all), nil
	}
	if err != nil {
		return "", len(all), fmt.Errorf("looking at the clone: %w", err)
	}
	return strings.TrimSpace(string(head)), len(all), nil
}
