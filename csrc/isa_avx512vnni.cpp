// The table for AVX-512 with VNNI: byte dot products are one instruction.
#if defined(__x86_64__)
#define INSITU_NS avx512vnni
#define INSITU_SIMD_BITS 512
#define INSITU_VNNI 1
#define INSITU_PRODUCTS_ONLY 1
#define INSITU_TABLE_NAME "avx512vnni"
#include "table.inc.h"
#endif
