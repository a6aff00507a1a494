// The tokens of a row that matter, found without sorting the vocabulary.
// Not here: which of them are kept (truncation.h). Always true: allocates nothing; what is found
// depends on the row alone.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>

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

// A logit that at least k tokens reach: the k-th largest of the groups' maxima.
inline float kth_bound(const RowView& row, int k) {
  if (k >= row.num_groups) return kImpossible;
  std::copy_n(row.maxima, row.num_groups, row.floats);
  std::nth_element(row.floats, row.floats + k - 1, row.floats + row.num_groups, std::greater<float>());
  return row.floats[k - 1];
}

// Every possible token whose logit is in [least, most], by id.
inline Candidates gather(const RowView& row, float least, float most) {
  Candidates found{row.ids, 0};
  for (int group = 0; group < row.num_groups; group++) {
    if (row.maxima[group] < least) continue;
    const int end = std::min((group + 1) * kVocabGroup, row.vocab_size);
    for (int id = group * kVocabGroup; id < end; id++)
      if (row.logits[id] >= least && row.logits[id] <= most && row.logits[id] > kImpossible) found.ids[found.num++] = id;
  }
  return found;
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
