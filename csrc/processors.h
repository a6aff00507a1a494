// Changes to a row of logits before a token is chosen: single tokens made likelier or less so, and masks.
// Not here: why (engine/sampler.py makes the lists), or choosing.
// Truth: kernels/reference_processors.py. Always true: edits happen in order, each in float64 and rounded
// once; what was impossible stays so, and a finite logit stays finite unless it is banned.
#pragma once
#include <cstdint>

namespace insitu {

// Changes of single logits. Row r has those from row_start[r] to row_start[r + 1], any order of ids.
struct Edits {
  const int32_t* row_start;     // [R + 1]
  const int32_t* token_id;      // [E]
  const int32_t* count;         // [E] occurrences that the row's penalties are for; -1: no penalties
  const double* value;          // [E] added, after the penalties; -inf bans
  float* before;                // [E] written: the logit before the edit
  // [R] each
  const double* repetition;     // divides what is positive, multiplies what is negative; 1: off
  const double* presence;       // taken off once
  const double* frequency;      // taken off for every occurrence
};

// Which tokens are allowed, one bit a token.
struct Masks {
  const int32_t* of_row;        // [R] an index into bits; -1: every token is allowed
  const uint32_t* bits;         // [num, mask_words(vocab_size)]; bit i % 32 of word i / 32 is token i's
  int num;
};

constexpr int mask_words(int vocab_size) { return (vocab_size + 31) / 32; }

// Throws std::invalid_argument naming the array at fault.
void check_changes(const Edits& edits, const Masks& masks, int num_rows, int vocab_size);

inline bool has_changes(const Edits& edits, const Masks& masks, int row) {
  return edits.row_start[row] < edits.row_start[row + 1] || masks.of_row[row] >= 0;
}

void apply_edits(const Edits& edits, int row, float* logits);
// The logit that token `id` had before any edit of its row.
float logit_before(const Edits& edits, int row, const float* logits, int32_t id);

}  // namespace insitu
