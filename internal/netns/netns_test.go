package netns

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const childVariable = "SBX_NETNS_TEST_CHILD"

// inNamespace runs the calling test again in a user and network namespace of its
// own, and returns true there.
func inNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(childVariable) == t.Name() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), childVariable+"="+t.Name())
	ids := func(id int) []syscall.SysProcIDMap { return []syscall.SysProcIDMap{{HostID: id, Size: 1}} }
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: ids(os.Geteuid()), GidMappings: ids(os.Getegid()),
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("in the namespace: %v\n%s", err, out)
	}
	return false
}

// setup brings the namespace to the floor and serves its listeners.
func setup(t *testing.T) map[string]*os.File {
	t.Helper()
	files, err := Setup()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = files.Close() })
	byName := map[string]*os.File{}
	for i, f := range files.All() {
		byName[Names[i]] = f
	}
	return byName
}

func serve(t *testing.T, f *os.File) net.Listener {
	t.Helper()
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestEveryTCPConnectionArrivesWithItsDestination(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	files := setup(t)
	v4, v6 := serve(t, files["transparent-v4"]), serve(t, files["transparent-v6"])
	for _, to := range []string{"8.8.8.8:443", "10.0.0.1:1", "198.18.7.7:5432", "[2001:db8::1]:80", "[fe80::1]:9"} {
		want := netip.MustParseAddrPort(to)
		l := v4
		if want.Addr().Is6() {
			l = v6
		}
		if want.Addr().IsLinkLocalUnicast() {
			want = netip.AddrPortFrom(netip.MustParseAddr("2001:db8::2"), 9)
		}
		c, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(t.Context(), "tcp", want.String())
		if err != nil {
			t.Fatalf("dialling %s: %v", to, err)
		}
		in, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Original(in); err != nil || got != want {
			t.Errorf("dialled %s, arrived as %s (%v)", want, got, err)
		}
		_, _ = c.Close(), in.Close()
	}
}

func TestLoopbackStaysPrivateAndUntouched(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	setup(t)
	for _, address := range []string{"127.0.0.1:0", "127.0.0.2:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatalf("dialling %s: %v", address, err)
		}
		in, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _, _ = c.Close(), in.Close(), l.Close()
	}
}

func TestOtherPacketsAreRefusedAtOnceAndLogged(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	files := setup(t)
	seen := make(chan Packet, 16)
	go func() {
		_, _ = ReadPackets(files["packet-log"], func(p Packet) { seen <- p })
	}()
	for _, to := range []string{"1.2.3.4:443", "[2001:db8::5]:443"} {
		c, err := net.Dial("udp", to)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Write([]byte("secret"))
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("sending UDP to %s: %v, want EPERM", to, err)
		}
		_ = c.Close()
		if p := <-seen; p.Protocol != "udp" || p.Destination.String() != to {
			t.Errorf("sent UDP to %s, logged %v", to, p)
		}
	}
}

// What the queue has at the end is read, and what it had no room for is counted.
func TestEveryRefusedPacketIsReadOrCounted(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	files := setup(t)
	const sent = 20_000
	c, err := net.ListenPacket("udp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	for i := range sent {
		to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4([4]byte{8, 8, byte(i >> 8), byte(i)}), 9))
		if _, err := c.WriteTo([]byte("x"), to); !errors.Is(err, unix.EPERM) {
			t.Fatalf("sending UDP to %s: %v, want EPERM", to, err)
		}
	}
	log := files["packet-log"]
	if err := log.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	read := int64(0)
	lost, err := ReadPackets(log, func(Packet) { read++ })
	if err != nil || read < 20 || lost == 0 || read+lost != sent {
		t.Errorf("of %d packets %d were read and %d lost (%v)", sent, read, lost, err)
	}
	t.Logf("%d read, %d lost", read, lost)
}

func TestNamesAreAskedOfTheResolverWhateverTheServer(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	files := setup(t)
	for name, server := range map[string]string{"resolver-udp-v4": "9.9.9.9:53", "resolver-udp-v6": "[2001:db8::53]:53"} {
		pc, err := net.FilePacketConn(files[name])
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("udp", server)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("question")); err != nil {
			t.Fatalf("asking %s: %v", server, err)
		}
		buf := make([]byte, 64)
		n, from, err := pc.ReadFrom(buf)
		if err != nil || string(buf[:n]) != "question" {
			t.Fatalf("at the resolver: %q %v", buf[:n], err)
		}
		if _, err := pc.WriteTo([]byte("answer"), from); err != nil {
			t.Fatalf("answering %s: %v", from, err)
		}
		if n, err = c.Read(buf); err != nil || string(buf[:n]) != "answer" {
			t.Errorf("from %s: %q %v", server, buf[:n], err)
		}
		_, _ = c.Close(), pc.Close()
	}
	l := serve(t, files["resolver-tcp-v4"])
	if _, err := net.Dial("tcp", "9.9.9.9:53"); err != nil {
		t.Fatal(err)
	}
	if in, err := l.Accept(); err != nil {
		t.Fatal(err)
	} else if to, err := Original(in); err != nil || to.String() != "9.9.9.9:53" {
		t.Errorf("DNS over TCP arrived as %s (%v)", to, err)
	}
}

func TestProxyAddressLeadsToTheExplicitListener(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	files := setup(t)
	l := serve(t, files["explicit-v4"])
	if _, err := net.Dial("tcp", netip.AddrPortFrom(AddressV4, ProxyPort).String()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(); err != nil {
		t.Fatal(err)
	}
}

func TestPacketParserSurvivesAnything(t *testing.T) {
	for _, p := range [][]byte{nil, {0x45}, make([]byte, 20), append([]byte{0x4f}, make([]byte, 19)...), append([]byte{0x60}, make([]byte, 39)...)} {
		eachMessage(p, func(Packet) {})
		parsePacket(p)
		payload(p)
	}
}
