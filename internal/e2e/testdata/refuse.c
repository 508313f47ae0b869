// Starts a command under a filter that refuses system calls with EPERM, as the
// profiles of container runtimes do: refuse NUMBER[,NUMBER]... COMMAND...
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct sock_filter program[64];
	struct sock_fprog filter = { 0, program };
	char *at = argc > 2 ? argv[1] : "";

	program[filter.len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	while (*at && filter.len < 60) {
		program[filter.len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)strtoul(at, &at, 10), 0, 1);
		program[filter.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
		at += *at == ',';
	}
	program[filter.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (argc < 3 || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) < 0) {
		perror("refuse");
		return 99;
	}
	execvp(argv[2], argv + 2);
	perror(argv[2]);
	return 98;
}
