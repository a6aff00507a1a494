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
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

int chunks_of(int vocab_size) { return (vocab_size + kVocabChunk - 1) / kVocabChunk; }
int groups_of(int vocab_size) { return (vocab_size + kVocabGroup - 1) / kVocabGroup; }

void require(const char* array, int row, bool holds, const char* wanted) {
  if (!holds)
    throw std::invalid_argument(std::string(array) + "[" + std::to_string(row) + "]: needs " + wanted);
}

bool is_within(double x, double least, double most) { return x >= least && x <= most; }

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

void clear(const Sampled& out, int num_rows) {
  const ptrdiff_t num_tops = static_cast<ptrdiff_t>(num_rows) * out.max_logprobs;
  std::fill_n(out.token_ids, num_rows, 0);
  std::fill_n(out.logprobs, num_rows, kNaN);
  std::fill_n(out.top_ids, num_tops, -1);
  std::fill_n(out.top_logprobs, num_tops, kNaN);
}

}  // namespace

void check_sampling(const Sampling& s, int num_rows, int max_logprobs, int vocab_size) {
  for (int r = 0; r < num_rows; r++) {
    require("temperature", r, std::isfinite(s.temperature[r]) && s.temperature[r] >= 0, "a finite number >= 0");
    require("top_k", r, s.top_k[r] >= 0, "at least 0");
    require("top_p", r, s.top_p[r] > 0 && s.top_p[r] <= 1, "above 0 and at most 1");
    require("min_p", r, is_within(s.min_p[r], 0, 1), "0 to 1");
    require("typical_p", r, s.typical_p[r] > 0 && s.typical_p[r] <= 1, "above 0 and at most 1");
    require("top_n_sigma", r, std::isfinite(s.top_n_sigma[r]) && s.top_n_sigma[r] >= 0, "a finite number >= 0");
    require("xtc_probability", r, is_within(s.xtc_probability[r], 0, 1), "0 to 1");
    require("xtc_threshold", r, s.xtc_threshold[r] > 0 && s.xtc_threshold[r] <= 1, "above 0 and at most 1");
    require("order", r, is_within(s.order[r], 0, static_cast<int>(Order::LlamaCpp)), "one of the orders");
    require("given_id", r, s.given_id[r] >= -1 && s.given_id[r] < vocab_size, "-1 or an id of the vocabulary");
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
  group_sums_ = carver.take<float>(rows * num_groups_);
  chunk_maxima_ = carver.take<float>(chunks);
  chunk_sums_ = carver.take<double>(chunks);
  chunk_moments_ = carver.take<Moments>(chunks);
  masses_ = carver.take<uint64_t>(rows * threads * kMassDepths);
  slot_best_ = carver.take<Scored>(rows * threads);
  chunk_finite_ = carver.take<bool>(chunks);
  rows_ = carver.take<Row>(rows);
  ids_ = carver.take<int32_t>(threads * vocab_size);
  more_ids_ = carver.take<int32_t>(threads * vocab_size);
  sorted_maxima_ = carver.take<float>(threads * num_groups_);
}

size_t Sampler::scratch_bytes(int vocab_size, int max_num_rows, int num_threads) {
  const size_t rows = max_num_rows, threads = num_threads;
  const size_t chunks = rows * chunks_of(vocab_size), groups = groups_of(vocab_size);
  return 2 * align_up(rows * groups * sizeof(float)) + align_up(chunks * sizeof(float)) +
         align_up(chunks * sizeof(double)) + align_up(chunks * sizeof(Moments)) +
         align_up(rows * threads * kMassDepths * sizeof(uint64_t)) + align_up(rows * threads * sizeof(Scored)) +
         align_up(chunks * sizeof(bool)) + align_up(rows * sizeof(Row)) +
         2 * align_up(threads * vocab_size * sizeof(int32_t)) + align_up(threads * groups * sizeof(float));
}

// Shares out the items of a phase: among all workers of a pool, or to one of them alone.
struct Sampler::Crew {
  ThreadPool* pool;             // null: one worker alone
  int worker;

  template <typename Body>
  void run(int num_items, Body&& body) const {
    if (pool) return pool->run(num_items, body);
    for (int item = 0; item < num_items; item++) body(item, worker);
  }
};

// body(row, part, slot) for every chunk of these rows.
template <typename Body>
void Sampler::for_parts(const Crew& crew, const Range& rows, Body&& body) {
  crew.run(rows.num() * num_chunks_, [&](int item, int worker) {
    const int row = rows.first + item / num_chunks_, first = item % num_chunks_ * kVocabChunk;
    const Part part{first, std::min(kVocabChunk, vocab_size_ - first), first_chunk_of(row) + item % num_chunks_};
    body(row, part, crew.pool ? worker : 0);
  });
}

// While there is a row for every worker, each takes one through all phases: its logits stay in that
// core's cache. The rows left over are shared out chunk by chunk.
void Sampler::run(ThreadPool& pool, float* logits, int num_rows, const Sampling& sampling, const Sampled& out) {
  clear(out, num_rows);
  const int num_alone = num_rows - num_rows % num_threads_;
  pool.run(num_alone, [&](int r, int worker) { run_rows({nullptr, worker}, {r, r + 1}, logits, sampling, out); });
  run_rows({&pool, 0}, {num_alone, num_rows}, logits, sampling, out);
}

void Sampler::run_rows(const Crew& crew, const Range& rows, float* logits, const Sampling& sampling, const Sampled& out) {
  bool has_changes = false, has_walks = false, has_masses = false, has_bands = false, has_sums = false;
  for (int r = rows.first; r < rows.end; r++) begin(r, logits + static_cast<ptrdiff_t>(r) * vocab_size_, sampling);
  for_parts(crew, rows, [&](int row, const Part& part, int) { survey(row, part); });
  for (int r = rows.first; r < rows.end; r++) {
    if (!find_maximum(r)) rows_[r].status = RowStatus::NotFinite;
    has_changes |= rows_[r].is_changed;
  }
  if (has_changes) change(crew, rows, sampling, out);
  for (int r = rows.first; r < rows.end; r++) {
    rows_[r].num_slots = crew.pool ? num_threads_ : 1;
    prepare(r, sampling);
    has_walks |= rows_[r].wants_walk();
    has_masses |= rows_[r].wants_mass;
    has_bands |= rows_[r].wants_band;
    has_sums |= rows_[r].logprobs == Logprobs::Processed;
  }
  const auto for_rows = [&](auto&& body) {
    crew.run(rows.num(), [&](int i, int worker) { body(rows.first + i, worker); });
  };
  if (has_walks) for_parts(crew, rows, [&](int row, const Part& part, int slot) { walk(row, part, slot); });
  if (has_masses) {
    for_rows([&](int r, int) {
      Row& row = rows_[r];
      if (row.wants_rest) row.rest = rest_of(view_of(r, 0), row.tempering, sums_of(r), row.truncation.top_p);
    });
    for_parts(crew, rows, [&](int row, const Part& part, int slot) {
      if (rows_[row].wants_mass) weigh(row, part, slot);
    });
  }
  if (has_bands || has_sums) {
    for_rows([&](int row, int worker) { find_band(row, sampling.top_n_sigma[row], worker); });
    for_parts(crew, rows, [&](int row, const Part& part, int slot) {
      if (rows_[row].wants_band || rows_[row].logprobs == Logprobs::Processed) score(row, part, slot);
    });
  }
  for_rows([&](int row, int worker) { finish(row, sampling, out, worker); });
}

void Sampler::begin(int r, float* logits, const Sampling& s) {
  Row& row = rows_[r];
  row = Row{};
  row.logits = logits;
  row.num_logprobs = s.num_logprobs[r];
  row.is_chosen = s.given_id[r] < 0;
  const bool is_processed = s.is_processed[r] && row.is_chosen;
  if (row.num_logprobs >= 0) row.logprobs = is_processed ? Logprobs::Processed : Logprobs::Raw;
  row.is_changed = has_changes(s.edits, s.masks, r);
}

void Sampler::survey(int r, const Part& part) {
  float* maxima = group_maxima_ + static_cast<ptrdiff_t>(r) * num_groups_ + part.first / kVocabGroup;
  chunk_finite_[part.at] =
      table_.logit_maxima(rows_[r].logits + part.first, part.num, maxima, &chunk_maxima_[part.at]);
}

// Of the chunks' maxima; false where no token is possible or a logit is not finite.
bool Sampler::find_maximum(int r) {
  const ptrdiff_t first = first_chunk_of(r);
  const float most = *std::max_element(chunk_maxima_ + first, chunk_maxima_ + first + num_chunks_);
  rows_[r].tempering.maximum = most;
  return most > kImpossible && std::all_of(chunk_finite_ + first, chunk_finite_ + first + num_chunks_,
                                           [](bool finite) { return finite; });
}

// Edits and masks rows that want it, after what raw log-probabilities need of the logits as they came.
void Sampler::change(const Crew& crew, const Range& rows, const Sampling& s, const Sampled& out) {
  const auto is_wanted = [this](int r) { return rows_[r].is_changed && rows_[r].is_open(); };
  for_parts(crew, rows, [&](int r, const Part& part, int) {
    const Row& row = rows_[r];
    if (is_wanted(r) && row.logprobs == Logprobs::Raw)
      chunk_sums_[part.at] = table_.logit_sum(row.logits + part.first, part.num, row.tempering.maximum);
  });
  crew.run(rows.num(), [&](int i, int worker) {
    const int r = rows.first + i;
    if (!is_wanted(r)) return;
    if (rows_[r].logprobs == Logprobs::Raw) {
      take_sum(r);
      fill_top(r, out, worker);
      rows_[r].logprobs = Logprobs::RawTaken;
    }
    apply_edits(s.edits, r, rows_[r].logits);
  });
  for_parts(crew, rows, [&](int r, const Part& part, int) {
    if (!is_wanted(r)) return;
    const ptrdiff_t mask = s.masks.of_row[r];
    const uint32_t* bits = s.masks.bits + mask * mask_words(vocab_size_) + part.first / 32;
    if (mask >= 0) table_.mask_logits(rows_[r].logits + part.first, bits, part.num);
    survey(r, part);
  });
  for (int r = rows.first; r < rows.end; r++)
    if (is_wanted(r) && !find_maximum(r)) rows_[r].status = RowStatus::NothingAllowed;
}

void Sampler::prepare(int r, const Sampling& s) {
  Row& row = rows_[r];
  const float most = row.tempering.maximum;
  row.band = kWholeRow;
  row.tempering = {most, s.temperature[r], s.min_p[r]};
  row.noise = {s.seed[r], s.position[r], s.choice[r]};
  row.truncation = {static_cast<Order>(s.order[r]), s.top_k[r] < vocab_size_ ? s.top_k[r] : 0, s.top_p[r],
                    s.min_p[r], s.typical_p[r], -kInfinity, 1.0};
  if (!row.is_open()) row.logprobs = Logprobs::None;
  if (!row.is_open() || !row.is_chosen) return;
  const RowView view = view_of(r, 0);
  const int group = static_cast<int>(std::find(view.maxima, view.maxima + num_groups_, most) - view.maxima);
  row.most_likely = static_cast<int>(
      std::find(row.logits + group * kVocabGroup, row.logits + vocab_size_, most) - row.logits);
  if (s.temperature[r] == 0) {  // nothing else is possible
    row.tempering = {most, 1.0, 0.0};
    row.band = {most, row.most_likely, most, row.most_likely};
    return;
  }
  const bool has_xtc = s.xtc_probability[r] > 0 && table_.uniform(row.noise) < s.xtc_probability[r];
  if (has_xtc) row.truncation.xtc_threshold = s.xtc_threshold[r];
  row.wants_moments = s.top_n_sigma[r] > 0;
  const bool is_plain = row.truncation.is_plain() && !row.wants_moments;
  row.wants_mass = is_plain && row.truncation.top_p < 1 && row.truncation.top_k == 0;
  // Not worth it where temperature makes single precision a coarse one.
  row.wants_rest = row.wants_mass && s.min_p[r] == 0 && is_within(s.temperature[r], 0.01, 100);
  row.wants_band = !is_plain || row.wants_mass || row.truncation.top_k > 0;
  row.wants_best = true;
  if (row.wants_mass) std::fill_n(masses_of(r, 0), row.num_slots * kMassDepths, uint64_t{0});
  // The most likely token is in any band that is not cut from above.
  const double score = table_.token_score(most, row.most_likely, row.tempering, row.noise);
  std::fill_n(best_of(r, 0), row.num_slots, Scored{score, row.most_likely});
}

void Sampler::walk(int r, const Part& part, int slot) {
  const Row& row = rows_[r];
  const float* logits = row.logits + part.first;
  if (row.logprobs == Logprobs::Raw)
    chunk_sums_[part.at] = table_.logit_sum(logits, part.num, row.tempering.maximum);
  if (row.wants_moments)
    chunk_moments_[part.at] = table_.logit_moments(logits, part.num, row.tempering.maximum);
  if (row.wants_rest) table_.group_sums(logits, part.num, row.tempering, sums_of(r) + part.first / kVocabGroup);
  if (row.wants_best && !row.wants_band && row.logprobs != Logprobs::Processed) score(r, part, slot);
}

// Masses by depth, of all but the rest.
void Sampler::weigh(int r, const Part& part, int slot) {
  const Row& row = rows_[r];
  const float* maxima = view_of(r, 0).maxima + part.first / kVocabGroup;
  table_.logit_mass(row.logits + part.first, maxima, part.num, row.tempering, row.rest.least, masses_of(r, slot));
}

// The best that was seen in a slot's parts, whichever they are, and the sum over what it was chosen among.
void Sampler::score(int r, const Part& part, int slot) {
  const Row& row = rows_[r];
  const float *logits = row.logits + part.first, *maxima = view_of(r, 0).maxima + part.first / kVocabGroup;
  if (row.wants_best)
    table_.best_score(logits, maxima, part.first, part.num, row.tempering, row.noise, row.band, best_of(r, slot));
  if (row.logprobs == Logprobs::Processed)
    chunk_sums_[part.at] = table_.band_sum(logits, maxima, part.first, part.num, row.tempering, row.band);
}

// What truncation leaves. min_p needs no place in a plain order: scoring drops what it drops.
void Sampler::find_band(int r, double top_n_sigma, int worker) {
  Row& row = rows_[r];
  if (!row.wants_band) return;
  const RowView view = view_of(r, worker);
  Truncation& wanted = row.truncation;
  if (row.wants_mass) return find_mass_band(r, worker);
  if (row.wants_moments) {
    const Moments* parts = chunk_moments_ + first_chunk_of(r);
    Moments m{0, 0, 0};
    for (int c = 0; c < num_chunks_; c++)
      m = {m.num + parts[c].num, m.sum + parts[c].sum, m.sum_of_squares + parts[c].sum_of_squares};
    const double mean = m.sum / m.num, variance = std::max(m.sum_of_squares / m.num - mean * mean, 0.0);
    wanted.least_logit = static_cast<double>(row.tempering.maximum) - top_n_sigma * std::sqrt(variance);
  }
  if (wanted.is_plain()) {
    row.band = band_of_top_k(view, row.tempering, wanted.top_k, wanted.top_p);
    return;
  }
  const double temperature = wanted.order == Order::LlamaCpp ? 1.0 : row.tempering.temperature;
  row.band = band_of_chain(view, {row.tempering.maximum, temperature, 0.0}, wanted);
  row.tempering.min_p = 0;  // the band says it all
  if (row.band.most == kInfinity) return;
  const Scored best{table_.token_score(row.band.most, row.band.first_id, row.tempering, row.noise), row.band.first_id};
  std::fill_n(best_of(r, 0), row.num_slots, best);
}

void Sampler::find_mass_band(int r, int worker) {
  Row& row = rows_[r];
  const RowView view = view_of(r, worker);
  uint64_t* masses = masses_of(r, 0);
  for (int slot = 1; slot < row.num_slots; slot++)
    for (int depth = 0; depth < kMassDepths; depth++) masses[depth] += masses_of(r, slot)[depth];
  if (band_of_top_p(view, row.tempering, masses, row.rest, row.truncation.top_p, &row.band)) return;
  // Seldom: what was in doubt decides.
  row.rest = {};
  std::fill_n(masses, kMassDepths, uint64_t{0});
  for (int first = 0; first < vocab_size_; first += kVocabChunk)
    weigh(r, {first, std::min(kVocabChunk, vocab_size_ - first), 0}, 0);
  band_of_top_p(view, row.tempering, masses, row.rest, row.truncation.top_p, &row.band);
}

void Sampler::finish(int r, const Sampling& s, const Sampled& out, int worker) {
  Row& row = rows_[r];
  out.status[r] = row.status;
  if (!row.is_open()) return;
  const int id = !row.is_chosen ? s.given_id[r] : row.wants_best ? winner_of(r) : row.most_likely;
  out.token_ids[r] = id;
  if (row.logprobs == Logprobs::None) return;
  if (row.logprobs != Logprobs::RawTaken) {
    take_sum(r);
    fill_top(r, out, worker);
  }
  const bool is_raw = row.logprobs != Logprobs::Processed;
  out.logprobs[r] = logprob(row, is_raw ? logit_before(s.edits, r, row.logits, id) : row.logits[id]);
}

int Sampler::winner_of(int r) const {
  const Scored* best = best_of(r, 0);
  return std::min_element(best, best + rows_[r].num_slots, [](const Scored& a, const Scored& b) {
           return a.score != b.score ? a.score > b.score : a.token_id < b.token_id;
         })->token_id;
}

void Sampler::take_sum(int r) {
  Row& row = rows_[r];
  double sum = 0;
  for (int c = 0; c < num_chunks_; c++) sum += chunk_sums_[first_chunk_of(r) + c];
  row.log_sum = table_.log_double(sum);
  if (row.logprobs == Logprobs::Raw) row.log_sum += static_cast<double>(row.tempering.maximum);
}

float Sampler::logprob(const Row& row, float logit) const {
  const Tempering& t = row.tempering;
  const bool is_raw = row.logprobs != Logprobs::Processed;
  const double x = is_raw ? logit : (static_cast<double>(logit) - static_cast<double>(t.maximum)) / t.temperature;
  return static_cast<float>(x - row.log_sum);
}

void Sampler::fill_top(int r, const Sampled& out, int worker) {
  const Row& row = rows_[r];
  const int num = row.num_logprobs;
  if (num == 0) return;
  const RowView view = view_of(r, worker);
  const bool is_raw = row.logprobs == Logprobs::Raw;
  const Band& band = is_raw ? kWholeRow : row.band;
  const auto among = [&](float least) {
    Candidates found = gather(view, std::max(least, band.least), band.most);
    const auto is_kept = [&](int32_t id) {
      const float logit = row.logits[id];
      return band.holds(logit, id) && table_.token_probability(logit, row.tempering) >= row.tempering.min_p;
    };
    if (!is_raw) found.num = static_cast<int>(std::partition(found.ids, found.ids + found.num, is_kept) - found.ids);
    return found;
  };
  Candidates top = among(band.most == kInfinity ? kth_bound(view, num) : kImpossible);
  if (top.num >= num) {
    std::nth_element(top.ids, top.ids + num - 1, top.ids + top.num, order_by(row.logits));
    // Logits a little below the last may round to the same log-probability: ids decide among those.
    const auto last = static_cast<double>(row.logits[top.ids[num - 1]]);
    const double scale = is_raw ? 1.0 : row.tempering.temperature;
    const double nats = std::abs(last) + std::abs(static_cast<double>(row.tempering.maximum)) + scale * std::abs(row.log_sum);
    top = among(static_cast<float>(std::max(last - nats * 0x1p-21, -0x1p127)));
  }
  std::sort(top.ids, top.ids + top.num, [&](int32_t a, int32_t b) {
    const float x = logprob(row, row.logits[a]), y = logprob(row, row.logits[b]);
    return x != y ? x > y : a < b;
  });
  for (int i = 0; i < std::min(num, top.num); i++) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(r) * out.max_logprobs + i;
    out.top_ids[at] = top.ids[i];
    out.top_logprobs[at] = logprob(row, row.logits[top.ids[i]]);
  }
}

}  // namespace insitu
