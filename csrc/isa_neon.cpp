// The table for NEON, which every AArch64 processor has.
#if defined(__aarch64__)
#define INSITU_NS neon
#define INSITU_SIMD_BITS 128
#define INSITU_TABLE_NAME "neon"
#include "table.inc.h"
#endif
