package profile_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/profile"
)

const withCredential = `
[profiles.x-c]
version = 1
summary = "one"
[profiles.x-c.env]
TAKEN = "1"
[profiles.x-c.credentials.c]
SOURCE
host = "a.test"
SLOT
[[profiles.x-c.rules]]
id = "r"
host = "a.test"
methods = ["GET"]
path = "/**"
credential = "c"
EXTRA
allow = ["GET /x"]
deny = ["POST /x length=1"]
`

func parseCredential(source, slot, extra string) (profile.Profile, error) {
	text := strings.NewReplacer("SOURCE", source, "SLOT", slot, "EXTRA", extra).Replace(withCredential)
	set, err := profile.Parse(text, "x.toml")
	if err != nil {
		return profile.Profile{}, err
	}
	return set.Get("x-c")
}

func TestCredentialVocabulary(t *testing.T) {
	const env, header = `env = "T"`, `header = "Authorization"` + "\n" + `template = "Bearer {secret}"`
	for _, c := range []struct{ source, slot, slotText, sourceText string }{
		{env, header, "in the header Authorization as Bearer {secret}", "variable T"},
		{`file = "/etc/token"`, `query_key = "key"`, "in the query key key", "file /etc/token"},
		{`file = "~/.config/token"`, "basic = true\nusername = \"x\"\nrequired = true\nplaceholder = \"GIT_TOKEN\"", "in the header Authorization as basic password of x", "file ~/.config/token"},
		{`command = ["/usr/bin/op", "read", "a b"]`, header, "in the header Authorization as Bearer {secret}", "command /usr/bin/op"},
	} {
		p, err := parseCredential(c.source, c.slot, "")
		if err != nil {
			t.Errorf("%s %s: %v", c.source, c.slot, err)
			continue
		}
		if got := p.Credentials[0]; got.Slot() != c.slotText || got.Source() != c.sourceText {
			t.Errorf("%q from %q", got.Slot(), got.Source())
		}
	}
	for _, c := range []struct{ source, slot, extra, want string }{
		{"", header, "", "env, file or command"},
		{env + "\nfile = \"/a\"", header, "", "not several"},
		{`file = "token"`, header, "", "absolute"},
		{`file = "/a/../b"`, header, "", "absolute"},
		{`file = "~other/b"`, header, "", "absolute"},
		{`command = ["op", "read"]`, header, "", "absolute path of a program"},
		{`command = ["/bin/../op"]`, header, "", "absolute path of a program"},
		{`command = ["/bin/op", "a\u0000b"]`, header, "", "NUL"},
		{env, header + "\nquery_key = \"k\"", "", "either a header, basic or query_key"},
		{env, header + "\nbasic = true", "", "either a header, basic or query_key"},
		{env, `query_key = "a b"`, "", "query_key"},
		{env, `username = "x"`, "", "basic = true"},
		{env, "basic = true\nusername = \"a:b\"", "", "colon"},
		{env, "header = \"Host\"\ntemplate = \"{secret}\"", "", "framed or routed"},
		{env, "header = \"Authorization\"\ntemplate = \"{secret} {secret}\"", "", "one {secret}"},
		{env, header + "\nplaceholder = \"A B\"", "", "placeholder"},
		{env, header, "websocket = true", "websocket and credential exclude"},
		{env, header, "cookies = true", "cookies and credential exclude"},
	} {
		_, err := parseCredential(c.source, c.slot, c.extra)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s %s: %v, want %q", c.source, c.slot, c.extra, err, c.want)
		}
	}
}

// Neither one profile nor two together make a placeholder of use where nobody reads along.
func TestBypass38_PlaceholdersNeedInterception(t *testing.T) {
	const credential = "[profiles.x-c]\nversion = 1\nsummary = \"one\"\n[profiles.x-c.credentials.c]\nenv = \"T\"\nhost = \"a.test\"\n" +
		"header = \"Authorization\"\ntemplate = \"Bearer {secret}\"\nPLACEHOLDER\n" +
		"[[profiles.x-c.rules]]\nid = \"r\"\nhost = \"a.test\"\nmethods = [\"GET\"]\npath = \"/**\"\ncredential = \"c\"\nallow = [\"GET /x\"]\ndeny = [\"POST /x length=1\"]\n"
	const unseen = "[profiles.x-t]\nversion = 1\nsummary = \"two\"\n[[profiles.x-t.rules]]\nid = \"u\"\nhost = \"a.test\"\nKIND\nallow = [\"a.test:PORT\"]\n"
	for name, kind := range map[string][2]string{"tcp": {"protocol = \"tcp\"\nports = [22]", "22"}, "tunnel": {"tls = \"tunnel\"", "443"}} {
		for _, with := range []bool{true, false} {
			line := ""
			if with {
				line = `placeholder = "PH"`
			}
			text := strings.Replace(credential, "PLACEHOLDER", line, 1) + strings.NewReplacer("KIND", kind[0], "PORT", kind[1]).Replace(unseen)
			set, err := profile.Parse(text, "x.toml")
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			_, err = set.Resolve([]string{"x-c", "x-t"}, nil, nil)
			var refused *profile.Refusal
			if with != errors.As(err, &refused) || with && (refused.Code != profile.CodeBadGrant || !strings.Contains(refused.Detail, "x-t/u")) {
				t.Errorf("%s, placeholder %v: %v", name, with, err)
			}
		}
	}
}
