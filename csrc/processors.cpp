// Edits of single logits, and the check of the lists that hold them.
#include "processors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace insitu {

namespace {

constexpr double kMostLogit = std::numeric_limits<float>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void require(const char* array, int index, bool holds, const char* wanted) {
  if (!holds)
    throw std::invalid_argument(std::string(array) + "[" + std::to_string(index) + "]: needs " + wanted);
}

bool is_finite_within(double x, double most) { return std::abs(x) <= most; }

float edited(float logit, int32_t count, double value, double repetition, double presence, double frequency) {
  if (logit == -kInfinity || value == -kInfinity) return -kInfinity;
  double x = logit;
  if (count >= 0) {
    x = x > 0 ? x / repetition : x * repetition;
    x -= frequency * count;
    if (count > 0) x -= presence;
  }
  return static_cast<float>(std::clamp(x + value, -kMostLogit, kMostLogit));
}

}  // namespace

void check_changes(const Edits& e, const Masks& masks, int num_rows, int vocab_size) {
  require("edits.row_start", 0, e.row_start[0] == 0, "0");
  for (int r = 0; r < num_rows; r++) {
    require("edits.row_start", r + 1, e.row_start[r + 1] >= e.row_start[r], "no less than the one before");
    require("repetition", r, e.repetition[r] > 0 && is_finite_within(e.repetition[r], 1e6), "above 0 to 1e6");
    require("presence", r, is_finite_within(e.presence[r], 1e6), "-1e6 to 1e6");
    require("frequency", r, is_finite_within(e.frequency[r], 1e6), "-1e6 to 1e6");
    require("masks.of_row", r, masks.of_row[r] >= -1 && masks.of_row[r] < masks.num, "-1 or one of the masks");
  }
  for (int i = 0; i < e.row_start[num_rows]; i++) {
    require("edits.token_id", i, e.token_id[i] >= 0 && e.token_id[i] < vocab_size, "an id of the vocabulary");
    require("edits.count", i, e.count[i] >= -1, "-1 or more");
    require("edits.value", i, e.value[i] < kInfinity, "a number below infinity");
  }
}

void apply_edits(const Edits& e, int row, float* logits) {
  for (int i = e.row_start[row]; i < e.row_start[row + 1]; i++) {
    float& logit = logits[e.token_id[i]];
    e.before[i] = logit;
    logit = edited(logit, e.count[i], e.value[i], e.repetition[row], e.presence[row], e.frequency[row]);
  }
}

float logit_before(const Edits& e, int row, const float* logits, int32_t id) {
  for (int i = e.row_start[row]; i < e.row_start[row + 1]; i++)
    if (e.token_id[i] == id) return e.before[i];
  return logits[id];
}

}  // namespace insitu
