// trace starts a child that makes a harmless system call, stops it there as a
// debugger does, and puts another one in its place: the number and arguments that
// argv lists. What came of that one is printed: ok, "error" or "signal" and a number.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static int stopped(pid_t child)
{
	int status;

	if (waitpid(child, &status, 0) != child)
		return perror("waitpid"), exit(1), 0;
	if (WIFSTOPPED(status))
		return 1;
	if (WIFSIGNALED(status))
		printf("signal %d\n", WTERMSIG(status));
	return 0;
}

int main(int argc, char **argv)
{
	struct user_regs_struct regs;
	int status;
	pid_t child = fork();

	if (child == 0) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		syscall(SYS_getppid);
		_exit(0);
	}
	if (!stopped(child))
		return perror("tracing"), 1;
	do { // the end of raise itself may come first
		if (ptrace(PTRACE_SYSCALL, child, 0, 0) < 0 || !stopped(child) || ptrace(PTRACE_GETREGS, child, 0, &regs) < 0)
			return perror("stopping at a call"), 1;
	} while (regs.orig_rax != SYS_getppid);
	regs.orig_rax = strtoull(argv[1], NULL, 0);
	regs.rdi = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
	regs.rsi = argc > 3 ? strtoull(argv[3], NULL, 0) : 0;
	regs.rdx = argc > 4 ? strtoull(argv[4], NULL, 0) : 0;
	if (ptrace(PTRACE_SETREGS, child, 0, &regs) < 0 || ptrace(PTRACE_SYSCALL, child, 0, 0) < 0)
		return perror("changing the call"), 1;
	if (!stopped(child))
		return 0;
	if (ptrace(PTRACE_GETREGS, child, 0, &regs) < 0)
		return perror("reading the result"), 1;
	// A call that kills is seen to end first: the signal comes on the way out.
	if (ptrace(PTRACE_CONT, child, 0, 0) < 0 || waitpid(child, &status, 0) != child)
		return perror("waiting for the end"), 1;
	if (WIFSIGNALED(status))
		printf("signal %d\n", WTERMSIG(status));
	else if ((long)regs.rax < 0)
		printf("error %ld\n", -(long)regs.rax);
	else
		puts("ok");
	return 0;
}
