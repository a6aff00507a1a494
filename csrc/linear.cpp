// The linear operators of a step: every thread takes n-blocks of 32 outputs, all rows of one at a time.
// Not here: arithmetic (the kernel table). Always true: which thread multiplies a block shows nowhere.
#include <algorithm>

#include "pack.h"
#include "program.h"

namespace insitu {

namespace {

constexpr size_t kAheadBytes = size_t{64} << 10;  // of the next linear, a worker: well within L2
constexpr int kPair = 2 * kBlockOutputs;          // a row of a gate block and its up block

}  // namespace

// The activation group is a property of the weight's type and of nothing else.
int activation_group(BlockType type) {
  switch (type) {
    case BlockType::F32:
    case BlockType::F16:
    case BlockType::BF16:
      return 0;
    case BlockType::Q2_K:
    case BlockType::Q4_K:
    case BlockType::Q5_K:
    case BlockType::Q6_K:
    case BlockType::Q8_K16:
      return 256;
    default:
      return 32;
  }
}

struct Executor::Part {
  const PackedSegment* segment;
  Activations x;
  Epilogue epilogue;
  float* out;
};

ThreadOptions Executor::with_hooks(ThreadOptions threads) {
  threads.leave = table_.end_matmul;
  threads.idle = {[](void* self, int worker) { return static_cast<Executor*>(self)->prefetch(worker); }, this};
  return threads;
}

void Executor::run_linear(const Operator& op, int num_rows) {
  const Linear& linear = linears_[op.linear];
  Part parts[kMaxSegments];
  ptrdiff_t column = 0;
  for (size_t s = 0; s < linear.segments.size(); s++) {
    const PackedSegment& segment = linear.segments[s];
    const int group = activation_group(segment.type);
    const size_t form = std::find(op.groups.begin(), op.groups.end(), group) - op.groups.begin();
    const TensorRef& x = op.inputs[form];
    parts[s].segment = &segment;
    parts[s].x = {num_rows, segment.k, group, group ? nullptr : at(x), x.stride,
                  group ? arena_.data() + x.offset : nullptr};
    const TensorRef& residual = op.inputs.back();
    parts[s].epilogue = {linear.bias ? linear.bias + column : nullptr, op.has_residual ? at(residual) + column : nullptr,
                         residual.stride};
    parts[s].out = at(op.output) + column;
    column += segment.n;
  }
  coming_.store(((coming_.load(std::memory_order_relaxed) >> 32) + 1) << 32 |
                    static_cast<uint32_t>(next_linear_[&op - ops_.data()] + 1),
                std::memory_order_relaxed);
  if (op.is_gated) return run_gated_linear(op, {parts[0], parts[1]}, num_rows);
  pool_.run(linear.first_block.back(), [&](int block, int) {
    size_t s = 0;
    while (block >= linear.first_block[s + 1]) s++;
    const Part& part = parts[s];
    const int n_block = block - linear.first_block[s], first = n_block * kBlockOutputs;
    table_.matmul_block(*part.segment, n_block, part.x, part.epilogue, part.out, op.output.stride);
    if (op.soft_cap == 0) return;
    float* y = part.out + first;
    for (int row = 0; row < num_rows; row++, y += op.output.stride)
      table_.soft_cap_row(y, std::min(kBlockOutputs, part.segment->n - first), op.soft_cap, y);
  });
}

// Item b is n-block b of gate and of up, then activation(gate) * up of those 32 columns, then, where wanted,
// their int8 form: one whole group of it. Gate and up stay in this worker's cache.
void Executor::run_gated_linear(const Operator& op, const Part (&parts)[2], int num_rows) {
  const TensorRef& y = op.output;
  uint8_t* quantized = arena_.data() + y.offset;
  pool_.run((y.width + kBlockOutputs - 1) / kBlockOutputs, [&](int block, int worker) {
    const int first = block * kBlockOutputs, width = std::min(kBlockOutputs, y.width - first);
    float* rows = row_scratch(worker);
    for (int half = 0; half < 2; half++) {
      PackedSegment rest = *parts[half].segment;  // from this block on: it becomes block 0
      rest.data += static_cast<size_t>(block) * rest.block_bytes;
      rest.n -= first;
      const float* bias = parts[half].epilogue.bias;
      table_.matmul_block(rest, 0, parts[half].x, {bias ? bias + first : nullptr, nullptr, 0}, rows + half * width, kPair);
    }
    table_.gated_rows(rows, kPair, num_rows, width, op.activation, y.is_quantized ? rows : at(y) + first,
                      y.is_quantized ? kPair : y.stride);
    if (y.is_quantized) table_.quantize_column(rows, kPair, num_rows, y.width, op.group, block, quantized);
  });
}

void Executor::Ahead::start(const Linear& linear, int worker, int num_threads) {
  const int num_blocks = linear.is_gated ? linear.first_block[1] : linear.first_block.back();
  const int first = static_cast<int>(int64_t{num_blocks} * worker / num_threads);
  const size_t each = linear.is_gated ? kAheadBytes / 2 : kAheadBytes;
  for (int half = 0; half < 2; half++) {
    const int block = first + half * num_blocks;
    at[half] = end[half] = nullptr;
    if (half == 1 && !linear.is_gated) continue;
    size_t s = 0;
    while (block >= linear.first_block[s + 1]) s++;
    at[half] = linear.segments[s].data + (block - linear.first_block[s]) * linear.segments[s].block_bytes;
    end[half] = std::min(at[half] + each, linear.end);
  }
}

// A little of what this worker will read first in the linear to come; false when there is no more to do.
// Memory is idle while threads wait for each other or work through a single row.
bool Executor::prefetch(int worker) {
  const uint64_t coming = coming_.load(std::memory_order_relaxed);
  if (static_cast<uint32_t>(coming) == 0) return false;
  Ahead& ahead = ahead_[worker];
  if (ahead.phase != coming) {
    ahead.phase = coming;
    ahead.start(linears_[static_cast<uint32_t>(coming) - 1], worker, pool_.num_threads());
  }
  const int half = ahead.at[0] < ahead.end[0] ? 0 : 1;
  for (int line = 0; line < 4 && ahead.at[half] < ahead.end[half]; line++, ahead.at[half] += 64)
    __builtin_prefetch(ahead.at[half], 0, 2);
  return ahead.at[1] < ahead.end[1] || ahead.at[0] < ahead.end[0];
}

}  // namespace insitu
