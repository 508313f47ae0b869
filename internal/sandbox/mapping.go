package sandbox

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// firstFreeID is the lowest host id that neither distributions nor container
// managers hand out by default (systemd's UIDs-GIDs table ends below it).
const firstFreeID = 0x70000000

// HostMapping chooses who the command of a privileged caller is on the host: an id
// that no account, subordinate range or file belongs to. It works inside another
// user namespace, too, as far as that one has ids to give.
func HostMapping(uid, gid int) (*Mapping, error) {
	kuid, err := freeID("/proc/self/uid_map", "/etc/subuid")
	if err != nil {
		return nil, fmt.Errorf("choosing a uid for the command: %w", err)
	}
	kgid, err := freeID("/proc/self/gid_map", "/etc/subgid")
	if err != nil {
		return nil, fmt.Errorf("choosing a gid for the command: %w", err)
	}
	return &Mapping{KUID: kuid, KGID: kgid, FileUID: uint32(uid), FileGID: uint32(gid)}, nil //nolint:gosec // ids are 32 bits
}

// OnlyOwnID reports whether this user namespace has no id but the caller's own: its
// root is an ordinary user outside.
func OnlyOwnID() bool {
	mapped, err := readRanges("/proc/self/uid_map", " ", 0)
	return err == nil && len(mapped) == 1 && mapped[0].count == 1
}

// overflowUID is what files show whose owner has no id here (proc(5), overflowuid).
const overflowUID = 65534

// RootUID is the uid that root's own files show: 0, but the overflow uid in a user
// namespace that has no id but the caller's. Sandboxed code cannot make such files.
func RootUID() int {
	if OnlyOwnID() {
		return overflowUID
	}
	return 0
}

type idRange struct{ first, count uint64 }

func (r idRange) has(id uint64) bool { return id >= r.first && id < r.first+r.count }

// freeID returns the first id from firstFreeID on that is mapped here and lies in
// no subordinate range, else the highest id that is mapped.
func freeID(mapFile, subFile string) (uint32, error) {
	mapped, err := readRanges(mapFile, " ", 0)
	if err != nil {
		return 0, err
	}
	taken, _ := readRanges(subFile, ":", 1) // a host without the file has no ranges
	id := uint64(firstFreeID)
	for again := true; again; {
		again = false
		for _, r := range taken {
			if r.has(id) {
				id, again = r.first+r.count, true
			}
		}
	}
	var highest uint64
	for _, r := range mapped {
		if r.has(id) && id < 1<<32-2 {
			return uint32(id), nil
		}
		highest = max(highest, r.first+r.count-1)
	}
	if highest < 1 || highest >= 1<<32-1 {
		return 0, fmt.Errorf("%s has no id but 0", mapFile)
	}
	return uint32(highest), nil
}

// readRanges reads lines whose fields from column on are a first id and, last, a count.
func readRanges(name, separator string, column int) ([]idRange, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var out []idRange
	for scan := bufio.NewScanner(file); scan.Scan(); {
		fields := strings.Fields(strings.ReplaceAll(scan.Text(), separator, " "))
		if len(fields) != 3 {
			continue
		}
		first, err1 := strconv.ParseUint(fields[column], 10, 32)
		count, err2 := strconv.ParseUint(fields[2], 10, 33)
		if err1 == nil && err2 == nil && count > 0 {
			out = append(out, idRange{first, count})
		}
	}
	return out, nil
}
