package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/sbxtest"
)

// --ro, --rw and --hide show and hide what they name, and nothing else.
func TestNamedPaths(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		home := lab.Home(who)
		inHome(t, lab, who, "data/deep/file", "data\n")
		inHome(t, lab, who, "data/secret", "hunter2\n")
		inHome(t, lab, who, "out/file", "out\n")
		inHome(t, lab, who, "single", "single\n")
		inHome(t, lab, who, "other", "other\n")
		succeeded(t, outside(t, lab, who, "ln -s data ../link; mkdir -p docs/build src; echo DOC >docs/doc; echo SRC >src/src; echo KEY >.env"))
		got := shell(t, lab, who, `
			cat ~/data/deep/file ~/link/deep/file ~/out/file ~/single docs/doc; cat ~/data/secret ~/link/secret .env ~/other; ls -A ~ | tr '\n' ' '
			exec 2>/dev/null
			for f in ~/data/new ~/data/deep/file ~/link/new docs/new docs/doc; do echo x >>$f && echo "$f was written"; done
			mv docs docs2 && echo docs was moved; rm -rf docs; rm -f .env; echo y >.env
			for f in ~/out/new ~/single docs/build/new src/new; do echo new >$f || echo "$f cannot be written"; done; stat -c %u ~/out/new ~/single`,
			"--ro=../data", "--ro="+home+"/link", "--rw", home+"/out", "--rw", "../single", "--ro=docs", "--rw", "docs/build", "--hide", "../data/secret", "--hide", ".env")
		uid := "1000"
		if who == sbxtest.AsUser {
			uid = fmt.Sprint(lab.UID(who))
		}
		if want := "data\ndata\nout\nsingle\nDOC\ndata link out project single " + uid + "\n" + uid + "\n"; got.Stdout != want {
			t.Errorf("stdout is %q, want %q; stderr %s", got.Stdout, want, got.Stderr)
		}
		printed(t, outside(t, lab, who, "cat ../out/new ../single docs/build/new src/new .env docs/doc; ls ../data"), "new\nnew\nnew\nnew\nKEY\nDOC\ndeep\nsecret\n")
		foreign(t, lab, who)
		shown := fmt.Sprint(got.Receipt(t)["shown"])
		says(t, shown, "access:read-only path:"+home+"/data ", "access:writable path:"+home+"/out ", "access:hidden path:"+lab.Project(who)+"/.env ")
		for _, name := range []string{"data", "out", "single", "link"} {
			if err := os.RemoveAll(filepath.Join(home, name)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// What was named is what a later run finds under that name.
func TestBypass51_NamedPathsStayWhereTheyAre(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, outside(t, lab, who, "mkdir -p config/sub docs .github/workflows .github/docs ../secret; echo KEY >config/.env; echo DOC >docs/doc; echo DOC >.github/docs/doc; echo mine >config/sub/file"))
		options := []string{"--hide", "config/.env", "--ro=docs/doc", "--ro=.github/docs", "--ro=config/sub"}
		got := shell(t, lab, who, `
			exec 2>/dev/null
			mv config moved; mv docs moved2; mkdir -p config docs; touch config/.env; for f in docs/doc .github/docs/doc config/sub/file; do echo EVIL >$f; done
			mv .github moved3; touch config/new .github/new docs/new; ln -s ../secret out; cat config/.env`, options...)
		printed(t, got, "")
		printed(t, shell(t, lab, who, "cat config/.env docs/doc .github/docs/doc config/sub/file; ls config", options...), "DOC\nDOC\nmine\nnew\nsub\n")
		refused(t, run(t, lab, who, "--rw", "out", "--", "touch", "ran"), "--rw", "out", "leads through a link")
		nothingRan(t, lab, who)
		printed(t, outside(t, lab, who, "cat config/.env; rm -r ../secret"), "KEY\n")
	})
}

// The working directory can be read-only but for a part.
func TestReadOnlyButForAPart(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, outside(t, lab, who, "git init -q .; mkdir -p out pkg/.vscode"))
		got := shell(t, lab, who, "touch x .envrc pkg/.vscode/x 2>/dev/null; touch out/x; mkdir out/.idea; git status --short", "--ro", "--rw", "out")
		printed(t, got, "?? out/\n")
		if list := asideOf(t, lab, who, got); len(list) != 1 || list[0] != "out/.idea" {
			t.Errorf("set aside: %v", list)
		}
		// A guarded path that is named is the caller's choice; git's own are not.
		got = shell(t, lab, who, "touch pkg/.vscode/x && mkdir .github && touch .github/x; touch y", "--rw", "pkg/.vscode", "--rw", "out")
		succeeded(t, got)
		printed(t, outside(t, lab, who, "ls pkg/.vscode"), "x\n")
		refused(t, run(t, lab, who, "--rw", ".git/hooks", "--", "touch", "ran"), "--rw", ".git/hooks", "repository's own")
		nothingRan(t, lab, who)
	})
}

// What shows is part of a call under a key.
func TestNamedPathsUnderAKey(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, outside(t, lab, who, "git init -q .; mkdir -p docs .vscode"))
		printed(t, run(t, lab, who, "--key", "k1", "--ro=docs", "--", "echo", "ran"), "ran\n")
		succeeded(t, outside(t, lab, who, "touch .vscode/x .envrc")) // what is guarded may differ
		printed(t, run(t, lab, who, "--key", "k1", "--ro=docs", "--", "echo", "ran"), "ran\n")
		refused(t, run(t, lab, who, "--key", "k1", "--", "echo", "ran"), "k1")
		refused(t, run(t, lab, who, "--key", "k1", "--rw=docs", "--", "echo", "ran"), "k1")
	})
}

// What would give away too much is refused before anything runs.
func TestBypass45_PathsThatAreRefused(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		home, state := lab.Home(who), lab.StateDir(who)
		if who == sbxtest.AsRoot {
			state = "/var/lib/sbx"
		}
		succeeded(t, run(t, lab, who, "--", "true")) // the state directory is made
		inHome(t, lab, who, ".config/sbx/config.toml", "")
		inHome(t, lab, who, ".cache/sbx/x", "")
		inHome(t, lab, who, ".ssh/config", "")
		lab.Within(t, func() error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.Bind(fd, &unix.SockaddrUnix{Name: home + "/docker.sock"}); err != nil {
				return err
			}
			return unix.Mkfifo(home+"/pipe", 0o600)
		})
		for _, c := range []struct{ option, path, says string }{
			{"--ro=", "/", "system"},
			{"--rw=", "/", "state directory"},
			{"--ro=", home, "home directory"},
			{"--rw=", filepath.Dir(home), "--rw"},
			{"--ro=", "/proc", "system"},
			{"--rw=", "/sys", "system"},
			{"--rw=", "/dev/shm", "system"},
			{"--ro=", "/run", "system"},
			{"--rw=", "/usr", "system"},
			{"--rw=", "/etc", "system"},
			{"--ro=", home + "/docker.sock", "socket"},
			{"--rw=", home + "/pipe", "pipe"},
			{"--rw=", home + "/.ssh", "obeyed by programs outside"},
			{"--rw=", state, "state directory"},
			{"--ro=", state + "/runs", "state directory"},
			{"--rw=", home + "/.config", "obeyed by programs outside"},
			{"--rw=", home + "/.config/sbx", "configuration"},
			{"--rw=", home + "/.cache", "cache directory"},
			{"--ro=", home + "/missing", "does not exist"},
			{"--hide=", "missing", "does not exist"},
			{"--hide=", ".", "working directory"},
		} {
			got := run(t, lab, who, c.option+c.path, "--", "touch", "ran")
			refused(t, got, strings.TrimRight(c.option, "="), c.says, "next: ")
			nothingRan(t, lab, who)
		}
		refused(t, run(t, lab, who, "--ro", "/srv", "--", "touch", "ran"), "--ro=/srv")
		for _, name := range []string{"docker.sock", "pipe", ".config/sbx/config.toml", ".ssh", ".cache"} {
			if err := os.RemoveAll(filepath.Join(home, name)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// What is asked for is printed before anything runs.
func TestDryRunPrintsNamedPaths(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		inHome(t, lab, who, "data/x", "")
		succeeded(t, outside(t, lab, who, "git init -q .; mkdir -p sub .vscode; touch .env"))
		got := run(t, lab, who, "--dry-run", "--ro=../data", "--hide", ".env", "--", "true")
		succeeded(t, got)
		says(t, got.Stdout, "ro bind      "+lab.Home(who)+"/data\n", "ro mask      "+lab.Project(who)+"/.env\n", "ro bind      "+lab.Project(who)+"/.vscode\n", "SBX_ARTIFACTS=/run/artifacts\n")
		got = run(t, lab, who, "--dry-run", "-C", "sub", "--", "true")
		says(t, got.Stdout, "ro bind      "+lab.Project(who)+"\n", "rw bind      "+lab.Project(who)+"/sub\n")
		if err := os.RemoveAll(filepath.Join(lab.Home(who), "data")); err != nil {
			t.Fatal(err)
		}
	})
}

// Below a repository's top, git sees the repository; only the working directory is
// writable.
func TestGitBelowTheTop(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		succeeded(t, outside(t, lab, who, repository+`
			mkdir -p sub/deep ../tree/sub lib/sub; echo one >top; echo two >sub/deep/file; git add .; git commit -q -m files; echo changed >>sub/deep/file; echo changed >>top`))
		for dir, wants := range map[string][2]string{
			"main/sub/deep": {" M ../../top\n M file\n", "files\n"},
			"main/sub":      {" M ../top\n M deep/file\n", "files\n"},
			"tree/sub":      {"", "lib\n"},
			"main/lib/sub":  {"", "lib\n"},
		} {
			t.Run(dir, func(t *testing.T) {
				at := filepath.Join(lab.Project(who), dir)
				lab.Within(t, func() error { return os.MkdirAll(at, 0o755) })
				got := shell(t, lab, who, "git status --short | LC_ALL=C sort; git log -1 --format=%s; git diff --stat >/dev/null && git rev-parse --show-toplevel", "-C", at)
				top := filepath.Join(lab.Project(who), strings.SplitN(dir, "/sub", 2)[0])
				printed(t, got, wants[0]+wants[1]+top+"\n")
				got = shell(t, lab, who, `exec 2>/dev/null; cd "$(git rev-parse --show-toplevel)"; touch new && echo made; echo x >>.git/config && echo configured
					git commit -q --allow-empty -m x && echo committed; rm -f top .git/HEAD; mv "$OLDPWD" "$OLDPWD"2 && echo moved; touch "$OLDPWD/own" && rm "$OLDPWD/own" && echo own`, "-C", at)
				printed(t, got, "own\n")
			})
		}
		// The home is no project, even if it is a repository.
		succeeded(t, outside(t, lab, who, "cd ..; git init -q .; echo hunter2 >secret"))
		got := shell(t, lab, who, "cat ../secret; git rev-parse --show-toplevel", "-C", lab.Project(who))
		if strings.Contains(got.Stdout, "hunter2") || strings.TrimSpace(got.Stdout) == lab.Home(who) {
			t.Errorf("the home directory shows: %q", got.Stdout)
		}
		for _, name := range []string{".git", "secret"} {
			if err := os.RemoveAll(filepath.Join(lab.Home(who), name)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// What the command leaves in $SBX_ARTIFACTS is kept with the run's records.
func TestBypass49_Artifacts(t *testing.T) {
	lab := sbxtest.NewLab(t)
	everyone(t, func(t *testing.T, who sbxtest.User) {
		out := filepath.Join(lab.Home(who), "artifacts")
		got := shell(t, lab, who, `cd "$SBX_ARTIFACTS" && mkdir -p a/b && echo report >a/b/report.html && ln -s /etc/passwd link && ln -s / root && mkfifo pipe && ln a/b/report.html hard
			mkdir .git && echo x >.git/config; chmod 0 a/b/report.html a`, "--artifacts", out)
		succeeded(t, got)
		for _, dir := range []string{got.RunDir, out} {
			listed := outside(t, lab, who, "cd "+dir+"/files && find . -type f -printf '%p %m %U\n' -o -not -type d -print | LC_ALL=C sort; cat a/b/report.html")
			uid := lab.UID(who)
			printed(t, listed, fmt.Sprintf("./a/b/report.html 600 %d\n./hard 600 %d\nreport\n", uid, uid))
		}
		collected, ok := got.Receipt(t)["collected"].(map[string]any)
		if !ok || collected["files"] != 2.0 {
			t.Errorf("the receipt has %v", collected)
		}
		says(t, fmt.Sprint(collected["skipped"]), "path:link why:not a regular file", "path:.git why:programs outside")
		if left, err := os.ReadDir(filepath.Join(lab.StateDir(who), "scratch")); err != nil || len(left) > 0 {
			t.Errorf("the outbox is still there: %v %v", left, err)
		}
		if next := run(t, lab, who, "--", "ls", "-A", "/run/artifacts"); next.Stdout != "" || next.Receipt(t)["collected"] != nil {
			t.Errorf("the next run found %q", next.Stdout)
		}
		if err := os.RemoveAll(out); err != nil {
			t.Fatal(err)
		}
	})
}
