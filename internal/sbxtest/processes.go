package sbxtest

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// Process is a living process that a command has left behind, or is.
type Process struct {
	PID     int
	Command string // argv joined by spaces, or the kernel's name for it
}

// Processes is all living descendants of the test process: the commands it
// started and whatever they left behind, however it detached itself.
func Processes(t testing.TB) []Process {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatalf("listing processes: %v", err)
	}
	children := map[int][]int{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if parent, alive := parentOf(pid); alive {
			children[parent] = append(children[parent], pid)
		}
	}
	return descendants(children, os.Getpid())
}

func descendants(children map[int][]int, of int) []Process {
	var all []Process
	for _, pid := range children[of] {
		all = append(all, Process{PID: pid, Command: commandOf(pid)})
		all = append(all, descendants(children, pid)...)
	}
	return all
}

// parentOf reads the fourth field of /proc/PID/stat; zombies are not alive.
func parentOf(pid int) (parent int, alive bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false // it has just ended
	}
	_, behindName, found := strings.Cut(string(stat), ") ")
	fields := strings.Fields(behindName)
	if !found || len(fields) < 2 || fields[0] == "Z" || fields[0] == "X" {
		return 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return parent, err == nil
}

func commandOf(pid int) string {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
}
