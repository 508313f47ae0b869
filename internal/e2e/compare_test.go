//go:build compare

package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

var table = flag.String("table", "", "the file that the comparison is written to")

// peer is a sandbox that is asked the same.
type peer struct {
	name    string
	version []string // a command that prints it
	// words are put before a command that is to run in the project.
	words func(t *testing.T, lab *sbxtest.Lab) []string
}

var peers = []peer{
	{"sbx", []string{"sbx", "version"}, nil},
	{"bubblewrap", []string{"bwrap", "--version"}, func(t *testing.T, lab *sbxtest.Lab) []string {
		dir := lab.Project(sbxtest.AsUser)
		return []string{"bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", dir, dir, "--unshare-all", "--new-session", "--die-with-parent", "--chdir", dir}
	}},
	{"firejail", []string{"firejail", "--version"}, func(*testing.T, *sbxtest.Lab) []string { return []string{"firejail", "--quiet", "--"} }},
	{"runc", []string{"runc", "--version"}, bundle},
}

// bundle makes a bundle of what `runc spec --rootless` says, with the system read-only
// and the project writable.
func bundle(t *testing.T, lab *sbxtest.Lab) []string {
	t.Helper()
	dir := lab.Home(sbxtest.AsUser) + "/bundle"
	succeeded(t, outside(t, lab, sbxtest.AsUser, "mkdir -p ../bundle/rootfs/{usr,etc,proc,sys,dev,tmp} ../bundle/rootfs$PWD && cd ../bundle/rootfs && for d in bin sbin lib lib64; do ln -s usr/$d $d; done && cd .. && runc spec --rootless"))
	var config map[string]any
	if err := json.Unmarshal([]byte(contents(t, dir+"/config.json")), &config); err != nil {
		t.Fatal(err)
	}
	project := lab.Project(sbxtest.AsUser)
	mounts := config["mounts"].([]any)
	for path, mode := range map[string]string{"/usr": "ro", "/etc": "ro", project: "rw"} {
		mounts = append(mounts, map[string]any{"destination": path, "type": "none", "source": path, "options": []string{"rbind", "nosuid", "nodev", mode}})
	}
	config["mounts"] = mounts
	process := config["process"].(map[string]any)
	process["terminal"], process["cwd"], process["args"] = false, project, []string{"sh", "run"}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/config.json", text, 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"sh", "-c", `printf '%s\n' "export NEIGHBOURS='$NEIGHBOURS' SECRETS='$SECRETS' HOME='$HOME' PATH='$PATH'" "$3" >run; export XDG_RUNTIME_DIR=$HOME/.run; mkdir -p $XDG_RUNTIME_DIR; exec runc run -b ` + dir + ` x`, "runc"}
}

// group is probes of one kind.
type group struct {
	name     string
	attempts []attempt
}

func groups() []group {
	var descriptors, others []attempt
	known := slices.Concat(privilegeBitCalls(), inodeCalls, namespaceCalls(), socketCalls(), initCalls())
	for _, a := range systemCalls() {
		switch {
		case strings.HasPrefix(a.name, "descriptor "):
			descriptors = append(descriptors, a)
		case !slices.ContainsFunc(known, func(k attempt) bool { return k.name == a.name }):
			others = append(others, a)
		}
	}
	return []group{
		{"files that run as their owner (set-user-id)", privilegeBitCalls()},
		{"devices, owners", inodeCalls},
		{"new namespaces", namespaceCalls()},
		{"sockets of other families and protocols", socketCalls()},
		{"the sandbox's first process", append(initCalls(), processAttempts...)},
		{"the caller's descriptors", descriptors},
		{"other system calls, foreign ABIs", others},
		{"the network", networkAttempts},
		{"files", fileAttempts},
		{"unix sockets of the host", socketAttempts},
	}
}

// mustWork are answers that say that something is as it should be: they are no probes.
var mustWork = []string{"ok", "0", "1", "True", "b'inside'"}

var refusalText = regexp.MustCompile(`^(E[A-Z0-9]+|SIG[A-Z]+|TimeoutError.*|timeout.*)$`)

// through reports whether a probe came to something that it should not have.
func through(a attempt, answer string) bool {
	wanted := strings.Split(a.want, "|")
	return !slices.Contains(wanted, answer) && !refusalText.MatchString(answer) && !slices.ContainsFunc(wanted, func(w string) bool { return slices.Contains(mustWork, w) })
}

// probed makes all probes in one sandbox and returns the answers by their text, and how
// many packets left.
func probed(t *testing.T, p peer, probe string) (answers map[string]string, packets int) {
	t.Helper()
	lab, who := sbxtest.NewLab(t), sbxtest.AsUser
	cmd := hostile(t, lab, who, probe)
	inProject(t, lab, who, "host.sock")
	// What a peer lets read may have many lines, and what it lets ask may have no answer.
	lab.Write(who, "escape.py", strings.NewReplacer("settimeout(20)", "settimeout(1)", "print(code(lambda: eval(line)), flush=True)",
		"print(str(code(lambda: eval(line))).replace(chr(10), ' ')[:60], flush=True)").Replace(contents(t, "testdata/escape.py")))
	if p.words != nil {
		for i, word := range cmd.Args {
			if word == "--env" {
				cmd.Env = append(cmd.Env, cmd.Args[i+1])
			}
		}
		argv := append(p.words(t, lab), cmd.Args[len(cmd.Args)-3:]...)
		program, err := exec.LookPath(argv[0])
		if err != nil {
			t.Fatal(err)
		}
		cmd.Path, cmd.Args = program, argv
	}
	// In runc the shell is the first process, which the calls leave without descriptors.
	cmd.Args[len(cmd.Args)-1] = "/usr/bin/python3 escape.py <scripts; exec ./probe <calls"
	before := len(lab.Dials())
	got := lab.RunCommand(t, who, cmd)
	lines := strings.Split(strings.TrimSuffix(got.Stdout, "\n"), "\n")
	all := slices.Concat(scripted(), systemCalls())
	if len(lines) != len(all) {
		t.Fatalf("%s: exit status %d, %d answers, want %d: %.2000s", p.name, got.Exit, len(lines), len(all), got.Stderr)
	}
	answers = map[string]string{}
	for i, a := range all {
		answers[a.name+a.try] = named(lines[i])
	}
	return answers, len(lab.Dials()) - before
}

// TestPeers writes the comparison.
func TestPeers(t *testing.T) {
	probe := buildProbe(t)
	answers, packets, versions := map[string]map[string]string{}, map[string]int{}, []string{}
	for _, p := range peers {
		answers[p.name], packets[p.name] = probed(t, p, probe)
		lab := sbxtest.NewLab(t)
		first, _, _ := strings.Cut(lab.Run(t, sbxtest.AsUser, slices.Clone(p.version)...).Stdout, "\n")
		versions = append(versions, strings.Join(strings.Fields(first), " "))
	}
	var out strings.Builder
	fmt.Fprintf(&out, "Versions: %s.\n\n| what is tried | probes |", strings.Join(versions, "; "))
	for _, p := range peers {
		fmt.Fprintf(&out, " %s |", p.name)
	}
	out.WriteString("\n| --- | --- |" + strings.Repeat(" --- |", len(peers)) + "\n")
	open := map[string][]string{}
	for _, g := range groups() {
		row, tried := "", 0
		for _, a := range g.attempts {
			if !slices.ContainsFunc(strings.Split(a.want, "|"), func(w string) bool { return slices.Contains(mustWork, w) }) {
				tried++
			}
		}
		for _, p := range peers {
			n := 0
			for _, a := range g.attempts {
				if answer := answers[p.name][a.name+a.try]; through(a, answer) {
					n++
					open[p.name] = append(open[p.name], a.name+": "+answer)
				}
			}
			row += fmt.Sprintf(" %d |", n)
		}
		fmt.Fprintf(&out, "| %s | %d |%s\n", g.name, tried, row)
	}
	fmt.Fprintf(&out, "| packets and questions that left the machine | |")
	for _, p := range peers {
		fmt.Fprintf(&out, " %d |", packets[p.name])
	}
	out.WriteString("\n")
	for _, p := range peers {
		fmt.Fprintf(&out, "\n%s let through: %s\n", p.name, strings.Join(open[p.name], "; "))
	}
	if err := os.WriteFile(*table, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
