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

void Sampler::run(ThreadPool& pool, const float* logits, int num_rows, const Sampling& sampling, const Sampled& out) {
  const int chunks = num_chunks_;
  pool.run(num_rows * chunks, [&](int item, int) {
    survey(item / chunks, item % chunks, logits + static_cast<ptrdiff_t>(item / chunks) * vocab_size_);
  });
  bool has_sums = false, has_cuts = false;
  for (int r = 0; r < num_rows; r++) {
    prepare(r, logits + static_cast<ptrdiff_t>(r) * vocab_size_, sampling);
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

void Sampler::survey(int row, int chunk, const float* logits) {
  const int first = chunk * kVocabChunk, n = std::min(kVocabChunk, vocab_size_ - first);
  const ptrdiff_t at = static_cast<ptrdiff_t>(row) * num_chunks_ + chunk;
  float* maxima = group_maxima_ + static_cast<ptrdiff_t>(row) * num_groups_ + first / kVocabGroup;
  chunk_finite_[at] = table_.logit_maxima(logits + first, n, maxima, &chunk_maxima_[at]);
}

void Sampler::prepare(int r, const float* logits, const Sampling& s) {
  Row& row = rows_[r];
  const ptrdiff_t first = static_cast<ptrdiff_t>(r) * num_chunks_;
  const float* maxima = chunk_maxima_ + first;
  const float most = *std::max_element(maxima, maxima + num_chunks_);
  row = Row{};
  row.cut = {kImpossible, -1};
  row.logits = logits;
  row.tempering = {most, s.temperature[r], s.min_p[r]};
  row.noise = {s.seed[r], s.position[r], s.choice[r]};
  row.top_k = s.top_k[r] < vocab_size_ ? s.top_k[r] : 0;
  row.top_p = s.top_p[r];
  row.finite = most > kImpossible && std::all_of(chunk_finite_ + first, chunk_finite_ + first + num_chunks_,
                                                 [](bool finite) { return finite; });
  if (!row.finite) return;
  const int group = static_cast<int>(std::find(maxima_of(r), maxima_of(r) + num_groups_, most) - maxima_of(r));
  row.most_likely = static_cast<int>(std::find(logits + group * kVocabGroup, logits + vocab_size_, most) - logits);
  row.wants_sum = s.num_logprobs[r] >= 0;
  if (s.temperature[r] == 0) return;
  row.wants_mass = row.top_p < 1 && row.top_k == 0;
  row.wants_cut = row.wants_mass || row.top_k > 0;
  row.wants_best = !row.wants_cut;
  if (row.wants_mass) std::fill_n(masses_of(r, 0), num_threads_ * kMassDepths, uint64_t{0});
  // The most likely token is never cut, so its score is where every chunk may begin.
  const double score = table_.token_score(most, row.most_likely, row.tempering, row.noise);
  std::fill_n(chunk_best_ + first, num_chunks_, Scored{score, row.most_likely});
}

void Sampler::accumulate(int r, int chunk, int worker) {
  const Row& row = rows_[r];
  if (!row.finite) return;
  const int first = chunk * kVocabChunk, n = std::min(kVocabChunk, vocab_size_ - first);
  const float *logits = row.logits + first, *maxima = maxima_of(r) + first / kVocabGroup;
  if (row.wants_sum)
    chunk_sums_[static_cast<ptrdiff_t>(r) * num_chunks_ + chunk] = table_.logit_sum(logits, n, row.tempering.maximum);
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
  out.finite[r] = row.finite;
  out.token_ids[r] = 0;
  out.logprobs[r] = std::numeric_limits<float>::quiet_NaN();
  const ptrdiff_t first = static_cast<ptrdiff_t>(r) * out.max_logprobs;
  std::fill_n(out.top_ids + first, out.max_logprobs, -1);
  std::fill_n(out.top_logprobs + first, out.max_logprobs, out.logprobs[r]);
  if (!row.finite) return;
  const int id = s.temperature[r] > 0 ? best_of(r) : row.most_likely;
  out.token_ids[r] = id;
  if (!row.wants_sum) return;
  double sum = 0;
  for (int c = 0; c < num_chunks_; c++) sum += chunk_sums_[static_cast<ptrdiff_t>(r) * num_chunks_ + c];
  const double lse = static_cast<double>(row.tempering.maximum) + table_.log_double(sum);
  out.logprobs[r] = logprob(r, id, lse);
  if (s.num_logprobs[r] > 0) fill_top(r, s.num_logprobs[r], lse, out, worker);
}

float Sampler::logprob(int r, int id, double lse) const {
  return static_cast<float>(static_cast<double>(rows_[r].logits[id]) - lse);
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

void Sampler::fill_top(int r, int num, double lse, const Sampled& out, int worker) {
  const Row& row = rows_[r];
  Candidates top = gather(r, kth_bound(r, num, worker), kInfinity, worker);
  if (top.num >= num) {
    std::nth_element(top.ids, top.ids + num - 1, top.ids + top.num, order_by(row.logits));
    // Logits a little below the last may round to the same log-probability: ids decide among those.
    const float last = row.logits[top.ids[num - 1]];
    const double slack = (std::abs(static_cast<double>(last)) + std::abs(lse)) * 0x1p-22;
    top = gather(r, static_cast<float>(static_cast<double>(last) - slack), kInfinity, worker);
  }
  std::sort(top.ids, top.ids + top.num, [&](int32_t a, int32_t b) {
    const float x = logprob(r, a, lse), y = logprob(r, b, lse);
    return x != y ? x > y : a < b;
  });
  for (int i = 0; i < std::min(num, top.num); i++) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(r) * out.max_logprobs + i;
    out.top_ids[at] = top.ids[i];
    out.top_logprobs[at] = logprob(r, top.ids[i], lse);
  }
}

}  // namespace insitu
