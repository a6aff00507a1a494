// The attention operator of a step: store keys and values, cut the queries into items, merge.
// An item is (sequence, KV head, tile of query rows, range of chunks). Long contexts with few rows
// are cut over chunks too; their partials wait in `split_` and are merged in order.
#include <algorithm>

#include "program.h"

namespace insitu {

namespace {

int chunks_of(int num_keys) { return (num_keys + kChunkPositions - 1) / kChunkPositions; }

// Keys that query row `row` (of the flattened (token, head) pairs) of a sequence attends to.
int num_keys_of(const Batch& b, int seq, int row, int heads) {
  const int num_queries = b.query_start_loc[seq + 1] - b.query_start_loc[seq];
  return b.seq_lens[seq] - num_queries + row / heads + 1;
}

}  // namespace

int Executor::tile_rows(int heads) const {
  // A lone token's heads stay together when they fit, so that its keys are read once.
  const int most = table_.max_tile_rows;
  return heads > most && heads <= kMaxTileRows && most > 3 ? heads : most;
}

void Executor::plan_attention(const Operator& op, const Batch& batch) {
  items_.clear();
  merges_.clear();
  split_used_ = 0;
  const int heads = op.num_heads / op.num_kv_heads, most = tile_rows(heads);
  double total = 0;  // in tile chunks
  for (int s = 0; s < batch.num_seqs; s++) {
    const int rows = (batch.query_start_loc[s + 1] - batch.query_start_loc[s]) * heads;
    total += static_cast<double>((rows + most - 1) / most) * chunks_of(batch.seq_lens[s]) * op.num_kv_heads;
  }
  const double target = std::max(1.0, total / (8.0 * pool_.num_threads()));
  for (int s = 0; s < batch.num_seqs; s++) plan_sequence(op, batch, s, target);
  planned_for_ = &op;
}

void Executor::plan_sequence(const Operator& op, const Batch& batch, int seq, double target) {
  const int heads = op.num_heads / op.num_kv_heads, most = tile_rows(heads);
  const int rows = (batch.query_start_loc[seq + 1] - batch.query_start_loc[seq]) * heads;
  const int tiles = (rows + most - 1) / most;
  for (int kv_head = 0; kv_head < op.num_kv_heads; kv_head++) {
    for (int tile = tiles - 1; tile >= 0; tile--) {  // the longest first
      const int first = static_cast<int>(int64_t{rows} * tile / tiles);
      const int num_rows = static_cast<int>(int64_t{rows} * (tile + 1) / tiles) - first;
      const int chunks = chunks_of(num_keys_of(batch, seq, first + num_rows - 1, heads));
      const ptrdiff_t partials = static_cast<ptrdiff_t>(chunks) * num_rows * (kPartialHeader + op.head_dim);
      const bool is_split = chunks > 2 * target && split_used_ + partials <= split_floats_;
      if (!is_split) {
        items_.push_back({seq, kv_head, first, num_rows, 0, chunks, -1});
        continue;
      }
      const int parts = static_cast<int>((chunks + target - 1) / target);
      for (int part = 0; part < parts; part++)
        items_.push_back({seq, kv_head, first, num_rows, static_cast<int>(int64_t{chunks} * part / parts),
                          static_cast<int>(int64_t{chunks} * (part + 1) / parts), split_used_});
      merges_.push_back({seq, kv_head, first, num_rows, split_used_});
      split_used_ += partials;
    }
  }
}

void Executor::run_attention(const Operator& op, const Batch& batch) {
  const KvLayer layer{kv_pool_.data() + op.layer * layer_bytes_, kv_.num_kv_heads, kv_.head_dim, kv_.block_size,
                      kv_.is_f16};
  const TensorRef &k = op.inputs[1], &v = op.inputs[2];
  for_rows(batch.num_tokens, 2.0 * k.width, [&](int row, int) {
    table_.write_kv(layer, batch.slot_mapping[row], at(k) + static_cast<ptrdiff_t>(row) * k.stride,
                    at(v) + static_cast<ptrdiff_t>(row) * v.stride);
  });
  // Every layer of a decoder has the same heads, so one plan serves the whole step.
  if (!planned_for_ || planned_for_->num_heads != op.num_heads) plan_attention(op, batch);
  pool_.run(static_cast<int>(items_.size()),
            [&](int item, int worker) { attend(op, batch, items_[item], worker); });
  pool_.run(static_cast<int>(merges_.size()), [&](int item, int) {
    merge(op, batch, merges_[item], split_ + merges_[item].partials, merges_[item].num_rows);
  });
}

void Executor::attend(const Operator& op, const Batch& batch, const AttentionItem& item, int worker) {
  const int heads = op.num_heads / op.num_kv_heads;
  AttentionTile tile{};
  tile.kv = {kv_pool_.data() + op.layer * layer_bytes_, kv_.num_kv_heads, kv_.head_dim, kv_.block_size, kv_.is_f16};
  tile.kv_head = item.kv_head;
  tile.num_rows = item.num_rows;
  tile.block_table = batch.block_table + static_cast<ptrdiff_t>(item.seq) * batch.max_blocks;
  tile.scale = op.scale;
  const TensorRef& q = op.inputs[0];
  for (int i = 0; i < item.num_rows; i++) {
    const int row = item.first_row + i, token = batch.query_start_loc[item.seq] + row / heads;
    const int head = item.kv_head * heads + row % heads;
    tile.q[i] = at(q) + static_cast<ptrdiff_t>(token) * q.stride + static_cast<ptrdiff_t>(head) * op.head_dim;
    tile.num_keys[i] = num_keys_of(batch, item.seq, row, heads);
  }
  float* own = workers_ + worker_floats_ * worker;
  float* scores = own + worker_floats_ - kMaxTileRows * (kChunkPositions + kv_.head_dim);
  if (item.partials < 0) {
    table_.attend_chunks(tile, item.first_chunk, item.last_chunk, own, scores);
    merge(op, batch, {item.seq, item.kv_head, item.first_row, item.num_rows, 0}, own, item.num_rows);
    return;
  }
  const ptrdiff_t chunk_floats = static_cast<ptrdiff_t>(item.num_rows) * (kPartialHeader + op.head_dim);
  table_.attend_chunks(tile, item.first_chunk, item.last_chunk,
                       split_ + item.partials + item.first_chunk * chunk_floats, scores);
}

void Executor::merge(const Operator& op, const Batch& batch, const MergeItem& item, const float* partials, int rows) {
  const int heads = op.num_heads / op.num_kv_heads;
  const ptrdiff_t row_floats = kPartialHeader + op.head_dim;
  for (int i = 0; i < rows; i++) {
    const int row = item.first_row + i, token = batch.query_start_loc[item.seq] + row / heads;
    const int head = item.kv_head * heads + row % heads;
    float* out = at(op.output) + static_cast<ptrdiff_t>(token) * op.output.stride +
                 static_cast<ptrdiff_t>(head) * op.head_dim;
    table_.merge_chunks(partials + i * row_floats, rows * row_floats,
                        chunks_of(num_keys_of(batch, item.seq, row, heads)), op.head_dim, out);
  }
}

}  // namespace insitu
