// The cutting and running of attend.h.
#include "attend.h"

#include <algorithm>

#include "memory.h"

namespace insitu {

namespace {

constexpr size_t kMaxSplitBytes = size_t{16} << 20;
constexpr int kItemsAThread = 8;
constexpr int kTilesAThread = 4, kFewestTileRows = 32;
constexpr int kSplitRows = 16;  // most rows of a tile that is expected to be split, for its memory

int chunks_of(int num_keys) { return (num_keys + kChunkPositions - 1) / kChunkPositions; }

// A tile's time over one chunk, in units of one row's arithmetic: reading the chunk costs as much as four.
double cost_of(int num_rows, int num_chunks) { return (4.0 + num_rows) * num_chunks; }

int num_queries(const Batch& b, int seq) { return b.query_start_loc[seq + 1] - b.query_start_loc[seq]; }

// Positions [first, last) that a sequence's query attends to.
struct Keys {
  int first, last;
};
Keys keys_of(const Batch& b, int seq, int query, int window) {
  const int last = b.seq_lens[seq] - num_queries(b, seq) + query + 1;
  return {window > 0 ? std::max(0, last - window) : 0, last};
}

int most_chunks(const KvSpec& kv, const Limits& limits) {
  return chunks_of(static_cast<int>(int64_t{limits.max_blocks_per_seq} * kv.block_size));
}

size_t worker_bytes(const KvSpec& kv) {
  return align_up(sizeof(float) * attention_scratch_floats(kv.head_dim));
}

// Partials that wait to be folded because several threads share one tile.
size_t split_bytes(const KvSpec& kv, const Limits& limits, int num_threads) {
  const size_t chunks = most_chunks(kv, limits);
  if (chunks == 1 || num_threads == 1) return 0;
  const size_t rows = size_t{kItemsAThread} / 2 * num_threads * kSplitRows;
  return align_up(std::min(kMaxSplitBytes, sizeof(float) * rows * chunks * (kPartialHeader + kv.head_dim)));
}

}  // namespace

size_t Attention::kv_block_bytes(const KvSpec& kv) {
  return size_t{1} * kv.num_layers * kv.num_kv_heads * kv_head_bytes(kv.type, kv.block_size, kv.head_dim);
}

KvLayer Attention::layer_of(const AttentionOp& op) const {
  uint8_t* data = kv_pool_ + op.layer * (block_bytes_ / kv_.num_layers);
  return {data, block_bytes_, kv_.num_kv_heads, kv_.head_dim, kv_.block_size, kv_.type};
}

size_t Attention::scratch_bytes(const KvSpec& kv, const Limits& limits, int num_threads) {
  return worker_bytes(kv) * num_threads + split_bytes(kv, limits, num_threads);
}

Attention::Attention(const KernelTable& table, const KvSpec& kv, const Limits& limits, int num_threads,
                     int max_num_heads, uint8_t* kv_pool, uint8_t* scratch)
    : table_(table),
      kv_(kv),
      num_threads_(num_threads),
      kv_pool_(kv_pool),
      block_bytes_(kv_block_bytes(kv)),
      workers_(reinterpret_cast<float*>(scratch)),
      worker_floats_(worker_bytes(kv) / sizeof(float)),
      split_floats_(split_bytes(kv, limits, num_threads) / sizeof(float)),
      split_(workers_ + worker_floats_ * num_threads) {
  // As many as there can be, so that no step allocates: see plan_sequence.
  const int64_t rows = int64_t{limits.max_num_tokens} * max_num_heads;
  const size_t tiles = rows / kMaxTileRows + size_t{1} * limits.max_num_seqs * kv.num_kv_heads;
  const size_t splits = size_t{kItemsAThread} * num_threads;
  for (Plan& plan : plans_) {
    plan.items.reserve(tiles + 3 * splits);
    plan.splits.reserve(splits);
  }
  unfinished_ = std::make_unique<std::atomic<int>[]>(splits);
}

void Attention::start_step() { num_plans_ = 0; }

const Attention::Plan& Attention::plan_of(const AttentionOp& op, const Batch& batch) {
  for (int i = 0; i < num_plans_; i++)
    if (plans_[i].num_heads == op.num_heads && plans_[i].window == op.window) return plans_[i];
  Plan& plan = plans_[num_plans_ < 2 ? num_plans_++ : 1];
  plan.num_heads = op.num_heads;
  plan.window = op.window;
  plan.items.clear();
  plan.splits.clear();
  plan.split_used = 0;
  const int heads = op.num_heads / kv_.num_kv_heads;
  // High tiles read the cache less often; there must be some for every thread.
  const int most_rows = static_cast<int>(int64_t{batch.num_tokens} * op.num_heads / (kTilesAThread * num_threads_));
  plan.tile_rows = std::clamp(most_rows, kFewestTileRows, kMaxTileRows);
  double total = 0;
  for (int s = 0; s < batch.num_seqs; s++) {
    const int queries = num_queries(batch, s), rows = queries * heads;
    const Keys whole = keys_of(batch, s, queries - 1, op.window);
    const int tiles = (rows + plan.tile_rows - 1) / plan.tile_rows;
    total += kv_.num_kv_heads * tiles * cost_of(rows / tiles, chunks_of(whole.last) - whole.first / kChunkPositions);
  }
  const double target = total / (kItemsAThread * num_threads_);
  for (int s = 0; s < batch.num_seqs; s++) plan_sequence(plan, batch, s, target);
  return plan;
}

Attention::Tile Attention::tile_of(const Plan& plan, const Batch& batch, int seq, int kv_head, int first_row,
                                   int last_row) const {
  const int heads = plan.num_heads / kv_.num_kv_heads;
  const int first_key = keys_of(batch, seq, first_row / heads, plan.window).first;
  const int num_keys = keys_of(batch, seq, (last_row - 1) / heads, plan.window).last;
  return {seq, kv_head, first_row, last_row - first_row, first_key / kChunkPositions, chunks_of(num_keys)};
}

void Attention::plan_sequence(Plan& plan, const Batch& batch, int seq, double target) {
  const int rows = num_queries(batch, seq) * (plan.num_heads / kv_.num_kv_heads);
  const int tiles = (rows + plan.tile_rows - 1) / plan.tile_rows;
  for (int kv_head = 0; kv_head < kv_.num_kv_heads; kv_head++) {
    for (int i = tiles - 1; i >= 0; i--) {  // the longest first
      const Tile tile = tile_of(plan, batch, seq, kv_head, static_cast<int>(int64_t{rows} * i / tiles),
                                static_cast<int>(int64_t{rows} * (i + 1) / tiles));
      const int chunks = tile.last_chunk - tile.first_chunk;
      const double cost = cost_of(tile.num_rows, chunks);
      const ptrdiff_t partials = static_cast<ptrdiff_t>(chunks) * tile.num_rows * row_floats();
      // There are fewer than kItemsAThread / 2 * threads tiles of twice the target.
      if (num_threads_ == 1 || chunks == 1 || cost < 2 * target || plan.split_used + partials > split_floats_) {
        plan.items.push_back({tile, tile.first_chunk, tile.last_chunk, -1});
        continue;
      }
      const int parts = std::min(chunks, static_cast<int>(cost / target + 0.5));
      for (int part = 0; part < parts; part++)
        plan.items.push_back({tile, tile.first_chunk + static_cast<int>(int64_t{chunks} * part / parts),
                              tile.first_chunk + static_cast<int>(int64_t{chunks} * (part + 1) / parts),
                              static_cast<int>(plan.splits.size())});
      plan.splits.push_back({tile, parts, plan.split_used});
      plan.split_used += partials;
    }
  }
}

void Attention::run(ThreadPool& pool, const AttentionOp& op, const Batch& batch) {
  const KvLayer layer = layer_of(op);
  const int tokens = batch.num_tokens, items = tokens < 4 ? 1 : std::min(tokens, 4 * num_threads_);
  pool.run(items, [&](int item, int) {
    for (int t = static_cast<int>(int64_t{tokens} * item / items); t < int64_t{tokens} * (item + 1) / items; t++)
      table_.write_kv(layer, batch.slot_mapping[t], op.k.row(t), op.v.row(t));
  });
  const Plan& plan = plan_of(op, batch);
  for (size_t i = 0; i < plan.splits.size(); i++)
    unfinished_[i].store(plan.splits[i].num_parts, std::memory_order_relaxed);
  pool.run(static_cast<int>(plan.items.size()),
           [&](int item, int worker) { run_item(op, batch, plan, item, worker); });
}

void Attention::run_item(const AttentionOp& op, const Batch& batch, const Plan& plan, size_t index, int worker) {
  const Item& item = plan.items[index];
  const int heads = op.num_heads / kv_.num_kv_heads;
  AttentionTile tile;
  tile.kv = layer_of(op);
  tile.kv_head = item.tile.kv_head;
  tile.num_rows = item.tile.num_rows;
  tile.block_table = batch.block_table + static_cast<ptrdiff_t>(item.tile.seq) * batch.max_blocks;
  tile.scale = op.scale;
  tile.soft_cap = op.soft_cap;
  for (int i = 0; i < tile.num_rows; i++) {
    const int row = item.tile.first_row + i, token = batch.query_start_loc[item.tile.seq] + row / heads;
    const ptrdiff_t column = static_cast<ptrdiff_t>(tile.kv_head * heads + row % heads) * kv_.head_dim;
    tile.q[i] = op.q.row(token) + column;
    tile.out[i] = op.out.row(token) + column;
    const Keys keys = keys_of(batch, item.tile.seq, row / heads, op.window);
    tile.first_key[i] = keys.first;
    tile.num_keys[i] = keys.last;
  }
  tile.next = {};
  if (index + 1 < plan.items.size()) {  // likely this worker's next claim
    const Item& next = plan.items[index + 1];
    const int left = batch.seq_lens[next.tile.seq] - next.first_chunk * kChunkPositions;
    tile.next = {batch.block_table + static_cast<ptrdiff_t>(next.tile.seq) * batch.max_blocks, next.tile.kv_head,
                 next.first_chunk, (std::min(left, kChunkPositions) + 15) / 16};
  }
  float* scratch = workers_ + worker_floats_ * worker;
  if (item.split < 0) return table_.attend_chunks(tile, item.first_chunk, item.last_chunk, nullptr, scratch);
  const Split& split = plan.splits[item.split];
  float* partials =
      split_ + split.partials + (item.first_chunk - item.tile.first_chunk) * tile.num_rows * row_floats();
  table_.attend_chunks(tile, item.first_chunk, item.last_chunk, partials, scratch);
  if (unfinished_[item.split].fetch_sub(1, std::memory_order_acq_rel) == 1) fold_split(op, batch, split);
}

// A row's first chunk becomes its state.
void Attention::fold_split(const AttentionOp& op, const Batch& batch, const Split& split) {
  const Tile& tile = split.tile;
  float* partials = split_ + split.partials;
  const int heads = op.num_heads / kv_.num_kv_heads;
  for (int i = 0; i < tile.num_rows; i++) {
    const int row = tile.first_row + i;
    const Keys keys = keys_of(batch, tile.seq, row / heads, op.window);
    const auto partial = [&](int chunk) {
      return partials + (static_cast<ptrdiff_t>(chunk - tile.first_chunk) * tile.num_rows + i) * row_floats();
    };
    const int first = keys.first / kChunkPositions;
    float* state = partials + i * row_floats();
    if (partial(first) != state) std::copy_n(partial(first), row_floats(), state);
    for (int chunk = first + 1; chunk < chunks_of(keys.last); chunk++)
      table_.fold_chunk(state, partial(chunk), kv_.head_dim);
    float* out = op.out.row(batch.query_start_loc[tile.seq] + row / heads) +
                 static_cast<ptrdiff_t>(tile.kv_head * heads + row % heads) * kv_.head_dim;
    table_.take_output(state, kv_.head_dim, out);
  }
}

}  // namespace insitu
