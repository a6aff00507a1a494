// The table for NEON with byte dot products (Armv8.2 DotProd).
#if defined(__aarch64__)
#define INSITU_NS neondot
#define INSITU_SIMD_BITS 128
#define INSITU_PRODUCTS_ONLY 1
#define INSITU_TABLE_NAME "neon-dotprod"
#include "table.inc.h"
#endif
