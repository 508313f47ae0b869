package prober

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Walls is what the kernel says of the walls around the probe.
type Walls struct {
	Interfaces []string          `json:"interfaces"` // network devices
	Status     map[string]string `json:"status"`     // of /proc/self/status, what the sandbox is to set
	Inherited  []string          `json:"inherited"`  // descriptors that outlived the exec, beside 0, 1 and 2
	Limits     map[string]uint64 `json:"limits"`     // soft limits that are set, by name as in getrlimit(2)
	Landlock   int               `json:"landlock"`   // rulesets around the probe; -1: the kernel does not tell
	Proc       []Try             `json:"proc"`       // what of /proc is to be hidden or read-only; Said is "shown" or "writable" where it is not
	Sockets    []string          `json:"sockets"`    // unix sockets that show where a host's would
	Unix       []Try             `json:"unix"`       // connections to unix sockets of the host
}

// readWalls asks for everything that takes no time.
func readWalls() (w Walls, err error) {
	if w.Interfaces, err = interfaces(); err != nil {
		return w, err
	}
	if w.Status, err = ownStatus(); err != nil {
		return w, err
	}
	if w.Inherited, err = inherited(); err != nil {
		return w, err
	}
	w.Limits, w.Landlock = limits(), landlockLayers()
	w.Proc = append(hiddenProc(), readOnlyProc()...)
	w.Sockets, err = shownSockets()
	return w, err
}

func interfaces() (names []string, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing the sandbox's network devices: %w", err)
	}
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names, nil
}

// statusFields are those of /proc/self/status that the sandbox sets (proc_pid_status(5)).
var statusFields = []string{"Seccomp", "NoNewPrivs", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}

func ownStatus() (map[string]string, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, fmt.Errorf("reading the probe's own status: %w", err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		for _, wanted := range statusFields {
			if key == wanted {
				out[key] = strings.TrimSpace(value)
			}
		}
	}
	return out, nil
}

// inherited lists the descriptors that are not closed by an exec: those that the probe
// opened itself are, and what it was started with is not (fcntl(2), FD_CLOEXEC).
func inherited() ([]string, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, fmt.Errorf("listing the probe's descriptors: %w", err)
	}
	out := []string{}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue // closed since, or the probe's own
		}
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			target = err.Error()
		}
		out = append(out, e.Name()+" "+target)
	}
	return out, nil
}

// limitNames are the limits that the sandbox may set (setrlimit(2)).
var limitNames = map[string]int{
	"nofile": unix.RLIMIT_NOFILE, "fsize": unix.RLIMIT_FSIZE, "nproc": unix.RLIMIT_NPROC, "data": unix.RLIMIT_DATA, "core": unix.RLIMIT_CORE,
}

// limits are the hard limits: the soft ones can be raised up to them, as the Go runtime
// does with the number of descriptors.
func limits() map[string]uint64 {
	out := map[string]uint64{}
	for name, resource := range limitNames {
		var l unix.Rlimit
		if unix.Getrlimit(resource, &l) == nil && l.Max != unix.RLIM_INFINITY {
			out[name] = l.Max
		}
	}
	return out
}

// maxLayers is how many rulesets the kernel lets one task be in (landlock(7)).
const maxLayers = 16

// landlockLayers counts the rulesets around the probe by adding more until the kernel
// refuses, on a thread that ends with it; -1 where there is no Landlock to ask.
func landlockLayers() int {
	answer := make(chan int)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		answer <- maxLayers - addLayers()
	}()
	if layers := <-answer; layers <= maxLayers {
		return layers
	}
	return -1
}

// addLayers restricts the calling thread as often as the kernel lets it, and returns
// how often; -1 for a refusal of another kind.
func addLayers() int {
	rules := struct{ fs uint64 }{unix.LANDLOCK_ACCESS_FS_MAKE_SYM}
	for added := 0; ; added++ {
		fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)), 8, 0)
		if errno != 0 {
			return -1
		}
		_, _, errno = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0)
		_ = unix.Close(int(fd))
		switch {
		case errno == unix.E2BIG:
			return added
		case errno != 0 || added > maxLayers:
			return -1
		}
	}
}

// hiddenProc looks into what tells about the host.
func hiddenProc() []Try {
	var out []Try
	for _, name := range []string{
		"acpi", "asound", "cmdline", "interrupts", "kcore", "keys", "latency_stats", "pressure", "sched_debug", "scsi", "timer_list", "timer_stats",
	} {
		t := Try{What: "hidden", Target: "/proc/" + name}
		switch t.Error = readable(t.Target); t.Error {
		case "success":
			t.Said, t.Error = "shown", ""
		case "empty":
			t.Error = ""
		}
		out = append(out, t)
	}
	return out
}

// readOnlyProc asks how the parts of /proc are mounted that steer the kernel (statfs(2)).
func readOnlyProc() []Try {
	var out []Try
	for _, name := range []string{"bus", "fs", "irq", "sys", "sysrq-trigger"} {
		t := Try{What: "read-only", Target: "/proc/" + name}
		var st unix.Statfs_t
		err := unix.Statfs(t.Target, &st)
		if t.Error = nameOf(err); err == nil && st.Flags&unix.ST_RDONLY == 0 {
			t.Said = "writable"
		}
		out = append(out, t)
	}
	return out
}

// maxLooked bounds the search for sockets.
const maxLooked = 10_000

// shownSockets finds sockets that are mounted, and those below the directories in which
// services of a host have theirs.
func shownSockets() ([]string, error) {
	out := []string{}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("listing the sandbox's mounts: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && isSocket(unescape(fields[4])) {
			out = append(out, unescape(fields[4]))
		}
	}
	looked := 0
	for _, top := range []string{"/run", "/var/run"} {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if looked++; looked > maxLooked {
				return filepath.SkipAll
			}
			if err == nil && d.Type()&fs.ModeSocket != 0 {
				out = append(out, path)
			}
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("looking for sockets below %s: %w", top, err)
		}
	}
	return out, nil
}

func isSocket(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSocket != 0
}

// unescape undoes the octal escapes of /proc/self/mountinfo (proc_pid_mountinfo(5)).
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// readable says whether there is anything to be had at path: "success", "empty" or the
// errno. It never waits for the other end of a pipe.
func readable(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return said(err)
	}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err == nil && len(entries) == 0 {
			return "empty"
		}
		return said(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return said(err)
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, make([]byte, 1))
	if n == 0 && err == nil {
		return "empty"
	}
	return said(err)
}
