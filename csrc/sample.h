// Arithmetic of sampling over one row of logits: maxima, log-sum-exp, probabilities, noise, scores.
// Not here: which tokens are left to choose from (sample.cpp), or which thread does what.
// Truth: kernels/reference_sampling.py. Always true: the noise of a token depends on the seed, its
// id, the position and the choice, so a token's score does not depend on what else is a candidate.
#pragma once
#include <cstdint>

#include "kernels.h"
#include "math.h"
#include "simd.h"

namespace insitu::INSITU_NS {

static bool logit_maxima(const float* logits, int n, float* group_maxima, float* maximum) {
  const f32x16 lowest = broadcast(-__builtin_inff()), infinity = broadcast(__builtin_inff());
  const f32x16 zero = broadcast(0.0f), one = broadcast(1.0f);
  f32x16 most = lowest, bad = zero;
  for (int start = 0, group = 0; start < n; start += kVocabGroup, group++) {
    f32x16 here = lowest;
    for (int i = start; i < start + kVocabGroup && i < n; i += 16) {
      f32x16 v;
      if (n - i >= 16) {
        v = loadu(logits + i);
      } else {
        const mask16 tail = first_lanes(n - i);
        v = select(tail, load_masked(tail, logits + i), lowest);
      }
      bad = max(select(lt(v, infinity), zero, one), bad);  // NaN is not below infinity
      here = max(v, here);
    }
    group_maxima[group] = reduce_max(here);
    most = max(here, most);
  }
  *maximum = reduce_max(most);
  return reduce_max(bad) == 0.0f;
}

static float logit_sum(const float* logits, int n, float maximum) {
  const f32x16 m = broadcast(maximum), zero = broadcast(0.0f);
  f32x16 sum = zero;
  int i = 0;
  for (; i + 16 <= n; i += 16) sum = add(sum, exp(sub(loadu(logits + i), m)));
  if (i < n) {
    const mask16 tail = first_lanes(n - i);
    sum = add(sum, select(tail, exp(sub(load_masked(tail, logits + i), m)), zero));
  }
  return reduce_add(sum);
}

static inline double tempered(float logit, const Tempering& t) {
  return (static_cast<double>(logit) - static_cast<double>(t.maximum)) / t.temperature;
}

static double token_probability(float logit, const Tempering& t) { return exp_d(tempered(logit, t)); }

// Probability in units of 2^-40: a sum of up to 2^23 of them is exact and free of order.
static uint64_t token_mass(float logit, const Tempering& t) {
  const double p = token_probability(logit, t);
  // Adding 2^52 leaves an integer, rounded to nearest even, in the low bits.
  const double shifted = p * 0x1p40 + 0x1p52;
  return __builtin_bit_cast(uint64_t, shifted) & ((uint64_t{1} << 52) - 1);
}

static uint64_t logit_mass(const float* logits, int n, const Tempering& t) {
  uint64_t mass = 0;
  for (int i = 0; i < n; i++) {
    const double p = token_probability(logits[i], t);
    const double shifted = p * 0x1p40 + 0x1p52;
    const uint64_t m = __builtin_bit_cast(uint64_t, shifted) & ((uint64_t{1} << 52) - 1);
    mass += p >= t.min_p ? m : 0;
  }
  return mass;
}

// Philox4x32-10 of 16 neighbouring counters; words[j][i] is word j of counter `first + i`.
static void philox16(uint32_t first, const Noise& noise, uint32_t (&words)[4][16]) {
  auto& [a, b, c, d] = words;
  for (int i = 0; i < 16; i++) {
    a[i] = first + static_cast<uint32_t>(i);
    b[i] = noise.position;
    c[i] = noise.choice;
    d[i] = 0;
  }
  auto key0 = static_cast<uint32_t>(noise.seed), key1 = static_cast<uint32_t>(noise.seed >> 32);
  for (int round = 0; round < 10; round++) {
    for (int i = 0; i < 16; i++) {
      const uint64_t x = uint64_t{0xD2511F53} * a[i], y = uint64_t{0xCD9E8D57} * c[i];
      const uint32_t new_a = static_cast<uint32_t>(y >> 32) ^ b[i] ^ key0;
      const uint32_t new_c = static_cast<uint32_t>(x >> 32) ^ d[i] ^ key1;
      b[i] = static_cast<uint32_t>(y);
      d[i] = static_cast<uint32_t>(x);
      a[i] = new_a;
      c[i] = new_c;
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

static inline double gumbel(uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -log_d(-log_d(u));
}

static double token_score(float logit, int token_id, const Tempering& t, const Noise& noise) {
  uint32_t words[4][16];
  philox16(static_cast<uint32_t>(token_id) / 4, noise, words);
  return tempered(logit, t) + gumbel(words[token_id % 4][0]);
}

// Least word whose Gumbel noise can reach `i / 16 - 4`, with room for rounding.
struct WordBounds {
  static constexpr int kNum = 27 * 16;
  uint32_t least[kNum];
  WordBounds() {
    for (int i = 0; i < kNum; i++) {
      const double u = exp_d(-exp_d(-(i / 16.0 - 4.0)));
      const double word = u * 0x1p32 * (1.0 - 1e-9) - 2.0;
      least[i] = word > 0.0 ? static_cast<uint32_t>(word) : 0;
    }
  }
};

// -log(-log(u)) of the greatest word is 22.88.
constexpr double kMostNoise = 22.9;

// Exact, though most tokens are never scored: a group whose best logit cannot win even with the
// greatest noise is skipped, and in the others only words that could win are turned into noise.
static void best_score(const float* logits, const float* group_maxima, int first_id, int n, const Tempering& t,
                       const Noise& noise, Scored* best) {
  static const WordBounds bounds;
  uint32_t words[4][16];
  for (int start = 0, group = 0; start < n; start += kVocabGroup, group++) {
    const double needed = best->score - tempered(group_maxima[group], t) - 1e-6;
    if (needed > kMostNoise) continue;
    const int step = static_cast<int>((needed + 4.0) * 16.0);
    const uint32_t least = needed <= -4.0 ? 0 : bounds.least[step];
    philox16(static_cast<uint32_t>(first_id + start) / 4, noise, words);
    for (int i = 0; i < kVocabGroup / 4; i++) {
      for (int j = 0; j < 4; j++) {
        const int at = start + 4 * i + j;
        if (words[j][i] < least || at >= n) continue;
        const double z = tempered(logits[at], t);
        if (t.min_p > 0.0 && exp_d(z) < t.min_p) continue;
        const double score = z + gumbel(words[j][i]);
        const int id = first_id + at;
        if (score > best->score || (score == best->score && id < best->token_id)) *best = {score, id};
      }
    }
  }
}

static double log_double(double x) { return log_d(x); }

}  // namespace insitu::INSITU_NS

// The entries of KernelTable that elementwise.h, attention.h and sample.h fill, in its order.
#define INSITU_EXECUTOR_ENTRIES                                                                             \
  .rms_norm_row = rms_norm_row, .rope_frequencies = rope_frequencies, .rope_angles_row = rope_angles_row,   \
  .rope_row = rope_row, .silu_gated_row = silu_gated_row, .add_row = add_row, .max_tile_rows = kAttentionRows,   \
  .write_kv = write_kv, .attend_chunks = attend_chunks, .merge_chunks = merge_chunks,                       \
  .logit_maxima = logit_maxima, .logit_sum = logit_sum, .logit_mass = logit_mass, .best_score = best_score, \
  .token_probability = token_probability, .token_mass = token_mass, .token_score = token_score,             \
  .log_double = log_double
