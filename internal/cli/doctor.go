package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/cgroup"
	"github.com/fractalboxdev/sbx/internal/host"
	"github.com/fractalboxdev/sbx/internal/netns"
	"github.com/fractalboxdev/sbx/internal/term"
)

func newDoctorCommand(e *environment) *cobra.Command {
	var asJSON, inside, apparmor bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "Tell what this machine gives and what it lacks",
		Long: "Tell what this machine gives and what it lacks. Each answer is yes, no or unknown.\n" +
			"The exit status is 1 when something is missing without which no command can be run.",
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			if inside {
				return host.Inside(e.stdin, e.stdout, tryNetwork)
			}
			if apparmor {
				return e.appArmorProfile()
			}
			return e.doctor(asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&apparmor, "apparmor", false, "print an AppArmor profile that lets this sbx make user namespaces, and nothing else")
	cmd.Flags().BoolVar(&inside, "inside", false, "the half that doctor itself starts in new namespaces")
	cmd.Flags().Lookup("inside").Hidden = true
	return cmd
}

// tryNetwork sets up a run's network, with its nft rules, in the namespace of
// the calling process, and closes what it opened.
func tryNetwork() error {
	files, err := netns.Setup()
	if err != nil {
		return err
	}
	return files.Close()
}

func (e *environment) doctor(asJSON bool) error {
	done := e.say.Progress("asking the kernel")
	facts := host.New(host.Options{Inside: []string{"sbx", "doctor", "--inside"}, Libseccomp: libseccomp}).Facts()
	done()
	facts = append(facts, slices.Concat(cgroupFacts(), []host.Fact{e.configFact(), e.stateFact()})...)
	ready := host.Ready(facts)
	if asJSON {
		err := e.printJSON(struct {
			Ready bool        `json:"ready"`
			Facts []host.Fact `json:"facts"`
		}{ready, facts})
		if err != nil {
			return err
		}
	} else {
		e.printFacts(facts, ready)
	}
	if !ready {
		return &exitError{code: exitNegative}
	}
	return nil
}

func (e *environment) appArmorProfile() error {
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	e.out.Raw(host.AppArmorProfile(binary))
	return nil
}

// cgroupFacts says of each bound that a run may have whether the kernel would hold it
// for all of its processes together.
func cgroupFacts() []host.Fact {
	plan := cgroup.NewPlan("doctor", cgroup.Limits{Memory: 1 << 30, CPU: 1000, Processes: 100})
	facts := make([]host.Fact, 0, 3)
	for _, c := range [...]struct{ name, cost string }{
		{cgroup.Memory, "memory is bounded for each process alone"},
		{cgroup.CPU, "processors are not bounded"},
		{cgroup.Pids, "before Linux 5.14, processes are not bounded"},
	} {
		f := host.Fact{Name: c.name + " cgroup", Need: host.Better, State: host.Yes, Detail: "a group can be made", Cost: c.cost}
		if err := plan.Missing[c.name]; err != nil {
			f.State, f.Detail, f.Fix = host.No, err.Error(), "start sbx under: systemd-run --user --scope -p Delegate=yes sbx exec ..."
			if errors.Is(err, cgroup.ErrNone) {
				f.Fix = "boot with systemd.unified_cgroup_hierarchy=1, or mount the hierarchy"
			}
		}
		facts = append(facts, f)
	}
	return facts
}

func (e *environment) configFact() host.Fact {
	f := host.Fact{Name: "configuration", Need: host.Required, State: host.Yes, Cost: "no command can be run"}
	c, err := e.loadConfig()
	if err != nil {
		f.State, f.Detail, f.Fix = host.No, err.Error(), nextStep(err)
		return f
	}
	f.Detail = "defaults"
	if len(c.Files) > 0 {
		f.Detail = strings.Join(c.Files, ", ")
	}
	return f
}

func (e *environment) stateFact() host.Fact {
	f := host.Fact{Name: "state directory", Need: host.Required, State: host.Yes, Cost: "no command can be run: nothing could be recorded"}
	c, err := e.loadConfig()
	if err != nil {
		f.State, f.Detail = host.Unknown, "the configuration names it"
		return f
	}
	dir, err := e.stateDir(c)
	if err == nil {
		f.Detail = dir
		err = artifact.Check(dir)
	}
	if err != nil {
		f.State, f.Detail, f.Fix = host.No, err.Error(), nextStep(err)
	}
	return f
}

var tones = map[host.State]term.Tone{host.Yes: term.Good, host.No: term.Bad, host.Unknown: term.Unsure}

func (e *environment) printFacts(facts []host.Fact, ready bool) {
	rows := make([][]term.Cell, 0, len(facts))
	for _, f := range facts {
		rows = append(rows, []term.Cell{{Text: f.Name}, {Text: string(f.State), Tone: tones[f.State]}, {Text: string(f.Need)}, {Text: f.Detail}})
	}
	e.out.Table([]string{"WHAT", "HERE", "NEED", "DETAIL"}, rows)
	for _, f := range facts {
		if f.State == host.Yes || f.Need == host.Info {
			continue
		}
		text := fmt.Sprintf("%s: %s: %s", f.Name, f.State, f.Cost)
		if f.Fix != "" {
			text += "; to mend it: " + f.Fix
		}
		e.out.Line(text)
	}
	who := "an ordinary user"
	if os.Geteuid() == 0 {
		who = "root"
	}
	if ready {
		e.out.Line("nothing that is needed is missing for " + who)
	} else {
		e.out.Line("no command can be run here as " + who)
	}
}
