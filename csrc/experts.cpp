// A mixture of experts: each row through the experts that its routing weights choose, their outputs summed.
// Rows are taken some at a time; those that chose one expert are multiplied together, and a product of a row
// is the same whoever else is there, so neither the company nor the number at a time moves a bit.
// Not here: arithmetic (the kernel table), or the choosing (route_row).
// Always true: a row's outputs are summed in order of expert; scratch is what experts_bytes said.
#include <algorithm>

#include "program.h"

namespace insitu {

namespace {

constexpr int kMaxPairs = 1024;  // (row, expert) pairs worked out at a time
constexpr int kPair = 2 * kBlockOutputs;
constexpr int kNumForms = 3;
constexpr int kFormGroups[kNumForms] = {0, 32, 256};

int rows_at_a_time(const Operator& op, const Limits& limits) {
  return std::clamp(kMaxPairs / op.num_active, 1, limits.max_num_tokens);
}

int form_of(BlockType type) {
  const int group = activation_group(type);
  return group == 0 ? 0 : group == 32 ? 1 : 2;
}

// Parts of the scratch, in order; where `base` is null they are only counted.
struct Parts {
  uint8_t* base;
  size_t used = 0;
  template <class T>
  T* take(size_t count) {
    T* at = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used += align_up(count * sizeof(T));
    return at;
  }
};

// Which forms the weights of some linears ask for, a bit each.
template <class Linears>
unsigned forms_of(const Linears& linears, const std::vector<int>& indices) {
  unsigned forms = 0;
  for (int index : indices)
    for (const auto& segment : linears[index].segments) forms |= 1u << form_of(segment.type);
  return forms;
}

// One row a pair, in each form that is asked for: floats, int8 in groups of 32, of 256. An expert's pairs
// lie together, as one tensor of as many rows.
struct Forms {
  uint8_t* at[kNumForms] = {};
  size_t row_bytes[kNumForms] = {};
  int k;

  Forms(Parts& parts, const KernelTable& table, unsigned wanted, int k, int num_pairs) : k(k) {
    for (int i = 0; i < kNumForms; i++) {
      const int group = kFormGroups[i];
      if (!(wanted >> i & 1)) continue;
      row_bytes[i] = group ? table.quantized_bytes(1, k, group) : sizeof(float) * k;
      at[i] = parts.take<uint8_t>(row_bytes[i] * num_pairs);
    }
  }

  // Row `row` of the `num_rows` that begin at pair `first`.
  void write(const KernelTable& table, BlockType type, const float* x, int first, int num_rows, int row) const {
    const int form = form_of(type);
    uint8_t* out = at[form] + row_bytes[form] * first;
    if (form == 0) std::copy_n(x, k, reinterpret_cast<float*>(out) + static_cast<ptrdiff_t>(k) * row);
    else table.quantize_row(x, num_rows, k, kFormGroups[form], row, out);
  }

  Activations read(BlockType type, int first, int num_rows) const {
    const int form = form_of(type);
    const uint8_t* rows = at[form] + row_bytes[form] * first;
    return {num_rows, k, kFormGroups[form], reinterpret_cast<const float*>(rows), k, form ? rows : nullptr};
  }
};

struct Work {
  int num_pairs, width;     // width: of an expert within
  Forms in, inner;
  float *gated, *out;       // [pairs, width], [pairs, hidden]
  int *row_of, *expert_of;  // of a pair
  int *first_pair;          // of an expert, then the number of all
  int *pairs_of, *count;    // of a row: [rows, num_active], in order of expert, and how many

  template <class Linears>
  Work(Parts& parts, const KernelTable& table, const Operator& op, const Linears& linears, int max_rows)
      : num_pairs(max_rows * op.num_active),
        width(linears[op.down[0]].segments[0].k),
        in(parts, table, forms_of(linears, op.gate_up), op.inputs[0].width, num_pairs),
        inner(parts, table, forms_of(linears, op.down), width, num_pairs),
        gated(parts.take<float>(size_t{1} * num_pairs * width)),
        out(parts.take<float>(size_t{1} * num_pairs * op.output.width)),
        row_of(parts.take<int>(num_pairs)),
        expert_of(parts.take<int>(num_pairs)),
        first_pair(parts.take<int>(op.down.size() + 1)),
        pairs_of(parts.take<int>(num_pairs)),
        count(parts.take<int>(max_rows)) {}

  // A weight of 0 is an expert not chosen.
  void choose(const Operator& op, const float* weights, ptrdiff_t stride, int num_rows) {
    const int experts = static_cast<int>(op.down.size());
    std::fill_n(count, num_rows, 0);
    num_pairs = 0;
    for (int e = 0; e < experts; e++) {
      first_pair[e] = num_pairs;
      for (int row = 0; row < num_rows; row++) {
        if (weights[row * stride + e] == 0 || count[row] == op.num_active) continue;
        pairs_of[row * op.num_active + count[row]++] = num_pairs;
        row_of[num_pairs] = row;
        expert_of[num_pairs++] = e;
      }
    }
    first_pair[experts] = num_pairs;
  }
  int rows_of(int expert) const { return first_pair[expert + 1] - first_pair[expert]; }
};

}  // namespace

size_t experts_bytes(const ProgramSpec& spec, const Limits& limits, const KernelTable& table) {
  size_t most = 0;
  for (const Operator& op : spec.ops) {
    if (op.kind != OpKind::Experts) continue;
    Parts parts{nullptr};
    Work(parts, table, op, spec.linears, rows_at_a_time(op, limits));
    most = std::max(most, parts.used);
  }
  return most;
}

void Executor::run_experts(const Operator& op, int num_rows) {
  const int most = rows_at_a_time(op, limits_);
  for (int first = 0; first < num_rows; first += most) run_chosen(op, first, std::min(most, num_rows - first));
}

// An item of the two products is (expert that was chosen, n-block), whatever number of rows it has.
void Executor::run_chosen(const Operator& op, int first_row, int num_rows) {
  const auto row_at = [&](const TensorRef& t, int row) {
    return at(t) + static_cast<ptrdiff_t>(first_row + row) * t.stride;
  };
  const int hidden = op.output.width, experts = static_cast<int>(op.down.size());
  Parts parts{experts_scratch_};
  Work work(parts, table_, op, linears_, rows_at_a_time(op, limits_));
  work.choose(op, row_at(op.inputs[1], 0), op.inputs[1].stride, num_rows);
  // activation(gate) * up of one n-block of an expert's columns, of all its rows.
  const auto gate_block = [&](const Linear& gate_up, int e, int block, float* rows) {
    const int first = block * kBlockOutputs, width = std::min(kBlockOutputs, work.width - first);
    const int first_pair = work.first_pair[e];
    for (int half = 0; half < 2; half++) {
      PackedSegment rest = gate_up.segments[half];  // from this block on: it becomes block 0
      rest.data += static_cast<size_t>(block) * rest.block_bytes;
      rest.n -= first;
      const float* bias = gate_up.bias ? gate_up.bias + half * work.width + first : nullptr;
      table_.matmul_block(rest, 0, work.in.read(rest.type, first_pair, work.rows_of(e)), {bias, nullptr, 0},
                          rows + half * width, kPair);
    }
    table_.gated_rows(rows, kPair, work.rows_of(e), width, op.activation,
                      work.gated + static_cast<ptrdiff_t>(first_pair) * work.width + first, work.width);
  };

  pool_.run(work.num_pairs, [&](int pair, int) {
    const int e = work.expert_of[pair], first = work.first_pair[e];
    const auto& halves = linears_[op.gate_up[e]].segments;
    const float* x = row_at(op.inputs[0], work.row_of[pair]);
    work.in.write(table_, halves[0].type, x, first, work.rows_of(e), pair - first);
    if (form_of(halves[1].type) != form_of(halves[0].type))
      work.in.write(table_, halves[1].type, x, first, work.rows_of(e), pair - first);
  });
  const int inner_blocks = (work.width + kBlockOutputs - 1) / kBlockOutputs;
  pool_.run(experts * inner_blocks, [&](int item, int worker) {
    const int e = item / inner_blocks, block = item % inner_blocks;
    if (work.rows_of(e) > 0) gate_block(linears_[op.gate_up[e]], e, block, row_scratch(worker));
  });
  pool_.run(work.num_pairs, [&](int pair, int) {
    const int e = work.expert_of[pair], first = work.first_pair[e];
    work.inner.write(table_, linears_[op.down[e]].segments[0].type, work.gated + static_cast<ptrdiff_t>(pair) * work.width,
                     first, work.rows_of(e), pair - first);
  });
  const int blocks = (hidden + kBlockOutputs - 1) / kBlockOutputs;
  pool_.run(experts * blocks, [&](int item, int) {
    const int e = item / blocks, first = work.first_pair[e];
    if (work.rows_of(e) == 0) return;
    const Linear& down = linears_[op.down[e]];
    table_.matmul_block(down.segments[0], item % blocks, work.inner.read(down.segments[0].type, first, work.rows_of(e)),
                        {down.bias, nullptr, 0}, work.out + static_cast<ptrdiff_t>(first) * hidden, hidden);
  });
  for_rows(num_rows, 0.2 * hidden * op.num_active, [&](int row, int) {
    float* out = row_at(op.output, row);
    std::fill_n(out, hidden, 0.0f);
    for (int i = 0; i < work.count[row]; i++) {
      const int pair = work.pairs_of[row * op.num_active + i];
      const float weight = row_at(op.inputs[1], row)[work.expert_of[pair]];
      table_.add_scaled_row(work.out + static_cast<ptrdiff_t>(pair) * hidden, weight, hidden, out);
    }
  });
}

}  // namespace insitu
