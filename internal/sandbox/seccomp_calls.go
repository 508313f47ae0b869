package sandbox

// permitted are the system calls that the command may make. What is not here does
// not exist: it answers ENOSYS, as on an older kernel, so that libraries fall back.
// Some are bounded further by their arguments (refusals).
var permitted = [][]string{
	// Files by descriptor.
	{
		"read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2", "pwritev2", "lseek", "close", "close_range",
		"dup", "dup2", "dup3", "fcntl", "flock", "fstat", "fstatfs", "fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "ftruncate",
		"fallocate", "fadvise64", "readahead", "sendfile", "copy_file_range", "splice", "tee", "vmsplice", "ioctl", "getdents", "getdents64",
		"fchdir", "fchmod", "fchown", "pipe", "pipe2", "cachestat",
	},
	// Files by name.
	{
		"open", "openat", "creat", "stat", "lstat", "newfstatat", "statx", "statfs", "access", "faccessat", "faccessat2", "readlink", "readlinkat",
		"mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat",
		"mknod", "mknodat", "chmod", "fchmodat", "fchmodat2", "chown", "lchown", "fchownat", "truncate", "chdir", "getcwd", "umask",
		"utime", "utimes", "futimesat", "utimensat",
		"getxattr", "lgetxattr", "fgetxattr", "listxattr", "llistxattr", "flistxattr", "setxattr", "lsetxattr", "fsetxattr",
		"removexattr", "lremovexattr", "fremovexattr",
	},
	// Waiting, events and asynchronous input and output.
	{
		"poll", "ppoll", "select", "pselect6", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2",
		"eventfd", "eventfd2", "signalfd", "signalfd4", "timerfd_create", "timerfd_settime", "timerfd_gettime",
		"inotify_init", "inotify_init1", "inotify_add_watch", "inotify_rm_watch",
		"io_setup", "io_destroy", "io_submit", "io_cancel", "io_getevents", "io_pgetevents",
	},
	// Sockets.
	{
		"socket", "socketpair", "bind", "listen", "accept", "accept4", "connect", "shutdown", "getsockname", "getpeername", "getsockopt", "setsockopt",
		"sendto", "recvfrom", "sendmsg", "recvmsg", "sendmmsg", "recvmmsg",
	},
	// Memory.
	{
		"mmap", "munmap", "mprotect", "mremap", "msync", "madvise", "mincore", "brk", "mlock", "mlock2", "munlock", "mlockall", "munlockall",
		"memfd_create", "mseal", "pkey_alloc", "pkey_free", "pkey_mprotect", "map_shadow_stack", "membarrier",
	},
	// Messages between processes: the namespace is the run's own.
	{
		"shmget", "shmat", "shmdt", "shmctl", "semget", "semop", "semtimedop", "semctl", "msgget", "msgsnd", "msgrcv", "msgctl",
		"mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr",
	},
	// Processes and threads. Tracing reaches only what the command itself could be:
	// the init cannot be traced, and the kernel looks at the filter after a tracer.
	{
		"clone", "fork", "vfork", "execve", "execveat", "exit", "exit_group", "wait4", "waitid", "unshare", "ptrace",
		"getpid", "getppid", "gettid", "getpgid", "getpgrp", "setpgid", "getsid", "setsid", "pidfd_open", "pidfd_send_signal",
		"prctl", "arch_prctl", "set_tid_address", "set_robust_list", "get_robust_list", "rseq", "personality", "seccomp",
		"futex", "futex_waitv", "futex_wait", "futex_wake", "futex_requeue", "restart_syscall",
		"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self",
	},
	// Signals.
	{
		"kill", "tkill", "tgkill", "rt_sigaction", "rt_sigprocmask", "rt_sigpending", "rt_sigsuspend", "rt_sigtimedwait", "rt_sigreturn",
		"rt_sigqueueinfo", "rt_tgsigqueueinfo", "sigaltstack", "pause", "alarm", "getitimer", "setitimer",
	},
	// Who it is. The user namespace has one id: there is nothing to become.
	{
		"getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid", "getgroups", "capget", "capset",
		"setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid", "setfsuid", "setfsgid", "setgroups",
	},
	// Scheduling and limits.
	{
		"sched_yield", "sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_setparam", "sched_getscheduler", "sched_setscheduler",
		"sched_getattr", "sched_setattr", "sched_get_priority_min", "sched_get_priority_max", "sched_rr_get_interval", "getpriority", "setpriority",
		"ioprio_get", "ioprio_set", "getcpu", "getrlimit", "setrlimit", "prlimit64", "getrusage", "times", "sysinfo", "uname",
	},
	// Time and randomness.
	{
		"time", "gettimeofday", "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep",
		"timer_create", "timer_settime", "timer_gettime", "timer_getoverrun", "timer_delete", "getrandom",
	},
}

// privileged are calls that an ordinary process may not make on an ordinary machine:
// programs expect EPERM of them, and say so better than that a kernel lacks them.
var privileged = []string{
	"mount", "umount2", "pivot_root", "chroot", "setns", "acct", "syslog", "quotactl", "quotactl_fd", "swapon", "swapoff", "reboot",
	"kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "iopl", "ioperm", "vhangup", "open_by_handle_at",
	"settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname",
}

// personalities are what the command may make of itself: what it is, another name of
// the machine, and addresses that stay the same, as debuggers and sanitizers want it
// (personality(2)). The second asks only.
var personalities = []uint64{0, low32, perLinux32, addressNoRandomize, perLinux32 | addressNoRandomize}

// The kernel's PER_LINUX32 and ADDR_NO_RANDOMIZE.
const perLinux32, addressNoRandomize = 0x8, 0x40000

// newCalls are calls that older libseccomp versions do not know by name; their
// numbers are the same on every architecture (asm-generic/unistd.h).
var newCalls = map[string]int32{
	"cachestat": 451, "fchmodat2": 452, "map_shadow_stack": 453, "futex_wake": 454, "futex_wait": 455, "futex_requeue": 456, "mseal": 462,
}
