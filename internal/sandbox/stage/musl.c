// What a libseccomp.a that was built against glibc wants, and musl does not have.
#include <features.h>
#ifndef __GLIBC__
#include <stdarg.h>
#include <stdio.h>

int __fprintf_chk(FILE *f, int flag, const char *format, ...);

int __fprintf_chk(FILE *f, int flag, const char *format, ...)
{
	va_list args;
	int n;

	(void)flag;
	va_start(args, format);
	n = vfprintf(f, format, args);
	va_end(args);
	return n;
}
#endif
