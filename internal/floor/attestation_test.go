package floor

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func example() Attestation {
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	return Attestation{
		TaskID: "task-7", Ordinal: 2, CommandSHA256: Sum([]string{"git", "push"}), ApprovedBy: "ops@widget.test", ApprovedAt: at, ExpiresAt: at.Add(DefaultLifetime),
		Rules: []string{"git push", "gh pr merge"}, Nonce: "0123456789abcdef", Audience: "store-1", GrantDigest: strings.Repeat("0a", 32), Workdir: "/home/dev/project",
	}
}

const exampleText = `{"approvedAt":"2026-01-02T12:00:00Z","approvedBy":"ops@widget.test","audience":"store-1",` +
	`"commandSha256":"c32f2b1a66f8a79deadb74f533f3075c60a629df343b89e8c4477d40fa960ba8","expiresAt":"2026-01-02T12:15:00Z",` +
	`"grantDigest":"0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a","nonce":"0123456789abcdef","ordinal":2,` +
	`"rules":["git push","gh pr merge"],"sandbox":"","taskId":"task-7","workdir":"/home/dev/project"}` + "\n"

func TestAttestationHasOneForm(t *testing.T) {
	text, err := example().Encode()
	if err != nil || string(text) != exampleText {
		t.Fatalf("%s, %v", text, err)
	}
	for name, in := range map[string][]byte{"line": text, "no line end": bytes.TrimSuffix(text, []byte("\n"))} {
		got, err := Parse(in)
		if diff := cmp.Diff(example(), got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

// Others make an attestation with what they have.
func TestAttestationIsWhatPythonWrites(t *testing.T) {
	a := example()
	a.Position, a.Workdir = "report", "/home/dev/\u2028<日本>&\"\\\t\n\x01\x7f"
	text, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "python3", "-c",
		"import json, sys; v = json.load(sys.stdin.buffer); sys.stdout.buffer.write((json.dumps(v, sort_keys=True, separators=(',', ':'), ensure_ascii=False) + '\\n').encode())")
	cmd.Stdin = bytes.NewReader(text)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out, text) {
		t.Errorf("%s, Python %s", text, out)
	}
	if got, err := Parse(text); err != nil || got.Workdir != a.Workdir {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestParseRefusesEveryOtherForm(t *testing.T) {
	text, err := example().Encode()
	if err != nil {
		t.Fatal(err)
	}
	line := strings.TrimSuffix(string(text), "\n")
	change := func(old, with string) string {
		if !strings.Contains(line, old) {
			t.Fatalf("%q is not in %s", old, line)
		}
		return strings.Replace(line, old, with, 1)
	}
	for name, text := range map[string]string{
		"empty": "", "null": "null", "list": "[]", "two": line + line, "tail": line + "x", "lines": line + "\n\n", "blank": change(`:2,`, `: 2,`), "front": " " + line, "BOM": "\ufeff" + line,
		"key twice":                change(`"ordinal":2,`, `"ordinal":2,"ordinal":2,`),
		"key twice, other value":   change(`"ordinal":2,`, `"ordinal":1,"ordinal":2,`),
		"key in another case":      change(`"ordinal":2,`, `"Ordinal":2,`),
		"key twice by case":        change(`"sandbox":"",`, `"sandbox":"","TASKID":"task-8",`),
		"unknown key":              change(`"ordinal":2,`, `"ordinal":2,"other":1,`),
		"missing key":              change(`"ordinal":2,`, ``),
		"order":                    change(`"ordinal":2,"rules":["git push","gh pr merge"],`, `"rules":["git push","gh pr merge"],"ordinal":2,`),
		"escape":                   change(`task-7`, `task\u002d7`),
		"slash":                    change(`/home`, `\/home`),
		"number":                   change(`:2,`, `:2.0,`),
		"exponent":                 change(`:2,`, `:2e0,`),
		"negative":                 change(`:2,`, `:-2,`),
		"ordinal too large":        change(`:2,`, `:99999999999999999999,`),
		"time zone":                change(`12:00:00Z`, `12:00:00+00:00`),
		"fraction":                 change(`12:00:00Z`, `12:00:00.5Z`),
		"leap":                     change(`12:00:00Z`, `12:00:60Z`),
		"never valid":              change(`12:15:00Z`, `12:00:00Z`),
		"too long":                 change(`12:15:00Z`, `13:00:01Z`),
		"no rules":                 change(`["git push","gh pr merge"]`, `[]`),
		"null rules":               change(`["git push","gh pr merge"]`, `null`),
		"rule twice":               change(`["git push","gh pr merge"]`, `["git push","git push"]`),
		"nonce too short":          change(`0123456789abcdef`, `0123456789`),
		"digest in capitals":       change(`0a0a`, `0A0A`),
		"short digest":             change(`0a0a`, ``),
		"relative":                 change(`/home`, `home`),
		"control character":        change(`task-7`, `task\t7`),
		"bidirectional":            change(`ops@widget.test`, "ops\u202e@widget.test"),
		"broken UTF-8":             change(`/home`, "/ho\xffme"),
		"lone surrogate":           change(`/home`, `/ho\ud800me`),
		"position":                 change(`"rules"`, `"position":"none","rules"`),
		"NUL in the working place": change(`/home`, `/home\u0000`),
	} {
		if a, err := Parse([]byte(text)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
}

func TestEncodeRefusesWhatParseDoes(t *testing.T) {
	for name, spoil := range map[string]func(*Attestation){
		"workdir": func(a *Attestation) { a.Workdir = "/\xff" }, "rules": func(a *Attestation) { a.Rules = nil },
		"lifetime": func(a *Attestation) { a.ExpiresAt = a.ApprovedAt.Add(MaxLifetime + time.Second) }, "by": func(a *Attestation) { a.ApprovedBy = "" },
		"sandbox": func(a *Attestation) { a.Sandbox = strings.Repeat("x", 64) },
	} {
		a := example()
		spoil(&a)
		if text, err := a.Encode(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %s, %v", name, text, err)
		}
	}
}

func TestUncovered(t *testing.T) {
	a := example()
	if got := a.Uncovered([]string{"git push"}); got != nil {
		t.Error(got)
	}
	if diff := cmp.Diff([]string{"npm publish", "git"}, a.Uncovered([]string{"npm publish", "git push", "git"})); diff != "" {
		t.Error(diff)
	}
}

// FuzzParse: what is taken is in its only form.
func FuzzParse(f *testing.F) {
	f.Add([]byte(exampleText))
	f.Add([]byte(strings.Replace(exampleText, `"sandbox":""`, `"sandbox":"k","taskId":"a"`, 1)))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := Parse(text)
		if err != nil {
			return
		}
		again, err := a.Encode()
		if err != nil || !bytes.Equal(bytes.TrimSuffix(text, []byte("\n")), bytes.TrimSuffix(again, []byte("\n"))) {
			t.Errorf("%q is written as %q, %v", text, again, err)
		}
	})
}
