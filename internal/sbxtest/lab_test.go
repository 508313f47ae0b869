package sbxtest_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

func TestMain(m *testing.M) { os.Exit(sbxtest.Main(m)) }

// forEveryone runs a test in a new lab for each user.
func forEveryone(t *testing.T, test func(*testing.T, *sbxtest.Lab, sbxtest.User)) {
	t.Helper()
	for _, who := range sbxtest.Everyone() {
		t.Run(who.String(), func(t *testing.T) { test(t, sbxtest.NewLab(t), who) })
	}
}

func hello(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s %s", r.Proto, r.Host) }

func TestServeAnswersOverEveryProtocol(t *testing.T) {
	forEveryone(t, func(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) {
		site := lab.Serve("ok.test", http.HandlerFunc(hello))
		for args, want := range map[string]string{
			"http://ok.test/":                    "HTTP/1.1 ok.test",
			"--http1.1 https://ok.test/":         "HTTP/1.1 ok.test",
			"-4 https://ok.test/":                "HTTP/2.0 ok.test",
			"-6 https://ok.test/":                "HTTP/2.0 ok.test",
			"--data x --http1.1 https://ok.test": "HTTP/1.1 ok.test",
		} {
			got := lab.Run(t, who, append([]string{"curl", "-sS"}, strings.Fields(args)...)...)
			if got.Exit != 0 || got.Stdout != want {
				t.Errorf("curl %s: exit %d, %q %q, want %q", args, got.Exit, got.Stdout, got.Stderr, want)
			}
		}
		if n := len(site.Requests()); n != 5 {
			t.Errorf("the server has %d requests, want 5", n)
		}
	})
}

func TestDialsHasWhateverLeaves(t *testing.T) {
	forEveryone(t, func(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) {
		got := lab.Run(t, who, "bash", "-c", `
			curl -s --max-time 5 http://8.8.8.8:81/; echo "refused: $?"
			curl -s --max-time 5 'http://[2600::1]:82/'
			echo x >/dev/udp/9.9.9.9/53; echo x >/dev/udp/2600::2/5353
			getent ahosts unknown.test`)
		if !strings.Contains(got.Stdout, "refused: 7") {
			t.Errorf("a host that nobody serves: %+v, want curl's status 7", got)
		}
		var dials []string
		for _, d := range lab.Dials() {
			dials = append(dials, d.String())
		}
		for _, want := range []string{"tcp 8.8.8.8:81", "tcp [2600::1]:82", "udp 9.9.9.9:53", "udp [2600::2]:5353", "udp 11.22.33.53:53"} {
			if !slices.Contains(dials, want) {
				t.Errorf("%s is not among %q", want, dials)
			}
		}
		if asked := lab.Lookups(); !slices.Contains(asked, "A unknown.test") {
			t.Errorf("lookups are %q, want A unknown.test among them", asked)
		}
	})
}

func TestNothingReachesTheMachine(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	lab := sbxtest.NewLab(t)
	got := lab.Run(t, sbxtest.AsUser, "curl", "-s", "--max-time", "5", "http://"+listener.Addr().String())
	if got.Exit != 7 {
		t.Errorf("the machine's own loopback: exit %d, want 7", got.Exit)
	}
	if dials := lab.Dials(); len(dials) != 0 {
		t.Errorf("dials are %v, want none", dials)
	}
}

func TestRawRecordsExactBytes(t *testing.T) {
	lab := sbxtest.NewLab(t)
	answer := func(c net.Conn) {
		buf := make([]byte, 4096)
		_, _ = c.Read(buf)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}
	plain := lab.ServeRaw("raw.test", 8080, sbxtest.PlainTCP, answer)
	secure := lab.ServeRaw("raw.test", 443, sbxtest.OverTLS1, answer)
	want := "GET /a%2fb?c HTTP/1.1\r\nHost: raw.test\r\nAccept: */*\r\n\r\n"
	for url, raw := range map[string]*sbxtest.Raw{"https://raw.test/a%2fb?c": secure, "http://raw.test:8080/a%2fb?c": plain} {
		got := lab.Run(t, sbxtest.AsUser, "curl", "-sS", "-A", "", url)
		if got.Stdout != "ok" {
			t.Errorf("%s: %+v", url, got)
		}
		var received string
		for _, bytes := range raw.Received() {
			received += string(bytes)
		}
		if diff := cmp.Diff(want, strings.Replace(received, ":8080", "", 1)); diff != "" {
			t.Errorf("%s was sent (-want +got):\n%s", url, diff)
		}
	}
}

func TestServeGitClonesAndPushes(t *testing.T) {
	forEveryone(t, func(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) {
		lab.ServeGit(t, "git.test", "acme/widget", map[string]string{"README": "hello"})
		got := lab.Run(t, who, "sh", "-ec", `
			git clone -q https://git.test/acme/widget
			cd widget && cat README && git checkout -q -b more
			git push -q origin more`)
		if got.Exit != 0 || got.Stdout != "hello" {
			t.Errorf("clone and push: %+v", got)
		}
	})
}

func TestCommandsAreOrdinary(t *testing.T) {
	forEveryone(t, func(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) {
		lab.Configure("# written by the test\n")
		got := lab.Run(t, who, "sh", "-c", `id -u; echo "$HOME"; pwd; ls /proc/self/fd | wc -w; cat /etc/sbx/config.toml; touch made; stat -c %u made`)
		uid := strconv.Itoa(lab.UID(who))
		// ls itself has the fourth descriptor open.
		want := strings.Join([]string{uid, lab.Home(who), lab.Project(who), "4", "# written by the test", uid, ""}, "\n")
		if diff := cmp.Diff(want, got.Stdout); diff != "" || got.Exit != 0 {
			t.Errorf("exit %d, %s(-want +got):\n%s", got.Exit, got.Stderr, diff)
		}
		if who == sbxtest.AsRoot {
			return
		}
		caps := lab.Run(t, who, "grep", "-E", "Cap(Inh|Prm|Eff|Amb)", "/proc/self/status")
		for line := range strings.Lines(caps.Stdout) {
			if !strings.HasSuffix(line, "\t0000000000000000\n") {
				t.Errorf("an ordinary user has capabilities: %s", line)
			}
		}
	})
}

// A sandbox is made of a user namespace inside, in which the user is root
// first and itself again further in.
func TestUserNamespacesNest(t *testing.T) {
	forEveryone(t, func(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) {
		got := lab.Run(t, who, "unshare", "-Urnmp", "--fork", "--mount-proc", "sh", "-ec",
			"mount -t tmpfs none /mnt; ip link set lo up; nft add table inet x; unshare -U true; id -u")
		if got.Exit != 0 || got.Stdout != "0\n" {
			t.Errorf("nesting: %+v", got)
		}
	})
}

func TestProcessesSeesOrphans(t *testing.T) {
	lab := sbxtest.NewLab(t)
	cmd := lab.Command(t, sbxtest.AsUser, "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!")
	got := lab.RunCommand(t, sbxtest.AsUser, cmd)
	pid, err := strconv.Atoi(strings.TrimSpace(got.Stdout))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(sbxtest.Processes(t), func(p sbxtest.Process) bool { return p.PID == pid })
	if i < 0 {
		t.Errorf("process %d is not among %v", pid, sbxtest.Processes(t))
	}
	if out, err := exec.Command("kill", "-9", strconv.Itoa(pid)).CombinedOutput(); err != nil {
		t.Errorf("ending the orphan: %v %s", err, out)
	}
}

func TestMountsAreTheLabs(t *testing.T) {
	lab := sbxtest.NewLab(t)
	if !slices.ContainsFunc(lab.Mounts(), func(m string) bool { return strings.Contains(m, " /etc rw") }) {
		t.Errorf("no mount on /etc among\n%s", strings.Join(lab.Mounts(), "\n"))
	}
}

func TestRealNetworkIsTheMachines(t *testing.T) {
	lab := sbxtest.NewLab(t, sbxtest.RealNetwork())
	inside := lab.Run(t, sbxtest.AsUser, "readlink", "/proc/self/ns/net")
	outside, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(inside.Stdout) != outside {
		t.Errorf("the network namespace is %s, want %s", inside.Stdout, outside)
	}
}

func TestServeNPMInstallsAndRunsScripts(t *testing.T) {
	forEveryone(t, func(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) {
		registry := lab.ServeNPM(t, "npm.test",
			sbxtest.Package{Name: "top", Version: "1.0.0", Dependencies: map[string]string{"@scope/inner": "2.0.0"}},
			sbxtest.Package{
				Name: "@scope/inner", Version: "2.0.0", Files: map[string]string{"install.js": "require('fs').writeFileSync('ran', 'yes')"},
				Scripts: map[string]string{"postinstall": "node install.js"},
			})
		lab.Write(who, "package.json", `{"name":"project","version":"1.0.0","dependencies":{"top":"1.0.0"},"allowScripts":{"@scope/inner":true}}`)
		got := lab.Run(t, who, "sh", "-c", `NODE_EXTRA_CA_CERTS=`+lab.CA()+` npm install --registry https://npm.test/ --no-audit --no-fund --no-update-notifier && cat node_modules/@scope/inner/ran`)
		if got.Exit != 0 || !strings.HasSuffix(got.Stdout, "yes") {
			t.Errorf("npm install: %+v", got)
		}
		asked := map[string]bool{}
		for _, r := range registry.Requests() {
			asked[r.Target] = true
		}
		want := map[string]bool{"/top": true, "/@scope%2finner": true, "/top/-/top-1.0.0.tgz": true, "/@scope/inner/-/inner-2.0.0.tgz": true}
		if diff := cmp.Diff(want, asked); diff != "" {
			t.Errorf("npm asked the registry for (-want +got):\n%s", diff)
		}
	})
}
