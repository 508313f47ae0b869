package toolchain

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Every toolchain that this machine has asks for a path with its own name.
func TestEachToolchainAsksForItself(t *testing.T) {
	var mu sync.Mutex
	asked := map[string]bool{}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		rest, _ := strings.CutPrefix(r.URL.Path, "/n/")
		name, _, _ := strings.Cut(rest, "/")
		asked[name] = true
	}))
	t.Cleanup(s.Close)
	for _, name := range []string{"curl", "git", "python"} { // node asks over TLS only
		for _, tool := range tools {
			if tool.name != name {
				continue
			}
			r := Plan{Base: s.URL + "/n"}.one(t.Context(), tool)
			if !r.Asked || !asked[name] {
				t.Errorf("%+v", r)
			}
		}
	}
}

func TestToolsHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, tool := range tools {
		if seen[tool.name] || tool.name == "" || strings.ContainsAny(tool.name, "/ ") || len(tool.programs) == 0 {
			t.Errorf("%+v", tool)
		}
		seen[tool.name] = true
	}
}

func TestProgramsOfTheProjectAreNotStarted(t *testing.T) {
	project, elsewhere := t.TempDir(), t.TempDir()
	mark := filepath.Join(elsewhere, "mark")
	script := "#!/bin/sh\necho ran >" + mark + "\n"
	if err := os.WriteFile(filepath.Join(project, "curl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(project, "curl"), filepath.Join(elsewhere, "curl")); err != nil {
		t.Fatal(err)
	}
	for _, search := range []string{project, elsewhere, ".:" + project} {
		t.Setenv("PATH", search)
		if r := (Plan{Base: "https://x.test", Avoid: project}).one(t.Context(), tools[0]); r.Asked || r.Error == "" {
			t.Errorf("%s: %+v", search, r)
		}
	}
	t.Chdir(project)
	t.Setenv("PATH", ".::relative")
	if r := (Plan{Base: "https://x.test"}).one(t.Context(), tools[0]); r.Asked || r.Program != "" {
		t.Errorf("by a relative path: %+v", r)
	}
	if _, err := os.Lstat(mark); err == nil {
		t.Error("it was started")
	}
}

func TestTheLastLineIsKept(t *testing.T) {
	for text, want := range map[string]string{"": "", "a\nb\n\n": "b", "a\r\n": "a", strings.Repeat("x", 9000): strings.Repeat("x", maxSaid)} {
		last := &tail{}
		_, _ = last.Write([]byte(text))
		if got := last.line(); got != want {
			t.Errorf("%q", got)
		}
	}
}
