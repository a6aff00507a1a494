// From raw row-major blocks, as files hold them, to the n-blocks that kernels multiply from.
// Not here: any instruction set's code; the layout is the same for all. Truth: kernels/pack.py.
// Always true: outputs beyond n are zero bytes; every n-block is a whole number of 64-byte lines.
//
//   line(j, h) = 64 bytes at (2j + h) * 64: outputs 16h .. 16h+15, four k each: byte 4 * (o % 16) + b
//   Q4_0, Q4_1  per 32 k:   8 nibble lines: low k = 8j + b, high k = 8j + 4 + b; d f16[32] (; m f16[32])
//   Q8_0        per 32 k:  16 byte lines: k = 4j + b, as q + 128; d f16[32]
//   Q5_0        per 32 k:   8 nibble lines; 2 lines of fifth bits: bit j, k = 4j + b; d f16[32]
//   Q5_1        per 32 k:   as Q5_0; m f16[32]
//   Q4_K        per 256 k:  8 x 8 nibble lines; sub-scales u8[8][32]; sub-mins u8[4][32][2];
//                           d f16[32]; dmin f16[32]
//   Q6_K        per 256 k:  8 x { 8 nibble lines; 4 lines of upper bits: line i, bits 2j and 2j + 1,
//                           k = 16i + 4j + b }, as 0..63; sub-scales i8[16][32]; d f16[32]
//   Q5_K        per 256 k:  8 x { 8 nibble lines; 2 lines of fifth bits }; the rest as Q4_K
//   Q2_K        per 256 k:  8 x 4 lines of two bits: line i, bits 2j and 2j + 1, k = 16i + 4j + b;
//                           sub-scales u8[16][32]; sub-mins u8[16][32]; d f16[32]; dmin f16[32]
//   Q8_K16      per 256 k:  8 x 16 byte lines, as q + 128; sub-scales i8[16][32]; d f32[32]
//   F32, F16, BF16          [k][32] as stored
#pragma once
#include "kernels.h"

namespace insitu {

size_t block_row_bytes(BlockType type, int k);     // of one raw row
size_t packed_block_bytes(BlockType type, int k);  // of one n-block
// `raw` is n rows; `out` is n-block `n_block`, 64-byte aligned.
void pack_block(BlockType type, const uint8_t* raw, int n, int k, int n_block, uint8_t* out);

}  // namespace insitu
