package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// What a run can make sbx hold is bounded by flags, each with a code of its own.
func TestBoundsAreFlags(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for _, c := range []struct{ flags, script, code string }{
			{"--max-rows 2", "for i in 1 2 3; do curl -s http://a.test/$i; done", "bound-rows"},
			{"--max-names 1", "getent ahostsv4 a.test; getent ahostsv4 b.test", "bound-names"},
			{"--max-names 1", `for i in 1 2 3; do getent ahostsv4 "bad!$i.test"; done`, "bound-names"},
			{"--max-destinations 1", "for i in 1 2; do echo x >/dev/udp/11.22.33.44/$i; done", "bound-destinations"},
			{"--max-certificates 1", "curl -s https://a.test/; curl -s https://b.test/", "bound-certificates"},
			{"--max-connections 8", "for i in 1 2 3 4 5 6 7 8 9; do exec {fd}<>/dev/tcp/11.22.33.44/80; done", "bound-connections"},
			{"--max-connections 8", "for i in 1 2 3 4 5 6 7 8 9; do exec {fd}<>/dev/tcp/11.22.33.44/53; done", "bound-connections"},
			{"--max-heads 1KiB", "curl -s -H \"X: $(printf %2000s x | tr ' ' y)\" http://a.test/", "bound-heads"},
		} {
			got := shell(t, lab, who, c.script+"; true", strings.Fields(c.flags)...)
			succeeded(t, got)
			found := false
			for _, row := range got.Denials(t) {
				found = found || row.Code == c.code && row.Source != event.Source("")
			}
			if !found {
				t.Errorf("%s: %+v", c.flags, got.Denials(t))
			}
		}
		got := shell(t, lab, who, "yes 0123456789 | head -c 100000", "--max-output", "4KiB")
		succeeded(t, got)
		if text := got.File(t, "output.log"); len(text) > 8<<10 || len(got.Stdout) != 100_000 {
			t.Errorf("%d bytes are kept, %d passed on", len(text), len(got.Stdout))
		}
	})
}

// Of a flood of datagrams every single one has a row or is counted in one, and the rows
// that count have room in the report.
func TestRefusedPacketsAreRecordedOrCounted(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		const sent = 20_000
		got := run(t, lab, who, "--max-destinations", "2000", "--", "/usr/bin/python3", "-c", fmt.Sprintf(`import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(%d):
    try: s.sendto(b"x", ("8.8.%%d.%%d" %% (i >> 8, i & 255), 9))
    except PermissionError: pass`, sent))
		succeeded(t, got)
		rows, counted := 0, 0
		for _, row := range got.Requests(t) {
			if row.Code == "udp-refused" {
				rows++
			} else if n := 0; strings.HasPrefix(row.Code, "bound-") {
				_, _ = fmt.Sscanf(row.Reason, "%d more packets", &n)
				counted += n
			}
		}
		if rows == 0 || rows > 2000 || counted == 0 || rows+counted != sent {
			t.Errorf("of %d packets %d have a row and %d are counted", sent, rows, counted)
		}
		said := false
		for _, row := range got.Denials(t) {
			said = said || row.Host == "" && (row.Code == "bound-destinations" || row.Code == "bound-packets")
		}
		if !said {
			t.Error("the report does not say that something is missing")
		}
	})
}
