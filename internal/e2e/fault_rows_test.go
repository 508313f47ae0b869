package e2e

import (
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// phase is how far a run had come.
type phase int

const (
	unclaimed phase = iota // before the key was taken up
	claimed
	ticketed
	recorded
	spent
	launched // the command may have begun
)

// passPoints are where the way to the command can fail, in their order.
var passPoints = []struct {
	point string
	phase phase
}{
	{"command", unclaimed}, {"floor-list", unclaimed}, {"grant", unclaimed}, {"idempotency", unclaimed},
	{"unspent", claimed}, {"stale-revoke", claimed}, {"ensure", claimed}, {"ensure/host", claimed}, {"ensure/ticket", claimed},
	{"ensure/position", ticketed}, {"ensure/records", ticketed},
	{"ensure/rollout", recorded}, {"ensure/limits", recorded}, {"ensure/plan", recorded}, {"ensure/spec", recorded},
	{"ensure/network", recorded}, {"ensure/listen", recorded}, {"attestation", recorded},
	{"prove-floor", spent}, {"apply-grant", spent}, {"apply-grant/launched", launched}, {"run", launched},
}

// passRows fail each point in each way.
func passRows() (rows []faultRow) {
	for _, p := range passPoints {
		step, _, _ := strings.Cut(p.point, "/")
		r := faultRow{point: p.point, exit: 125, steps: []string{step}, spent: p.phase >= spent, ran: []int{0}, recorded: p.phase >= recorded}
		if p.point == "run" {
			r.ran = []int{0, 1} // it has begun, and may come to its first line
		}
		if p.phase >= launched {
			r.key = "launched"
		}
		r.mode = "error"
		rows = append(rows, r)
		r.mode, r.code = "panic", "panic"
		rows = append(rows, r)

		// From here on sbx itself is gone, with whatever it had begun.
		if p.phase >= claimed && p.phase < launched {
			r.key = "begun"
		}
		r.swept, r.interrupted = p.phase >= ticketed, p.phase >= recorded
		r.mode, r.code, r.untaken, r.unverified = "hang", "step-hangs", true, []string{"revoke"}
		if p.point == "run" {
			r.during, r.exit, r.silent = killedByForce, 137, true // no limit: a command may take its time
		}
		rows = append(rows, r)
		r.mode, r.exit, r.silent, r.during = "kill", 137, true, nil
		rows = append(rows, r)
	}
	return rows
}

// killedByForce ends a run that does not listen.
func killedByForce(t *testing.T, r *faultRun) {
	t.Helper()
	r.stderr.until(t, "said\n")
	cmd := r.lab.Command(t, r.who, "sh", "-c", sbxtest.Binary(t)+` kill --force "$(ls "$XDG_STATE_HOME"/sbx/active)"`)
	cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+r.state)
	succeeded(t, r.lab.RunCommand(t, r.who, cmd))
}

// teardownRows fail what comes when the command is over.
func teardownRows() (rows []faultRow) {
	for point, unverified := range map[string][]string{
		"kill":                       {"pid namespace empty", "kill"},
		"set-aside":                  {"set-aside"},
		"collect":                    {"collect"},
		"revoke/policy is the floor": {"policy is the floor"},
		"revoke/listeners closed":    {"listeners closed"},
		"revoke/certificate authority's key released": {"certificate authority's key released"},
		"revoke/lease released":                       {"lease released"},
		"revoke/no mounts left":                       {"no mounts left"},
	} {
		r := faultRow{point: point, exit: 125, steps: []string{"revoke"}, unverified: unverified, spent: true, key: "finished", recorded: true, ran: []int{1}}
		r.swept = point == "revoke/lease released" // its row is left
		for _, r.mode = range []string{"error", "panic", "hang"} {
			rows = append(rows, r)
		}
		r.mode, r.exit, r.silent, r.key, r.swept, r.interrupted = "kill", 137, true, "launched", true, true
		rows = append(rows, r)
	}
	return rows
}

// closingRows fail the receipt, and the noting of the call.
func closingRows() []faultRow {
	done := faultRow{exit: 125, spent: true, recorded: true, ran: []int{1}}
	row := func(point, mode, code, step, key string, interrupted bool) faultRow {
		r := done
		r.point, r.mode, r.code, r.steps, r.key, r.swept, r.interrupted = point, mode, code, []string{step}, key, interrupted, interrupted
		switch mode {
		case "kill":
			r.exit, r.silent = 137, true
		case "hang":
			r.unverified = []string{step}
		}
		return r
	}
	return []faultRow{
		row("receipt", "error", "", "receipt", "finished", true),
		row("receipt", "panic", "panic", "receipt", "finished", true),
		row("receipt", "hang", "step-hangs", "receipt", "launched", true),
		row("receipt", "kill", "", "", "launched", true),
		row("idempotency/settle", "error", "", "idempotency", "launched", false),
		row("idempotency/settle", "panic", "panic", "idempotency", "launched", false),
		row("idempotency/settle", "hang", "step-hangs", "idempotency", "launched", false),
		row("idempotency/settle", "kill", "", "", "launched", false),
	}
}

func TestFaultTable(t *testing.T) {
	l := newFaultLab(t, append(append(passRows(), teardownRows()...), closingRows()...))
	l.hold(40)
	t.Logf("%d rows", len(l.runs))
}
