// The table of kernels that one instruction set fills, and the plain structs they share.
// Not here: any intrinsic, any thread, any Python. Each isa_*.cpp compiles the same sources once
// (simd.h gives 16 virtual lanes) and exports one KernelTable; cpu.cpp picks one at import.
// Always true: every table gives the same bits for the same arguments.
#pragma once
#include <cstddef>
#include <cstdint>

namespace insitu {

// As files have them, but Q8_K16: what finer types are expanded to, a block of 256 weights being
// { float d; int8 scales[16]; int8 q[256] }.
enum class BlockType : int32_t { F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q4_K, Q6_K, Q5_1, Q2_K, Q5_K, Q8_K16 };

// Width of one n-block: outputs are packed, multiplied and claimed by threads 32 at a time.
constexpr int kBlockOutputs = 32;

// `n` output features over `k` inputs, packed into ceil(n / 32) n-blocks of `block_bytes` each.
struct PackedSegment {
  BlockType type;
  int32_t n, k;
  const uint8_t* data;
  size_t block_bytes;
};

// A linear's input: float rows (F32/F16/BF16 weights) or rows quantised by quantize_row or quantize_column.
struct Activations {
  int32_t num_rows, k, group;   // group: 32 or 256; 0 for float rows
  const float* rows;            // group == 0: [num_rows] rows of k floats, `row_stride` apart
  ptrdiff_t row_stride;         // in floats
  const uint8_t* quantized;     // group != 0: as they wrote it
};

// What happens to a sum before it is stored: y = acc + bias[n] + residual[m, n], absent parts skipped.
struct Epilogue {
  const float* bias;
  const float* residual;
  ptrdiff_t residual_stride;    // in floats
};

enum class Activation : int32_t { Silu, Gelu };  // Gelu: its tanh form

enum class KvType : int32_t { F16, F32, BF16, I8 };

constexpr size_t kv_element_bytes(KvType type) { return type == KvType::F32 ? 4 : type == KvType::I8 ? 1 : 2; }

// Keys, values and their scales of one KV head in one block; see kv_store.h.
constexpr size_t kv_head_bytes(KvType type, int block_size, int head_dim) {
  const size_t elements = size_t{2} * block_size * head_dim;
  return elements * kv_element_bytes(type) + (type == KvType::I8 ? sizeof(float) * 2 * block_size : 0);
}

// One layer of the KV pool, which is [num_blocks][num_layers][num_kv_heads], kv_head_bytes each: a block's
// layers lie together, so that the first use of a block commits no memory for others in every layer.
struct KvLayer {
  uint8_t* data;       // of this layer in block 0
  size_t block_bytes;  // from one block to the next
  int32_t num_kv_heads, head_dim, block_size;
  KvType type;
};

constexpr int kChunkPositions = 256;  // absolute positions whose partial softmax is one unit
constexpr int kMaxTileRows = 96;

// Where a chunk's keys lie.
struct KvChunk {
  const int32_t* block_table;   // of the sequence
  int32_t kv_head, chunk, num_pages;
};

// Queries that share a KV head and a sequence; row i attends to positions [first_key[i], num_keys[i]).
struct AttentionTile {
  KvLayer kv;
  int32_t kv_head, num_rows;
  const int32_t* block_table;   // of the sequence
  const float* q[kMaxTileRows];
  float* out[kMaxTileRows];     // used where attend_chunks gives outputs
  int32_t first_key[kMaxTileRows], num_keys[kMaxTileRows];
  float scale;
  float soft_cap;               // scores become cap * tanh(score / cap); 0: as they are
  KvChunk next;                 // what this thread will probably read next: a hint; num_pages 0: none
};

// A row's softmax over some positions: {maximum, sum, padding to a cache line, o[head_dim]}.
constexpr int kPartialHeader = 16;

// Floats that attend_chunks works in: a row's scaled query, scores, state and a partial to be added to it, and a
// panel of some keys or values widened to float32.
constexpr size_t attention_scratch_floats(int head_dim) {
  const size_t panel = head_dim <= 128 ? 4096 : size_t{32} * head_dim;
  return kMaxTileRows * (size_t{3} * head_dim + 2 * kPartialHeader + kChunkPositions) + panel;
}

constexpr int kMaxExperts = 1024;
constexpr int kVocabChunk = 4096;  // logits summed in float32 before the sum is taken to double
constexpr int kVocabGroup = 64;    // logits that share one stored maximum

struct Tempering {
  float maximum;                // of the row's logits: a token's depth is counted from it
  double temperature, min_p;    // min_p 0: off
};

struct Noise {
  uint64_t seed;
  uint32_t position, choice;
};

// What truncation keeps, most likely first and then by id: from one token to another, both included.
struct Band {
  float most;                   // logit of the first token kept; +inf: none above is cut
  int32_t first_id;
  float least;                  // logit of the last token kept; -inf: all that are possible are kept
  int32_t last_id;

  bool holds(float logit, int32_t id) const {
    return (logit < most || (logit == most && id >= first_id)) && (logit > least || (logit == least && id <= last_id));
  }
};
constexpr Band kWholeRow{__builtin_inff(), 0, -__builtin_inff(), -1};

// Of the possible ones among some logits, measured from the row's maximum.
struct Moments {
  double num, sum, sum_of_squares;
};

// Mass by depth under the most likely token, so that few tokens need sorting to find where it ends.
constexpr int kMassDepths = 1024;
constexpr double kDepthsPerNat = 32.0;
constexpr double kMassUnits = 0x1p40;  // of the most likely token
constexpr double kSumDoubt = 1e-5;     // relative: 28 nats in float32 are 5e-6 off, exp and sums a tenth of that

struct Scored {
  double score;
  int32_t token_id;
};

struct KernelTable {
  const char* name;             // what INSITU_ISA calls it: kernels/native.py lists them

  // --- matmul.h, quantize.h, embed.h -------------------------------------------------------------
  size_t (*quantized_bytes)(int num_rows, int k, int group);
  // A row, or one group of every row, at a time (any order, any thread); x points at just those inputs.
  void (*quantize_row)(const float* x, int num_rows, int k, int group, int row, uint8_t* out);
  void (*quantize_column)(const float* x, ptrdiff_t row_stride, int num_rows, int k, int group, int column,
                          uint8_t* out);
  // y[m, n_block * 32 + j] for all rows m, j in [0, 32) and < n. `out` is the segment's column 0, row 0.
  void (*matmul_block)(const PackedSegment& w, int n_block, const Activations& x, const Epilogue& e, float* out,
                       ptrdiff_t out_stride);
  void (*end_matmul)();  // by a thread, after the last of some blocks: gives back what it holds of the processor
  // Dequantise row `row` of a packed segment into k floats (embedding lookup).
  void (*embed_row)(const PackedSegment& w, int row, float* out);

  // --- elementwise.h: one row each -----------------------------------------------------------------
  void (*rms_norm_row)(const float* x, const float* weight, int width, float eps, float* out);
  // `weight`: width factors, then width offsets.
  void (*layer_norm_row)(const float* x, const float* weight, int width, float eps, float* out);
  void (*rope_frequencies)(double theta, int dim, double* out);  // [dim / 2]
  void (*rope_angles_row)(double position, const double* frequencies, int dim, double magnitude, float* out);
  void (*rope_row)(float* x, const float* angles, int num_heads, int head_dim, int dim, bool is_adjacent);
  // Rows of width gates, then width ups.
  void (*gated_rows)(const float* x, ptrdiff_t stride, int num_rows, int width, Activation activation, float* out,
                     ptrdiff_t out_stride);
  void (*activate_row)(const float* x, int width, Activation activation, float* out);
  void (*scale_row)(const float* x, int width, float factor, float* out);
  void (*soft_cap_row)(const float* x, int width, float cap, float* out);
  void (*add_row)(const float* a, const float* b, int width, float* out);
  void (*add_scaled_row)(const float* x, float factor, int width, float* out);  // out += factor * x
  void (*sigmoid_scaled_row)(const float* x, float gate, int width, float* out);
  // A mixture's weights of `n` experts: softmax of the logits, 0 for all but the `num_active` highest.
  void (*route_row)(const float* logits, int n, int num_active, bool is_normalised, float* out);

  // --- attention.h ---------------------------------------------------------------------------------
  void (*write_kv)(const KvLayer& kv, int32_t slot, const float* k, const float* v);
  // Chunks [first, last) for every row of the tile: their partial softmax to `partials`, [chunk][row]{partial}, or,
  // where that is nullptr and they are all there are, folded in order and the outputs to tile.out.
  void (*attend_chunks)(const AttentionTile& tile, int first, int last, float* partials, float* scratch);
  // A row's first chunk is its state; the others are folded into it in order, then its output is taken.
  void (*fold_chunk)(float* state, const float* partial, int head_dim);
  void (*take_output)(const float* state, int head_dim, float* out);

  // --- sample.h ------------------------------------------------------------------------------------
  // Of up to kVocabChunk logits: the maximum, that of each kVocabGroup, and whether none is NaN or +Inf.
  bool (*logit_maxima)(const float* logits, int n, float* group_maxima, float* maximum);
  // Tokens whose bit is 0 become impossible; bit i % 32 of bits[i / 32] is that of logits[i].
  void (*mask_logits)(float* logits, const uint32_t* bits, int n);
  float (*logit_sum)(const float* logits, int n, float maximum);  // sum of exp(logit - maximum)
  // Of each kVocabGroup: sum of exp((logit - maximum) / temperature), within kSumDoubt of it and without its exactness.
  void (*group_sums)(const float* logits, int n, const Tempering& t, float* sums);
  // The mass of groups whose maximum is `least` or more.
  void (*logit_mass)(const float* logits, const float* group_maxima, int n, const Tempering& t, float least,
                     uint64_t* by_depth);
  Moments (*logit_moments)(const float* logits, int n, float maximum);
  // Sum of the tempered exponentials of what `band` holds among ids [first_id, first_id + n).
  double (*band_sum)(const float* logits, const float* group_maxima, int first_id, int n, const Tempering& t,
                     const Band& band);
  // Raises `best` to the best score of what `band` holds among those ids, ties to the lowest id.
  void (*best_score)(const float* logits, const float* group_maxima, int first_id, int n, const Tempering& t,
                     const Noise& noise, const Band& band, Scored* best);
  // For tokens of any ids: probability relative to the most likely, its fixed-point mass, score.
  double (*token_probability)(float logit, const Tempering& t);
  uint64_t (*token_mass)(float logit, const Tempering& t);
  int (*token_depth)(float logit, const Tempering& t);  // in [0, kMassDepths)
  double (*token_score)(float logit, int token_id, const Tempering& t, const Noise& noise);
  double (*log_double)(double x);
  double (*exp_double)(double x);
  double (*uniform)(const Noise& noise);  // in (0, 1): a row's own number, apart from its tokens' noise
};

const KernelTable* kernel_table(const char* isa);  // nullptr if this CPU or build lacks it

}  // namespace insitu
