// The executor without Python: every instruction set, one to three threads, batches cut in odd ways.
// Build: scripts/native-tests. Always true: exits 0 only if all logits and tokens had the same bits;
// prints a digest of them, which another architecture must print too.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "isas.h"
#include "changes.h"
#include "tiny_decoder.h"

using namespace insitu;

// Every allocation of this program's C++, on any thread.
static std::atomic<int64_t> num_allocations{0};
void* operator new(size_t size) {
  num_allocations++;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

constexpr Shape kShapes[] = {
    {"32s", 96, 6, 2, 48, 160, 301, 2, 16, KvType::F16, false, BlockType::Q8_0, BlockType::Q4_0, BlockType::Q5_0,
     BlockType::Q8_0, BlockType::Q4_1, BlockType::Q4_0, BlockType::Q5_0, BlockType::Q8_0},
    {"Ks", 256, 4, 1, 64, 256, 300, 2, 32, KvType::I8, true, BlockType::Q6_K, BlockType::Q4_K, BlockType::Q4_K,
     BlockType::Q6_K, BlockType::Q4_K, BlockType::Q4_K, BlockType::Q6_K, BlockType::Q6_K},
    {"floats", 64, 9, 3, 16, 48, 65, 2, 16, KvType::F32, false, BlockType::F32, BlockType::F16, BlockType::BF16,
     BlockType::F32, BlockType::F16, BlockType::BF16, BlockType::F32, BlockType::F16},
    {"mixed", 256, 8, 4, 32, 288, 300, 1, 32, KvType::BF16, false, BlockType::Q4_1, BlockType::Q4_K, BlockType::Q4_0,
     BlockType::F16, BlockType::Q6_K, BlockType::Q4_1, BlockType::Q5_0, BlockType::Q4_K},
    {"experts", 256, 4, 2, 32, 256, 300, 2, 16, KvType::F16, false, BlockType::Q8_0, BlockType::Q8_0, BlockType::Q8_0,
     BlockType::Q8_0, BlockType::Q8_0, BlockType::Q4_K, BlockType::Q5_0, BlockType::F16, 5},
    {"others", 256, 4, 2, 96, 256, 300, 2, 32, KvType::F16, true, BlockType::Q5_1, BlockType::Q5_K, BlockType::Q2_K,
     BlockType::Q8_K16, BlockType::Q5_1, BlockType::Q5_K, BlockType::Q2_K, BlockType::Q5_K, 4, 100, 20.0f},
};
constexpr int kLengths[] = {270, 40, 19, 1};
constexpr int kNumSeqs = 4, kBlocksPerSeq = 24, kNumBlocks = 128;
constexpr Limits kLimits{300, 300, kNumSeqs, kNumBlocks, kBlocksPerSeq};

int failures = 0, checks = 0;
void check(bool holds, const std::string& what) {
  checks++;
  if (!holds && failures++ < 40) std::printf("FAIL %s\n", what.c_str());
}

// One step's arrays: the next tokens of some sequences, logits wanted of every row, the last first, and pooled rows
// of every other.
struct Step {
  std::vector<int32_t> token_ids, positions, slots, table, starts{0}, lens, logit_rows, pooled_rows;
  std::vector<float> pooled;

  void add(int seq, int first, int num, const Shape& shape) {
    const int stride = 5;  // blocks of the sequences lie among each other
    Random rng{static_cast<uint64_t>(seq) + 99};
    for (int i = 0; i < first + num; i++) {
      const int id = rng.below(shape.vocab), block = (i / shape.block_size * stride * kNumSeqs + seq * 7) % kNumBlocks;
      if (i < first) continue;
      token_ids.push_back(id);
      positions.push_back(i);
      slots.push_back(block * shape.block_size + i % shape.block_size);
    }
    for (int b = 0; b < kBlocksPerSeq; b++) table.push_back((b * stride * kNumSeqs + seq * 7) % kNumBlocks);
    starts.push_back(static_cast<int32_t>(token_ids.size()));
    lens.push_back(first + num);
  }
  Batch batch(const Executor& executor) {
    logit_rows.clear(), pooled_rows.clear();
    for (int r = static_cast<int>(token_ids.size()); r-- > 0;) logit_rows.push_back(r);
    for (int r = 0; r < static_cast<int>(token_ids.size()); r++)
      if (positions[r] % 2 == 0) pooled_rows.push_back(r);
    pooled.assign(pooled_rows.size() * executor.pooled_width(), 0);
    return {static_cast<int>(token_ids.size()), static_cast<int>(lens.size()), static_cast<int>(logit_rows.size()),
            kBlocksPerSeq, token_ids.data(), positions.data(), slots.data(), table.data(), starts.data(), lens.data(),
            logit_rows.data(), static_cast<int>(pooled_rows.size()), pooled_rows.data(), pooled.data()};
  }
};

struct Chosen {
  std::vector<int32_t> ids, top_ids;
  std::vector<float> logprobs, top_logprobs;
  std::unique_ptr<RowStatus[]> status;
};

// What one engine gave for every position of every sequence, however its work was cut.
struct Outcome {
  std::vector<std::vector<float>> logits, pooled;  // by sequence: [length, vocab], [length, hidden]
  Chosen chosen;                           // of the last step

  explicit Outcome(const Shape& shape) {
    for (int length : kLengths) {
      logits.emplace_back(static_cast<size_t>(length) * shape.vocab);
      pooled.emplace_back(static_cast<size_t>(length) * shape.hidden);
    }
  }
};

void forward(Executor& executor, Step& step, const std::vector<int>& seqs, int vocab, Outcome& outcome) {
  const Batch batch = step.batch(executor);
  std::vector<float> out(static_cast<size_t>(batch.num_logit_rows) * vocab);
  executor.forward(batch, out.data());
  for (size_t s = 0; s < seqs.size(); s++)
    for (int t = step.starts[s]; t < step.starts[s + 1]; t++)
      std::copy_n(out.data() + static_cast<ptrdiff_t>(batch.num_tokens - 1 - t) * vocab, vocab,
                  outcome.logits[seqs[s]].data() + static_cast<ptrdiff_t>(step.positions[t]) * vocab);
  const int width = executor.pooled_width();
  for (int p = 0; p < batch.num_pooled_rows; p++) {
    const int t = batch.pooled_rows[p];
    const auto s = std::upper_bound(step.starts.begin(), step.starts.end(), t) - step.starts.begin() - 1;
    std::copy_n(step.pooled.data() + static_cast<ptrdiff_t>(p) * width, width,
                outcome.pooled[seqs[s]].data() + static_cast<ptrdiff_t>(step.positions[t]) * width);
  }
}

Chosen sample(Executor& executor, const Step& last, const Batch& batch) {
  const int vocab = executor.vocab_size();
  const int rows = batch.num_logit_rows, tops = 5;
  std::vector<double> temperature, top_p, min_p;
  std::vector<int32_t> top_k, num_logprobs;
  std::vector<uint64_t> seed;
  std::vector<uint32_t> choice, position;
  for (int r = 0; r < rows; r++) {
    const int token = last.positions[batch.logit_rows[r]];
    temperature.push_back(token % 3 == 0 ? 0.0 : 3.0 * (1 + token % 4));
    top_p.push_back(token % 4 == 1 ? 0.9 : 1.0);
    min_p.push_back(token % 5 == 2 ? 0.02 : 0.0);
    top_k.push_back(token % 7 == 4 ? 20 : 0);
    num_logprobs.push_back(token % 2 == 0 ? token % (tops + 1) : -1);
    seed.push_back(0x123456789abcdefull * static_cast<uint64_t>(token + 1));
    choice.push_back(static_cast<uint32_t>(token % 3));
    position.push_back(static_cast<uint32_t>(token + 1));
  }
  Chosen c{std::vector<int32_t>(rows), std::vector<int32_t>(rows * tops), std::vector<float>(rows),
           std::vector<float>(rows * tops), std::make_unique<RowStatus[]>(rows)};
  const Changes changes(rows, vocab);
  const std::vector<double> off(rows, 0.0), none(rows, 1.0);
  const std::vector<int32_t> order(rows, 0), given(rows, -1);
  const Sampling sampling{temperature.data(), top_k.data(), top_p.data(), min_p.data(),    none.data(),
                          off.data(),         off.data(),   none.data(),  order.data(),    seed.data(),
                          choice.data(),      position.data(), given.data(), num_logprobs.data(), order.data(),
                          changes.edits(),    changes.masks()};
  const Sampled sampled{c.ids.data(),          c.logprobs.data(), c.top_ids.data(),
                        c.top_logprobs.data(), c.status.get(),    tops};
  executor.step(batch, sampling, sampled);
  const int64_t before = num_allocations;
  executor.step(batch, sampling, sampled);
  const bool is_quiet = num_allocations == before;
  check(is_quiet, "a step that ran before allocated memory");
  return c;
}

// Cut 0: each sequence whole. Others: chunks of up to 13 tokens, sequences side by side as they come,
// and operators fused.
Outcome run(const Shape& shape, const KernelTable& table, int num_threads, int cut) {
  const TinyDecoder decoder(shape, kLimits, table, cut > 0);
  Executor executor(decoder.spec, shape.kv(), kLimits, num_threads, table);
  Outcome outcome(shape);
  Random rng{static_cast<uint64_t>(cut)};
  int done[kNumSeqs] = {};
  for (bool is_left = true; is_left;) {
    is_left = false;
    Step step;
    std::vector<int> seqs;
    for (int s = 0; s < kNumSeqs; s++) {
      const int left = kLengths[s] - done[s];
      if (left == 0) continue;
      is_left = true;
      if (cut == 0 ? !seqs.empty() : rng.below(3) == 0) continue;
      const int num = cut == 0 ? left : std::min(left, done[s] > 250 ? 1 + rng.below(3) : 1 + rng.below(13 * cut));
      step.add(s, done[s], num, shape);
      seqs.push_back(s);
      done[s] += num;
    }
    if (!seqs.empty()) forward(executor, step, seqs, shape.vocab, outcome);
  }
  Step last;  // once more, from what the cache holds
  for (int s = 0; s < kNumSeqs; s++) last.add(s, std::max(0, kLengths[s] - 20), std::min(kLengths[s], 20), shape);
  outcome.chosen = sample(executor, last, last.batch(executor));
  return outcome;
}

uint64_t digest_of(const Outcome& outcome) {
  Digest digest;
  for (const auto* all : {&outcome.logits, &outcome.pooled})
    for (const auto& rows : *all)
      for (float x : rows) digest.add(x);
  const Chosen& c = outcome.chosen;
  for (size_t r = 0; r < c.ids.size(); r++) digest.add(c.ids[r]), digest.add(c.logprobs[r]), digest.add(static_cast<int>(c.status[r]));
  for (size_t i = 0; i < c.top_ids.size(); i++) digest.add(c.top_ids[i]), digest.add(c.top_logprobs[i]);
  return digest.value;
}

bool is_finite(const Outcome& outcome) {
  for (const auto* all : {&outcome.logits, &outcome.pooled})
    for (const auto& rows : *all)
      for (float x : rows)
        if (!(x - x == 0.0f)) return false;
  return true;
}

void check_shape(const Shape& shape) {
  uint64_t wanted = 0;
  for (const char* isa : kIsas) {
    const KernelTable* table = kernel_table(isa);
    if (!table) continue;
    for (const auto& [threads, cut] : {std::pair{1, 0}, {2, 1}, {3, 2}, {3, 0}}) {
      if (table == kernel_table("generic") && threads + cut == 3) continue;  // slow, and no different
      const Outcome outcome = run(shape, *table, threads, cut);
      const uint64_t digest = digest_of(outcome);
      if (wanted == 0) wanted = digest;
      check(digest == wanted && is_finite(outcome), std::string(shape.name) + " " + isa + " " + std::to_string(threads) +
                                                        " threads, cut " + std::to_string(cut));
    }
  }
  std::printf("digest %s %016llx\n", shape.name, static_cast<unsigned long long>(wanted));
}

}  // namespace

int main() {
  for (const Shape& shape : kShapes) check_shape(shape);
  return report(checks, failures);
}
