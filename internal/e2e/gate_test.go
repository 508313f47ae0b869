package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// gateHealth is what `sbx health --json` prints, as far as these tests look.
type gateHealth struct {
	Status, Why, Deployment string
	Advisory                struct{ State, Detail string }
}

// health asks, with a binary and variables, in whatever the command line begins with.
func health(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, env []string, argv ...string) gateHealth {
	t.Helper()
	cmd := lab.Command(t, who, append(argv, "health", "--json")...)
	cmd.Env = append(cmd.Env, env...)
	got := lab.RunCommand(t, who, cmd)
	var h gateHealth
	if err := json.Unmarshal([]byte(got.Stdout), &h); err != nil || (got.Exit == 0) != (h.Status == "ok") {
		t.Fatalf("exit status %d, %v\n%s%s", got.Exit, err, got.Stdout, got.Stderr)
	}
	return h
}

func TestVector38_WhatTheCanarySays(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, row := range []struct{ wall, outcome, says string }{
			{"nothing", "passed", "refused the unlisted host over HTTPS"}, // 520 and 520
			{"https", "inconclusive", "HTTPS does not reach the proxy"},   // only HTTP
			{"ca", "inconclusive", "the run's CA is not trusted"},         // only unverified
			{"gate", "failed", "answered 200"},                            // any 2xx or 3xx
			{"listener", "inconclusive", "the fence refused"},             // nothing
		} {
			a, exit := canary(t, lab, who, sbxtest.BrokenBinary(t), "SBX_BREAK="+row.wall)
			if a.Outcome != row.outcome || !strings.Contains(a.Diagnosis, row.says) || (exit == 0) != (row.outcome == "passed") {
				t.Errorf("%s: exit status %d, %s: %s", row.wall, exit, a.Outcome, a.Diagnosis)
			}
		}
	})
}

// A verdict of another deployment, one of yesterday, and one of a clock that was wrong
// are none.
func TestVector39_OldAndForeignVerdictsAreNone(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		if a, exit := canary(t, lab, who, sbxtest.Binary(t)); exit != 0 {
			t.Fatalf("the canary: %+v", a)
		}
		h := health(t, lab, who, nil, "sbx")
		if h.Status != "ok" {
			t.Fatalf("%+v", h)
		}
		at := func(age time.Duration) string {
			return fmt.Sprintf("UPDATE verdicts SET at = %d", time.Now().Add(-age).UnixMilli())
		}
		for name, change := range map[string]string{
			"24 hours old":          at(24 * time.Hour),
			"of tomorrow":           at(-24 * time.Hour),
			"of another deployment": "UPDATE verdicts SET deployment = '" + strings.Repeat("0", 64) + "'",
			"inconclusive":          "UPDATE verdicts SET outcome = 'inconclusive'",
			"of no known outcome":   "UPDATE verdicts SET outcome = 'fine'",
			"failed":                "UPDATE verdicts SET outcome = 'failed'",
			"none":                  "DELETE FROM verdicts",
		} {
			inStore(t, lab, who, "DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT * FROM verdicts; "+change)
			want := "unverified"
			if name == "failed" {
				want = "misconfigured"
			}
			if h := health(t, lab, who, nil, "sbx"); h.Status != want {
				t.Errorf("%s: %+v", name, h)
			}
			refused(t, run(t, lab, who, "--require-canary", "--", "true"), "fresh pass of the canary")
			inStore(t, lab, who, "DELETE FROM verdicts; INSERT INTO verdicts SELECT * FROM kept; DROP TABLE kept")
		}
		inStore(t, lab, who, at(24*time.Hour-time.Minute))
		if h := health(t, lab, who, nil, "sbx"); h.Status != "ok" {
			t.Errorf("a minute before: %+v", h)
		}
		// A clock that was wrong stands in nobody's way.
		inStore(t, lab, who, at(-48*time.Hour))
		if a, exit := canary(t, lab, who, sbxtest.Binary(t)); exit != 0 {
			t.Fatalf("the canary: %+v", a)
		}
		if h := health(t, lab, who, nil, "sbx"); h.Status != "ok" {
			t.Errorf("after a new canary: %+v", h)
		}
	})
}

// Each part of what a verdict is about makes another deployment of it.
func TestVector39_EachPartIsOfTheDeployment(t *testing.T) {
	lab := sbxtest.NewLab(t)
	ids := map[string]string{}
	everyone(t, func(t *testing.T, who sbxtest.User) {
		add := func(what string, h gateHealth) {
			t.Helper()
			if other, twice := ids[h.Deployment]; twice || len(h.Deployment) != 64 {
				t.Errorf("%s of %s: the deployment is that of %s: %+v", what, who, other, h)
			}
			ids[h.Deployment] = what + " of " + who.String()
		}
		add("nothing", health(t, lab, who, nil, "sbx")) // root and user are two
		text, err := os.ReadFile(sbxtest.Binary(t))
		must(t, err)
		changed := lab.Write(who, "changed-sbx", string(text)+"\n")
		must(t, os.Chmod(changed, 0o755))
		add("the binary", health(t, lab, who, nil, changed))
		add("the kernel's release", health(t, lab, who, nil, "setarch", "--uname-2.6", sbxtest.Binary(t)))
		// An ordinary user's lab is in a namespace below the machine's: what lies below that the
		// kernel does not tell apart.
		if name, err := os.Readlink("/proc/self/ns/user"); err == nil && name == "user:[4026531837]" {
			add("the user namespace", health(t, lab, who, nil, "unshare", "--user", "--map-current-user", sbxtest.Binary(t)))
		}
		lab.Configure("summary = false\n")
		add("the configuration", health(t, lab, who, nil, "sbx"))
		lab.Configure("")
		config := filepath.Join(lab.Home(who), ".config/sbx/config.toml")
		must(t, os.MkdirAll(filepath.Dir(config), 0o700), os.WriteFile(config, []byte("summary = false\n"), 0o600))
		if os.Geteuid() == 0 {
			must(t, os.Lchown(filepath.Dir(filepath.Dir(config)), lab.UID(who), -1), os.Lchown(filepath.Dir(config), lab.UID(who), -1), os.Lchown(config, lab.UID(who), -1))
		}
		add("the user's configuration", health(t, lab, who, nil, "sbx"))
		must(t, os.Remove(config))
		if who != sbxtest.AsRoot {
			return // nobody else can change what the kernel says of itself
		}
		for what, over := range map[string]string{"a setting of the kernel": "/proc/sys/kernel/yama/ptrace_scope", "another": "/proc/sys/user/max_user_namespaces"} {
			lab.Within(t, func() error {
				if err := unix.Mount("/etc/hostname", over, "", unix.MS_BIND, ""); err != nil {
					if os.IsNotExist(err) {
						return nil
					}
					return err
				}
				return nil
			})
			if _, err := os.Stat(over); err == nil {
				add(what, health(t, lab, who, nil, "sbx"))
			}
			lab.Within(t, func() error { _ = unix.Unmount(over, unix.MNT_DETACH); return nil })
		}
		lab.Within(t, func() error { return unix.Mount("none", "/sys/fs/cgroup", "tmpfs", 0, "") })
		add("the mode of cgroups", health(t, lab, who, nil, "sbx"))
		lab.Within(t, func() error { return unix.Unmount("/sys/fs/cgroup", unix.MNT_DETACH) })
	})
}

// serving starts a server and returns how to reach it.
func serving(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, flags ...string) (at string) {
	t.Helper()
	return servingBinary(t, lab, who, "sbx", flags...)
}

func servingBinary(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, binary string, flags ...string) (at string) {
	t.Helper()
	cmd := lab.Command(t, who, append([]string{binary, "serve"}, flags...)...)
	said := newOutput()
	cmd.Stdout, cmd.Stderr = newOutput(), said
	lab.Start(t, cmd)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		if exit := sbxtest.Wait(t, cmd); exit != 0 {
			t.Errorf("serve: exit status %d: %s", exit, said)
		}
	})
	said.until(t, "serving on ")
	said.until(t, "\n")
	_, at, _ = strings.Cut(said.String(), "serving on ")
	return strings.TrimSpace(at)
}

func TestVerifyDeployAsksAServer(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, lab.Run(t, who, "sbx", "state", "migrate"))
		socket := filepath.Join(lab.Home(who), "run/serve.sock")
		if at := serving(t, lab, who, "--socket", socket); at != socket {
			t.Fatalf("serving on %q", at)
		}
		for _, where := range [][]string{{"--socket", socket}, {"--url", "http://" + serving(t, lab, who, "--listen", "127.0.0.1:0")}} {
			inStore(t, lab, who, "DELETE FROM verdicts")
			verify := func(want int, says string, args ...string) {
				t.Helper()
				got := lab.Run(t, who, slices.Concat([]string{"sbx", "verify-deploy"}, args, where)...)
				if got.Exit != want || !strings.Contains(got.Stdout+got.Stderr, says) {
					t.Errorf("%q %q: exit status %d, want %d with %q\n%s%s", args, where, got.Exit, want, says, got.Stdout, got.Stderr)
				}
			}
			verify(1, "trying again in 1ms (2 of 3)", "health", "--attempts", "3", "--interval", "1ms")
			verify(0, "migrations: current", "migrations")
			verify(0, "canary: passed", "canary")
			verify(0, "dogfood: passed")
			verify(0, "health: ok", "health")
			inStore(t, lab, who, "UPDATE verdicts SET outcome = 'failed' WHERE kind = 'canary'")
			verify(1, "canary: failed")
			verify(1, "health: misconfigured", "health", "--attempts", "9")
		}
	})
}

// A server whose binary was replaced, by one over it or beside it, vouches for nothing: what
// lies there now was never proved.
func TestAServerVouchesForNoOtherBinary(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, lab.Run(t, who, "sbx", "state", "migrate"))
		for i, upgrade := range []string{`cp "$2" new && mv -f new "$1"`, `mv "$1" old && cp "$2" "$1"`} {
			binary := filepath.Join(lab.Home(who), fmt.Sprint("bin", i), "sbx")
			host(t, lab, who, 0, "sh", "-c", `mkdir -p "${1%/*}" && cp "$2" "$1"`, "x", binary, sbxtest.Binary(t))
			where := []string{"--attempts", "1", "--socket", filepath.Join(lab.Home(who), fmt.Sprint("run", i), "serve.sock")}
			servingBinary(t, lab, who, binary, where[2:]...)
			verify := func(want int, says string, args ...string) {
				t.Helper()
				cmd := lab.Command(t, who, slices.Concat([]string{binary, "verify-deploy"}, args, where)...)
				cmd.Env = append(cmd.Env, "SBX_BREAK=gate")
				got := lab.RunCommand(t, who, cmd)
				if got.Exit != want || !strings.Contains(got.Stdout+got.Stderr, says) {
					t.Errorf("%s: %q: exit status %d, want %d with %q\n%s%s", upgrade, args, got.Exit, want, says, got.Stdout, got.Stderr)
				}
			}
			verify(0, "dogfood: passed")
			host(t, lab, who, 0, "sh", "-c", `cd "${1%/*}" && `+upgrade, "x", binary, sbxtest.BrokenBinary(t))
			verify(1, "restart")
			for _, check := range []string{"canary", "health", "dogfood"} {
				verify(1, "unverified", check, "--deployment", "any")
				verify(1, "replaced", check, "--deployment", "any")
			}
		}
	})
}

// A full pool defers, here and behind a server; what waits goes on when a slot is free.
func TestVerifyDeployWaitsForAPool(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(oneTask)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, lab.Run(t, who, "sbx", "state", "migrate"))
		socket := filepath.Join(lab.Home(who), "run/serve.sock")
		serving(t, lab, who, "--socket", socket)
		for _, where := range [][]string{nil, {"--socket", socket}} {
			inStore(t, lab, who, "DELETE FROM verdicts")
			holder := hold(t, lab, who)
			got := lab.Run(t, who, slices.Concat([]string{"sbx", "verify-deploy", "canary", "--attempts", "2", "--interval", "1ms"}, where)...)
			if got.Exit != 1 || !strings.Contains(got.Stderr, "canary: deferred") || !strings.Contains(got.Stderr, "trying again") || !strings.Contains(got.Stdout, "deferred") {
				t.Errorf("%q: exit status %d\n%s%s", where, got.Exit, got.Stdout, got.Stderr)
			}
			cmd := lab.Command(t, who, slices.Concat([]string{"sbx", "verify-deploy", "canary", "--attempts", "1000", "--interval", "50ms"}, where)...)
			out, said := newOutput(), newOutput()
			cmd.Stdout, cmd.Stderr = out, said
			lab.Start(t, cmd)
			said.until(t, "trying again")
			holder.letGo(t)
			if exit := sbxtest.Wait(t, cmd); exit != 0 || !strings.Contains(out.String(), "canary: passed") {
				t.Errorf("%q: exit status %d: %s%s", where, exit, out, said)
			}
		}
		// Deferred is no verdict.
		inStore(t, lab, who, "DELETE FROM verdicts")
		holder := hold(t, lab, who)
		if got := lab.Run(t, who, "sbx", "canary", "--json"); got.Exit != 1 || !strings.Contains(got.Stdout, `"outcome": "deferred"`) {
			t.Errorf("exit status %d: %s", got.Exit, got.Stdout)
		}
		if h := health(t, lab, who, nil, "sbx"); h.Status != "unverified" || !strings.Contains(h.Why, "no canary is known") {
			t.Errorf("%+v", h)
		}
		holder.letGo(t)
	})
}

// Where the operator lets runs queue, those that sbx makes for itself do not: who asked
// for them tries again.
func TestProbesNeverQueue(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure("queue = true\nwait = \"0s\"\n" + oneTask)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		holder := hold(t, lab, who)
		for _, probe := range []string{"canary", "dogfood"} {
			got := within(t, time.Minute, lab, who, lab.Command(t, who, "sbx", probe, "--fresh", "--json"))
			if got.Exit != 1 || !strings.Contains(got.Stdout, `"outcome": "deferred"`) {
				t.Errorf("%s: exit status %d\n%s%s", probe, got.Exit, got.Stdout, got.Stderr)
			}
		}
		holder.letGo(t)
		idle(t, lab, who)
	})
}

// A probe that hangs ends with its server, whether that is asked to end or killed, and
// leaves nothing.
func TestAProbeEndsWithItsServer(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, lab.Run(t, who, "sbx", "state", "migrate"))
		for _, row := range []struct {
			probe  string
			signal unix.Signal
			exit   int
		}{
			{"canary", unix.SIGTERM, 0},
			{"canary", unix.SIGKILL, 128 + int(unix.SIGKILL)},
			{"dogfood", unix.SIGTERM, 0},
			{"dogfood", unix.SIGKILL, 128 + int(unix.SIGKILL)},
		} {
			scratch := filepath.Join(lab.Home(who), "scratch")
			host(t, lab, who, 0, "mkdir", "-p", scratch)
			socket := filepath.Join(lab.Home(who), "run/serve.sock")
			server := lab.Command(t, who, sbxtest.BrokenBinary(t), "serve", "--socket", socket)
			server.Env = append(server.Env, "SBX_BREAK=fault:prove-floor:wait", "TMPDIR="+scratch)
			said := newOutput()
			server.Stdout, server.Stderr = newOutput(), said
			lab.Start(t, server)
			said.until(t, "serving on ")
			client := lab.Command(t, who, "/usr/bin/curl", "-s", "-X", "POST", "--unix-socket", socket, "http://localhost/"+row.probe)
			client.Stdout, client.Stderr = newOutput(), newOutput()
			lab.Start(t, client)
			eventually(t, time.Minute, "the probe has its slot", func() bool { return len(poolStatus(t, lab, who).Runs) == 1 })
			began := time.Now()
			must(t, server.Process.Signal(row.signal))
			if exit := sbxtest.Wait(t, server); exit != row.exit || time.Since(began) > 30*time.Second {
				t.Errorf("%+v: exit status %d after %s: %s", row, exit, time.Since(began), said)
			}
			sbxtest.Wait(t, client)
			eventually(t, 30*time.Second, "the probe has ended", func() bool { return len(poolStatus(t, lab, who).Runs) == 0 })
			nobodyRuns(t)
			eventually(t, 10*time.Second, "the probe took back its scratch directory and its key", func() bool {
				left, err := os.ReadDir(scratch)
				keys := lab.Run(t, who, "sbx", "keys", "list", "--consumer", "dogfood", "--json")
				return err == nil && len(left) == 0 && strings.Contains(keys.Stdout, `"keys": []`)
			})
			if strings.Contains(said.String(), "context") {
				t.Errorf("%+v: %s", row, said)
			}
		}
	})
}

// Only a signed advisory that is in force counts, and only one's own keys sign it.
func TestAnAdvisoryIsBelievedOnlySigned(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reviewer(t, lab, who)
		home := lab.Home(who)
		file := filepath.Join(home, "advisory.json")
		lab.Configure(fmt.Sprintf("allowed_signers = %q\nadvisory = %q\n", home+"/signers", file))
		binary := sbxtest.VersionedBinary(t)
		if a, exit := canary(t, lab, who, binary); exit != 0 {
			t.Fatalf("the canary: %+v", a)
		}
		now := time.Now().UTC()
		write := func(least, lost string, expires time.Time, serial int, more string) {
			text := fmt.Sprintf(`{"min_supported": %q, "lost_below": %q, "component_only": false, "issued": %q, "expires": %q, "serial": %d%s}`,
				least, lost, now.Add(-time.Hour).Format(time.RFC3339), expires.Format(time.RFC3339), serial, more)
			host(t, lab, who, 0, "sh", "-c", `rm -f "$1" "$1.sig"; printf %s "$2" >"$1"`, "x", file, text)
		}
		sign := func(key, namespace string) {
			host(t, lab, who, 0, "ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", namespace, file)
		}
		host(t, lab, who, 0, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "../foreign")
		const ours = "sbx-advisory-v1"
		tomorrow := now.Add(24 * time.Hour)
		for _, row := range []struct {
			name, status, state, says string
			make                      func()
		}{
			{"supported", "ok", "supported", "", func() { write("v1.2.3", "v1.0.0", tomorrow, 5, ""); sign("../key", ours) }},
			{"unsupported", "unsupported", "unsupported", "not supported", func() { write("v1.2.4", "", tomorrow, 6, ""); sign("../key", ours) }},
			{"lost", "unsupported", "unsupported", "known not to hold", func() { write("", "v2.0.0", tomorrow, 7, ""); sign("../key", ours) }},
			{"lower serial", "unverified", "unknown", "put back", func() { write("v1.0.0", "", tomorrow, 6, ""); sign("../key", ours) }},
			{"expired", "unverified", "unknown", "expired", func() { write("v1.0.0", "", now.Add(-time.Minute), 8, ""); sign("../key", ours) }},
			{"wrong namespace", "unverified", "unknown", "signature", func() { write("v1.0.0", "", tomorrow, 9, ""); sign("../key", "sbx-profile-v1") }},
			{"unsigned", "unverified", "unknown", "no such file", func() { write("v1.0.0", "", tomorrow, 9, "") }},
			{"another's key", "unverified", "unknown", "who signed", func() { write("v1.0.0", "", tomorrow, 9, ""); sign("../foreign", ours) }},
			{"changed afterwards", "unverified", "unknown", "signature", func() {
				write("v1.0.0", "", tomorrow, 9, "")
				sign("../key", ours)
				host(t, lab, who, 0, "sed", "-i", "s/v1.0.0/v0.0.0/", file)
			}},
			{"an unknown key", "unverified", "unknown", "parsing", func() { write("v1.0.0", "", tomorrow, 9, `, "x": 1`); sign("../key", ours) }},
			{"none of these counted", "ok", "supported", "", func() { write("v1.2.3", "", tomorrow, 8, ""); sign("../key", ours) }},
			{"missing", "unverified", "unknown", "no such file", func() { must(t, os.Remove(file)) }},
		} {
			row.make()
			h := health(t, lab, who, nil, binary)
			if h.Status != row.status || h.Advisory.State != row.state || !strings.Contains(h.Advisory.Detail, row.says) {
				t.Errorf("%s: %+v", row.name, h)
			}
		}
	})
}

// Nothing that the caller's surroundings say makes a sandbox pass that does not hold, or
// one fail that does: proxies, certificates, the state directory of somebody else.
func TestBypass65_SurroundingsDoNotDecide(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		none := lab.Write(who, "none.pem", "")
		hostile := []string{
			"HTTPS_PROXY=http://evil.test:1", "HTTP_PROXY=http://evil.test:1", "ALL_PROXY=http://evil.test:1", "NO_PROXY=*", "no_proxy=*",
			"SSL_CERT_FILE=" + none, "SSL_CERT_DIR=/nonexistent", "NODE_EXTRA_CA_CERTS=" + none, "GODEBUG=netdns=cgo", "RES_OPTIONS=use-vc",
			"LD_PRELOAD=/nonexistent.so", "CI=1", "SBX_BREAK=nothing", "TMPDIR=" + lab.Home(who),
		}
		outside := watching(lab)
		if a, exit := canary(t, lab, who, sbxtest.Binary(t), hostile...); exit != 0 {
			t.Errorf("exit status %d: %+v", exit, a)
		}
		outside.nothingLeft(t)
		for _, wall := range []string{"gate", "unix", "landlock"} {
			if a, exit := canary(t, lab, who, sbxtest.BrokenBinary(t), append(hostile, "SBX_BREAK="+wall)...); exit != 1 || a.Outcome != "failed" {
				t.Errorf("without %s: exit status %d: %+v", wall, exit, a)
			}
		}
		if who == sbxtest.AsRoot {
			return // its state directory is always the same
		}
		// A store that somebody else could have written, with a pass in it, is not read.
		planted := filepath.Join(lab.Home(who), "planted")
		host(t, lab, who, 0, "cp", "-r", lab.StateDir(who), planted+"-sbx")
		host(t, lab, who, 0, "sh", "-c", `mkdir "$1" && mv "$1-sbx" "$1/sbx" && chmod 777 "$1/sbx"`, "x", planted)
		if h := health(t, lab, who, []string{"XDG_STATE_HOME=" + planted}, "sbx"); h.Status != "misconfigured" {
			t.Errorf("%+v", h)
		}
		cmd := lab.Command(t, who, "sbx", "exec", "--require-canary", "--", "true")
		cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+planted)
		refused(t, lab.RunCommand(t, who, cmd), "others may enter or change it")
	})
}

// Every run proves its own floor: where it does not hold, nothing runs, whatever the
// caller's mode.
func TestBypass65_EveryRunProvesItsFloor(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, mode := range [][]string{{}, {"--quiet"}, {"--json"}, {"--no-tty"}, {"--position", "report"}, {"--position", "legacy"}, {"--wait-children"}, {"--profile", "js-install"}} {
			for _, wall := range []string{"listener", "ipv6"} {
				cmd := lab.Command(t, who, slices.Concat([]string{sbxtest.BrokenBinary(t), "exec"}, mode, []string{"--", "touch", "ran"})...)
				cmd.Env = append(cmd.Env, "SBX_BREAK="+wall, "CI=true")
				refused(t, lab.RunCommand(t, who, cmd))
				if _, err := os.Lstat(filepath.Join(lab.Home(who), "project/ran")); err == nil {
					t.Fatalf("%q without %s: it ran", mode, wall)
				}
			}
		}
	})
}

// There is nothing to be started, logged in to or left running.
func TestBypass67_NoDaemonAndNoLogin(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, argv := range [][]string{{"exec", "--", "true"}, {"canary"}, {"verify-deploy"}, {"health"}} {
			cmd := lab.Command(t, who, append([]string{"sbx"}, argv...)...)
			cmd.Env = []string{"HOME=" + lab.Home(who)}
			succeeded(t, lab.RunCommand(t, who, cmd))
			if left := sbxtest.Processes(t); len(left) > 0 {
				t.Errorf("%q left %v", argv, left)
			}
		}
		must(t, filepath.WalkDir(lab.StateDir(who), func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Type()&os.ModeSocket != 0 {
				t.Errorf("a socket was left: %s", path)
			}
			return err
		}))
	})
}

// Whatever follows "--" is fenced, not only what is known to install something.
func TestBypass68_WhateverFollowsIsFenced(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Serve("unlisted.test", nil)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		outside := watching(lab)
		for _, argv := range [][]string{
			{"curl", "-s", "https://unlisted.test/"},
			{"npm", "install", "--registry", "https://unlisted.test/"},
			{"npm", "update", "--registry", "https://unlisted.test/"},
			{"npm", "exec", "--yes", "--registry", "https://unlisted.test/", "nothing"},
			{"git", "ls-remote", "https://unlisted.test/x"},
			{"python3", "-c", "import urllib.request; urllib.request.urlopen('https://unlisted.test/')"},
			{"env", "-i", "/usr/bin/curl", "-s", "https://unlisted.test/"},
			{"sh", "-c", "exec curl -s https://unlisted.test/"},
			{sbxtest.Binary(t), "version"},
		} {
			got := run(t, lab, who, append([]string{"--timeout", "2m", "--"}, argv...)...)
			if got.RunDir == "" {
				t.Errorf("%q: no run\n%s%s", argv, got.Stdout, got.Stderr)
			}
		}
		outside.nothingLeft(t)
	})
}

// fakeServer says on a socket in the working directory that all is well.
const fakeServer = `
import socketserver
class Fine(socketserver.StreamRequestHandler):
    def handle(self):
        while self.rfile.readline().strip(): pass
        text = b'{"status": "ok", "kind": "canary", "outcome": "passed", "deployment": "x", "store": {"schema": 1, "known": 1}}'
        self.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
server = socketserver.UnixStreamServer("serve.sock", Fine)
print("ready", flush=True)
server.serve_forever()
`

// A command that lays a socket into its working directory and answers there is not taken
// for sbx.
func TestAServerInASandboxIsNotBelieved(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		cmd := lab.Command(t, who, "sbx", "exec", "--", "python3", "-c", fakeServer)
		out := newOutput()
		cmd.Stdout, cmd.Stderr = out, newOutput()
		lab.Start(t, cmd)
		out.until(t, "ready\n")
		for _, check := range []string{"health", "canary"} {
			got := lab.Run(t, who, "sbx", "verify-deploy", check, "--socket", "serve.sock", "--attempts", "1")
			if got.Exit != 1 || !strings.Contains(got.Stdout, "word does not count") {
				t.Errorf("%s: exit status %d\n%s%s", check, got.Exit, got.Stdout, got.Stderr)
			}
		}
		// Outside of a sandbox the same answers would do.
		must(t, cmd.Process.Signal(unix.SIGTERM))
		sbxtest.Wait(t, cmd)
		must(t, os.RemoveAll(filepath.Join(lab.Home(who), "project/serve.sock")))
		outside := lab.Command(t, who, "/usr/bin/python3", "-c", fakeServer)
		out = newOutput()
		outside.Stdout, outside.Stderr = out, newOutput()
		lab.Start(t, outside)
		out.until(t, "ready\n")
		host(t, lab, who, 1, "sbx", "verify-deploy", "health", "--socket", "serve.sock") // another deployment's
		host(t, lab, who, 0, "sbx", "verify-deploy", "health", "--socket", "serve.sock", "--deployment", "any")
		must(t, outside.Process.Kill())
		sbxtest.Wait(t, outside)
	})
}
