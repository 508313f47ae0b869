// cgrun runs one command in a cgroup of its own and reports, as one JSON line
// on the descriptor or file given with -o, wall time and the CPU time of
// everything that ever ran in that cgroup (daemons and unreaped children too),
// and with -pss the peak of the summed PSS of all its processes, sampled.
//
// It needs root (or a delegated cgroup). Works with cgroup v1 (cpuacct) and v2.
// -u UID drops to that user. -life kills what is left after the command ends.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

type result struct {
	Label    string  `json:"label"`
	RC       int     `json:"rc"`
	Wall     float64 `json:"wall_s"`
	CPU      float64 `json:"cpu_s"`
	User     float64 `json:"user_s"`
	Sys      float64 `json:"sys_s"`
	PeakPSS  int64   `json:"peak_pss_kb,omitempty"`
	PeakProc int     `json:"peak_procs,omitempty"`
	Left     int     `json:"left_procs"`
	LeftCmd  string  `json:"left_cmd,omitempty"`
}

func rd(p string) string { b, _ := os.ReadFile(p); return string(b) }

func pick() (base string, v2 bool) {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		if strings.Contains(rd("/sys/fs/cgroup/cgroup.controllers"), "cpu") {
			return "/sys/fs/cgroup", true
		}
	}
	for _, b := range []string{os.Getenv("CPUACCT_ROOT"), "/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/cpu,cpuacct"} {
		if b == "" {
			continue
		}
		if _, err := os.Stat(b + "/cpuacct.usage"); err == nil {
			return b, false
		}
	}
	return "", false
}

func usage(dir string, v2 bool) (cpu, user, sys float64) {
	if v2 {
		for _, l := range strings.Split(rd(dir+"/cpu.stat"), "\n") {
			f := strings.Fields(l)
			if len(f) == 2 {
				v, _ := strconv.ParseFloat(f[1], 64)
				switch f[0] {
				case "usage_usec":
					cpu = v / 1e6
				case "user_usec":
					user = v / 1e6
				case "system_usec":
					sys = v / 1e6
				}
			}
		}
		return
	}
	v, _ := strconv.ParseFloat(strings.TrimSpace(rd(dir+"/cpuacct.usage")), 64)
	cpu = v / 1e9
	u, _ := strconv.ParseFloat(strings.TrimSpace(rd(dir+"/cpuacct.usage_user")), 64)
	s, _ := strconv.ParseFloat(strings.TrimSpace(rd(dir+"/cpuacct.usage_sys")), 64)
	return cpu, u / 1e9, s / 1e9
}

func procs(dir string) []int {
	var out []int
	for _, f := range strings.Fields(rd(dir + "/cgroup.procs")) {
		p, _ := strconv.Atoi(f)
		if st := rd(fmt.Sprintf("/proc/%d/stat", p)); st != "" {
			if i := strings.LastIndex(st, ")"); i > 0 && strings.HasPrefix(st[i:], ") Z") {
				continue
			}
			out = append(out, p)
		}
	}
	return out
}

func pss(p int) int64 {
	for _, l := range strings.Split(rd(fmt.Sprintf("/proc/%d/smaps_rollup", p)), "\n") {
		if strings.HasPrefix(l, "Pss:") {
			f := strings.Fields(l)
			v, _ := strconv.ParseInt(f[1], 10, 64)
			return v
		}
	}
	return 0
}

func main() {
	out := flag.String("o", "", "file to append the JSON line to (default stderr)")
	label := flag.String("label", "", "label")
	uid := flag.Int("u", -1, "uid and gid to drop to")
	withPSS := flag.Bool("pss", false, "sample the summed PSS")
	every := flag.Duration("every", 10*time.Millisecond, "sampling interval")
	limit := flag.Duration("limit", 10*time.Minute, "kill after this long")
	grace := flag.Duration("grace", 0, "wait this long after exit before looking for leftovers")
	keep := flag.Bool("keep", false, "do not kill leftovers")
	flag.Parse()
	base, v2 := pick()
	if base == "" {
		fmt.Fprintln(os.Stderr, "no cpu cgroup")
		os.Exit(2)
	}
	dir := filepath.Join(base, fmt.Sprintf("sbxbench-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	// The shell moves itself into the cgroup while still root, then drops.
	args := []string{"-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, dir}
	if *uid >= 0 {
		s := strconv.Itoa(*uid)
		args = append(args, "setpriv", "--reuid="+s, "--regid="+s, "--init-groups")
	}
	cmd := exec.Command("/bin/sh", append(args, flag.Args()...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	r := result{Label: *label}
	t := time.Now()
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	if *withPSS {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				case <-time.After(*every):
				}
				var s int64
				ps := procs(dir)
				for _, p := range ps {
					s += pss(p)
				}
				if s > r.PeakPSS {
					r.PeakPSS, r.PeakProc = s, len(ps)
				}
			}
		}()
	}
	tm := time.AfterFunc(*limit, func() {
		for _, p := range procs(dir) {
			_ = syscall.Kill(p, syscall.SIGKILL)
		}
	})
	err := cmd.Wait()
	r.Wall = time.Since(t).Seconds()
	tm.Stop()
	close(stop)
	wg.Wait()
	if err != nil {
		r.RC = cmd.ProcessState.ExitCode()
	}
	time.Sleep(*grace)
	left := procs(dir)
	r.Left = len(left)
	for _, p := range left {
		r.LeftCmd += strings.TrimSpace(strings.ReplaceAll(rd(fmt.Sprintf("/proc/%d/cmdline", p)), "\x00", " ")) + "; "
	}
	r.CPU, r.User, r.Sys = usage(dir, v2)
	if !*keep {
		for i := 0; i < 50; i++ {
			l := procs(dir)
			if len(l) == 0 {
				break
			}
			for _, p := range l {
				_ = syscall.Kill(p, syscall.SIGKILL)
			}
			time.Sleep(10 * time.Millisecond)
		}
		_ = os.Remove(dir)
	}
	b, _ := json.Marshal(r)
	if *out == "" {
		fmt.Fprintln(os.Stderr, string(b))
	} else {
		f, err := os.OpenFile(*out, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err == nil {
			fmt.Fprintln(f, string(b))
			f.Close()
		}
	}
	os.Exit(r.RC)
}
