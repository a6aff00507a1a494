// Which tokens of a row are left to choose from: one after another, the settings narrow a band of tokens,
// most likely first and then by id.
// Not here: choosing among them, or walks over whole rows (sampler.h).
// Truth: kernels/reference_sampling.py. Always true: a band holds a token; sums of masses have no order.
#pragma once
#include <cstdint>

#include "candidates.h"
#include "kernels.h"

namespace insitu {

// What follows what; the last of each is xtc.
enum class Order : int32_t {
  Own,          // temperature, min_p, top_k, top_p, typical_p
  HuggingFace,  // temperature, top_k, top_p, min_p, typical_p
  LlamaCpp,     // top_k, typical_p, top_p, min_p; temperature only when choosing
};

struct Truncation {
  Order order;
  int top_k;                    // 0: off
  double top_p, min_p, typical_p;
  double least_logit;           // what top_n_sigma leaves; -infinity: off
  double xtc_threshold;         // above 0.5: off

  bool needs_mass() const { return top_p < 1 || typical_p < 1 || xtc_threshold <= 0.5; }
  // Whether min_p first, then top_k, then top_p says it all: no sorted list is needed then.
  bool is_plain() const {
    return typical_p >= 1 && least_logit == -__builtin_inf() && xtc_threshold > 0.5 &&
           (order == Order::Own || (min_p == 0 && (order == Order::HuggingFace || top_p >= 1)));
  }
};

// For a plain truncation: by top_k, and top_p of what it leaves.
Band band_of_top_k(const RowView& row, const Tempering& t, int top_k, double top_p);

// Groups of logits whose mass is not worth knowing exactly: those with a maximum below `least`.
struct Rest {
  float least = -__builtin_inff();
  double mass = 0, doubt = 0;   // in units of mass; how far off it may be
};
// As much as cannot matter much to top_p, by the groups' sums.
Rest rest_of(const RowView& row, const Tempering& t, const float* group_sums, double top_p);
// For a plain one without top_k; `by_depth` is the sum of logit_mass of all groups but the rest. False where
// the band might be another one by the doubt there is.
bool band_of_top_p(const RowView& row, const Tempering& t, const uint64_t* by_depth, const Rest& rest, double top_p,
                   Band* band);

// For any. `t` has the temperature that truncation sees, and no min_p.
Band band_of_chain(const RowView& row, const Tempering& t, const Truncation& truncation);

}  // namespace insitu
