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
  bool is_f16, is_adjacent;
  BlockType embedding, q, k, v, o, up, down, head;

  KvSpec kv() const { return {layers, kv_heads, head_dim, block_size, is_f16}; }
};

class TinyDecoder {
 public:
  TinyDecoder(const Shape& shape, const Limits& limits, const KernelTable& table)
      : shape_(shape), limits_(limits), table_(table) {
    record();
  }
  ProgramSpec spec{};

 private:
  TensorRef place(int width, size_t bytes, bool is_logit_rows, bool is_quantized) {
    const TensorRef t{spec.arena_bytes, width, 0, width, is_logit_rows, is_quantized};
    spec.arena_bytes += align_up(bytes);
    return t;
  }
  int max_rows(bool is_logit_rows) const { return is_logit_rows ? limits_.max_num_logit_rows : limits_.max_num_tokens; }
  TensorRef tensor(int width, bool is_logit_rows = false) {
    return place(width, sizeof(float) * max_rows(is_logit_rows) * width, is_logit_rows, false);
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

  int weight(std::initializer_list<std::pair<BlockType, int>> segments, int k, bool has_bias) {
    RawLinear linear;
    for (const auto& [type, n] : segments) {
      raw_.push_back(random_rows(rng_, type, n, k));
      linear.segments.push_back({type, n, k, raw_.back().data(), raw_.back().size()});
      for (int i = 0; has_bias && i < n; i++) linear.bias.push_back(rng_.unit());
    }
    spec.linears.push_back(linear);
    return static_cast<int>(spec.linears.size()) - 1;
  }

  static int group_of(BlockType type) { return block_inputs(type) == 1 ? 0 : block_inputs(type); }

  TensorRef linear(TensorRef x, std::initializer_list<std::pair<BlockType, int>> segments, bool has_bias,
                   const TensorRef* residual) {
    std::vector<int> groups;
    std::vector<TensorRef> inputs;
    int width = 0;
    for (const auto& [type, n] : segments) {
      width += n;
      const int group = group_of(type);
      if (std::count(groups.begin(), groups.end(), group)) continue;
      groups.push_back(group);
      inputs.push_back(group ? quantize(x, group) : x);
    }
    const int index = weight(segments, x.width, has_bias);
    if (residual) inputs.push_back(*residual);
    const TensorRef out = tensor(width, x.is_logit_rows);
    Operator& op = add(OpKind::Linear, inputs, out);
    op.linear = index;
    op.groups = groups;
    op.has_residual = residual != nullptr;
    return out;
  }
  TensorRef quantize(TensorRef x, int group) {
    const size_t bytes = table_.quantized_bytes(max_rows(x.is_logit_rows), x.width, group);
    const TensorRef out = place(x.width, bytes, x.is_logit_rows, true);
    add(OpKind::QuantizeRows, {x}, out).group = group;
    return out;
  }
  TensorRef norm(TensorRef x) {
    std::vector<float> weights(x.width);
    for (float& w : weights) w = 1.0f + 0.25f * rng_.unit();
    spec.vectors.push_back(weights);
    const TensorRef out = tensor(x.width, x.is_logit_rows);
    Operator& op = add(OpKind::RmsNorm, {x}, out);
    op.vector = static_cast<int>(spec.vectors.size()) - 1;
    op.eps = 1e-5f;
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
      const TensorRef qkv = linear(norm(x), {{s.q, width}, {s.k, kv_width}, {s.v, kv_width}}, true, nullptr);
      x = linear(attention(qkv, layer), {{s.o, s.hidden}}, false, &x);
      const TensorRef up = linear(norm(x), {{s.up, s.inner}, {s.up, s.inner}}, false, nullptr);
      const TensorRef gated = tensor(s.inner);
      add(OpKind::Gated, {up}, gated);
      if (layer % 2 == 0) {
        x = linear(gated, {{s.down, s.hidden}}, false, &x);
        continue;
      }
      const TensorRef sum = tensor(s.hidden), down = linear(gated, {{s.down, s.hidden}}, false, nullptr);
      add(OpKind::Add, {x, down}, sum);
      x = sum;
    }
    const TensorRef rows = tensor(s.hidden, true);
    add(OpKind::Take, {x}, rows);
    spec.logits = linear(norm(rows), {{s.head, s.vocab}}, false, nullptr);
  }

  const Shape shape_;
  const Limits limits_;
  const KernelTable& table_;
  Random rng_;
  std::vector<std::vector<uint8_t>> raw_;
  TensorRef angles_;
};

}  // namespace insitu
