// The tokens of a row that matter, found without sorting the vocabulary.
// Not here: which of them are kept (truncation.h). Always true: allocates nothing; what is found
// depends on the row alone.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "kernels.h"

namespace insitu {

constexpr float kImpossible = -__builtin_inff();

// A row's logits, what was found out about them, and room to work in.
struct RowView {
  const KernelTable& table;
  const float* logits;          // [vocab_size]
  const float* maxima;          // [num_groups]
  int vocab_size, num_groups;
  int32_t* ids;                 // [vocab_size]
  int32_t* more_ids;            // [vocab_size]
  float* floats;                // [num_groups]
};

struct Candidates {
  int32_t* ids;
  int num;
};

// Most likely first, then by id.
inline auto order_by(const float* logits) {
  return [logits](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
}

// `ids` in that order: by the bits of their logits, eleven at a time from the lowest on.
inline void sort_by_logit(const RowView& row, int32_t* ids, int num) {
  constexpr int kFew = 2048, kDigits = 3, kBits = 11, kValues = 1 << kBits;
  if (num <= kFew) return std::sort(ids, ids + num, order_by(row.logits));
  if (!std::is_sorted(ids, ids + num)) std::sort(ids, ids + num);  // what follows keeps equal ones as they come
  const auto key_of = [&](int32_t id) {  // falls as the logit rises; -0 is 0
    const auto bits = std::bit_cast<uint32_t>(row.logits[id] + 0.0f);
    return bits >> 31 ? bits : ~(bits | uint32_t{1} << 31);
  };
  int32_t starts[kDigits][kValues] = {};
  for (int i = 0; i < num; i++)
    for (int digit = 0; digit < kDigits; digit++) starts[digit][key_of(ids[i]) >> (digit * kBits) & (kValues - 1)]++;
  int32_t *from = ids, *to = row.more_ids;
  for (int digit = 0; digit < kDigits; digit++) {
    int32_t* at = starts[digit];
    std::exclusive_scan(at, at + kValues, at, 0);
    for (int i = 0; i < num; i++) to[at[key_of(from[i]) >> (digit * kBits) & (kValues - 1)]++] = from[i];
    std::swap(from, to);
  }
  if (from != ids) std::copy_n(from, num, ids);
}

// A logit that at least k tokens reach: the k-th largest of the groups' maxima.
inline float kth_bound(const RowView& row, int k) {
  constexpr int kTogether = 16;
  if (k >= row.num_groups) return kImpossible;
  float *const some = row.floats, least = kImpossible;
  const auto take_kth = [&](int num) {
    std::nth_element(some, some + k - 1, some + num, std::greater<float>());
    return some[k - 1];
  };
  // Where few are wanted, first that of maxima of several groups, which as many groups reach.
  const int num_several = row.num_groups / kTogether;
  if (k <= num_several / 2) {
    for (int i = 0; i < num_several; i++) {
      const float* maxima = row.maxima + i * kTogether;
      some[i] = *maxima;
      for (int at = 1; at < kTogether; at++) some[i] = std::max(some[i], maxima[at]);
    }
    least = take_kth(num_several);
  }
  int num = 0;
  for (int group = 0; group < row.num_groups; group++) {
    some[num] = row.maxima[group];
    num += row.maxima[group] >= least;
  }
  return take_kth(num);
}

// Every possible token whose logit is in [least, most], by id.
inline Candidates gather(const RowView& row, float least, float most) {
  int num = 0;
  for (int group = 0; group < row.num_groups; group++) {
    if (row.maxima[group] < least) continue;
    const int first = group * kVocabGroup, count = std::min(kVocabGroup, row.vocab_size - first);
    const float* logits = row.logits + first;
    uint8_t hits[kVocabGroup] = {};  // all of them first, for the compiler to take many at once
    for (int i = 0; i < count; i++) hits[i] = (logits[i] >= least) & (logits[i] <= most) & (logits[i] > kImpossible);
    for (int i = 0; i < count; i += 8) {
      uint64_t eight;
      std::memcpy(&eight, hits + i, 8);
      if (eight == 0) continue;
      for (int at = i; at < std::min(i + 8, count); at++) {  // no branch: which it is nobody can foresee
        row.ids[num] = first + at;
        num += hits[at];
      }
    }
  }
  return {row.ids, num};
}

// The k first in order, themselves in no order.
inline Candidates gather_first(const RowView& row, int k) {
  Candidates found = gather(row, kth_bound(row, k), __builtin_inff());
  if (found.num > k) {
    std::nth_element(found.ids, found.ids + k - 1, found.ids + found.num, order_by(row.logits));
    found.num = k;
  }
  return found;
}

}  // namespace insitu
