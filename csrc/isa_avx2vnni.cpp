// The table for AVX2 with AVX-VNNI: byte dot products are one instruction, in 256 bits.
#if defined(__x86_64__)
#define INSITU_NS avx2vnni
#define INSITU_SIMD_BITS 256
#define INSITU_VNNI 1
#define INSITU_PRODUCTS_ONLY 1
#define INSITU_TABLE_NAME "avx2vnni"
#include "table.inc.h"
#endif
