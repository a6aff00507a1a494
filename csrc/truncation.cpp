// Bands of tokens: by a number of them, by their mass, and by a chain of settings over a sorted list.
#include "truncation.h"

#include <algorithm>
#include <cmath>

namespace insitu {

namespace {

constexpr float kInfinity = __builtin_inff();

float as_float(double x) {
  constexpr double kMost = __FLT_MAX__;
  return static_cast<float>(std::clamp(x, -kMost, kMost));
}

Band from_start_to(const RowView& row, int32_t id) { return {kInfinity, 0, row.logits[id], id}; }

// To the first of these tokens, in order, at which `mass` has grown to `wanted`; else to the last. Where that
// is, is found by counting: only the few tokens of one small range of logits are sorted.
Band end_of_mass(const RowView& row, const Tempering& t, const Candidates& kept, uint64_t mass, double wanted) {
  constexpr int kFew = 64, kRanges = 256;
  const auto is_before = order_by(row.logits);
  int32_t *first = kept.ids, *last = kept.ids + kept.num;
  while (last - first > kFew) {
    const auto [high, low] = std::minmax_element(first, last, is_before);
    const double most = row.logits[*high], width = most - static_cast<double>(row.logits[*low]);
    if (width == 0) break;
    const auto range_of = [&](int32_t id) {  // in order
      return static_cast<int>((most - static_cast<double>(row.logits[id])) / width * (kRanges - 1));
    };
    uint64_t masses[kRanges] = {};
    for (const int32_t* id = first; id < last; id++) masses[range_of(*id)] += row.table.token_mass(row.logits[*id], t);
    int range = 0;
    while (range < kRanges - 1 && static_cast<double>(mass + masses[range]) < wanted) mass += masses[range++];
    first = std::partition(first, last, [&](int32_t id) { return range_of(id) < range; });
    last = std::partition(first, last, [&](int32_t id) { return range_of(id) == range; });
  }
  std::sort(first, last, is_before);
  for (const int32_t* id = first; id < last; id++) {
    mass += row.table.token_mass(row.logits[*id], t);
    if (static_cast<double>(mass) >= wanted) return from_start_to(row, *id);
  }
  return from_start_to(row, last[-1]);
}

// A list of tokens, most likely first, and the part of it that is left.
class Chain {
 public:
  Chain(const RowView& row, const Tempering& t, const Truncation& wanted)
      : row_(row), t_(t), wanted_(wanted), list_(listed(row, t, wanted)), end_(list_.num) {
    sort_by_logit(row, list_.ids, list_.num);
    is_open_ = wanted.top_k == 0;
  }

  Band run() {
    keep_likely_logits();
    if (wanted_.order == Order::Own) keep_likely();
    // The list begins with the top_k first already.
    if (wanted_.order == Order::LlamaCpp) keep_typical();
    keep_mass();
    if (wanted_.order != Order::Own) keep_likely();
    if (wanted_.order != Order::LlamaCpp) keep_typical();
    drop_top();
    const int32_t first = list_.ids[begin_], last = list_.ids[end_ - 1];
    const float most = first == list_.ids[0] ? kInfinity : row_.logits[first];
    if (!is_open_) return {most, first, row_.logits[last], last};
    const float least = least_logit();
    return {most, first, least, least > kImpossible ? INT32_MAX : -1};
  }

 private:
  // Tokens below have no mass, and only what has no need of mass could keep them.
  static Candidates listed(const RowView& row, const Tempering& t, const Truncation& wanted) {
    if (wanted.top_k > 0) return gather_first(row, wanted.top_k);
    double depth = wanted.needs_mass() ? -28.5 : 0.0;
    if (wanted.min_p > 0) {
      const double likely = row.table.log_double(wanted.min_p) - 1e-6;
      depth = wanted.order == Order::Own ? likely : std::min(depth, likely);
    }
    const double nats = depth * t.temperature, most = t.maximum;
    const double slack = 1e-6 * (std::abs(most) + std::abs(nats));
    const double least = std::max(most + nats - slack, wanted.least_logit - 1e-6 * std::abs(wanted.least_logit));
    // A row's own maximum is in any list.
    return gather(row, std::min(as_float(least), t.maximum), kInfinity);
  }

  double depth_of(int i) const {  // in nats under the first that is left
    const double first = row_.logits[list_.ids[begin_]];
    return (static_cast<double>(row_.logits[list_.ids[i]]) - first) / t_.temperature;
  }
  double share_of(int i) const { return row_.table.exp_double(depth_of(i)); }
  uint64_t mass_of(int i) const {
    return row_.table.token_mass(row_.logits[list_.ids[i]], {row_.logits[list_.ids[begin_]], t_.temperature, 0.0});
  }
  uint64_t mass() const {
    uint64_t sum = 0;
    for (int i = begin_; i < end_; i++) sum += mass_of(i);
    return sum;
  }

  float least_logit() const {
    if (wanted_.least_logit == -__builtin_inf()) return kImpossible;
    const float least = as_float(wanted_.least_logit);
    return static_cast<double>(least) < wanted_.least_logit ? std::nextafter(least, kInfinity) : least;
  }

  // What fails a test that no later token passes ends the list.
  template <typename Holds>
  void keep_while(Holds&& holds) {
    int i = begin_ + 1;
    while (i < end_ && holds(i)) i++;
    if (i < end_) is_open_ = false;
    end_ = i;
  }

  void keep_likely_logits() {
    keep_while([&](int i) { return row_.logits[list_.ids[i]] >= wanted_.least_logit; });
  }

  void keep_likely() {
    if (wanted_.min_p == 0) return;
    keep_while([&](int i) { return share_of(i) >= wanted_.min_p; });
    is_open_ = false;
  }

  void keep_mass() {
    if (wanted_.top_p >= 1) return;
    const double enough = wanted_.top_p * static_cast<double>(mass());
    uint64_t sum = mass_of(begin_);
    keep_while([&](int i) {
      if (static_cast<double>(sum) >= enough) return false;
      sum += mass_of(i);
      return true;
    });
    is_open_ = false;
  }

  // Grows from where the surprise is nearest the entropy, to either side; of like distances, all.
  void keep_typical() {
    if (wanted_.typical_p >= 1) return;
    keep_while([&](int i) { return mass_of(i) > 0; });
    is_open_ = false;
    double sum = 0, weighted = 0;
    for (int i = begin_; i < end_; i++) {
      const double share = share_of(i);
      sum += share;
      weighted += share * depth_of(i);
    }
    // How far a token's surprise is from the mean: both less the log of the sum.
    const auto distance_of = [&](int i) { return std::abs(depth_of(i) - weighted / sum); };
    const double enough = wanted_.typical_p * static_cast<double>(mass());
    int right = begin_;
    while (right < end_ && depth_of(right) > weighted / sum) right++;
    int left = right;  // [left, right) is kept
    uint64_t kept = 0;
    double furthest = 0;
    while (left > begin_ || right < end_) {
      const double above = left > begin_ ? distance_of(left - 1) : __builtin_inf();
      const double below = right < end_ ? distance_of(right) : __builtin_inf();
      const double nearest = std::min(above, below);
      if (static_cast<double>(kept) >= enough && nearest > furthest) break;
      furthest = nearest;
      kept += above <= below ? mass_of(left - 1) : mass_of(right);
      if (above <= below) left--;
      else right++;
    }
    begin_ = left;
    end_ = right;
  }

  // Of the tokens that reach the threshold, all but the least likely go.
  void drop_top() {
    if (wanted_.xtc_threshold > 0.5) return;
    double sum = 0;
    for (int i = begin_; i < end_; i++) sum += share_of(i);
    int last = begin_;
    while (last + 1 < end_ && share_of(last + 1) >= wanted_.xtc_threshold * sum) last++;
    begin_ = last;
  }

  const RowView& row_;
  const Tempering& t_;
  const Truncation& wanted_;
  const Candidates list_;
  int begin_ = 0, end_;
  bool is_open_;                // tokens after the list are kept as well
};

}  // namespace

Band band_of_top_k(const RowView& row, const Tempering& t, int top_k, double top_p) {
  Candidates kept = gather_first(row, top_k);
  if (top_p >= 1) return from_start_to(row, *std::max_element(kept.ids, kept.ids + kept.num, order_by(row.logits)));
  if (t.min_p > 0) {
    const auto is_kept = [&](int32_t id) { return row.table.token_probability(row.logits[id], t) >= t.min_p; };
    kept.num = static_cast<int>(std::partition(kept.ids, kept.ids + kept.num, is_kept) - kept.ids);
  }
  uint64_t total = 0;
  for (int i = 0; i < kept.num; i++) total += row.table.token_mass(row.logits[kept.ids[i]], t);
  return end_of_mass(row, t, kept, 0, top_p * static_cast<double>(total));
}

Rest rest_of(const RowView& row, const Tempering& t, const float* group_sums, double top_p) {
  constexpr int kNats = 29;
  constexpr double kMostRest = 0.4;  // of what top_p cuts: the heavy groups hold light tokens as well
  const double most = t.maximum;
  double by_nat[kNats] = {}, total = 0, rest = 0;
  for (int group = 0; group < row.num_groups; group++) {
    const double nats = (most - static_cast<double>(row.maxima[group])) / t.temperature;
    by_nat[static_cast<int>(std::min(nats, kNats - 1.0))] += static_cast<double>(group_sums[group]);
    total += static_cast<double>(group_sums[group]);
  }
  int nat = kNats;
  while (nat > 1 && rest + by_nat[nat - 1] <= kMostRest * (1 - top_p) * total) rest += by_nat[--nat];
  Rest found;
  const float least = as_float(most - nat * t.temperature);
  int num_light = 0;
  for (int group = 0; group < row.num_groups; group++) {
    if (row.maxima[group] >= least) continue;
    found.mass += kMassUnits * static_cast<double>(group_sums[group]);
    num_light++;
  }
  // Of logits so even the band is likely to end in the rest.
  if (num_light < row.num_groups / 2) return {};
  found.least = least;
  // Each mass is rounded to a whole unit, and a sum of them, as a double, to 2^-53 of itself.
  found.doubt = kSumDoubt * found.mass + row.vocab_size + 1e-13 * kMassUnits * total;
  return found;
}

namespace {

// The depth at which the mass suffices is found by counting; only the tokens of that depth are sorted. Depths
// from `num_depths` on are not known whole: false where the mass suffices no sooner.
bool band_of_mass(const RowView& row, const Tempering& t, const uint64_t* by_depth, int num_depths, double wanted,
                  Band* band) {
  uint64_t before = 0;
  int depth = 0;
  while (depth < num_depths - 1 && static_cast<double>(before + by_depth[depth]) < wanted) before += by_depth[depth++];
  if (num_depths < kMassDepths && static_cast<double>(before + by_depth[depth]) < wanted) return false;
  // Bounds a little too wide, then exactly those of the depth.
  const double nats = depth / kDepthsPerNat * t.temperature, step = t.temperature / kDepthsPerNat;
  const double slack = 1e-5 * (std::abs(static_cast<double>(t.maximum)) + nats + step);
  const double most = t.maximum - nats + slack, least = most - step - 2 * slack;
  Candidates kept = gather(row, depth == kMassDepths - 1 ? kImpossible : as_float(least), as_float(most));
  const auto is_kept = [&](int32_t id) {
    return row.table.token_depth(row.logits[id], t) == depth &&
           (t.min_p == 0 || row.table.token_probability(row.logits[id], t) >= t.min_p);
  };
  kept.num = static_cast<int>(std::partition(kept.ids, kept.ids + kept.num, is_kept) - kept.ids);
  *band = end_of_mass(row, t, kept, before, wanted);
  return true;
}

}  // namespace

bool band_of_top_p(const RowView& row, const Tempering& t, const uint64_t* by_depth, const Rest& rest, double top_p,
                   Band* band) {
  uint64_t total = 0;
  for (int depth = 0; depth < kMassDepths; depth++) total += by_depth[depth];
  if (rest.least == kImpossible)
    return band_of_mass(row, t, by_depth, kMassDepths, top_p * static_cast<double>(total), band);
  // A token of the rest lies at this depth or deeper.
  const int num_depths = row.table.token_depth(rest.least, t);
  const double mass = static_cast<double>(total) + rest.mass;
  Band other;
  return num_depths > 0 && band_of_mass(row, t, by_depth, num_depths, top_p * (mass - rest.doubt), band) &&
         band_of_mass(row, t, by_depth, num_depths, top_p * (mass + rest.doubt), &other) &&
         band->least == other.least && band->last_id == other.last_id;
}

Band band_of_chain(const RowView& row, const Tempering& t, const Truncation& truncation) {
  return Chain(row, t, truncation).run();
}

}  // namespace insitu
