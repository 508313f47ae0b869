package artifact

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fractalboxdev/sbx/internal/event"
)

// supervisorEnv makes the test binary a supervisor that opens a run and waits
// to be killed.
const supervisorEnv = "ARTIFACT_TEST_STATE"

func TestMain(m *testing.M) {
	if dir := os.Getenv(supervisorEnv); dir != "" {
		supervise(dir)
	}
	os.Exit(m.Run())
}

func supervise(dir string) {
	run, err := Open(Options{StateDir: dir, RunID: "dead-1", Started: event.Receipt{
		Command: []string{"npm", "ci"}, Profiles: []string{"js-install"}, StartedAt: time.Unix(100, 0).UTC(),
	}})
	if err != nil {
		panic(err)
	}
	scratch, err := run.Scratch()
	if err != nil {
		panic(err)
	}
	locked := filepath.Join(scratch, "mod", "ro")
	if err := errors.Join(os.MkdirAll(locked, 0o700), os.WriteFile(filepath.Join(locked, "f"), nil, 0o400), os.Chmod(locked, 0)); err != nil {
		panic(err)
	}
	for range 3 {
		if err := run.Record(deny("evil.test", "/x")); err != nil {
			panic(err)
		}
	}
	run.Complete(event.Completion{ID: 9, Error: "gone"})
	fmt.Println("ready")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		panic(err)
	}
	select {}
}

func deny(host, path string) event.Request {
	return event.Request{
		Time: time.Unix(200, 0).UTC(), Source: event.SourceGate, Protocol: "https", Host: host, Port: 443,
		Method: "GET", Path: path, Verdict: "deny", Code: "host-not-granted", Reason: "host is not granted",
	}
}

func stateDir(t *testing.T) string {
	return filepath.Join(t.TempDir(), "state")
}

func open(t *testing.T, opt Options) *Run {
	t.Helper()
	if opt.RunID == "" {
		opt.RunID = "r1"
	}
	run, err := Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(run.Close)
	return run
}

func lines[T any](t *testing.T, path string) []T {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var rows []T
	for s := bufio.NewScanner(f); s.Scan(); {
		var row T
		if err := json.Unmarshal(s.Bytes(), &row); err != nil {
			t.Fatalf("%s: %v in %q", path, err, s.Text())
		}
		rows = append(rows, row)
	}
	return rows
}

func TestRecordsAreOnDiskBeforeRecordReturns(t *testing.T) {
	var live []event.Denial
	run := open(t, Options{StateDir: stateDir(t), OnDenial: func(d event.Denial) { live = append(live, d) }})
	for i, want := range []int{1, 1, 2} {
		host := []string{"a.test", "a.test", "b.test"}[i]
		if err := run.Record(deny(host, "/x?token=s3cret")); err != nil {
			t.Fatal(err)
		}
		if got := len(lines[event.Request](t, filepath.Join(run.Dir(), RequestsFile))); got != i+1 {
			t.Errorf("after %d: %d rows on disk", i+1, got)
		}
		if got := len(lines[event.Denial](t, filepath.Join(run.Dir(), DenialsFile))); got != want || len(live) != want {
			t.Errorf("after %d: %d denials on disk, %d announced, want %d", i+1, got, len(live), want)
		}
	}
	if err := run.Record(event.Request{Host: "ok.test", Verdict: "allow", Code: "allowed"}); err != nil {
		t.Fatal(err)
	}
	if len(live) != 2 {
		t.Errorf("an allowed request was announced: %+v", live)
	}
	row := lines[event.Request](t, filepath.Join(run.Dir(), RequestsFile))[0]
	if row.Path != "/x" || row.Run != "r1" {
		t.Errorf("row is not cleaned: %+v", row)
	}
}

func TestFinishFoldsAndWritesTheReceipt(t *testing.T) {
	dir := stateDir(t)
	run := open(t, Options{StateDir: dir})
	scratch, err := run.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := run.Record(deny("evil.test", "/x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := run.Finish(event.Receipt{Command: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	rows := lines[event.Denial](t, filepath.Join(run.Dir(), DenialsFile))
	if len(rows) != 1 || rows[0].Count != 3 {
		t.Errorf("folded denials: %+v", rows)
	}
	receipt := readReceipt(t, run.Dir())
	if receipt.Run != "r1" || receipt.Directory != run.Dir() || receipt.Result.Denials != 3 {
		t.Errorf("receipt: %+v", receipt)
	}
	for _, gone := range []string{scratch, filepath.Join(dir, activeDir, "r1"), filepath.Join(run.Dir(), ReceiptFile+".new")} {
		if _, err := os.Lstat(gone); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there (%v)", gone, err)
		}
	}
	if err := run.Record(deny("late.test", "/")); !errors.Is(err, ErrFinished) {
		t.Errorf("a record after the receipt: %v", err)
	}
	if _, err := run.Output().Write([]byte("late")); !errors.Is(err, ErrFinished) {
		t.Errorf("output after the receipt: %v", err)
	}
	if err := run.Finish(event.Receipt{}); !errors.Is(err, ErrFinished) {
		t.Errorf("a second receipt: %v", err)
	}
}

func readReceipt(t *testing.T, dir string) event.Receipt {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, ReceiptFile))
	if err != nil {
		t.Fatal(err)
	}
	var receipt event.Receipt
	if err := json.Unmarshal(text, &receipt); err != nil {
		t.Fatal(err)
	}
	return receipt
}

func TestEverythingIsPrivate(t *testing.T) {
	dir := stateDir(t)
	run := open(t, Options{StateDir: dir})
	if err := run.Finish(event.Receipt{}); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		want := fs.FileMode(0o600)
		if e.IsDir() {
			want = 0o700
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %#o, want %#o", path, info.Mode().Perm(), want)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRowBoundRefusesAndIsReportedOnce(t *testing.T) {
	announced := 0
	run := open(t, Options{StateDir: stateDir(t), MaxRows: 2, OnDenial: func(event.Denial) { announced++ }})
	allow := event.Request{Host: "ok.test", Method: "GET", Path: "/", Verdict: "allow", Code: "allowed"}
	for range 2 {
		if err := run.Record(allow); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		var bound *BoundError
		if err := run.Record(allow); !errors.As(err, &bound) || bound.Code() != "bound-rows" {
			t.Fatalf("past the bound: %v", err)
		}
	}
	if got := len(lines[event.Request](t, filepath.Join(run.Dir(), RequestsFile))); got != 2 {
		t.Errorf("%d rows on disk, want 2", got)
	}
	rows := run.Denials()
	if announced != 1 || len(rows) != 1 || rows[0].Count != 3 || rows[0].Code != "bound-rows" || run.Denied() != 3 {
		t.Errorf("announced %d, rows %+v", announced, rows)
	}
}

func TestFullDiskRefusesAndLeavesNoHalfLine(t *testing.T) {
	run := open(t, Options{StateDir: stateDir(t)})
	if err := run.Record(deny("a.test", "/")); err != nil {
		t.Fatal(err)
	}
	size := run.requests.size
	limitFileSize(t, uint64(size)+10)
	err := run.Record(deny("b.test", "/"))
	restoreFileSize(t)
	if !errors.Is(err, syscall.EFBIG) {
		t.Fatalf("recording on a full disk: %v, want EFBIG", err)
	}
	if err := run.Record(deny("c.test", "/")); err != nil {
		t.Fatal(err)
	}
	rows := lines[event.Request](t, filepath.Join(run.Dir(), RequestsFile))
	if len(rows) != 2 || rows[1].Host != "c.test" {
		t.Errorf("rows: %+v", rows)
	}
	if got := run.Denials()[1]; got.Host != "b.test" || got.Code != "record-failed" {
		t.Errorf("the refused request in the report: %+v", got)
	}
}

var fileSize syscall.Rlimit

func limitFileSize(t *testing.T, bytes uint64) {
	t.Helper()
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &fileSize); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: bytes, Max: fileSize.Max}); err != nil {
		t.Fatal(err)
	}
}

func restoreFileSize(t *testing.T) {
	t.Helper()
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &fileSize); err != nil {
		t.Fatal(err)
	}
}

func TestOutputBoundIsNotSilent(t *testing.T) {
	run := open(t, Options{StateDir: stateDir(t), MaxOutput: 5})
	out := run.Output()
	if n, err := out.Write([]byte("abc")); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	for i := range 2 { // the command may go on
		if n, err := out.Write([]byte("def")); n != 3 || err != nil {
			t.Errorf("write %d past the bound: %d, %v", i, n, err)
		}
	}
	text, err := os.ReadFile(filepath.Join(run.Dir(), OutputFile))
	if err != nil {
		t.Fatal(err)
	}
	if want := "abcde\nsbx: the command's output is over 5 bytes, the bound of output.log; the rest is not kept\n"; string(text) != want {
		t.Errorf("output.log: %q", text)
	}
}

func TestConcurrentRecordsAreWholeLines(t *testing.T) {
	run := open(t, Options{StateDir: stateDir(t)})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 50 {
				if err := run.Record(deny(fmt.Sprintf("h%d.test", w), fmt.Sprintf("/%d", i))); err != nil {
					t.Error(err)
				}
				run.Complete(event.Completion{ID: uint64(i)})
			}
		})
	}
	wg.Wait()
	if got := len(lines[event.Request](t, filepath.Join(run.Dir(), RequestsFile))); got != 800 {
		t.Errorf("%d lines, want 800", got)
	}
	if got := len(lines[event.Denial](t, filepath.Join(run.Dir(), DenialsFile))); got != 400 {
		t.Errorf("%d denials, want 400", got)
	}
}

func TestUnsafeStateDirectoriesAreRefused(t *testing.T) {
	cases := map[string]func(t *testing.T, dir string){
		"readable by others": func(t *testing.T, dir string) { chmod(t, dir, 0o755) },
		"a part is writable": func(t *testing.T, dir string) {
			if err := os.MkdirAll(filepath.Join(dir, runsDir), 0o700); err != nil {
				t.Fatal(err)
			}
			chmod(t, filepath.Join(dir, runsDir), 0o777)
		},
		"a part is a link": func(t *testing.T, dir string) {
			if err := errors.Join(os.MkdirAll(dir, 0o700), os.Symlink("/tmp", filepath.Join(dir, activeDir))); err != nil {
				t.Fatal(err)
			}
		},
	}
	if os.Getuid() == 0 {
		cases["foreign"] = func(t *testing.T, dir string) {
			if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chown(dir, 12345, 12345)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, prepare := range cases {
		t.Run(name, func(t *testing.T) {
			dir := stateDir(t)
			prepare(t, dir)
			if _, err := Open(Options{StateDir: dir, RunID: "r1"}); !errors.Is(err, ErrForeign) {
				t.Errorf("Open: %v", err)
			}
			if _, err := Sweep(dir, nil); !errors.Is(err, ErrForeign) {
				t.Errorf("Sweep: %v", err)
			}
		})
	}
}

func chmod(t *testing.T, dir string, mode fs.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, mode)); err != nil {
		t.Fatal(err)
	}
}

func TestRunIDs(t *testing.T) {
	for _, bad := range []string{"", "..", "a/b", "A", "-a", "a-", "a.b", strings.Repeat("a", 65), "a\n"} {
		if ValidID(bad) {
			t.Errorf("%q is accepted", bad)
		}
		if _, err := Open(Options{StateDir: stateDir(t), RunID: bad}); err == nil {
			t.Errorf("a run %q was opened", bad)
		}
	}
	if id := NewID(time.Unix(0, 0)); !ValidID(id) || !strings.HasPrefix(id, "19700101t000000000-") {
		t.Errorf("new id %q", id)
	}
	dir := stateDir(t)
	open(t, Options{StateDir: dir, RunID: "r1"})
	if _, err := Open(Options{StateDir: dir, RunID: "r1"}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the same run twice: %v", err)
	}
}

func TestDefaultStateDir(t *testing.T) {
	cases := []struct {
		xdg, home string
		ofSystem  bool
		want      string
	}{
		{"/x", "/home/u", false, "/x/sbx"},
		{"/x", "/root", true, "/x/sbx"},
		{"", "/root", true, "/var/lib/sbx"},
		{"rel", "/home/u", false, "/home/u/.local/state/sbx"},
		{"", "", false, ""},
	}
	for _, c := range cases {
		env := map[string]string{"XDG_STATE_HOME": c.xdg, "HOME": c.home}
		got, err := defaultStateDir(func(k string) string { return env[k] }, c.ofSystem)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}

func TestCase65_SweepWritesTheReceiptOfAKilledSupervisor(t *testing.T) {
	dir := stateDir(t)
	child := startSupervisor(t, dir)
	if swept, err := Sweep(dir, nil); len(swept) != 0 || err != nil {
		t.Fatalf("a living run was swept: %+v, %v", swept, err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // it was killed
	swept, err := Sweep(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []event.Swept{{
		Run: "dead-1", StartedAt: time.Unix(100, 0).UTC(),
		Removed: []string{filepath.Join(dir, scratchDir, "dead-1")},
		Detail:  "its supervisor died; the receipt says interrupted",
	}}
	if diff := cmp.Diff(want, swept); diff != "" {
		t.Errorf("swept (-want +got):\n%s", diff)
	}
	runDir := filepath.Join(dir, runsDir, "dead-1")
	receipt := readReceipt(t, runDir)
	if !receipt.Interrupted || receipt.Result.Exit != -1 || receipt.Result.Denials != 3 || receipt.Command[0] != "npm" {
		t.Errorf("receipt: %+v", receipt)
	}
	if rows := lines[event.Denial](t, filepath.Join(runDir, DenialsFile)); len(rows) != 1 || rows[0].Count != 3 {
		t.Errorf("denials: %+v", rows)
	}
	if _, err := os.Lstat(filepath.Join(dir, scratchDir, "dead-1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("scratch is still there: %v", err)
	}
	if again, err := Sweep(dir, nil); len(again) != 0 || err != nil {
		t.Errorf("swept twice: %+v, %v", again, err)
	}
}

func startSupervisor(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), supervisorEnv+"="+dir)
	child.Stderr = os.Stderr
	if _, err := child.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill() // most tests have done so
		_ = child.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("supervisor said %q, %v", line, err)
	}
	return child
}

func TestSweepSurvivesDamagedState(t *testing.T) {
	dir := stateDir(t)
	open(t, Options{StateDir: dir, RunID: "alive"})
	for name, text := range map[string]string{"half": `{"schema":1,"comm`, "no-dir": "{}", "UPPER": "", "link": ""} {
		path := filepath.Join(dir, activeDir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if name == "no-dir" || name == "UPPER" {
			continue
		}
		if err := os.Mkdir(filepath.Join(dir, runsDir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "keep")
	if err := os.WriteFile(outside, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(dir, scratchDir, "link")); err != nil {
		t.Fatal(err)
	}
	requests := filepath.Join(dir, runsDir, "half", RequestsFile)
	if err := os.WriteFile(requests, []byte(`{"host":"a.test","verdict":"deny"}`+"\n"+`{"host":"b.te`), 0o600); err != nil {
		t.Fatal(err)
	}
	swept, err := Sweep(dir, nil)
	if err != nil || len(swept) != 3 {
		t.Errorf("swept %+v, %v", swept, err)
	}
	if r := readReceipt(t, filepath.Join(dir, runsDir, "half")); r.Run != "half" || !r.Interrupted || r.Result.Denials != 1 {
		t.Errorf("receipt of the half-written run: %+v", r)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("the sweep went through a link: %v", err)
	}
}

func TestSweepOfNoStateDirectory(t *testing.T) {
	if swept, err := Sweep(filepath.Join(t.TempDir(), "none"), nil); len(swept) != 0 || err != nil {
		t.Errorf("%+v, %v", swept, err)
	}
}

func TestBypass49_CopyFollowsNoLinkAndHoldsTheDirectory(t *testing.T) {
	run := open(t, Options{StateDir: stateDir(t)})
	base := t.TempDir()
	out := filepath.Join(base, "a", "out")
	target, err := HoldTarget(out)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	secret := filepath.Join(base, "secret")
	if err := os.WriteFile(secret, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	// What a command would do to lead the copy elsewhere.
	held := filepath.Join(base, "a", "held")
	err = errors.Join(
		os.Symlink(secret, filepath.Join(out, ReceiptFile)),
		os.Rename(out, held),
		os.Mkdir(filepath.Join(base, "elsewhere"), 0o700),
		os.Symlink(filepath.Join(base, "elsewhere"), out),
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Finish(event.Receipt{}); err != nil {
		t.Fatal(err)
	}
	if err := run.CopyTo(target); err == nil {
		t.Error("the path leads elsewhere now, and nobody was told")
	}
	if text, _ := os.ReadFile(secret); string(text) != "precious" {
		t.Errorf("the copy wrote through a link: %q", text)
	}
	if entries, _ := os.ReadDir(filepath.Join(base, "elsewhere")); len(entries) != 0 {
		t.Errorf("the copy followed the swapped path: %v", entries)
	}
	entries, err := os.ReadDir(held)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{DenialsFile, OutputFile, ReceiptFile, RequestsFile}, names); diff != "" || err != nil {
		t.Errorf("copied (-want +got):\n%s %v", diff, err)
	}
	readReceipt(t, held)
}

func TestWriteReplacesWhatTheCommandPlanted(t *testing.T) {
	base := t.TempDir()
	target, err := HoldTarget(base)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := errors.Join(os.WriteFile(secret, []byte("precious"), 0o600), os.Symlink(secret, filepath.Join(base, "outcome.json"))); err != nil {
		t.Fatal(err)
	}
	if has, err := target.Has("outcome.json"); err != nil || !has {
		t.Errorf("the planted link is there: %v %v", has, err)
	}
	if err := target.Write("outcome.json", []byte("true")); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(base, "outcome.json")); err != nil || string(text) != "true" {
		t.Errorf("got %q, %v", text, err)
	}
	if text, _ := os.ReadFile(secret); string(text) != "precious" {
		t.Errorf("written through the link: %q", text)
	}
}

func TestHoldTargetRefusesLinks(t *testing.T) {
	base := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(base, "real"), 0o700), os.Symlink("real", filepath.Join(base, "link")),
		os.WriteFile(filepath.Join(base, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"link", "link/sub", "file"} {
		target, err := HoldTarget(filepath.Join(base, path))
		if !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%s: %v, %v", path, target, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(base, "real", "sub")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a directory was made behind a link")
	}
}

func BenchmarkOpenRecordFinish(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "state")
	for i := range b.N {
		run, err := Open(Options{StateDir: dir, RunID: fmt.Sprintf("b%d", i)})
		if err != nil {
			b.Fatal(err)
		}
		if err := errors.Join(run.Record(deny("a.test", "/")), run.Finish(event.Receipt{})); err != nil {
			b.Fatal(err)
		}
		run.Close()
	}
}

func BenchmarkRecordAllowed(b *testing.B) {
	run, err := Open(Options{StateDir: filepath.Join(b.TempDir(), "state"), RunID: "r1", MaxRows: 1 << 40})
	if err != nil {
		b.Fatal(err)
	}
	defer run.Close()
	req := event.Request{Time: time.Now(), Protocol: "https", Host: "ok.test", Port: 443, Method: "GET", Path: "/a/b", Verdict: "allow", Code: "allowed", Rule: "p/r"}
	for b.Loop() {
		if err := run.Record(req); err != nil {
			b.Fatal(err)
		}
	}
}
