package e2e

import (
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// Bytes that are no UTF-8 tell calls and consumers apart like all others.
func TestCallsOfOtherBytesAreOtherCalls(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		shell(t, lab, who, `mkdir -p "$(printf 'd\376')" "$(printf 'd\377')"`)
		const show = `-- sh -c 'printf %s "$1" | od -An -tx1' sh`
		for name, calls := range map[string][2]string{
			"arguments":         {`--key a ` + show + ` $'f\xff'`, `--key a ` + show + ` $'f\xfe'`},
			"an argument":       {`--key b ` + show + ` $'f\xff'`, `--key b ` + show + ` $'f\xef\xbf\xbd'`},
			"working directory": {`--key c -C $'d\xff' -- pwd`, `--key c -C $'d\xfe' -- pwd`},
			"path":              {`--key d --rw $'d\xff' -- true`, `--key d --rw $'d\xfe' -- true`},
		} {
			t.Run(name, func(t *testing.T) {
				succeeded(t, outside(t, lab, who, `"$SBX" exec `+calls[0]))
				refused(t, outside(t, lab, who, `"$SBX" exec `+calls[1]), "was used for something else")
			})
		}
		succeeded(t, outside(t, lab, who, `"$SBX" exec --consumer $'c\xff' --key e -- true`))
		got := outside(t, lab, who, `"$SBX" keys list --consumer $'c\xfe'`)
		if succeeded(t, got); strings.Contains(got.Stdout, " e ") {
			t.Errorf("another consumer's key shows: %s", got.Stdout)
		}
		refused(t, outside(t, lab, who, `"$SBX" exec --key "" -- true`), `--key "" is no idempotency key`)
	})
}

// What failed on one caller's side is no part of the answer to another.
func TestAnAnswerIsTheCallsAndNotTheCallers(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		exits := func(script string, want int, says string) {
			t.Helper()
			got := outside(t, lab, who, `exec 2>&1; "$SBX" exec `+script+`; echo "is ${PIPESTATUS[0]}" >&2`)
			if !strings.Contains(got.Stdout, says) || !strings.HasSuffix(got.Stdout, "is "+strconv.Itoa(want)+"\n") {
				t.Errorf("%s: %q, want %q and status %d", script, got.Stdout, says, want)
			}
		}
		exits(`--key full -- echo hi >/dev/full`, 255, "no space left")
		exits(`--key full -- echo hi`, 0, "hi\n")
		exits(`--key full -- echo hi >/dev/full`, 255, "passing on the output of an earlier run")
		exits(`--key full -- echo hi`, 0, "hi\n")

		// The directory of the records goes while the command runs.
		call := []string{"--key", "moved", "--", "sh", "-c", "echo ready; until [ -e go ]; do sleep 0.02; done; exit 3"}
		outside(t, lab, who, "rm -rf go ../art ../gone")
		cmd := lab.Command(t, who, append([]string{"sbx", "exec", "--artifacts", "../art"}, call...)...)
		out := newOutput()
		cmd.Stdout, cmd.Stderr = out, out
		lab.Start(t, cmd)
		out.until(t, "ready\n")
		succeeded(t, outside(t, lab, who, "mv ../art ../gone; touch go"))
		if exit := sbxtest.Wait(t, cmd); exit != 125 {
			t.Errorf("the first caller: exit status %d, %s%s", exit, out, lab.Run(t, who, "ls", "-la", "..").Stdout)
		}
		_, r := keyed(t, lab, who, 3, call...)
		if !r.Deduped || r.Result.Refusal != nil || !r.Result.Ended || r.Result.Status != 3 {
			t.Errorf("the next caller: %+v", r.Result)
		}
	})
}

// A reader that goes away ends an answer as it would end the command.
func TestAnAnswerWithoutAReader(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, run(t, lab, who, "--key", "much", "--", "seq", "1000000"))
		got := outside(t, lab, who, `"$SBX" exec --key much -- seq 1000000 | head -n 1; echo ${PIPESTATUS[0]}`)
		printed(t, got, "1\n141\n")
		// One that follows does not wait for the end either, and the run goes on.
		call := `"$SBX" exec --key follow -- sh -c 'seq 100000; until [ -e go ]; do sleep 0.02; done; echo over'`
		shell(t, lab, who, "rm -f go")
		got = outside(t, lab, who, `(`+call+` >first) & until grep -q 100000 first 2>/dev/null; do sleep 0.02; done
			`+call+` | head -n 1; echo ${PIPESTATUS[0]}; touch go; wait; tail -n 1 first`)
		printed(t, got, "1\n141\nover\n")
	})
}

// What of the output was over its bound is said once.
func TestACutAnswerSaysSoOnce(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		shell(t, lab, who, "rm -f go first")
		call := `"$SBX" exec --max-output 1KiB --key cut -- sh -c 'head -c 3000 /dev/zero | tr "\0" x; echo; until [ -e go ]; do sleep 0.02; done'`
		got := outside(t, lab, who, `(`+call+` >first 2>/dev/null) & until [ -s first ]; do sleep 0.02; done
			(sleep 0.5; touch go) & `+call+` >second 2>said; wait; wc -c <second; grep -c "not kept" said
			`+call+` 2>said | wc -c; grep -c "not kept" said`)
		printed(t, got, "1024\n1\n1024\n1\n")
	})
}

// Denials are a part of the answer.
func TestAnAnswerHasItsDenials(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		call := []string{"--fail-on-denial", "--key", "denied", "--", "sh", "-c", "curl -s https://unlisted.test/a; true"}
		for _, what := range []string{"first", "answered"} {
			shell(t, lab, who, "rm -f outcome.json")
			got := run(t, lab, who, append([]string{"--outcome", "outcome.json"}, call...)...)
			var outcome struct {
				Exit    int
				Denials []event.Denial
			}
			if err := json.Unmarshal([]byte(contents(t, filepath.Join(lab.Project(who), "outcome.json"))), &outcome); err != nil {
				t.Fatal(err)
			}
			if got.Exit != 123 || outcome.Exit != 123 || len(outcome.Denials) != 1 || outcome.Denials[0].Host != "unlisted.test" {
				t.Errorf("%s: exit status %d, outcome %+v", what, got.Exit, outcome)
			}
			says(t, got.Stderr, "unlisted.test")
		}
	})
}

// A call that ended and was not noted is listed as what it is.
func TestKeysKnowAReceiptThatWasNotNoted(t *testing.T) {
	lab := sbxtest.NewLab(t)
	broken := sbxtest.BrokenBinary(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		cmd := lab.Command(t, who, broken, "exec", "--key", "unnoted", "--", "sh", "-c", "exit 4")
		cmd.Env = append(cmd.Env, "SBX_BREAK=fault:idempotency/settle:kill")
		if got := lab.RunCommand(t, who, cmd); got.Exit != 137 {
			t.Fatalf("it was not killed: %+v", got)
		}
		says(t, lab.Run(t, who, "sbx", "keys", "list").Stdout, "unnoted", "finished")
		got := lab.Run(t, who, "sbx", "keys", "forget", "unnoted")
		says(t, got.Stderr, "its command had ended with status 4")
	})
}
