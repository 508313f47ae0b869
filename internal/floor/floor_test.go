package floor

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func argv(line string) []string { return strings.Fields(line) }

// sh is a command that a shell is given as one text.
func sh(script string) []string { return []string{"sh", "-c", script} }

// The longest name of a program fits where lengths are kept.
func TestNamesOfProgramsAreShort(t *testing.T) {
	for _, e := range List() {
		for _, words := range e.Spellings {
			if n := len(words[0]); n == 0 || n >= 32 {
				t.Errorf("%q", words)
			}
		}
	}
}

func TestEveryRuleMatchesEachOfItsSpellings(t *testing.T) {
	for _, e := range List() {
		for _, words := range e.Spellings {
			line := strings.NewReplacer("*", "widget", "+", "").Replace(strings.Join(words, " "))
			for _, command := range [][]string{argv(line), argv("sudo " + line + " --flag x"), sh("cd x && " + line)} {
				if !slices.Contains(Match(command), e.Rule) {
					t.Errorf("%q does not match %s but %q", command, e.Rule, Match(command))
				}
			}
		}
	}
}

func TestVector31_WordsOfTwoStatementsAreNoCommand(t *testing.T) {
	for _, command := range [][]string{
		sh("git log && echo push"), sh("git log; push"), sh("git log | push"), sh("git log\npush"), sh("git log & push"),
		{"git log && echo push"},
		sh("(git log) push"),
	} {
		if got := Match(command); got != nil {
			t.Errorf("%q matches %q", command, got)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		rule    string
		command []string
	}{
		{"git push", argv("git push")},
		{"git push", argv("git -C dir push origin main")},
		{"git push", argv("git --no-pager push")},
		{"git push", argv("git --no-pager -C dir -c user.name=x --git-dir=x push")},
		{"git push", argv("git --git-dir x --work-tree y push")},
		{"git push", []string{"git", "-C", "a dir; with & all", "push"}},
		{"git push", argv("sudo -u deploy git push")},
		{"git push", argv("env X=1 git push")},
		{"git push", argv("X=1 git push")},
		{"git push", argv("timeout 60 nice -n 5 git push")},
		{"git push", argv("/usr/bin/git push")},
		{"git push", argv("./git push")},
		{"git push", argv("git push --dry-run")},
		{"git push", argv("xargs -n1 git push origin")},
		{"git push", argv("docker run --rm alpine/git sh -c x git push")},
		{"git push", argv("find . -name .git -execdir git push ;")},
		{"git push", argv("/usr/lib/git-core/git-push origin")},
		{"git push", argv("git lfs push origin main")},
		{"git push", argv("git subtree push --prefix x origin main")},
		{"git push", argv("git subtree -P lib push origin main")}, // as its manual says it
		{"git push", argv("git -P subtree -P lib push origin main")},
		{"git push", argv("git --bare subtree -p lib push origin main")},
		{"git push", []string{"env", "-S", "git push"}},
		{"git push", []string{"env", "-Sgit push"}},
		{"git push", []string{"env", "--split-string=git push"}},
		{"git push", []string{"git", "rebase", "--exec=git push", "main"}},
		{"git push", []string{"git", "rebase", "--exec=git-push", "main"}},
		{"git push", []string{"git", "rebase", "-xgit push", "main"}},
		{"git push", []string{"git", "rebase", "-ixcd x && git push", "main"}},
		{"git push", []string{"ssh", "-oProxyCommand=git push", "host"}},
		{"git push", sh(`git rebase "--exec=git push" main`)},
		{"git push", sh(`git rebase -x"git push" main`)},
		{"git push", []string{"bash", "-c", `bash -c "git rebase '-xgit push'"`}},
		{"npm publish", []string{"npm", "exec", "--call=npm publish"}},
		{"npm publish", []string{"npm", "exec", "-c", "npm publish"}},
		{"git push", sh("git push")},
		{"git push", []string{"bash", "-lc", "cd x && git push"}},
		{"git push", []string{"bash", "-c", `bash -c "bash -c 'git push'"`}},
		{"git push", []string{"ssh", "host", "git push"}},
		{"git push", argv("ssh host git push")},
		{"git push", sh("if make; then git push; fi")},
		{"git push", sh("make||git push")},
		{"git push", sh("{ git push; }")},
		{"git push", sh("(git push)")},
		{"git push", sh("out=$(git push 2>&1)")},
		{"git push", sh("out=`git push`")},
		{"git push", sh(`echo "done: $(git push)"`)},
		{"git push", sh("cat <(git push)")},
		{"git push", sh("git -C $(git rev-parse --show-toplevel) push")},
		{"git push", sh(`git -C "$(pwd)" push`)},
		{"git push", sh("git -C ${DIR:-a b} push")},
		{"git push", sh("git \\\n  push")},
		{"git push", sh(`g\it "pu"sh`)},
		{"git push", sh(`git 'push'`)},
		{"git push", sh(`git $'push'`)},
		{"git push", sh("git > log push")},
		{"git push", sh("git 2>&1 push")},
		{"git push", sh("git push>log")},
		{"git push", sh("git &>log push")},
		{"git push", sh("bash <<EOF\ngit push\nEOF")},
		{"git push", sh("bash <<< 'git push'")},
		{"git push", sh("echo git push | sh")},
		{"git push", sh(`echo "git push" | sh`)},
		{"git push", argv(`echo git push`)},                                         // only mentioned: counts
		{"git push", sh("make # then git push")},                                    // likewise
		{"git push", sh("it's broken; git push")},                                   // only the raw text
		{"git push", []string{"python3", "-c", `import os; os.system("git push")`}}, // no shell
		{"git push", []string{"python3", "-c", `subprocess.run(["git", "-C", "x", "push"])`}},
		{"git push", []string{"node", "-e", "execFileSync('git', ['push'])"}},
		{"git push", []string{"sh", "-c", "git \"$@\"", "sh", "git", "push"}},
		{"git push", argv("git submodule foreach git push")},
		{"git push", sh("git push\r\n")},
		{"wrangler deploy", argv("npx wrangler deploy")},
		{"wrangler deploy", argv("npx --yes wrangler@4 deploy --env production")},
		{"wrangler deploy", argv("npx --yes wrangler@latest --cwd x deploy")},
		{"wrangler deploy", argv("pnpm dlx wrangler deploy")},
		{"wrangler deploy", argv("./node_modules/.bin/wrangler deploy")},
		{"wrangler deploy", argv("node node_modules/wrangler/bin/wrangler.js deploy")},
		{"wrangler deploy", argv("wrangler pages deploy dist")},
		{"wrangler secret", argv("wrangler -c x.toml secret put A")},
		{"wrangler d1", argv("bunx wrangler d1 execute db --command x")},
		{"terraform apply", argv("terraform -chdir=prod apply -auto-approve")},
		{"terraform destroy", argv("terraform destroy")},
		{"kubectl apply", argv("kubectl --context prod -n web apply -f x.yaml")},
		{"kubectl delete", argv("kubectl -n web delete pod x")},
		{"npm publish", argv("npm --prefix x publish")},
		{"npm publish", argv("npm -w pkg publish")},
		{"npm publish", argv("npm publ")},
		{"npm publish", argv("corepack npm@10 publish")},
		{"npm publish", argv("npm --silent publish")},
		{"pnpm publish", argv("pnpm -r --filter ./packages publish")},
		{"yarn publish", argv("yarn npm publish")},
		{"yarn publish", argv("yarn workspace widget publish")},
		{"bun publish", argv("bun publish --access public")},
		{"cargo publish", argv("cargo +nightly --config x publish")},
		{"npm unpublish", argv("npm unpublish widget@1.0.0")},
		{"gh release", argv("gh -R acme/widget release create v1")},
		{"gh pr merge", argv("gh pr -R acme/widget merge 7 --squash")},
		{"docker push", argv("docker --context x push acme/widget")},
		{"docker push", argv("docker image push acme/widget")},
		{"helm upgrade", argv("helm --kube-context prod upgrade --install web .")},
		{"helm uninstall", argv("helm delete web")},
	} {
		if got := Match(c.command); !slices.Contains(got, c.rule) {
			t.Errorf("%q matches %q, not %q", c.command, got, c.rule)
		}
	}
}

func TestNoMatch(t *testing.T) {
	for _, command := range [][]string{
		nil,
		{""},
		{"git"},
		{"push"},
		argv("git pull"), argv("git status"), argv("git commit -m push"),
		{"git", "commit", "-m", "push later"},
		argv("git stash push"), argv("git log --grep push"), argv("git branch push"), argv("git checkout -b push"), argv("git remote set-url --push origin x"),
		argv("git -p log push"), argv("git -P log push"), argv("git subtree pull -P push x"),
		{"git", "commit", "-mlegit push"},
		{"git", "commit", "--message=push"},
		{"npm", "exec", "--call=npm run publish"},
		{"env", "-Sgit log"},
		{"-", "git\npush"},
		argv("git log --grep=git push"), argv("git rebase -xgit push"), argv("x -git push"), argv("x --git push"), argv("git push-to-checkout"), argv("gitk push"), argv("legit push"), argv("digit/push git"),
		argv("npm run publish"), argv("npm --silent run publish"), argv("npm --prefix x run publish"), argv("npm run-script publish"), argv("npm test"), argv("npm ci"),
		argv("npm install publish"), argv("npm p publish"), argv("npm publishers"), argv("npm pack"), argv("pnpm -r run publish"), argv("pnpm -w run publish"), argv("yarn run publish"),
		argv("bun run publish"), argv("cargo build"), argv("cargo package"), argv("wrangler dev"), argv("wrangler tail"), argv("wrangler pages dev deploy"),
		argv("terraform plan"), argv("terraform plan -destroy"), argv("kubectl get pods"), argv("kubectl describe delete"),
		argv("gh pr view merge"), argv("gh pr list"), argv("gh issue close"), argv("docker build ."), argv("docker pull x"), argv("docker run push"), argv("helm list"), argv("helm template upgrade"),
		sh("git add . && git commit -m x"), sh("make test"), sh("git pull; npm run publish"), sh("# a comment\nmake"), sh("git log # push"),
		sh("git \\\\\npush"), sh("git log\\; push"), sh("'git' log 'push'"),
		{"git\npush"},
		{"git", "a\npush"},
	} {
		if got := Match(command); got != nil {
			t.Errorf("%q matches %q", command, got)
		}
	}
}

func TestSeveralRulesAreInTheOrderOfTheList(t *testing.T) {
	got := Match(sh("helm upgrade x . && git push && npm publish && git push"))
	if diff := cmp.Diff([]string{"git push", "npm publish", "helm upgrade"}, got); diff != "" {
		t.Error(diff)
	}
}

// The work is bounded whatever the text is.
func TestHostileTextsEndSoon(t *testing.T) {
	for _, part := range []string{"-a-", "-ab ", "--a=", "-a'", "--a=-b\"", "$(", "`", "git -a ", "\"$(", "'", "<(", "${", "\\", "$'", "git >", "((", "\"'"} {
		long := strings.Repeat(part, 1<<17/len(part))
		Match(sh(long))
		Match(sh(long + "; git push"))
	}
}

func TestTextIsWhatAShellReadsBack(t *testing.T) {
	for _, command := range [][]string{
		{"git", "push"}, {"a b", "", "'", `"`, "\\", "\n", "$(id)", "`id`", "a'b'c", "*", "~", "-", "x=y", "#", "\x1b[31m", "\u202e", "\xff"},
	} {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "for word in "+Text(command)+`; do printf '%s\0' "$word"; done`).Output()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); cmp.Diff(command, got) != "" {
			t.Errorf("%q was read as %q", command, got)
		}
	}
}

// Python's shlex is what others will make the text with.
func TestTextIsThatOfShlex(t *testing.T) {
	command := []string{"git", "a b", "", "it's", "x=y", "@:,./-%+_", "é", "\n", "~", "a\"b", "!"}
	cmd := exec.CommandContext(t.Context(), "python3", "-c", "import shlex, sys; sys.stdout.write(shlex.join(sys.argv[1:]))")
	cmd.Args = append(cmd.Args, command...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := Text(command); got != string(out) {
		t.Errorf("%s, shlex %s", got, out)
	}
}

func TestSumIsThatOfTheText(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sha256sum")
	cmd.Stdin = strings.NewReader("git push origin 'a b'")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if want, _, _ := bytes.Cut(out, []byte(" ")); Sum([]string{"git", "push", "origin", "a b"}) != string(want) {
		t.Errorf("%s, want %s", Sum([]string{"git", "push", "origin", "a b"}), want)
	}
}

func TestShown(t *testing.T) {
	for _, c := range []struct {
		command      []string
		shown, ascii string
	}{
		{[]string{"git", "push", "a b"}, "git push 'a b'", "git push 'a b'"},
		{[]string{"\x1b[2Kgit", "x\ny"}, `$'\x1b[2Kgit' $'x\x0ay'`, `$'\x1b[2Kgit' $'x\x0ay'`},
		{[]string{`\x1b`}, `'\x1b'`, `'\x1b'`}, // a backslash of the command's own
		{[]string{"\x1b\\'"}, `$'\x1b\\\''`, `$'\x1b\\\''`},
		{[]string{"a\u202eb"}, `$'a\u202eb'`, `$'a\u202eb'`},
		{[]string{"g\u0456t"}, "'g\u0456t'", `$'g\u0456t'`}, // a Cyrillic letter
		{[]string{"a\u200bb", "a\u00a0b", "\u2028"}, `$'a\u200bb' $'a\u00a0b' $'\u2028'`, `$'a\u200bb' $'a\u00a0b' $'\u2028'`},
		{[]string{"\u3164"}, "'\u3164'", `$'\u3164'`}, // a letter that nobody sees
		{[]string{"\xffa", "\ufffd"}, `$'\xffa' $'\ufffd'`, `$'\xffa' $'\ufffd'`},
		{[]string{"\U0001f600", "日本"}, "'\U0001f600' '日本'", `$'\U0001f600' $'\u65e5\u672c'`},
		{[]string{"a b", "a  b", "   "}, `'a b' $'a \x20b' $' \x20\x20'`, `'a b' $'a \x20b' $' \x20\x20'`},
		{[]string{`$'x'`}, `'$'"'"'x'"'"''`, `'$'"'"'x'"'"''`},
	} {
		if got := Shown(c.command); got != c.shown {
			t.Errorf("shown %s, want %s", got, c.shown)
		}
		if got := ASCII(c.command); got != c.ascii {
			t.Errorf("ASCII %s, want %s", got, c.ascii)
		}
	}
}

// What is shown can be given to bash, and comes back as it was.
func TestBashReadsBackWhatIsShown(t *testing.T) {
	command := []string{"\x1b[2K\\x1b'", "a\nb\\n", "\u202ea", "\xff\xfe0", "g\u0456t", "\u3164\U0001f600", "$'a'", "\x7f\x01f", "a  0   b"}
	for _, text := range []string{Shown(command), ASCII(command)} {
		out, err := exec.CommandContext(t.Context(), "env", "LC_ALL=C.UTF-8", "bash", "-c", "for word in "+text+`; do printf '%s\0' "$word"; done`).Output()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); cmp.Diff(command, got) != "" {
			t.Errorf("%s\nwas read as %q", text, got)
		}
	}
}

// FuzzMatch: no panic; quoting round-trips; a floor command beside the others,
// as a statement of its own, is found and hides nothing.
func FuzzMatch(f *testing.F) {
	for _, seed := range []string{
		"git push", "git -C dir push", "npm --prefix x publish", "bash -c 'git push'", "docker -H \"a;b\" push '", "git push \\", "$(git push", "`git push`",
		"git log && echo push", "a <<EOF\ngit push\nEOF", "x '$(docker -H \"a;b\" push)' \"", "git > log push", "helm $'upgrade'", "cargo +nightly publish # x",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, script string) {
		l := lexer{text: Text([]string{"a", script, "b"})}
		if !l.next() || len(l.words) != 3 || l.words[1] != script || l.next() {
			t.Errorf("%q is read back as %q", script, l.words)
		}
		before := Match(sh(script))
		for _, with := range []string{script + "; git push", script + "\ngit push", script + " && git push", "git push; " + script, "git push\n" + script, "git push && " + script} {
			after := Match(sh(with))
			for _, rule := range before {
				// Behind another statement it is no word that begins as an option does.
				if strings.HasPrefix(script, "-") && strings.HasSuffix(with, script) {
					break
				}
				if !slices.Contains(after, rule) {
					t.Errorf("%q matches %q, %q only %q", script, before, with, after)
				}
			}
			if !slices.Contains(after, "git push") {
				t.Errorf("%q does not match git push", with)
			}
		}
		if a, b := Shown([]string{script, "x"}), Shown([]string{script + "x"}); a == b {
			t.Errorf("two commands are shown as %s", a)
		}
	})
}

// BenchmarkMatchLong is what a linter costs that is started on a whole tree.
func BenchmarkMatchLong(b *testing.B) {
	command := []string{"prettier"}
	for n := range 50_000 {
		command = append(command, fmt.Sprintf("packages/widget-%d/src/components/file.ts", n))
	}
	for b.Loop() {
		Match(command)
	}
}

func BenchmarkMatch(b *testing.B) {
	command := argv("npm run build -- --mode production --out dist")
	for b.Loop() {
		Match(command)
	}
}
