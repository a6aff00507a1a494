// From rows of logits to one token each: truncation, choice by noise, log-probabilities.
// Not here: the arithmetic of one token (sample.h), or where logits come from.
// Truth: kernels/reference_sampling.py. Always true: a row's token depends on that row alone.
#pragma once
#include <cstdint>

#include "kernels.h"
#include "memory.h"
#include "threads.h"

namespace insitu {

// One entry a logit row.
struct Sampling {
  const double* temperature;    // 0: the most likely token
  const int32_t* top_k;         // 0: off
  const double* top_p;          // 1: off
  const double* min_p;          // 0: off
  const uint64_t* seed;
  const uint32_t* choice;
  const uint32_t* position;     // that the sampled token will take
  const int32_t* num_logprobs;  // -1: none, not even the sampled token's
};

// Throws std::invalid_argument naming the array at fault.
void check_sampling(const Sampling& sampling, int num_rows, int max_logprobs, int vocab_size);

struct Sampled {
  int32_t* token_ids;           // [R]; 0 where not finite
  float* logprobs;              // [R]; NaN unless asked for
  int32_t* top_ids;             // [R, max_logprobs]; -1 beyond what was asked for
  float* top_logprobs;          // [R, max_logprobs]
  bool* finite;                 // [R]; false: NaN or +Inf among the logits, or nothing possible
  int max_logprobs;
};

class Sampler {
 public:
  Sampler(const KernelTable& table, int vocab_size, int max_num_rows, int num_threads, uint8_t* scratch);
  static size_t scratch_bytes(int vocab_size, int max_num_rows, int num_threads);

  void run(ThreadPool& pool, const float* logits, int num_rows, const Sampling& sampling, const Sampled& out);

 private:
  struct Row {                  // what the phases of one row leave for each other
    const float* logits;
    Tempering tempering;
    Noise noise;
    int most_likely, top_k;
    double top_p;
    Cut cut;
    bool finite, wants_sum, wants_mass, wants_best, wants_cut;
  };
  struct Candidates {
    int32_t* ids;
    int num;
  };

  void survey(int row, int chunk, const float* logits);
  void prepare(int index, const float* logits, const Sampling& sampling);
  void accumulate(int row, int chunk, int worker);
  void score(int row, int chunk);
  void cut(int row, int worker);
  Cut cut_top_k(int row, int worker) const;
  Cut cut_top_p(int row, int worker) const;
  Cut end_of_mass(const Row& row, const Candidates& kept, uint64_t mass, double wanted) const;
  void finish(int index, const Sampling& sampling, const Sampled& out, int worker);
  int best_of(int row) const;
  float kth_bound(int index, int k, int worker) const;
  Candidates gather(int index, float least, float most, int worker) const;
  void fill_top(int index, int num, double lse, const Sampled& out, int worker);
  const float* maxima_of(int row) const { return group_maxima_ + static_cast<ptrdiff_t>(row) * num_groups_; }
  uint64_t* masses_of(int row, int worker) const {
    return masses_ + (static_cast<ptrdiff_t>(row) * num_threads_ + worker) * kMassDepths;
  }
  float logprob(int index, int id, double lse) const;

  const KernelTable& table_;
  const int vocab_size_, num_chunks_, num_groups_, num_threads_;
  // [max_num_rows, ...] each
  float* group_maxima_;
  float* chunk_maxima_;
  float* chunk_sums_;
  uint64_t* masses_;            // [max_num_rows, num_threads, kMassDepths]
  Scored* chunk_best_;
  bool* chunk_finite_;
  Row* rows_;
  // [num_threads, ...] each
  int32_t* ids_;
  float* sorted_maxima_;
};

}  // namespace insitu
