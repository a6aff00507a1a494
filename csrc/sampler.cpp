// The phases of sampling: survey every chunk of every row, add up what a row's settings need, choose.
#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace insitu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kImpossible = -kInfinity;

int chunks_of(int vocab_size) { return (vocab_size + kVocabChunk - 1) / kVocabChunk; }
int groups_of(int vocab_size) { return (vocab_size + kVocabGroup - 1) / kVocabGroup; }

void require(const char* array, int row, bool holds, const char* wanted) {
  if (!holds)
    throw std::invalid_argument(std::string(array) + "[" + std::to_string(row) + "]: needs " + wanted);
}

void clear(const Sampled& out, int num_rows) {
  const ptrdiff_t num_tops = static_cast<ptrdiff_t>(num_rows) * out.max_logprobs;
  std::fill_n(out.token_ids, num_rows, 0);
  std::fill_n(out.logprobs, num_rows, std::numeric_limits<float>::quiet_NaN());
  std::fill_n(out.top_ids, num_tops, -1);
  std::fill_n(out.top_logprobs, num_tops, std::numeric_limits<float>::quiet_NaN());
}

// Carves arrays out of one buffer; with a null buffer it only counts.
struct Carver {
  uint8_t* base;
  size_t used = 0;
  template <typename T>
  T* take(size_t count) {
    T* array = reinterpret_cast<T*>(base + used);
    used += align_up(count * sizeof(T));
    return array;
  }
};

Cut cut_after(const float* logits, int32_t id) { return {logits[id], id}; }

// Most likely first, then by id.
auto order_by(const float* logits) {
  return [logits](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
}

}  // namespace

void check_sampling(const Sampling& s, int num_rows, int max_logprobs, int vocab_size) {
  for (int r = 0; r < num_rows; r++) {
    require("temperature", r, std::isfinite(s.temperature[r]) && s.temperature[r] >= 0, "a finite number >= 0");
    require("top_k", r, s.top_k[r] >= 0, "at least 0");
    require("top_p", r, s.top_p[r] > 0 && s.top_p[r] <= 1, "above 0 and at most 1");
    require("min_p", r, s.min_p[r] >= 0 && s.min_p[r] <= 1, "0 to 1");
    require("num_logprobs", r,
            s.num_logprobs[r] >= -1 && s.num_logprobs[r] <= max_logprobs && s.num_logprobs[r] <= vocab_size,
            "-1 to the columns of top_ids");
  }
  check_changes(s.edits, s.masks, num_rows, vocab_size);
}

Sampler::Sampler(const KernelTable& table, int vocab_size, int max_num_rows, int num_threads, uint8_t* scratch)
    : table_(table), vocab_size_(vocab_size), num_chunks_(chunks_of(vocab_size)), num_groups_(groups_of(vocab_size)), num_threads_(num_threads) {
  Carver carver{scratch};
  const size_t rows = max_num_rows, threads = num_threads, chunks = rows * num_chunks_;
  group_maxima_ = carver.take<float>(rows * num_groups_);
  chunk_maxima_ = carver.take<float>(chunks);
  chunk_sums_ = carver.take<float>(chunks);
  masses_ = carver.take<uint64_t>(rows * threads * kMassDepths);
  chunk_best_ = carver.take<Scored>(chunks);
  chunk_finite_ = carver.take<bool>(chunks);
  rows_ = carver.take<Row>(rows);
  ids_ = carver.take<int32_t>(threads * vocab_size);
  sorted_maxima_ = carver.take<float>(threads * num_groups_);
}

size_t Sampler::scratch_bytes(int vocab_size, int max_num_rows, int num_threads) {
  const size_t rows = max_num_rows, threads = num_threads;
  const size_t chunks = rows * chunks_of(vocab_size), groups = groups_of(vocab_size);
  return align_up(rows * groups * sizeof(float)) + 2 * align_up(chunks * sizeof(float)) +
         align_up(rows * threads * kMassDepths * sizeof(uint64_t)) + align_up(chunks * sizeof(Scored)) + align_up(chunks * sizeof(bool)) +
         align_up(rows * sizeof(Row)) + align_up(threads * vocab_size * sizeof(int32_t)) +
         align_up(threads * groups * sizeof(float));
}

void Sampler::run(ThreadPool& pool, float* logits, int num_rows, const Sampling& sampling, const Sampled& out) {
  const int chunks = num_chunks_;
  bool has_changes = false, has_sums = false, has_cuts = false;
  clear(out, num_rows);
  for (int r = 0; r < num_rows; r++) begin(r, logits + static_cast<ptrdiff_t>(r) * vocab_size_, sampling);
  pool.run(num_rows * chunks, [&](int item, int) { survey(item / chunks, item % chunks); });
  for (int r = 0; r < num_rows; r++) {
    if (!find_maximum(r)) rows_[r].status = RowStatus::NotFinite;
    has_changes |= rows_[r].is_changed;
  }
  if (has_changes) change(pool, num_rows, sampling, out);
  for (int r = 0; r < num_rows; r++) {
    prepare(r, sampling);
    has_sums |= rows_[r].wants_sum || rows_[r].wants_mass || rows_[r].wants_best;
    has_cuts |= rows_[r].wants_cut;
  }
  if (has_sums)
    pool.run(num_rows * chunks, [&](int item, int worker) { accumulate(item / chunks, item % chunks, worker); });
  if (has_cuts) {
    pool.run(num_rows, [&](int row, int worker) { cut(row, worker); });
    pool.run(num_rows * chunks, [&](int item, int) {
      if (rows_[item / chunks].wants_cut) score(item / chunks, item % chunks);
    });
  }
  pool.run(num_rows, [&](int row, int worker) { finish(row, sampling, out, worker); });
}

void Sampler::begin(int r, float* logits, const Sampling& s) {
  Row& row = rows_[r];
  row = Row{};
  row.logits = logits;
  row.wants_sum = s.num_logprobs[r] >= 0;
  row.is_changed = has_changes(s.edits, s.masks, r);
}

void Sampler::survey(int r, int chunk) {
  const int first = chunk * kVocabChunk, n = std::min(kVocabChunk, vocab_size_ - first);
  const ptrdiff_t at = static_cast<ptrdiff_t>(r) * num_chunks_ + chunk;
  float* maxima = group_maxima_ + static_cast<ptrdiff_t>(r) * num_groups_ + first / kVocabGroup;
  chunk_finite_[at] = table_.logit_maxima(rows_[r].logits + first, n, maxima, &chunk_maxima_[at]);
}

// Of the chunks' maxima; false where no token is possible or a logit is not finite.
bool Sampler::find_maximum(int r) {
  const ptrdiff_t first = static_cast<ptrdiff_t>(r) * num_chunks_;
  const float most = *std::max_element(chunk_maxima_ + first, chunk_maxima_ + first + num_chunks_);
  rows_[r].tempering.maximum = most;
  return most > kImpossible && std::all_of(chunk_finite_ + first, chunk_finite_ + first + num_chunks_,
                                           [](bool finite) { return finite; });
}

// Edits and masks rows that want it, after what their log-probabilities need of the logits as they came.
void Sampler::change(ThreadPool& pool, int num_rows, const Sampling& s, const Sampled& out) {
  const int chunks = num_chunks_;
  const auto is_wanted = [this](int r) { return rows_[r].is_changed && rows_[r].is_open(); };
  pool.run(num_rows * chunks, [&](int item, int) {
    const int r = item / chunks;
    if (is_wanted(r) && rows_[r].wants_sum) sum(r, item % chunks);
  });
  pool.run(num_rows, [&](int r, int worker) {
    if (!is_wanted(r)) return;
    if (rows_[r].wants_sum) take_sum(r);
    if (s.num_logprobs[r] > 0) fill_top(r, s.num_logprobs[r], out, worker);
    apply_edits(s.edits, r, rows_[r].logits);
  });
  pool.run(num_rows * chunks, [&](int item, int) {
    const int r = item / chunks, chunk = item % chunks, first = chunk * kVocabChunk, mask = s.masks.of_row[r];
    if (!is_wanted(r)) return;
    const uint32_t* bits = s.masks.bits + static_cast<ptrdiff_t>(mask) * mask_words(vocab_size_) + first / 32;
    if (mask >= 0) table_.mask_logits(rows_[r].logits + first, bits, std::min(kVocabChunk, vocab_size_ - first));
    survey(r, chunk);
  });
  for (int r = 0; r < num_rows; r++)
    if (is_wanted(r) && !find_maximum(r)) rows_[r].status = RowStatus::NothingAllowed;
}

void Sampler::prepare(int r, const Sampling& s) {
  Row& row = rows_[r];
  const ptrdiff_t first = static_cast<ptrdiff_t>(r) * num_chunks_;
  const float most = row.tempering.maximum;
  row.cut = {kImpossible, -1};
  row.tempering = {most, s.temperature[r], s.min_p[r]};
  row.noise = {s.seed[r], s.position[r], s.choice[r]};
  row.top_k = s.top_k[r] < vocab_size_ ? s.top_k[r] : 0;
  row.top_p = s.top_p[r];
  if (row.is_changed) row.wants_sum = false;  // taken already
  if (!row.is_open()) return;
  const int group = static_cast<int>(std::find(maxima_of(r), maxima_of(r) + num_groups_, most) - maxima_of(r));
  row.most_likely =
      static_cast<int>(std::find(row.logits + group * kVocabGroup, row.logits + vocab_size_, most) - row.logits);
  if (s.temperature[r] == 0) return;
  row.wants_mass = row.top_p < 1 && row.top_k == 0;
  row.wants_cut = row.wants_mass || row.top_k > 0;
  row.wants_best = !row.wants_cut;
  if (row.wants_mass) std::fill_n(masses_of(r, 0), num_threads_ * kMassDepths, uint64_t{0});
  // The most likely token is never cut, so its score is where every chunk may begin.
  const double score = table_.token_score(most, row.most_likely, row.tempering, row.noise);
  std::fill_n(chunk_best_ + first, num_chunks_, Scored{score, row.most_likely});
}

void Sampler::sum(int r, int chunk) {
  const int first = chunk * kVocabChunk, n = std::min(kVocabChunk, vocab_size_ - first);
  chunk_sums_[static_cast<ptrdiff_t>(r) * num_chunks_ + chunk] =
      table_.logit_sum(rows_[r].logits + first, n, rows_[r].tempering.maximum);
}

void Sampler::take_sum(int r) {
  double sum = 0;
  for (int c = 0; c < num_chunks_; c++) sum += chunk_sums_[static_cast<ptrdiff_t>(r) * num_chunks_ + c];
  rows_[r].log_sum = static_cast<double>(rows_[r].tempering.maximum) + table_.log_double(sum);
}

void Sampler::accumulate(int r, int chunk, int worker) {
  const Row& row = rows_[r];
  if (!row.is_open()) return;
  const int first = chunk * kVocabChunk, n = std::min(kVocabChunk, vocab_size_ - first);
  const float *logits = row.logits + first, *maxima = maxima_of(r) + first / kVocabGroup;
  if (row.wants_sum) sum(r, chunk);
  if (row.wants_mass) table_.logit_mass(logits, maxima, n, row.tempering, masses_of(r, worker));
  if (row.wants_best) score(r, chunk);
}

void Sampler::score(int r, int chunk) {
  const Row& row = rows_[r];
  const int first = chunk * kVocabChunk, n = std::min(kVocabChunk, vocab_size_ - first);
  table_.best_score(row.logits + first, maxima_of(r) + first / kVocabGroup, first, n, row.tempering, row.noise, row.cut,
                    &chunk_best_[static_cast<ptrdiff_t>(r) * num_chunks_ + chunk]);
}

void Sampler::finish(int r, const Sampling& s, const Sampled& out, int worker) {
  const Row& row = rows_[r];
  out.status[r] = row.status;
  if (!row.is_open()) return;
  const int id = s.temperature[r] > 0 ? best_of(r) : row.most_likely;
  out.token_ids[r] = id;
  if (s.num_logprobs[r] < 0) return;
  if (row.wants_sum) {
    take_sum(r);
    if (s.num_logprobs[r] > 0) fill_top(r, s.num_logprobs[r], out, worker);
  }
  out.logprobs[r] = logprob(r, logit_before(s.edits, r, row.logits, id));
}

float Sampler::logprob(int r, float logit) const {
  return static_cast<float>(static_cast<double>(logit) - rows_[r].log_sum);
}

int Sampler::best_of(int r) const {
  const Scored* best = chunk_best_ + static_cast<ptrdiff_t>(r) * num_chunks_;
  return std::min_element(best, best + num_chunks_, [](const Scored& a, const Scored& b) {
           return a.score != b.score ? a.score > b.score : a.token_id < b.token_id;
         })->token_id;
}

// Where truncation ends: the last token kept, most likely first, then by id. min_p needs no place in
// that order, as scoring drops what it drops.
void Sampler::cut(int r, int worker) {
  Row& row = rows_[r];
  if (!row.wants_cut) return;
  row.cut = row.top_k > 0 ? cut_top_k(r, worker) : cut_top_p(r, worker);
}

Cut Sampler::cut_top_k(int r, int worker) const {
  const Row& row = rows_[r];
  const Tempering& t = row.tempering;
  Candidates kept = gather(r, kth_bound(r, row.top_k, worker), kInfinity, worker);
  const auto is_before = order_by(row.logits);
  if (kept.num > row.top_k) {
    std::nth_element(kept.ids, kept.ids + row.top_k - 1, kept.ids + kept.num, is_before);
    kept.num = row.top_k;
  }
  if (row.top_p >= 1) return cut_after(row.logits, *std::max_element(kept.ids, kept.ids + kept.num, is_before));
  if (t.min_p > 0) {
    const auto is_kept = [&](int32_t id) { return table_.token_probability(row.logits[id], t) >= t.min_p; };
    kept.num = static_cast<int>(std::partition(kept.ids, kept.ids + kept.num, is_kept) - kept.ids);
  }
  uint64_t total = 0;
  for (int i = 0; i < kept.num; i++) total += table_.token_mass(row.logits[kept.ids[i]], t);
  return end_of_mass(row, kept, 0, row.top_p * static_cast<double>(total));
}

// The depth at which the mass suffices is found by counting; only the tokens of that depth are sorted.
Cut Sampler::cut_top_p(int r, int worker) const {
  const Row& row = rows_[r];
  const Tempering& t = row.tempering;
  uint64_t* masses = masses_of(r, 0);
  uint64_t total = 0, before = 0;
  for (int depth = 0; depth < kMassDepths; depth++) {
    for (int w = 1; w < num_threads_; w++) masses[depth] += masses_of(r, w)[depth];
    total += masses[depth];
  }
  const double wanted = row.top_p * static_cast<double>(total);
  int depth = 0;
  while (depth < kMassDepths - 1 && static_cast<double>(before + masses[depth]) < wanted) before += masses[depth++];
  // Bounds a little too wide, then exactly those of the depth.
  const double nats = depth / kDepthsPerNat * t.temperature, step = t.temperature / kDepthsPerNat;
  const double slack = 1e-5 * (std::abs(static_cast<double>(t.maximum)) + nats + step);
  const double most = t.maximum - nats + slack, least = most - step - 2 * slack;
  Candidates kept = gather(r, depth == kMassDepths - 1 ? kImpossible : static_cast<float>(least),
                           static_cast<float>(most), worker);
  const auto is_kept = [&](int32_t id) {
    return table_.token_depth(row.logits[id], t) == depth && table_.token_probability(row.logits[id], t) >= t.min_p;
  };
  kept.num = static_cast<int>(std::partition(kept.ids, kept.ids + kept.num, is_kept) - kept.ids);
  return end_of_mass(row, kept, before, wanted);
}

// The first of these tokens, in order, at which `mass` has grown to `wanted`; else the last.
Cut Sampler::end_of_mass(const Row& row, const Candidates& kept, uint64_t mass, double wanted) const {
  std::sort(kept.ids, kept.ids + kept.num, order_by(row.logits));
  for (int i = 0; i < kept.num; i++) {
    mass += table_.token_mass(row.logits[kept.ids[i]], row.tempering);
    if (static_cast<double>(mass) >= wanted) return cut_after(row.logits, kept.ids[i]);
  }
  return kept.num > 0 ? cut_after(row.logits, kept.ids[kept.num - 1]) : cut_after(row.logits, row.most_likely);
}

// A logit that at least k tokens reach: the k-th largest of the groups' maxima.
float Sampler::kth_bound(int r, int k, int worker) const {
  if (k >= num_groups_) return kImpossible;
  float* sorted = sorted_maxima_ + static_cast<ptrdiff_t>(worker) * num_groups_;
  std::copy_n(maxima_of(r), num_groups_, sorted);
  std::nth_element(sorted, sorted + k - 1, sorted + num_groups_, std::greater<float>());
  return sorted[k - 1];
}

// Every possible token whose logit is in [least, most], by id.
Sampler::Candidates Sampler::gather(int r, float least, float most, int worker) const {
  const float* logits = rows_[r].logits;
  Candidates found{ids_ + static_cast<ptrdiff_t>(worker) * vocab_size_, 0};
  for (int group = 0; group < num_groups_; group++) {
    if (maxima_of(r)[group] < least) continue;
    const int end = std::min((group + 1) * kVocabGroup, vocab_size_);
    for (int id = group * kVocabGroup; id < end; id++)
      if (logits[id] >= least && logits[id] <= most && logits[id] > kImpossible) found.ids[found.num++] = id;
  }
  return found;
}

void Sampler::fill_top(int r, int num, const Sampled& out, int worker) {
  const Row& row = rows_[r];
  Candidates top = gather(r, kth_bound(r, num, worker), kInfinity, worker);
  if (top.num >= num) {
    std::nth_element(top.ids, top.ids + num - 1, top.ids + top.num, order_by(row.logits));
    // Logits a little below the last may round to the same log-probability: ids decide among those.
    const float last = row.logits[top.ids[num - 1]];
    const double slack = (std::abs(static_cast<double>(last)) + std::abs(row.log_sum)) * 0x1p-22;
    top = gather(r, static_cast<float>(static_cast<double>(last) - slack), kInfinity, worker);
  }
  std::sort(top.ids, top.ids + top.num, [&](int32_t a, int32_t b) {
    const float x = logprob(r, row.logits[a]), y = logprob(r, row.logits[b]);
    return x != y ? x > y : a < b;
  });
  for (int i = 0; i < std::min(num, top.num); i++) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(r) * out.max_logprobs + i;
    out.top_ids[at] = top.ids[i];
    out.top_logprobs[at] = logprob(r, row.logits[top.ids[i]]);
  }
}

}  // namespace insitu
