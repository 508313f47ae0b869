package e2e

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// curl is a transfer that prints nothing but the status and the body's size.
const curl = "curl -sS -m 20 -o body -w '%{http_code} %{size_download}' "

// unlisted are the ways to ask for a host that no profile grants, and what is
// denied then.
var unlisted = []struct {
	name, script string
	want         event.Denial
}{
	{"https", curl + "'https://unlisted.test/a/b?secret=1'", denial("unlisted.test", "https", 443)},
	{"https by HTTP1", curl + "--http1.1 'https://unlisted.test/a/b?secret=1'", denial("unlisted.test", "https", 443)},
	{"http", curl + "'http://unlisted.test/a/b?secret=1'", denial("unlisted.test", "http", 80)},
	{"other port", curl + "'http://unlisted.test:8080/a/b'", denial("unlisted.test", "http", 8080)},
	{"IPv6 https", curl + "-k 'https://[2a11:22:33::77]/a/b'", denial("2a11:22:33::77", "https", 443)},
	{"IPv6 http", curl + "'http://[2a11:22:33::77]/a/b'", denial("2a11:22:33::77", "http", 80)},
	{"IPv6 of a name", curl + "--resolve 'unlisted.test:443:[2a11:22:33::77]' https://unlisted.test/a/b", denial("unlisted.test", "https", 443)},
	{"IPv4 address", curl + "http://11.22.33.177/a/b", denial("11.22.33.177", "http", 80)},
	{"no variables https", "env -i /usr/bin/" + curl + "https://unlisted.test/a/b", denial("unlisted.test", "https", 443)},
	{"no variables http", "env -i /usr/bin/" + curl + "http://unlisted.test/a/b", denial("unlisted.test", "http", 80)},
	{"no proxy", curl + "--noproxy '*' https://unlisted.test/a/b", denial("unlisted.test", "https", 443)},
	{"explicit proxy http", curl + `-x "$http_proxy" http://unlisted.test/a/b`, denial("unlisted.test", "http", 80)},
	{"explicit proxy https", curl + `-x "$https_proxy" https://unlisted.test/a/b`, denial("unlisted.test", "https", 443)},
}

func denial(host, protocol string, port uint16) event.Denial {
	return event.Denial{
		Host: host, Method: "GET", Path: "/a/b", Count: 1,
		Source: event.SourceGate, Code: "host-not-granted", Port: port, Protocol: protocol,
	}
}

// A request to a host outside the grant dies at the gate, however it is made.
func TestCase62_UnlistedHostIsDeniedHoweverItIsAsked(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Serve("unlisted.test", http.HandlerFunc(leak))
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, c := range unlisted {
			t.Run(c.name, func(t *testing.T) {
				before := watching(lab)
				got := shell(t, lab, who, c.script)
				printed(t, got, "520 0")
				before.nothingLeft(t)
				row := onlyDenial(t, got)
				changing := cmpopts.IgnoreFields(event.Denial{}, "Reason", "FirstAt", "LastAt", "Run", "Process")
				if diff := cmp.Diff(c.want, row, changing); diff != "" {
					t.Errorf("the row differs (-want +got):\n%s", diff)
				}
				plausible(t, row, got)
			})
		}
	})
}

func leak(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("LEAKED")) }

// plausible checks the fields of a row that differ from run to run.
func plausible(t *testing.T, row event.Denial, got sbxtest.Result) {
	t.Helper()
	if row.Run != filepath.Base(got.RunDir) || row.Reason == "" {
		t.Errorf("row %+v names no reason, or not its run %s", row, got.RunDir)
	}
	if row.FirstAt.IsZero() || row.FirstAt.After(row.LastAt) || row.LastAt.After(time.Now()) {
		t.Errorf("row %+v has impossible times", row)
	}
}

// A repeated denial is one row with a count.
func TestVector28_SameDenialThreeTimesIsOneRow(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := shell(t, lab, who, "for i in 1 2 3; do curl -sS https://unlisted.test/; done")
		succeeded(t, got)
		if row := onlyDenial(t, got); row.Count != 3 {
			t.Errorf("count is %d, want 3", row.Count)
		}
		if n := strings.Count(got.Stderr, "sbx: denied "); n != 1 {
			t.Errorf("%d lines about one row, want 1: %s", n, got.Stderr)
		}
	})
}

// Whoever watches knows at once what was denied, and at the end what would
// have to be granted; --quiet says neither.
func TestDenialIsSaidLiveAndAtTheEnd(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		// The command goes on only when the line has come, so it came while it ran.
		reader, writer := pipe(t)
		cmd := lab.Command(t, who, "sbx", "exec", "--", "sh", "-c", "curl -sS https://unlisted.test/a; read go; echo went $go")
		stdout, stderr := newOutput(), newOutput()
		cmd.Stdin, cmd.Stdout, cmd.Stderr = reader, stdout, stderr
		lab.Start(t, cmd)
		stderr.until(t, "sbx: denied GET https://unlisted.test/a: host is not granted")
		if _, err := writer.WriteString("on\n"); err != nil {
			t.Fatal(err)
		}
		if exit := sbxtest.Wait(t, cmd); exit != 0 || stdout.String() != "went on\n" {
			t.Errorf("exit status %d, stdout %q", exit, stdout)
		}
		says(t, stderr.String(), "1 request denied", "HOST", "unlisted.test", "to allow: ", "records: ")
		if strings.ContainsFunc(stderr.String(), func(r rune) bool { return r > 126 || r < 32 && r != '\n' }) {
			t.Errorf("stderr is no plain text: %q", stderr)
		}
		quiet := run(t, lab, who, "--quiet", "--", "curl", "-sS", "https://unlisted.test/a")
		succeeded(t, quiet)
		if quiet.Stderr != "" {
			t.Errorf("--quiet said %q", quiet.Stderr)
		}
		onlyDenial(t, quiet)
	})
}

func TestFailOnDenial(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for script, want := range map[string]int{
			"curl -s https://unlisted.test/":         123,
			"curl -s https://unlisted.test/; exit 3": 3,
			"true":                                   0,
		} {
			if got := shell(t, lab, who, script, "--fail-on-denial"); got.Exit != want {
				t.Errorf("%s: exit status %d, want %d: %s", script, got.Exit, want, got.Stderr)
			}
		}
	})
}

const npmRegistry = "[registries]\nnpm = [\"https://npm.test/\"]\n"

// refusals are requests to a granted host that no rule allows.
var refusals = []struct {
	name, args, code string
	row              event.Denial
}{
	{
		"PUT", "-X PUT -d {} https://npm.test/pkg", "method-not-granted",
		event.Denial{Method: "PUT", Path: "/pkg", Port: 443, Protocol: "https"},
	},
	{
		"POST", "-d {} https://npm.test/-/npm/v1/security/advisories/bulk", "method-not-granted",
		event.Denial{Method: "POST", Path: "/-/npm/v1/security/advisories/bulk", Port: 443, Protocol: "https"},
	},
	{
		"dot segments", "--path-as-is https://npm.test/a/../b", "path",
		event.Denial{Method: "GET", Path: "/a/../b", Port: 443, Protocol: "https"},
	},
	{
		"second decoding", "https://npm.test/@types%252fnode", "path",
		event.Denial{Method: "GET", Path: "/@types%252fnode", Port: 443, Protocol: "https"},
	},
	{
		"http", "http://npm.test/pkg", "protocol",
		event.Denial{Method: "GET", Path: "/pkg", Port: 80, Protocol: "http"},
	},
	{
		"port", "https://npm.test:8443/pkg", "port",
		event.Denial{Method: "GET", Path: "/pkg", Port: 8443, Protocol: "https"},
	},
}

// A granted host answers what its rules allow; everything else is a 403 whose
// body names only the rule or the code.
func TestVector17_GrantedHostRefusesWhatNoRuleAllows(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(npmRegistry)
	lab.ServeNPM(t, "npm.test", sbxtest.Package{Name: "pkg", Version: "1.0.0"})
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, c := range refusals {
			t.Run(c.name, func(t *testing.T) {
				before := watching(lab)
				got := shell(t, lab, who, "curl -sS -m 20 -w '\\n%{http_code}' "+c.args, "--profile", "js-install")
				succeeded(t, got)
				before.nothingLeft(t)
				body, status := got.Stdout[:max(0, len(got.Stdout)-4)], got.Stdout[max(0, len(got.Stdout)-3):]
				row := onlyDenial(t, got)
				if status != "403" || !namesOnly(body, row.Code, row.Rule) {
					t.Errorf("answer is %q, want 403 and only %q or %q", got.Stdout, row.Code, row.Rule)
				}
				c.row.Host, c.row.Source, c.row.Count = "npm.test", event.SourceHandler, 1
				changing := cmpopts.IgnoreFields(event.Denial{}, "Code", "Rule", "Reason", "FirstAt", "LastAt", "Run", "Process")
				if diff := cmp.Diff(c.row, row, changing); diff != "" || !strings.Contains(row.Code, c.code) {
					t.Errorf("code is %q, want one with %q; the row differs (-want +got):\n%s", row.Code, c.code, diff)
				}
			})
		}
		got := run(t, lab, who, "--profile", "js-install", "--", "curl", "-sSf", "https://npm.test/pkg")
		succeeded(t, got)
		says(t, got.Stdout, `"name":"pkg"`)
		noDenials(t, got)
	})
}

// namesOnly reports whether a refusal's body tells nothing but some of the words.
func namesOnly(body string, words ...string) bool {
	named := strings.Fields(strings.TrimPrefix(body, "sbx: "))
	return len(named) > 0 && !slices.ContainsFunc(named, func(n string) bool { return !slices.Contains(words, n) })
}

// npm takes a refusal for an answer at once.
func TestCase64_NPMStopsSoonAtAnUnlistedRegistry(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(npmRegistry)
	lab.ServeNPM(t, "other.test", sbxtest.Package{Name: "pkg", Version: "1.0.0"})
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "package.json", `{"name": "root", "version": "1.0.0", "dependencies": {"pkg": "1.0.0"}}`)
		for name, flags := range map[string][]string{"no profile": nil, "js-install": {"--profile", "js-install"}} {
			t.Run(name, func(t *testing.T) {
				before := watching(lab)
				argv := append([]string{"sbx", "exec"}, flags...)
				argv = append(argv, "--", "npm", "install", "--registry", "https://other.test/")
				got := within(t, 10*time.Second, lab, who, lab.Command(t, who, argv...))
				before.nothingLeft(t)
				if got.Exit == 0 || got.Exit >= 123 {
					t.Errorf("exit status %d, want npm's own: %s", got.Exit, got.Stderr)
				}
				rows := got.Denials(t) // npm may ask for its own newest version as well
				if !slices.ContainsFunc(rows, func(d event.Denial) bool { return d.Path == "/pkg" && d.Count == 1 }) {
					t.Errorf("rows %+v, want one for https://other.test/pkg, asked once", rows)
				}
			})
		}
	})
}

// Connections to a granted host that nothing was asked on end with the command; that
// is no denial, however late sbx gets to them. A host that is not granted is one.
func TestConnectionsThatEndWithTheCommandAreNoDenials(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Serve("api.cloudflare.com", http.HandlerFunc(ok))
	const preconnect = `for i in {1..300}; do exec {fd}<>/dev/tcp/$H/443; done; printf '\x16\x03\x01\x02\x00\x01' >&$fd; exit 0`
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for host, want := range map[string]int{"api.cloudflare.com": 0, "unlisted.test": 123} {
			got := shell(t, lab, who, "H="+host+"; "+preconnect, "--profile", "cf-api", "--fail-on-denial")
			if got.Exit != want {
				t.Errorf("%s: exit status %d, want %d: %+v", host, got.Exit, want, got.Denials(t))
			}
		}
	})
}
