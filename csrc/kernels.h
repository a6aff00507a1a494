// The table of kernels that one instruction set fills, and the plain structs they share.
// Not here: any intrinsic, any thread, any Python. Each isa_*.cpp compiles the same sources once
// (simd.h gives 16 virtual lanes) and exports one KernelTable; cpu.cpp picks one at import.
// Always true: every table gives the same bits for the same arguments.
#pragma once
#include <cstddef>
#include <cstdint>

namespace insitu {

enum class BlockType : int32_t { F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q4_K, Q6_K };

// Width of one n-block: outputs are packed, multiplied and claimed by threads 32 at a time.
constexpr int kBlockOutputs = 32;

// `n` output features over `k` inputs, packed into ceil(n / 32) n-blocks of `block_bytes` each.
struct PackedSegment {
  BlockType type;
  int32_t n, k;
  const uint8_t* data;
  size_t block_bytes;
};

// A linear's input: float rows (F32/F16/BF16 weights) or rows quantised by quantize_tile.
struct Activations {
  int32_t num_rows, k, group;   // group: 32 or 256; 0 for float rows
  const float* rows;            // group == 0: [num_rows] rows of k floats, `row_stride` apart
  ptrdiff_t row_stride;         // in floats
  const uint8_t* quantized;     // group != 0: as quantize_tile wrote it
};

// What happens to a sum before it is stored: y = acc + bias[n] + residual[m, n], absent parts skipped.
struct Epilogue {
  const float* bias;
  const float* residual;
  ptrdiff_t residual_stride;    // in floats
};

struct KernelTable {
  const char* name;             // "generic" | "avx2" | "avx512" (| "avx512vnni")

  // --- matmul.h, quantize.h, embed.h -------------------------------------------------------------
  // Rows of one input are quantised tile by tile (any order, any thread).
  int (*num_row_tiles)(int num_rows);
  size_t (*quantized_bytes)(int num_rows, int k, int group);
  void (*quantize_tile)(const float* x, ptrdiff_t row_stride, int num_rows, int k, int group, int tile, uint8_t* out);
  // y[m, n_block * 32 + j] for all rows m, j in [0, 32) and < n. `out` is the segment's column 0, row 0.
  void (*matmul_block)(const PackedSegment& w, int n_block, const Activations& x, const Epilogue& e, float* out,
                       ptrdiff_t out_stride);
  // Dequantise row `row` of a packed segment into k floats (embedding lookup).
  void (*embed_row)(const PackedSegment& w, int row, float* out);
  // elementwise.h, attention.h, sample.h add their own entries below.
};

const KernelTable* kernel_table(const char* isa);  // nullptr if this CPU or build lacks it

}  // namespace insitu
