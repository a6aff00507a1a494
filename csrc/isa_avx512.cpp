// The table for AVX-512 F, BW, DQ and VL, without VNNI.
#if defined(__x86_64__)
#define INSITU_NS avx512
#define INSITU_SIMD_BITS 512
#define INSITU_TABLE_NAME "avx512base"
#include "table.inc.h"
#endif
