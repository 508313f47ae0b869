package registry_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/registry"
)

// hostOptions read this machine's own configuration, as the binary does.
func hostOptions(tb testing.TB) registry.Options {
	tb.Helper()
	home, err := os.UserHomeDir()
	if err != nil {
		tb.Fatal(err)
	}
	env := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	return registry.Options{Home: home, UserID: os.Getuid(), Env: env}
}

// TestHostEndpointsMatchTheClients compares what is parsed with what the clients
// of this machine say themselves. No host is named: both come from the machine.
func TestHostEndpointsMatchTheClients(t *testing.T) {
	for _, c := range []struct {
		ecosystem string
		argv      []string
	}{
		{"npm", []string{"npm", "config", "get", "registry"}},
		{"go", []string{"go", "env", "GOPROXY"}},
	} {
		t.Run(c.ecosystem, func(t *testing.T) {
			cmd := exec.Command(c.argv[0], c.argv[1:]...)
			cmd.Dir = t.TempDir()
			cmd.Env = []string{"HOME=" + hostOptions(t).Home, "PATH=" + os.Getenv("PATH")}
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("asking %v: %v", c.argv, err)
			}
			want, _, _ := strings.Cut(strings.TrimSpace(string(out)), ",")
			got, err := registry.New(hostOptions(t)).Endpoints(c.ecosystem)
			if err != nil {
				t.Fatal(err)
			}
			if got[0].URL != strings.TrimRight(want, "/") {
				t.Errorf("endpoint of %s differs from the client's own answer (source %s)", c.ecosystem, got[0].Source)
			}
		})
	}
}

// TestHostEcosystemsResolve: each installed client's endpoints resolve with a
// source; for one that is not installed there is an error that says what to do.
func TestHostEcosystemsResolve(t *testing.T) {
	r := registry.New(hostOptions(t))
	for ecosystem, program := range map[string]string{"npm": "npm", "yarn": "npm", "go": "go", "debian": "apt-get", "python": "pip3"} {
		endpoints, err := r.Endpoints(ecosystem)
		if _, missing := exec.LookPath(program); missing != nil && err != nil {
			if !errors.Is(err, registry.ErrUnknown) {
				t.Errorf("%s: %v", ecosystem, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", ecosystem, err)
		}
		for _, e := range endpoints {
			if e.Source == "" || e.Endpoint.Host.IsZero() {
				t.Errorf("%s: endpoint without source or host: role %q", ecosystem, e.Role)
			}
			t.Logf("%s %q from %s", ecosystem, e.Role, e.Source)
		}
	}
}

func BenchmarkHostNPM(b *testing.B) {
	opts := hostOptions(b)
	for b.Loop() {
		r := registry.New(opts)
		for _, ecosystem := range []string{"npm", "yarn"} {
			if _, err := r.Endpoints(ecosystem); err != nil {
				b.Fatal(err)
			}
		}
	}
}
