package profile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	sbx "github.com/fractalboxdev/sbx"
	"github.com/fractalboxdev/sbx/internal/profile"
)

func TestBuiltinProfilesHaveNoFindings(t *testing.T) {
	for _, f := range profile.Lint(sbx.BuiltinProfiles, "profiles.toml", false) {
		t.Error(f)
	}
	if got := profile.Lint(sbx.BuiltinProfiles, "profiles.toml", true); len(got) != 9 || got[0].Check != profile.CheckName {
		t.Errorf("custom names: %v", got)
	}
}

func TestMinimalHasNoFindings(t *testing.T) {
	for _, f := range profile.Lint(minimal, "x.toml", true) {
		t.Error(f)
	}
}

// lintCase replaces one text of the minimal profile and names the one finding
// that has to come of it.
type lintCase struct {
	old, new string
	line     int
	check    profile.Check
	message  string // part of it, or of the nearest name
}

func checkLint(t *testing.T, cases []lintCase) {
	t.Helper()
	for _, c := range cases {
		text := strings.Replace(minimal, c.old, c.new, 1)
		if text == minimal {
			t.Fatalf("%q does not stand in the profile", c.old)
		}
		found := profile.Lint(text, "x.toml", true)
		if !slices.ContainsFunc(found, func(f profile.Finding) bool {
			return f.Check == c.check && f.Line == c.line && strings.Contains(f.String(), c.message)
		}) {
			t.Errorf("%q: %s on line %d with %q is missing among %s", c.new, c.check, c.line, c.message, findings(found))
		}
	}
}

func findings(found []profile.Finding) string {
	var b strings.Builder
	for _, f := range found {
		fmt.Fprintf(&b, "\n\t%s [%s]", f, f.Check)
	}
	return b.String()
}

// TestBypass63_LintNamesWhatWasMeant: what is misspelt is named with its line and
// the nearest name, and a switch without its partner is a finding.
func TestBypass63_LintNamesWhatWasMeant(t *testing.T) {
	checkLint(t, []lintCase{
		{"max_body", "max_bdoy", 11, profile.CheckUnknownKey, "did you mean max_body?"},
		{`"GET", "POST"`, `"get", "POST"`, 9, profile.CheckMethod, "case-sensitive (did you mean GET?)"},
		{`"GET", "POST"`, `"GET", "PSOT"`, 9, profile.CheckMethod, "did you mean POST?"},
		{`"GET", "POST"`, `"GET", "CONNECT"`, 9, profile.CheckMethod, "cannot be granted"},
		{"max_body = 100", `body = { json = [{ pointer = "/a", equals = "b" }] }`, 7, profile.CheckDefinition, "assertions need max_body"},
		{`methods = ["GET", "POST"]`, `methods = ["GET"]`, 11, profile.CheckNever, "max_body has no effect"},
		{`"GET", "POST"`, `"GET"] ` + "\nupload_budget = { bytes = 5 } #", 10, profile.CheckNever, "upload_budget has no effect"},
		{`methods = ["GET", "POST"]`, "methods = ['POST']\nwebsocket = true", 10, profile.CheckNever, "websocket has no effect"},
		{"max_body = 100", "", 9, profile.CheckBody, "POST without max_body"},
		{`methods = ["GET", "POST"]`, "", 6, profile.CheckMethod, "methods are missing"},
		{`path = "/x/**"`, "", 6, profile.CheckPath, "a path is missing"},
		{"version = 1", "", 2, profile.CheckDefinition, "a version from 1 is missing"},
		{"version = 1", "version = \"1\"", 3, profile.CheckSyntax, ""},
		{`id = "r"`, `id = "R"`, 7, profile.CheckDefinition, "lower-case"},
	})
}

// TestBypass22_LintAmbiguousPrefixes: what a reader could take for a prefix that
// ends within a segment is refused, or has to show that it is none.
func TestBypass22_LintAmbiguousPrefixes(t *testing.T) {
	checkLint(t, []lintCase{
		{`"/x/**"`, `"/repos/my**"`, 10, profile.CheckPrefix, `as in "/repos/my/**"`},
		{`"/x/**"`, `"/repos/**/x"`, 10, profile.CheckPrefix, `as in "/repos/**"`},
		{`"/x/**"`, `"/repos/my*"`, 10, profile.CheckPath, "stand for whole segments"},
		{`"/x/**"`, `"/x"`, 10, profile.CheckPrefix, `"/x" matches itself alone and is no prefix: write "/x/**"`},
		{`"/x/**"`, `["/x/**", "/repos/my/"]`, 10, profile.CheckPrefix, `"/repos/my/" matches itself alone`},
	})
	exact := strings.NewReplacer(`"/x/**"`, `"/x/y"`, `"POST https://a.test/x length=100"`, `"POST /x/y length=100"`, `"GET /z"`, `"GET /x/y-evil"`).Replace(minimal)
	if found := profile.Lint(exact, "x.toml", true); len(found) > 0 {
		t.Errorf("a deny example shows the end of the path, yet: %s", findings(found))
	}
}

// TestBypass76_LintApexAndWildcard: a wildcard does not match its apex, which the
// profile has to show; nothing is granted to all names, or to names that anybody
// can register.
func TestBypass76_LintApexAndWildcard(t *testing.T) {
	checkLint(t, []lintCase{
		{`host = "a.test"`, `host = ["a.test", "*.corp.test"]`, 8, profile.CheckApex, "*.corp.test does not match corp.test itself"},
		{`host = "a.test"`, `host = "*"`, 8, profile.CheckWildcard, "a bare *"},
		{`host = "a.test"`, `host = ["a.test", "*.github.io"]`, 8, profile.CheckPublicSuffix, "github.io is a public suffix"},
		{`host = "a.test"`, `host = ["a.test", "*.co.uk"]`, 8, profile.CheckPublicSuffix, "co.uk is a public suffix"},
		{`host = "a.test"`, `host = ["a.test", "*.github.com", "github.com"]`, 8, profile.CheckFloor, "does not reach api.github.com"},
		{`host = "a.test"`, `host = ["a.test", "127.0.0.1"]`, 8, profile.CheckNever, "no connection goes to 127.0.0.1"},
		{`host = "a.test"`, `host = ["a.test", "169.254.169.254"]` + "\ninternal = true", 8, profile.CheckNever, "no connection goes to"},
		{`host = "a.test"`, `host = ["a.test", "localhost"]`, 8, profile.CheckNever, "loopback of the sandbox"},
	})
	for _, apex := range []string{`host = ["a.test", "*.corp.test", "corp.test"]`, `host = ["a.test", "*.corp.test"]`} {
		text := strings.Replace(minimal, `host = "a.test"`, apex, 1)
		if !strings.Contains(apex, `"corp.test"`) {
			text = strings.Replace(text, `"GET /z"`, `"GET https://corp.test/x/y"`, 1)
		}
		if found := profile.Lint(text, "x.toml", true); len(found) > 0 {
			t.Errorf("%s: %s", apex, findings(found))
		}
	}
}

// TestLintFloorExamplesAndWhatNeverMatches: the floor does not shrink without a
// word, examples are there and pass, and no rule is without effect.
func TestLintFloorExamplesAndWhatNeverMatches(t *testing.T) {
	checkLint(t, []lintCase{
		{"[profiles.x-a]", "[profiles.a]", 2, profile.CheckName, "call it x-a"},
		{`host = "a.test"`, `host = ["a.test", "api.github.com"]`, 2, profile.CheckFloor, "not in overrides"},
		{"version = 1", "version = 1\noverrides = ['gist.github.com']", 4, profile.CheckFloor, "no rule is about it"},
		{"version = 1", "version = 1\noverrides = ['a.test']", 4, profile.CheckFloor, "not on the deny floor"},
		{`allow = ["GET /x/y", "POST https://a.test/x length=100"]`, "", 7, profile.CheckExamples, "no example in allow"},
		{`deny = ["GET /z", "POST /x length=101"]`, "", 7, profile.CheckExamples, "no example in deny"},
		{`"GET /z"`, `"GET /x/z"`, 13, profile.CheckExamples, "the rule allows it"},
		{`"GET /x/y"`, `"GET /y"`, 12, profile.CheckExamples, "path is not granted"},
		{`path = "/x/**"`, `path = "/x/**"` + "\nquery = { 'a[b]' = 'c' }", 7, profile.CheckNever, "can never match"},
		{`path = "/x/**"`, `path = "/x/**"` + "\nquery = { a = '1', A = '2' }", 7, profile.CheckNever, "can never match"},
		{"max_body = 100", "max_body = 100\nbody.json = [{ pointer = '/a', equals = 'b' }, { pointer = '/a', equals = 'c' }]", 12, profile.CheckNever, "two values"},
		{"max_body = 100", "max_body = 100\nbody.json = [{ pointer = '/a', equals = 'b' }, { pointer = '/a/x', equals = 'c' }]", 12, profile.CheckNever, "cannot both be texts"},
	})
}

// TestLintGoesOn: one fault does not hide the next.
func TestLintGoesOn(t *testing.T) {
	text := strings.NewReplacer(`"POST"`, `"PSOT"`, `"/x/**"`, `"/x**"`, "version = 1", "version = 0", "max_body", "maxbody").Replace(minimal)
	found := profile.Lint(text, "x.toml", true)
	lines := map[int]bool{}
	for _, f := range found {
		lines[f.Line] = true
	}
	for _, line := range []int{3, 9, 10, 11} {
		if !lines[line] {
			t.Errorf("nothing is said about line %d: %s", line, findings(found))
		}
	}
	if got := profile.Lint("", "x.toml", true); len(got) != 1 || got[0].Check != profile.CheckDefinition {
		t.Errorf("an empty file: %s", findings(got))
	}
}

// TestCase55_LintEncodedSlash: the spellings of a scoped package's rule are
// either understood or refused with what to write.
func TestCase55_LintEncodedSlash(t *testing.T) {
	checkLint(t, []lintCase{
		{`"/x/**"`, `"/@types%2f*"`, 10, profile.CheckPath, "needs encoded_slash = true"},
		{`"/x/**"`, `"/@types%252f*"`, 10, profile.CheckPath, "stand for whole segments"},
		{`"/x/**"`, `"/@types%252fnode"`, 10, profile.CheckPath, "two ways"},
	})
}

func TestExamples(t *testing.T) {
	results, err := profile.Examples(strings.Replace(minimal, `"GET /z"`, `"GET /x/z"`, 1), "x.toml")
	if err != nil || len(results) != 4 {
		t.Fatalf("%v, %v", results, err)
	}
	for i, want := range []profile.Example{
		{"x-a", "r", "allow", "GET /x/y", 12, ""},
		{"x-a", "r", "allow", "POST https://a.test/x length=100", 12, ""},
		{"x-a", "r", "deny", "GET /x/z", 13, "the rule allows it"},
		{"x-a", "r", "deny", "POST /x length=101", 13, ""},
	} {
		if results[i] != want {
			t.Errorf("%+v, not %+v", results[i], want)
		}
	}
	if _, err := profile.Examples(strings.Replace(minimal, "GET", "get", 1), "x.toml"); err == nil || !strings.Contains(err.Error(), "x.toml:2: ") {
		t.Errorf("%v", err)
	}
	if _, err := profile.Examples("x", "x.toml"); err == nil {
		t.Error("nonsense is run")
	}
}
