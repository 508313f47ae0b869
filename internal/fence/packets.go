package fence

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/netns"
)

// defaultDestinations bounds how many destinations of refused packets one run may make
// the supervisor remember.
const defaultDestinations = 10_000

// readPackets records each refused destination once.
func (n *network) readPackets(f *os.File) {
	// Reading must end when the file is closed, so it may not block the thread.
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	_ = f.Close()
	if err != nil || unix.SetNonblock(fd, true) != nil {
		return
	}
	n.packets = os.NewFile(uintptr(fd), "packet-log")
	n.servers.Go(func() { defer n.trap.Catch(); n.recordPackets(n.packets) })
}

// recordPackets also says at the end how many packets have no row.
func (n *network) recordPackets(log *os.File) {
	known, beyond := map[netns.Packet]bool{}, 0
	lost, err := netns.ReadPackets(log, func(p netns.Packet) {
		switch {
		case known[p]:
		case len(known) >= n.targets:
			beyond++
		default:
			_ = fault("go/packets", 0)
			known[p] = true
			_ = n.log.Record(refusedPacket(n.run, p))
		}
	})
	if beyond > 0 {
		n.recordMissing(event.SourceNet, egress.CodeBoundDestinations, fmt.Sprintf(
			"%d more packets were refused, to destinations beyond the %d that are recorded", beyond, n.targets))
	}
	if lost > 0 {
		n.recordMissing(event.SourceNet, egress.CodeBoundPackets, fmt.Sprintf(
			"%d more packets were refused, too fast for their destinations to be read", lost))
	}
	if err != nil {
		n.recordMissing(event.SourceNet, egress.CodeBoundPackets, fmt.Sprintf("destinations of refused packets are missing: %v", err))
	}
}

// endPackets lets what the kernel has queued by now be read to its end: the command is
// dead, so no more comes.
func (n *network) endPackets() {
	if n.packets != nil && n.packets.SetReadDeadline(time.Now()) != nil {
		_ = n.packets.Close()
	}
}

func refusedPacket(run string, p netns.Packet) event.Request {
	code := egress.CodeUDP
	if p.Protocol != "udp" {
		code = egress.CodeICMP
	}
	return event.Request{
		Time: time.Now().UTC(), Run: run, Source: event.SourceNet, Protocol: p.Protocol,
		Host: p.Destination.Addr().Unmap().String(), Port: p.Destination.Port(), Verdict: "deny", Code: string(code),
		Reason: p.Protocol + " never leaves the sandbox",
	}
}
