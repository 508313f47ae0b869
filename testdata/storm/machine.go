package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// machine is what a storm may not change.
type machine struct {
	processes []string // that belong to the storm
	mounts    []string
	listeners []string // TCP, in this network namespace
	groups    []string // control groups
}

// lookAtMachine finds what there is; a process belongs to the storm when its working
// directory, arguments or environment name the storm's directory.
func lookAtMachine(dir string) (m machine, err error) {
	if m.processes, err = processesOf(dir); err != nil {
		return m, err
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return m, err
	}
	m.mounts = strings.Split(string(text), "\n")
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return m, err
		}
		for line := range strings.Lines(string(text)) {
			const listening = "0A"
			if f := strings.Fields(line); len(f) > 3 && f[3] == listening {
				m.listeners = append(m.listeners, f[1])
			}
		}
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			m.groups = append(m.groups, path)
		}
		return nil // what vanishes, or cannot be read, is none of the storm's
	})
	return m, err
}

func processesOf(dir string) ([]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		if e.Name()[0] < '0' || e.Name()[0] > '9' || e.Name() == self() {
			continue
		}
		proc := filepath.Join("/proc", e.Name())
		cwd, _ := os.Readlink(filepath.Join(proc, "cwd"))
		args, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
		env, _ := os.ReadFile(filepath.Join(proc, "environ"))
		if strings.HasPrefix(cwd, dir) || bytes.Contains(args, []byte(dir)) || bytes.Contains(env, []byte(dir)) {
			found = append(found, e.Name()+" "+string(bytes.ReplaceAll(args, []byte{0}, []byte{' '})))
		}
	}
	return found, nil
}

func self() string {
	link, err := os.Readlink("/proc/self")
	if err != nil {
		return ""
	}
	return link
}
