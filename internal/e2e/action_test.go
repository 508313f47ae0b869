package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// stage is a copy of the action, with stand-ins for the files of GitHub's runner.
type actionStage struct {
	dir, step       string
	output, summary string
	env             []string
}

var stepText = regexp.MustCompile(`(?m)^ +run: '(.*)'$`)

func stageAction(t *testing.T, lab *sbxtest.Lab, who sbxtest.User) actionStage {
	t.Helper()
	root, err := sbxtest.Root()
	must(t, err)
	source := filepath.Join(root, ".github/actions/sbx-exec")
	text, err := os.ReadFile(filepath.Join(source, "action.yml"))
	must(t, err)
	steps := stepText.FindAllStringSubmatch(string(text), -1)
	if len(steps) != 1 || strings.Contains(steps[0][1], "${{") {
		t.Fatalf("steps: %q", steps)
	}
	s := actionStage{dir: filepath.Join(lab.Home(who), "runner"), step: steps[0][1]}
	for _, name := range []string{"action", "temp"} {
		must(t, os.MkdirAll(filepath.Join(s.dir, name), 0o755))
	}
	script, err := os.ReadFile(filepath.Join(source, "exec"))
	must(t, err, os.WriteFile(filepath.Join(s.dir, "action/exec"), script, 0o755))
	s.output, s.summary = filepath.Join(s.dir, "temp/output"), filepath.Join(s.dir, "temp/summary")
	for _, name := range []string{s.output, s.summary, filepath.Join(s.dir, "temp/env")} {
		must(t, os.WriteFile(name, nil, 0o600))
	}
	must(t, filepath.WalkDir(s.dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil || os.Geteuid() != 0 {
			return err
		}
		return os.Lchown(path, lab.UID(who), -1)
	}))
	s.env = []string{
		"GITHUB_ACTION_PATH=" + s.dir + "/action", "RUNNER_TEMP=" + s.dir + "/temp", "GITHUB_OUTPUT=" + s.output, "GITHUB_STEP_SUMMARY=" + s.summary,
		"GITHUB_ENV=" + s.dir + "/temp/env", "SBX_BINARY=" + sbxtest.Binary(t), "GITHUB_TOKEN=the-runners-token",
	}
	return s
}

// run runs the step as the runner does.
func (s actionStage) run(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, env ...string) sbxtest.Result {
	t.Helper()
	cmd := lab.Command(t, who, "bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", s.step)
	cmd.Env = slices.Concat(cmd.Env, s.env, env)
	return lab.RunCommand(t, who, cmd)
}

// obeyed lists the commands that the runner would obey in a step's log: those at the
// beginning of a line, but none between ::stop-commands::TOKEN and ::TOKEN::.
func obeyed(log string) (commands []string) {
	token := ""
	for line := range strings.FieldsFuncSeq(log, func(r rune) bool { return r == '\n' || r == '\r' }) {
		line = strings.TrimLeft(line, " \t")
		switch {
		case token != "" && line == "::"+token+"::":
			token = ""
		case token != "":
		case strings.HasPrefix(line, "::stop-commands::"):
			token = strings.TrimPrefix(line, "::stop-commands::")
		case strings.HasPrefix(line, "::"), strings.Contains(line, "##["):
			commands = append(commands, line)
		}
	}
	if token != "" {
		commands = append(commands, "(stopped to the end)")
	}
	return commands
}

const hostileScript = `
echo '::set-output name=exit::0'
echo '::add-mask::e'
echo '::stop-commands::mine'; echo '::mine::'
printf '::error title=forged::x\r::warning::y\n'
echo '##[error]old'
printf '\033[2J\033]52;c;eA==\a::debug::z\n'
printf '::%064d::\n' 0
env
curl -s 'http://unlisted.test/a%0A::error::injected,title=x' -H 'X: y' || true
curl -s "http://unlisted.test/b|<b>" || true
printf 'no newline at the end ::' >&2
exit 7
`

func TestActionEscapesAHostileCommand(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		s := stageAction(t, lab, who)
		got := s.run(t, lab, who, "SBX_RUN="+hostileScript)
		if got.Exit != 7 {
			t.Errorf("exit status %d\n%s%s", got.Exit, got.Stdout, got.Stderr)
		}
		commands := obeyed(got.Stdout)
		if len(commands) != 2 || len(obeyed(got.Stderr)) != 0 {
			t.Fatalf("obeyed: %q, %q", commands, got.Stderr)
		}
		for _, c := range commands {
			if !strings.HasPrefix(c, "::warning title=sbx denied%3A host-not-granted::") || strings.Contains(c, "%0A") {
				t.Errorf("%q", c)
			}
		}
		if strings.Contains(got.Stdout, "the-runners-token") {
			t.Error("the command saw the runner's token")
		}
		output, err := os.ReadFile(s.output)
		must(t, err)
		says(t, string(output), "exit<<sbx-", "\n7\n", "denials<<sbx-", "\n2\n")
		summary, err := os.ReadFile(s.summary)
		must(t, err)
		says(t, string(summary), "2 requests denied", "unlisted&#46;test")
		if strings.ContainsAny(string(summary), "<>`\x1b") {
			t.Errorf("markup: %s", summary)
		}
		if left, err := filepath.Glob(s.dir + "/temp/sbx-exec.*"); err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
	})
}

func TestActionTokensAreNeverTheSame(t *testing.T) {
	lab := sbxtest.NewLab(t)
	who := sbxtest.Everyone()[0]
	s := stageAction(t, lab, who)
	first, second := s.run(t, lab, who, "SBX_RUN=true"), s.run(t, lab, who, "SBX_RUN=true")
	line, _, _ := strings.Cut(first.Stdout, "\n")
	if first.Exit != 0 || len(line) < len("::stop-commands::")+60 || strings.HasPrefix(second.Stdout, line) {
		t.Errorf("%s%s", first.Stdout, second.Stdout)
	}
}

func TestActionRefusesWhatTheScriptCouldChange(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		s := stageAction(t, lab, who)
		project := filepath.Join(lab.Home(who), "project")
		must(t, os.Symlink(s.dir, filepath.Join(project, "link")))
		must(t, os.WriteFile(filepath.Join(project, "sbx"), []byte("#!/bin/sh\necho ran >"+project+"/ran\n"), 0o755), os.Symlink(filepath.Join(project, "sbx"), filepath.Join(s.dir, "linked")))
		for name, row := range map[string]struct {
			env  []string
			says string
		}{
			"no script":                      {[]string{"SBX_RUN="}, "is empty"},
			"the runner's files inside":      {[]string{"SBX_DIRECTORY=" + lab.Home(who)}, "lie"},
			"by a link":                      {[]string{"SBX_DIRECTORY=" + project + "/link"}, "lie"},
			"the root":                       {[]string{"SBX_DIRECTORY=/"}, "lie"},
			"the binary inside":              {[]string{"SBX_BINARY=" + s.dir + "/action/exec", "SBX_DIRECTORY=" + s.dir + "/action"}, "sbx binary lies"},
			"by a link from outside":         {[]string{"SBX_BINARY=" + s.dir + "/linked"}, "sbx binary lies"},
			"by a name without a path":       {[]string{"SBX_BINARY=sbx", "PATH=" + project + ":/usr/bin:/bin"}, "sbx binary lies"},
			"the action inside":              {[]string{"SBX_DIRECTORY=" + s.dir + "/action"}, "the action lies"},
			"no binary":                      {[]string{"SBX_BINARY=/nonexistent/sbx"}, "not found"},
			"no directory":                   {[]string{"SBX_DIRECTORY=/nonexistent"}, "does not exist"},
			"an end of the flags":            {[]string{"SBX_FLAGS=--quiet\n--\nid"}, "long flags"},
			"a command among the flags":      {[]string{"SBX_FLAGS=id"}, "long flags"},
			"another outcome":                {[]string{"SBX_FLAGS=--outcome=/tmp/x"}, "long flags"},
			"short flags":                    {[]string{"SBX_FLAGS=-C/"}, "long flags"},
			"an unknown flag":                {[]string{"SBX_FLAGS=--quit"}, "did not run the script"},
			"a profile that is none":         {[]string{"SBX_PROFILES=js-instal"}, "sbx refused%3A recipe-rejected"},
			"a profile with a line's end":    {[]string{"SBX_PROFILES=js-install\r\n::error::x"}, "sbx refused%3A recipe-rejected"},
			"an input that names no profile": {[]string{"SBX_INPUTS=repo=a/b"}, "recipe-rejected"},
		} {
			t.Run(name, func(t *testing.T) {
				got := s.run(t, lab, who, append([]string{"SBX_RUN=touch " + lab.Home(who) + "/ran; echo ran >ran"}, row.env...)...)
				commands := obeyed(got.Stdout)
				if got.Exit == 0 || len(commands) != 1 || !strings.HasPrefix(commands[0], "::error title=sbx") || !strings.Contains(commands[0], row.says) {
					t.Errorf("exit status %d, obeyed %q\n%s%s", got.Exit, commands, got.Stdout, got.Stderr)
				}
				if _, err := os.Lstat(filepath.Join(project, "ran")); err == nil {
					t.Error("the script ran")
				}
			})
		}
	})
}

func TestActionPassesOnWhatItIsGiven(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		s := stageAction(t, lab, who)
		got := s.run(t, lab, who, "SBX_RUN=echo \"<$WANTED|$1|$#>\" >said; false | true", "SBX_ENV=WANTED\n", "WANTED=a b", "SBX_FLAGS=--timeout=1m\n--quiet\n")
		if got.Exit != 1 { // pipefail
			t.Errorf("exit status %d\n%s%s", got.Exit, got.Stdout, got.Stderr)
		}
		said, err := os.ReadFile(filepath.Join(lab.Home(who), "project/said"))
		if must(t, err); string(said) != "<a b||0>\n" {
			t.Errorf("%q", said)
		}
	})
}

// The examples of the documentation gate, and pass on what they gate.
func TestTheShellExampleGates(t *testing.T) {
	lab := sbxtest.NewLab(t)
	root, err := sbxtest.Root()
	must(t, err)
	text, err := os.ReadFile(filepath.Join(root, "docs/ci/gate.sh"))
	must(t, err)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		script := filepath.Join(lab.Home(who), "gate.sh")
		must(t, os.WriteFile(script, text, 0o755))
		gate := func(binary string, env ...string) sbxtest.Result {
			cmd := lab.Command(t, who, script, "sh", "-c", "echo deployed \"$1\"", "x", "a b")
			cmd.Env = slices.Concat(cmd.Env, []string{"SBX=" + binary}, env)
			return lab.RunCommand(t, who, cmd)
		}
		got := gate(sbxtest.Binary(t))
		succeeded(t, got)
		says(t, got.Stdout, "migrations: current", "canary: passed", "health: ok", "dogfood: passed", "deployed a b\n")
		for _, wall := range []string{"gate", "seccomp"} {
			got := gate(sbxtest.BrokenBinary(t), "SBX_BREAK="+wall)
			if got.Exit != 1 || strings.Contains(got.Stdout, "deployed") {
				t.Errorf("without %s: exit status %d\n%s%s", wall, got.Exit, got.Stdout, got.Stderr)
			}
		}
		if got := lab.Run(t, who, script); got.Exit != 2 {
			t.Errorf("without a command: exit status %d", got.Exit)
		}
	})
}

// The workflow names no action of somebody else's, takes its own by a whole commit, and
// has nothing of GitHub's contexts in the text of a step.
func TestTheWorkflowTakesNothingFromOthers(t *testing.T) {
	root, err := sbxtest.Root()
	must(t, err)
	text, err := os.ReadFile(filepath.Join(root, "docs/ci/deploy.yml"))
	must(t, err)
	uses := regexp.MustCompile(`uses: (\S+)`).FindAllStringSubmatch(string(text), -1)
	own := regexp.MustCompile(`^fractalboxdev/sbx/\.github/actions/sbx-exec@[0-9a-f]{40}$`)
	if len(uses) != 1 || !own.MatchString(uses[0][1]) {
		t.Errorf("%q", uses)
	}
	order := []string{"sbx state migrate", "verify-deploy canary", "verify-deploy health", "verify-deploy dogfood", "./deploy"}
	at := 0
	for _, step := range order {
		found := strings.Index(string(text)[at:], step)
		if found < 0 {
			t.Fatalf("%q is missing, or out of its order", step)
		}
		at += found
	}
	inStep := false
	for line := range strings.Lines(string(text)) {
		key := strings.TrimSpace(line)
		if strings.HasPrefix(key, "- ") || strings.HasPrefix(key, "env:") || strings.HasPrefix(key, "with:") {
			inStep = false
		}
		inStep = inStep || strings.HasPrefix(key, "run:")
		if inStep && strings.Contains(line, "${{") {
			t.Errorf("an expression in a step's text: %s", line)
		}
	}
}
