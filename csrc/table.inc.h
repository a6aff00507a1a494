// The one place where a table is filled: every isa_*.cpp defines INSITU_NS, INSITU_SIMD_BITS and
// INSITU_TABLE_NAME, then includes this.
#include "embed.h"
#include "kernels.h"
#include "matmul.h"
#include "quantize.h"
#if __has_include("sample.h")
#include "attention.h"
#include "elementwise.h"
#include "sample.h"
#else
#define INSITU_EXECUTOR_ENTRIES
#endif

namespace insitu::INSITU_NS {

extern const KernelTable table;
const KernelTable table = {
    .name = INSITU_TABLE_NAME,
    .quantized_bytes = quantized_bytes,
    .quantize_row = quantize_row,
    .quantize_column = quantize_column,
    .matmul_block = matmul_block,
    .embed_row = embed_row,
    INSITU_EXECUTOR_ENTRIES};

}  // namespace insitu::INSITU_NS
