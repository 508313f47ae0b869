package fence

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/proxy"
	"github.com/fractalboxdev/sbx/internal/resolver"
)

// rows keeps what is recorded.
type rows struct {
	mu  sync.Mutex
	all []event.Request
}

func (r *rows) Record(row event.Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, row)
	return nil
}

func (r *rows) Complete(event.Completion) {}

// logged is the kernel's message about a refused datagram (linux/netfilter/nfnetlink_log.h).
func logged(last byte) []byte {
	packet := make([]byte, 28)
	packet[0], packet[9] = 0x45, unix.IPPROTO_UDP
	copy(packet[16:], []byte{203, 0, 113, last})
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+4+4+len(packet)))
	b = binary.NativeEndian.AppendUint16(b, unix.NFNL_SUBSYS_ULOG<<8)
	b = append(b, make([]byte, unix.NLMSG_HDRLEN-6+4)...)
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(packet)))
	b = binary.NativeEndian.AppendUint16(b, 9) // NFULA_PAYLOAD
	return append(b, packet...)
}

// What is queued when the servers are closed has rows, and what is beyond the bound is
// counted in one.
func TestQueuedPacketsAreRecordedAndTheRestCounted(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	kernel := os.NewFile(uintptr(ends[1]), "kernel")
	defer kernel.Close()
	var log rows
	n := &network{log: &log, run: "r1", targets: 3, resolver: resolver.New(resolver.Config{}), proxy: proxy.New(proxy.Config{Recorder: &log})}
	for i := range 9 {
		if _, err := kernel.Write(logged(byte(i % 5))); err != nil {
			t.Fatal(err)
		}
	}
	n.readPackets(os.NewFile(uintptr(ends[0]), "packet-log"))
	if err := n.close(context.Background()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, row := range log.all {
		got = append(got, fmt.Sprint(row.Source, " ", row.Verdict, " ", row.Code, " ", row.Host, " ", strings.Fields(row.Reason)[0]))
	}
	want := []string{
		"net deny udp-refused 203.0.113.0 udp", "net deny udp-refused 203.0.113.1 udp", "net deny udp-refused 203.0.113.2 udp",
		"net deny bound-destinations  3", // 3, 4 and 3 again
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("rows:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Names beyond the bound have one row together, as well those that are no host names.
func TestUnlistedNamesAreCounted(t *testing.T) {
	var log rows
	n := &network{log: &log, run: "r1", names: 1, resolver: resolver.New(resolver.Config{Limit: 1})}
	for i := range 4 {
		n.resolver.Bind(fmt.Sprintf("bad!%d", i))
	}
	n.recordUnconnected(nil)
	if len(log.all) != 2 || log.all[1].Code != "bound-names" || log.all[1].Host != "" || !strings.HasPrefix(log.all[1].Reason, "3 more questions ") {
		t.Errorf("%+v", log.all)
	}
}
