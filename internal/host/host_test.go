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
		{"proc/self/status", "Seccomp:\t0\n", "perhaps this is a chroot"},
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
