package notify

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Inode says which file of the machine something is, whatever its paths.
type Inode struct{ Device, Number uint64 }

func inodeOf(fd int) (Inode, unix.Stat_t, error) {
	var s unix.Stat_t
	err := unix.Fstat(fd, &s)
	return Inode{s.Dev, s.Ino}, s, err
}

// maxMade bounds how many sockets' files are held, each by a descriptor.
const maxMade = 1024

// made knows the files of the sockets that listen inside. binding a socket always
// makes its file, and nothing can bind to one that exists: so each of them was made
// inside. A file is held as long as it is known, so that its number means no other.
type made struct {
	mu    sync.Mutex
	files []file // the one that was connected to last is last
}

type file struct {
	fd int
	Inode
}

// add notes the file of a socket that is about to listen, if it has one.
func (m *made) add(socket int) {
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), requestUnixFile, 0)
	if errno != 0 {
		return // no file: an abstract name, or not bound
	}
	inode, _, err := inodeOf(int(fd))
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil || m.find(inode) >= 0 {
		_ = unix.Close(int(fd))
		return
	}
	if len(m.files) >= maxMade {
		m.makeRoom()
	}
	m.files = append(m.files, file{int(fd), inode})
}

// makeRoom lets go of files that no path leads to any more, else of the one that was
// not connected to for longest.
func (m *made) makeRoom() {
	before := len(m.files)
	m.files = slices.DeleteFunc(m.files, func(f file) bool {
		_, stat, err := inodeOf(f.fd)
		gone := err != nil || stat.Nlink == 0
		if gone {
			_ = unix.Close(f.fd)
		}
		return gone
	})
	if len(m.files) == before {
		_ = unix.Close(m.files[0].fd)
		m.files = m.files[1:]
	}
}

// has reports whether a file, which the caller holds, is that of a socket made inside.
func (m *made) has(i Inode) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.find(i)
	if at < 0 {
		return false
	}
	f := m.files[at]
	m.files = append(slices.Delete(m.files, at, at+1), f)
	return true
}

func (m *made) find(i Inode) int {
	return slices.IndexFunc(m.files, func(f file) bool { return f.Inode == i })
}
