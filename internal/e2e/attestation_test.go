package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// office is a user with a signing key, and a state directory that outlives the lab's
// memory.
type office struct {
	*testing.T
	lab   *sbxtest.Lab
	who   sbxtest.User
	state string
}

func newOffice(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) *office {
	t.Helper()
	reviewer(t, lab, who)
	state, err := os.MkdirTemp("/var/tmp", "sbx-e2e-") //nolint:usetesting // on a disk, where the test's own files are in memory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(state) })
	if lab.UID(who) != os.Geteuid() {
		if err := os.Chown(state, lab.UID(who), lab.UID(who)); err != nil {
			t.Fatal(err)
		}
	}
	// A program of the project's that is called git, and says that it ran.
	lab.Write(who, "git", "#!/bin/sh\necho ran >> ran\n")
	o := &office{t, lab, who, state}
	o.host(0, "sh", "-c", "chmod 755 git; rm -rf ran *.json* sub; mkdir sub")
	return o
}

// host runs a command outside of any sandbox.
func (o *office) host(exit int, argv ...string) sbxtest.Result {
	o.Helper()
	cmd := o.lab.Command(o.T, o.who, argv...)
	cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+o.state)
	got := o.lab.RunCommand(o.T, o.who, cmd)
	if got.Exit != exit {
		o.Fatalf("%q: exit status %d, want %d\nstdout: %s\nstderr: %s", argv, got.Exit, exit, got.Stdout, got.Stderr)
	}
	return got
}

// exec runs sbx exec and returns its outcome as machines read it.
func (o *office) exec(exit int, args ...string) outcome {
	o.Helper()
	return decoded(o.T, o.host(exit, append([]string{"sbx", "exec", "--json"}, args...)...).Stdout)
}

// approve writes an attestation for ./git push, or for what else is given.
func (o *office) approve(file string, args ...string) {
	o.Helper()
	if len(args) == 0 {
		args = []string{"--", "./git", "push"}
	}
	o.host(0, append([]string{"sbx", "approve", "--key", "../key", "--yes", "-o", file}, args...)...)
}

// forge writes a statement for ./git push, changes it, and has ssh-keygen sign it.
func (o *office) forge(file, namespace, key string, change ...string) {
	o.Helper()
	o.host(0, "sh", "-c", "rm -f "+file+"*")
	o.host(0, "sbx", "approve", "--unsigned", "--by", "ops@widget.test", "-o", file, "--", "./git", "push")
	path := filepath.Join(o.lab.Project(o.who), file)
	text, err := os.ReadFile(path)
	if err != nil {
		o.Fatal(err)
	}
	changed := strings.NewReplacer(change...).Replace(string(text))
	if len(change) > 0 && changed == string(text) {
		o.Fatalf("%q is not in %s", change, text)
	}
	o.lab.Write(o.who, file, changed)
	o.host(0, "ssh-keygen", "-q", "-Y", "sign", "-n", namespace, "-f", key, file)
}

// runs is how often the program ran.
func (o *office) runs() int {
	o.Helper()
	text, err := os.ReadFile(filepath.Join(o.lab.Project(o.who), "ran"))
	if err != nil && !os.IsNotExist(err) {
		o.Fatal(err)
	}
	return strings.Count(string(text), "ran\n")
}

// turnedDown demands a refusal of that kind and code, before anything was made.
func (o *office) turnedDown(got outcome, kind event.RefusalKind, code string) {
	o.Helper()
	r := got.Receipt.Result.Refusal
	if r == nil || r.Kind != kind || r.Code != code || r.Next == "" || r.Name == "" {
		o.Errorf("refusal %+v, want %s %s", r, kind, code)
	}
	for _, step := range got.Receipt.Steps {
		if step.Name == "ensure" {
			o.Errorf("%s: refused after a sandbox was made", code)
		}
	}
}

// TestVector30_AnIrreversibleCommandRunsOnceWithAnAttestation: without, with one for
// another command, with the right one, and with the right one again. What the row says
// of idempotency keys is tested where those are.
func TestVector30_AnIrreversibleCommandRunsOnceWithAnAttestation(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		o := newOffice(t, lab, who)
		o.host(0, "sh", "-c", "rm -rf .git remote.git; git init -q -b main . && git -c user.name=a -c user.email=a@widget.test commit -q --allow-empty -m one && git init -q --bare remote.git")
		push := []string{"--", "git", "push", "./remote.git", "main"}
		got := o.host(125, append([]string{"sbx", "exec"}, push...)...)
		says(t, got.Stderr, "cannot be taken back (git push)", "next: sbx approve -- git push ./remote.git main; then add to this command: --attestation FILE")
		o.turnedDown(o.exec(125, push...), event.RefusedApproval, "attestation-missing")
		o.approve("force.json", "--", "git", "push", "--force", "./remote.git", "main")
		o.turnedDown(o.exec(125, append([]string{"--attestation", "force.json"}, push...)...), event.RefusedAttestation, "attestation-command")
		o.host(1, "git", "--git-dir", "remote.git", "rev-parse", "--verify", "-q", "main")

		o.approve("push.json", append([]string{"--task", "task-7", "--ordinal", "3"}, push...)...)
		r := o.exec(0, append([]string{"--attestation", "push.json", "--task", "task-7", "--ordinal", "3"}, push...)...).Receipt
		o.host(0, "git", "--git-dir", "remote.git", "rev-parse", "--verify", "-q", "main")
		a := r.Attestation
		if a == nil || a.Use != event.AttestationSpent || a.Task != "task-7" || a.Ordinal != 3 || a.ApprovedBy != "ops@widget.test" || !a.SingleUse ||
			!strings.HasPrefix(a.Fingerprint, "SHA256:") || len(r.FloorList.Matched) != 1 || r.FloorList.Matched[0] != "git push" || r.FloorList.Version != 2 {
			t.Errorf("attestation %+v, floor list %+v", a, r.FloorList)
		}
		order(t, r, "command floor-list grant stale-revoke ensure attestation prove-floor apply-grant run kill set-aside collect revoke")
		again := o.exec(125, append([]string{"--attestation", "push.json"}, push...)...)
		o.turnedDown(again, event.RefusedAttestation, "attestation-spent")
		says(t, again.Receipt.Result.Refusal.Message, "spent by run "+r.Run)
		// Another attestation for the same ordinal of the task is no other consent.
		o.approve("second.json", append([]string{"--task", "task-7", "--ordinal", "3"}, push...)...)
		o.turnedDown(o.exec(125, append([]string{"--attestation", "second.json"}, push...)...), event.RefusedAttestation, "attestation-spent")
	})
}

// order demands the steps of a run.
func order(t *testing.T, r event.Receipt, want string) {
	t.Helper()
	var names []string
	for _, step := range r.Steps {
		names = append(names, step.Name)
	}
	if got := strings.Join(names, " "); got != want {
		t.Errorf("the steps were: %s", got)
	}
}

// TestVector30_EveryDifferenceIsRefusedBeforeAnythingExists: each with its own code.
func TestVector30_EveryDifferenceIsRefusedBeforeAnythingExists(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		o := newOffice(t, lab, who)
		o.host(0, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "../key2")
		const mine = "sbx-attestation-v1"
		project := lab.Project(who)
		for _, c := range []struct {
			code, namespace, key string
			change, flags        []string
		}{
			{"attestation-signature", "sbx-profile-v1", "../key", nil, nil},
			{"attestation-signer", mine, "../key2", nil, nil},
			{"attestation-approver", mine, "../key", []string{"ops@widget.test", "root@widget.test"}, nil},
			{"attestation-expired", mine, "../key", []string{`"approvedAt":"2`, `"approvedAt":"1`, `"expiresAt":"2`, `"expiresAt":"1`}, nil},
			{"attestation-not-yet-valid", mine, "../key", []string{`"approvedAt":"2`, `"approvedAt":"3`, `"expiresAt":"2`, `"expiresAt":"3`}, nil},
			{"attestation-malformed", mine, "../key", []string{`"ordinal":0`, `"ordinal":0,"ordinal":0`}, nil},
			{"attestation-malformed", mine, "../key", []string{`"sandbox"`, `"sndbox"`}, nil},
			{"attestation-malformed", mine, "../key", []string{`"expiresAt":"2`, `"expiresAt":"3`}, nil}, // for a thousand years
			{"attestation-rules", mine, "../key", []string{`["git push"]`, `["npm publish"]`}, nil},
			{"attestation-audience", mine, "../key", []string{`"audience":"`, `"audience":"0`}, nil},
			{"attestation-sandbox", mine, "../key", []string{`"sandbox":""`, `"sandbox":"kept"`}, nil},
			{"attestation-workdir", mine, "../key", []string{project, project + "/sub"}, nil},
			{"attestation-grant", mine, "../key", []string{`"grantDigest":"0`, `"grantDigest":"1`}, nil},
			{"attestation-grant", mine, "../key", nil, []string{"--profile", "cf-api"}},
			{"attestation-position", mine, "../key", nil, []string{"--position", "legacy"}},
			{"attestation-task", mine, "../key", nil, []string{"--task", "another"}},
			{"attestation-task", mine, "../key", nil, []string{"--ordinal", "1"}},
		} {
			o.forge("a.json", c.namespace, c.key, c.change...)
			o.turnedDown(o.exec(125, append(append([]string{"--attestation", "a.json"}, c.flags...), "--", "./git", "push")...), event.RefusedAttestation, c.code)
		}
		o.forge("a.json", mine, "../key")
		o.lab.Write(who, "sub/git", "#!/bin/sh\necho ran >> ../ran\n")
		o.turnedDown(o.exec(125, "--attestation", "a.json", "-C", "sub", "--", "./git", "push"), event.RefusedAttestation, "attestation-workdir")
		o.turnedDown(o.exec(125, "--attestation", "a.json", "--", "./git", "push", "--force"), event.RefusedAttestation, "attestation-command")
		o.turnedDown(o.exec(125, "--attestation", "missing.json", "--", "./git", "push"), event.RefusedAttestation, "attestation-unreadable")
		if n := o.runs(); n != 0 {
			t.Fatalf("it ran %d times", n)
		}
		// None of the refusals has spent it.
		o.exec(0, "--attestation", "a.json", "--", "./git", "push")
		if n := o.runs(); n != 1 {
			t.Fatalf("it ran %d times", n)
		}
	})
}

func TestVector31_WordsOfTwoStatementsNeedNoApproval(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := shell(t, lab, who, "git --version >/dev/null && echo push")
		printed(t, got, "push\n")
		var r event.Receipt
		if err := json.Unmarshal(got.File(t, "receipt.json"), &r); err != nil {
			t.Fatal(err)
		}
		if len(r.FloorList.Matched) != 0 || r.FloorList.Version != 2 || r.Attestation != nil {
			t.Errorf("%+v %+v", r.FloorList, r.Attestation)
		}
		for _, script := range []string{"git -C . push", "sudo git push", `bash -c "git push"`, "git \\\n push", "x=$(npm publish)"} {
			refused(t, shell(t, lab, who, script), "cannot be taken back", "next: sbx approve -- bash -c")
		}
	})
}

func TestVector32_AnAttestationThatIsNotNeededIsNotSpent(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		o := newOffice(t, lab, who)
		lab.Write(who, "package.json", `{"name": "widget", "version": "1.0.0", "scripts": {"test": "echo tested"}}`)
		o.approve("a.json")
		got := o.host(0, "sbx", "exec", "--attestation", "a.json", "--", "npm", "test")
		says(t, got.Stdout, "tested")
		says(t, got.Stderr, "the attestation was neither read nor spent")
		if a := o.exec(0, "--attestation", "a.json", "--", "true").Receipt.Attestation; a == nil || a.Use != event.AttestationUnneeded {
			t.Errorf("%+v", a)
		}
		o.exec(0, "--attestation", "a.json", "--", "./git", "push")
	})
}

// What is refused for want of a sandbox does not cost the person's consent.
func TestInfrastructureRefusalsDoNotSpendTheAttestation(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		o := newOffice(t, lab, who)
		o.approve("a.json")
		got := o.host(125, "sh", "-c", `exec "$0" "$@" < .`, sbxtest.Binary(t), "exec", "--attestation", "a.json", "--", "./git", "push")
		says(t, got.Stderr, "stdin")
		o.exec(0, "--attestation", "a.json", "--", "./git", "push")
	})
}

// Several processes have one attestation: one of them runs the command.
func TestOneOfManySpendsTheAttestation(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		o := newOffice(t, lab, who)
		o.approve("a.json")
		const many = 4
		var exits [many]int
		var output [many]*output
		var group sync.WaitGroup
		for i := range many {
			cmd := lab.Command(t, who, "sbx", "exec", "--attestation", "a.json", "--", "./git", "push")
			cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+o.state)
			output[i] = newOutput()
			cmd.Stdout, cmd.Stderr = output[i], output[i]
			lab.Start(t, cmd)
			group.Go(func() { exits[i] = sbxtest.Wait(t, cmd) })
		}
		group.Wait()
		ran := 0
		for i, exit := range exits {
			switch exit {
			case 0:
				ran++
			case 125:
				says(t, output[i].String(), "it was spent by run")
			default:
				t.Errorf("exit status %d: %s", exit, output[i])
			}
		}
		if ran != 1 || o.runs() != 1 {
			t.Errorf("%d say that they ran it, it ran %d times", ran, o.runs())
		}
	})
}

// TestBypass48_ASpendingOutlivesSIGKILL: killed between spending and running, the
// command did not run, and the attestation is spent all the same.
func TestBypass48_ASpendingOutlivesSIGKILL(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		o := newOffice(t, lab, who)
		o.approve("a.json")
		before := o.spent()
		cmd := o.lab.Command(t, who, sbxtest.BrokenBinary(t), "exec", "--attestation", "a.json", "--", "./git", "push")
		cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+o.state, "SBX_BREAK=fault:prove-floor:stop")
		o.lab.Start(t, cmd)
		standing(t, cmd)
		if o.spent() != before+1 {
			t.Fatal("it is not spent")
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = sbxtest.Wait(t, cmd)
		nobodyRuns(t)
		if n := o.runs(); n != 0 {
			t.Fatalf("it ran %d times", n)
		}
		o.turnedDown(o.exec(125, "--attestation", "a.json", "--", "./git", "push"), event.RefusedAttestation, "attestation-spent")
	})
}

// spent is how many attestations the store has as spent.
func (o *office) spent() int {
	o.Helper()
	got := o.host(0, "/usr/bin/python3", "-c", "import sqlite3, sys; print(sqlite3.connect(sys.argv[1], timeout=10).execute('SELECT count(*) FROM spent').fetchone()[0])", o.state+"/sbx/store.db")
	n := 0
	if _, err := fmt.Sscan(got.Stdout, &n); err != nil {
		o.Fatal(err)
	}
	return n
}

// A store in memory may forget; who accepts that says so, and the receipt does.
func TestAForgetfulStoreNeedsAcceptReplay(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		o := newOffice(t, lab, who)
		o.state = filepath.Join(lab.Home(who), "memory") // on the lab's tmpfs
		o.approve("a.json")
		got := o.exec(125, "--attestation", "a.json", "--", "./git", "push")
		o.turnedDown(got, event.RefusedAttestation, "attestation-replayable")
		says(t, got.Receipt.Result.Refusal.Next, "--accept-replay")
		r := o.exec(0, "--attestation", "a.json", "--accept-replay", "--", "./git", "push").Receipt
		if a := r.Attestation; a == nil || a.Use != event.AttestationSpent || a.SingleUse {
			t.Errorf("%+v", a)
		}
		o.turnedDown(o.exec(125, "--attestation", "a.json", "--accept-replay", "--", "./git", "push"), event.RefusedAttestation, "attestation-spent")
	})
}

// TestBypass63_TheSandboxCannotMakeAnAttestation: a command may write the attestation's
// file and its surroundings, which makes none.
func TestBypass63_TheSandboxCannotMakeAnAttestation(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		o := newOffice(t, lab, who)
		o.approve("a.json")
		o.host(0, "sbx", "exec", "--", "sh", "-c", `
			sed 's/"ordinal":0/"ordinal":1/' a.json > b.json
			cp a.json c.json; ssh-keygen -q -t ed25519 -N '' -f k; sed '/^-----BEGIN/,$d' a.json > d.json; ssh-keygen -q -Y sign -n sbx-attestation-v1 -f k d.json
			printf 'ops@widget.test %s\n' "$(cat k.pub)" > allowed_signers
			ln -s a.json e.json; mkfifo f.json; ln -s /dev/zero g.json; mkdir h.json; rm -f k k.pub`)
		for file, code := range map[string]string{
			"b.json": "attestation-signature", "d.json": "attestation-signer", "f.json": "attestation-unreadable", "g.json": "attestation-unreadable", "h.json": "attestation-unreadable",
		} {
			o.turnedDown(o.exec(125, "--attestation", file, "--", "./git", "push"), event.RefusedAttestation, code)
		}
		o.exec(0, "--attestation", "e.json", "--", "./git", "push") // a link to the good one
		o.turnedDown(o.exec(125, "--attestation", "c.json", "--", "./git", "push"), event.RefusedAttestation, "attestation-spent")
	})
}

// TestVector30_UnderAKey: the same call is answered from its receipt, whatever became of
// the attestation meanwhile; the same key with another command is refused.
func TestVector30_UnderAKey(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		o := newOffice(t, lab, who)
		o.host(0, "sh", "-c", "rm -f ran")
		o.approve("key.json", "--", "./git", "push")
		o.approve("other.json", "--", "./git", "push", "--force")
		call := []string{"--key", "deploy", "--attestation", "key.json", "--", "./git", "push"}
		first := o.exec(0, call...).Receipt
		again := o.exec(0, call...).Receipt
		if first.Deduped || !again.Deduped || again.Run != first.Run || o.runs() != 1 {
			t.Errorf("deduped %v and %v, it ran %d times", first.Deduped, again.Deduped, o.runs())
		}
		o.turnedDown(o.exec(125, "--key", "another", "--attestation", "key.json", "--", "./git", "push"), event.RefusedAttestation, "attestation-spent")
		o.turnedDown(o.exec(125, "--key", "deploy", "--attestation", "other.json", "--", "./git", "push", "--force"), event.RefusedRecipe, "payload-conflict")
		o.turnedDown(o.exec(125, "--key", "deploy", "--attestation", "other.json", "--", "./git", "push"), event.RefusedAttestation, "attestation-command")
		o.turnedDown(o.exec(125, "--key", "deploy", "--", "./git", "push"), event.RefusedApproval, "attestation-missing")
		if o.runs() != 1 {
			t.Errorf("it ran %d times", o.runs())
		}
	})
}
