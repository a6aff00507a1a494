// The table in plain C++: any processor, no extension.
#define INSITU_NS generic
#define INSITU_SIMD_BITS 0
#define INSITU_TABLE_NAME "generic"
#include "table.inc.h"
