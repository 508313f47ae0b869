// Package sandbox turns a run's plan into a libcontainer container: the mount
// tree, the seccomp filter, the configuration and the container itself. It is the
// only package that knows libcontainer and libseccomp.
package sandbox

// Kind is what one entry of the mount tree does.
type Kind string

// The kinds of entries. Targets are absolute paths inside the sandbox.
const (
	Directory Kind = "directory" // an empty directory of the read-only root
	Symlink   Kind = "symlink"   // Source is the link's text
	Tmpfs     Kind = "tmpfs"     // private memory, writable; Owned gives it to the command
	Bind      Kind = "bind"      // Source of the host at Target, with everything mounted below it
	Mask      Kind = "mask"      // an empty read-only file or directory over Target
	Etc       Kind = "etc"       // the host's /etc with Files on top, read-only
	Dev       Kind = "dev"       // a minimal /dev with a private devpts and shm
	Text      Kind = "text"      // a file of private memory with Source as its content
	Socket    Kind = "socket"    // a unix socket of the host, to connect to
)

// Entry is one step of building the mount tree.
type Entry struct {
	Kind     Kind              `json:"kind"`
	Source   string            `json:"source,omitempty"`
	Target   string            `json:"target"`
	Writable bool              `json:"writable,omitempty"` // Bind: else read-only
	Owned    bool              `json:"owned,omitempty"`    // Tmpfs: the command's; Bind: the caller's files are the command's (idmapped as root)
	Mode     uint32            `json:"mode,omitempty"`
	Files    map[string]string `json:"files,omitempty"` // Etc: path below /etc to content; a leading "-> " makes it a symlink
}

// Stdio says what the command's first three descriptors are. A descriptor that is
// neither is one of the pipes that travel with the specification.
type Stdio struct {
	TTY  [3]bool `json:"tty"`  // the private pty
	Null [3]bool `json:"null"` // the sandbox's own /dev/null
	Rows uint16  `json:"rows,omitempty"`
	Cols uint16  `json:"cols,omitempty"`
}

// HasTTY reports whether a pty has to be opened.
func (s Stdio) HasTTY() bool { return s.TTY[0] || s.TTY[1] || s.TTY[2] }

// Probe is where the init proves the floor before the command may start.
type Probe struct {
	V4    [4]byte  `json:"v4"`
	V6    [16]byte `json:"v6"`
	Port  uint16   `json:"port"`
	Nonce string   `json:"nonce"` // 32 hexadecimal digits
}

// Spec is everything that the runner needs to start one command.
type Spec struct {
	Run     string   `json:"run"`
	UID     uint32   `json:"uid"` // what the command sees
	GID     uint32   `json:"gid"`
	Mapping *Mapping `json:"mapping,omitempty"` // as root only; must be what the runner prepared
	Tree    []Entry  `json:"tree"`
	Workdir string   `json:"workdir"`
	Argv    []string `json:"argv"`
	Env     []string `json:"env"`
	Stdio   Stdio    `json:"stdio"`
	Probe   Probe    `json:"probe"`
	// UserNamespaces lets the command make its own.
	UserNamespaces bool `json:"user_namespaces,omitempty"`
	// Landlock is the version to restrict the command with, 0 for not at all.
	Landlock uint32         `json:"landlock,omitempty"`
	Limits   ResourceLimits `json:"limits,omitzero"`
	// PrivateSize bounds each private file system in memory, in bytes; 0: half of the machine's.
	PrivateSize uint64 `json:"private_size,omitempty"`
	// WaitChildren makes the run last until the last process inside has ended.
	WaitChildren bool `json:"wait_children,omitempty"`
}

// ResourceLimits are the command's, and so of each process that it starts
// (setrlimit(2)). Zero leaves the caller's; none is ever raised.
type ResourceLimits struct {
	Files     uint64 `json:"files,omitempty"`     // descriptors
	FileSize  uint64 `json:"file_size,omitempty"` // bytes
	Processes uint64 `json:"processes,omitempty"` // of its uid, in its user namespace
	Data      uint64 `json:"data,omitempty"`      // bytes of private writable memory
}

// Mapping is how a run that root started keeps away from root: the command is
// KUID:KGID on the host, and files of FileUID:FileGID appear as its own in
// idmapped mounts.
type Mapping struct {
	KUID    uint32 `json:"kuid"`
	KGID    uint32 `json:"kgid"`
	FileUID uint32 `json:"file_uid"`
	FileGID uint32 `json:"file_gid"`
}
