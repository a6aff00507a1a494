// The executor: owns the memory of a model, packs its weights, runs each operator of a step in turn.
#include "program.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "pack.h"

namespace insitu {

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

bool is_norm(OpKind kind) { return kind == OpKind::RmsNorm || kind == OpKind::LayerNorm; }

int num_blocks_of(int n) { return (n + kBlockOutputs - 1) / kBlockOutputs; }

size_t packed_bytes(const ProgramSpec& spec) {
  size_t bytes = 0;
  for (const RawLinear& linear : spec.linears) {
    for (const RawSegment& s : linear.segments)
      bytes += align_up(num_blocks_of(s.n) * packed_block_bytes(s.type, s.k));
    bytes += align_up(linear.bias.size() * sizeof(float));
  }
  for (const auto& vector : spec.vectors) bytes += align_up(vector.size() * sizeof(float));
  return bytes;
}

// Of logits as many rows are wanted at most as pooled ones.
size_t max_rows(const TensorRef& t, const Limits& limits) {
  return t.rows == RowsOf::Tokens ? limits.max_num_tokens : limits.max_num_logit_rows;
}

// Floats a worker needs for rows on their way to being gated or quantised.
size_t row_floats(const ProgramSpec& spec, const Limits& limits) {
  size_t most = 0;
  for (const Operator& op : spec.ops) {
    const size_t rows = max_rows(op.output, limits);
    if (op.is_gated || op.kind == OpKind::Experts) most = std::max(most, rows * 2 * kBlockOutputs);
    else if (is_norm(op.kind) && op.output.is_quantized) most = std::max(most, size_t(op.output.width));
  }
  return align_up(most * sizeof(float)) / sizeof(float);
}

void check_experts(const ProgramSpec& spec, const Operator& op) {
  const auto is_weight = [&](int index) { return index >= 0 && index < static_cast<int>(spec.linears.size()); };
  require(op.inputs.size() == 2 && op.gate_up.size() == op.down.size() && op.num_active >= 1 &&
              static_cast<int>(op.down.size()) == op.inputs[1].width && op.num_active <= op.inputs[1].width,
          "experts: one gate_up and one down an expert");
  for (size_t e = 0; e < op.down.size(); e++) {
    require(is_weight(op.gate_up[e]) && is_weight(op.down[e]), "experts: no such weight");
    const auto &up = spec.linears[op.gate_up[e]], &down = spec.linears[op.down[e]];
    require(up.segments.size() == 2 && up.segments[0].n == up.segments[1].n && up.segments[0].k == op.inputs[0].width &&
                down.segments.size() == 1 && down.segments[0].k == up.segments[0].n &&
                down.segments[0].n == op.output.width && down.segments[0].k == spec.linears[op.down[0]].segments[0].k,
            "experts: gate and up are like halves, down leads back");
  }
}

void check_op(const ProgramSpec& spec, const Operator& op, const KvSpec& kv) {
  if (op.kind == OpKind::Embed || op.kind == OpKind::Linear)
    require(op.linear >= 0 && op.linear < static_cast<int>(spec.linears.size()), "linear: no such weight");
  if (is_norm(op.kind)) {
    require(op.vector >= 0 && op.vector < static_cast<int>(spec.vectors.size()), "norm: no such weight");
    const size_t width = op.output.width, length = spec.vectors[op.vector].size();
    require(op.kind == OpKind::LayerNorm ? length == 2 * width : length > 0 && width % length == 0,
            "norm: weight and width differ");
  }
  if (op.kind == OpKind::RopeAngles)
    require(op.divisors.empty() || static_cast<int>(op.divisors.size()) == op.dim / 2, "rope_angles: a divisor a pair");
  if (op.kind == OpKind::Linear) {
    for (const RawSegment& s : spec.linears[op.linear].segments)
      require(std::count(op.groups.begin(), op.groups.end(), activation_group(s.type)) == 1,
              "linear: a segment's activation group is not among its inputs");
    require(op.inputs.size() == op.groups.size() + (op.has_residual ? 1 : 0), "linear: inputs and groups differ");
  }
  require(op.soft_cap >= 0 && op.soft_cap < __builtin_inff(), "soft_cap needs 0 or more");
  if (op.is_gated) {
    const auto& halves = spec.linears[op.linear].segments;
    require(halves.size() == 2 && halves[0].n == halves[1].n && op.output.width == halves[0].n && !op.has_residual &&
                (!op.output.is_quantized || op.group == 32),
            "linear: gate and up must be two like halves");
  }
  if (op.output.is_quantized)
    require((op.group == 32 || op.group == 256) && op.output.width % op.group == 0, "groups of 32 or 256, whole");
  if (op.kind == OpKind::Route)
    require(op.output.width <= kMaxExperts && op.num_active >= 1 && op.num_active <= op.output.width &&
                op.inputs.size() == 1 && op.inputs[0].width == op.output.width,
            "route: needs up to 1024 experts and fewer active");
  if (op.kind == OpKind::Experts) check_experts(spec, op);
  if (op.kind == OpKind::Take)
    require(op.output.rows != RowsOf::Tokens && op.inputs.size() == 1 && op.inputs[0].rows == RowsOf::Tokens &&
                op.inputs[0].width == op.output.width,
            "take: needs rows of tokens");
  if (op.kind != OpKind::Attention) return;
  require(op.layer >= 0 && op.layer < kv.num_layers, "attention: layer is not in the cache");
  require(op.num_kv_heads == kv.num_kv_heads && op.head_dim == kv.head_dim, "attention: heads differ from the cache");
  require(op.num_heads > 0 && op.num_heads % op.num_kv_heads == 0, "attention: heads do not share KV heads evenly");
  require(op.window >= 0, "attention: window needs 0 or more");
}

// Whole tensors of the largest step must lie in the arena (Python planned it; this is memory's door).
void check_tensor(const ProgramSpec& spec, const TensorRef& t, const Limits& limits) {
  const size_t bytes = t.is_quantized ? size_t{1} : max_rows(t, limits) * t.stride * sizeof(float);
  require(t.width >= 1 && t.column >= 0 && t.column + t.width <= t.stride && t.offset % kAlignment == 0 &&
              t.offset <= spec.arena_bytes && bytes <= spec.arena_bytes - t.offset,
          "a tensor lies outside the arena");
}

void check_spec(const ProgramSpec& spec, const KvSpec& kv, const Limits& limits, int num_threads) {
  require(num_threads >= 1 && num_threads <= 1024, "num_threads: needs 1 to 1024");
  require(limits.max_num_tokens >= 1 && limits.max_num_logit_rows >= 1 && limits.max_num_seqs >= 1 &&
              limits.num_blocks >= 1 && limits.max_blocks_per_seq >= 1,
          "limits: each needs at least 1");
  require(kv.num_layers >= 1 && kv.num_kv_heads >= 1 && kv.head_dim >= 16 && kv.head_dim % 16 == 0 &&
              kv.block_size >= 16 && kv.block_size % 16 == 0,
          "kv: head_dim and block_size need multiples of 16");
  require(int64_t{limits.num_blocks} * kv.block_size <= INT32_MAX, "limits: more slots than 2^31 - 1");
  require(int64_t{limits.max_blocks_per_seq} * kv.block_size <= INT32_MAX, "limits: a sequence beyond 2^31 - 1");
  for (const RawLinear& linear : spec.linears) {
    require(!linear.segments.empty() && linear.segments.size() <= kMaxSegments, "linear: needs 1 to 8 segments");
    for (const RawSegment& s : linear.segments)
      require(!s.data || s.num_bytes == s.n * block_row_bytes(s.type, s.k), "linear: data is not whole rows");
  }
  for (const Operator& op : spec.ops) {
    check_op(spec, op, kv);
    for (const TensorRef& t : op.inputs) check_tensor(spec, t, limits);
    check_tensor(spec, op.output, limits);
  }
  check_tensor(spec, spec.logits, limits);
  require(spec.logits.rows == RowsOf::Logits && spec.logits.width == spec.logits.stride,
          "logits: needs whole logit rows");
  if (spec.pooled.width == 0) return;
  check_tensor(spec, spec.pooled, limits);
  require(spec.pooled.rows == RowsOf::Pooled && !spec.pooled.is_quantized, "pooled: needs pooled rows of floats");
}

}  // namespace

Sizes Executor::sizes(const ProgramSpec& spec, const KvSpec& kv, const Limits& limits, int num_threads,
                      const KernelTable& table) {
  check_spec(spec, kv, limits, num_threads);
  Sizes sizes{};
  sizes.packed = packed_bytes(spec);
  sizes.kv = Attention::kv_block_bytes(kv) * limits.num_blocks;
  sizes.arena = spec.arena_bytes;
  sizes.logits = size_t{4} * limits.max_num_logit_rows * spec.logits.width;
  sizes.scratch = Sampler::scratch_bytes(spec.logits.width, limits.max_num_logit_rows, num_threads) +
                  sizeof(float) * row_floats(spec, limits) * num_threads + experts_bytes(spec, limits, table) +
                  Attention::scratch_bytes(kv, limits, num_threads);
  return sizes;
}

Executor::Executor(const ProgramSpec& spec, const KvSpec& kv, const Limits& limits, const ThreadOptions& threads,
                   const KernelTable& table)
    : table_(table),
      kv_(kv),
      limits_(limits),
      ops_(spec.ops),
      logits_(spec.logits),
      pooled_(spec.pooled),
      vocab_size_(spec.logits.width),
      sizes_(sizes(spec, kv, limits, threads.num_threads, table)),
      ahead_(std::make_unique<Ahead[]>(threads.num_threads)),
      packed_(sizes_.packed),
      kv_pool_(sizes_.kv),
      arena_(sizes_.arena),
      scratch_(sizes_.scratch),
      block_bytes_(Attention::kv_block_bytes(kv)),
      pool_(with_hooks(threads)) {
  const FloatControl control;
  const int num_threads = threads.num_threads;
  pack(spec);
  num_token_ids_ = vocab_size_;
  for (const Operator& op : ops_) {
    if (op.kind != OpKind::Embed) continue;
    int num_rows = 0;
    for (const PackedSegment& s : linears_[op.linear].segments) num_rows += s.n;
    (op.is_positions ? num_positions_ : num_token_ids_) = num_rows;
  }
  frequencies_.resize(ops_.size());
  for (size_t i = 0; i < ops_.size(); i++) {
    if (ops_[i].kind != OpKind::RopeAngles) continue;
    frequencies_[i].resize(ops_[i].dim / 2);
    table_.rope_frequencies(ops_[i].theta, ops_[i].dim, frequencies_[i].data());
    for (size_t pair = 0; pair < ops_[i].divisors.size(); pair++) frequencies_[i][pair] /= ops_[i].divisors[pair];
  }
  for (auto* ids : {&chosen_ids_, &ids_before_}) ids->reserve(limits.max_num_logit_rows);
  token_ids_.reserve(limits.max_num_tokens);
  row_floats_ = row_floats(spec, limits);
  row_scratch_ = reinterpret_cast<float*>(scratch_.data());
  uint8_t* rest = scratch_.data() + sizeof(float) * row_floats_ * num_threads;
  experts_scratch_ = rest;
  rest += experts_bytes(spec, limits, table_);
  int max_num_heads = 1;
  for (const Operator& op : ops_) max_num_heads = std::max(max_num_heads, op.num_heads);
  attention_ = std::make_unique<Attention>(table_, kv, limits, num_threads, max_num_heads, kv_pool_.data(), rest);
  rest += Attention::scratch_bytes(kv, limits, num_threads);
  sampler_ = std::make_unique<Sampler>(table_, vocab_size_, limits.max_num_logit_rows, num_threads, rest);
  for (const Operator& op : ops_)
    if (op.kind == OpKind::Linear) linears_[op.linear].is_gated = op.is_gated;
  next_linear_.assign(ops_.size(), -1);
  for (size_t i = ops_.size(); i-- > 1;)
    next_linear_[i - 1] = ops_[i].kind == OpKind::Linear ? ops_[i].linear : next_linear_[i];
}

void Executor::pack(const ProgramSpec& spec) {
  struct Item {
    const RawSegment* raw;
    int n_block;
    uint8_t* out;
  };
  std::vector<Item> items;
  uint8_t* at = packed_.data();
  const auto place = [&at](const std::vector<float>& values) {
    const float* placed = reinterpret_cast<const float*>(at);
    std::memcpy(at, values.data(), values.size() * sizeof(float));
    at += align_up(values.size() * sizeof(float));
    return placed;
  };
  for (const RawLinear& raw : spec.linears) {
    Linear linear;
    int first_block = 0;
    for (const RawSegment& s : raw.segments) {
      const size_t block_bytes = packed_block_bytes(s.type, s.k);
      linear.segments.push_back({s.type, s.n, s.k, at, block_bytes});
      linear.first_block.push_back(first_block);
      linear.is_filled.push_back(s.data != nullptr);
      if (!s.data) num_unfilled_++;
      for (int b = 0; s.data && b < num_blocks_of(s.n); b++) items.push_back({&s, b, at + b * block_bytes});
      first_block += num_blocks_of(s.n);
      at += align_up(num_blocks_of(s.n) * block_bytes);
    }
    linear.first_block.push_back(first_block);
    linear.end = at;
    if (!raw.bias.empty()) linear.bias = place(raw.bias);
    linears_.push_back(std::move(linear));
  }
  for (const auto& vector : spec.vectors) {
    vectors_.push_back(place(vector));
    vector_lengths_.push_back(static_cast<int>(vector.size()));
  }
  pool_.run(static_cast<int>(items.size()), [&](int i, int) {
    const Item& item = items[i];
    pack_block(item.raw->type, item.raw->data, item.raw->n, item.raw->k, item.n_block, item.out);
  });
  if (num_unfilled_ == 0) packed_.make_read_only();
}

void Executor::fill(int linear, int segment, const uint8_t* data, size_t num_bytes) {
  Linear& l = linears_.at(linear);
  const PackedSegment& s = l.segments.at(segment);
  require(!l.is_filled[segment], "fill: the segment has its weights");
  require(num_bytes == s.n * block_row_bytes(s.type, s.k), "fill: data is not whole rows");
  uint8_t* out = packed_.data() + (s.data - packed_.data());
  pool_.run(num_blocks_of(s.n),
            [&](int b, int) { pack_block(s.type, data, s.n, s.k, b, out + static_cast<size_t>(b) * s.block_bytes); });
  l.is_filled[segment] = 1;
  if (--num_unfilled_ == 0) packed_.make_read_only();
}

const uint8_t* Executor::packed(int linear, int segment, size_t* num_bytes) const {
  const PackedSegment& s = linears_.at(linear).segments.at(segment);
  *num_bytes = num_blocks_of(s.n) * s.block_bytes;
  return s.data;
}

// With the ids that the step before chose put in their places.
Batch Executor::checked(const Batch& given, const std::vector<int32_t>& chosen) {
  Batch batch = given;
  const auto end = given.token_ids + given.num_tokens;
  if (std::any_of(given.token_ids, end, [](int32_t id) { return id < 0; })) {
    token_ids_.assign(given.token_ids, end);
    for (int32_t& id : token_ids_) {
      if (id >= 0) continue;
      const int64_t row = -1 - int64_t{id};
      require(row < static_cast<int64_t>(chosen.size()), "token_ids: the step before chose nothing for that row");
      id = chosen[static_cast<size_t>(row)];
    }
    batch.token_ids = token_ids_.data();
  }
  check_batch(batch, kv_, limits_, num_token_ids_, num_positions_);
  return batch;
}

void Executor::forward(const Batch& batch, float* logits) {
  compute(batch);
  num_computed_rows_ = 0;
  copy_rows(logits_, batch.num_logit_rows, logits);
}

void Executor::copy_rows(const TensorRef& t, int num_rows, float* out) const {
  for (ptrdiff_t r = 0; r < num_rows; r++)
    std::memcpy(out + r * t.width, at(t) + r * t.stride, sizeof(float) * t.width);
}

void Executor::step(const Batch& batch, const Sampling& sampling, const Sampled& out) {
  const auto& chosen = take_chosen();
  check_sampling(sampling, batch.num_logit_rows, out.max_logprobs, vocab_size_);
  compute(batch, chosen);
  choose(sampling, out);
}

void Executor::compute(const Batch& batch) { compute(batch, take_chosen()); }

// A step that throws leaves none to the next. The two keep their memory: no step allocates.
const std::vector<int32_t>& Executor::take_chosen() {
  ids_before_.swap(chosen_ids_);
  chosen_ids_.clear();
  return ids_before_;
}

void Executor::compute(const Batch& given, const std::vector<int32_t>& chosen) {
  num_computed_rows_ = 0;
  require(num_unfilled_ == 0, "a segment has no weights: its blocks were released");
  require(given.num_pooled_rows == 0 || (pooled_.width > 0 && given.pooled), "pooled_rows: the program has none");
  const Batch batch = checked(given, chosen);
  const FloatControl control;
  run(batch);
  copy_rows(pooled_, batch.num_pooled_rows, batch.pooled);
  num_computed_rows_ = batch.num_logit_rows;
}

void Executor::choose(const Sampling& sampling, const Sampled& out) {
  const int num_rows = std::exchange(num_computed_rows_, 0);
  if (num_rows == 0) return;
  check_sampling(sampling, num_rows, out.max_logprobs, vocab_size_);
  const FloatControl control;
  timed(ops_.size(), [&] { sampler_->run(pool_, at(logits_), num_rows, sampling, out); });
  chosen_ids_.assign(out.token_ids, out.token_ids + num_rows);
}

void Executor::start_profile() { profile_ns_.assign(ops_.size() + 1, 0); }

void Executor::copy_block(int source, int target) {
  require(source >= 0 && source < limits_.num_blocks && target >= 0 && target < limits_.num_blocks,
          "copy_block: no such block");
  std::memmove(kv_pool_.data() + target * block_bytes_, kv_pool_.data() + source * block_bytes_, block_bytes_);
}

void Executor::wipe_block(int block) {
  require(block >= 0 && block < limits_.num_blocks, "wipe_block: no such block");
  std::memset(kv_pool_.data() + block * block_bytes_, 0, block_bytes_);
}

void Executor::run(const Batch& batch) {
  attention_->start_step();
  for (size_t i = 0; i < ops_.size(); i++)
    if (rows_of(ops_[i].output, batch) > 0) timed(i, [&] { run_op(ops_[i], batch); });
}

void Executor::run_op(const Operator& op, const Batch& batch) {
  const int rows = rows_of(op.output, batch);
  float* out = at(op.output);
  const ptrdiff_t stride = op.output.stride, width = op.output.width;
  const auto row_of = [this](const TensorRef& t, int row) { return at(t) + static_cast<ptrdiff_t>(row) * t.stride; };
  switch (op.kind) {
    case OpKind::Embed:
      return run_embed(op, batch);
    case OpKind::Linear:
      return run_linear(op, rows);
    case OpKind::QuantizeRows:
      return run_quantize(op, rows);
    case OpKind::RopeAngles:
      return run_rope_angles(op, batch);
    case OpKind::Attention:
      return run_attention(op, batch);
    case OpKind::RmsNorm:
    case OpKind::LayerNorm:
      return run_norm(op, rows);
    case OpKind::Rope:
      return for_rows(rows, 0.5 * width, [&](int r, int) {
        table_.rope_row(out + r * stride, row_of(op.inputs[1], r), op.num_heads, op.head_dim, op.inputs[1].width,
                        op.is_adjacent);
      });
    case OpKind::Gated:
      return for_rows(rows, 0.6 * width, [&](int r, int) {
        table_.gated_rows(row_of(op.inputs[0], r), 0, 1, op.output.width, op.activation, out + r * stride, 0);
      });
    case OpKind::Activate:
      return for_rows(rows, 0.6 * width, [&](int r, int) {
        table_.activate_row(row_of(op.inputs[0], r), op.output.width, op.activation, out + r * stride);
      });
    case OpKind::Scale:
      return for_rows(rows, 0.1 * width, [&](int r, int) {
        table_.scale_row(row_of(op.inputs[0], r), op.output.width, op.scale, out + r * stride);
      });
    case OpKind::SoftCap:
      return for_rows(rows, 0.6 * width, [&](int r, int) {
        table_.soft_cap_row(row_of(op.inputs[0], r), op.output.width, op.soft_cap, out + r * stride);
      });
    case OpKind::Add:
      return for_rows(rows, 0.1 * width, [&](int r, int) {
        table_.add_row(row_of(op.inputs[0], r), row_of(op.inputs[1], r), op.output.width, out + r * stride);
      });
    case OpKind::Route:
      return for_rows(rows, 2.0 * width * op.num_active, [&](int r, int) {
        table_.route_row(row_of(op.inputs[0], r), op.output.width, op.num_active, op.is_normalised, out + r * stride);
      });
    case OpKind::Experts:
      return run_experts(op, rows);
    case OpKind::GateRows:
      return for_rows(rows, 0.1 * width, [&](int r, int) {
        table_.sigmoid_scaled_row(row_of(op.inputs[0], r), *row_of(op.inputs[1], r), op.output.width, out + r * stride);
      });
    case OpKind::Take:
      return for_rows(rows, 0.1 * width, [&](int r, int) {
        const int row = op.output.rows == RowsOf::Pooled ? batch.pooled_rows[r] : batch.logit_rows[r];
        std::memcpy(out + r * stride, row_of(op.inputs[0], row), sizeof(float) * width);
      });
  }
}

void Executor::run_embed(const Operator& op, const Batch& batch) {
  const Linear& linear = linears_[op.linear];
  for_rows(batch.num_tokens, 1.0 * op.output.width, [&](int row, int) {
    int id = op.is_positions ? batch.positions[row] : batch.token_ids[row];
    size_t s = 0;
    while (id >= linear.segments[s].n) id -= linear.segments[s++].n;
    table_.embed_row(linear.segments[s], id, at(op.output) + static_cast<ptrdiff_t>(row) * op.output.stride);
  });
}

void Executor::run_norm(const Operator& op, int num_rows) {
  const TensorRef &x = op.inputs[0], &y = op.output;
  const int length = vector_lengths_[op.vector];
  uint8_t* quantized = arena_.data() + y.offset;
  for_rows(num_rows, (y.is_quantized ? 0.6 : 0.1) * y.width, [&](int row, int worker) {
    float* out = y.is_quantized ? row_scratch(worker) : at(y) + static_cast<ptrdiff_t>(row) * y.stride;
    const float* in = at(x) + static_cast<ptrdiff_t>(row) * x.stride;
    if (op.kind == OpKind::LayerNorm) table_.layer_norm_row(in, vectors_[op.vector], y.width, op.eps, out);
    else
      for (int i = 0; i < y.width; i += length)  // heads, each by itself, or the whole row
        table_.rms_norm_row(in + i, vectors_[op.vector], length, op.eps, out + i);
    if (y.is_quantized)
      table_.quantize_row(out, num_rows, y.width, op.group, row, quantized);
  }, y.is_quantized ? kQuantizeAloneNs : kAloneNs);
}

void Executor::run_quantize(const Operator& op, int num_rows) {
  const TensorRef& x = op.inputs[0];
  uint8_t* out = arena_.data() + op.output.offset;
  if (op.by_columns)
    return for_rows(x.width / op.group, 0.5 * op.group * num_rows, [&](int column, int) {
      table_.quantize_column(at(x) + column * op.group, x.stride, num_rows, x.width, op.group, column, out);
    }, kQuantizeAloneNs);
  for_rows(num_rows, 0.5 * x.width, [&](int row, int) {
    table_.quantize_row(at(x) + static_cast<ptrdiff_t>(row) * x.stride, num_rows, x.width, op.group, row,
                        out);
  }, kQuantizeAloneNs);
}

void Executor::run_rope_angles(const Operator& op, const Batch& batch) {
  const auto& frequencies = frequencies_[&op - ops_.data()];
  for_rows(batch.num_tokens, 20.0 * op.dim, [&](int row, int) {
    table_.rope_angles_row(batch.positions[row], frequencies.data(), op.dim, op.magnitude,
                           at(op.output) + static_cast<ptrdiff_t>(row) * op.output.stride);
  });
}

void Executor::run_attention(const Operator& op, const Batch& batch) {
  const auto rows = [this](const TensorRef& t) { return AttentionOp::Rows{at(t), t.stride}; };
  attention_->run(pool_,
                  {op.layer, op.num_heads, op.scale, op.soft_cap, op.window, rows(op.inputs[0]), rows(op.inputs[1]),
                   rows(op.inputs[2]), rows(op.output)},
                  batch);
}

}  // namespace insitu
