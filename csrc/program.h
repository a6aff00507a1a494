// A Program lowered to plain structs, and the executor that runs all of it for one batch.
// Not here: arithmetic (the kernel table), threads, or Python. The Python side plans where tensors
// lie in the activation arena; this side packs weights, owns all memory and runs the operators.
// Always true: sizes are known before anything is allocated, and a step allocates nothing large.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attend.h"
#include "batch.h"
#include "kernels.h"
#include "memory.h"
#include "sampler.h"
#include "threads.h"

namespace insitu {

enum class OpKind {
  Embed, RmsNorm, LayerNorm, QuantizeRows, Linear, RopeAngles, Rope, Attention, Gated, Activate, Scale, SoftCap, Add,
  Take, Route, Experts, GateRows
};

// What a tensor has one row of: every token, or those whose logits or whose pooled rows are wanted.
enum class RowsOf : int8_t { Tokens, Logits, Pooled };

// Columns [column, column + width) of a tensor in the arena; quantised ones have only an offset.
struct TensorRef {
  size_t offset = 0;            // bytes into the arena
  int32_t stride = 0, column = 0, width = 0;  // in elements of the owner
  RowsOf rows = RowsOf::Tokens;
  bool is_quantized = false;
};

struct Operator {
  OpKind kind;
  std::vector<TensorRef> inputs;  // arena tensors only: the batch's own columns are left out
  TensorRef output;
  int linear = -1;                // Embed, Linear: index of the weight
  int vector = -1;                // RmsNorm, LayerNorm: index of the weight
  std::vector<int> groups;        // Linear: activation group of each leading input
  bool has_residual = false, is_adjacent = false;
  bool is_gated = false;          // Linear: activation(first half) * second half is what it writes
  bool by_columns = false;        // QuantizeRows: each group as if it were all of its row
  bool is_positions = false;      // Embed: rows are looked up by position, not by token
  Activation activation = Activation::Silu;
  float eps = 0, scale = 0;
  double theta = 0, magnitude = 1;
  std::vector<int> gate_up, down; // Experts: index of each expert's weights
  int num_active = 0;             // Route, Experts: experts a row goes through
  bool is_normalised = false;     // Route: the chosen experts' weights sum to 1
  std::vector<double> divisors;   // RopeAngles: of each pair's frequency; empty: none
  float soft_cap = 0;             // Attention, Linear, SoftCap: 0: none
  int group = 0, dim = 0, layer = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0, window = 0;
};

struct RawSegment {
  BlockType type;
  int32_t n, k;
  const uint8_t* data;
  size_t num_bytes;
};

struct RawLinear {
  std::vector<RawSegment> segments;
  std::vector<float> bias;      // empty, or one an output
};

struct ProgramSpec {
  std::vector<Operator> ops;
  std::vector<RawLinear> linears;
  std::vector<std::vector<float>> vectors;
  TensorRef logits, pooled;     // a program without pooled rows has none of width
  size_t arena_bytes;
};

struct Sizes {
  size_t packed, kv, arena, logits, scratch;  // bytes; `logits` is part of `arena`
};

constexpr size_t kMaxSegments = 8;
// Bytes in which the experts of a step's rows are worked out, some rows at a time; 0 without any.
size_t experts_bytes(const ProgramSpec& spec, const Limits& limits, const KernelTable& table);
int activation_group(BlockType type);  // inputs that share a scale; 0: float rows

// A phase costs about a microsecond: less than two of work are not worth one.
constexpr double kAloneNs = 2000;
// Rows that are quantised lie in tiles, the scales of 16 in one cache line, over which workers contend: of 16 rows
// of 576 inputs two workers took 18 us, one alone 10.
constexpr double kQuantizeAloneNs = 8000;

class Executor {
 public:
  Executor(const ProgramSpec& spec, const KvSpec& kv, const Limits& limits, const ThreadOptions& threads,
           const KernelTable& table);

  // Throws std::invalid_argument if the program does not fit `kv` or itself.
  static Sizes sizes(const ProgramSpec& spec, const KvSpec& kv, const Limits& limits, int num_threads,
                     const KernelTable& table);

  // A token id of -1 - r means the id that the step before chose for its logit row r.
  void forward(const Batch& batch, float* logits);  // [R, vocab]
  void step(const Batch& batch, const Sampling& sampling, const Sampled& out);
  // The same in two parts, for when not all of `sampling` is known before the forward pass.
  void compute(const Batch& batch);
  void choose(const Sampling& sampling, const Sampled& out);
  int num_computed_rows() const { return num_computed_rows_; }  // whose logits wait to be chosen from

  // Keys and values of one block of every layer.
  void copy_block(int source, int target);
  void wipe_block(int block);

  int vocab_size() const { return vocab_size_; }
  int pooled_width() const { return pooled_.width; }
  const Sizes& sizes() const { return sizes_; }
  const uint8_t* packed(int linear, int segment, size_t* num_bytes) const;

  // A segment that was given no data is filled before the first step; no other may be.
  void fill(int linear, int segment, const uint8_t* data, size_t num_bytes);

  // For measuring between steps (ceilings.h).
  ThreadPool& pool() { return pool_; }
  const KernelTable& table() const { return table_; }

  // Wall time of each operator, then of sampling, summed over the steps since the start; off until
  // then, and costs two clock readings an operator.
  void start_profile();
  void stop_profile() { profile_ns_.clear(); }
  const std::vector<int64_t>& profile_ns() const { return profile_ns_; }

 private:
  struct Linear {
    std::vector<PackedSegment> segments;
    const float* bias = nullptr;
    std::vector<int> first_block;  // of each segment, then the number of all
    std::vector<uint8_t> is_filled;  // by segment
    const uint8_t* end = nullptr;  // of the last segment
    bool is_gated = false;         // two like halves, multiplied block by block together
  };
  // How far one worker has prefetched its share of the linear that comes next.
  struct alignas(64) Ahead {
    uint64_t phase = 0;
    const uint8_t *at[2] = {}, *end[2] = {};
    void start(const Linear& linear, int worker, int num_threads);
  };

  void pack(const ProgramSpec& spec);
  Batch checked(const Batch& batch, const std::vector<int32_t>& chosen);
  void compute(const Batch& batch, const std::vector<int32_t>& chosen);
  const std::vector<int32_t>& take_chosen();
  void run(const Batch& batch);
  void copy_rows(const TensorRef& t, int num_rows, float* out) const;
  ThreadOptions with_hooks(ThreadOptions threads);
  template <typename Body>
  void timed(size_t index, Body&& body);
  bool prefetch(int worker);
  void run_op(const Operator& op, const Batch& batch);
  void run_embed(const Operator& op, const Batch& batch);
  struct Part;
  void run_linear(const Operator& op, int num_rows);
  void run_gated_linear(const Operator& op, const Part (&parts)[2], int num_rows);
  void run_norm(const Operator& op, int num_rows);
  void run_quantize(const Operator& op, int num_rows);
  void run_rope_angles(const Operator& op, const Batch& batch);
  void run_attention(const Operator& op, const Batch& batch);
  void run_experts(const Operator& op, int num_rows);
  void run_chosen(const Operator& op, int first_row, int num_rows);
  template <typename Body>
  void for_rows(int num_rows, double ns_a_row, Body&& body, double ns_alone = kAloneNs);

  float* row_scratch(int worker) const { return row_scratch_ + static_cast<ptrdiff_t>(row_floats_) * worker; }
  float* at(const TensorRef& t) const { return reinterpret_cast<float*>(arena_.data() + t.offset) + t.column; }
  static int rows_of(const TensorRef& t, const Batch& b) {
    return t.rows == RowsOf::Tokens ? b.num_tokens : t.rows == RowsOf::Logits ? b.num_logit_rows : b.num_pooled_rows;
  }

  const KernelTable& table_;
  const KvSpec kv_;
  const Limits limits_;
  std::vector<Operator> ops_;
  TensorRef logits_, pooled_;
  int vocab_size_, num_token_ids_ = 0, num_positions_ = INT32_MAX, num_computed_rows_ = 0;
  Sizes sizes_;
  std::atomic<uint64_t> coming_{0};  // a phase's number << 32 | the weight that follows it + 1
  std::unique_ptr<Ahead[]> ahead_;   // one a worker
  Mapping packed_, kv_pool_, arena_, scratch_;
  int num_unfilled_ = 0;  // segments; with none left, packed_ is read-only
  std::vector<Linear> linears_;
  std::vector<const float*> vectors_;
  std::vector<int> vector_lengths_;
  std::vector<std::vector<double>> frequencies_;  // by operator: only RopeAngles has some
  size_t block_bytes_;  // of the KV pool
  size_t row_floats_ = 0;  // of a worker: floats on their way to being gated or quantised
  float* row_scratch_ = nullptr;
  uint8_t* experts_scratch_ = nullptr;
  std::vector<int> next_linear_;     // by operator: the weight of the next Linear after it, or -1
  std::vector<int32_t> chosen_ids_, ids_before_;  // by the step before; none if it failed
  std::vector<int32_t> token_ids_;   // of this step, where some were chosen by the one before
  std::vector<int64_t> profile_ns_;  // one an operator and one for sampling; empty: off
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<Sampler> sampler_;
  ThreadPool pool_;  // ends first: a worker that waits reads ahead of what is above
};

template <typename Body>
void Executor::timed(size_t index, Body&& body) {
  if (profile_ns_.empty()) return body();
  const auto start = std::chrono::steady_clock::now();
  body();
  const auto taken = std::chrono::steady_clock::now() - start;
  profile_ns_[index] += std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count();
}

// body(row, worker) for every row, several rows an item; less work than `ns_alone`, and the caller does it alone.
template <typename Body>
void Executor::for_rows(int num_rows, double ns_a_row, Body&& body, double ns_alone) {
  const double ns = num_rows * ns_a_row;
  const int most = std::min(num_rows, 16 * pool_.num_threads());
  const int items = ns < ns_alone ? 1 : std::clamp(static_cast<int>(std::min(ns / 500.0, 1e6)), 1, most);
  pool_.run(items, [&](int item, int worker) {
    const int first = static_cast<int>(int64_t{num_rows} * item / items);
    const int last = static_cast<int>(int64_t{num_rows} * (item + 1) / items);
    for (int row = first; row < last; row++) body(row, worker);
  });
}

}  // namespace insitu
