// How near the attention operator comes to its bounds: bytes of KV a step at batch 1, arithmetic in prefill.
//
//     attention [decode|quick|l2|cache|prefill|all] [threads] [dtype] [block_size] [tokens]
//
// Build and run: benchmarks/native/run attention quick 1. `cache`: KV in the last-level cache; `l2`: in the second, and nothing but arithmetic counts.
//
// Each figure is a first decile; a raw read of as many bytes (another buffer) runs between any two steps, so
// that caches are cold for both. The steps are whole Executor steps of a program that is nothing but
// attention: embedding, `layers` times attention, a row of output. Not here: correctness (tests).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "measure.h"
#include "program.h"

using namespace insitu;

namespace {

struct Heads { const char* name; int num_heads, num_kv_heads, head_dim; };
constexpr Heads kModels[] = {{"D64 3x3", 9, 3, 64}, {"D128 2x6", 12, 2, 128}, {"D128 8x4", 32, 8, 128}};

class Bench {
 public:
  Bench(const Heads& heads, KvSpec kv, int num_seqs, int context, int pool_seqs, int threads, int num_tokens)
      : heads_(heads), kv_(kv), num_seqs_(num_seqs), context_(context), clock_(threads) {
    blocks_per_seq_ = (context + kv.block_size - 1) / kv.block_size;
    const int num_blocks = pool_seqs * blocks_per_seq_;
    limits_ = {std::max(num_tokens, 4096), 1, std::max(num_seqs, 128), num_blocks, blocks_per_seq_};
    order_.resize(num_blocks);
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(5));
    const ProgramSpec spec = program();
    executor_ = std::make_unique<Executor>(spec, kv_, limits_, threads, *best_table(std::getenv("INSITU_ISA")));
    fill();
  }

  size_t kv_bytes() const {
    return executor_->sizes().kv / limits_.num_blocks / kv_.block_size * context_ * num_seqs_;
  }

  // Each sequence's last `num_tokens` tokens.
  double step_s(int num_tokens) {
    std::vector<int32_t> ids, positions, slots, tables, starts{0}, lens;
    for (int s = 0; s < num_seqs_; s++) {
      if (next_ + blocks_per_seq_ > order_.size()) next_ = 0;
      const int* blocks = &order_[next_];
      next_ += blocks_per_seq_;
      tables.insert(tables.end(), blocks, blocks + blocks_per_seq_);
      for (int p = context_ - num_tokens; p < context_; p++) {
        ids.push_back(p % kVocab);
        positions.push_back(p);
        slots.push_back(blocks[p / kv_.block_size] * kv_.block_size + p % kv_.block_size);
      }
      starts.push_back(static_cast<int>(ids.size()));
      lens.push_back(context_);
    }
    return run(ids, positions, slots, tables, starts, lens, blocks_per_seq_);
  }

 private:
  static constexpr int kVocab = 64;

  ProgramSpec program() {
    const int q = heads_.num_heads * heads_.head_dim, k = heads_.num_kv_heads * heads_.head_dim, width = q + 2 * k;
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    raw_.resize(kVocab * width);
    for (float& x : raw_) x = normal(random);
    ProgramSpec spec;
    spec.linears.push_back({{{BlockType::F32, kVocab, width, reinterpret_cast<const uint8_t*>(raw_.data()),
                              raw_.size() * 4}}, {}});
    const size_t x_bytes = align_up(size_t{4} * limits_.max_num_tokens * width);
    const size_t out_bytes = align_up(size_t{4} * limits_.max_num_tokens * q);
    Operator embed{};
    embed.kind = OpKind::Embed;
    embed.linear = 0;
    embed.output = {0, width, 0, width, false, false};
    spec.ops.push_back(embed);
    for (int layer = 0; layer < kv_.num_layers; layer++) {
      Operator op{};
      op.kind = OpKind::Attention;
      op.layer = layer;
      op.num_heads = heads_.num_heads;
      op.num_kv_heads = heads_.num_kv_heads;
      op.head_dim = heads_.head_dim;
      op.scale = 0.1f;
      op.inputs = {{0, width, 0, q, false, false}, {0, width, q, k, false, false}, {0, width, q + k, k, false, false}};
      op.output = {x_bytes, q, 0, q, false, false};
      spec.ops.push_back(op);
    }
    Operator take{};
    take.kind = OpKind::Take;
    take.inputs = {{x_bytes, q, 0, q, false, false}};
    take.output = spec.logits = {x_bytes + out_bytes, q, 0, q, true, false};
    spec.ops.push_back(take);
    spec.arena_bytes = x_bytes + out_bytes + align_up(size_t{4} * q);
    return spec;
  }

  // Every block is written as if it were a sequence of its own.
  void fill() {
    const int together = std::min(limits_.max_num_seqs, limits_.max_num_tokens / kv_.block_size);
    for (int first = 0; first < limits_.num_blocks; first += together) {
      std::vector<int32_t> ids, positions, slots, tables, starts{0}, lens;
      for (int b = first; b < std::min(first + together, limits_.num_blocks); b++) {
        tables.push_back(b);
        for (int p = 0; p < kv_.block_size; p++) {
          ids.push_back((b * 7 + p) % kVocab);
          positions.push_back(p);
          slots.push_back(b * kv_.block_size + p);
        }
        starts.push_back(static_cast<int>(ids.size()));
        lens.push_back(kv_.block_size);
      }
      run(ids, positions, slots, tables, starts, lens, 1);
    }
  }

  double run(const std::vector<int32_t>& ids, const std::vector<int32_t>& positions, const std::vector<int32_t>& slots,
             const std::vector<int32_t>& tables, const std::vector<int32_t>& starts, const std::vector<int32_t>& lens,
             int max_blocks) {
    const int32_t logit_row = 0;
    const Batch batch{static_cast<int>(ids.size()), static_cast<int>(lens.size()), 1, max_blocks, ids.data(),
                      positions.data(), slots.data(), tables.data(), starts.data(), lens.data(), &logit_row};
    std::vector<float> out(executor_->vocab_size());
    const double start = clock_.now();
    executor_->forward(batch, out.data());
    return clock_.now() - start;
  }

  Heads heads_;
  KvSpec kv_;
  int num_seqs_, context_, blocks_per_seq_;
  Clock clock_;
  size_t next_ = 0;
  Limits limits_;
  std::vector<float> raw_;
  std::vector<int> order_;
  std::unique_ptr<Executor> executor_;
};

KvSpec kv_of(const Heads& heads, int layers, int block_size, const std::string& dtype) {
  return {layers, heads.num_kv_heads, heads.head_dim, block_size,
          dtype == "f16" ? KvType::F16 : dtype == "bf16" ? KvType::BF16 : dtype == "int8" ? KvType::I8 : KvType::F32};
}

void decode(const Heads& heads, int context, int num_seqs, int threads, const std::string& dtype, int block_size,
            double pool_bytes) {
  const double token_bytes = 2.0 * heads.num_kv_heads * heads.head_dim * (dtype == "f32" ? 4 : dtype == "int8" ? 1 : 2);
  const double step_bytes = token_bytes * context * num_seqs;
  const int layers = pool_bytes == 1 ? 1 : std::clamp(static_cast<int>(64e6 / step_bytes), 1, 30);
  const int rounds = std::max(1, static_cast<int>(pool_bytes / (step_bytes * layers)));
  ThreadPool pool(threads);
  Bench bench(heads, kv_of(heads, layers, block_size, dtype), num_seqs, context, rounds * num_seqs, threads, 1);
  const size_t bytes = bench.kv_bytes();
  const ReadBuffer other(pool, std::max(2 * bytes, size_t{512} << 20));
  const Clock clock(threads);
  std::vector<double> steps, reads;
  const double end = clock.now() + 1.0;
  for (size_t i = 0; i < 10 || (clock.now() < end && i < 200); i++) {
    if (pool_bytes == 1) bench.step_s(1);
    steps.push_back(bench.step_s(1));
    reads.push_back(read_seconds(pool, clock, other, i, bytes));
  }
  const double step = decile(steps), read = decile(reads);
  std::printf("%-9s %-4s bs%-2d ctx %-6d batch %-2d %9.1f us/layer %6.1f GB/s, raw %6.1f, ratio %.2f, %6.1f GFLOP/s\n",
              heads.name, dtype.c_str(), block_size, context, num_seqs, step * 1e6 / layers, bytes / step / 1e9,
              bytes / read / 1e9, read / step,
              4e-9 * heads.num_heads * heads.head_dim * context * num_seqs * layers / step);
  std::fflush(stdout);
}

void prefill(const Heads& heads, int tokens, int threads, const std::string& dtype, int block_size, double peak) {
  const int layers = tokens > 1000 ? 2 : 8;
  Bench bench(heads, kv_of(heads, layers, block_size, dtype), 1, tokens, 1, threads, tokens);
  std::vector<double> steps;
  for (int i = 0; i < 9; i++) steps.push_back(bench.step_s(tokens));
  const double step = decile(steps);
  const double flops = 4.0 * heads.num_heads * heads.head_dim * layers * (0.5 * tokens * (tokens + 1.0));
  std::printf("%-9s %-4s bs%-2d prefill %-5d %10.1f us/layer %6.1f GFLOP/s, %.2f of peak\n", heads.name, dtype.c_str(),
              block_size, tokens, step * 1e6 / layers, flops / step / 1e9, flops / step / 1e9 / peak);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const std::string dtype = argc > 3 ? argv[3] : "f16";
  const int block_size = argc > 4 ? std::atoi(argv[4]) : 32;
  ThreadPool pool(threads);
  const KernelTable& table = *best_table(std::getenv("INSITU_ISA"));
  const double peak = 1e-9 * peak_ops_per_second(pool, table.name, Peak::Float32, 0.2);
  std::printf("%s, FMA peak %.0f GFLOP/s\n", table.name, peak);
  if (what == "decode" || what == "all")
    for (const Heads& heads : kModels)
      for (int context : {128, 1024, 4096, 32768}) {
        decode(heads, context, 1, threads, dtype, block_size, 512e6);
        if (context <= 1024) decode(heads, context, 8, threads, dtype, block_size, 512e6);
      }
  if (what == "quick")
    for (const Heads& heads : kModels) decode(heads, 1024, 1, threads, dtype, block_size, 512e6);
  if (what == "l2")
    for (const Heads& heads : kModels) decode(heads, 512, 1, threads, dtype, block_size, 1);
  if (what == "cache" || what == "all")
    for (const Heads& heads : kModels) decode(heads, 512, 1, threads, dtype, block_size, 0);
  if (what == "prefill" || what == "all")
    for (const Heads& heads : kModels)
      for (int tokens : {512, 2048})
        if (argc <= 5 || tokens == std::atoi(argv[5])) prefill(heads, tokens, threads, dtype, block_size, peak);
}
