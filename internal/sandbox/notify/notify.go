// Package notify makes the connections of a sandbox for it: sockets of the internet go
// where they ask to, unix sockets only to what was made inside or a profile names.
package notify

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Config is what a server needs to know of its sandbox.
type Config struct {
	Init    int       // pid of the sandbox's first process
	Command *Identity // nil where the command has this process's own ids
	Host    []Inode   // sockets of the host that may be connected to, as this process's user
}

// Server answers the calls of one sandbox.
type Server struct {
	config Config
	listen listener
	inside func() (*inside, error)
	made   made
	flags  sync.Mutex    // see attempt
	room   chan struct{} // one for each connection that has to wait
	failed chan error
}

// Bounds of what holds descriptors of this process: sockets' files, one each, and
// connections that wait, up to three. Neither may use up what it can have.
const (
	maxMade    = 1024
	maxWaiting = 4096
)

// share is at most most, and at most a part of this process's descriptors.
func share(most, part int) int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil || l.Cur/uint64(part) >= uint64(most) { //nolint:gosec // both are small
		return most
	}
	return int(l.Cur) / part //nolint:gosec // smaller than most
}

// Serve answers what the kernel asks through the listener, a descriptor of
// seccomp_unotify(2), until nobody is left inside. An error means that calls would
// stay without an answer.
func Serve(asks *os.File, c Config) error {
	s := &Server{
		config: c, listen: listener(asks.Fd()),
		inside: sync.OnceValues(func() (*inside, error) { return enter(c.Init, c.Command) }),
		made:   made{most: share(maxMade, 4)},
		room:   make(chan struct{}, share(maxWaiting, 8)), failed: make(chan error, 1),
	}
	defer asks.Close()
	s.listen.wakeHere()
	go s.receive()
	if err := <-s.failed; !errors.Is(err, errOver) {
		return fmt.Errorf("answering for the sandbox's sockets: %w", err)
	}
	return nil
}

func (s *Server) fail(err error) {
	select {
	case s.failed <- err:
	default: // it failed before
	}
}

func (s *Server) receive() {
	for {
		n, err := s.listen.receive()
		if err != nil {
			s.fail(err)
			return
		}
		c := caller{s.listen, n.id, int(n.pid)}
		switch n.nr {
		case unix.SYS_CONNECT:
			s.connect(c, n.args)
		case unix.SYS_LISTEN:
			s.listens(c, n.args[0])
		default:
			c.answer(unix.ENOSYS)
		}
	}
}

// listens notes the file of a unix socket, then lets the kernel do it: whatever the
// descriptor may mean by then, the file was made inside.
func (s *Server) listens(c caller, fd uint64) {
	if socket, err := c.take(fd); err == nil {
		if c.waits() && family(socket) == unix.AF_UNIX {
			if file, err := openFile(socket); err == nil {
				s.made.keep(file)
			}
		}
		_ = unix.Close(socket)
	}
	s.listen.pass(c.id)
}

// connect is connect(2) on copies of its arguments.
func (s *Server) connect(c caller, args [6]uint64) {
	socket, err := c.take(args[0])
	if err != nil {
		c.answer(errnoOf(err))
		return
	}
	a, err := c.read(args[1], args[2])
	kind := family(socket)
	switch {
	case !c.waits(): // its pid may be another's by now
	case err != nil:
		c.answer(errnoOf(err))
	case kind == 0:
		c.answer(unix.ENOTSOCK)
	case kind == unix.AF_INET || kind == unix.AF_INET6:
		if s.internet(c, socket, &a) {
			return
		}
	case s.enter():
		go s.local(c, socket, a)
		return
	default:
		c.answer(unix.EAGAIN)
	}
	_ = unix.Close(socket)
}

// family returns a socket's, 0 for what is none.
func family(fd int) int {
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return 0
	}
	return family
}

func errnoOf(err error) unix.Errno {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	return unix.EIO
}

func (s *Server) enter() bool {
	select {
	case s.room <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s *Server) leave() { <-s.room }

// internet connects where the caller wants: the network namespace and its rules are
// what holds it. kept means that the socket is still needed.
func (s *Server) internet(c caller, socket int, a *address) (kept bool) {
	errno, blocks := s.attempt(socket, a)
	if !blocks || errno != unix.EALREADY {
		c.answer(errno)
		return false
	}
	if !s.enter() {
		c.answer(unix.EAGAIN)
		return false
	}
	to := *a
	go func() {
		defer s.leave()
		defer unix.Close(socket)
		c.wait(socket, unix.EALREADY, unix.EINPROGRESS, func() unix.Errno {
			errno, _ := s.attempt(socket, &to)
			return errno
		})
	}()
	return true
}

// local connects a socket of the machine: to an abstract name, which is of the
// sandbox's own network namespace, or to a file that was made inside.
func (s *Server) local(c caller, socket int, a address) {
	defer s.leave()
	defer unix.Close(socket)
	inside, err := s.inside()
	if err != nil {
		s.fail(err)
		return
	}
	run := inside.do
	if name, ok := a.path(); ok && family(socket) == unix.AF_UNIX {
		node, host, errno := s.vet(c, inside, name)
		if errno != 0 {
			c.answer(errno)
			return
		}
		defer unix.Close(node)
		a = throughDescriptor("", node)
		if host {
			run, a = func(f func()) { f() }, throughDescriptor("/proc/", node)
		}
	}
	attempt := func() (errno unix.Errno, blocks bool) {
		run(func() { errno, blocks = s.attempt(socket, &a) })
		return errno, blocks
	}
	if errno, blocks := attempt(); !blocks || errno != unix.EAGAIN {
		c.answer(errno)
		return
	}
	c.wait(socket, unix.EAGAIN, unix.EAGAIN, func() unix.Errno { errno, _ := attempt(); return errno })
}

// vet opens the file that a name leads to and refuses it unless it is a socket made
// inside, or one of the host's that may be used. The file stays the same from here on,
// whatever becomes of the name.
func (s *Server) vet(c caller, inside *inside, name string) (node int, host bool, errno unix.Errno) {
	node, err := s.open(c, inside, name)
	if err != nil {
		return -1, false, errnoOf(err)
	}
	inode, stat, err := inodeOf(node)
	switch {
	case err != nil:
		errno = errnoOf(err)
	case stat.Mode&unix.S_IFMT != unix.S_IFSOCK:
		errno = unix.ECONNREFUSED
	case s.made.has(node):
	case s.ofHost(inode):
		host = true
	default:
		errno = unix.EACCES
	}
	if errno != 0 {
		_ = unix.Close(node)
	}
	return node, host, errno
}

// open finds a name as the caller would.
func (s *Server) open(c caller, inside *inside, name string) (int, error) {
	dir, rest, err := c.directory(name)
	if err == nil && !c.waits() {
		err = unix.ESRCH
	}
	if err != nil || rest == "" {
		return dir, err
	}
	node, err := inside.find(dir, rest)
	if dir >= 0 {
		_ = unix.Close(dir)
	}
	return node, err
}

func (s *Server) ofHost(i Inode) bool {
	return slices.Contains(s.config.Host, i)
}
