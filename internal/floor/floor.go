// Package floor knows the commands that cannot be taken back, and what a person
// signs to let one of them run. The list guards ordinary paths: whoever wants to
// hide a push in a script can. What guards against hostile commands is that the
// sandbox lets nothing out that was not granted.
package floor

import (
	"slices"
	"strings"
)

// Version is that of the list. Receipts record it; it grows with every change of
// what matches.
const Version = 2

// Entry is one kind of irreversible command.
type Entry struct {
	// Rule names it in attestations and receipts, as in "gh pr merge".
	Rule string
	// Spellings are the words that make it, each a program and its subcommands. A
	// star is any word; a plus marks the shortest abbreviation that counts.
	Spellings [][]string
}

var list = []Entry{
	{"git push", [][]string{
		{"git", "push"},
		{"git", "lfs", "push"},
		{"git", "subtree", "push"},
		{"git-push"},
		{"git-lfs", "push"},
		{"git-subtree", "push"},
	}},
	{"wrangler deploy", [][]string{
		{"wrangler", "deploy"},
		{"wrangler", "publish"}, // its name before version 3
		{"wrangler", "pages", "deploy"},
		{"wrangler", "pages", "publish"},
		{"wrangler", "versions", "deploy"},
	}},
	{"wrangler secret", [][]string{{"wrangler", "secret"}, {"wrangler", "pages", "secret"}, {"wrangler", "versions", "secret"}}},
	{"wrangler d1", [][]string{{"wrangler", "d1"}}},
	{"wrangler delete", [][]string{{"wrangler", "delete"}}},
	{"wrangler rollback", [][]string{{"wrangler", "rollback"}}},
	{"terraform apply", [][]string{{"terraform", "apply"}}},
	{"terraform destroy", [][]string{{"terraform", "destroy"}}},
	{"kubectl apply", [][]string{{"kubectl", "apply"}}},
	{"kubectl delete", [][]string{{"kubectl", "delete"}}},
	{"npm publish", [][]string{{"npm", "pu+blish"}}}, // npm takes every abbreviation that names one command
	{"pnpm publish", [][]string{{"pnpm", "publish"}, {"pnpm", "recursive", "publish"}, {"pnpm", "multi", "publish"}, {"pnpm", "m", "publish"}}},
	{"yarn publish", [][]string{{"yarn", "publish"}, {"yarn", "npm", "publish"}, {"yarn", "workspace", "*", "publish"}}},
	{"bun publish", [][]string{{"bun", "publish"}}},
	{"cargo publish", [][]string{{"cargo", "publish"}}},
	{"npm unpublish", [][]string{{"npm", "unp+ublish"}, {"pnpm", "unpublish"}}}, // pnpm hands what it does not know to npm
	{"gh release", [][]string{{"gh", "release"}}},
	{"gh pr merge", [][]string{{"gh", "pr", "merge"}}},
	{"docker push", [][]string{{"docker", "push"}, {"docker", "image", "push"}, {"docker", "manifest", "push"}, {"docker", "compose", "push"}, {"docker-compose", "push"}}},
	{"helm upgrade", [][]string{{"helm", "upgrade"}}},
	{"helm uninstall", [][]string{{"helm", "uninstall"}, {"helm", "delete"}, {"helm", "del"}, {"helm", "un"}}},
}

// List returns the floor list in its order.
func List() []Entry { return slices.Clone(list) }

// Match returns the rules that a command matches, in the order of the list: on its
// words, on the words of every script among them as a shell would read it, also of one
// that is glued to an option, and on its raw text, statement by statement. Any of them counts. A command that only
// mentions one of the list, as "echo git push" does, matches as well: the shell it
// is piped into would run it.
func Match(argv []string) []string {
	m := newMatcher()
	m.statement(argv)
	for _, word := range argv {
		m.word(word, 0)
	}
	m.raw(Text(argv))
	return m.rules()
}

// maxDepth bounds scripts within scripts.
const maxDepth = 8

// matcher notes what was found, by index of the list.
type matcher struct {
	found   []bool
	lengths [256]uint32 // of the programs' names, a bit each, by first byte: most words are none
}

func newMatcher() *matcher {
	m := &matcher{found: make([]bool, len(list))}
	for _, e := range list {
		for _, spelling := range e.Spellings {
			m.lengths[spelling[0][0]] |= 1 << len(spelling[0])
		}
	}
	return m
}

// known reports whether a program's name may be on the list.
func (m *matcher) known(name string) bool {
	return name != "" && len(name) < 32 && m.lengths[name[0]]>>len(name)&1 != 0
}

func (m *matcher) rules() []string {
	var names []string
	for i, e := range list {
		if m.found[i] {
			names = append(names, e.Rule)
		}
	}
	return names
}

// word matches a word as a script, and what is glued to it where it is an option.
func (m *matcher) word(word string, depth int) {
	m.script(word, depth)
	for _, value := range glued(word) {
		m.whole(value, depth+perGlued)
	}
}

// perGlued is what an option costs of maxDepth: each has several readings.
const perGlued = maxDepth / 2

// maxCluster is how many options without a value, each a letter, may stand before the
// one with the value: "-ixgit push" of git rebase.
const maxCluster = 1

// glued returns what may be the value of an option in the same word: what follows the
// equals sign of --exec=VALUE, and the letter of -xVALUE.
func glued(word string) (values []string) {
	if len(word) < 3 || word[0] != '-' {
		return nil
	}
	if _, value, ok := strings.Cut(word, "="); ok {
		values = append(values, value)
	}
	for at := 1; at <= 1+maxCluster && at+1 < len(word) && letter(word[at]); at++ {
		values = append(values, word[at+1:])
	}
	return values
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// script matches a text as a shell would read it, and what is quoted in it, which
// another shell may read.
func (m *matcher) script(text string, depth int) {
	if depth >= maxDepth || !strings.ContainsAny(text, " \t\n\r;&|()`") {
		return // a single word: it was looked at beside its neighbours
	}
	l := lexer{text: text}
	for l.next() {
		m.statement(l.words)
		for _, word := range l.words {
			if word != text {
				m.word(word, depth+1)
			}
		}
	}
	for _, inner := range l.inner {
		m.whole(inner, depth+1)
	}
}

// whole is script for a text that has no neighbours.
func (m *matcher) whole(text string, depth int) {
	m.statement([]string{text})
	m.script(text, depth)
}

// raw matches a text without knowing any shell's rules: statements end where a
// shell would end them if nothing were quoted, and words at everything that is no
// part of a plain word. So it holds for other languages, and for broken quotes.
func (m *matcher) raw(text string) {
	for statement := range strings.FieldsFuncSeq(text, endsStatement) {
		m.statement(strings.FieldsFunc(statement, endsWord))
	}
}

func endsStatement(c rune) bool {
	switch c {
	case ';', '&', '|', '\n':
		return true
	}
	return false
}

func endsWord(c rune) bool {
	switch c {
	case '\'', '"', '`', '\\', '(', ')', '{', '}', '[', ']', ',', '$', '<', '>', 0x7f:
		return true
	}
	return c <= ' '
}

// statement matches the words of one statement. A program counts at every place,
// since what stands before it (sudo, env, timeout, npx, ssh and a host) runs it.
func (m *matcher) statement(words []string) {
	for first, word := range words {
		name := program(word)
		if !m.known(name) {
			continue
		}
		for i := range list {
			for _, spelling := range list[i].Spellings {
				if spelling[0] == name && !m.found[i] && follows(words[first+1:], name, spelling[1:]) {
					m.found[i] = true
				}
			}
		}
	}
}

// program is the name of a program without its directory, version and suffix.
func program(word string) string {
	word = word[strings.LastIndexByte(word, '/')+1:]
	if at := strings.IndexByte(word, '@'); at > 0 {
		word = word[:at] // as npx knows it: wrangler@4
	}
	for _, suffix := range [...]string{".js", ".cjs", ".mjs", ".exe"} {
		if bare, ok := strings.CutSuffix(word, suffix); ok {
			return bare
		}
	}
	return word
}

// maxBetween bounds the words between a program and the last of its subcommands.
const maxBetween = 64

// follows reports whether the subcommands come first among the words, but for
// options. Whether an option takes the next word as its value is known for some;
// for all others both is tried.
func follows(words []string, program string, wanted []string) bool {
	reached, value := uint(1), false // a bit for each number of subcommands that may have been read
	for _, word := range words[:min(len(words), maxBetween)] {
		if reached>>len(wanted) != 0 {
			return true
		}
		if option(program, word) {
			value = takesValue(program, word, reached == 1)
			continue
		}
		next := uint(0)
		if value {
			next = reached
		}
		for n, want := range wanted {
			if reached>>n&1 != 0 && names(want, word) {
				next |= 1 << (n + 1)
			}
		}
		if reached, value = next, false; reached == 0 {
			return false
		}
	}
	return reached>>len(wanted) != 0
}

// names reports whether a word is the wanted subcommand.
func names(want, word string) bool {
	if shortest, rest, ok := strings.Cut(want, "+"); ok {
		return strings.HasPrefix(word, shortest) && strings.HasPrefix(shortest+rest, word)
	}
	return want == "*" || want == word
}

func option(program, word string) bool {
	return len(word) > 1 && word[0] == '-' || program == "cargo" && strings.HasPrefix(word, "+")
}

// takesValue reports whether the word after an option may be its value. The switches
// of git itself stand before the first subcommand, which has others of these letters.
func takesValue(program, option string, first bool) bool {
	if strings.HasPrefix(option, "--no-") || option == "--" || option[0] == '+' || strings.Contains(option, "=") {
		return false
	}
	switch program {
	case "git":
		return !first || !slices.Contains(gitSwitches, option)
	case "npm", "pnpm", "yarn", "bun":
		return !slices.Contains(packageSwitches, option) && (option != "-w" || program == "npm")
	}
	return true
}

// Options without a value that stand before a subcommand often: what follows them
// is the subcommand.
var (
	gitSwitches = []string{
		"-p", "--paginate", "-P", "--bare", "--literal-pathspecs", "--glob-pathspecs", "--noglob-pathspecs",
		"--icase-pathspecs", "-h", "--help", "-v", "--version",
	}
	packageSwitches = []string{
		"-s", "--silent", "-q", "--quiet", "-d", "-dd", "-ddd", "--verbose", "-f", "--force", "-y", "--yes", "-g", "--global", "--json",
		"-r", "--recursive", "-ws", "--workspaces", "--include-workspace-root", "--if-present", "--offline", "--prefer-offline",
		"--ignore-scripts", "--foreground-scripts", "--parallel", "--stream", "--workspace-root", "--bun", "--watch", "--hot",
	}
)
