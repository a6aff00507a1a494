// Arithmetic of sampling over one row of logits: maxima, log-sum-exp, probabilities, noise, scores.
// Not here: which tokens are left to choose from (truncation.cpp), or which thread does what.
// Truth: kernels/reference_sampling.py. Always true: the noise of a token depends on the seed, its
// id, the position and the choice, so a token's score does not depend on what else is a candidate.
#pragma once
#include <cstdint>

#include "kernels.h"
#include "math.h"
#include "simd.h"

namespace insitu::INSITU_NS {

static bool logit_maxima(const float* logits, int n, float* group_maxima, float* maximum) {
  constexpr int kAhead = 1024;  // a page of 4 KB: a core's own prefetcher begins anew at each
  const f32x16 lowest = broadcast(-__builtin_inff()), infinity = broadcast(__builtin_inff());
  const f32x16 zero = broadcast(0.0f), one = broadcast(1.0f);
  f32x16 most = lowest, bad = zero;
  for (int start = 0, group = 0; start < n; start += kVocabGroup, group++) {
    f32x16 here = lowest;
    for (int i = 0; i < kVocabGroup; i += 16) __builtin_prefetch(logits + start + kAhead + i, 0, 2);
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

static void mask_logits(float* logits, const uint32_t* bits, int n) {
  for (int start = 0; start < n; start += 32) {
    const uint32_t allowed = bits[start / 32];
    const int count = n - start < 32 ? n - start : 32;
    if (allowed == ~uint32_t{0}) continue;
    for (int i = 0; i < count; i++)
      logits[start + i] = allowed >> i & 1 ? logits[start + i] : -__builtin_inff();
  }
}

static float logit_sum(const float* logits, int n, float maximum) {
  const f32x16 m = broadcast(maximum), zero = broadcast(0.0f);
  f32x16 sum = zero;
  int i = 0;
  for (; i + 16 <= n; i += 16) sum = add(sum, exp_in_range(sub(loadu(logits + i), m)));
  if (i < n) {
    const mask16 tail = first_lanes(n - i);
    sum = add(sum, select(tail, exp_in_range(sub(load_masked(tail, logits + i), m)), zero));
  }
  return reduce_add(sum);
}

static void group_sums(const float* logits, int n, const Tempering& t, float* sums) {
  const f32x16 most = broadcast(t.maximum), scale = broadcast(static_cast<float>(1.0 / t.temperature));
  for (int start = 0; start < n; start += kVocabGroup) {
    f32x16 x[4];
    INSITU_UNROLL for (int i = 0; i < 4; i++) {
      const mask16 is_there = first_lanes(n - start - 16 * i);
      const f32x16 v = select(is_there, load_masked(is_there, logits + start + 16 * i), broadcast(-__builtin_inff()));
      x[i] = mul(sub(v, most), scale);
    }
    exp_in_range(x);
    *sums++ = reduce_add(add(add(x[0], x[1]), add(x[2], x[3])));
  }
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

static inline int depth_of(float logit, const Tempering& t) {
  const double depth = -tempered(logit, t) * kDepthsPerNat;
  return depth < kMassDepths - 1 ? static_cast<int>(depth) : kMassDepths - 1;
}

// Adds each token's mass to that of its depth, which falls as its logit rises: equal logits, one depth.
static void logit_mass(const float* logits, const float* group_maxima, int n, const Tempering& t, float least,
                       uint64_t* by_depth) {
  // exp(-28.5) is less than half a unit of mass.
  const auto is_wanted = [&](float most) { return most >= least && tempered(most, t) >= -28.5; };
  const int num_groups = (n + kVocabGroup - 1) / kVocabGroup;
  int num_wanted = 0;
  for (int group = 0; group < num_groups; group++) num_wanted += is_wanted(group_maxima[group]);
  // Neighbours are often of one depth: two sums of each, lest every addition wait for the last.
  constexpr int kFew = 8;
  uint64_t more[2][kMassDepths];
  uint64_t* const sums[2] = {num_wanted > kFew ? more[0] : by_depth, num_wanted > kFew ? more[1] : by_depth};
  if (num_wanted > kFew) __builtin_memset(more, 0, sizeof more);
  for (int start = 0; num_wanted > 0 && start < n; start += kVocabGroup) {
    if (!is_wanted(group_maxima[start / kVocabGroup])) continue;
    const int count = n - start < kVocabGroup ? n - start : kVocabGroup;
    double z[kVocabGroup];
    uint64_t mass[kVocabGroup];
    int32_t depth[kVocabGroup];
    for (int i = 0; i < count; i++) z[i] = static_cast<double>(logits[start + i]) - static_cast<double>(t.maximum);
    for (int i = 0; t.temperature != 1.0 && i < count; i++) z[i] /= t.temperature;
    for (int i = 0; i < count; i++) {
      const double p = exp_d(z[i]), least = -(kMassDepths - 1) / kDepthsPerNat;
      const double shifted = p * 0x1p40 + 0x1p52;
      mass[i] = p >= t.min_p ? __builtin_bit_cast(uint64_t, shifted) & ((uint64_t{1} << 52) - 1) : 0;
      depth[i] = static_cast<int32_t>((z[i] > least ? z[i] : least) * -kDepthsPerNat);
    }
    for (int i = 0; i < count; i++) sums[i % 2][depth[i]] += mass[i];
  }
  for (int i = 0; num_wanted > kFew && i < kMassDepths; i++) by_depth[i] += more[0][i] + more[1][i];
}

static Moments logit_moments(const float* logits, int n, float maximum) {
  constexpr int kLanes = 8;
  typedef float Floats __attribute__((vector_size(32)));
  typedef double Doubles __attribute__((vector_size(64)));
  typedef int64_t Bits __attribute__((vector_size(64)));
  const Floats impossible = Floats{} - __builtin_inff();
  Bits num = {};
  Doubles sum = {}, squares = {};
  const auto add_lanes = [&](const Floats& v) INSITU_INLINE_LAMBDA {
    const Bits is_possible = __builtin_convertvector(v > impossible, Bits);
    const Doubles depth = __builtin_convertvector(v, Doubles) - static_cast<double>(maximum);
    const Doubles x = (Doubles)((Bits)depth & is_possible);
    num -= is_possible;
    sum += x;
    squares += x * x;
  };
  int start = 0;
  for (; start + kLanes <= n; start += kLanes) {
    Floats v;
    __builtin_memcpy(&v, logits + start, sizeof v);
    add_lanes(v);
  }
  Floats rest = impossible;
  __builtin_memcpy(&rest, logits + start, sizeof(float) * (n - start));
  add_lanes(rest);
  Moments m{0, 0, 0};
  for (int i = 0; i < kLanes; i++)
    m = {m.num + static_cast<double>(num[i]), m.sum + sum[i], m.sum_of_squares + squares[i]};
  return m;
}

constexpr uint32_t kPhiloxMultipliers[2] = {0xD2511F53, 0xCD9E8D57}, kPhiloxKeySteps[2] = {0x9E3779B9, 0xBB67AE85};

// Philox4x32-10 of the counters in the even lanes of a[i]; the words are in the even lanes. Several at a
// time: one is a chain of 30 operations that each wait for the last.
template <int N>
static inline void philox_even(i32x16 (&a)[N], const Noise& noise, i32x16 (&b)[N], i32x16 (&c)[N], i32x16 (&d)[N]) {
  const auto scalar = [](uint32_t x) { return ibroadcast(static_cast<int32_t>(x)); };
  const uint32_t* m = kPhiloxMultipliers;
  uint32_t key0 = static_cast<uint32_t>(noise.seed), key1 = static_cast<uint32_t>(noise.seed >> 32);
  const auto step = [&] { key0 += kPhiloxKeySteps[0], key1 += kPhiloxKeySteps[1]; };
  // Two rounds in which half of the state is the same for all counters.
  const uint64_t y0 = uint64_t{m[1]} * noise.choice;
  const uint32_t a1 = static_cast<uint32_t>(y0 >> 32) ^ noise.position ^ key0, c_key = key1;
  step();
  const uint64_t x1 = uint64_t{m[0]} * a1;
  for (int i = 0; i < N; i++) {
    const i32x16 x0 = umul_even(a[i], m[0]);
    b[i] = umul_even(ixor(odd_to_even(x0), scalar(c_key)), m[1]);
    a[i] = ixor(odd_to_even(b[i]), scalar(static_cast<uint32_t>(y0) ^ key0));
    c[i] = ixor(x0, scalar(static_cast<uint32_t>(x1 >> 32) ^ key1));
    d[i] = scalar(static_cast<uint32_t>(x1));
  }
  for (int round = 2; round < 10; round++) {
    step();
    for (int i = 0; i < N; i++) {
      const i32x16 x = umul_even(a[i], m[0]), y = umul_even(c[i], m[1]);
      a[i] = ixor3(odd_to_even(y), b[i], scalar(key0));
      c[i] = ixor3(odd_to_even(x), d[i], scalar(key1));
      b[i] = y;
      d[i] = x;
    }
  }
}

// Of 16 neighbouring counters at each of some places; words[i][j] is word j of counters first[i], first[i] + 1, ...
template <int N>
static inline void philox16(const uint32_t (&first)[N], const Noise& noise, i32x16 (&words)[N][4]) {
  static const int32_t kLanes16[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  i32x16 a[2 * N], b[2 * N], c[2 * N], d[2 * N];
  for (int i = 0; i < N; i++) {
    a[2 * i] = iadd(ibroadcast(static_cast<int32_t>(first[i])), iload(kLanes16));
    a[2 * i + 1] = odd_to_even(a[2 * i]);
  }
  philox_even(a, noise, b, c, d);
  for (int i = 0; i < N; i++) {
    words[i][0] = join_even(a[2 * i], a[2 * i + 1]);
    words[i][1] = join_even(b[2 * i], b[2 * i + 1]);
    words[i][2] = join_even(c[2 * i], c[2 * i + 1]);
    words[i][3] = join_even(d[2 * i], d[2 * i + 1]);
  }
}

static inline double gumbel(uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -log_d(-log_d(u));
}

static double token_score(float logit, int token_id, const Tempering& t, const Noise& noise) {
  const auto counter = static_cast<uint32_t>(token_id) / 4;
  const PhiloxWords words = philox(noise.seed, counter, noise.position, noise.choice, 0);
  return tempered(logit, t) + gumbel(words.word[token_id % 4]);
}

static double uniform(const Noise& noise) {
  return (static_cast<double>(philox(noise.seed, 0, noise.position, noise.choice, 1).word[0]) + 0.5) * 0x1p-32;
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

// True if any of 64 words is `least` or more, compared without sign.
static inline bool has_word(const i32x16 (&words)[4], uint32_t least) {
  const i32x16 sign = ibroadcast(INT32_MIN);
  const i32x16 most = imax(imax(ixor(words[0], sign), ixor(words[1], sign)),
                           imax(ixor(words[2], sign), ixor(words[3], sign)));
  return static_cast<uint32_t>(ireduce_max(most)) + 0x80000000u >= least;
}

// What a walk for the best score compares with, all of a row.
struct Contest {
  const Tempering& t;
  const Noise& noise;
  const Band& band;
  double lowest;                // safely below the least temperature-scaled logit that min_p keeps

  Contest(const Tempering& t, const Noise& noise, const Band& band)
      : t(t), noise(noise), band(band), lowest(t.min_p > 0.0 ? log_d(t.min_p) - 1e-6 : -__builtin_inf()) {}

  // How much noise a group's best logit would need.
  double needed(float group_maximum, const Scored& best) const { return best.score - tempered(group_maximum, t) - 1e-6; }
  bool is_lost(float group_maximum, const Scored& best) const {
    return needed(group_maximum, best) > kMostNoise || tempered(group_maximum, t) < lowest || group_maximum < band.least;
  }
};

// Of a group of up to 64 logits whose words are these: only words that could win become noise.
static void score_group(const Contest& contest, const float* logits, int first_id, int n, float group_maximum,
                        const i32x16 (&words)[4], Scored* best) {
  static const WordBounds bounds;
  const double needed = contest.needed(group_maximum, *best);
  if (needed > kMostNoise) return;
  const uint32_t least = needed <= -4.0 ? 0 : bounds.least[static_cast<int>((needed + 4.0) * 16.0)];
  if (!has_word(words, least)) return;
  int32_t lanes[4][16];
  for (int j = 0; j < 4; j++) istore(lanes[j], words[j]);
  for (int i = 0; i < n; i++) {
    const auto word = static_cast<uint32_t>(lanes[i % 4][i / 4]);
    if (word < least || !contest.band.holds(logits[i], first_id + i)) continue;
    const double z = tempered(logits[i], contest.t);
    if (contest.t.min_p > 0.0 && exp_d(z) < contest.t.min_p) continue;
    const double score = z + gumbel(word);
    if (score > best->score || (score == best->score && first_id + i < best->token_id)) *best = {score, first_id + i};
  }
}

// Exact, though most tokens are never scored: a group whose best logit was cut, or cannot win even
// with the greatest noise, is skipped.
static void best_score(const float* logits, const float* group_maxima, int first_id, int n, const Tempering& t,
                       const Noise& noise, const Band& band, Scored* best) {
  constexpr int kTogether = 2;
  const Contest contest(t, noise, band);
  const int num_groups = (n + kVocabGroup - 1) / kVocabGroup;
  for (int group = 0; group < num_groups;) {
    int groups[kTogether], num = 0;
    for (; num < kTogether && group < num_groups; group++)
      if (!contest.is_lost(group_maxima[group], *best)) groups[num++] = group;
    if (num == 0) return;
    uint32_t counters[kTogether];
    for (int i = 0; i < kTogether; i++)
      counters[i] = static_cast<uint32_t>(first_id + groups[i < num ? i : 0] * kVocabGroup) / 4;
    i32x16 words[kTogether][4];
    philox16(counters, noise, words);
    for (int i = 0; i < num; i++) {
      const int start = groups[i] * kVocabGroup, count = n - start < kVocabGroup ? n - start : kVocabGroup;
      score_group(contest, logits + start, first_id + start, count, group_maxima[groups[i]], words[i], best);
    }
  }
}

static double band_sum(const float* logits, const float* group_maxima, int first_id, int n, const Tempering& t,
                       const Band& band) {
  double sum = 0;
  for (int start = 0; start < n; start += kVocabGroup) {
    if (group_maxima[start / kVocabGroup] < band.least) continue;
    const int count = n - start < kVocabGroup ? n - start : kVocabGroup;
    double p[kVocabGroup];
    for (int i = 0; i < count; i++) p[i] = exp_d(tempered(logits[start + i], t));
    for (int i = 0; i < count; i++)
      if (p[i] >= t.min_p && band.holds(logits[start + i], first_id + start + i)) sum += p[i];
  }
  return sum;
}

static double log_double(double x) { return log_d(x); }
static double exp_double(double x) { return exp_d(x); }

}  // namespace insitu::INSITU_NS

// The entries of KernelTable that attention.h and sample.h fill, after those of elementwise.h, in its order.
#define INSITU_EXECUTOR_ENTRIES                                                                             \
  INSITU_ELEMENTWISE_ENTRIES, .write_kv = write_kv,                                                          \
  .attend_chunks = attend_chunks, .fold_chunk = fold_chunk, .take_output = take_output,                     \
  .logit_maxima = logit_maxima, .mask_logits = mask_logits, .logit_sum = logit_sum, .group_sums = group_sums, .logit_mass = logit_mass, \
  .logit_moments = logit_moments, .band_sum = band_sum, .best_score = best_score, .token_probability = token_probability, .token_mass = token_mass,               \
  .token_depth = depth_of, .token_score = token_score, .log_double = log_double,                        \
  .exp_double = exp_double, .uniform = uniform
