// probe makes the system calls that standard input lists, one a line:
//
//	NUMBER ARGUMENT...
//
// NUMBER is decimal, or "int80:NUMBER" for the 32-bit entry. An argument is a
// number as strtoull(3) reads it, "text for a pointer to text, * for a pointer
// to a page of zeros, @path for a descriptor of the file, which is made. Each
// call is made in a child of its own, as it may kill or change the caller. What
// came of it is a line of standard output: ok, "error" or "signal" and a number.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char zeros[4096] __attribute__((aligned(4096)));

static long argument(const char *word) {
	switch (word[0]) {
	case '"':
		return (long)(word + 1);
	case '*':
		return (long)zeros;
	case '@':
		return open(word + 1, O_RDWR | O_CREAT, 0644);
	}
	return (long)strtoull(word, NULL, 0);
}

static long call32(long number) {
	long result = -ENOSYS;
#ifdef __x86_64__
	__asm__ volatile("int $0x80" : "=a"(result) : "a"(number) : "memory", "r8", "r9", "r10", "r11");
#else
	(void)number;
#endif
	if (result < 0) {
		errno = (int)-result;
		return -1;
	}
	return result;
}

static int attempt(char *line) {
	char *rest, *number = strtok_r(line, " ", &rest);
	long a[6] = {0};
	for (int i = 0; i < 6; i++) {
		char *word = strtok_r(NULL, " ", &rest);
		if (word == NULL)
			break;
		a[i] = argument(word);
	}
	long result;
	if (strncmp(number, "int80:", 6) == 0)
		result = call32(atol(number + 6));
	else
		result = syscall(atol(number), a[0], a[1], a[2], a[3], a[4], a[5]);
	return result == -1 ? errno : 0;
}

int main(void) {
	static char line[4096];
	while (fgets(line, sizeof line, stdin) != NULL) {
		line[strcspn(line, "\n")] = 0;
		int status;
		pid_t parent = getpid(), child = fork();
		if (child == 0) {
			int error = attempt(line);
			// A call that makes a process has two that return; the second says nothing.
			_exit(getppid() == parent ? error : 0);
		}
		if (child < 0 || waitpid(child, &status, 0) != child)
			return 1;
		if (WIFSIGNALED(status))
			printf("signal %d\n", WTERMSIG(status));
		else if (WEXITSTATUS(status) == 0)
			puts("ok");
		else
			printf("error %d\n", WEXITSTATUS(status));
	}
	return 0;
}
