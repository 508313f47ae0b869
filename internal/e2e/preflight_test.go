package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// preflightFinding is one of what `sbx preflight --json` prints.
type preflightFinding struct{ Group, Name, Need, State, Detail, Fix string }

// preflight runs it and returns the findings by name, and the exit status.
func preflight(t *testing.T, lab *sbxtest.Lab, who sbxtest.User, binary string, env []string, flags ...string) (map[string]preflightFinding, int) {
	t.Helper()
	cmd := lab.Command(t, who, append([]string{binary, "preflight", "--json"}, flags...)...)
	cmd.Env = append(cmd.Env, env...)
	got := lab.RunCommand(t, who, cmd)
	var answer struct {
		Ready    bool
		Findings []preflightFinding
	}
	if err := json.Unmarshal([]byte(got.Stdout), &answer); err != nil || answer.Ready != (got.Exit == 0) {
		t.Fatalf("exit status %d, ready %v, %v\nstdout: %s\nstderr: %s", got.Exit, answer.Ready, err, got.Stdout, got.Stderr)
	}
	out := map[string]preflightFinding{}
	for _, f := range answer.Findings {
		if out[f.Name] = f; f.State == "no" && f.Fix == "" {
			t.Errorf("nothing mends %+v", f)
		}
	}
	return out, got.Exit
}

func TestPreflightFindsEveryToolchainTrusting(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		outside := watching(lab)
		found, exit := preflight(t, lab, who, "sbx", nil)
		if exit != 0 {
			t.Errorf("exit status %d: %+v", exit, found)
		}
		for _, name := range []string{"curl", "git", "node", "npm", "python", "go"} {
			if f := found[name]; f.State != "yes" || f.Need != "better" || !strings.Contains(f.Detail, "arrived") {
				t.Errorf("%s: %+v", name, f)
			}
		}
		for _, name := range []string{"configuration", "state directory", "store", "built-in profiles", "a run in a sandbox", "registry:npm"} {
			if found[name].State != "yes" {
				t.Errorf("%s: %+v", name, found[name])
			}
		}
		outside.nothingLeft(t)
	})
}

// Without the run's CA nothing trusts it, and what a selected profile needs is missing.
func TestPreflightNoticesWhoDoesNotTrust(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		found, exit := preflight(t, lab, who, sbxtest.BrokenBinary(t), []string{"SBX_BREAK=ca"}, "--profile", "js-install")
		if exit != 1 {
			t.Errorf("exit status %d", exit)
		}
		if f := found["npm"]; f.State != "no" || f.Need != "required" {
			t.Errorf("npm: %+v", f)
		}
		if f := found["curl"]; f.State != "no" || f.Need != "better" || !strings.Contains(f.Detail, "did not arrive") {
			t.Errorf("curl: %+v", f)
		}
	})
}

func TestPreflightSaysWhatASelectionLacks(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		const token = "preflight-secret-value"
		for name, row := range map[string]struct {
			flags, env []string
			exit       int
			finding    string
			state      string
			fix        string
		}{
			"an optional secret": {[]string{"--profile", "js-install"}, nil, 0, "NPM_TOKEN", "no", "export NPM_TOKEN="},
			"a required secret":  {[]string{"--profile", "cf-api"}, nil, 1, "CLOUDFLARE_API_TOKEN", "no", "export CLOUDFLARE_API_TOKEN="},
			"which is set":       {[]string{"--profile", "cf-api"}, []string{"CLOUDFLARE_API_TOKEN=" + token}, 0, "CLOUDFLARE_API_TOKEN", "yes", ""},
			"which is odd":       {[]string{"--profile", "cf-api"}, []string{"CLOUDFLARE_API_TOKEN=" + token + "\n"}, 1, "CLOUDFLARE_API_TOKEN", "no", "export"},
			"an input":           {[]string{"--profile", "public-repo-read"}, nil, 1, "the selected profiles", "no", "--input repo="},
			"which is given":     {[]string{"--profile", "public-repo-read", "--input", "repo=acme/widget"}, nil, 0, "client of public-repo-read", "yes", ""},
			"a profile":          {[]string{"--profile", "js-instal"}, nil, 1, "the selected profiles", "no", "sbx profiles list"},
			"nobody may approve": {[]string{"--profile", "x-a", "--profile-file", "/nonexistent.toml"}, nil, 1, "signers", "no", "allowed_signers"},
		} {
			t.Run(name, func(t *testing.T) {
				found, exit := preflight(t, lab, who, "sbx", row.env, append(row.flags, "--no-toolchains")...)
				f := found[row.finding]
				if exit != row.exit || f.State != row.state || !strings.Contains(f.Fix, row.fix) {
					t.Errorf("exit status %d, %s: %+v; want %d, %s, %q", exit, row.finding, f, row.exit, row.state, row.fix)
				}
				for _, f := range found {
					if strings.Contains(f.Detail+f.Fix, token) {
						t.Errorf("a secret is shown: %+v", f)
					}
				}
			})
		}
	})
}

func TestPreflightLooksAtTheStore(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, lab.Run(t, who, "sbx", "state", "migrate"))
		file := filepath.Join(lab.StateDir(who), "store.db")
		must(t, os.WriteFile(file, []byte(strings.Repeat("not a database ", 10)), 0o600))
		found, exit := preflight(t, lab, who, "sbx", nil, "--no-toolchains")
		if f := found["store"]; exit != 1 || f.State != "no" || found["a run in a sandbox"].State != "no" {
			t.Errorf("exit status %d: %+v", exit, f)
		}
		must(t, os.Remove(file), os.Chmod(lab.StateDir(who), 0o777))
		found, exit = preflight(t, lab, who, "sbx", nil, "--no-toolchains")
		if f := found["state directory"]; exit != 1 || f.State != "no" || !strings.Contains(f.Detail, "not safe") {
			t.Errorf("exit status %d: %+v", exit, f)
		}
		must(t, os.Chmod(lab.StateDir(who), 0o700))
	})
}

func TestPreflightGoesOnWithoutConfiguration(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure("grce = \"1s\"\n")
	everyone(t, func(t *testing.T, who sbxtest.User) {
		found, exit := preflight(t, lab, who, "sbx", nil, "--no-toolchains")
		if f := found["configuration"]; exit != 1 || f.State != "no" || !strings.Contains(f.Detail, "grce") {
			t.Errorf("exit status %d: %+v", exit, f)
		}
		if f := found["a run in a sandbox"]; f.State != "no" || !strings.Contains(f.Detail, "not tried") {
			t.Errorf("%+v", f)
		}
	})
}

func TestPreflightWithAFullPoolIsNotReady(t *testing.T) {
	lab := sbxtest.NewLab(t)
	lab.Configure(oneTask)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		holder := hold(t, lab, who)
		defer holder.letGo(t)
		found, exit := preflight(t, lab, who, "sbx", nil, "--no-toolchains")
		if f := found["a run in a sandbox"]; exit != 1 || f.State != "no" || !strings.Contains(f.Detail, "full") {
			t.Errorf("exit status %d: %+v", exit, f)
		}
	})
}

// Nothing of a hostile project is started outside of the sandbox, nor counts as a
// toolchain, wherever the caller's PATH leads.
func TestPreflightRunsNothingOfTheProject(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		project := filepath.Join(lab.Home(who), "project")
		mark := filepath.Join(lab.Home(who), "ran-outside")
		script := "#!/bin/sh\necho ran >" + mark + "\necho ran >" + project + "/ran\nexec /usr/bin/curl -sS \"$@\"\n"
		for _, name := range []string{"curl", "git", "node", "npm", "go", "python3", "sbx", "sh", "ip", "nft", "newuidmap"} {
			must(t, os.WriteFile(filepath.Join(project, name), []byte(script), 0o755))
		}
		must(t, os.WriteFile(filepath.Join(project, ".npmrc"), []byte("registry=https://evil.test/\n"), 0o644))
		cmd := lab.Command(t, who, "sbx", "preflight", "--json", "--profile", "js-install")
		cmd.Env = append(cmd.Env, "PATH=.:"+project+":/usr/bin:/bin", "HTTPS_PROXY=http://evil.test:1", "SSL_CERT_FILE="+project+"/none", "NODE_OPTIONS=--require="+project+"/x.js")
		got := lab.RunCommand(t, who, cmd)
		for _, path := range []string{mark, filepath.Join(project, "ran")} {
			if _, err := os.Lstat(path); err == nil {
				t.Errorf("%s was written", path)
			}
		}
		var answer struct{ Findings []preflightFinding }
		if err := json.Unmarshal([]byte(got.Stdout), &answer); err != nil {
			t.Fatalf("%v\n%s%s", err, got.Stdout, got.Stderr)
		}
		for _, f := range answer.Findings {
			if strings.Contains(f.Detail, "evil.test") {
				t.Errorf("the project's registry counts: %+v", f)
			}
			if f.Group == "toolchains" && strings.Contains(f.Detail, project) && f.State == "yes" {
				t.Errorf("a program of the project counts: %+v", f)
			}
		}
	})
}
