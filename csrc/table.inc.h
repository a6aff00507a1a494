// The one place where a table is filled: every isa_*.cpp defines INSITU_NS, INSITU_SIMD_BITS and
// INSITU_TABLE_NAME, then includes this. With INSITU_PRODUCTS_ONLY the table holds no more than the
// matmul's entries: instructions for byte products change nothing else, and cpu.cpp completes it with
// the rest of the instruction set below it.
#include "embed.h"
#include "kernels.h"
#include "matmul.h"
#include "quantize.h"
#ifdef INSITU_PRODUCTS_ONLY
#define INSITU_EXECUTOR_ENTRIES
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#else
#include "attention.h"
#include "elementwise.h"
#include "sample.h"
#endif

namespace insitu::INSITU_NS {

extern const KernelTable table;
const KernelTable table = {
    .name = INSITU_TABLE_NAME,
    .quantized_bytes = quantized_bytes,
    .quantize_row = quantize_row,
    .quantize_column = quantize_column,
    .matmul_block = matmul_block,
    .end_matmul = end_matmul,
    .embed_row = embed_row,
    INSITU_EXECUTOR_ENTRIES};

}  // namespace insitu::INSITU_NS
