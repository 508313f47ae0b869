package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// mixed is a script that is denied something in every way, and what the report
// has to say of it: what was asked, the code, and the rule that came nearest.
const mixed = `
getent hosts only.looked.up.test >/dev/null
curl -sS -o /dev/null https://npm.test/a%2f..%2fb
curl -sS -o /dev/null -X PUT -d x 'https://npm.test/pkg?token=s3cret'
curl -sS -o /dev/null -d '{"operation":"upload"}' -H 'Content-Type: application/json' ` + widget + `.git/info/lfs/objects/batch
curl -sS -o /dev/null https://unlisted.test./dot
curl -sS -o /dev/null -m 20 http://11.22.33.177/raw
(exec 3<>/dev/tcp/ssh.test/22; printf 'SSH-2.0-x\r\n' >&3; timeout 20 cat <&3) 2>/dev/null
curl -sS -o /dev/null ` + widget + `/archive/away
curl -sS -o /dev/null -w '%{http_code} ' https://untrusted.test/
curl -sS -o /dev/null -w '%{http_code} ' https://npm.test/forbidden
curl -sS -o /dev/null -m 0.2 https://npm.test/slow
printf 'GET http://unlisted.test/\033[31m"esc HTTP/1.1\r\nHost: unlisted.test\r\n\r\n' >/tmp/raw
address=${http_proxy#http://}; (exec 3<>/dev/tcp/${address%:*}/${address#*:}; cat /tmp/raw >&3; timeout 20 cat <&3) >/dev/null
curl -sS -o /dev/null 'http://unlisted.test/"quoted%1b'
`

// row is what of a denial is the same in every run.
type row struct{ method, url, code, nearest string }

func rowOf(d event.Denial) row {
	port := map[uint16]string{22: ":22"}[d.Port]
	return row{d.Method, strings.TrimPrefix(d.Protocol+"://"+d.Host+port+d.Path, "dns://"), d.Code, d.Rule}
}

// The report has each thing that was denied, with its cause; what failed for
// other reasons is not in it.
func TestCase65_TheReportTellsTheTruth(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(npmRegistry)
	slow := make(chan struct{})
	t.Cleanup(func() { close(slow) })
	lab.Serve("npm.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/forbidden":
			http.Error(w, "not ours", http.StatusForbidden)
		case "/slow":
			select {
			case <-slow:
			case <-r.Context().Done():
			}
		}
	}))
	lab.Serve("github.com", http.RedirectHandler("https://evil.test/x?secret=1", http.StatusFound))
	untrusted := selfSigned(t)
	lab.ServeRaw("untrusted.test", 443, sbxtest.PlainTCP, func(c net.Conn) {
		_ = tls.Server(c, untrusted).Handshake() // the client refuses it
	})
	want := []row{
		{"GET", "https://npm.test/a%2f..%2fb", "path-refused", "js-install/registry"},
		{"PUT", "https://npm.test/pkg", "method-not-granted", "js-install/registry"},
		{"POST", "https://github.com/acme/widget.git/info/lfs/objects/batch", "body-assertion", "public-repo-read/lfs-batch"},
		{"GET", "https://unlisted.test/dot", "host-not-granted", ""},
		{"GET", "http://11.22.33.177/raw", "host-not-granted", ""},
		{"", "tcp://ssh.test:22", "host-not-granted", ""},
		{"GET", "https://evil.test/x", "redirect-not-granted", ""},
		{"", "http://", "malformed-request", ""}, // nothing of such a message is believed
		{"GET", `http://unlisted.test/"quoted%1b`, "host-not-granted", ""},
		{"", "only.looked.up.test", "name-ungranted", ""},
	}
	flags := withProfiles("js-install public-repo-read browser-fetch", "--input", "repo=acme/widget", "--input", "lfs=true", "--input", "target=untrusted.test")
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, exit := range []string{"0", "7"} {
			got := shell(t, lab, who, mixed+"exit "+exit, append(flags, "--json")...)
			o := decoded(t, got.Stdout)
			if got.Exit != int(exit[0]-'0') || o.Exit != got.Exit {
				t.Errorf("exit status %d, %d in the outcome, want %s", got.Exit, o.Exit, exit)
			}
			var rows, told []row
			for _, d := range got.Denials(t) {
				rows = append(rows, rowOf(d))
				plausible(t, d, got)
				says(t, got.Stderr, "("+d.Code+")")
			}
			for _, d := range o.Denials {
				told = append(told, rowOf(d))
			}
			if diff := cmp.Diff(want, rows, cmp.AllowUnexported(row{})); diff != "" {
				t.Errorf("the report (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(rows, told, cmp.AllowUnexported(row{})); diff != "" {
				t.Errorf("the outcome has another report (-file +outcome):\n%s", diff)
			}
			if text := got.Stderr + string(got.File(t, "denials.jsonl")); strings.Contains(text, "s3cret") || strings.ContainsRune(text, '\x1b') {
				t.Errorf("the report has a query or a control character: %q", text)
			}
			failed(t, got)
		}
	})
}

// failed checks what went wrong elsewhere: it stands beside the requests.
func failed(t *testing.T, got sbxtest.Result) {
	t.Helper()
	done := map[int]int{}
	errors := 0
	for line := range strings.Lines(string(got.File(t, "requests.jsonl"))) {
		var c event.Completion
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatal(err)
		}
		if c.Event == "completed" {
			done[c.Status]++
			if c.Error != "" {
				errors++
			}
		}
	}
	if done[403] == 0 || errors == 0 {
		t.Errorf("completions by status %v, %d with an error", done, errors)
	}
}

// A run that is denied very much has a report of bounded size, also when it is
// killed in the midst of it.
func TestCase65_TheReportIsBounded(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := shell(t, lab, who, `curl -s -o /dev/null "http://unlisted.test/[1-1200]"; kill -KILL $$`)
		if got.Exit != 137 {
			t.Errorf("exit status %d, want 137", got.Exit)
		}
		rows := got.Denials(t)
		last := rows[len(rows)-1]
		if len(rows) != 1001 || last.Count != 200 || last.Code != "bound-reached" {
			t.Errorf("%d rows, the last is %+v", len(rows), last)
		}
		if n := strings.Count(got.Stderr, "\n"); n > 1100 {
			t.Errorf("%d lines on standard error", n)
		}
		says(t, got.Stderr, "1200 requests denied")
	})
}

// selfSigned is a certificate for untrusted.test that its own key has signed.
func selfSigned(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"untrusted.test"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}
