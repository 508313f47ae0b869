package approval

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/floor"
	"github.com/fractalboxdev/sbx/internal/sshsig"
)

var push = []string{"git", "push", "origin", "main"}

// claim is the run that the tests approve.
func claim() Claim {
	return Claim{Argv: push, Matched: floor.Match(push), Audience: "store-1", Workdir: "/home/dev/project", Ordinal: -1}
}

func (g *gate) statement() floor.Attestation {
	return floor.Attestation{
		TaskID: "task-7", Ordinal: 1, CommandSHA256: floor.Sum(push), ApprovedBy: "ops@widget.test", ApprovedAt: g.opt.Now, ExpiresAt: g.opt.Now.Add(floor.DefaultLifetime),
		Rules: []string{"git push"}, Nonce: "0123456789abcdef", Audience: "store-1", GrantDigest: strings.Repeat("0a", 32), Workdir: "/home/dev/project",
	}
}

// attest signs a statement and writes it to the attestation's file.
func (g *gate) attest(a floor.Attestation) string {
	g.t.Helper()
	text, _, err := Attest(g.t.Context(), a, g.key, g.opt)
	if err != nil {
		g.t.Fatal(err)
	}
	file := filepath.Join(g.dir, "attestation")
	g.write(file, string(text))
	return file
}

func rejected(t *testing.T, err error, code string) {
	t.Helper()
	r, ok := errors.AsType[*event.Refusal](err)
	if !ok || r.Kind != event.RefusedAttestation || r.Code != code || r.Next == "" || !strings.HasPrefix(r.Message, "the attestation is rejected: ") {
		t.Errorf("%v (%+v), not %s", err, r, code)
	}
}

func TestAnAttestationIsChecked(t *testing.T) {
	g := newGate(t)
	a, err := CheckAttestation(g.attest(g.statement()), claim(), g.opt)
	if err != nil || a.TaskID != "task-7" || !strings.HasPrefix(a.Fingerprint, "SHA256:") {
		t.Fatalf("%+v, %v", a, err)
	}
	if err := errors.Join(a.CheckGrant(strings.Repeat("0a", 32), "enforce"), a.CheckTime(g.opt.Now), a.CheckTime(g.opt.Now.Add(floor.DefaultLifetime-time.Second)), a.CheckTime(g.opt.Now.Add(-floor.MaxSkew))); err != nil {
		t.Error(err)
	}
	rejected(t, a.CheckGrant(strings.Repeat("0b", 32), "enforce"), CodeOtherGrant)
	rejected(t, a.CheckGrant(strings.Repeat("0a", 32), "report"), CodeOtherPosition)
	rejected(t, a.CheckTime(g.opt.Now.Add(floor.DefaultLifetime)), CodeOver)
	rejected(t, a.CheckTime(g.opt.Now.Add(-floor.MaxSkew-time.Second)), CodeNotYet)
}

// TestVector30_EveryDifferenceIsRejectedWithItsCode: what was approved is what runs.
func TestVector30_EveryDifferenceIsRejectedWithItsCode(t *testing.T) {
	g := newGate(t)
	for code, spoil := range map[string]func(*floor.Attestation, *Claim){
		CodeOtherCommand: func(_ *floor.Attestation, c *Claim) { c.Argv = append(c.Argv, "--force") },
		CodeOtherRules:   func(a *floor.Attestation, _ *Claim) { a.Rules = []string{"npm publish"} },
		CodeOtherTask:    func(_ *floor.Attestation, c *Claim) { c.Task = "task-8" },
		CodeOtherStore:   func(a *floor.Attestation, _ *Claim) { a.Audience = "store-2" },
		CodeOtherSandbox: func(a *floor.Attestation, _ *Claim) { a.Sandbox = "kept" },
		CodeOtherWorkdir: func(_ *floor.Attestation, c *Claim) { c.Workdir += "/sub" },
	} {
		a, c := g.statement(), claim()
		spoil(&a, &c)
		_, err := CheckAttestation(g.attest(a), c, g.opt)
		rejected(t, err, code)
	}
	c := claim()
	c.Task, c.Ordinal = "task-7", 2
	_, err := CheckAttestation(g.attest(g.statement()), c, g.opt)
	rejected(t, err, CodeOtherTask)
	c.Ordinal = 1
	if _, err := CheckAttestation(g.attest(g.statement()), c, g.opt); err != nil {
		t.Error(err)
	}
	// The words are the same, but not where one ends and the next begins.
	c = claim()
	c.Argv = []string{"git", "push", "origin main"}
	_, err = CheckAttestation(g.attest(g.statement()), c, g.opt)
	rejected(t, err, CodeOtherCommand)
}

func TestSignaturesOfOthersAreRejected(t *testing.T) {
	g := newGate(t)
	file := g.attest(g.statement())
	text := g.read(file)
	statement := text[:strings.Index(text, "-----")]
	stranger := sshsig.Key{File: g.newKey("stranger")}
	sign := func(key sshsig.Key, text, namespace string) string {
		armored, err := key.Sign(t.Context(), []byte(text), namespace)
		if err != nil {
			t.Fatal(err)
		}
		return string(armored)
	}
	other := g.statement()
	other.Ordinal = 9
	changed, err := other.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ text, code string }{
		"none":              {statement, CodeNotSigned},
		"of a stranger":     {statement + sign(stranger, statement, floor.Namespace), CodeNotAllowed},
		"other namespace":   {statement + sign(g.key, statement, Namespace), CodeNotSigned},
		"another text":      {string(changed) + sign(g.key, statement, floor.Namespace), CodeNotSigned},
		"cut":               {text[:len(text)-40], CodeNotSigned},
		"two":               {text + sign(g.key, statement, floor.Namespace), CodeNotSigned},
		"two statements":    {string(changed) + text, CodeNotOne},
		"text behind":       {text + "x", CodeNotSigned},
		"key twice, signed": {strings.Replace(statement, `"ordinal":1`, `"ordinal":1,"ordinal":1`, 1) + sign(g.key, statement, floor.Namespace), CodeNotOne},
		"nothing":           {"", CodeNotSigned},
		"too large":         {strings.Repeat(" ", maxAttestation+1), CodeUnreadable},
	} {
		g.write(file, c.text)
		_, err := CheckAttestation(file, claim(), g.opt)
		if r, ok := errors.AsType[*event.Refusal](err); !ok || r.Code != c.code {
			t.Errorf("%s: %v, not %s", name, err, c.code)
		}
	}
	g.write(file, text)
	for name, options := range map[string]string{"profiles only": `namespaces="` + Namespace + `"`, "until yesterday": `valid-before="20260101"`} {
		g.allow(options)
		if _, err := CheckAttestation(file, claim(), g.opt); err == nil {
			t.Errorf("%s: taken", name)
		} else {
			rejected(t, err, CodeNotAllowed)
		}
	}
}

// A signer cannot approve in another's name.
func TestApprovedByIsWhoSigned(t *testing.T) {
	g := newGate(t)
	file := g.attest(g.statement())
	g.write(g.opt.Signers, "dev@widget.test "+g.read(g.key.File+".pub"))
	_, err := CheckAttestation(file, claim(), g.opt)
	rejected(t, err, CodeNotThey)
	if _, _, err := Attest(t.Context(), g.statement(), g.key, g.opt); err == nil {
		t.Error("it was signed for somebody else")
	}
	if who, err := Approver(g.key, g.opt); err != nil || who != "dev@widget.test" {
		t.Errorf("%q, %v", who, err)
	}
	g.write(g.opt.Signers, "*@widget.test "+g.read(g.key.File+".pub"))
	if _, err := Approver(g.key, g.opt); !errors.Is(err, ErrWho) {
		t.Error(err)
	}
}

func TestWithoutSignersNobodyApproves(t *testing.T) {
	g := newGate(t)
	file := g.attest(g.statement())
	g.opt.Signers = ""
	_, err := CheckAttestation(file, claim(), g.opt)
	rejected(t, err, CodeNoSigners)
	g.opt.Signers = filepath.Join(g.dir, "open")
	g.write(g.opt.Signers, "")
	if err := os.Chmod(g.opt.Signers, 0o666); err != nil {
		t.Fatal(err)
	}
	_, err = CheckAttestation(file, claim(), g.opt)
	rejected(t, err, CodeSigners)
}

// TestSSHKeygenSignsAndVerifies: an attestation can be made and checked without sbx.
func TestSSHKeygenSignsAndVerifies(t *testing.T) {
	g := newGate(t)
	keygen := func(stdin []byte, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "ssh-keygen", args...)
		cmd.Stdin = bytes.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	text, err := g.statement().Encode()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(g.dir, "theirs")
	for name, text := range map[string][]byte{"line": text, "no line end": bytes.TrimSuffix(text, []byte("\n"))} {
		_ = os.Remove(file + SignatureSuffix)
		g.write(file, string(text))
		keygen(nil, "-Y", "sign", "-n", floor.Namespace, "-f", g.key.File, file)
		if _, err := CheckAttestation(file, claim(), g.opt); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	ours := g.read(g.attest(g.statement()))
	at := strings.Index(ours, "-----")
	g.write(file+SignatureSuffix, ours[at:])
	keygen([]byte(ours[:at]), "-Y", "verify", "-f", g.opt.Signers, "-I", "ops@widget.test", "-n", floor.Namespace, "-s", file+SignatureSuffix)
}

// The file may lie where a hostile command writes: what it can be is read or refused,
// and never waited for.
func TestHostileFilesAreRefused(t *testing.T) {
	g := newGate(t)
	file := g.attest(g.statement())
	link := filepath.Join(g.dir, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if _, err := CheckAttestation(link, claim(), g.opt); err != nil {
		t.Errorf("a link to a good one: %v", err)
	}
	pipe := filepath.Join(g.dir, "pipe")
	if out, err := exec.CommandContext(t.Context(), "mkfifo", pipe).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, path := range []string{pipe, g.dir, "/dev/zero", "/dev/tty", "/proc/self/mem", filepath.Join(g.dir, "missing")} {
		_, err := CheckAttestation(path, claim(), g.opt)
		r, ok := errors.AsType[*event.Refusal](err)
		if !ok || r.Kind != event.RefusedAttestation || r.Code != CodeUnreadable {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestSpentAndReplayableAreRejections(t *testing.T) {
	rejected(t, Spent(errors.New("it was spent by run r1")), CodeSpent)
	rejected(t, Replayable("it is in memory"), CodeReplayable)
}
