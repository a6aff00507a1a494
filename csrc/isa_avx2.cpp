// The table for AVX2 with FMA and F16C.
#if defined(__x86_64__)
#define INSITU_NS avx2
#define INSITU_SIMD_BITS 256
#define INSITU_TABLE_NAME "avx2"
#include "table.inc.h"
#endif
