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

// made knows the files of the sockets that listen inside. Binding a socket always
// makes its file, and nothing can bind to one that exists: so each of them was made
// inside. A file is held as long as it is known, so that its number means no other.
type made struct {
	most  int // files that are held
	mu    sync.Mutex
	files []file // the one that was connected to last is last
}

type file struct {
	fd int
	Inode
}

// openFile opens the file that a unix socket is bound to (unix(7), SIOCUNIXFILE). A
// socket with an abstract name, or none, has no file.
func openFile(socket int) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), requestUnixFile, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// keep takes over the descriptor of a file that is one of a socket made inside.
func (m *made) keep(fd int) {
	inode, _, err := inodeOf(fd)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil || m.find(inode) >= 0 {
		_ = unix.Close(fd)
		return
	}
	if len(m.files) >= m.most {
		m.makeRoom()
	}
	m.files = append(m.files, file{fd, inode})
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

// has reports whether a node, which is a file held open, is that of a socket made inside.
func (m *made) has(node int) bool {
	inode, _, err := inodeOf(node)
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.find(inode)
	if err != nil || at < 0 || !changedTogether(node, m.files[at].fd) {
		return false
	}
	f := m.files[at]
	m.files = append(slices.Delete(m.files, at, at+1), f)
	return true
}

func (m *made) find(i Inode) int {
	return slices.IndexFunc(m.files, func(f file) bool { return f.Inode == i })
}

// changedTogether tells two files apart that a file system of several others gives the
// same number: nobody can choose the time of a change. One file may change between
// two looks.
func changedTogether(a, b int) bool {
	for range 3 {
		_, first, err1 := inodeOf(a)
		_, second, err2 := inodeOf(b)
		if err1 == nil && err2 == nil && first.Ctim == second.Ctim {
			return true
		}
	}
	return false
}
