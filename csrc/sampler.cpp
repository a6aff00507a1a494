// The phases of sampling: survey every chunk of every row, add up what a row's settings need, choose.
#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace insitu {

namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

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
    : table_(table), vocab_size_(vocab_size), num_chunks_(chunks_of(vocab_size)), num_groups_(groups_of(vocab_size)) {
  Carver carver{scratch};
  const size_t rows = max_num_rows, threads = num_threads, chunks = rows * num_chunks_;
  group_maxima_ = carver.take<float>(rows * num_groups_);
  chunk_maxima_ = carver.take<float>(chunks);
  chunk_sums_ = carver.take<float>(chunks);
  chunk_masses_ = carver.take<uint64_t>(chunks);
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
         align_up(chunks * sizeof(uint64_t)) + align_up(chunks * sizeof(Scored)) + align_up(chunks * sizeof(bool)) +
         align_up(rows * sizeof(Row)) + align_up(threads * vocab_size * sizeof(int32_t)) +
         align_up(threads * groups * sizeof(float));
}

void Sampler::run(ThreadPool& pool, const float* logits, int num_rows, const Sampling& sampling, const Sampled& out) {
  const int chunks = num_chunks_;
  pool.run(num_rows * chunks, [&](int item, int) {
    survey(item / chunks, item % chunks, logits + static_cast<ptrdiff_t>(item / chunks) * vocab_size_);
  });
  bool has_sums = false;
  for (int r = 0; r < num_rows; r++) {
    prepare(r, logits + static_cast<ptrdiff_t>(r) * vocab_size_, sampling);
    has_sums |= rows_[r].wants_sum || rows_[r].wants_mass || rows_[r].wants_best;
  }
  if (has_sums) pool.run(num_rows * chunks, [&](int item, int) { accumulate(item / chunks, item % chunks); });
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
  const bool is_drawn = s.temperature[r] > 0;
  row.wants_mass = is_drawn && row.top_p < 1 && row.top_k == 0;
  row.wants_best = is_drawn && row.top_p >= 1 && row.top_k == 0;
  if (!row.wants_best) return;
  // The most likely token is never cut, so its score is where every chunk may begin.
  const double score = table_.token_score(most, row.most_likely, row.tempering, row.noise);
  std::fill_n(chunk_best_ + first, num_chunks_, Scored{score, row.most_likely});
}

void Sampler::accumulate(int r, int chunk) {
  const Row& row = rows_[r];
  if (!row.finite) return;
  const int first = chunk * kVocabChunk, n = std::min(kVocabChunk, vocab_size_ - first);
  const ptrdiff_t at = static_cast<ptrdiff_t>(r) * num_chunks_ + chunk;
  const float* logits = row.logits + first;
  if (row.wants_sum) chunk_sums_[at] = table_.logit_sum(logits, n, row.tempering.maximum);
  if (row.wants_mass) chunk_masses_[at] = table_.logit_mass(logits, n, row.tempering);
  if (row.wants_best)
    table_.best_score(logits, maxima_of(r) + first / kVocabGroup, first, n, row.tempering, row.noise,
                      &chunk_best_[at]);
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
  const int id = s.temperature[r] > 0 ? choose(r, worker) : row.most_likely;
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

int Sampler::choose(int r, int worker) {
  const Row& row = rows_[r];
  if (row.wants_best) {
    const Scored* best = chunk_best_ + static_cast<ptrdiff_t>(r) * num_chunks_;
    return std::min_element(best, best + num_chunks_, [](const Scored& a, const Scored& b) {
             return a.score != b.score ? a.score > b.score : a.token_id < b.token_id;
           })->token_id;
  }
  Candidates kept{};
  if (row.top_k > 0) {
    kept = gather(r, kth_bound(r, row.top_k, worker), worker);
    kept.num = std::min(kept.num, row.top_k);
    const Tempering& t = row.tempering;
    if (t.min_p > 0)
      while (kept.num > 1 && table_.token_probability(row.logits[kept.ids[kept.num - 1]], t) < t.min_p) kept.num--;
  }
  if (row.top_p < 1) cut_top_p(r, worker, kept);
  return best_of(row, kept);
}

// Keeps the smallest prefix, most likely first, that holds top_p of the mass. Without top_k the
// prefix is gathered in pieces, three natural logarithms of probability at a time: it is nearly
// always short, and sorting the whole vocabulary is not. Beyond 30 a token's mass is zero.
int Sampler::cut_top_p(int r, int worker, Candidates& kept) {
  const Row& row = rows_[r];
  const Tempering& t = row.tempering;
  uint64_t total = 0;
  if (row.top_k > 0) {
    for (int i = 0; i < kept.num; i++) total += table_.token_mass(row.logits[kept.ids[i]], t);
  } else {
    for (int c = 0; c < num_chunks_; c++) total += chunk_masses_[static_cast<ptrdiff_t>(r) * num_chunks_ + c];
  }
  const double wanted = row.top_p * static_cast<double>(total);
  for (double depth = 3;; depth += 3) {
    const bool is_all = row.top_k > 0 || depth > 30;
    if (row.top_k == 0)
      kept = gather(r, is_all ? kImpossible : static_cast<float>(t.maximum - depth * t.temperature), worker);
    uint64_t prefix = 0;
    for (int i = 0; i < kept.num; i++) {
      prefix += table_.token_mass(row.logits[kept.ids[i]], t);
      if (static_cast<double>(prefix) >= wanted) return kept.num = i + 1;
    }
    if (is_all) return kept.num;
  }
}

int Sampler::best_of(const Row& row, const Candidates& kept) const {
  Scored best{0, -1};
  for (int i = 0; i < kept.num; i++) {
    const int id = kept.ids[i];
    const double score = table_.token_score(row.logits[id], id, row.tempering, row.noise);
    if (best.token_id < 0 || score > best.score || (score == best.score && id < best.token_id)) best = {score, id};
  }
  return best.token_id;
}

// A logit that at least k tokens reach: the k-th largest of the groups' maxima.
float Sampler::kth_bound(int r, int k, int worker) const {
  if (k >= num_groups_) return kImpossible;
  float* sorted = sorted_maxima_ + static_cast<ptrdiff_t>(worker) * num_groups_;
  std::copy_n(maxima_of(r), num_groups_, sorted);
  std::nth_element(sorted, sorted + k - 1, sorted + num_groups_, std::greater<float>());
  return sorted[k - 1];
}

// Every possible token whose logit is at least `least`, by logit descending, then id.
Sampler::Candidates Sampler::gather(int r, float least, int worker) const {
  const float* logits = rows_[r].logits;
  Candidates found{ids_ + static_cast<ptrdiff_t>(worker) * vocab_size_, 0};
  for (int group = 0; group < num_groups_; group++) {
    if (maxima_of(r)[group] < least) continue;
    const int end = std::min((group + 1) * kVocabGroup, vocab_size_);
    for (int id = group * kVocabGroup; id < end; id++)
      if (logits[id] >= least && logits[id] > kImpossible) found.ids[found.num++] = id;
  }
  std::sort(found.ids, found.ids + found.num, [logits](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  return found;
}

void Sampler::fill_top(int r, int num, double lse, const Sampled& out, int worker) {
  const Row& row = rows_[r];
  Candidates top = gather(r, kth_bound(r, num, worker), worker);
  if (top.num >= num) {
    // Logits a little below the last may round to the same log-probability: ids decide among those.
    const float last = row.logits[top.ids[num - 1]];
    const double slack = (std::abs(static_cast<double>(last)) + std::abs(lse)) * 0x1p-22;
    top = gather(r, static_cast<float>(static_cast<double>(last) - slack), worker);
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
