//go:build sbxbreak

package fence

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sandbox"
)

// brokenSpec takes away what the specification asks for, after the supervisor has noted
// it, or shows a socket that a service of the host could have.
func brokenSpec(spec sandbox.Spec) (sandbox.Spec, error) {
	switch {
	case breaks("landlock"):
		spec.Landlock = 0
	case breaks("limits"):
		spec.Limits = sandbox.ResourceLimits{}
	case breaks("socket"):
		dir, err := os.MkdirTemp("", "sbx-broken-")
		if err != nil {
			return spec, err
		}
		at := filepath.Join(dir, "docker.sock")
		if _, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", at); err != nil {
			return spec, fmt.Errorf("making the host's socket: %w", err)
		}
		spec.Tree = append(spec.Tree, sandbox.Entry{Kind: sandbox.Bind, Source: at, Target: "/run/docker.sock"})
	}
	return spec, nil
}

// brokenRules inserts a rule once the rules were read back: packets of IPv6 pass by the
// redirect, datagrams by what refuses them, or HTTPS is led where nothing listens.
func brokenRules() error {
	hole, broken := map[string][2]string{
		"ipv6":  {"redirect", `{"match": {"op": "==", "left": {"meta": {"key": "nfproto"}}, "right": "ipv6"}}, {"accept": null}`},
		"udp":   {"refuse", `{"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "udp"}}, {"accept": null}`},
		"https": {"redirect", `{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 443}}, {"redirect": {"port": 9}}`},
	}[os.Getenv("SBX_BREAK")]
	if !broken {
		return nil
	}
	// In JSON, since "redirect" is a word of nft's own language.
	rule := fmt.Sprintf(`{"nftables": [{"insert": {"rule": {"family": "inet", "table": "sbx", "chain": %q, "expr": [%s]}}}]}`, hole[0], hole[1])
	cmd := exec.Command("nft", "-j", "-f", "-") //nolint:noctx // a test's own
	cmd.Stdin = strings.NewReader(rule)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("breaking the rules: %w: %s", err, text)
	}
	return nil
}

// brokenAnswers lets the kernel make every connection that the command asks for
// (seccomp_unotify(2)).
func brokenAnswers(asks *os.File) (replaced bool) {
	if !breaks("unix") {
		return false
	}
	go func() { // ends with the sandbox
		for {
			var question struct {
				id         uint64
				pid, flags uint32
				call       [64]byte
			}
			err := ioctl(asks, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&question))
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return
			}
			answer := struct {
				id           uint64
				value        int64
				errno, flags int32
			}{id: question.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
			_ = ioctl(asks, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer))
		}
	}()
	return true
}

func ioctl(f *os.File, request uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
