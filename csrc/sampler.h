// From rows of logits to one token each: changed logits, truncation, choice by noise, log-probabilities.
// Not here: the arithmetic of one token (sample.h), what truncation keeps (truncation.h), or where logits
// come from.
// Truth: kernels/reference_sampling.py. Always true: a row's token depends on that row alone. The logits
// of a row that has edits or a mask are changed in place; raw log-probabilities are those from before.
#pragma once
#include <cstdint>

#include "kernels.h"
#include "memory.h"
#include "processors.h"
#include "threads.h"
#include "truncation.h"

namespace insitu {

// One entry a logit row.
struct Sampling {
  const double* temperature;    // 0: the most likely token
  const int32_t* top_k;         // 0: off
  const double* top_p;          // 1: off
  const double* min_p;          // 0: off
  const double* typical_p;      // 1: off
  const double* top_n_sigma;    // 0: off
  const double* xtc_probability;  // 0: off
  const double* xtc_threshold;
  const int32_t* order;         // of truncation: Order
  const uint64_t* seed;
  const uint32_t* choice;
  const uint32_t* position;     // that the sampled token will take
  const int32_t* given_id;      // a token that is not to be chosen, only its log-probability told; -1: choose
  const int32_t* num_logprobs;  // -1: none, not even the sampled token's
  const int32_t* is_processed;  // 1: log-probabilities of what was chosen among; 0: of the logits as they came
  Edits edits;
  Masks masks;
};

// Throws std::invalid_argument naming the array at fault.
void check_sampling(const Sampling& sampling, int num_rows, int max_logprobs, int vocab_size);

// What became of a row.
enum class RowStatus : uint8_t {
  Chosen,
  NotFinite,       // NaN or +Inf among the logits, or nothing possible
  NothingAllowed,  // edits and mask left nothing that is possible
};

struct Sampled {
  int32_t* token_ids;           // [R]; 0 where none was chosen
  float* logprobs;              // [R]; NaN unless asked for
  int32_t* top_ids;             // [R, max_logprobs]; -1 beyond what was asked for, or is possible
  float* top_logprobs;          // [R, max_logprobs]
  RowStatus* status;            // [R]
  int max_logprobs;
};

class Sampler {
 public:
  Sampler(const KernelTable& table, int vocab_size, int max_num_rows, int num_threads, uint8_t* scratch);
  static size_t scratch_bytes(int vocab_size, int max_num_rows, int num_threads);

  void run(ThreadPool& pool, float* logits, int num_rows, const Sampling& sampling, const Sampled& out);

 private:
  // Which log-probabilities a row is to tell, and in which phase their sum is taken.
  enum class Logprobs : uint8_t { None, Raw, RawTaken, Processed };
  struct Row {                  // what the phases of one row leave for each other
    float* logits;
    Tempering tempering;
    Noise noise;
    Truncation truncation;
    Band band;
    Rest rest;                  // of which mass is not exact
    int most_likely, num_logprobs;
    int num_slots;              // places to add up in, one for each worker that takes a part of it
    double log_sum;             // of the exponentials that log-probabilities are of
    Logprobs logprobs;
    RowStatus status;
    bool is_changed, is_chosen, wants_moments, wants_mass, wants_rest, wants_best, wants_band;

    bool is_open() const { return status == RowStatus::Chosen; }
    bool wants_walk() const {
      return logprobs == Logprobs::Raw || wants_moments || wants_rest || (wants_best && !wants_band);
    }
  };
  struct Part {                 // of a row: what one worker walks over at a time
    int first, num;
    ptrdiff_t at;               // its place among the chunks of all rows
  };

  struct Range {                // of rows
    int first, end;
    int num() const { return end - first; }
  };
  struct Crew;

  template <typename Body>
  void for_parts(const Crew& crew, const Range& rows, Body&& body);
  void run_rows(const Crew& crew, const Range& rows, float* logits, const Sampling& sampling, const Sampled& out);
  void begin(int index, float* logits, const Sampling& sampling);
  void survey(int row, const Part& part);
  bool find_maximum(int row);
  void change(const Crew& crew, const Range& rows, const Sampling& sampling, const Sampled& out);
  void prepare(int index, const Sampling& sampling);
  void walk(int row, const Part& part, int slot);
  void weigh(int row, const Part& part, int slot);
  void score(int row, const Part& part, int slot);
  void find_mass_band(int row, int worker);
  void find_band(int row, double top_n_sigma, int worker);
  void finish(int index, const Sampling& sampling, const Sampled& out, int worker);
  int winner_of(int row) const;
  void take_sum(int row);
  void fill_top(int index, const Sampled& out, int worker);
  float logprob(const Row& row, float logit) const;

  RowView view_of(int row, int worker) const {
    const float* maxima = group_maxima_ + static_cast<ptrdiff_t>(row) * num_groups_;
    return {table_, rows_[row].logits, maxima, vocab_size_, num_groups_,
            ids_ + static_cast<ptrdiff_t>(worker) * vocab_size_, more_ids_ + static_cast<ptrdiff_t>(worker) * vocab_size_,
            sorted_maxima_ + static_cast<ptrdiff_t>(worker) * num_groups_};
  }
  float* sums_of(int row) const { return group_sums_ + static_cast<ptrdiff_t>(row) * num_groups_; }
  ptrdiff_t first_chunk_of(int row) const { return static_cast<ptrdiff_t>(row) * num_chunks_; }
  uint64_t* masses_of(int row, int slot) const {
    return masses_ + (static_cast<ptrdiff_t>(row) * num_threads_ + slot) * kMassDepths;
  }

  Scored* best_of(int row, int slot) const { return slot_best_ + static_cast<ptrdiff_t>(row) * num_threads_ + slot; }

  const KernelTable& table_;
  const int vocab_size_, num_chunks_, num_groups_, num_threads_;
  // [max_num_rows, ...] each
  float *group_maxima_, *group_sums_;
  float* chunk_maxima_;
  double* chunk_sums_;
  Moments* chunk_moments_;
  uint64_t* masses_;            // [max_num_rows, num_threads, kMassDepths]
  Scored* slot_best_;           // [max_num_rows, num_threads]
  bool* chunk_finite_;
  Row* rows_;
  // [num_threads, ...] each
  int32_t *ids_, *more_ids_;
  float* sorted_maxima_;
};

}  // namespace insitu
