package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
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
