package e2e

import (
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// insideAttempts are what a process with all capabilities in a user namespace of its
// own tries, in the words of testdata/inside.py.
var insideAttempts = []attempt{
	{"it has the capabilities", "1ffffffffff|3fffffffff", `capabilities()`},
	{"mount", "EPERM", `called(165, b'none', b'/tmp', b'tmpfs', 0, 0)`},
	{"remount", "EPERM", `called(165, b'none', b'/usr', b'', 32 | 4096, 0)`},
	{"new mount calls", "ENOSYS", `called(430, b'tmpfs', 0)`},
	{"cloned tree", "ENOSYS", `called(428, -100, b'/', 1)`},
	{"pivot_root", "EPERM", `called(155, b'.', b'.')`},
	{"mount namespace", "EPERM", `called(272, 0x20000)`},
	{"namespace of the init", "EACCES", `os.open('/proc/1/ns/net', os.O_RDONLY)`},
	{"host name", "EPERM", `called(170, b'x', 1)`},
	{"raw socket", "EPERM", `socket(AF_INET, SOCK_RAW, IPPROTO_ICMP)`},
	{"packet socket", "EAFNOSUPPORT", `socket(17, SOCK_RAW, 0)`},
	{"packet socket, as inet", "EPERM", `socket(AF_INET, 10, 0x300)`},
	{"nftables", "EPROTONOSUPPORT", `socket(AF_NETLINK, SOCK_RAW, 12)`},
	{"iptables", "EPERM", `socket(AF_INET, SOCK_DGRAM).setsockopt(SOL_IP, 64, bytes(100))`},
	{"ip6tables", "EPERM", `socket(AF_INET6, SOCK_DGRAM).setsockopt(IPPROTO_IPV6, 64, bytes(100))`},
	{"the world", "ENETUNREACH", `socket(AF_INET, SOCK_STREAM).connect(('198.51.100.1', 80))`},
	{"the world, IPv6", "ENETUNREACH|EADDRNOTAVAIL", `socket(AF_INET6, SOCK_STREAM).connect(('2600::1', 80))`},
	{"the proxy", "ENETUNREACH|ECONNREFUSED", `socket(AF_INET, SOCK_STREAM).connect(('127.0.0.1', 1001))`},
	{"a name", "ENETUNREACH", `socket(AF_INET, SOCK_DGRAM).sendto(b'x', ('198.18.0.1', 53))`},
	{"trace the init", "EPERM", `called(101, 0x4206, 1, 0, 0)`},
	{"memory of the init", "EACCES|EPERM", `open('/proc/1/mem', 'rb')`},
	{"the system", "EROFS|EACCES", `open('/usr/x', 'w')`},
	{"root's files", "EACCES|ENOENT", `open('/etc/shadow')`},
	{"own to another", "EINVAL|EPERM", `os.chown('inside.py', 0, 1)`},
	{"character device", "EPERM", `os.mknod('/tmp/x', 0o020666, os.makedev(1, 3))`},
	{"set-user-id", "EPERM", `os.chmod('inside.py', 0o4755)`},
	{"sysctl", "EROFS|EACCES", `open('/proc/sys/net/ipv4/ip_forward', 'w')`},
	{"keys", "ENOSYS", `called(250, 0, -3, 1)`},
	{"bpf", "ENOSYS", `called(321, 0, bytes(72), 72)`},
	{"perf", "ENOSYS", `called(298, bytes(128), 0, -1, -1, 0)`},
	{"rings", "ENOSYS", `called(425, 8, bytes(128))`},
}

// TestCase27_SandboxesInside: what is not permitted says so in words; what the class
// browser permits has power over nothing.
func TestCase27_SandboxesInside(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for command, words := range map[string]string{
			"bwrap --ro-bind / / true":         "No permissions to creat", // two versions word it differently
			"unshare -Urpf --mount-proc true":  "Operation not permitted",
			"unshare -Urn curl https://x.test": "Operation not permitted",
		} {
			if got := shell(t, lab, who, command); got.Exit == 0 || !strings.Contains(got.Stderr, words) {
				t.Errorf("%s: exit status %d, stderr %s", command, got.Exit, got.Stderr)
			}
		}
		lab.Write(who, "inside.py", contents(t, "testdata/inside.py"))
		before := watching(lab)
		cmd := lab.Command(t, who, "sbx", "exec", "--profile", "browser-fetch", "--", "unshare", "--user", "--map-root-user", "--net", "/usr/bin/python3", "inside.py")
		cmd.Stdin = strings.NewReader(spoken(insideAttempts))
		got := lab.RunCommand(t, who, cmd)
		succeeded(t, got)
		before.nothingLeft(t)
		answered(t, insideAttempts, got.Stdout)
	})
}
