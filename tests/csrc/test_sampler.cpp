// Sampling over several chunks of a vocabulary: every instruction set and thread count, the same choice.
// Build: scripts/native-tests. Prints a digest, which another architecture must print too.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "changes.h"
#include "isas.h"
#include "random_weights.h"
#include "sampler.h"

using namespace insitu;

namespace {

constexpr int kVocab = 9001, kRows = 14, kTops = 20;

struct Settings {
  std::vector<double> temperature, top_p, min_p, typical_p, top_n_sigma, xtc_probability, xtc_threshold;
  std::vector<int32_t> top_k, order, given_id, num_logprobs, is_processed;
  std::vector<uint64_t> seed;
  std::vector<uint32_t> choice, position;
  Changes changes{kRows, kVocab};

  Settings() {
    for (int r = 0; r < kRows; r++) {
      temperature.push_back(r == 0 ? 0.0 : 0.3 * r);
      top_p.push_back(r % 3 == 1 ? 0.95 : 1.0);
      min_p.push_back(r % 4 == 2 ? 0.01 : 0.0);
      top_k.push_back(r % 5 == 3 ? 1 + 40 * r : 0);
      typical_p.push_back(r % 5 == 4 ? 0.7 : 1.0);
      top_n_sigma.push_back(r % 6 == 5 ? 1.5 : 0.0);
      xtc_probability.push_back(r % 7 == 6 ? 0.9 : 0.0);
      xtc_threshold.push_back(0.01);
      order.push_back(r % 3);
      given_id.push_back(r == 4 ? 4098 : -1);
      is_processed.push_back(r % 4 / 2);
      num_logprobs.push_back(r % 2 == 0 ? kTops - r : -1);
      seed.push_back(0x9e3779b97f4a7c15ull * static_cast<uint64_t>(r + 1));
      choice.push_back(static_cast<uint32_t>(r / 2));
      position.push_back(static_cast<uint32_t>(17 * r));
    }
  }
  Sampling sampling() const {
    return {temperature.data(),     top_k.data(),         top_p.data(),         min_p.data(),    typical_p.data(),
            top_n_sigma.data(),     xtc_probability.data(), xtc_threshold.data(), order.data(),  seed.data(),
            choice.data(),          position.data(),      given_id.data(),      num_logprobs.data(),
            is_processed.data(),    changes.edits(),      changes.masks()};
  }
};

std::vector<float> random_logits() {
  Random rng;
  std::vector<float> logits(static_cast<size_t>(kRows) * kVocab);
  for (float& x : logits) x = 8.0f * rng.unit() * rng.unit() * rng.unit();
  const auto row = [&](int r) { return logits.data() + static_cast<ptrdiff_t>(r) * kVocab; };
  for (int i = 0; i < kVocab; i++) row(8)[i] = 1.0f;                                   // all alike
  for (int i = 0; i < kVocab - 1; i++) row(9)[i] = -__builtin_inff();                  // one possible
  row(10)[4097] = __builtin_nanf("");
  row(11)[kVocab - 1] = __builtin_inff();
  for (int i = 0; i < kVocab; i++) row(12)[i] = -__builtin_inff();                     // none possible
  row(13)[100] = row(13)[8192] = 9.0f;                                                 // a tie at the top
  return logits;
}

uint64_t run(const KernelTable& table, const std::vector<float>& logits, const Settings& settings, int num_threads) {
  std::vector<int32_t> ids(kRows), top_ids(kRows * kTops);
  std::vector<float> logprobs(kRows), top_logprobs(kRows * kTops);
  const auto status = std::make_unique<RowStatus[]>(kRows);
  const Sampling sampling = settings.sampling();
  check_sampling(sampling, kRows, kTops, kVocab);
  ThreadPool pool(num_threads);
  const Mapping scratch(Sampler::scratch_bytes(kVocab, kRows, num_threads));
  Sampler sampler(table, kVocab, kRows, num_threads, scratch.data());
  for (int again = 0; again < 3; again++) {
    std::vector<float> changed = logits;
    sampler.run(pool, changed.data(), kRows, sampling,
                {ids.data(), logprobs.data(), top_ids.data(), top_logprobs.data(), status.get(), kTops});
  }
  Digest digest;
  for (int r = 0; r < kRows; r++) digest.add(ids[r]), digest.add(logprobs[r]), digest.add(static_cast<int>(status[r]));
  for (int i = 0; i < kRows * kTops; i++) digest.add(top_ids[i]), digest.add(top_logprobs[i]);
  return digest.value;
}

}  // namespace

int main() {
  const std::vector<float> logits = random_logits();
  const Settings settings;
  uint64_t wanted = 0;
  int checks = 0, failures = 0;
  for (const char* isa : kIsas)
    for (int threads = 1; threads <= 3 && kernel_table(isa); threads++) {
      const uint64_t digest = run(*kernel_table(isa), logits, settings, threads);
      if (wanted == 0) wanted = digest;
      checks++;
      if (digest == wanted) continue;
      failures++;
      std::printf("FAIL %s with %d threads\n", isa, threads);
    }
  std::printf("digest sampler %016llx\n", static_cast<unsigned long long>(wanted));
  return report(checks, failures);
}
