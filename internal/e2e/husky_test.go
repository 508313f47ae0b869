package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// huskies are two lines of husky, what their users' prepare script is, and the
// integrity of the package.
var huskies = map[string][2]string{
	"9.1.7": {"husky", "sha512-5gs5ytaNjBrh5Ow3zrvdUUY+0VxIuWVL4i9irt6friV+BqdCfmV11CQTWMiBYWHbXhco+J1kHfTOUkePhCDvMA=="},
	"8.0.3": {"husky install", "sha512-+dQSyqPh4x1hlO1swXBiNb2HzTDN1I2IGLQx1GrBuiqFJfoMrnZWwVmatvSiO+Iz8fBUnf+lekwNo4c2LlXItg=="},
}

const huskyRepository = `set -e
	export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x@git.test GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x@git.test
	rm -rf .git .husky node_modules; git init -q .; mkdir .husky; echo 'echo hook ran' >.husky/pre-commit; chmod 755 .husky/pre-commit
	echo node_modules >.gitignore; git add .; git commit -q -m x`

// husky's prepare sets core.hooksPath and fills .husky/_: an install goes well in a
// fresh clone and in one that is set up, and changes nothing that git outside runs.
func TestBypass46_HuskyDoesNotFailInstalls(t *testing.T) {
	lab := sbxtest.NewLab(t, sbxtest.RealNetwork())
	everyone(t, func(t *testing.T, who sbxtest.User) {
		for version, h := range huskies {
			t.Run(version, func(t *testing.T) {
				lab.Write(who, "package.json", fmt.Sprintf(`{"name": "x", "version": "1.0.0", "scripts": {"prepare": %q}, "devDependencies": {"husky": %q}}`, h[0], version))
				lab.Write(who, "package-lock.json", fmt.Sprintf(`{"name": "x", "version": "1.0.0", "lockfileVersion": 3, "requires": true, "packages": {
					"": {"name": "x", "version": "1.0.0", "devDependencies": {"husky": %q}},
					"node_modules/husky": {"version": %q, "integrity": %q, "dev": true, "bin": {"husky": %q}}}}`,
					version, version, h[1], map[string]string{"9.1.7": "bin.js", "8.0.3": "lib/bin.js"}[version]))
				succeeded(t, outside(t, lab, who, huskyRepository))
				install := func() sbxtest.Result {
					return run(t, lab, who, "--profile", "js-install", "--", "npm", "ci", "--foreground-scripts")
				}
				before := tree(t, filepath.Join(lab.Project(who), ".husky"))

				got := install()
				succeeded(t, got)
				if list := asideOf(t, lab, who, got); slices.ContainsFunc(list, func(p string) bool { return p != ".husky/_" }) {
					t.Errorf("set aside: %v", list)
				}
				same(t, before, tree(t, filepath.Join(lab.Project(who), ".husky")))
				if hooks := outside(t, lab, who, "git config core.hooksPath; true"); hooks.Stdout != "" {
					t.Errorf("the command set core.hooksPath: %s", hooks.Stdout)
				}

				succeeded(t, outside(t, lab, who, "./node_modules/.bin/husky "+map[string]string{"8.0.3": "install"}[version]+" && test -d .husky/_ && git config core.hooksPath"))
				before = tree(t, filepath.Join(lab.Project(who), ".husky"))
				got = install()
				succeeded(t, got)
				if list := asideOf(t, lab, who, got); len(list) > 0 {
					t.Errorf("set aside: %v", list)
				}
				same(t, before, tree(t, filepath.Join(lab.Project(who), ".husky")))
				if err := os.RemoveAll(filepath.Join(lab.Project(who), ".husky")); err != nil {
					t.Fatal(err)
				}
			})
		}
	})
}
