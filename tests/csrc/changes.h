// Edits and masks for the rows of a test: some have none, some have one, some have both.
#pragma once
#include <cstdint>
#include <vector>

#include "processors.h"
#include "random_weights.h"

namespace insitu {

class Changes {
 public:
  Changes(int num_rows, int vocab) {
    Random rng;
    row_start_.push_back(0);
    for (int r = 0; r < num_rows; r++) {
      repetition_.push_back(r % 2 ? 1.3 : 1.0);
      presence_.push_back(r % 4 ? 0.0 : 0.5);
      frequency_.push_back(0.25 * (r % 3));
      for (int i = 0; r % 3 == 1 && i < 60; i++) {
        token_id_.push_back(rng.below(vocab));
        count_.push_back(i % 4 - 1);
        value_.push_back(i % 16 == 15 ? -__builtin_inf() : 6.0 * rng.unit());
      }
      row_start_.push_back(static_cast<int32_t>(token_id_.size()));
      const bool has_mask = r % 4 >= 2;
      of_row_.push_back(has_mask ? num_masks_++ : -1);
      for (int w = 0; has_mask && w < mask_words(vocab); w++)
        bits_.push_back(w % 3 == 0 ? ~0u : w % 5 == 1 ? 0u : static_cast<uint32_t>(rng.below(1 << 30)));
    }
    before_.resize(token_id_.size());
  }

  Edits edits() const {
    return {row_start_.data(), token_id_.data(),   count_.data(),    value_.data(),
            before_.data(),    repetition_.data(), presence_.data(), frequency_.data()};
  }
  Masks masks() const { return {of_row_.data(), bits_.data(), num_masks_}; }

 private:
  int num_masks_ = 0;
  std::vector<int32_t> row_start_, token_id_, count_, of_row_;
  std::vector<double> value_, repetition_, presence_, frequency_;
  std::vector<uint32_t> bits_;
  mutable std::vector<float> before_;
};

}  // namespace insitu
