package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// limited starts sbx where a limit of namespaces is 0.
func limited(kind string) string {
	return `unshare -Ur sh -c 'echo 0 >/proc/sys/user/max_` + kind + `_namespaces && exec "$SBX" exec -- touch ran'`
}

// Whatever namespaces the host refuses, nothing runs, and the message says which, why
// and what helps.
func TestCase01_NamespacesAreRefused(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, kind := range []string{"user", "mnt", "net", "pid"} {
			got := outside(t, lab, who, limited(kind))
			refused(t, got, "user.max_"+kind+"_namespaces is 0", "sysctl -w user.max_"+kind+"_namespaces=")
			nothingRan(t, lab, who)
		}
		chroot := `mkdir -p r && mount --rbind / r && exec chroot r sh -c "cd $PWD && exec $SBX exec -- touch ran"`
		got := outside(t, lab, who, `unshare -`+inNamespace(who)+`m sh -c '`+chroot+`'`)
		refused(t, got, "chroot")
		nothingRan(t, lab, who)
		got = outside(t, lab, who, `unshare -U "$SBX" exec -- touch ran`)
		refused(t, got, "uid_map is empty")
		nothingRan(t, lab, who)
		for _, r := range []string{got.Stderr} {
			if strings.Contains(r, "panic") || strings.Contains(r, "goroutine") {
				t.Errorf("sbx crashed: %s", r)
			}
		}
	})
}

// inNamespace is unshare's flag for who needs a user namespace to change mounts.
func inNamespace(who sbxtest.User) string {
	if who == sbxtest.AsUser {
		return "Ur"
	}
	return ""
}

// A filter that refuses a call that sbx needs stops the run, and doctor names the call.
func TestCase01_CallsAreRefused(t *testing.T) {
	lab := sbxtest.NewLab(t)
	program := compiled(t, "refuse.c")
	everyone(t, func(t *testing.T, who sbxtest.User) {
		refuse := filepath.Join(lab.Home(who), "refuse")
		lab.Write(who, "../refuse", contents(t, program))
		for name, number := range map[string]int{
			"unshare": unix.SYS_UNSHARE, "mount": unix.SYS_MOUNT, "pivot_root": unix.SYS_PIVOT_ROOT, "setns": unix.SYS_SETNS,
			"seccomp": unix.SYS_SECCOMP, "pidfd_open": unix.SYS_PIDFD_OPEN, "memfd_create": unix.SYS_MEMFD_CREATE,
			"open_tree": unix.SYS_OPEN_TREE, "close_range": unix.SYS_CLOSE_RANGE, "sethostname": unix.SYS_SETHOSTNAME, "prctl": unix.SYS_PRCTL,
		} {
			got := outside(t, lab, who, fmt.Sprintf(`%s %d "$SBX" exec -- touch ran`, refuse, number))
			refused(t, got, "sbx: ", "next: ")
			nothingRan(t, lab, who)
			if name == "mount" || name == "seccomp" || name == "prctl" {
				continue // doctor has facts of their own for what they do
			}
			doctor := outside(t, lab, who, fmt.Sprintf(`%s %d "$SBX" doctor --json`, refuse, number))
			if doctor.Exit != 1 || !strings.Contains(doctor.Stdout, name) && name != "unshare" {
				t.Errorf("%s: doctor's status is %d, and it says %s", name, doctor.Exit, doctor.Stdout)
			}
		}
		// Without keyrings, clone3 and Landlock a run is as good: nothing inside can use them.
		printed(t, outside(t, lab, who, fmt.Sprintf(`%s %d,%d,%d,%d "$SBX" exec -- echo ok`, refuse,
			unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_CLONE3)), "ok\n")
	})
}

// Root without what a sandbox needs is refused, and each missing capability named.
func TestCase02_RootWithoutCapabilities(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		if who == sbxtest.AsUser {
			// Root of a user namespace without other ids is an ordinary user.
			printed(t, outside(t, lab, who, `unshare -Ur "$SBX" exec -- id -u`), "1000\n")
			return
		}
		got := outside(t, lab, who, `capsh --drop=cap_sys_admin,cap_net_admin,cap_setuid,cap_setgid -- -c '"$SBX" exec -- touch ran'`)
		refused(t, got, "CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_SETUID, CAP_SETGID", "setpriv --reuid")
		nothingRan(t, lab, who)
		for _, name := range []string{"sys_admin", "net_admin", "sys_ptrace", "sys_chroot", "net_bind_service", "setuid", "setgid", "chown", "dac_override"} {
			got := outside(t, lab, who, `capsh --drop=cap_`+name+` -- -c '"$SBX" exec -- touch ran'`)
			refused(t, got, "without CAP_"+strings.ToUpper(name)+":")
			nothingRan(t, lab, who)
			doctor := outside(t, lab, who, `capsh --drop=cap_`+name+` -- -c '"$SBX" doctor --json'`)
			if doctor.Exit != 1 || !strings.Contains(doctor.Stdout, "CAP_"+strings.ToUpper(name)) {
				t.Errorf("doctor without %s: status %d, %s", name, doctor.Exit, doctor.Stdout)
			}
		}
		rest := "cap_fowner,cap_fsetid,cap_kill,cap_setpcap,cap_net_raw,cap_mknod,cap_audit_write,cap_setfcap,cap_sys_resource,cap_sys_nice,cap_sys_boot,cap_sys_time,cap_sys_rawio,cap_sys_module,cap_ipc_lock,cap_dac_read_search"
		printed(t, outside(t, lab, who, `capsh --drop=`+rest+` -- -c '"$SBX" exec -- sh -c "touch f && id -u"'`), "1000\n")
	})
}

// Where a new /proc cannot be mounted, nothing runs: the host's is never shown.
func TestCase04_MaskedProc(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, mask := range []string{"mount --bind /dev/null /proc/timer_list", "mount -t tmpfs none /proc/acpi", "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys"} {
			over := strings.TrimSuffix(strings.Fields(mask)[len(strings.Fields(mask))-1], "'")
			got := outside(t, lab, who, `unshare -`+inNamespace(who)+`m sh -c '`+mask+`; exec "$SBX" exec -- sh -c "ps; touch ran"'`)
			refused(t, got, "mounting \"proc\"", "/proc is masked here ("+over, "systempaths=unconfined")
			nothingRan(t, lab, who)
		}
		doctor := outside(t, lab, who, `unshare -`+inNamespace(who)+`m sh -c 'mount --bind /dev/null /proc/timer_list; exec "$SBX" doctor --json'`)
		if doctor.Exit != 1 || !strings.Contains(doctor.Stdout, "/proc/timer_list") {
			t.Errorf("doctor: status %d, %s", doctor.Exit, doctor.Stdout)
		}
	})
}

// Where sbx cannot have what it needs the command never starts: too few descriptors, no
// place for records, no /dev/null.
func TestCase05_FailsClosed(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for n := 3; n <= 72; n++ {
			limit := fmt.Sprint("-n ", n)
			if n%2 == 1 {
				limit = fmt.Sprint("-Sn ", n)
			}
			got := outside(t, lab, who, `exec bash -c 'ulimit `+limit+`; exec "$SBX" exec -- touch ran'`)
			if got.Exit == 0 {
				if err := os.Remove(filepath.Join(lab.Project(who), "ran")); err != nil {
					t.Errorf("with %s the status is 0, and nothing ran: %v", limit, err)
				}
				continue
			}
			if got.Exit != 125 || !strings.HasPrefix(got.Stderr, "sbx: ") {
				t.Errorf("with %s the status is %d: %s", limit, got.Exit, got.Stderr)
			}
			nothingRan(t, lab, who)
		}
		for limit, what := range map[string]string{"-u 12": "processes", "-u 31": "processes", "-v 400000": "address space", "-d 90000": "memory for data"} {
			if what == "processes" && who == sbxtest.AsRoot {
				continue // it does not bind root
			}
			got := outside(t, lab, who, `exec bash -c 'ulimit `+limit+`; exec "$SBX" exec -- touch ran'`)
			refused(t, got, "sbx: not enough "+what, "ulimit "+limit[:2])
			nothingRan(t, lab, who)
		}
		for _, state := range []string{"/proc/self/state", "/sys/state", "/dev/null"} {
			got := outside(t, lab, who, `XDG_STATE_HOME=`+state+` exec "$SBX" exec -- touch ran`)
			refused(t, got, "sbx: ", state)
			nothingRan(t, lab, who)
		}
		got := outside(t, lab, who, `unshare -`+inNamespace(who)+`m bash -c 'mount -t tmpfs none /dev; exec "$SBX" exec -- touch ran'`)
		refused(t, got, "/dev/null")
		nothingRan(t, lab, who)
		nobodyRuns(t)
	})
}

// Places of temporary and private files that are long, missing or read-only change
// nothing.
func TestCase06_LongAndMissingDirectories(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		long := "$HOME/" + strings.Repeat("x", 120) + "/" + strings.Repeat("y", 120)
		for _, set := range []string{
			"mkdir -p " + long + "/h; export TMPDIR=" + long + " HOME=" + long + "/h XDG_RUNTIME_DIR=" + long + " XDG_STATE_HOME=" + long + "/s XDG_CACHE_HOME=" + long + "/c",
			"export TMPDIR=/nonexistent XDG_RUNTIME_DIR=/nonexistent XDG_CACHE_HOME=/nonexistent/c",
			"export TMPDIR=/proc XDG_RUNTIME_DIR=/proc",
			"unset HOME TMPDIR XDG_RUNTIME_DIR; export XDG_STATE_HOME=" + lab.Home(who) + "/s",
		} {
			got := outside(t, lab, who, set+`; exec "$SBX" exec --profile github-api-read -- sh -c 'f=$(mktemp) && echo ok >$f && cat $f && test -w "$HOME" && test -w "$TMPDIR"'`)
			printed(t, got, "ok\n")
		}
	})
}

// However the host finds its name server, the sandbox has its own, and the host's files
// stay as they are.
func TestCase07_ResolverConfigurations(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for name, script := range map[string]string{
			"link elsewhere": "mkdir -p e && mount -t tmpfs none e && echo nameserver 192.0.2.1 >e/r && ln -sfn $PWD/e/r /etc/resolv.conf",
			"two links":      "echo nameserver 192.0.2.1 >/etc/real && ln -sfn real /etc/second && ln -sfn second /etc/resolv.conf",
			"dangling":       "ln -sfn /nonexistent/resolv.conf /etc/resolv.conf",
			"none":           "rm -f /etc/resolv.conf",
			"empty":          ": >/etc/resolv.conf",
			"search":         `printf "nameserver 127.0.0.53\nsearch corp.test other.test\noptions ndots:5\n" >/etc/resolv.conf`,
			"directory":      "rm -f /etc/resolv.conf; mkdir /etc/resolv.conf",
		} {
			t.Run(name, func(t *testing.T) {
				private := `mkdir -p up work etc && cp -rT /etc etc 2>/dev/null; mount --bind etc /etc; rm -f /etc/resolv.conf; ` + script + `; stat -c "%N %i" /etc/resolv.conf >before 2>&1
					"$SBX" exec -- sh -c "getent hosts ok.test | head -c 8; echo; cat /etc/resolv.conf"; echo $?; stat -c "%N %i" /etc/resolv.conf 2>&1 | cmp - before && echo same`
				got := outside(t, lab, who, `unshare -`+inNamespace(who)+`m bash -c '`+private+`'`)
				want := "198.18.1\nnameserver 198.18.0.1\n"
				if !strings.HasPrefix(got.Stdout, want) || !strings.HasSuffix(got.Stdout, "\n0\nsame\n") || strings.Contains(got.Stdout, "search") {
					t.Errorf("stdout %q\nstderr %q", got.Stdout, got.Stderr)
				}
				if err := os.RemoveAll(filepath.Join(lab.Project(who), "etc")); err != nil {
					t.Fatal(err)
				}
			})
		}
	})
}

// A user that no file knows, an odd /sys, a namespace in a namespace.
func TestOrdinaryHostsWork(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.WriteEtc("passwd", "root:x:0:0:root:/root:/bin/sh\n")
	everyone(t, func(t *testing.T, who sbxtest.User) {
		flags := inNamespace(who)
		if who == sbxtest.AsUser {
			got := outside(t, lab, who, `exec env -u USER -u LOGNAME "$SBX" exec -- sh -c 'id -un && id -u && touch f && stat -c %U f && echo ~'`)
			printed(t, got, fmt.Sprintf("user%[1]d\n%[1]d\nuser%[1]d\n%[2]s\n", lab.UID(who), lab.Home(who)))
		}
		for _, change := range []string{
			"mount -t tmpfs none /sys", "mount -t tmpfs -o ro none /sys", "mount -t tmpfs none /sys/fs/cgroup", "mount -t tmpfs none /var", "mount -t tmpfs -o ro none /tmp", "mount -t tmpfs none /run",
		} {
			got := outside(t, lab, who, `XDG_STATE_HOME=`+lab.Home(who)+`/s unshare -`+flags+`m sh -c '`+change+` || exit 9; exec "$SBX" exec -- echo ok'`)
			if got.Exit != 0 || got.Stdout != "ok\n" {
				t.Errorf("%s: status %d, %s%s", change, got.Exit, got.Stdout, got.Stderr)
			}
		}
		printed(t, outside(t, lab, who, `unshare -Ur unshare -Ur "$SBX" exec -- echo nested`), "nested\n")
	})
}

// doctor's answers are three, and complete.
func TestDoctorIsComplete(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		got := lab.Run(t, who, "sbx", "doctor", "--json")
		succeeded(t, got)
		var d struct {
			Ready bool
			Facts []struct{ Name, Need, State, Detail, Cost, Fix string }
		}
		if err := json.Unmarshal([]byte(got.Stdout), &d); err != nil || !d.Ready {
			t.Fatalf("%v: %s", err, got.Stdout)
		}
		var names []string
		for _, f := range d.Facts {
			names = append(names, f.Name)
			if f.State != "yes" && f.State != "no" && f.State != "unknown" {
				t.Errorf("the answer is %+v", f)
			}
			if f.Need != "info" && (f.Cost == "" || f.State == "no" && f.Fix == "") {
				t.Errorf("what it costs, or what mends it, is missing: %+v", f)
			}
		}
		for _, want := range []string{
			"user namespaces", "network namespace", "nft redirect", "new procfs", "seccomp filter", "system calls", "idmapped mounts", "landlock",
			"overlayfs", "unix_diag", "cgroup version", "memory cgroup", "pids cgroup", "container", "AppArmor", "security modules", "foreign programs", "kernel",
		} {
			if !strings.Contains(strings.Join(names, "\n"), want) {
				t.Errorf("doctor says nothing of %s", want)
			}
		}
		profile := lab.Run(t, who, "sbx", "doctor", "--apparmor")
		succeeded(t, profile)
		says(t, profile.Stdout, "userns,", `profile sbx "`+sbxtest.Binary(t)+`" flags=(unconfined) {`)
	})
}

// onHostLoopback serves on a port of the host's own loopback.
func onHostLoopback(t *testing.T, lab *sbxtest.Lab, port int, text string) {
	t.Helper()
	var listener net.Listener
	lab.Within(t, func() (err error) {
		listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		return err
	})
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

const hostProfile = `
[profiles.x-host-NAME]
version = 1
summary = "a server of the host"
[[profiles.x-host-NAME.rules]]
id = "server"
protocol = "http"
host = "host.sbx.internal"
ports = [8000]
methods = ["GET"]
path = "/**"
internal = true
allow = ["GET http://host.sbx.internal:8000/x"]
deny = ["GET http://host.sbx.internal:5432/x"]
`

// Servers on the host's own loopback are out of reach, and the attempt is told; with a
// grant they have a name, and only the granted port is open.
func TestCase29_HostLoopback(t *testing.T) {
	lab := sbxtest.NewLab(t)
	onHostLoopback(t, lab, 8000, "the server\n")
	onHostLoopback(t, lab, 5432, "the database\n")
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, url := range []string{"http://localhost:8000/", "http://127.0.0.1:8000/", "http://[::1]:8000/", "http://127.0.0.2:5432/"} {
			got := shell(t, lab, who, "curl -s --max-time 5 --noproxy '*' "+url+"; echo $?")
			printed(t, got, "7\n") // refused: loopback inside is the sandbox's own
		}
		for _, url := range []string{"http://host.sbx.internal:8000/", "http://host.sbx.internal:5432/", "http://10.77.0.2:8000/"} {
			got := shell(t, lab, who, "curl -s -o /dev/null -w '%{http_code}' --max-time 5 "+url)
			printed(t, got, "520")
			row := onlyDenial(t, got)
			if !strings.Contains(url, fmt.Sprintf("//%s:%d/", row.Host, row.Port)) {
				t.Errorf("%s: the row is %+v", url, row)
			}
		}
		reviewer(t, lab, who)
		file := lab.Write(who, "x-host.toml", strings.ReplaceAll(hostProfile, "NAME", who.String()))
		host(t, lab, who, 0, "sbx", "profiles", "approve", file, "--key", "../key")
		got := shell(t, lab, who, "curl -s http://host.sbx.internal:8000/x; curl -s -o /dev/null -w '%{http_code}' http://host.sbx.internal:5432/x", "--profile-file", file, "--profile", "x-host-"+who.String())
		printed(t, got, "the server\n403")
		if row := onlyDenial(t, got); row.Host != "host.sbx.internal" || row.Port != 5432 {
			t.Errorf("the row is %+v", row)
		}
	})
}

// The threads of a busy supervisor come and go; the command stays.
func TestCase23_ThreadsComeAndGo(t *testing.T) {
	lab := sbxtest.NewLab(t)
	const script = `for i in {1..60}; do (exec 3<>/dev/tcp/198.51.100.1/$((8000+i)); getent hosts n$i.test; cat <&3) >/dev/null 2>&1 & done; wait; for i in {1..60}; do getent hosts m$i.test >/dev/null & done; wait; echo ok`
	everyone(t, func(t *testing.T, who sbxtest.User) {
		runs := make([]int, 20)
		for i := range runs {
			runs[i] = 1 + i%16
		}
		for together := range slices.Chunk(runs, 4) {
			cmds, outputs := make([]*exec.Cmd, len(together)), make([]*output, len(together))
			for i, procs := range together {
				cmds[i], outputs[i] = lab.Command(t, who, "sbx", "exec", "--quiet", "--", "bash", "-c", script), newOutput()
				cmds[i].Env = append(cmds[i].Env, "GOMAXPROCS="+strconv.Itoa(procs), "GODEBUG=asyncpreemptoff=0")
				cmds[i].Stdout, cmds[i].Stderr = outputs[i], outputs[i]
				lab.Start(t, cmds[i])
			}
			for i, cmd := range cmds {
				if exit := sbxtest.Wait(t, cmd); exit != 0 || outputs[i].String() != "ok\n" {
					t.Errorf("with GOMAXPROCS=%d: exit status %d, %s", together[i], exit, outputs[i])
				}
			}
		}
	})
}

// Signals that end sbx reach the command in time, whatever it does with its children.
func TestCase16_OutsideSignalsEndTheRun(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
			b := inBackground(t, lab, who, nil, "setsid sleep 777 & echo ready; exec sleep 777")
			if err := syscall.Kill(b.pid, sig); err != nil {
				t.Fatal(err)
			}
			if exit, r := b.ends(t, lab, who); exit != 128+int(sig) || r.Result.Killed {
				t.Errorf("%s: status %d, result %+v", sig, exit, r.Result)
			}
			nobodyRuns(t)
		}
		got := outside(t, lab, who, `timeout 1 "$SBX" exec -- sleep 60; echo $?`)
		printed(t, got, "124\n") // timeout(1)'s own
		nobodyRuns(t)
	})
}

// Servers of the command's own are reached by every name of loopback, on low ports as
// well, and nothing of it is recorded.
func TestCase28_OwnServers(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "servers.py", `
import socket, threading, urllib.request
from http.server import HTTPServer, BaseHTTPRequestHandler
class Answer(BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b'own')
    def log_message(self, *a): pass
class V6(HTTPServer): address_family = socket.AF_INET6
for port in (80, 443, 8080):
    for server in (HTTPServer(('0.0.0.0', port), Answer), V6(('::1', port), Answer)):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    for host in ('localhost', '127.0.0.1', '127.0.0.2', '[::1]', socket.gethostname()):
        try: print(host, port, urllib.request.build_opener(urllib.request.ProxyHandler({})).open('http://%s:%d/' % (host, port), timeout=5).read())
        except Exception as e: print(host, port, repr(e))
for family, host in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):
    a, b = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family, socket.SOCK_DGRAM)
    a.bind((host, 0)); b.sendto(b'datagram', a.getsockname()); print(a.recv(100))
`)
		got := shell(t, lab, who, "/usr/bin/python3 servers.py; getent hosts localhost $(hostname) | wc -l")
		succeeded(t, got)
		if n := strings.Count(got.Stdout, "b'own'"); n != 15 || strings.Count(got.Stdout, "b'datagram'") != 2 || !strings.HasSuffix(got.Stdout, "\n2\n") {
			t.Errorf("%d answers, want 15:\n%s%s", n, got.Stdout, got.Stderr)
		}
		noDenials(t, got)
		if rows := got.Requests(t); len(rows) > 0 {
			t.Errorf("loopback was recorded: %+v", rows)
		}
	})
}

const overlapping = `
[profiles.x-both-NAME]
version = 1
summary = "a host, and all below the same name"
[[profiles.x-both-NAME.rules]]
id = "one"
host = "api.up.test"
methods = ["GET"]
path = "/one/**"
allow = ["GET https://api.up.test/one/x"]
deny = ["POST https://api.up.test/one length=1"]
[[profiles.x-both-NAME.rules]]
id = "all"
host = "*.up.test"
methods = ["GET"]
path = "/all/**"
allow = ["GET https://api.up.test/all/x"]
deny = ["GET https://up.test/all"]
`

// Rules whose hosts overlap are no error, and each of them holds.
func TestCase05_OverlappingHosts(t *testing.T) {
	lab := sbxtest.NewLab(t)
	for _, name := range []string{"api.up.test", "other.up.test"} {
		lab.Serve(name, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(r.Host + r.URL.Path + "\n")) }))
	}
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reviewer(t, lab, who)
		file := lab.Write(who, "x-both.toml", strings.ReplaceAll(overlapping, "NAME", who.String()))
		host(t, lab, who, 0, "sbx", "profiles", "approve", file, "--key", "../key")
		got := shell(t, lab, who, "for u in api.up.test/one/x api.up.test/all/x other.up.test/all/x other.up.test/one/x denied.test/; do curl -s -w '%{http_code} ' https://$u; done; touch ran",
			"--profile-file", file, "--profile", "x-both-"+who.String())
		succeeded(t, got)
		says(t, got.Stdout, "api.up.test/one/x\n200 api.up.test/all/x\n200 other.up.test/all/x\n200 ", "403 520 ")
	})
}
