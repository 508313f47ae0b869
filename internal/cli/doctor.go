package cli

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/host"
	"github.com/fractalboxdev/sbx/internal/netns"
	"github.com/fractalboxdev/sbx/internal/term"
)

func newDoctorCommand(e *environment) *cobra.Command {
	var asJSON, inside bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "Tell what this machine gives and what it lacks",
		Long: "Tell what this machine gives and what it lacks. Each answer is yes, no or unknown.\n" +
			"The exit status is 1 when something is missing without which no command can be run.",
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			if inside {
				return host.Inside(e.stdin, e.stdout, tryNetwork)
			}
			return e.doctor(asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
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
	facts = append(facts, e.configFact(), e.stateFact())
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
