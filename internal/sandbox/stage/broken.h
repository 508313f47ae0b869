#ifndef SBX_BROKEN_H
#define SBX_BROKEN_H

// In a binary of the tests one of the init's walls can be left out (SBX_BREAK), so that
// the canary is seen to notice. Every other binary is compiled as if this were not here.
#ifdef SBX_BREAKABLE
#include <stdlib.h>
#include <string.h>
static inline int broken(const char *wall)
{
	const char *what = getenv("SBX_BREAK");

	return what && strcmp(what, wall) == 0;
}
#else
#define broken(wall) 0
#endif

#endif
