package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// resourceRows take away what sbx writes to, while it stands still at a point. What it
// had room for, or in its memory, depends on the moment; that nothing ran without its
// attestation being spent, and that sbx says so and leaves nothing, does not.
func resourceRows() (rows []faultRow) {
	at := func(change faultRow, point string, steps ...string) {
		change.point, change.mode, change.exit, change.steps, change.loose = point, "stop", 125, steps, true
		rows = append(rows, change)
	}
	full := faultRow{before: smallDisk, during: fillDisk, after: emptyDisk, only: []string{"root"}, code: "*", unsure: true, key: "|begun|launched", ran: []int{0, 1}}
	at(full, "idempotency", "idempotency", "ensure", "receipt", "revoke")
	at(full, "ensure/ticket", "ensure", "attestation", "apply-grant", "receipt", "revoke")
	at(full, "attestation", "attestation", "apply-grant", "receipt", "revoke")
	at(full, "apply-grant", "apply-grant", "receipt", "revoke")
	full.key = "launched|finished"
	at(full, "run", "receipt", "revoke")
	at(full, "revoke/lease released", "revoke", "receipt")

	locked := faultRow{during: lockStore, code: "store-locked", ran: []int{0}, key: "|begun"}
	at(locked, "idempotency", "idempotency")
	at(locked, "ensure/ticket", "ensure")
	at(locked, "attestation", "attestation")
	locked.spent = true
	at(locked, "apply-grant", "apply-grant")
	locked.code, locked.key, locked.ran = "", "launched|finished", []int{1}
	at(locked, "revoke/lease released", "revoke")
	at(locked, "idempotency/settle", "idempotency")

	spoilt := faultRow{after: restoreStore, code: "store-*", storeless: true}
	opening := []string{"floor-list", "idempotency", "unspent", "stale-revoke", "ensure"}
	for _, size := range []int{1000, 150_000, 0} {
		spoilt.during = spoilStore(size)
		at(spoilt, "command", opening...)
	}
	at(faultRow{during: sealState, after: unsealState, only: []string{"root"}, code: "store-*", storeless: true}, "command", opening...)
	at(faultRow{during: closeActive, after: openActive, only: []string{"user"}, ran: []int{1}, spent: true, key: "finished"}, "run", "receipt")
	return rows
}

// inLab does something where the lab's mounts show.
func (r *faultRun) inLab(t *testing.T, do func() error) {
	t.Helper()
	r.lab.Within(t, do)
}

func smallDisk(t *testing.T, r *faultRun) {
	t.Helper()
	r.inLab(t, func() error {
		return errors.Join(os.MkdirAll(r.state, 0o700), unix.Mount("sbx-small", r.state, "tmpfs", 0, "size=1m,mode=0700"), os.Chown(r.state, r.lab.UID(r.who), -1))
	})
	t.Cleanup(func() { r.inLab(t, func() error { return unix.Unmount(r.state, unix.MNT_DETACH) }) })
}

func fillDisk(t *testing.T, r *faultRun) {
	t.Helper()
	r.standing(t)
	r.inLab(t, func() error {
		f, err := os.Create(filepath.Join(r.state, "fill"))
		if err != nil {
			return err
		}
		for page := make([]byte, 4096); err == nil; {
			_, err = f.Write(page)
		}
		if !errors.Is(err, unix.ENOSPC) {
			return err
		}
		return f.Close()
	})
	r.goOn(t)
}

func emptyDisk(t *testing.T, r *faultRun) {
	t.Helper()
	r.inLab(t, func() error { return os.Remove(filepath.Join(r.state, "fill")) })
}

// lockStore has another process hold the store for a little longer than sbx waits.
func lockStore(t *testing.T, r *faultRun) {
	t.Helper()
	r.standing(t)
	const script = `
import sqlite3, sys, time
c = sqlite3.connect(sys.argv[1], timeout=10, isolation_level=None)
c.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
time.sleep(7)
c.execute("ROLLBACK")`
	cmd := r.lab.Command(t, r.who, "/usr/bin/python3", "-c", script, filepath.Join(r.state, "sbx/store.db"))
	out := newOutput()
	cmd.Stdout, cmd.Stderr = out, out
	r.lab.Start(t, cmd)
	out.until(t, "locked\n")
	r.after = func(t *testing.T, _ *faultRun) { t.Helper(); sbxtest.Wait(t, cmd) }
	r.goOn(t)
}

// spoilStore puts so many bytes of something else into the store and its log.
func spoilStore(size int) func(*testing.T, *faultRun) {
	return func(t *testing.T, r *faultRun) {
		t.Helper()
		r.standing(t)
		r.inLab(t, func() error {
			var errs []error
			for _, name := range []string{"store.db", "store.db-wal"} {
				name = filepath.Join(r.state, "sbx", name)
				if _, err := os.Stat(name); err == nil {
					errs = append(errs, os.WriteFile(name, []byte(strings.Repeat("not a database ", size))[:size], 0o600))
				}
			}
			return errors.Join(errs...)
		})
		r.goOn(t)
	}
}

// restoreStore puts the store of the template in its place.
func restoreStore(t *testing.T, r *faultRun) {
	t.Helper()
	cmd := r.lab.Command(t, r.who, "sh", "-ec", `cd "$1"; rm -f sbx/store.db*; cp ../template/sbx/store.db* sbx/`, "restore", r.state)
	succeeded(t, r.lab.RunCommand(t, r.who, cmd))
}

func sealState(t *testing.T, r *faultRun) {
	t.Helper()
	r.standing(t)
	r.inLab(t, func() error {
		return errors.Join(unix.Mount(r.state, r.state, "", unix.MS_BIND, ""), unix.Mount("", r.state, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	})
	r.goOn(t)
}

func unsealState(t *testing.T, r *faultRun) {
	t.Helper()
	r.inLab(t, func() error { return unix.Unmount(r.state, unix.MNT_DETACH) })
}

// closeActive keeps the run from being taken out of the list of active ones.
func closeActive(t *testing.T, r *faultRun) {
	t.Helper()
	r.standing(t)
	r.inLab(t, func() error { return os.Chmod(filepath.Join(r.state, "sbx/active"), 0o500) })
	r.goOn(t)
}

func openActive(t *testing.T, r *faultRun) {
	t.Helper()
	r.inLab(t, func() error { return os.Chmod(filepath.Join(r.state, "sbx/active"), 0o700) })
}
