package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// ask is a request by curl inside and what has to come of it: the status that
// curl sees, then the code of each row that the request has in requests.jsonl.
type ask struct{ args, want string }

// waysIn are how a request reaches the proxy: by its address alone, or because
// the program knows proxies.
var waysIn = []string{"--noproxy '*' ", `-x "$https_proxy" `}

// asked makes all requests in one run, each by every way in.
func asked(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, asks []ask, flags ...string) sbxtest.Result {
	t.Helper()
	var script strings.Builder
	script.WriteString("head -c 1048576 /dev/zero >/tmp/full; head -c 1048577 /dev/zero >/tmp/over\n")
	for _, way := range waysIn {
		for _, a := range asks {
			script.WriteString("curl -sS -m 30 -o /tmp/body -w '%{http_code}\\n' " + way + a.args + "\n")
		}
	}
	got := shell(t, lab, who, script.String(), flags...)
	statuses := strings.Fields(got.Stdout)
	rows := got.Requests(t)
	for _, way := range waysIn {
		for _, a := range asks {
			n := min(len(strings.Fields(a.want))-1, len(rows))
			is := strings.Join(append(take(&statuses, 1), codes(take(&rows, n))...), " ")
			if is != a.want {
				t.Errorf("curl %s%s: %q, want %q", way, a.args, is, a.want)
			}
		}
	}
	if len(statuses)+len(rows) > 0 || t.Failed() {
		t.Fatalf("left over: %v %v\nstderr: %s", statuses, codes(rows), got.Stderr)
	}
	return got
}

// take cuts the first n elements off, or what there is.
func take[E any](from *[]E, n int) []E {
	n = min(n, len(*from))
	first := (*from)[:n:n]
	*from = (*from)[n:]
	return first
}

func codes(rows []event.Request) []string {
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = r.Code
	}
	return out
}

// seen is what servers received since, as "METHOD target", each by every way in.
func seen(t *testing.T, server *sbxtest.Server, since int, want ...string) {
	t.Helper()
	var targets []string
	for _, r := range server.Requests()[since:] {
		targets = append(targets, r.Method+" "+r.Target)
	}
	if diff := cmp.Diff(slices.Repeat(want, len(waysIn)), targets, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("what %s received (-want +got):\n%s", server.Name, diff)
	}
}

// redirecting answers with the redirect that the query asks for, to itself when it
// names no target, else like ok.
func redirecting(w http.ResponseWriter, r *http.Request) {
	code, err := strconv.Atoi(r.URL.Query().Get("code"))
	if err != nil {
		ok(w, r)
		return
	}
	to := r.URL.Query().Get("to")
	if to == "" {
		to = r.RequestURI
	}
	w.Header().Set("Location", to)
	w.WriteHeader(code)
}

var readRepo = []string{"--profile", "public-repo-read", "--input", "repo=acme/widget"}

const widget = "https://github.com/acme/widget"

func TestVector01_02_03_Refs(t *testing.T) {
	lab := sbxtest.NewLab(t)
	server := lab.Serve("github.com", http.HandlerFunc(ok))
	everyone(t, func(t *testing.T, who sbxtest.User) {
		since := len(server.Requests())
		asked(t, lab, who, []ask{
			{"'" + widget + "/info/refs?service=git-upload-pack'", "200 allowed"},
			{"'" + widget + ".git/info/refs?service=git-upload-pack'", "200 allowed"},
			{"-I '" + widget + ".git/info/refs?service=git-upload-pack'", "200 allowed"},
			{"'" + widget + "/info/refs?service=git-receive-pack'", "403 query-not-granted"},
			{"'" + widget + "/info/refs'", "403 query-not-granted"},
			{"'" + widget + "/info/refs?service=git-upload-pack&service=git-receive-pack'", "403 query-not-granted"},
			{"'" + widget + "/info/refs?service=git-upload-pack&%73ervice=git-receive-pack'", "403 query-not-granted"},
		}, readRepo...)
		seen(t, server, since, "GET /acme/widget/info/refs?service=git-upload-pack",
			"GET /acme/widget.git/info/refs?service=git-upload-pack", "HEAD /acme/widget.git/info/refs?service=git-upload-pack")
	})
}

// Whatever says how long a body is, one byte over the cap sends nothing.
func TestVector04_05_UploadPack(t *testing.T) {
	lab := sbxtest.NewLab(t)
	server := lab.Serve("github.com", http.HandlerFunc(drain))
	const post = " " + widget + ".git/git-upload-pack"
	everyone(t, func(t *testing.T, who sbxtest.User) {
		since := len(server.Requests())
		asked(t, lab, who, []ask{
			{"--data-binary @/tmp/full" + post, "200 allowed"},
			{"--http1.1 --data-binary @/tmp/full" + post, "200 allowed"},
			{"--http1.1 -H 'Transfer-Encoding: chunked' --data-binary @/tmp/full" + post, "200 allowed"},
			{"-X POST -T - </tmp/full" + post, "200 allowed"},
			{"--data-binary @/tmp/over" + post, "403 body-too-large"},
			{"--http1.1 --data-binary @/tmp/over" + post, "403 body-too-large"},
			{"--http1.1 -H 'Transfer-Encoding: chunked' --data-binary @/tmp/over" + post, "403 body-too-large"},
			{"-X POST -T - </tmp/over" + post, "403 body-too-large"},
			{"-d 0000 '" + widget + ".git/git-upload-pack?x=1'", "200 allowed"},
			{"-d 0000 " + widget + ".git//git-upload-pack", "403 path-refused"},
			{"-d 0000 " + widget + ".git%2fgit-upload-pack", "403 path-not-granted"},
			{"--path-as-is -d 0000 " + widget + ".git/git-upload-pack/../git-receive-pack", "403 path-refused"},
			{"--path-as-is -d 0000 " + widget + ".git/git-upload-pack/%2e%2e/git-receive-pack", "403 path-refused"},
			{"-d 0000 " + widget + ".git/git-receive-pack", "403 path-not-granted"},
			{"-d 0000 " + widget + "/git-receive-pack", "403 path-not-granted"},
		}, readRepo...)
		const pack = "POST /acme/widget.git/git-upload-pack"
		seen(t, server, since, pack, pack, pack, pack, pack+"?x=1")
		for _, r := range server.Requests()[since:] {
			if len(r.Body) != 1<<20 && !strings.HasSuffix(r.Target, "?x=1") {
				t.Errorf("%s received a body of %d bytes", server.Name, len(r.Body))
			}
		}
	})
}

// drain reads the body and answers.
func drain(w http.ResponseWriter, r *http.Request) {
	var buffer [4096]byte
	for {
		if _, err := r.Body.Read(buffer[:]); err != nil {
			break
		}
	}
	ok(w, r)
}

func TestVector06_07_OtherRepositories(t *testing.T) {
	lab := sbxtest.NewLab(t)
	hosts := []*sbxtest.Server{lab.Serve("github.com", http.HandlerFunc(ok)), lab.Serve("codeload.github.com", http.HandlerFunc(ok))}
	everyone(t, func(t *testing.T, who sbxtest.User) {
		asked(t, lab, who, []ask{
			{"'https://github.com/acme/widget-evil/info/refs?service=git-upload-pack'", "403 path-not-granted"},
			{"'https://github.com/acme/widget.git.evil/info/refs?service=git-upload-pack'", "403 path-not-granted"},
			{"'https://github.com/acme/widget.git-evil/info/refs?service=git-upload-pack'", "403 path-not-granted"},
			{"'https://github.com/ACME/widget/info/refs?service=git-upload-pack'", "403 path-not-granted"},
			{"'https://github.com/other/repo/info/refs?service=git-upload-pack'", "403 path-not-granted"},
			{"--path-as-is 'https://github.com/acme/widget/../../other/repo/info/refs?service=git-upload-pack'", "403 path-refused"},
			{"https://github.com/other/repo/archive/v1.tar.gz", "403 path-not-granted"},
			{"-d 0000 https://github.com/other/repo/git-upload-pack", "403 path-not-granted"},
			{"https://codeload.github.com/other/repo/tar.gz/v1", "403 path-not-granted"},
			{"https://codeload.github.com/acme/widget-evil/tar.gz/v1", "403 path-not-granted"},
			{widget, "403 path-not-granted"},
		}, readRepo...)
		for _, server := range hosts {
			seen(t, server, 0)
		}
	})
}

// archive asks for a redirect of the rule that the proxy follows itself, upload
// for one of the rule that the client follows.
func archive(code int, to string) string {
	return fmt.Sprintf("'%s/archive/v1.tar.gz?code=%d&to=%s'", widget, code, to)
}

func upload(code int, to string) string {
	return fmt.Sprintf("-d 0000 '%s/git-upload-pack?code=%d&to=%s'", widget, code, to)
}

func TestVector08_09_10_11_12_13_Redirects(t *testing.T) {
	lab := sbxtest.NewLab(t)
	hosts := map[string]*sbxtest.Server{}
	for _, name := range []string{"github.com", "codeload.github.com", "gist.github.com", "evil.example"} {
		hosts[name] = lab.Serve(name, http.HandlerFunc(redirecting))
	}
	everyone(t, func(t *testing.T, who sbxtest.User) {
		since := len(hosts["codeload.github.com"].Requests())
		got := asked(t, lab, who, []ask{
			{archive(302, "https://codeload.github.com/acme/widget/tar.gz/v1"), "200 allowed allowed"},
			{"-I " + archive(301, "https://codeload.github.com/acme/widget/tar.gz/v1"), "200 allowed allowed"},
			{archive(302, "https://codeload.github.com/other/repo/tar.gz/v1"), "403 allowed redirect-not-granted"},
			{archive(302, "https://gist.github.com/x"), "403 allowed redirect-not-granted"},
			{archive(302, "http://codeload.github.com/acme/widget/tar.gz/v1"), "403 allowed redirect-not-granted"},
			{archive(302, "https://evil.example/"), "403 allowed redirect-not-granted"},
			{archive(302, "//evil.example/"), "403 allowed redirect-not-granted"},
			{upload(302, "https://evil.example/"), "403 allowed redirect-not-granted"},
			{upload(302, "https://gist.github.com/x"), "403 allowed redirect-not-granted"},
			{archive(302, ""), "403 allowed allowed allowed allowed allowed allowed redirect-hops"},
			{upload(307, "https://codeload.github.com/acme/widget/x"), "403 allowed redirect-not-granted"},
			{upload(308, "https://codeload.github.com/acme/widget/x"), "403 allowed redirect-not-granted"},
			{"-L " + upload(302, "https://codeload.github.com/acme/widget/passed"), "200 allowed allowed"},
			{"-L --post302 " + upload(302, "https://codeload.github.com/acme/widget/x"), "403 allowed method-not-granted"},
		}, readRepo...)
		seen(t, hosts["codeload.github.com"], since, "GET /acme/widget/tar.gz/v1", "HEAD /acme/widget/tar.gz/v1", "GET /acme/widget/passed")
		seen(t, hosts["gist.github.com"], 0)
		seen(t, hosts["evil.example"], 0)
		i := slices.IndexFunc(got.Denials(t), func(d event.Denial) bool { return d.Path == "/other/repo/tar.gz/v1" })
		if i < 0 {
			t.Fatalf("no row for the target: %+v", got.Denials(t))
		}
		row := got.Denials(t)[i]
		if row.Host != "codeload.github.com" || row.RedirectedFrom != "GET "+widget+"/archive/v1.tar.gz" {
			t.Errorf("the row does not name the redirecting request: %+v", row)
		}
		says(t, row.Reason, "redirected from GET "+widget+"/archive/v1.tar.gz")
	})
}

// followProfile has POST in a rule that the proxy follows itself.
const followProfile = `
[profiles.x-follow]
version = 1
summary = "one host"
[[profiles.x-follow.rules]]
id = "all"
host = "follow.test"
methods = ["GET", "POST"]
path = "/**"
max_body = "1KiB"
redirects = "follow"
allow = ["POST https://follow.test/x length=4"]
deny = ["PUT https://follow.test/x length=4"]
`

// A followed 302 on POST is a GET without a body; a 307 keeps both.
func TestVector13_FollowedPost(t *testing.T) {
	lab := sbxtest.NewLab(t)
	server := lab.Serve("follow.test", http.HandlerFunc(redirecting))
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reviewer(t, lab, who)
		lab.Write(who, "follow.toml", followProfile)
		host(t, lab, who, 0, "sbx", "profiles", "approve", "follow.toml", "--key", "../key")
		since := len(server.Requests())
		asked(t, lab, who, []ask{
			{"-d body 'https://follow.test/a?code=302&to=/became-get'", "200 allowed allowed"},
			{"-d body 'https://follow.test/a?code=307&to=/stayed-post'", "200 allowed allowed"},
			{"-I 'https://follow.test/a?code=303&to=/stayed-head'", "200 allowed allowed"},
		}, "--profile-file", "follow.toml", "--profile", "x-follow")
		seen(t, server, since, "POST /a?code=302&to=/became-get", "GET /became-get",
			"POST /a?code=307&to=/stayed-post", "POST /stayed-post", "HEAD /a?code=303&to=/stayed-head", "HEAD /stayed-head")
		for _, r := range server.Requests()[since:] {
			if r.Method == "GET" && (r.Header.Get("Content-Type") != "" || r.Header.Get("Content-Length") != "") {
				t.Errorf("the GET says that it has a body: %v", r.Header)
			}
		}
	})
}

func TestVector14_LFSBatch(t *testing.T) {
	lab := sbxtest.NewLab(t)
	server := lab.Serve("github.com", http.HandlerFunc(drain))
	batch := func(body string) string {
		return "-H 'Content-Type: application/vnd.git-lfs+json' -d '" + body + "' " + widget + ".git/info/lfs/objects/batch"
	}
	everyone(t, func(t *testing.T, who sbxtest.User) {
		since := len(server.Requests())
		asked(t, lab, who, []ask{
			{batch(`{"operation":"download","objects":[]}`), "403 path-not-granted"},
			{batch(`{"operation":"upload"}`), "403 path-not-granted"},
		}, readRepo...)
		seen(t, server, since)
		asked(t, lab, who, []ask{
			{batch(`{"operation":"download","objects":[]}`), "200 allowed"},
			{batch(`{"operation":"upload","objects":[]}`), "403 body-assertion"},
			{batch(`operation=download`), "403 body-assertion"},
			{batch(`{"operation":"download"`), "403 body-assertion"},
			{batch(`{"operation":"download"}{"operation":"upload"}`), "403 body-assertion"},
			{batch(`{"operation":"download","operation":"upload"}`), "403 body-assertion"},
			{batch(`{"operation":"upload","\u006fperation":"download"}`), "403 body-assertion"},
			{batch(`{"Operation":"upload","operation":"download"}`), "403 body-assertion"},
			{batch(`["download"]`), "403 body-assertion"},
			{batch(""), "403 body-assertion"},
		}, append(readRepo, "--input", "lfs=true")...)
		seen(t, server, since, "POST /acme/widget.git/info/lfs/objects/batch")
	})
}

// The host is what stands behind the @; a host's spelling changes nothing.
func TestVector15_16_Spellings(t *testing.T) {
	lab := sbxtest.NewLab(t)
	server, evil := lab.Serve("github.com", http.HandlerFunc(ok)), lab.Serve("evil.example", http.HandlerFunc(leak))
	const refs = "/acme/widget/info/refs?service=git-upload-pack"
	everyone(t, func(t *testing.T, who sbxtest.User) {
		since := len(server.Requests())
		got := asked(t, lab, who, []ask{
			{"https://github.com@evil.example/", "520 host-not-granted"},
			{"'https://github.com:x@evil.example" + refs + "'", "520 host-not-granted"},
			{"'https://GITHUB.com.:443" + refs + "'", "200 allowed"},
			{"'https://gitHub.COM" + refs + "'", "200 allowed"},
			{"'https://github.com.evil.example" + refs + "'", "520 host-not-granted"},
		}, readRepo...)
		seen(t, server, since, "GET "+refs, "GET "+refs)
		seen(t, evil, 0)
		for _, r := range server.Requests()[since:] {
			if r.Host != "github.com" {
				t.Errorf("upstream was asked as %q", r.Host)
			}
		}
		if rows := got.Denials(t); rows[0].Host != "evil.example" || rows[0].Source != event.SourceGate {
			t.Errorf("the row is %+v, want one of the gate for evil.example", rows[0])
		}
	})
}

// previewProfile bounds its targets by patterns of its own.
const previewProfile = `
[profiles.x-preview]
version = 1
summary = "previews"
[profiles.x-preview.inputs.target]
kind = "host"
summary = "preview"
match = ["*.workers.dev", "*.pages.dev"]
example = "a.workers.dev"
[[profiles.x-preview.rules]]
id = "target"
host = "{target}"
methods = ["GET"]
path = "/**"
allow = ["GET https://a.workers.dev/"]
deny = ["POST https://a.workers.dev/ length=1"]
`

func TestVector26_TargetPattern(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Serve("a.workers.dev", http.HandlerFunc(ok))
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reviewer(t, lab, who)
		lab.Write(who, "preview.toml", previewProfile)
		host(t, lab, who, 0, "sbx", "profiles", "approve", "preview.toml", "--key", "../key")
		flags := []string{"--profile-file", "preview.toml", "--profile", "x-preview", "--input"}
		asked(t, lab, who, []ask{
			{"https://a.workers.dev/x", "200 allowed"},
			{"https://b.workers.dev/x", "520 host-not-granted"},
			{"https://workers.dev/x", "520 host-not-granted"},
		}, append(flags, "target=a.workers.dev")...)
		for _, target := range []string{"a.b.workers.dev", "evilworkers.dev", "workers.dev", "a.workers.dev.evil.test", "*.workers.dev"} {
			refused(t, run(t, lab, who, append(flags, "target="+target, "--", "touch", "ran")...), "target")
			nothingRan(t, lab, who)
		}
	})
}
