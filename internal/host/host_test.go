package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// insideEnv is not used by sbx: the test binary has no subcommands, so an
// argument of its own makes it the child.
const insideArg = "inside-host-test"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == insideArg {
		if err := Inside(os.Stdin, os.Stdout, network); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// network stands for what the netns package sets up: it needs CAP_NET_ADMIN in
// the child's own network namespace.
func network() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

func inside() []string { return []string{"host.test", insideArg} }

func find(t *testing.T, facts []Fact, name string) Fact {
	t.Helper()
	for _, f := range facts {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("no fact %q", name)
	return Fact{}
}

func TestFactsOfThisHost(t *testing.T) {
	facts := New(Options{Inside: inside(), Libseccomp: func() (string, bool) { return "2.5.4", true }}).Facts()
	if len(facts) != len(probes) {
		t.Errorf("%d facts, %d probes", len(facts), len(probes))
	}
	for _, f := range facts {
		if f.Detail == "" || (f.Need == Required && f.Cost == "") || (f.State == No && f.Need != Info && f.Fix == "") {
			t.Errorf("incomplete: %+v", f)
		}
	}
	for _, name := range []string{"user namespaces", "network namespace", "nft redirect", "overlayfs"} {
		if f := find(t, facts, name); f.State != Yes {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if f := find(t, facts, "libseccomp"); f.State != Yes || f.Detail != "2.5.4" {
		t.Errorf("%+v", f)
	}
}

func TestWithoutARealTryTheAnswerIsUnknown(t *testing.T) {
	facts := New(Options{}).Facts()
	for _, name := range []string{"user namespaces", "network namespace", "nft redirect", "new procfs", "libseccomp"} {
		if f := find(t, facts, name); f.State != Unknown {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if !Ready(facts) {
		t.Error("unknown is not missing")
	}
}

func TestReady(t *testing.T) {
	if Ready([]Fact{{Need: Required, State: No}}) {
		t.Error("ready without a required fact")
	}
	if !Ready([]Fact{{Need: Better, State: No}, {Need: Required, State: Unknown}, {Need: Info, State: No}}) {
		t.Error("not ready because of what is not required")
	}
}

func TestBinaryWithoutSeccompIsNotReady(t *testing.T) {
	facts := New(Options{Libseccomp: func() (string, bool) { return "", false }}).Facts()
	if f := find(t, facts, "libseccomp"); f.State != No || !strings.Contains(f.Fix, "-tags seccomp") || Ready(facts) {
		t.Errorf("%+v", f)
	}
}

// TestCase01_LimitOfNamespacesIsNamed runs doctor's probe where the kernel
// allows no further user namespace.
func TestCase01_LimitOfNamespacesIsNamed(t *testing.T) {
	// The limit counts per level of nesting: a namespace of our own holds it.
	cmd := exec.Command("/proc/self/exe", "-test.run", "^TestUnderLimit$", "-test.v")
	cmd.Env = append(os.Environ(), "UNDER_LIMIT=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestUnderLimit")) {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestUnderLimit(t *testing.T) {
	if os.Getenv("UNDER_LIMIT") == "" {
		return // the child half of TestCase01
	}
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	facts := New(Options{Inside: inside()}).Facts()
	f := find(t, facts, "user namespaces")
	if f.State != No || !strings.Contains(f.Detail, "max_user_namespaces is 0") || !strings.Contains(f.Fix, "sysctl") {
		t.Errorf("%+v", f)
	}
	if f := find(t, facts, "nft redirect"); f.State != Unknown {
		t.Errorf("without a namespace nothing was tried: %+v", f)
	}
}

func TestAdviceReadsTheHost(t *testing.T) {
	cases := []struct{ path, text, why string }{
		{"proc/sys/user/max_user_namespaces", "0\n", "user.max_user_namespaces is 0"},
		{"proc/sys/kernel/unprivileged_userns_clone", "0\n", "kernel.unprivileged_userns_clone is 0"},
		{"proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n", "AppArmor restricts them"},
		{"proc/self/status", "Name:\tx\nSeccomp:\t2\n", "a seccomp filter is on this process"},
		{"proc/self/status", "Seccomp:\t0\n", "this is a chroot, or a security module"},
		{"proc/self/uid_map", "", "uid_map is empty"},
		{"proc/self/mountinfo", "1 2 0:1 / /home rw - ext4 x rw\n", "this is a chroot"},
	}
	for _, c := range cases {
		root := t.TempDir()
		path := filepath.Join(root, c.path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(c.text), 0o600)); err != nil {
			t.Fatal(err)
		}
		why, next := New(Options{Root: root}).UserNamespaceAdvice()
		if !strings.Contains(why, c.why) || next == "" {
			t.Errorf("%s %q: %q, %q", c.path, c.text, why, next)
		}
	}
}

func TestCgroupModes(t *testing.T) {
	for mode, paths := range map[string][]string{
		"v2":     {"cgroup.controllers"},
		"hybrid": {"unified/cgroup.controllers", "memory/x"},
		"v1":     {"memory/x"},
		"none":   {},
	} {
		root := t.TempDir()
		for _, p := range paths {
			path := filepath.Join(root, "sys/fs/cgroup", p)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if got := New(Options{Root: root}).cgroupMode(); got != mode {
			t.Errorf("%v: %s, want %s", paths, got, mode)
		}
	}
}

func TestInsideRefusesTheHost(t *testing.T) {
	var out bytes.Buffer
	if err := Inside(strings.NewReader(""), &out, network); err == nil || out.Len() != 0 {
		t.Errorf("the child's half ran outside: %v, %q", err, out.String())
	}
}

func TestAChildThatFailsIsNoAnswer(t *testing.T) {
	r := runInside(context.Background(), []string{"host.test", "-test.run", "^$"})
	if r.User != Yes || r.NFT != "" || r.Err == "" {
		t.Errorf("%+v", r)
	}
}

// hosts are trees of /proc and marks of runtimes, with what Explain has to say of a
// step there.
var hosts = []struct {
	name      string
	files     map[string]string
	blocked   Blocked
	why, next []string
}{
	{
		"AppArmor, Ubuntu 24.04",
		map[string]string{"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n", "proc/self/attr/apparmor/current": "unprivileged_userns (enforce)\n"},
		Blocked{"uid-map", unix.EPERM, ""},
		[]string{"AppArmor restricts them (kernel.apparmor_restrict_unprivileged_userns is 1)"},
		[]string{"sbx doctor --apparmor | sudo tee /etc/apparmor.d/sbx", "apparmor_parser -r"},
	},
	{
		"AppArmor, with a profile",
		map[string]string{"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n", "proc/self/attr/apparmor/current": "sbx (unconfined)\n", "proc/self/status": "Seccomp:\t2\n"},
		Blocked{"unshare-user", unix.EPERM, ""},
		[]string{"a seccomp filter"},
		[]string{"seccomp=unconfined"},
	},
	{
		"Docker",
		map[string]string{".dockerenv": "", "proc/self/status": "Seccomp:\t2\n"},
		Blocked{"unshare-user", unix.EPERM, ""},
		[]string{"a seccomp filter"},
		[]string{"docker run --user 1000", "seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"},
	},
	{
		"podman",
		map[string]string{"run/.containerenv": "", "proc/self/status": "Seccomp:\t2\n"},
		Blocked{"container", nil, "sethostname: operation not permitted"},
		[]string{"a seccomp filter"},
		[]string{"podman run", "unmask=ALL"},
	},
	{
		"Kubernetes",
		map[string]string{"run/secrets/kubernetes.io/x": "", "proc/self/mountinfo": "1 2 0:1 / / rw - ext4 x rw\n3 1 0:2 / /proc/acpi ro - tmpfs x ro\n"},
		Blocked{"container", nil, `error mounting "proc" to rootfs: operation not permitted`},
		[]string{"/proc is masked here (/proc/acpi)"},
		[]string{"procMount: Unmasked", "hostUsers: false"},
	},
	{
		"limit of network namespaces",
		map[string]string{"proc/sys/user/max_net_namespaces": "0\n"},
		Blocked{"unshare-net", unix.ENOSPC, ""},
		[]string{"user.max_net_namespaces is 0"},
		[]string{"sudo sysctl -w user.max_net_namespaces=15000"},
	},
	{
		"limit found in libcontainer's words",
		map[string]string{"proc/sys/user/max_pid_namespaces": "0\n"},
		Blocked{"container", nil, "failed to unshare remaining namespaces: No space left on device"},
		[]string{"user.max_pid_namespaces is 0"},
		[]string{"sysctl -w user.max_pid_namespaces="},
	},
	{
		"a kernel without nft", nil,
		Blocked{"network", unix.EOPNOTSUPP, "adding rules"},
		[]string{"nft"},
		[]string{"modprobe -a nf_tables"},
	},
	{
		"a binary that was replaced", nil,
		Blocked{"mount-tree", unix.ENOENT, "opening this binary for the sandbox's init: /x/sbx was deleted or replaced while it ran"},
		[]string{"may be another sbx"},
		[]string{"make the call again"},
	},
	{
		"a chroot", nil,
		Blocked{"mount-tree", unix.ENOENT, "opening this binary for the sandbox's init: /x/sbx: no such file or directory"},
		[]string{"as in a chroot"},
		[]string{"outside of the chroot"},
	},
	{"what nobody knows", nil, Blocked{"mount-tree", unix.ENOENT, "x"}, nil, nil},
}

func TestRefusedStepsAreExplained(t *testing.T) {
	for _, c := range hosts {
		root := t.TempDir()
		for name, text := range c.files {
			path := filepath.Join(root, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		why, next := New(Options{Root: root}).Explain(c.blocked)
		for _, word := range c.why {
			if !strings.Contains(why, word) {
				t.Errorf("%s: %q is not in %q", c.name, word, why)
			}
		}
		for _, word := range c.next {
			if !strings.Contains(next, word) {
				t.Errorf("%s: %q is not in %q", c.name, word, next)
			}
		}
		if c.why == nil && (why != "" || next != "") {
			t.Errorf("%s: %q, %q", c.name, why, next)
		}
	}
}

func TestAppArmorProfileNamesTheBinary(t *testing.T) {
	profile := AppArmorProfile("/opt/my tools/sbx")
	for _, want := range []string{`profile sbx "/opt/my tools/sbx" flags=(unconfined) {`, "\n  userns,\n", "abi <abi/4.0>,"} {
		if !strings.Contains(profile, want) {
			t.Errorf("%q is not in\n%s", want, profile)
		}
	}
}
