package canary

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fractalboxdev/sbx/internal/class"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/prober"
)

// walls says which walls of the sandbox are missing; every canary looks at these.
func walls(r prober.Report) []string {
	out := append(privileges(r.Walls.Status), inside(r.Walls)...)
	for _, c := range r.Calls {
		if c.Error != c.Said {
			out = append(out, fmt.Sprintf("the kernel answered %s with %s, not %s: the seccomp filter is not what it should be", c.What, orSuccess(c.Error), c.Said))
		}
	}
	for _, t := range r.Datagrams {
		if abroad(t) && t.Error == "" {
			out = append(out, "the kernel took a datagram to "+t.Target+" in place of refusing it")
		}
	}
	return out
}

// privileges looks at what the kernel says of the probe's own.
func privileges(status map[string]string) []string {
	out := []string{}
	for field, want := range map[string]string{"Seccomp": "2", "NoNewPrivs": "1"} {
		if status[field] != want {
			out = append(out, fmt.Sprintf("%s of the command is %q, not %s", field, status[field], want))
		}
	}
	for _, field := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if strings.Trim(status[field], "0") != "" || status[field] == "" {
			out = append(out, fmt.Sprintf("%s of the command is %q, not empty", field, status[field]))
		}
	}
	return out
}

// inside looks at what shows in the sandbox and must not.
func inside(w prober.Walls) []string {
	out := []string{}
	for _, name := range w.Interfaces {
		if name != "lo" {
			out = append(out, "the sandbox has a network device beside the loopback: "+name)
		}
	}
	for _, fd := range w.Inherited {
		out = append(out, "the command has a descriptor that it was not to get: "+fd)
	}
	for _, t := range w.Proc {
		if t.Said != "" {
			out = append(out, fmt.Sprintf("%s is %s, but was to be %s", t.Target, t.Said, t.What))
		}
	}
	for _, path := range w.Sockets {
		out = append(out, "a socket of the host shows inside: "+path)
	}
	for _, t := range w.Unix {
		if t.Said != "" {
			out = append(out, fmt.Sprintf("the unix socket %s of the host was %s", t.Target, t.Said))
		}
	}
	return out
}

// unkept says what the receipt claims and the probe does not find.
func unkept(w prober.Walls, r event.Receipt) []string {
	out := []string{}
	for _, m := range r.Applied {
		if m.Name == "landlock" && m.Applied && w.Landlock == 0 {
			out = append(out, "the receipt claims Landlock ("+m.Detail+"), but no ruleset is around the command")
		}
	}
	if most, set := w.Limits["core"]; !set || most != 0 {
		out = append(out, "the command may write core dumps")
	}
	for _, l := range r.Limits {
		resource, most := rlimit(l)
		if got, set := w.Limits[resource]; resource != "" && (!set || got > most) {
			out = append(out, fmt.Sprintf("the receipt claims a limit of %s %s, but that of the command (%s) is %s", l.Value, l.Name, resource, orNone(got, set)))
		}
	}
	return out
}

func orNone(value uint64, set bool) string {
	if !set {
		return "none"
	}
	return strconv.FormatUint(value, 10)
}

// rlimit is the limit of each process that the receipt claims to hold a limit of the run
// by, "" where it does not.
func rlimit(l event.Limit) (resource string, most uint64) {
	if !l.Applied || !strings.HasPrefix(l.How, "rlimit") {
		return "", 0
	}
	size, _ := class.ParseSize(l.Value) // counts are sizes without a unit
	most = uint64(size)                 //nolint:gosec // not negative
	switch class.Limit(l.Name) {
	case class.Files:
		return "nofile", most
	case class.Disk:
		return "fsize", most
	case class.Memory:
		return "data", most
	case class.Processes:
		return "nproc", most + 1 // and the init
	case class.CPU, class.Time:
	}
	return "", 0
}
