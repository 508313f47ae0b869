package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// host runs a command of the user outside of any sandbox and demands an exit status.
func host(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, exit int, argv ...string) string {
	t.Helper()
	got := lab.Run(t, who, argv...)
	if got.Exit != exit {
		t.Fatalf("%q: exit status %d, want %d\nstdout: %s\nstderr: %s", argv, got.Exit, exit, got.Stdout, got.Stderr)
	}
	return got.Stdout
}

// reviewer gives the user a key that may approve profiles.
func reviewer(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) {
	t.Helper()
	signers := filepath.Join(lab.Home(who), "signers")
	host(t, lab, who, 0, "sh", "-c", `rm -f ../key*; ssh-keygen -q -t ed25519 -N '' -f ../key && (umask 077; echo "ops@widget.test $(cat ../key.pub)" > ../signers)`)
	lab.Configure("allowed_signers = \"" + signers + "\"\n")
}

// TestCase65_ASuggestedDraftMakesTheNextRunClean: what was denied, drafted,
// approved and granted is denied no more; a receipt names the approval, and the
// decisions of the first run differ for the reason that the grant does.
func TestCase65_ASuggestedDraftMakesTheNextRunClean(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Serve("api.widget.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.URL.Path)) }))
	const script = "curl -s https://api.widget.test/v1/@s%2fp?token=s3cret; curl -s -d a=b https://api.widget.test/v1/items; curl -s http://11.22.33.44/x; true"
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reviewer(t, lab, who)
		first := shell(t, lab, who, script)
		printed(t, first, "")
		draft := host(t, lab, who, 0, "sbx", "profiles", "suggest", first.RunDir, "--name", "x-widget")
		if strings.Contains(draft, "s3cret") || !strings.Contains(draft, "# left out: GET http://11.22.33.44:80/x: it went to a raw IP address") {
			t.Fatal(draft)
		}
		file := lab.Write(who, "x-widget.toml", draft)
		flags := []string{"--profile-file", file, "--profile", "x-widget"}
		refused(t, shell(t, lab, who, script, flags...), "has no approval", "sbx profiles approve")
		host(t, lab, who, 0, "sbx", "profiles", "lint", file)
		host(t, lab, who, 0, "sbx", "profiles", "approve", file, "--key", "../key")
		second := shell(t, lab, who, script, flags...)
		printed(t, second, "/v1/@s/p/v1/items")
		if row := onlyDenial(t, second); row.Host != "11.22.33.44" {
			t.Errorf("denied: %+v", row)
		}
		if a, ok := second.Receipt(t)["approvals"].([]any); !ok || len(a) != 1 || a[0].(map[string]any)["signer"] != "ops@widget.test" {
			t.Errorf("approvals %v", second.Receipt(t)["approvals"])
		}
		differs := host(t, lab, who, 1, append([]string{"sbx", "explain", "--from", first.RunDir}, flags...)...)
		if !strings.Contains(differs, "differs") || !strings.Contains(differs, "profiles: - in the run, x-widget today") {
			t.Error(differs)
		}
	})
}

// TestBypass63_TheSandboxCannotApproveItself: the profile and its approval lie
// where the command writes; a changed file, a changed approval and an older
// approved pair are refused.
func TestBypass63_TheSandboxCannotApproveItself(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Serve("api.widget.test", http.HandlerFunc(leak))
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reviewer(t, lab, who)
		flags := []string{"--profile-file", "x.toml", "--profile", "x-" + who.String()}
		version := func(n, dir string) {
			lab.Write(who, "x.toml", strings.NewReplacer("NAME", "x-"+who.String(), "VERSION", n, "DIR", dir).Replace(custom))
			host(t, lab, who, 0, "sbx", "profiles", "approve", "x.toml", "--key", "../key")
		}
		version("1", "wide")
		printed(t, shell(t, lab, who, "cp x.toml old.toml; cp x.toml.approval old.toml.approval; curl -s https://api.widget.test/wide/x", flags...), "LEAKED")
		version("2", "narrow")
		printed(t, shell(t, lab, who, "curl -s https://api.widget.test/wide/x -o /dev/null -w '%{http_code}'; sed -i s/narrow/wide/ x.toml", flags...), "403")
		refused(t, shell(t, lab, who, "true", flags...), "is not what was approved")
		version("2", "narrow")
		printed(t, shell(t, lab, who, "cp old.toml x.toml; cp old.toml.approval x.toml.approval", flags...), "")
		refused(t, shell(t, lab, who, "true", flags...), "older than version 2")
	})
}

const custom = `
[profiles.NAME]
version = VERSION
summary = "one"
[[profiles.NAME.rules]]
id = "read"
host = "api.widget.test"
methods = ["GET"]
path = "/DIR/**"
allow = ["GET https://api.widget.test/DIR/x"]
deny = ["POST https://api.widget.test/wide/x length=1"]
`
