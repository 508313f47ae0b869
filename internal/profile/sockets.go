package profile

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/fractalboxdev/sbx/internal/grant"
)

// maxSocketPath is the longest path that fits into a unix address, in bytes (unix(7)).
const maxSocketPath = 107

// ownPlaces are directories that are the sandbox's own inside.
var ownPlaces = []string{"/proc", "/sys", "/dev", "/run/sbx"}

// powerful are sockets whose service does for its clients what no policy sees: it
// starts programs or containers, changes the machine, or has the user's screen and
// keyboard. Patterns with a slash are of the whole path, others of its last part.
var powerful = []string{
	"*docker*.sock", "*containerd*.sock*", "*podman*.sock", "*crio*.sock", "*buildkit*.sock", "dockershim.sock", "*lima*.sock", "*colima*.sock",
	"libvirt-sock", "virt*-sock", "*qmp*.sock", "*firecracker*.sock",
	"system_bus_socket", "session_bus_socket", "bus", "dbus-*", "snapd*.socket", "wayland-*", "pipewire-*", "vscode-ipc-*", "nvim.*",
	"/run/systemd/*", "/run/systemd/*/*", "/run/user/*/systemd/*", "/run/dbus/*", "/tmp/.X11-unix/*", "/tmp/.ICE-unix/*",
	"/tmp/tmux-*/*", "/run/user/*/tmux-*/*", "/run/screen/*/*", "/tmp/emacs*/*", "/run/user/*/emacs/*",
	"/var/lib/lxd/unix.socket", "/var/snap/lxd/*/*/unix.socket", "/var/lib/incus/unix.socket", "/nix/var/nix/daemon-socket/*",
}

// PowerfulSocket reports whether a profile needs an override for a socket of the host.
func PowerfulSocket(socket string) bool {
	return slices.ContainsFunc(powerful, func(pattern string) bool {
		name := socket
		if !strings.HasPrefix(pattern, "/") {
			name = path.Base(socket)
		}
		matches, err := path.Match(pattern, name)
		return err != nil || matches
	})
}

// buildSockets takes the host's sockets that the command may connect to. Those that
// give away more than the profile's rules have to stand in overrides, too.
func (d *profileDoc) buildSockets(p *Profile) error {
	for _, name := range d.UnixSockets {
		if err := checkSocket(name); err != nil {
			return fmt.Errorf("unix_sockets: %q %w", name, err)
		}
		if slices.Contains(p.UnixSockets, name) {
			return fmt.Errorf("unix_sockets: %q stands there twice", name)
		}
		if PowerfulSocket(name) && !slices.Contains(d.Overrides, name) {
			return fmt.Errorf("unix_sockets: whoever may talk to %s can run or change things outside the sandbox: it has to stand in overrides, too", name)
		}
		p.UnixSockets = append(p.UnixSockets, name)
	}
	slices.Sort(p.UnixSockets)
	return nil
}

func checkSocket(name string) error {
	switch {
	case !path.IsAbs(name) || path.Clean(name) != name || name == "/":
		return errors.New("is not a clean absolute path")
	case len(name) > maxSocketPath:
		return fmt.Errorf("is longer than %d bytes, which no address holds", maxSocketPath)
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return errors.New("has control characters")
	case strings.ContainsAny(name, "*?[{$~"):
		return errors.New("has a wildcard or a variable: every socket is named")
	}
	for _, own := range ownPlaces {
		if name == own || strings.HasPrefix(name, own+"/") {
			return fmt.Errorf("lies in %s, which is the sandbox's own", own)
		}
	}
	return nil
}

// isSocket tells the sockets in overrides from hosts.
func isSocket(override string) bool { return strings.HasPrefix(override, "/") }

// overrideSocket demands of an override that it opens something.
func (d *profileDoc) overrideSocket(name string) error {
	switch {
	case !slices.Contains(d.UnixSockets, name):
		return fmt.Errorf("overrides has %s, but unix_sockets has not", name)
	case !PowerfulSocket(name):
		return fmt.Errorf("overrides has %s, which needs none", name)
	}
	return nil
}

// addSockets joins the sockets of profiles, each once.
func addSockets(spec *grant.Spec, p Profile) {
	for _, name := range p.UnixSockets {
		if !slices.ContainsFunc(spec.UnixSockets, func(have grant.UnixSocket) bool { return have.Path == name }) {
			spec.UnixSockets = append(spec.UnixSockets, grant.UnixSocket{Profile: p.Name, Path: name})
		}
	}
}

// sockets reports what of the host can be talked to past all rules.
func (d *differ) sockets(before, after Profile) {
	for _, name := range after.UnixSockets {
		if !slices.Contains(before.UnixSockets, name) {
			d.add(ChangePossible, "the host's socket %s can be connected to", name)
		}
	}
	for _, name := range before.UnixSockets {
		if !slices.Contains(after.UnixSockets, name) {
			d.add(ChangeImpossible, "the host's socket %s cannot be connected to", name)
		}
	}
}
