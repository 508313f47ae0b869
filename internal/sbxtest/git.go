package sbxtest

import (
	"context"
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
	git(t, "-C", bare, "config", "http.receivepack", "true")
	git(t, "-C", bare, "update-server-info")
	return &cgi.Handler{
		Path:       filepath.Join(strings.TrimSpace(git(t, "--exec-path")), "git-http-backend"),
		Dir:        root,
		Env:        []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "HOME=/nonexistent", "REMOTE_USER=lab"},
		InheritEnv: []string{"PATH"},
	}
}

// git runs git without anybody's configuration.
func git(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), "git", args...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
