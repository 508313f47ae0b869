package sshsig

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

const namespace = "sbx-profile-v1"

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// keygen runs the real program, which is the judge of everything here.
func keygen(t *testing.T, stdin []byte, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "ssh-keygen", args...)
	cmd.Stdin, cmd.Env = bytes.NewReader(stdin), append(os.Environ(), "TZ=UTC")
	return cmd.CombinedOutput()
}

func newKey(t *testing.T, kind, passphrase string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "key")
	if out, err := keygen(t, nil, "-q", "-t", kind, "-N", passphrase, "-C", "someone", "-f", file); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

func publicKey(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func mustSigners(t *testing.T, text string) Signers {
	t.Helper()
	s, err := ParseSigners([]byte(text), time.UTC)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// keygenVerifies asks ssh-keygen whether a signature of a principal counts.
func keygenVerifies(t *testing.T, signers string, armored, message []byte, principal, namespace string, at time.Time) bool {
	t.Helper()
	dir := t.TempDir()
	list, sig := filepath.Join(dir, "signers"), filepath.Join(dir, "sig")
	if err := errors.Join(os.WriteFile(list, []byte(signers), 0o600), os.WriteFile(sig, armored, 0o600)); err != nil {
		t.Fatal(err)
	}
	_, err := keygen(t, message, "-Y", "verify", "-f", list, "-I", principal, "-n", namespace, "-s", sig, "-O", "verify-time="+at.UTC().Format("20060102150405")+"Z")
	return err == nil
}

// TestSignaturesAreThoseOfSSHKeygen: what either makes the other takes, with
// every type of key.
func TestSignaturesAreThoseOfSSHKeygen(t *testing.T) {
	message := []byte("profile: x-widget 3\n")
	for _, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		file := newKey(t, kind, "")
		theirs, err := exec.CommandContext(t.Context(), "sh", "-c", `printf 'profile: x-widget 3\n' | ssh-keygen -Y sign -n "$1" -f "$2" 2>/dev/null`, "sh", namespace, file).Output()
		if err != nil {
			t.Fatal(err)
		}
		ours, err := Key{File: file}.Sign(t.Context(), message, namespace)
		if err != nil {
			t.Fatal(err)
		}
		for name, armored := range map[string][]byte{"ssh-keygen's": theirs, "ours": ours} {
			sig, err := Parse(armored)
			if err != nil {
				t.Fatalf("%s %s: %v", name, kind, err)
			}
			if err := sig.Verify(message, namespace); err != nil {
				t.Errorf("%s %s: %v", name, kind, err)
			}
			if err := sig.Verify([]byte("profile: x-widget 4\n"), namespace); !errors.Is(err, ErrWrong) {
				t.Errorf("%s %s, another text: %v", name, kind, err)
			}
			if err := sig.Verify(message, "sbx-attestation-v1"); !errors.Is(err, ErrNamespace) {
				t.Errorf("%s %s, another namespace: %v", name, kind, err)
			}
			signers := "someone " + publicKey(t, file) + "\n"
			if who, err := mustSigners(t, signers).Allow(sig, noon); err != nil || who != "someone" {
				t.Errorf("%s %s: %q, %v", name, kind, who, err)
			}
			if !keygenVerifies(t, signers, armored, message, "someone", namespace, noon) {
				t.Errorf("ssh-keygen does not take %s %s", name, kind)
			}
		}
	}
}

// TestSignersAgreeWithSSHKeygen: the same entries count here and there.
func TestSignersAgreeWithSSHKeygen(t *testing.T) {
	file, other := newKey(t, "ed25519", ""), newKey(t, "ed25519", "")
	key, message := publicKey(t, file), []byte("text")
	armored, err := Key{File: file}.Sign(t.Context(), message, namespace)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := Parse(armored)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		signers string
		want    bool
	}{
		{"someone " + key, true},
		{"# a comment\n\n  someone " + key + " with a comment\n", true},
		{"someone " + publicKey(t, other), false},
		{"other " + publicKey(t, other) + "\nsomeone " + key, true},
		{`someone namespaces="sbx-profile-v1" ` + key, true},
		{`someone namespaces="git,sbx-*" ` + key, true},
		{`someone namespaces="git" ` + key, false},
		{`someone namespaces="sbx-*,!sbx-profile-v1" ` + key, false},
		{`someone namespaces="sbx-profile-v?" ` + key, true},
		{`someone valid-after="20260102" ` + key, true},
		{`someone valid-after="20260103" ` + key, false},
		{`someone valid-before="20260102" ` + key, false},
		{`someone valid-before="202601021200" ` + key, true},
		{`someone valid-before="20260102115959Z" ` + key, false},
		{`someone valid-after="20250101",valid-before="20270101Z",namespaces="sbx-profile-v1" ` + key, true},
		{`someone cert-authority ` + key, false},
		{`someone cert-authority ` + key + "\nsomeone " + key, true},
		{`"someone" ` + key, true},
	} {
		_, err := mustSigners(t, c.signers).Allow(sig, noon)
		if got := err == nil; got != c.want {
			t.Errorf("%s: %v", c.signers, err)
		}
		if err != nil && !errors.Is(err, ErrUnknownSigner) {
			t.Errorf("%s: %v", c.signers, err)
		}
		if theirs := keygenVerifies(t, c.signers, armored, message, "someone", namespace, noon); theirs != c.want {
			t.Errorf("%s: ssh-keygen says %v", c.signers, theirs)
		}
	}
	if _, err := (Signers{}).Allow(sig, noon); !errors.Is(err, ErrUnknownSigner) {
		t.Errorf("nobody is listed: %v", err)
	}
}

// TestPrincipalsAgreeWithSSHKeygen: a key speaks for whom its entry names.
func TestPrincipalsAgreeWithSSHKeygen(t *testing.T) {
	file := newKey(t, "ed25519", "")
	key, message := publicKey(t, file), []byte("text")
	armored, err := Key{File: file}.Sign(t.Context(), message, namespace)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := Parse(armored)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		principals, who string
		want            bool
	}{
		{"ops", "ops", true},
		{"ops", "dev", false},
		{"ops,dev", "dev", true},
		{"*@widget.test", "ops@widget.test", true},
		{"*@widget.test", "ops@widget.test.evil", false},
		{"*,!dev", "dev", false},
		{"*,!dev", "ops", true},
		{"ops", "*", false},
		{"ops", "op?", false},
	} {
		signers := c.principals + " " + key
		_, err := mustSigners(t, signers).AllowAs(sig, c.who, noon)
		if got := err == nil; got != c.want || err != nil && !errors.Is(err, ErrUnknownSigner) {
			t.Errorf("%s as %s: %v", c.principals, c.who, err)
		}
		if theirs := keygenVerifies(t, signers, armored, message, c.who, namespace, noon); theirs != c.want {
			t.Errorf("%s as %s: ssh-keygen says %v", c.principals, c.who, theirs)
		}
	}
	two := mustSigners(t, "ops "+key+"\ndev "+key)
	for _, who := range []string{"ops", "dev"} {
		if got, err := two.AllowAs(sig, who, noon); err != nil || got != who {
			t.Errorf("%s: %s, %v", who, got, err)
		}
	}
	if _, err := two.AllowAs(sig, "", noon); !errors.Is(err, ErrUnknownSigner) {
		t.Errorf("nobody: %v", err)
	}
}

func TestPrincipalsOfAKey(t *testing.T) {
	plain, locked := newKey(t, "ed25519", ""), newKey(t, "rsa", "words")
	list := mustSigners(t, "ops "+publicKey(t, plain)+"\ndev,root "+publicKey(t, locked)+"\nother "+publicKey(t, plain))
	for file, want := range map[string]string{plain: "ops", plain + ".pub": "ops", locked: "dev,root", locked + ".pub": "dev,root", newKey(t, "ecdsa", ""): ""} {
		if got, err := list.Principals(Key{File: file}); err != nil || got != want {
			t.Errorf("%s: %q, %v", file, got, err)
		}
	}
	if _, err := list.Principals(Key{File: "/dev/null"}); err == nil {
		t.Error("no key at all has principals")
	}
}

// Lines that are not understood are errors: they may be meant to restrict.
func TestParseSignersIsStrict(t *testing.T) {
	key := publicKey(t, newKey(t, "ed25519", ""))
	for _, text := range []string{
		"someone", key, "someone namespace=\"x\" " + key, "someone namespaces=x " + key, "someone namespaces=\"\" " + key,
		"someone valid-after=\"tomorrow\" " + key, "someone valid-after=\"20260102\",valid-before=\"20260101\" " + key,
		"someone namespaces=\"a\",namespaces=\"b\" " + key, "someone \"unclosed " + key, "someone ssh-rsa " + strings.Fields(key)[1],
		"someone ssh-ed25519 AAAA", "someone cert-authority=\"x\" " + key,
	} {
		if _, err := ParseSigners([]byte("# one\n"+text), time.UTC); err == nil || !strings.HasPrefix(err.Error(), "line 2: ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	file := newKey(t, "ed25519", "")
	armored, err := Key{File: file}.Sign(t.Context(), []byte("text"), namespace)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"nothing": "", "text": "x", "two": string(armored) + string(armored), "prefix": "x\n" + string(armored), "cut": string(armored[:len(armored)/2]),
		"other": strings.ReplaceAll(string(armored), "SSH SIGNATURE", "CERTIFICATE"), "huge": strings.Repeat("x", 1<<20),
		"headers": strings.Replace(string(armored), "\n", "\na: b\n\n", 1),
	} {
		if _, err := Parse([]byte(text)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A passphrase is asked for by ssh-keygen, here through SSH_ASKPASS.
func TestSignWithPassphrase(t *testing.T) {
	file := newKey(t, "ed25519", "secret words")
	ask := filepath.Join(t.TempDir(), "ask")
	if err := os.WriteFile(ask, []byte("#!/bin/sh\necho secret words\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	armored, err := Key{File: file, Env: []string{"SSH_ASKPASS=" + ask, "SSH_ASKPASS_REQUIRE=force", "DISPLAY=:0"}}.Sign(t.Context(), []byte("text"), namespace)
	if err != nil {
		t.Fatal(err)
	}
	if sig, err := Parse(armored); err != nil || sig.Verify([]byte("text"), namespace) != nil {
		t.Errorf("%v", err)
	}
}

func TestSignWithAgent(t *testing.T) {
	file := newKey(t, "rsa", "")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	private, err := ssh.ParseRawPrivateKey(text)
	if err != nil {
		t.Fatal(err)
	}
	ring := agent.NewKeyring()
	if err := ring.Add(agent.AddedKey{PrivateKey: private}); err != nil {
		t.Fatal(err)
	}
	socket := serveAgent(t, ring)
	armored, err := Key{File: file + ".pub", Agent: socket}.Sign(t.Context(), []byte("text"), namespace)
	if err != nil {
		t.Fatal(err)
	}
	if sig, err := Parse(armored); err != nil || sig.Verify([]byte("text"), namespace) != nil {
		t.Errorf("%v", err)
	}
	other := newKey(t, "ed25519", "")
	if _, err := (Key{File: other + ".pub", Agent: socket}).Sign(t.Context(), nil, namespace); err == nil || !strings.Contains(err.Error(), "ssh-add") {
		t.Errorf("a key that the agent does not hold: %v", err)
	}
	if _, err := (Key{File: other + ".pub"}).Sign(t.Context(), nil, namespace); err == nil || !strings.Contains(err.Error(), "SSH_AUTH_SOCK") {
		t.Errorf("no agent: %v", err)
	}
}

func serveAgent(t *testing.T, ring agent.Agent) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	var listen net.ListenConfig
	listener, err := listen.Listen(context.Background(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = agent.ServeAgent(ring, conn) // ends with the client
			conn.Close()
		}
	}()
	return socket
}

func TestSignRefusesOpenKeys(t *testing.T) {
	file := newKey(t, "ed25519", "")
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := (Key{File: file}).Sign(t.Context(), nil, namespace); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("%v", err)
	}
}

// FuzzParse: hostile signatures and lists are refused without panic, and none
// that was not signed verifies.
func FuzzParse(f *testing.F) {
	f.Add([]byte(Begin+"\nU1NIU0lHAAAAAQ==\n-----END SSH SIGNATURE-----\n"), []byte("someone ssh-ed25519 AAAA"))
	f.Add([]byte("x"), []byte(`a namespaces="b",valid-after="20260101" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ+NyPBN8yzQM1rNA4pZ5r0zWcyY7gA4cF2sHqZ+8Yq8`))
	f.Fuzz(func(t *testing.T, armored, list []byte) {
		signers, err := ParseSigners(list, time.UTC)
		if err != nil && len(signers.list) > 0 {
			t.Errorf("%d entries beside an error", len(signers.list))
		}
		sig, err := Parse(armored)
		if err != nil {
			return
		}
		if sig.Verify([]byte("a text that nobody signed"), namespace) == nil {
			t.Errorf("%q verifies", armored)
		}
		if _, err := signers.Allow(sig, noon); err == nil && len(signers.list) == 0 {
			t.Error("nobody is listed, yet somebody is allowed")
		}
	})
}
