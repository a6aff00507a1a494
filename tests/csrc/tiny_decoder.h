// A random decoder as the executor takes it: operators, weights, an arena where nothing shares bytes.
// Not here: any check. Always true: the same shape gives the same weights on every machine.
#pragma once
#include <algorithm>
#include <array>
#include <initializer_list>

#include "program.h"
#include "random_weights.h"

namespace insitu {

struct Shape {
  const char* name;
  int hidden, heads, kv_heads, head_dim, inner, vocab, layers, block_size;
  KvType kv_type;
  bool is_adjacent;
  BlockType embedding, q, k, v, o, up, down, head;
  int experts = 0;  // of every other layer, two a row; 0: all layers are dense
  int window = 0;
  float soft_cap = 0;  // of attention scores

  KvSpec kv() const { return {layers, kv_heads, head_dim, block_size, kv_type}; }
};

class TinyDecoder {
 public:
  // Fused: norms and gates write int8 rows themselves, as the passes of kernels/passes.py leave them.
  TinyDecoder(const Shape& shape, const Limits& limits, const KernelTable& table, bool is_fused)
      : shape_(shape), limits_(limits), table_(table), is_fused_(is_fused) {
    record();
  }
  ProgramSpec spec{};

 private:
  using Segments = std::initializer_list<std::pair<BlockType, int>>;

  TensorRef place(int width, size_t bytes, RowsOf rows, bool is_quantized) {
    const TensorRef t{spec.arena_bytes, width, 0, width, rows, is_quantized};
    spec.arena_bytes += align_up(bytes);
    return t;
  }
  int max_rows(RowsOf rows) const { return rows == RowsOf::Tokens ? limits_.max_num_tokens : limits_.max_num_logit_rows; }
  TensorRef tensor(int width, RowsOf rows = RowsOf::Tokens) {
    return place(width, sizeof(float) * max_rows(rows) * width, rows, false);
  }
  static TensorRef columns(TensorRef t, int column, int width) {
    t.column += column;
    t.width = width;
    return t;
  }
  Operator& add(OpKind kind, std::vector<TensorRef> inputs, TensorRef output) {
    Operator op{};
    op.kind = kind;
    op.inputs = std::move(inputs);
    op.output = output;
    spec.ops.push_back(op);
    return spec.ops.back();
  }

  int weight(Segments segments, int k, bool has_bias) {
    RawLinear linear;
    for (const auto& [type, n] : segments) {
      raw_.push_back(random_rows(rng_, type, n, k));
      linear.segments.push_back({type, n, k, raw_.back().data(), raw_.back().size()});
      for (int i = 0; has_bias && i < n; i++) linear.bias.push_back(rng_.unit());
    }
    spec.linears.push_back(linear);
    return static_cast<int>(spec.linears.size()) - 1;
  }

  // The one form a norm before these may write itself; 0: floats.
  int fused_group(Segments segments) const {
    const int first = activation_group(segments.begin()->first);
    const auto is_like = [&](const auto& s) { return activation_group(s.first) == first; };
    return is_fused_ && std::all_of(segments.begin(), segments.end(), is_like) ? first : 0;
  }

  Operator& multiply(TensorRef x, Segments segments, bool has_bias, TensorRef out) {
    std::vector<int> groups;
    std::vector<TensorRef> inputs;
    for (const auto& [type, n] : segments) {
      const int group = activation_group(type);
      if (std::count(groups.begin(), groups.end(), group)) continue;
      groups.push_back(group);
      inputs.push_back(group && !x.is_quantized ? quantize(x, group) : x);
    }
    const int index = weight(segments, x.width, has_bias);
    Operator& op = add(OpKind::Linear, inputs, out);
    op.linear = index;
    op.groups = groups;
    return op;
  }
  TensorRef linear(TensorRef x, Segments segments, bool has_bias, const TensorRef* residual) {
    int width = 0;
    for (const auto& [type, n] : segments) width += n;
    const TensorRef out = tensor(width, x.rows);
    Operator& op = multiply(x, segments, has_bias, out);
    if (residual) op.inputs.push_back(*residual);
    op.has_residual = residual != nullptr;
    return out;
  }
  // silu(gate) * up, as `down` will take it.
  TensorRef gated(TensorRef x) {
    const Segments up = {{shape_.up, shape_.inner}, {shape_.up, shape_.inner}};
    const TensorRef h = norm(x, fused_group(up));
    if (!is_fused_) {
      const TensorRef both = linear(h, up, false, nullptr), out = tensor(shape_.inner);
      add(OpKind::Gated, {both}, out);
      return out;
    }
    const bool is_quantized = activation_group(shape_.down) == 32;
    const TensorRef out = is_quantized ? quantized(shape_.inner, 32, RowsOf::Tokens) : tensor(shape_.inner);
    Operator& op = multiply(h, up, false, out);
    op.is_gated = true;
    op.group = is_quantized ? 32 : 0;
    return out;
  }
  TensorRef mixture(TensorRef x) {
    const TensorRef h = norm(x, 0), logits = linear(h, {{BlockType::F32, shape_.experts}}, false, nullptr);
    const TensorRef routing = tensor(shape_.experts), mixed = tensor(shape_.hidden), sum = tensor(shape_.hidden);
    Operator& route = add(OpKind::Route, {logits}, routing);
    route.num_active = 2;
    route.is_normalised = true;
    Operator& op = add(OpKind::Experts, {h, routing}, mixed);
    op.num_active = 2;
    for (int e = 0; e < shape_.experts; e++) {
      op.gate_up.push_back(weight({{shape_.up, shape_.inner}, {shape_.up, shape_.inner}}, shape_.hidden, false));
      op.down.push_back(weight({{shape_.down, shape_.hidden}}, shape_.inner, false));
    }
    add(OpKind::Add, {x, mixed}, sum);
    return sum;
  }
  TensorRef quantized(int width, int group, RowsOf rows) {
    return place(width, table_.quantized_bytes(max_rows(rows), width, group), rows, true);
  }
  TensorRef quantize(TensorRef x, int group) {
    const TensorRef out = quantized(x.width, group, x.rows);
    Operator& op = add(OpKind::QuantizeRows, {x}, out);
    op.group = group;
    op.by_columns = !std::count(normed_.begin(), normed_.end(), x.offset);
    return out;
  }
  TensorRef norm(TensorRef x, int group) {
    std::vector<float> weights(x.width);
    for (float& w : weights) w = 1.0f + 0.25f * rng_.unit();
    spec.vectors.push_back(weights);
    const TensorRef out = group ? quantized(x.width, group, x.rows) : tensor(x.width, x.rows);
    Operator& op = add(OpKind::RmsNorm, {x}, out);
    op.vector = static_cast<int>(spec.vectors.size()) - 1;
    op.eps = 1e-5f;
    op.group = group;
    normed_.push_back(out.offset);
    return out;
  }
  TensorRef taken(TensorRef x, RowsOf rows) {
    const TensorRef out = tensor(x.width, rows);
    add(OpKind::Take, {x}, out);
    if (std::count(normed_.begin(), normed_.end(), x.offset)) normed_.push_back(out.offset);
    return out;
  }
  void rope(TensorRef x, TensorRef angles, int heads) {
    Operator& op = add(OpKind::Rope, {x, angles}, x);
    op.num_heads = heads;
    op.head_dim = shape_.head_dim;
    op.is_adjacent = shape_.is_adjacent;
  }
  TensorRef attention(TensorRef qkv, int layer) {
    const int width = shape_.heads * shape_.head_dim, kv_width = shape_.kv_heads * shape_.head_dim;
    const TensorRef q = columns(qkv, 0, width), k = columns(qkv, width, kv_width),
                    v = columns(qkv, width + kv_width, kv_width);
    rope(q, angles_, shape_.heads);
    rope(k, angles_, shape_.kv_heads);
    const TensorRef out = tensor(width);
    Operator& op = add(OpKind::Attention, {q, k, v}, out);
    op.layer = layer;
    op.num_heads = shape_.heads;
    op.num_kv_heads = shape_.kv_heads;
    op.head_dim = shape_.head_dim;
    op.scale = 0.125f;
    op.window = shape_.window;
    op.soft_cap = shape_.soft_cap;
    return out;
  }

  void record() {
    const Shape& s = shape_;
    const int width = s.heads * s.head_dim, kv_width = s.kv_heads * s.head_dim;
    TensorRef x = tensor(s.hidden);
    const int embedding = weight({{s.embedding, s.vocab}}, s.hidden, false);
    add(OpKind::Embed, {}, x).linear = embedding;
    angles_ = tensor(s.head_dim);
    Operator& angles = add(OpKind::RopeAngles, {}, angles_);
    angles.theta = 10000.0;
    angles.dim = s.head_dim;
    for (int layer = 0; layer < s.layers; layer++) {
      const Segments types = {{s.q, width}, {s.k, kv_width}, {s.v, kv_width}};
      const TensorRef qkv = linear(norm(x, fused_group(types)), types, true, nullptr);
      x = linear(attention(qkv, layer), {{s.o, s.hidden}}, false, &x);
      if (s.experts && layer % 2 == 0) {
        x = mixture(x);
        continue;
      }
      const TensorRef h = gated(x);
      if (layer % 2 == 0) {
        x = linear(h, {{s.down, s.hidden}}, false, &x);
        continue;
      }
      const TensorRef sum = tensor(s.hidden), down = linear(h, {{s.down, s.hidden}}, false, nullptr);
      add(OpKind::Add, {x, down}, sum);
      x = sum;
    }
    const Segments head = {{s.head, s.vocab}};
    spec.logits = linear(norm(taken(x, RowsOf::Logits), fused_group(head)), head, false, nullptr);
    spec.pooled = norm(taken(x, RowsOf::Pooled), 0);
  }

  const Shape shape_;
  const Limits limits_;
  const KernelTable& table_;
  const bool is_fused_;
  Random rng_;
  std::vector<std::vector<uint8_t>> raw_;
  std::vector<size_t> normed_;  // where what norms made lies
  TensorRef angles_;
};

}  // namespace insitu
