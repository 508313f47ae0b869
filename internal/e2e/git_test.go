package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// Every way to read works, in all protocol versions, and asks for nothing but
// what the profile grants.
func TestCase67_AllReadsOfGit(t *testing.T) {
	lab := sbxtest.NewLab(t)
	server := lab.ServeGit(t, "github.com", "acme/widget", map[string]string{"README": "widget\n", "src/main.c": "int x;\n"})
	lab.GitBranches(t, "github.com", "acme/widget", 40)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		since := len(server.Requests())
		got := shell(t, lab, who, `set -e
			for v in 0 1 2; do git -c protocol.version=$v clone -q `+widget+`.git /tmp/v$v; cat /tmp/v$v/README; done
			git clone -q --depth 1 `+widget+` /tmp/shallow
			git -C /tmp/shallow rev-list --count HEAD
			git -C /tmp/shallow fetch -q --unshallow
			git clone -q --filter=blob:none --no-checkout `+widget+` /tmp/partial
			git -C /tmp/partial rev-list --objects --missing=print --all | grep -c '^?'
			git -C /tmp/partial checkout -q main && cat /tmp/partial/src/main.c
			git clone -q --single-branch --branch branch7 `+widget+` /tmp/one
			git -C /tmp/one fetch -q origin 'refs/heads/*:refs/remotes/origin/*'
			git -C /tmp/one branch -r | wc -l
			git ls-remote `+widget+`.git branch7 | cut -f2`, readRepo...)
		printed(t, got, "widget\nwidget\nwidget\n1\n3\nint x;\n41\nrefs/heads/branch7\n")
		noDenials(t, got)
		versions := map[string]bool{}
		packed := false
		for _, r := range server.Requests()[since:] {
			versions[r.Header.Get("Git-Protocol")] = true
			packed = packed || r.Header.Get("Content-Encoding") == "gzip"
		}
		if !versions[""] || !versions["version=1"] || !versions["version=2"] || !packed {
			t.Errorf("upstream saw the protocols %v, a packed body: %v", versions, packed)
		}
	})
}

// What would write, and the old way to read, end soon, with git's own words. Nobody
// sets P: a plain push would need approval, and this one has to reach the proxy.
func TestCase67_RefusedGitIsReadable(t *testing.T) {
	lab := sbxtest.NewLab(t)
	server := lab.ServeGit(t, "github.com", "acme/widget", map[string]string{"README": "widget\n"})
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for name, script := range map[string]string{
			"push":       "git clone -q " + widget + " /tmp/w && cd /tmp/w && git -c user.name=x -c user.email=x@git.test commit -q --allow-empty -m x && git ${P:-push} -q origin main",
			"delete":     "git clone -q " + widget + " /tmp/w && cd /tmp/w && git ${P:-push} -q --delete origin main",
			"dumb clone": "GIT_SMART_HTTP=0 git clone -q " + widget + " /tmp/w",
		} {
			since := len(server.Requests())
			got := within(t, time.Minute, lab, who, lab.Command(t, who, slices.Concat([]string{"sbx", "exec"}, readRepo, []string{"--", "bash", "-c", script})...))
			gitRefused(t, got, "/acme/widget/info/refs")
			says(t, got.Stderr, "sbx: denied GET "+widget+"/info/refs")
			for _, r := range server.Requests()[since:] {
				if strings.Contains(r.Target, "receive-pack") || !strings.Contains(r.Target, "upload-pack") {
					t.Errorf("%s: upstream saw %s %s", name, r.Method, r.Target)
				}
			}
		}
	})
}

// Git LFS itself downloads what is granted, and uploads nothing.
func TestVector14_GitLFS(t *testing.T) {
	lab := sbxtest.NewLab(t)
	host, store := lab.ServeGitLFS(t, "github.com", "objects.githubusercontent.com", "acme/widget", map[string]string{"big.bin": "a large file\n"})
	script := `git lfs install --skip-repo >/dev/null
		git clone -q ` + widget + `.git /tmp/w; cat /tmp/w/big.bin; cd /tmp/w
		git config user.name x; git config user.email x@git.test; git config lfs.locksverify false
		echo another >new.bin; git add new.bin; git commit -qm x
		git lfs ${P:-push} origin main >/dev/null; echo "exit status $?"`
	everyone(t, func(t *testing.T, who sbxtest.User) {
		since, kept := len(host.Requests()), len(store.Requests())
		got := shell(t, lab, who, script, append(readRepo, "--input", "lfs=true")...)
		printed(t, got, "a large file\nexit status 2\n")
		if row := onlyBatch(t, got); row.Code != "body-assertion" || row.Count != 1 {
			t.Errorf("the row is %+v, want one about the body", row)
		}
		if n := len(store.Requests()) - kept; n != 1 {
			t.Errorf("%d requests for objects, want 1", n)
		}
		without := shell(t, lab, who, script, readRepo...)
		says(t, without.Stderr, "Authorization error: https://github.com")
		if row := onlyBatch(t, without); row.Code != "path-not-granted" {
			t.Errorf("the row is %+v, want one about the path", row)
		}
		batches := 0
		for _, r := range host.Requests()[since:] {
			if strings.HasSuffix(r.Target, "/batch") {
				batches++
				if !strings.Contains(string(r.Body), `"operation":"download"`) {
					t.Errorf("upstream got the batch %s", r.Body)
				}
			}
		}
		if batches != 1 {
			t.Errorf("upstream got %d batches, want 1", batches)
		}
	})
}

// onlyBatch returns the only row about the batch interface.
func onlyBatch(t *testing.T, got sbxtest.Result) event.Denial {
	t.Helper()
	rows := slices.DeleteFunc(got.Denials(t), func(d event.Denial) bool { return !strings.HasSuffix(d.Path, "/objects/batch") })
	if len(rows) != 1 {
		t.Fatalf("%d rows about batches, want 1: %+v\nstderr: %s", len(rows), rows, got.Stderr)
	}
	return rows[0]
}
