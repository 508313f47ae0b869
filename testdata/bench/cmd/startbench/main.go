// Command startbench measures the wall time of `contestants/NAME COMMAND…` for
// every named contestant, in rounds: each round runs every contestant once, in
// an order shuffled anew, so that drift and noise of the machine hit all alike.
// It prints a table and, with -o, every sample as TSV. NAME@root is contestant
// NAME started as root.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

type bench struct {
	dir      string
	uid      int
	rootHome string
	command  []string

	wall, cpu map[string][]float64 // milliseconds
	failures  map[string][]string
}

func main() {
	b := bench{wall: map[string][]float64{}, cpu: map[string][]float64{}, failures: map[string][]string{}}
	rounds := flag.Int("n", 40, "rounds")
	warm := flag.Int("warm", 2, "untimed rounds first")
	names := flag.String("c", "bare", "comma separated contestants")
	out := flag.String("o", "", "TSV file for all samples")
	gap := flag.Duration("gap", 20*time.Millisecond, "pause between runs")
	flag.StringVar(&b.dir, "dir", "contestants", "folder with one executable for each contestant")
	flag.IntVar(&b.uid, "u", 1500, "uid and gid of the contestants that are not @root")
	flag.StringVar(&b.rootHome, "roothome", "/root", "home of the @root contestants; their project is below it")
	flag.Parse()
	b.command = flag.Args()
	contestants := strings.Split(*names, ",")
	samples := io.Discard
	if *out != "" {
		f, err := os.Create(*out)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		defer f.Close()
		samples = f
	}
	fmt.Fprintln(samples, "round\tcontestant\twall_ms\tcpu_ms")
	order := rand.New(rand.NewSource(1))
	for round := -*warm; round < *rounds; round++ {
		for _, i := range order.Perm(len(contestants)) {
			b.once(contestants[i], round, samples)
			time.Sleep(*gap)
		}
	}
	b.print(contestants)
}

// once runs one contestant; rounds below 0 only warm the machine up.
func (b *bench) once(name string, round int, samples io.Writer) {
	file, asRoot := strings.CutSuffix(name, "@root")
	cmd := exec.Command(filepath.Join(b.dir, file), b.command...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Env = append(os.Environ(), "CONTESTANT="+name)
	if asRoot {
		cmd.Dir = filepath.Join(b.rootHome, "proj")
		cmd.Env = append(cmd.Env, "HOME="+b.rootHome, "USER=root", "LOGNAME=root")
	} else {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(b.uid), Gid: uint32(b.uid)}}
	}
	start := time.Now()
	err := cmd.Run()
	wall := float64(time.Since(start).Microseconds()) / 1e3
	if err != nil {
		text := strings.Join(strings.Fields(stderr.String()), " ")
		b.failures[name] = append(b.failures[name], fmt.Sprintf("%v: %.300s", err, text))
		return
	}
	if round < 0 {
		return
	}
	cpu := float64((cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Microseconds()) / 1e3
	b.wall[name] = append(b.wall[name], wall)
	b.cpu[name] = append(b.cpu[name], cpu)
	fmt.Fprintf(samples, "%d\t%s\t%.3f\t%.3f\n", round, name, wall, cpu)
}

func (b *bench) print(contestants []string) {
	fmt.Println("| contestant | n | min | p25 | median | p75 | p90 | p95 | CPU median |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	for _, name := range contestants {
		w := b.wall[name]
		fmt.Printf("| %s | %d | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n", name, len(w),
			at(w, 0), at(w, .25), at(w, .5), at(w, .75), at(w, .9), at(w, .95), at(b.cpu[name], .5))
	}
	for _, name := range contestants {
		if f := b.failures[name]; len(f) > 0 {
			fmt.Printf("\n%s failed %d times, last: %s\n", name, len(f), f[len(f)-1])
		}
	}
}

// at is the quantile q of v, interpolated; 0 of nothing.
func at(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	x := q * float64(len(s)-1)
	i := int(x)
	if i+1 == len(s) {
		return s[i]
	}
	return s[i] + (x-float64(i))*(s[i+1]-s[i])
}
