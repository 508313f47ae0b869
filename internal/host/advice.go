package host

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Blocked is a step of starting a sandbox that this host has refused.
type Blocked struct {
	Step   string // as the runner names it
	Errno  error  // what the kernel said; nil when it is not known
	Detail string
}

// Explain says why the host may have refused a step, and what a person can do. Both are
// empty for steps that it knows nothing about. It reads a few small files of /proc, so
// it is worth asking only after a refusal.
func (h *Host) Explain(b Blocked) (why, next string) {
	switch {
	case errors.Is(b.Errno, unix.ENOSPC) || strings.Contains(b.Detail, "No space left on device"):
		return h.limitAdvice(b)
	case b.Step == "unshare-user", b.Step == "uid-map", b.Step == "setgroups", b.Step == "second-user-namespace":
		return h.UserNamespaceAdvice()
	case strings.Contains(b.Detail, `mounting "proc"`):
		return h.procAdvice()
	case strings.Contains(b.Detail, "/ns/mnt: permission denied"):
		return "uid 0 without CAP_SYS_PTRACE", h.containerAdvice(capabilityFlags("CAP_SYS_PTRACE"))
	case strings.Contains(b.Detail, "opening this binary") && strings.Contains(b.Detail, "was deleted or replaced"):
		return "the sandbox's first process is this very file, and another may be another sbx", "make the call again with the sbx that is there now; where none is, install it first"
	case errors.Is(b.Errno, unix.ENOENT) && strings.Contains(b.Detail, "opening this binary"):
		return "its path leads elsewhere, as in a chroot", chrootFix
	case b.Step == "network" && !refusal(b.Errno):
		return "the kernel lacks a part of nft, or its module is not loaded", nftFix
	case refusal(b.Errno) || strings.Contains(b.Detail, "operation not permitted") || strings.Contains(b.Detail, "permission denied"):
		return h.refusalAdvice()
	}
	return "", ""
}

func refusal(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSYS)
}

// namespaceLimits are the sysctls of user_namespaces(7) by the step that they stop.
var namespaceLimits = [...]struct{ step, name string }{
	{"unshare-user", "user.max_user_namespaces"},
	{"second-user-namespace", "user.max_user_namespaces"},
	{"unshare-mount", "user.max_mnt_namespaces"},
	{"unshare-net", "user.max_net_namespaces"},
	{"unshare-cgroup", "user.max_cgroup_namespaces"},
}

func (h *Host) limitAdvice(b Blocked) (why, next string) {
	for _, l := range namespaceLimits {
		if l.step == b.Step {
			value, _ := h.read("/proc/sys/" + strings.ReplaceAll(l.name, ".", "/"))
			return fmt.Sprintf("the limit of namespaces is reached (%s is %s)", l.name, orUnknown(value)), "sudo sysctl -w " + l.name + "=15000"
		}
	}
	for _, name := range []string{"user.max_pid_namespaces", "user.max_ipc_namespaces", "user.max_uts_namespaces", "user.max_mnt_namespaces"} {
		if value, ok := h.read("/proc/sys/" + strings.ReplaceAll(name, ".", "/")); ok && value == "0" {
			return "the limit of namespaces is reached (" + name + " is 0)", "sudo sysctl -w " + name + "=15000"
		}
	}
	return "a limit of namespaces is reached (user.max_*_namespaces)", "look at: sysctl -a | grep namespaces"
}

func orUnknown(value string) string {
	if value == "" {
		return "unknown"
	}
	return value
}

// UserNamespaceAdvice reads why this host may refuse user namespaces and what
// a person can do. It is worth asking only after one was refused.
func (h *Host) UserNamespaceAdvice() (why, next string) {
	if v, ok := h.read("/proc/sys/user/max_user_namespaces"); ok && v == "0" {
		return "user.max_user_namespaces is 0", "sudo sysctl -w user.max_user_namespaces=15000"
	}
	if v, ok := h.read("/proc/sys/kernel/unprivileged_userns_clone"); ok && v == "0" {
		return "kernel.unprivileged_userns_clone is 0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"
	}
	if v, ok := h.read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"); ok && v != "0" && !h.apparmorAllows() {
		return "AppArmor restricts them (kernel.apparmor_restrict_unprivileged_userns is " + v + ")", appArmorFix
	}
	if text, ok := h.read("/proc/self/uid_map"); ok && text == "" {
		return "the caller has no uid in this user namespace (uid_map is empty)", "map one, as in: unshare --user --map-current-user sbx exec ..."
	}
	if h.chrooted() {
		return "this is a chroot, and the kernel makes no user namespaces in one", chrootFix
	}
	if h.status("Seccomp") == "2" {
		return "a seccomp filter is on this process, as in a container, and may refuse them", h.containerAdvice("")
	}
	return "no limit is set, so this is a chroot, or a security module or an outer container refuses them", h.containerAdvice("")
}

const chrootFix = "start sbx outside of the chroot, or enter the directory with pivot_root, as containers do"

// appArmorFix loads the profile that doctor prints.
const appArmorFix = "load sbx's AppArmor profile: sbx doctor --apparmor | sudo tee /etc/apparmor.d/sbx >/dev/null && sudo apparmor_parser -r /etc/apparmor.d/sbx"

// apparmorAllows reports whether the process runs under a profile of its own, which is
// not the one that Ubuntu puts on whoever makes a user namespace without one.
func (h *Host) apparmorAllows() bool {
	label, ok := h.read("/proc/self/attr/apparmor/current")
	name, _, _ := strings.Cut(label, " ")
	return ok && name != "" && name != "unconfined" && name != "unprivileged_userns"
}

// chrooted reports whether no mount is at /, as mountinfo of proc(5) shows it in a
// chroot.
func (h *Host) chrooted() bool {
	mounts := h.mountPoints()
	return len(mounts) > 0 && !slices.Contains(mounts, "/")
}

func (h *Host) mountPoints() (points []string) {
	text, _ := h.read("/proc/self/mountinfo")
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 4 {
			points = append(points, fields[4])
		}
	}
	return points
}

// masked lists what is mounted over parts of /proc.
func (h *Host) masked() (over []string) {
	for _, p := range h.mountPoints() {
		if strings.HasPrefix(p, "/proc/") && p != "/proc/sys/fs/binfmt_misc" && !slices.Contains(over, p) {
			over = append(over, p)
		}
	}
	return over
}

func (h *Host) procAdvice() (why, next string) {
	over := h.masked()
	why = "the kernel mounts a new /proc only where the one that is there shows whole"
	if len(over) > 0 {
		why = fmt.Sprintf("/proc is masked here (%s), and the kernel then refuses a new one; the host's is never shown", strings.Join(over[:min(3, len(over))], ", "))
	}
	switch h.runtime() {
	case runtimeDocker:
		return why, "start the container with: docker run --security-opt systempaths=unconfined"
	case runtimePodman:
		return why, "start the container with: podman run --security-opt unmask=ALL"
	case runtimeKubernetes:
		return why, "in the pod set hostUsers: false and securityContext.procMount: Unmasked"
	case runtimeNone, runtimeUnknown:
	}
	return why, "unmount what lies over /proc, or unmask it: docker run --security-opt systempaths=unconfined, podman run --security-opt unmask=ALL, Kubernetes procMount: Unmasked"
}

func (h *Host) refusalAdvice() (why, next string) {
	var who []string
	if h.status("Seccomp") == "2" {
		who = append(who, "a seccomp filter is on this process")
	}
	if label, ok := h.read("/proc/self/attr/apparmor/current"); ok && label != "unconfined" && label != "" {
		who = append(who, "it runs under the AppArmor profile "+label)
	}
	if len(who) == 0 {
		return "a security module, a seccomp filter or an outer container refuses it", h.containerAdvice("")
	}
	return strings.Join(who, ", and "), h.containerAdvice("")
}

// runtime is what this process's container was started by, as far as it shows.
type runtime string

const (
	runtimeNone       runtime = ""
	runtimeDocker     runtime = "Docker"
	runtimePodman     runtime = "podman"
	runtimeKubernetes runtime = "Kubernetes"
	runtimeUnknown    runtime = "a container"
)

// runtime looks for the marks that the common runtimes leave.
func (h *Host) runtime() runtime {
	switch {
	case h.exists("/var/run/secrets/kubernetes.io") || h.exists("/run/secrets/kubernetes.io"):
		return runtimeKubernetes
	case h.exists("/run/.containerenv"):
		return runtimePodman
	case h.exists("/.dockerenv"):
		return runtimeDocker
	case len(h.masked()) > 0 || h.status("Seccomp") == "2":
		return runtimeUnknown
	}
	return runtimeNone
}

// The flags with which a container lets an ordinary user make sandboxes (docs/hosts.md).
const (
	dockerFlags     = "docker run --user 1000 --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
	podmanFlags     = "podman run --user 1000 --security-opt seccomp=unconfined --security-opt unmask=ALL --security-opt label=disable"
	kubernetesFlags = "in the pod: hostUsers: false, and in securityContext runAsUser: 1000, procMount: Unmasked, seccompProfile.type: Unconfined, appArmorProfile.type: Unconfined"
)

// containerAdvice is how to start the container that this is in; capabilities are flags
// for root in it, "" for an ordinary user.
func (h *Host) containerAdvice(capabilities string) string {
	switch r := h.runtime(); {
	case capabilities != "" && r != runtimeKubernetes:
		return "give the container " + capabilities + ", or start sbx in it as an ordinary user"
	case r == runtimeDocker:
		return "start the container with: " + dockerFlags
	case r == runtimePodman:
		return "start the container with: " + podmanFlags
	case r == runtimeKubernetes:
		return kubernetesFlags
	case r == runtimeUnknown:
		return "start the container with: " + dockerFlags + " (podman: unmask=ALL in place of systempaths=unconfined)"
	}
	return "run `sbx doctor` for what this host allows; docs/hosts.md has the hosts that are known"
}

// capabilityFlags are the flags of docker and podman for capabilities.
func capabilityFlags(names ...string) string {
	flags := make([]string, len(names))
	for i, name := range names {
		flags[i] = "--cap-add " + strings.TrimPrefix(name, "CAP_")
	}
	return strings.Join(flags, " ")
}

// RootAdvice is for uid 0 that lacks capabilities: their names, and what helps. missing
// is empty when none of those that a sandbox needs is lacking.
func (h *Host) RootAdvice() (missing []string, next string) {
	missing = missingCapabilities()
	if len(missing) == 0 {
		return nil, ""
	}
	const user = "start sbx as an ordinary user, as in: setpriv --reuid 1000 --regid 1000 --clear-groups sbx exec ..."
	switch h.runtime() {
	case runtimeNone:
		return missing, user
	case runtimeKubernetes:
		return missing, user + "; the pod then needs: " + kubernetesFlags
	case runtimeDocker, runtimePodman, runtimeUnknown:
	}
	return missing, user + "; the container then needs: " + strings.TrimPrefix(h.containerAdvice(""), "start the container with: ")
}
