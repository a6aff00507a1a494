// The table for AVX-512 with VNNI and AMX: byte dot products of whole tiles are one instruction.
#if defined(__x86_64__)
#define INSITU_NS avx512amx
#define INSITU_SIMD_BITS 512
#define INSITU_VNNI 1
#define INSITU_AMX 1
#define INSITU_PRODUCTS_ONLY 1
#define INSITU_TABLE_NAME "avx512amx"
#include "table.inc.h"
#endif
