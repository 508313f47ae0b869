//go:build sbxbreak

package fence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/proxy"
	"github.com/fractalboxdev/sbx/internal/trust"
)

// breaks reports whether this run is to go without one of its walls.
func breaks(what string) bool { return os.Getenv("SBX_BREAK") == what }

// faultAt returns point and mode of SBX_BREAK=fault:POINT:MODE.
func faultAt() (point, mode string) {
	rest, ok := strings.CutPrefix(os.Getenv("SBX_BREAK"), "fault:")
	if !ok {
		return "", ""
	}
	at := strings.LastIndexByte(rest, ':')
	return rest[:at], rest[at+1:]
}

// fault makes its point fail, where it is the one that was asked for.
func fault(point string, runner int) error {
	asked, mode := faultAt()
	if asked != point {
		return nil
	}
	switch mode {
	case "error":
		return errors.New("an injected fault at " + point)
	case "panic":
		panic("an injected fault at " + point)
	case "hang", "wait": // the latter for as long as a user would have to
		time.Sleep(time.Hour)
	case "kill":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		time.Sleep(time.Hour)
	case "stop": // the test does something, and lets it go on
		runtime.LockOSThread()
		_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP) // one to the process would stop this thread a little later
		runtime.UnlockOSThread()
	case "runner":
		_ = unix.Kill(runner, unix.SIGKILL)
	}
	return nil
}

// patience is short for the step that a test has hang.
func patience(step string, limit time.Duration) time.Duration {
	point, mode := faultAt()
	if mode == "hang" && limit > 0 && (point == step || strings.HasPrefix(point, step+"/")) {
		return min(limit, 2*time.Second)
	}
	return limit
}

// brokenLog is what the command writes on its way into the log.
func brokenLog(log func(int) io.Writer) func(int) io.Writer {
	return func(fd int) io.Writer { return io.MultiWriter(faultyWriter{}, log(fd)) }
}

type faultyWriter struct{}

func (faultyWriter) Write(b []byte) (int, error) { return len(b), fault("go/output", 0) }

// brokenPack leaves the run's CA out.
func brokenPack(p trust.Pack) trust.Pack {
	if breaks("ca") {
		host, err := trust.HostBundle()
		if err == nil {
			p.Bundle, p.CA = host, host
		}
	}
	return p
}

// brokenListeners puts the listener of another port in the place of the transparent one.
func brokenListeners(files []*os.File) []*os.File {
	if breaks("listener") {
		files[0], files[2] = files[2], files[0]
	}
	return files
}

// brokenDevices adds a device and a route to the namespace.
func brokenDevices() error {
	if !breaks("route") {
		return nil
	}
	for _, args := range [][]string{
		{"link", "add", "leak0", "type", "veth", "peer", "name", "leak1"},
		{"addr", "add", "10.99.0.1/24", "dev", "leak0"},
		{"link", "set", "leak0", "up"},
		{"link", "set", "leak1", "up"},
		{"route", "add", "default", "via", "10.99.0.2"},
	} {
		if text, err := exec.Command("ip", args...).CombinedOutput(); err != nil { //nolint:gosec,noctx // a test's own
			return fmt.Errorf("breaking the network: %w: %s", err, text)
		}
	}
	return nil
}

// brokenFilter allows every system call: one instruction, RET ALLOW (seccomp(2)).
func brokenFilter(filter []byte) []byte {
	if breaks("seccomp") {
		return []byte{6, 0, 0, 0, 0, 0, 0xff, 0x7f}
	}
	return filter
}

// openRoute has no address guard.
type openRoute struct{ route }

func (r openRoute) Vet(context.Context, egress.Host, uint16, egress.AddressAllowance) error {
	return nil
}

func (r openRoute) Dial(ctx context.Context, h egress.Host, port uint16, _ egress.AddressAllowance) (net.Conn, error) {
	return r.route.Dial(ctx, h, port, egress.AllowInternal)
}

func brokenRoute(r route) route {
	if breaks("guard") {
		return openRoute{r}
	}
	return r
}

// brokenProxy lets everything pass the gate.
func brokenProxy(cfg proxy.Config) proxy.Config {
	if breaks("gate") {
		cfg.Position = proxy.Legacy
	}
	return cfg
}

// brokenNames answers every question as a resolver of the host would: with an
// address of the world.
func (n *network) brokenNames(f *os.File) (replaced bool) {
	if !breaks("resolver") {
		return false
	}
	c, err := net.FilePacketConn(f)
	if err != nil {
		return false
	}
	go func() { // ends with the process
		b := make([]byte, 512)
		for {
			size, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			q := b[:size]
			end := 12
			for end < size && q[end] != 0 {
				end += int(q[end]) + 1
			}
			if end += 5; end > size {
				continue
			}
			reply := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0}, q[12:end]...)
			reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 77)
			_, _ = c.WriteTo(reply, from)
		}
	}()
	return true
}
