package profile_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/profile"
)

func withSockets(lines string) string {
	return strings.Replace(minimal, `summary = "one"`, `summary = "one"`+"\n"+lines, 1)
}

// TestBypass45_PowerfulSocketsNeedAnOverride: a socket whose service runs things
// outside is named twice or refused, under whatever directory it lies.
func TestBypass45_PowerfulSocketsNeedAnOverride(t *testing.T) {
	for _, socket := range []string{
		"/run/docker.sock", "/home/u/.docker/run/docker.sock", "/run/user/1000/podman/podman.sock", "/run/containerd/containerd.sock",
		"/run/k3s/containerd/containerd.sock.ttrpc", "/run/crio/crio.sock", "/run/buildkit/buildkitd.sock", "/run/libvirt/libvirt-sock",
		"/run/dbus/system_bus_socket", "/run/user/1000/bus", "/tmp/dbus-abc", "/run/systemd/private", "/run/systemd/resolve/io.systemd.Resolve",
		"/run/user/1000/systemd/private", "/tmp/.X11-unix/X0", "/run/user/1000/wayland-0", "/tmp/tmux-1000/default", "/run/snapd.socket",
		"/nix/var/nix/daemon-socket/socket", "/var/lib/incus/unix.socket", "/run/user/1000/vscode-ipc-1.sock",
	} {
		bare := withSockets(`unix_sockets = ["` + socket + `"]`)
		if _, err := profile.Parse(bare, "x.toml"); err == nil || !strings.Contains(err.Error(), "has to stand in overrides, too") {
			t.Errorf("%s alone: %v", socket, err)
		}
		named := withSockets(`unix_sockets = ["` + socket + `"]` + "\n" + `overrides = ["` + socket + `"]`)
		if _, err := profile.Parse(named, "x.toml"); err != nil {
			t.Errorf("%s with its override: %v", socket, err)
		}
		if found := profile.Lint(named, "x.toml", true); len(found) > 0 {
			t.Errorf("%s with its override: %s", socket, findings(found))
		}
	}
	for _, socket := range []string{"/run/foo.sock", "/run/user/1000/ssh-agent.socket", "/run/user/1000/keyring/ssh", "/run/postgresql/.s.PGSQL.5432"} {
		if profile.PowerfulSocket(socket) {
			t.Errorf("%s needs an override", socket)
		}
	}
}

// TestSocketsAreNamedStrictly: what is no plain path of one socket, or an override of
// nothing, is an error with its line.
func TestSocketsAreNamedStrictly(t *testing.T) {
	for lines, want := range map[string]string{
		`unix_sockets = ["run/foo.sock"]`:                                      "is not a clean absolute path",
		`unix_sockets = ["/run/../foo.sock"]`:                                  "is not a clean absolute path",
		`unix_sockets = ["/run/foo.sock/"]`:                                    "is not a clean absolute path",
		`unix_sockets = ["/"]`:                                                 "is not a clean absolute path",
		`unix_sockets = ["@foo"]`:                                              "is not a clean absolute path",
		`unix_sockets = ["/run/*.sock"]`:                                       "every socket is named",
		`unix_sockets = ["/run/$USER.sock"]`:                                   "every socket is named",
		`unix_sockets = ["/run/a\nb"]`:                                         "control characters",
		`unix_sockets = ["/` + strings.Repeat("x", 107) + `"]`:                 "longer than 107 bytes",
		`unix_sockets = ["/proc/self/fd/3"]`:                                   "lies in /proc",
		`unix_sockets = ["/run/sbx/x.sock"]`:                                   "lies in /run/sbx",
		`unix_sockets = ["/run/a.sock", "/run/a.sock"]`:                        "stands there twice",
		`overrides = ["/run/docker.sock"]`:                                     "but unix_sockets has not",
		"unix_sockets = [\"/run/a.sock\"]\noverrides = [\"/run/a.sock\"]":      "which needs none",
		"unix_sockets = [\"/run/a.sock\"]\noverrides = [\"/run/docker.sock\"]": "but unix_sockets has not",
	} {
		text := withSockets(lines)
		if _, err := profile.Parse(text, "x.toml"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", lines, err, want)
		}
		found := profile.Lint(text, "x.toml", true)
		if len(found) != 1 || found[0].Line < 5 || found[0].Line > 6 || !strings.Contains(found[0].Message, want) {
			t.Errorf("%s: findings %s", lines, findings(found))
		}
	}
	checkLint(t, []lintCase{{`summary = "one"`, "summary = \"one\"\nunix_socket = [\"/run/a\"]", 5, profile.CheckUnknownKey, "did you mean unix_sockets?"}})
}

// TestSocketsOfAGrant: a profile may be about nothing else; what two profiles name is
// granted once, and the digest tells grants with sockets from those without.
func TestSocketsOfAGrant(t *testing.T) {
	const only = "[profiles.x-b]\nversion = 1\nsummary = 'two'\nunix_sockets = ['/run/b.sock', '/run/a.sock']\n"
	set := mustParse(t, withSockets(`unix_sockets = ["/run/a.sock"]`)+only)
	both, err := set.Resolve([]string{"x-a", "x-b"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []grant.UnixSocket{{Profile: "x-a", Path: "/run/a.sock"}, {Profile: "x-b", Path: "/run/b.sock"}}
	if diff := cmp.Diff(want, both.UnixSockets()); diff != "" {
		t.Error(diff)
	}
	with, err := set.Resolve([]string{"x-a"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	without, err := mustParse(t, minimal).Resolve([]string{"x-a"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if with.Digest() == without.Digest() {
		t.Error("the digest does not tell of the socket")
	}
	if found := profile.Lint(only, "x.toml", true); len(found) > 0 {
		t.Error(findings(found))
	}
}

// TestDiffOfSockets: a socket more is something that became possible.
func TestDiffOfSockets(t *testing.T) {
	with := withSockets(`unix_sockets = ["/run/a.sock"]`)
	if got := changes(t, minimal, with); !strings.Contains(got, "possible    the host's socket /run/a.sock can be connected to") {
		t.Error(got)
	}
	if got := changes(t, with, minimal); !strings.Contains(got, "impossible    the host's socket /run/a.sock cannot be connected to") || strings.HasPrefix(got, "possible") {
		t.Error(got)
	}
	if got := changes(t, with, with); strings.Contains(got, "socket") {
		t.Error(got)
	}
}
