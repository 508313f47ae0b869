package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Why no group can be made for a controller.
var (
	ErrNone         = errors.New("no cgroup hierarchy with this controller is mounted")
	ErrNotDelegated = errors.New("the cgroup of this process is not delegated to its user")
)

// place is a directory in which groups can be made that hold the controllers.
type place struct {
	dir         string
	unified     bool // cgroup version 2
	controllers []string
	tell        []string // controllers that the directory does not hand on yet
}

// hierarchy is a mounted cgroup file system and where in it this process is.
type hierarchy struct {
	mount, own  string // directories; own is mount or below it
	unified     bool
	controllers []string // of version 1
}

// find chooses a place for every controller that is wanted, and says why there is none.
func find(want []string) ([]place, map[string]error) {
	mounts, err1 := os.ReadFile("/proc/self/mountinfo")
	own, err2 := os.ReadFile("/proc/self/cgroup")
	if err := errors.Join(err1, err2); err != nil {
		return nil, all(want, fmt.Errorf("looking for cgroups: %w", err))
	}
	return choose(hierarchies(string(mounts), string(own)), want)
}

func all(want []string, err error) map[string]error {
	out := map[string]error{}
	for _, c := range want {
		out[c] = err
	}
	return out
}

// hierarchies joins /proc/self/mountinfo and /proc/self/cgroup (proc(5), cgroups(7)).
func hierarchies(mounts, own string) []hierarchy {
	var out []hierarchy
	for line := range strings.Lines(mounts) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		head, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(head) < 5 || len(tail) < 3 || tail[0] != "cgroup" && tail[0] != "cgroup2" {
			continue
		}
		h := hierarchy{mount: unescape(head[4]), unified: tail[0] == "cgroup2"}
		options := strings.Split(tail[2], ",")
		at, found := ownPath(own, h.unified, options)
		below, inside := within(at, unescape(head[3]))
		if !found || !inside {
			continue // it is mounted from a part of the hierarchy that this process is not in
		}
		h.own = path.Join(h.mount, below)
		if !h.unified {
			h.controllers = options
		}
		out = append(out, h)
	}
	return out
}

// ownPath finds the line of /proc/self/cgroup that belongs to a mount.
func ownPath(own string, unified bool, options []string) (string, bool) {
	for line := range strings.Lines(own) {
		fields := strings.SplitN(strings.TrimRight(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		first, _, _ := strings.Cut(fields[1], ",")
		if unified && fields[1] == "" || !unified && first != "" && slices.Contains(options, first) {
			return fields[2], true
		}
	}
	return "", false
}

func within(p, root string) (string, bool) {
	if root == "/" {
		return p, true
	}
	below, ok := strings.CutPrefix(p, root)
	return below, ok && (below == "" || below[0] == '/')
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

func choose(mounted []hierarchy, want []string) ([]place, map[string]error) {
	var places []place
	missing := all(want, ErrNone)
	for _, h := range mounted {
		var open []string
		for _, c := range want {
			if missing[c] != nil {
				open = append(open, c)
			}
		}
		for _, p := range h.places(open) {
			for _, c := range p.controllers {
				if missing[c] = ErrNotDelegated; p.dir != "" {
					delete(missing, c)
				}
			}
			if p.dir != "" {
				places = append(places, p)
			}
		}
	}
	return places, missing
}

// places are where groups of this hierarchy can be made; one without a directory
// stands for a controller that is there and not ours to use.
func (h hierarchy) places(want []string) []place {
	if h.unified {
		return h.unifiedPlaces(want)
	}
	var held []string
	for _, c := range want {
		if slices.Contains(h.controllers, c) {
			held = append(held, c)
		}
	}
	if len(held) == 0 {
		return nil
	}
	if !mayMake(h.own, unix.CGROUP_SUPER_MAGIC) {
		return []place{{controllers: held}}
	}
	return []place{{dir: h.own, controllers: held}}
}

// unifiedPlaces goes up from the own group: a group that holds processes cannot hand
// controllers on, so it is mostly a neighbour's place. Moving a process needs the right
// to write the processes of the nearest common group, which is the place itself.
func (h hierarchy) unifiedPlaces(want []string) []place {
	var out []place
	for _, c := range want {
		if !slices.Contains(words(h.mount, "cgroup.controllers"), c) {
			continue
		}
		p := h.above(c)
		p.controllers = []string{c}
		out = append(out, p)
	}
	return merge(out)
}

// above returns the nearest group that hands a controller on, else the nearest that
// can be told to; without a directory if there is neither.
func (h hierarchy) above(controller string) place {
	var told place
	for dir := h.own; ; dir = path.Dir(dir) {
		if mayMake(dir, unix.CGROUP2_SUPER_MAGIC) && writable(path.Join(dir, "cgroup.procs")) {
			switch {
			case slices.Contains(words(dir, subtree), controller):
				return place{dir: dir, unified: true}
			case told.dir == "" && canHandOn(dir, controller):
				told = place{dir: dir, unified: true, tell: []string{controller}}
			}
		}
		if dir == h.mount || len(dir) <= len(h.mount) {
			return told
		}
	}
}

// subtree is the file of a version 2 group that says which controllers its children get.
const subtree = "cgroup.subtree_control"

// canHandOn reports whether a group has the controller and no processes, which would
// be in the way. Only the root, which has no events, may have both.
func canHandOn(dir, controller string) bool {
	_, err := os.Stat(path.Join(dir, "cgroup.events"))
	root := errors.Is(err, os.ErrNotExist)
	return slices.Contains(words(dir, "cgroup.controllers"), controller) && writable(path.Join(dir, subtree)) &&
		(root || len(words(dir, "cgroup.procs")) == 0)
}

// merge makes one place of those in the same directory.
func merge(places []place) []place {
	var out []place
	for _, p := range places {
		i := slices.IndexFunc(out, func(have place) bool { return have.dir == p.dir && p.dir != "" })
		if i < 0 {
			out = append(out, p)
			continue
		}
		out[i].controllers = append(out[i].controllers, p.controllers...)
		out[i].tell = append(out[i].tell, p.tell...)
	}
	return out
}

func words(dir, name string) []string {
	text, err := os.ReadFile(path.Join(dir, name))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

// mayMake reports whether this process may make groups in a directory that really is
// of a cgroup file system.
func mayMake(dir string, magic int64) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && int64(fs.Type) == magic && writable(dir) //nolint:unconvert // int32 on some architectures
}

func writable(name string) bool {
	return unix.Faccessat(unix.AT_FDCWD, name, unix.W_OK, unix.AT_EACCESS) == nil
}
