// The attention operator of a step: stores keys and values, cuts the queries into items, runs them.
// An item is (sequence, KV head, tile of query rows, range of chunks). A long context with few rows is cut
// over chunks too: its partials wait, and whoever finishes a tile's last item folds them in order.
// Not here: arithmetic (attention.h), or the pool of KV blocks (the executor's).
// Always true: which items there are and who runs them never shows in a bit of the result.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "batch.h"
#include "kernels.h"
#include "threads.h"

namespace insitu {

// One attention operator's tensors, a row a token `stride` floats apart, and its numbers.
struct AttentionOp {
  struct Rows {
    float* data;
    ptrdiff_t stride;
    float* row(int i) const { return data + i * stride; }
  };
  int layer, num_heads;
  float scale, soft_cap;        // soft_cap 0: none
  int window;                   // a token attends to the last `window` positions, its own included; 0: to all
  Rows q, k, v, out;
};

class Attention {
 public:
  // `kv_pool`: kv_block_bytes a block; `scratch`: scratch_bytes.
  Attention(const KernelTable& table, const KvSpec& kv, const Limits& limits, int num_threads, int max_num_heads,
            uint8_t* kv_pool, uint8_t* scratch);

  static size_t kv_block_bytes(const KvSpec& kv);  // of all layers
  static size_t scratch_bytes(const KvSpec& kv, const Limits& limits, int num_threads);

  void start_step();            // a new batch: what was planned for the last one is forgotten
  void run(ThreadPool& pool, const AttentionOp& op, const Batch& batch);

 private:
  // Rows [first_row, first_row + num_rows) of the (token, head) pairs of a sequence and KV head.
  struct Tile {
    int seq, kv_head, first_row, num_rows, first_chunk, last_chunk;
  };
  struct Item {
    Tile tile;
    int first_chunk, last_chunk;
    int split;                  // index of the tile's Split; -1: the item is the whole tile
  };
  struct Split {
    Tile tile;
    int num_parts;
    ptrdiff_t partials;         // floats into split_
  };
  // Layers that attend alike share a plan; a decoder has at most two kinds of them.
  struct Plan {
    int num_heads = 0, window = 0, tile_rows = 0;
    std::vector<Item> items;
    std::vector<Split> splits;
    ptrdiff_t split_used = 0;
  };

  const Plan& plan_of(const AttentionOp& op, const Batch& batch);
  KvLayer layer_of(const AttentionOp& op) const;
  void plan_sequence(Plan& plan, const Batch& batch, int seq, double target);
  Tile tile_of(const Plan& plan, const Batch& batch, int seq, int kv_head, int first_row, int last_row) const;
  void run_item(const AttentionOp& op, const Batch& batch, const Plan& plan, size_t index, int worker);
  void fold_split(const AttentionOp& op, const Batch& batch, const Split& split);
  ptrdiff_t row_floats() const { return kPartialHeader + kv_.head_dim; }

  const KernelTable& table_;
  const KvSpec kv_;
  const int num_threads_;
  uint8_t* const kv_pool_;
  const size_t block_bytes_;
  Plan plans_[2];
  int num_plans_ = 0;
  std::unique_ptr<std::atomic<int>[]> unfinished_;  // parts of each split tile
  float* workers_;              // [num_threads] what attend_chunks works in
  ptrdiff_t worker_floats_, split_floats_;
  float* split_;
};

}  // namespace insitu
