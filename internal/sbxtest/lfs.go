package sbxtest

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// ServeGitLFS is ServeGit for a repository whose files are kept by Git LFS, as
// its API version 1 has it: the batch interface beside the repository, and the
// files themselves on the host objects.
func (l *Lab) ServeGitLFS(t testing.TB, name, objects, repo string, files map[string]string) (host, store *Server) {
	t.Helper()
	pointers, contents := map[string]string{".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"}, map[string]string{}
	for path, text := range files {
		oid := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
		pointers[path] = fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", oid, len(text))
		contents["/"+oid] = text
	}
	git := l.repository(t, name, repo, pointers)
	host = l.Serve(name, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/info/lfs/objects/batch") {
			serveBatch(w, r, "https://"+objects)
			return
		}
		git.ServeHTTP(w, r)
	}))
	store = l.Serve(objects, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, known := contents[r.URL.Path]
		if !known || r.Method != http.MethodGet {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(text)) // the client is gone
	}))
	return host, store
}

type lfsObject struct {
	OID     string               `json:"oid"`
	Size    int64                `json:"size"`
	Actions map[string]lfsAction `json:"actions,omitempty"`
}

type lfsAction struct {
	Href string `json:"href"`
}

// serveBatch tells where each object is to be had, or to be put.
func serveBatch(w http.ResponseWriter, r *http.Request, at string) {
	var batch struct {
		Operation string      `json:"operation"`
		Objects   []lfsObject `json:"objects"`
	}
	if err := json.NewDecoder(r.Body).Decode(&batch); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	for i, o := range batch.Objects {
		batch.Objects[i].Actions = map[string]lfsAction{batch.Operation: {Href: at + "/" + o.OID}}
	}
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	_ = json.NewEncoder(w).Encode(map[string]any{"transfer": "basic", "objects": batch.Objects}) // the client is gone
}
