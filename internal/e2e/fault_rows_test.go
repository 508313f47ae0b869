package e2e

import (
	"slices"
	"strings"
	"syscall"
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
	{"command", unclaimed},
	{"floor-list", unclaimed},
	{"grant", unclaimed},
	{"idempotency", unclaimed},
	{"unspent", claimed},
	{"stale-revoke", claimed},
	{"ensure", claimed},
	{"ensure/host", claimed},
	{"ensure/ticket", claimed},
	{"ensure/position", ticketed},
	{"ensure/records", ticketed},
	{"ensure/rollout", recorded},
	{"ensure/limits", recorded},
	{"ensure/plan", recorded},
	{"ensure/spec", recorded},
	{"ensure/network", recorded},
	{"ensure/listen", recorded},
	{"attestation", recorded},
	{"prove-floor", spent},
	{"apply-grant", spent},
	{"apply-grant/launched", launched},
	{"run", launched},
}

// passRows fail each point in each way.
func passRows() (rows []faultRow) {
	for _, p := range passPoints {
		step, _, _ := strings.Cut(p.point, "/")
		r := faultRow{point: p.point, exit: 125, steps: []string{step}, spent: p.phase >= spent, ran: []int{0}, recorded: p.phase >= recorded}
		if p.point == "run" {
			r.hold, r.ran = true, []int{0, 1} // it has begun, and may come to its first line
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

// signalRows end a start that hangs by a signal: it has its grace, not its whole limit.
func signalRows() (rows []faultRow) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		for _, point := range []string{"ensure/plan", "attestation", "prove-floor"} {
			r := faultRow{point: point, mode: "wait", exit: 125, code: "step-hangs", untaken: true, unverified: []string{"revoke"}, ran: []int{0}}
			step, _, _ := strings.Cut(point, "/")
			r.steps, r.key, r.spent, r.swept, r.interrupted, r.recorded = []string{step}, "begun", point == "prove-floor", true, true, true
			r.during = func(t *testing.T, r *faultRun) {
				t.Helper()
				r.active(t)
				if err := r.cmd.Process.Signal(s); err != nil {
					t.Error(err)
				}
			}
			rows = append(rows, r)
		}
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
		r.receipted = step == "idempotency" || point == "idempotency/settle"
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

// goroutineRows have a goroutine of the supervisor panic: the run ends as after any error.
func goroutineRows() []faultRow {
	row := func(point string, steps ...string) faultRow {
		return faultRow{point: point, mode: "panic", exit: 125, code: "panic", steps: steps, recorded: true, hold: true, ran: []int{0}}
	}
	early := row("go/store", "command", "floor-list", "grant", "idempotency", "unspent", "stale-revoke", "ensure")
	early.loose = true
	receive := row("go/receive", "ensure", "attestation", "prove-floor")
	receive.unsure = true
	serve := row("go/serve", "ensure", "attestation", "prove-floor")
	serve.unsure = true
	prepare := row("go/prepare", "apply-grant", "run")
	prepare.spent, prepare.key, prepare.ran = true, "launched", []int{0, 1}
	output := row("go/output", "apply-grant", "run")
	output.spent, output.key, output.ran = true, "launched", []int{1}
	packets := row("go/packets", "apply-grant", "run")
	packets.key, packets.ran, packets.script = "launched", []int{1}, "echo ran >>ran-$ROW; echo x >/dev/udp/192.0.2.1/9; sleep 777"
	request := row("go/request", "apply-grant", "run")
	request.key, request.ran, request.script = "launched", []int{1}, "echo ran >>ran-$ROW; curl -s http://a.test/; sleep 777"
	// What cannot be recorded is refused, and the command sees to it.
	unrecorded := faultRow{
		point: "go/request", mode: "error", key: "finished", ran: []int{1}, recorded: true,
		script: `echo ran >>ran-$ROW; [ "$(curl -s -o /dev/null -w '%{http_code}' http://a.test/)" != 200 ]`,
	}
	return []faultRow{early, receive, serve, prepare, output, packets, request, unrecorded}
}

// runnerRows kill the half that holds the namespaces, or have it fail by itself.
func runnerRows() (rows []faultRow) {
	killed := faultRow{mode: "runner", exit: 125, recorded: true, ran: []int{0}}
	add := func(r faultRow, point string, steps ...string) {
		r.point, r.steps = point, steps
		rows = append(rows, r)
	}
	add(killed, "ensure/ticket", "ensure")
	add(killed, "ensure/listen", "ensure")
	// The proof may be on its way already, and the last word still be taken.
	killed.spent, killed.key = true, "|launched"
	add(killed, "attestation", "prove-floor", "apply-grant", "run")
	add(killed, "prove-floor", "prove-floor", "apply-grant", "run")
	add(killed, "apply-grant", "apply-grant", "run")
	killed.key = "launched"
	killed.ran, killed.hold = []int{0, 1}, true
	add(killed, "run", "run")
	over := faultRow{mode: "runner", recorded: true, ran: []int{1}, spent: true, key: "finished"}
	add(over, "kill")

	for _, mode := range []string{"error", "panic", "hang", "kill"} {
		own := faultRow{mode: mode, exit: 125, recorded: true, ran: []int{0}}
		for _, point := range []string{"runner/prepare", "runner/network", "runner/mounts", "runner/started"} {
			add(own, point, "ensure")
		}
		own.spent, own.key = true, "launched"
		if mode == "hang" { // the command never starts, and is given its time
			own.flags, own.exit, own.key = []string{"--timeout", "1s"}, 124, "finished"
			add(own, "runner/obey")
		} else {
			add(own, "runner/obey", "run")
		}
	}
	return rows
}

// holdTable goes through a part of the table, as both users.
func holdTable(t *testing.T, rows ...[]faultRow) {
	t.Helper()
	l := newFaultLab(t, slices.Concat(rows...))
	l.hold(40)
	t.Logf("%d rows, %d with both users", len(slices.Concat(rows...)), len(l.runs))
}

// hanging divides rows into those that hang and the others.
func hanging(rows []faultRow) (hang, others []faultRow) {
	for _, r := range rows {
		if r.mode == "hang" {
			hang = append(hang, r)
		} else {
			others = append(others, r)
		}
	}
	return hang, others
}

// TestVector33_TheRevokeRunsWhateverFails: kill, and each part of what comes after it.
func TestVector33_TheRevokeRunsWhateverFails(t *testing.T) {
	_, teardown := hanging(teardownRows())
	_, closing := hanging(closingRows())
	holdTable(t, teardown, closing)
}

// TestVector34_WhateverFailsIsKilledThenRevoked: each step on the way to the command and
// the run itself, each of sbx's own readers, and the runner.
func TestVector34_WhateverFailsIsKilledThenRevoked(t *testing.T) {
	holdTable(t, passRows(), goroutineRows(), runnerRows(), signalRows())
}

// TestBypass78b_TheTeardownIsBounded: whatever hangs in it is given up, and the rest is
// taken back all the same.
func TestBypass78b_TheTeardownIsBounded(t *testing.T) {
	teardown, _ := hanging(teardownRows())
	closing, _ := hanging(closingRows())
	holdTable(t, teardown, closing)
}

// What sbx writes to is full, locked, spoilt or sealed at some moment of the run.
func TestFaultsOfDiskAndStore(t *testing.T) { holdTable(t, resourceRows()) }
