package sbxtest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// ServeGit starts a host that serves one repository at repo, such as
// "acme/widget", over smart HTTP by git's own backend: reading and, so that a
// refused push is sbx's doing, also writing. The repository has one commit on
// main, with the given files.
func (l *Lab) ServeGit(t testing.TB, name, repo string, files map[string]string) *Server {
	t.Helper()
	return l.Serve(name, l.repository(t, name, repo, files))
}

// ServePrivateGit is ServeGit for those who know the user's password only.
func (l *Lab) ServePrivateGit(t testing.TB, name, repo, user, password string, files map[string]string) *Server {
	t.Helper()
	git := l.repository(t, name, repo, files)
	return l.Serve(name, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, ok := r.BasicAuth(); !ok || u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="lab"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		git.ServeHTTP(w, r)
	}))
}

func (l *Lab) repository(t testing.TB, name, repo string, files map[string]string) http.Handler {
	t.Helper()
	root := filepath.Join(l.dir, "git-"+name)
	bare := filepath.Join(root, repo+".git")
	work := filepath.Join(root, "work")
	for path, text := range files {
		path = filepath.Join(work, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatalf("writing the repository: %v", err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatalf("writing the repository: %v", err)
		}
	}
	git(t, "init", "--quiet", "--initial-branch=main", work)
	git(t, "-C", work, "add", ".")
	git(t, "-C", work, "-c", "user.name=lab", "-c", "user.email=lab@git.test", "commit", "--quiet", "-m", "first")
	git(t, "clone", "--quiet", "--bare", work, bare)
	for _, setting := range []string{"http.receivepack", "uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"} {
		git(t, "-C", bare, "config", setting, "true")
	}
	git(t, "-C", bare, "update-server-info")
	return &cgi.Handler{
		Path:       filepath.Join(strings.TrimSpace(git(t, "--exec-path")), "git-http-backend"),
		Dir:        root,
		Env:        []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "HOME=/nonexistent", "REMOTE_USER=lab"},
		InheritEnv: []string{"PATH"},
	}
}

// GitBranches adds n branches to a served repository, each with a commit of its
// own on main.
func (l *Lab) GitBranches(t testing.TB, name, repo string, n int) {
	t.Helper()
	var stream strings.Builder
	for i := range n {
		fmt.Fprintf(&stream, "commit refs/heads/branch%d\ncommitter lab <lab@git.test> %d +0000\ndata 0\nfrom refs/heads/main^0\n"+
			"M 644 inline file%d\ndata 1\nx\n", i, 1_700_000_000+i, i)
	}
	cmd := gitCommand("-C", filepath.Join(l.dir, "git-"+name, repo+".git"), "fast-import", "--quiet")
	cmd.Stdin = strings.NewReader(stream.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("adding branches: %v\n%s", err, out)
	}
}

// gitCommand is git without anybody's configuration.
func gitCommand(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), "git", args...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	return cmd
}

// git runs git and returns what it printed.
func git(t testing.TB, args ...string) string {
	t.Helper()
	out, err := gitCommand(args...).CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
