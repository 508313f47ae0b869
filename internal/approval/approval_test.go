package approval

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sshsig"
	"github.com/fractalboxdev/sbx/internal/store"
)

const widget = `
[profiles.x-widget]
version = 3
summary = "one"

[[profiles.x-widget.rules]]
id = "read"
host = "api.widget.test"
methods = ["GET"]
path = "/repos/**"
allow = ["GET /repos/x"]
deny = ["GET /x"]
`

// gate is an operator with a key, a profile file and a state directory.
type gate struct {
	t    *testing.T
	dir  string
	file string
	key  sshsig.Key
	opt  Options
}

func newGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{t: t, dir: t.TempDir()}
	g.file = filepath.Join(g.dir, "x-widget.toml")
	g.key = sshsig.Key{File: g.newKey("key")}
	g.opt = Options{
		Signers: filepath.Join(g.dir, "allowed_signers"), StateDir: filepath.Join(g.dir, "state"), UID: os.Getuid(),
		Now: time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC),
	}
	g.write(g.file, widget)
	g.allow("")
	return g
}

func (g *gate) newKey(name string) string {
	g.t.Helper()
	file := filepath.Join(g.dir, name)
	if out, err := exec.CommandContext(g.t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file).CombinedOutput(); err != nil {
		g.t.Fatalf("%v: %s", err, out)
	}
	return file
}

func (g *gate) write(path, text string) {
	g.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gate) read(path string) string {
	g.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		g.t.Fatal(err)
	}
	return string(text)
}

// allow lists the gate's key with some options.
func (g *gate) allow(options string) {
	g.t.Helper()
	g.write(g.opt.Signers, strings.TrimSpace("ops@widget.test "+options)+" "+g.read(g.key.File+".pub"))
}

func (g *gate) approve() {
	g.t.Helper()
	if _, err := Approve(g.t.Context(), g.file, g.key, 24*time.Hour, g.opt); err != nil {
		g.t.Fatal(err)
	}
}

// refused demands a refusal with this code and a next step.
func refused(t *testing.T, err error, code string) {
	t.Helper()
	r, ok := errors.AsType[*event.Refusal](err)
	if !ok || r.Kind != event.RefusedApproval || r.Code != code || r.Next == "" {
		t.Errorf("%v (%+v), not %s", err, r, code)
	}
}

func TestAnApprovedFileLoads(t *testing.T) {
	g := newGate(t)
	_, err := Load(g.file, g.opt)
	refused(t, err, CodeMissing)
	g.approve()
	loaded, err := Load(g.file, g.opt)
	if err != nil {
		t.Fatal(err)
	}
	if names := loaded.Profiles.Names(); len(names) != 1 || names[0] != "x-widget" {
		t.Errorf("profiles %q", names)
	}
	a := loaded.Approvals[0]
	if a.Profile != "x-widget" || a.Version != 3 || a.Signer != "ops@widget.test" || !strings.HasPrefix(a.Fingerprint, "SHA256:") ||
		a.Digest != digestOf([]byte(widget)) || !a.Expires.Equal(g.opt.Now.Add(24*time.Hour)) {
		t.Errorf("%+v", a)
	}
}

// TestApprovalIsCheckedBySSHKeygen: the statement and signature are those that
// ssh-keygen -Y verify takes.
func TestApprovalIsCheckedBySSHKeygen(t *testing.T) {
	g := newGate(t)
	g.approve()
	text := g.read(g.file + Suffix)
	i := strings.Index(text, sshsig.Begin)
	sig := filepath.Join(g.dir, "sig")
	g.write(sig, text[i:])
	for statement, want := range map[string]bool{text[:i]: true, strings.Replace(text[:i], "x-widget 3", "x-widget 4", 1): false} {
		cmd := exec.CommandContext(t.Context(), "ssh-keygen", "-Y", "verify", "-f", g.opt.Signers, "-I", "ops@widget.test", "-n", Namespace, "-s", sig)
		cmd.Stdin = strings.NewReader(statement)
		if out, err := cmd.CombinedOutput(); (err == nil) != want {
			t.Errorf("%s: %v: %s", statement, err, out)
		}
	}
}

// What ssh-keygen -Y sign makes of the statement is an approval.
func TestApprovalMadeBySSHKeygen(t *testing.T) {
	g := newGate(t)
	s, err := g.opt.statement(g.t.Context(), g.file, []byte(widget), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "ssh-keygen", "-Y", "sign", "-n", Namespace, "-f", g.key.File)
	cmd.Stdin = bytes.NewReader(s.Text())
	armored, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	g.write(g.file+Suffix, string(s.Text())+string(armored))
	if _, err := Load(g.file, g.opt); err != nil {
		t.Error(err)
	}
}

// TestNothingElseLoads: a changed byte, another time, purpose or signer.
func TestNothingElseLoads(t *testing.T) {
	for name, c := range map[string]struct {
		change func(g *gate)
		code   string
	}{
		"a byte":        {func(g *gate) { g.write(g.file, widget+" ") }, CodeChanged},
		"expired":       {func(g *gate) { g.opt.Now = g.opt.Now.Add(24 * time.Hour) }, CodeExpired},
		"from tomorrow": {func(g *gate) { g.opt.Now = g.opt.Now.Add(-6 * time.Minute) }, CodeFuture},
		"no signers":    {func(g *gate) { g.opt.Signers = "" }, CodeNoSigners},
		"other signers": {func(g *gate) { g.write(g.opt.Signers, "ops "+g.read(g.newKey("other")+".pub")) }, CodeSigner},
		"namespace":     {func(g *gate) { g.allow(`namespaces="sbx-attestation-v1"`) }, CodeSigner},
		"key too old":   {func(g *gate) { g.allow(`valid-before="20260101Z"`) }, CodeSigner},
		"authority":     {func(g *gate) { g.allow("cert-authority") }, CodeSigner},
		"bad signers":   {func(g *gate) { g.write(g.opt.Signers, "x") }, CodeSigners},
		"open signers": {func(g *gate) {
			if err := os.Chmod(g.opt.Signers, 0o666); err != nil {
				g.t.Fatal(err)
			}
		}, CodeSigners},
		"signers of a sandbox": {func(g *gate) { g.opt.Forbidden = []string{g.dir} }, CodeSigners},
		"statement":            {func(g *gate) { g.edit("x-widget 3", "x-widget 2") }, CodeSignature},
		"expiry":               {func(g *gate) { g.edit("expires 2026", "expires 2027") }, CodeSignature},
		"spelling":             {func(g *gate) { g.edit("x-widget 3", "x-widget 03") }, CodeMalformed},
		"a line more":          {func(g *gate) { g.edit("issued", "profile x-other 1\nissued") }, CodeSignature},
		"unsigned":             {func(g *gate) { g.edit(sshsig.Begin, "-----BEGIN") }, CodeMalformed},
		"other purpose":        {func(g *gate) { g.resign("sbx-attestation-v1") }, CodeSignature},
		"after the signature":  {func(g *gate) { g.write(g.file+Suffix, g.read(g.file+Suffix)+"x") }, CodeMalformed},
		"revoked": {func(g *gate) {
			if err := Revoke("x-widget", g.opt); err != nil {
				g.t.Fatal(err)
			}
		}, CodeRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate(t)
			g.approve()
			if _, err := Load(g.file, g.opt); err != nil {
				t.Fatal(err)
			}
			c.change(g)
			_, err := Load(g.file, g.opt)
			refused(t, err, c.code)
		})
	}
}

func (g *gate) edit(old, new string) {
	g.t.Helper()
	text := g.read(g.file + Suffix)
	if !strings.Contains(text, old) {
		g.t.Fatalf("%q does not stand in %s", old, text)
	}
	g.write(g.file+Suffix, strings.Replace(text, old, new, 1))
}

// resign signs the same statement for another purpose.
func (g *gate) resign(namespace string) {
	g.t.Helper()
	statement, _, _ := strings.Cut(g.read(g.file+Suffix), sshsig.Begin)
	armored, err := g.key.Sign(g.t.Context(), []byte(statement), namespace)
	if err != nil {
		g.t.Fatal(err)
	}
	g.write(g.file+Suffix, statement+string(armored))
}

// TestNoWayBack: an older approved version does not load once a newer one was
// used, nor do other bytes under the same version; after a revocation a new
// approval is needed.
func TestNoWayBack(t *testing.T) {
	g := newGate(t)
	g.approve()
	old, oldApproval := g.read(g.file), g.read(g.file+Suffix)
	g.load()
	g.write(g.file, strings.Replace(widget, "version = 3", "version = 4", 1))
	g.approve()
	if loaded, err := Load(g.file, g.opt); err != nil || loaded.Approvals[0].Version != 4 {
		t.Fatalf("%v", err)
	}
	g.put(old, oldApproval)
	g.load() // version 4 was looked at, not used

	g.write(g.file, strings.Replace(widget, "version = 3", "version = 4", 1))
	g.approve()
	g.load()
	g.put(old, oldApproval)
	_, err := Load(g.file, g.opt)
	refused(t, err, CodeVersion)

	g.write(g.file, strings.NewReplacer("version = 3", "version = 4", "one", "two").Replace(widget))
	_, err = Approve(t.Context(), g.file, g.key, time.Hour, g.opt)
	refused(t, err, CodeVersion)

	g.write(g.file, strings.Replace(widget, "version = 3", "version = 5", 1))
	g.approve()
	if err := Revoke("x-widget", g.opt); err != nil {
		t.Fatal(err)
	}
	_, err = Load(g.file, g.opt)
	refused(t, err, CodeRevoked)
	g.opt.Now = g.opt.Now.Add(time.Second)
	g.approve()
	g.load()
}

func (g *gate) put(text, approval string) {
	g.write(g.file, text)
	g.write(g.file+Suffix, approval)
}

func (g *gate) load() {
	g.t.Helper()
	loaded, err := Load(g.file, g.opt)
	if err == nil {
		err = loaded.Remember()
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// A file that its reviewers would object to is neither approved nor loaded.
func TestFindingsAreRefused(t *testing.T) {
	g := newGate(t)
	for _, text := range []string{
		strings.ReplaceAll(widget, "x-widget", "widget"), strings.Replace(widget, "api.widget.test", "*.widget.test", 1), "x", "",
		strings.Replace(widget, `"GET /x"`, `"GET /repos/x"`, 1),
	} {
		g.write(g.file, text)
		_, err := Approve(t.Context(), g.file, g.key, time.Hour, g.opt)
		refused(t, err, CodeFindings)
	}
	if _, err := os.Stat(g.file + Suffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an approval was written: %v", err)
	}
}

func TestApproveRefuses(t *testing.T) {
	g := newGate(t)
	if _, err := Approve(t.Context(), g.file, g.key, 0, g.opt); err == nil {
		t.Error("no lifetime")
	}
	if _, err := Approve(t.Context(), g.file, g.key, MaxLifetime+1, g.opt); err == nil {
		t.Error("forever")
	}
	_, err := Approve(t.Context(), g.file, sshsig.Key{File: g.newKey("other")}, time.Hour, g.opt)
	refused(t, err, CodeSigner)
	if _, err := os.Stat(g.file + Suffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an approval was written: %v", err)
	}
}

// What was remembered before there was a store goes on to count, and what cannot be
// understood is not taken for nothing known.
func TestMemoryOfBeforeTheStore(t *testing.T) {
	g := newGate(t)
	g.approve()
	old := filepath.Join(g.opt.StateDir, "approvals.json")
	if err := os.MkdirAll(g.opt.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "x", `{"schema":2}`, `{"schema":1,"profile":{}}`, `{"schema":1}{}`} {
		g.write(old, text)
		if _, err := Load(g.file, g.opt); !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), old) {
			t.Errorf("%q: %v", text, err)
		}
	}
	g.write(old, `{"schema":1,"profiles":{"x-widget":{"version":9,"digest":"d"},"x-other":{"version":0,"digest":"","revoked_at":"2026-01-02T03:04:05.000000006Z"}}}`)
	_, err := Load(g.file, g.opt)
	refused(t, err, CodeVersion)
	m, err := g.opt.recall(t.Context())
	if err != nil || m["x-other"].RevokedAt.Nanosecond() != 6 || m["x-widget"].Version != 9 {
		t.Errorf("%+v, %v", m, err)
	}
	if err := os.Remove(old); err != nil { // it was taken over once and for all
		t.Fatal(err)
	}
	_, err = Load(g.file, g.opt)
	refused(t, err, CodeVersion)
}

func TestLookingMakesNoStore(t *testing.T) {
	g := newGate(t)
	g.approve()
	if _, err := Load(g.file, g.opt); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(g.opt.StateDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state directory: %v", err)
	}
}

// Runs that end at once do not lose what another one remembers.
func TestRememberAtOnce(t *testing.T) {
	g := newGate(t)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			l := Loaded{gate: g.opt, Approvals: []event.Approval{{Profile: "x-" + strings.Repeat("a", i+1), Version: 1, Digest: "d"}}}
			if err := l.Remember(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if known, err := Known(g.opt); err != nil || len(known) != 20 {
		t.Errorf("%q, %v", known, err)
	}
}

// A link that leads through a directory of others does not count, wherever it ends.
func TestSignersThroughLinks(t *testing.T) {
	g := newGate(t)
	g.approve()
	open := filepath.Join(g.dir, "open")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Symlink(g.opt.Signers, filepath.Join(open, "signers")), os.Symlink(open, filepath.Join(g.dir, "way"))); err != nil {
		t.Fatal(err)
	}
	g.opt.Signers = filepath.Join(g.dir, "way", "signers")
	if _, err := Load(g.file, g.opt); err != nil {
		t.Errorf("links of one's own: %v", err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := Load(g.file, g.opt)
	refused(t, err, CodeSigners)
	g.opt.Signers = "allowed_signers"
	_, err = Load(g.file, g.opt)
	refused(t, err, CodeSigners)
}

// FuzzParseStamp: what is taken for a statement has one spelling.
func FuzzParseStamp(f *testing.F) {
	f.Add([]byte(firstLine + "\nsha256 x\nprofile x-a 1\nissued 2026-01-02T12:00:00Z\nexpires 2026-01-03T12:00:00Z\n" + sshsig.Begin + "\n"))
	f.Add([]byte("\n" + sshsig.Begin))
	f.Fuzz(func(t *testing.T, text []byte) {
		if s, err := parseStamp(text); err == nil && !bytes.HasPrefix(text, s.Text()) {
			t.Errorf("%q reads as %q", text, s.Text())
		}
		if s, err := parseStatement(string(text)); err == nil {
			again, err := parseStatement(string(s.Text()))
			if err != nil || string(again.Text()) != string(text) {
				t.Errorf("%q reads as %q, %v", text, again.Text(), err)
			}
		}
	})
}
