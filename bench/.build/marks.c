
#include <valgrind/callgrind.h>
void mark_begin(void) { CALLGRIND_TOGGLE_COLLECT; }
void mark_end(void) { CALLGRIND_TOGGLE_COLLECT; }
void mark_reset(void) { CALLGRIND_ZERO_STATS; }
void mark_dump(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
