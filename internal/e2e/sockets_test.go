package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// hostSocket serves a unix socket outside, as everybody may connect to it. Every
// connection is greeted, and counted.
func hostSocket(t *testing.T, lab *sbxtest.Lab, kind, name string) (reached func() int) {
	t.Helper()
	var listener net.Listener
	lab.Within(t, func() (err error) {
		if listener, err = net.Listen(kind, name); err != nil || name[0] == '@' {
			return err
		}
		return os.Chmod(name, 0o777)
	})
	t.Cleanup(func() { _ = listener.Close() })
	var count atomic.Int32
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			_, _ = c.Write([]byte("host\n"))
			_ = c.Close()
		}
	}()
	return func() int { return int(count.Load()) }
}

// inProject is a socket of the host's in the user's project, which is the user's file.
func inProject(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, name string) (reached func() int) {
	t.Helper()
	path := filepath.Join(lab.Project(who), name)
	reached = hostSocket(t, lab, "unix", path)
	t.Cleanup(func() { _ = os.Remove(path) })
	if err := os.Lchown(path, lab.UID(who), -1); err != nil && os.Geteuid() == 0 {
		t.Fatal(err)
	}
	return reached
}

// unreached fails the test when the host's socket was connected to.
func unreached(t *testing.T, reached func() int) {
	t.Helper()
	if n := reached(); n != 0 {
		t.Errorf("%d connections reached the host", n)
	}
}

// lines of testdata/escape.py. host.sock is the host's, in the project.
var socketAttempts = []attempt{
	{"host's socket", "EACCES", `unix('host.sock')`},
	{"host's socket, by its whole path", "EACCES", `unix(os.getcwd() + '/host.sock')`},
	{"host's socket, around corners", "EACCES", `unix('.././/project/directory/../host.sock')`},
	{"host's socket, behind a link", "EACCES", `(os.symlink('host.sock', 'link.sock'), unix('link.sock'))`},
	{"host's socket, behind a link elsewhere", "EACCES", `(os.symlink(os.getcwd() + '/host.sock', '/tmp/link.sock'), unix('/tmp/link.sock'))`},
	{"host's socket, by another name", "EACCES", `(os.link('host.sock', 'other.sock'), unix('other.sock'))`},
	{"host's socket, moved", "EACCES", `(os.rename('other.sock', 'directory/moved.sock'), unix('directory/moved.sock'))`},
	{"host's socket, by its descriptor", "EACCES", `unix('/proc/self/fd/%d' % os.open('host.sock', os.O_PATH))`},
	{"host's socket, by its descriptor in /dev", "EACCES", `unix('/dev/fd/%d' % os.open('host.sock', os.O_PATH))`},
	{"host's socket, by a directory's descriptor", "EACCES", `unix('/proc/thread-self/fd/%d//host.sock' % os.open('.', os.O_PATH))`},
	{"host's socket, by a process's directory", "EACCES", `unix('/proc/%d/cwd/host.sock' % os.getpid())`},
	{"host's socket, from below it", "EACCES", `(os.chdir('directory'), unix('../host.sock'))`},
	{"back", "ok", `os.chdir('..')`},
	{"host's socket, in packets", "EACCES", `unix('host.sock', SOCK_SEQPACKET)`},
	{"host's socket, opened", "ENXIO", `open('host.sock')`},
	{"host's socket, in place of one inside", "EACCES", `(made('mine.sock'), swap('mine.sock', 'host.sock'), unix('mine.sock'))`},
	{"one inside, in place of the host's", "b'inside'", `unix('host.sock')`},
	{"put back", "ok", `swap('mine.sock', 'host.sock')`},
	{"datagrams", "ESOCKTNOSUPPORT", `socket(AF_UNIX, SOCK_DGRAM).sendto(b'x', 'host.sock')`},
	{"raw datagrams", "ESOCKTNOSUPPORT", `socket(AF_UNIX, SOCK_RAW).sendto(b'x', 'host.sock')`},
	{"pair of datagram sockets", "ESOCKTNOSUPPORT", `socketpair(AF_UNIX, SOCK_DGRAM)[0].sendto(b'x', 'host.sock')`},
	{"to an address, unconnected", "ENOTSUP", `socket(AF_UNIX, SOCK_STREAM).sendto(b'x', 'host.sock')`},
	{"packet to an address, unconnected", "ENOTCONN", `socket(AF_UNIX, SOCK_SEQPACKET).sendto(b'x', 'host.sock')`},
	{"to an address, of a pair", "EISCONN", `socketpair()[0].sendto(b'x', 'host.sock')`},
	{"pair, connected anew", "EACCES", `socketpair()[0].connect('host.sock')`},
	{"pair, connected to one inside", "EISCONN", `(made('/tmp/pair.sock'), socketpair()[0].connect('/tmp/pair.sock'))`},
	{"host's abstract name", "ECONNREFUSED", `unix('\0sbx-host')`},
	{"socket that listens in place of the host's", "EADDRINUSE", `made('host.sock')`},
	{"file", "ECONNREFUSED", `unix('file')`},
	{"directory", "ECONNREFUSED", `unix('directory')`},
	{"nothing", "ENOENT", `unix('nothing.sock')`},
	{"loop of links", "ELOOP", `(os.symlink('loop', 'loop'), unix('loop'))`},
	{"address that is not there", "EFAULT", `address(socket(AF_UNIX, SOCK_STREAM), 8, 110)`},
	{"no address", "EINVAL", `address(socket(AF_UNIX, SOCK_STREAM), 0, 0)`},
	{"address of less than nothing", "EINVAL", `address(socket(AF_UNIX, SOCK_STREAM), 0, -1)`},
	{"address that is too long", "EINVAL", `address(socket(AF_UNIX, SOCK_STREAM), 0, 129)`},
	{"address of another family", "EINVAL", `address(socket(AF_UNIX, SOCK_STREAM), struct.pack('H108s', 2, b'host.sock'), 110)`},
	{"address without an end", "ENOENT", `address(socket(AF_UNIX, SOCK_STREAM), struct.pack('H108s', 1, b'x' * 108), 110)`},
	{"address in an internet socket", "EAFNOSUPPORT", `address(socket(AF_INET, SOCK_STREAM), struct.pack('H108s', 1, b'host.sock'), 110)`},
	{"no socket", "ENOTSOCK", `address(open('file'), struct.pack('H108s', 1, b'host.sock'), 110)`},
	{"no descriptor", "EBADF", `libc_call('connect', 999, struct.pack('H108s', 1, b'host.sock'), 110)`},
	{"multicast of the network's news", "EPERM", `address(socket(AF_NETLINK, SOCK_RAW), struct.pack('HHII', 16, 0, 0, 1), 12)`},
	{"made inside", "b'inside'", `(made('made.sock'), unix('made.sock'))[1]`},
	{"made inside, by a descriptor", "b'inside'", `unix('/proc/self/fd/%d' % os.open('made.sock', os.O_PATH))`},
	{"made inside, in packets", "b'inside'", `(made('packets.sock', SOCK_SEQPACKET), unix('packets.sock', SOCK_SEQPACKET))[1]`},
	{"made inside, of another kind", "EPROTOTYPE", `unix('packets.sock')`},
	{"made inside, in memory", "b'inside'", `(made('/tmp/made.sock'), unix('/tmp/made.sock'))[1]`},
	{"made inside, in HOME", "b'inside'", `(made(os.environ['HOME'] + '/made.sock'), unix(os.environ['HOME'] + '/made.sock'))[1]`},
	{"made inside, abstract", "b'inside'", `(made('\0made'), unix('\0made'))[1]`},
	{"made inside, without permission", "EACCES", `(os.chmod('made.sock', 0), unix('made.sock'))`},
	{"made inside, no longer listened to", "ECONNREFUSED", `(made('dead.sock').shutdown(SHUT_RDWR), unix('dead.sock'))`},
	{"made inside, gone", "ENOENT", `(os.unlink('made.sock'), unix('made.sock'))`},
	{"who connected", "True", `peer()[1] == os.getuid()`},
}

// TestCase30_HostSockets: what the host offers by sockets does not exist for the
// command, and its variables do not lead there.
func TestCase30_HostSockets(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.WriteEtc("nsswitch.conf", "hosts: resolve [!UNAVAIL=return] files dns\npasswd: files\n")
	lab.Within(t, func() error { return unix.Mount("run", "/run", "tmpfs", 0, "mode=755") })
	for _, dir := range []string{"/run/dbus", "/run/systemd/resolve"} {
		lab.Within(t, func() error { return os.MkdirAll(dir, 0o755) })
	}
	var all []func() int
	for _, name := range []string{"/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/resolve/io.systemd.Resolve"} {
		all = append(all, hostSocket(t, lab, "unix", name))
	}
	all = append(all, hostSocket(t, lab, "unix", "@sbx-x"))
	everyone(t, func(t *testing.T, who sbxtest.User) {
		agent := filepath.Join(lab.Project(who), "agent.sock")
		all := append(slices.Clip(all), inProject(t, lab, who, "agent.sock"))
		for _, c := range []struct {
			script, want string
			exit         int
		}{
			{"ssh-add -l", "Could not open a connection to your authentication agent", 2},
			{"SSH_AUTH_SOCK=$PWD/agent.sock ssh-add -l", "Permission denied", 2},
			{"curl -sS --max-time 20 --unix-socket /run/docker.sock http://d/", "connect to", 7},
			{"curl -sS --max-time 20 --unix-socket agent.sock http://d/", "connect to", 7},
			{"socat -u ABSTRACT-CONNECT:sbx-x -", "Connection refused", 1},
			{"socat -u UNIX-CONNECT:agent.sock -", "Permission denied", 1},
			{"socat -u UNIX-SENDTO:agent.sock -", "Socket type not supported", 1},
			{"socat -u UNIX-CONNECT:/run/dbus/system_bus_socket -", "No such file", 1},
			{`test -z "$SSH_AUTH_SOCK$DBUS_SESSION_BUS_ADDRESS$XDG_RUNTIME_DIR$DOCKER_HOST"`, "", 0},
		} {
			cmd := lab.Command(t, who, "sbx", "exec", "--", "bash", "-c", c.script)
			cmd.Env = append(cmd.Env, "SSH_AUTH_SOCK="+agent, "DBUS_SESSION_BUS_ADDRESS=unix:path="+agent,
				"XDG_RUNTIME_DIR=/run/user/0", "DOCKER_HOST=unix:///run/docker.sock")
			got := within(t, time.Minute, lab, who, cmd)
			if got.Exit != c.exit || !strings.Contains(got.Stderr, c.want) {
				t.Errorf("%s: exit status %d, want %d and %q: %s", c.script, got.Exit, c.exit, c.want, got.Stderr)
			}
		}
		before := watching(lab)
		says(t, run(t, lab, who, "--", "getent", "hosts", "denied.test").Stdout, "198.18.", "denied.test")
		before.nothingLeft(t)
		for _, reached := range all {
			unreached(t, reached)
		}
	})
}

// TestBypass44_HostSocketInTheProject: every way to a socket that lies in the working
// directory, writable or not, and in one run everything else about sockets.
func TestBypass44_HostSocketInTheProject(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reached := inProject(t, lab, who, "host.sock")
		lab.Write(who, "escape.py", contents(t, "testdata/escape.py"))
		lab.Write(who, "one", "unix('host.sock')\nunix('directory/x.sock')\n")
		got := run(t, lab, who, "--ro", "--", "bash", "-c", "/usr/bin/python3 escape.py <one")
		printed(t, got, "EACCES\nENOENT\n")
		unreached(t, reached)
		var applied string
		for _, m := range got.Receipt(t)["applied"].([]any) {
			if m := m.(map[string]any); m["name"] == "unix sockets" {
				applied, _ = m["detail"].(string)
			}
		}
		if applied != "connected by sbx, to those made inside" {
			t.Errorf("the receipt says %q of unix sockets", applied)
		}
	})
}

// agentProfile opts in to one socket.
const agentProfile = `
[profiles.x-agent]
version = VERSION
summary = "the user's agent"
unix_sockets = ["SOCKET"]
OVERRIDES
`

func writeAgentProfile(lab *sbxtest.Lab, who sbxtest.User, version, socket, overrides string) {
	lab.Write(who, "x-agent.toml", strings.NewReplacer("VERSION", version, "SOCKET", socket, "OVERRIDES", overrides).Replace(agentProfile))
}

// TestCase30_OnlyTheNamedSocket: what a profile names can be connected to, at its own
// path, and nothing beside it.
func TestCase30_OnlyTheNamedSocket(t *testing.T) {
	lab := sbxtest.NewLab(t)
	flags := []string{"--profile-file", "x-agent.toml", "--profile", "x-agent"}
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reviewer(t, lab, who)
		named := filepath.Join(lab.Home(who), "agent.sock")
		reached, beside, inside := inProject(t, lab, who, "../agent.sock"), inProject(t, lab, who, "../beside.sock"), inProject(t, lab, who, "p.sock")
		writeAgentProfile(lab, who, "1", named, "")
		host(t, lab, who, 0, "sbx", "profiles", "lint", "x-agent.toml")
		says(t, host(t, lab, who, 0, "sbx", "profiles", "show", "--profile-file", writeApproved(t, lab, who), "x-agent"), "HOST'S SOCKET", named)
		preview := run(t, lab, who, append(flags, "--dry-run", "--", "true")...)
		succeeded(t, preview)
		says(t, preview.Stdout, "socket    "+named, `"unix_sockets"`)
		got := shell(t, lab, who, "socat -u UNIX-CONNECT:"+named+" -; for s in "+filepath.Dir(named)+"/beside.sock p.sock; do socat -u UNIX-CONNECT:$s - 2>&1 | grep -oE 'No such file|Permission denied'; done", flags...)
		printed(t, got, "host\nNo such file\nPermission denied\n")
		if n := reached(); n != 1 {
			t.Errorf("%d connections reached the named socket, want 1", n)
		}
		unreached(t, beside)
		unreached(t, inside)
		sockets, ok := got.Receipt(t)["unix_sockets"].([]any)
		if !ok || len(sockets) != 1 || sockets[0].(map[string]any)["path"] != named {
			t.Errorf("the receipt names the sockets %v", sockets)
		}
		// Without the grant it does not even exist.
		if got := shell(t, lab, who, "ls "+named); got.Exit == 0 {
			t.Error("the socket shows without the profile")
		}
	})
}

// writeApproved approves the profile that was written last.
func writeApproved(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) string {
	t.Helper()
	host(t, lab, who, 0, "sbx", "profiles", "approve", "x-agent.toml", "--key", "../key")
	return "x-agent.toml"
}

// TestCase30_SocketsThatAreNotThere: a named socket that does not exist, is behind a
// link or is something else refuses the run.
func TestCase30_SocketsThatAreNotThere(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reviewer(t, lab, who)
		home := lab.Home(who)
		inProject(t, lab, who, "../agent.sock")
		lab.Write(who, "plain", "")
		_ = os.Remove(home + "/link.sock")
		if err := os.Symlink(home+"/agent.sock", home+"/link.sock"); err != nil {
			t.Fatal(err)
		}
		for i, c := range [][]string{
			{home + "/none.sock", "cannot be found", "start what serves it"},
			{home + "/link.sock", "behind a symbolic link", "name it " + home + "/agent.sock"},
			{home + "/project/plain", "is not a socket", "name the socket itself"},
		} {
			writeAgentProfile(lab, who, strconv.Itoa(i+1), c[0], "")
			refused(t, run(t, lab, who, "--profile-file", writeApproved(t, lab, who), "--profile", "x-agent", "--", "true"), c[1:]...)
		}
	})
}

// TestBypass45_DockerSocketNeedsAnOverride: a socket that gives away the machine is
// not granted by being named once.
func TestBypass45_DockerSocketNeedsAnOverride(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reviewer(t, lab, who)
		docker := filepath.Join(lab.Home(who), "docker.sock")
		reached := inProject(t, lab, who, "../docker.sock")
		script := "socat -u UNIX-CONNECT:" + docker + " -"
		writeAgentProfile(lab, who, "1", docker, "")
		says(t, host(t, lab, who, 1, "sbx", "profiles", "lint", "x-agent.toml"), docker, "has to stand in overrides, too", "[socket]")
		got := lab.Run(t, who, "sbx", "profiles", "approve", "x-agent.toml", "--key", "../key")
		if got.Exit == 0 {
			t.Error("a profile that does not pass lint was approved")
		}
		unreached(t, reached)
		writeAgentProfile(lab, who, "2", docker, `overrides = ["`+docker+`"]`)
		host(t, lab, who, 0, "sbx", "profiles", "lint", "x-agent.toml")
		printed(t, shell(t, lab, who, script, "--profile-file", writeApproved(t, lab, who), "--profile", "x-agent"), "host\n")
		if n := reached(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
	})
}

// TestBypass61_WithoutNotifications: where somebody else is asked about calls already,
// or sbx may not look at its own command, it cannot answer: then there are no unix sockets but pairs, TCP works, and the receipt
// says so.
func TestBypass61_WithoutNotifications(t *testing.T) {
	lab := sbxtest.NewLab(t)
	program := buildSockets(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reached := inProject(t, lab, who, "host.sock")
		lab.Write(who, "sockets", program)
		lab.Write(who, "escape.py", contents(t, "testdata/escape.py"))
		lab.Write(who, "some", "unix('host.sock')\nunix('/tmp/x')\nsocketpair()[0].connect('host.sock')\nstatus(('127.0.0.1', 61))\n(lambda pair: pair[0].send(b'x'))(socketpair())\n")
		for around, why := range map[string]string{"asked": "EBUSY", "forbidden": "EPERM"} {
			got := lab.Run(t, who, "./sockets", around, sbxtest.Binary(t), "exec", "--", "bash", "-c", "/usr/bin/python3 escape.py <some")
			printed(t, got, "EAFNOSUPPORT\nEAFNOSUPPORT\nEISCONN\n520\n1\n")
			says(t, string(got.File(t, "receipt.json")), "none but pairs: connects cannot be followed here ("+why+")")
		}
		unreached(t, reached)
	})
}

// buildSockets compiles testdata/sockets.c into the user's project.
func buildSockets(t *testing.T) string {
	t.Helper()
	compiler, err := exec.CommandContext(t.Context(), "go", "env", "CC").Output()
	if err != nil {
		t.Fatalf("asking for the C compiler: %v", err)
	}
	program := filepath.Join(t.TempDir(), "sockets")
	build := exec.CommandContext(t.Context(), strings.TrimSpace(string(compiler)), "-static", "-O1", "-pthread", "-o", program, "testdata/sockets.c")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("compiling: %v\n%s", err, text)
	}
	return contents(t, program)
}

var outcomes = regexp.MustCompile(`^inside (\d+) refused (\d+) host 0 other (\d+) \((.+)\)\n$`)

// TestBypass60_WhatChangesWhileItIsRead: the address, the path behind it or the
// descriptor becomes another one at any moment; whatever is connected to was made inside.
func TestBypass60_WhatChangesWhileItIsRead(t *testing.T) {
	lab := sbxtest.NewLab(t)
	program := buildSockets(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "sockets", program)
		reached := inProject(t, lab, who, "host.sock")
		for _, what := range []string{"race-address", "race-path", "race-descriptor"} {
			got := shell(t, lab, who, "rm -f in.sock link next; ./sockets "+what+" host.sock")
			succeeded(t, got)
			counts := outcomes.FindStringSubmatch(got.Stdout)
			if counts == nil || counts[2] == "0" || what != "race-descriptor" && counts[1] == "0" {
				t.Errorf("%s: %s", what, got.Stdout)
			}
			unreached(t, reached)
		}
	})
}

// TestCase30_ManyConnectionsAtOnce: a thousand threads connect, by path to a server
// that takes five at a time and by TCP; all get through.
func TestCase30_ManyConnectionsAtOnce(t *testing.T) {
	lab := sbxtest.NewLab(t)
	program := buildSockets(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "sockets", program)
		printed(t, shell(t, lab, who, "./sockets storm"), "inside 1000 refused 0 host 0 other 0 (-)\n")
	})
}

// TestBypass44_WithoutTheRunnerNothingConnects: the one who answers is killed in the
// midst of connections; everything inside dies with it, and none got to the host.
func TestBypass44_WithoutTheRunnerNothingConnects(t *testing.T) {
	lab := sbxtest.NewLab(t)
	const script = `
import socket
print('ready', flush=True)
while True:
    try:
        socket.socket(socket.AF_UNIX).connect('host.sock')
        print('connected', flush=True)
    except OSError:
        pass
`
	everyone(t, func(t *testing.T, who sbxtest.User) {
		reached := inProject(t, lab, who, "host.sock")
		lab.Write(who, "connects.py", script)
		cmd := lab.Command(t, who, "sbx", "exec", "--", "/usr/bin/python3", "connects.py")
		stdout := newOutput()
		cmd.Stdout, cmd.Stderr = stdout, newOutput()
		lab.Start(t, cmd)
		stdout.until(t, "ready\n")
		killed(t, lab, cmd, runnerOf(t), lab.Mounts())
		unreached(t, reached)
		if got := stdout.String(); got != "ready\n" {
			t.Errorf("stdout is %q", got)
		}
	})
}

// runnerOf is the pid of the only run's runner.
func runnerOf(t *testing.T) int {
	t.Helper()
	for _, p := range sbxtest.Processes(t) {
		if name, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/comm"); err == nil && string(name) == "sbx-runner\n" {
			return p.PID
		}
	}
	t.Fatal("there is no runner")
	return 0
}

// TestCase30_ConnectionsThatWait: they end as they would outside, by their turn, their
// limit, a signal or death, and do not keep the run.
func TestCase30_ConnectionsThatWait(t *testing.T) {
	lab := sbxtest.NewLab(t)
	program := buildSockets(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		lab.Write(who, "sockets", program)
		cmd := lab.Command(t, who, "sbx", "exec", "--", "./sockets", "blocked")
		printed(t, within(t, time.Minute, lab, who, cmd),
			"first ok\nwithout waiting EAGAIN\nwith a limit EAGAIN\ninterrupted EINTR\nkilled by 9\nafter its turn came ok\nstopped by 19\nmade again ok\n")
	})
}
