package layertest

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The hosts of package registries are the clients' business: sbx learns them
// at run time, and so does this test, which therefore names none either.
func TestNoRegistryHostStandsAnywhere(t *testing.T) {
	hosts := registryHosts()
	if len(hosts) == 0 {
		t.Fatal("no client told its registry: the test looked for nothing")
	}
	for _, name := range tracked(t) {
		text := read(t, name)
		for _, host := range hosts {
			if strings.Contains(text, host) {
				t.Errorf("%s names the package registry's host %q: name registries by ecosystem", name, host)
			}
		}
	}
}

var webAddress = regexp.MustCompile(`https?://[^\s,|"']+`)

// registryHosts asks the installed clients for the hosts they would use.
func registryHosts() []string {
	text := answer("npm", "config", "get", "registry") + " " + answer("go", "env", "GOPROXY")
	files, _ := filepath.Glob("/etc/apt/sources.list.d/*.sources") // the pattern is well-formed
	lists, _ := filepath.Glob("/etc/apt/sources.list.d/*.list")
	for _, path := range append(append(files, lists...), "/etc/apt/sources.list") {
		data, err := os.ReadFile(path)
		if err == nil { // a machine without apt has none
			text += " " + string(data)
		}
	}
	hosts := strings.Fields(answer("go", "env", "GOSUMDB"))
	for _, address := range webAddress.FindAllString(text, -1) {
		if u, err := url.Parse(address); err == nil {
			hosts = append(hosts, u.Hostname())
		}
	}
	hosts = slices.DeleteFunc(hosts, func(h string) bool {
		_, err := netip.ParseAddr(h) // a mirror of the workplace, which has no name to give away
		return err == nil || !strings.Contains(h, ".") || strings.Contains(h, "+")
	})
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

func answer(argv ...string) string {
	cmd := exec.CommandContext(context.Background(), argv[0], argv[1:]...)
	cmd.Dir = os.TempDir() // not under the influence of a project
	out, err := cmd.Output()
	if err != nil {
		return "" // a client that is not installed has no registry
	}
	return strings.TrimSpace(string(out))
}

func TestNoPathOfThisMachineStandsAnywhere(t *testing.T) {
	root, err := filepath.Abs(top)
	if err != nil {
		t.Fatal(err)
	}
	places := []string{root + "/"}
	// The tree's neighbours are of this machine as well, unless everybody has that directory.
	parent := filepath.Dir(root)
	if !slices.Contains([]string{"/", "/tmp", "/var/tmp", "/home", "/root", "/srv", "/opt", "/mnt", "/usr/src", "/usr/local/src"}, parent) {
		places = append(places, parent+"/")
	}
	for _, name := range tracked(t) {
		text := read(t, name)
		for _, place := range places {
			if strings.Contains(text, place) {
				t.Errorf("%s names a path of this machine, %s", name, place)
			}
		}
	}
}

func TestNoBuiltFileIsTracked(t *testing.T) {
	const large = 2 << 20 // bytes
	for _, name := range tracked(t) {
		if info, err := os.Lstat(filepath.Join(top, name)); err == nil && info.Size() > large {
			t.Errorf("%s has %d bytes: is it built, or needed at all?", name, info.Size())
		}
	}
}

// read reads a tracked file; one that was removed in the work tree is empty.
func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(top, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}
