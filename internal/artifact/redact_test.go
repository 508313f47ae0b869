package artifact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/secret"
)

// Nothing that a run writes holds a secret, also where it comes in two writes.
func TestCase74_RecordsHaveNoSecrets(t *testing.T) {
	v, err := secret.Parse("hunter22-hunter22")
	if err != nil {
		t.Fatal(err)
	}
	dir := stateDir(t)
	encoded := base64.StdEncoding.EncodeToString([]byte("x:" + v.Reveal()))
	var live event.Denial
	r, err := Open(Options{
		StateDir: dir, RunID: "r1", Redact: secret.NewRedactor(v),
		Started:  event.Receipt{Command: []string{"curl", "-u", "x:" + v.Reveal()}, Workdir: "/" + v.Reveal()},
		OnDenial: func(d event.Denial) { live = d },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Record(event.Request{
		ID: 1, Host: v.Reveal() + ".test", Path: "/" + encoded, Verdict: "deny", Code: "x", Reason: "because " + v.Reveal(),
		Authorities: []string{v.Reveal()}, RedirectedFrom: "GET https://a.test/" + v.Reveal(),
	}); err != nil {
		t.Fatal(err)
	}
	r.Complete(event.Completion{ID: 1, Error: "upstream said " + v.Reveal()})
	for _, part := range []string{"out: hunter22-", "hunter22, ", encoded, " and hunter"} {
		if _, err := r.Output().Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Finish(event.Receipt{Command: []string{v.Reveal()}, Result: event.Result{Stream: v.Reveal()}}); err != nil {
		t.Fatal(err)
	}
	find := secret.NewFinder(v)
	if text, err := json.Marshal(live); err != nil || find.Has(text) || live.Host != secret.Masked+".test" {
		t.Errorf("the live row: %s", text)
	}
	files := 0
	err = filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		files++
		if find.Has(text) {
			t.Errorf("%s has the secret: %s", path, text)
		}
		if filepath.Base(path) == OutputFile && !bytes.HasSuffix(text, []byte(" and hunter")) {
			t.Errorf("output %q", text)
		}
		return err
	})
	if err != nil || files < 5 {
		t.Errorf("%d files, %v", files, err)
	}
}
