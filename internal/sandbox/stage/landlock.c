// The second wall around what the command may change: the kernel's own record of
// which directories are writable, which no mount that somebody forgets undoes
// (landlock(7)). Raw system calls: the headers of the build machine may be older.
#define _GNU_SOURCE
#include "stage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif

struct ruleset {
	uint64_t fs, net, scoped;
};

struct __attribute__((packed)) beneath {
	uint64_t allowed;
	int32_t parent;
};

// Rights to change files, by their bit: write 1, remove 4 and 5, make 6 to 12, move to
// another directory 13. Reading is left to the mount tree, and so is truncation by name
// (14): the kernel would look at every file that is opened, 0.9 us each.
#define OF_FILES (UINT64_C(1) << 1)
#define OF_DIRECTORIES (UINT64_C(0x3ff) << 4)

static int permit(int rules, uint64_t handled, const char *path)
{
	struct beneath rule = { handled, open(path, O_PATH | O_CLOEXEC) };
	struct stat st;
	int err;

	if (rule.parent < 0)
		return errno == ENOENT ? 0 : -1;
	if (fstat(rule.parent, &st) == 0 && !S_ISDIR(st.st_mode))
		rule.allowed &= OF_FILES;
	err = (int)syscall(SYS_landlock_add_rule, rules, 1 /* beneath a path */, &rule, 0);
	close(rule.parent);
	return err;
}

int sbx_landlock(uint32_t abi, char **writable)
{
	// ABI 2 can permit moves between directories, which 1 always refuses; 6 keeps signals
	// and abstract sockets (bits 0, 1) to what is restricted.
	struct ruleset rules = { OF_FILES | OF_DIRECTORIES, 0, abi >= 6 ? 3 : 0 };
	int fd, i;

	fd = (int)syscall(SYS_landlock_create_ruleset, &rules, abi >= 6 ? sizeof rules : sizeof rules.fs, 0);
	if (fd < 0)
		return -1;
	for (i = 0; writable[i]; i++)
		if (permit(fd, rules.fs, writable[i]) < 0)
			return -1;
	if (syscall(SYS_landlock_restrict_self, fd, 0) < 0)
		return -1;
	return close(fd);
}
