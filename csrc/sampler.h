// From rows of logits to one token each: changed logits, truncation, choice by noise, log-probabilities.
// Not here: the arithmetic of one token (sample.h), or where logits come from.
// Truth: kernels/reference_sampling.py. Always true: a row's token depends on that row alone. The logits
// of a row that has edits or a mask are changed in place; its log-probabilities are those from before.
#pragma once
#include <cstdint>

#include "kernels.h"
#include "memory.h"
#include "processors.h"
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
  int32_t* top_ids;             // [R, max_logprobs]; -1 beyond what was asked for
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
  struct Row {                  // what the phases of one row leave for each other
    float* logits;
    Tempering tempering;
    Noise noise;
    int most_likely, top_k;
    double top_p, log_sum;      // log_sum: of the exponentials of the logits as they came
    Cut cut;
    RowStatus status;
    bool is_changed, wants_sum, wants_mass, wants_best, wants_cut;

    bool is_open() const { return status == RowStatus::Chosen; }
  };
  struct Candidates {
    int32_t* ids;
    int num;
  };

  void survey(int row, int chunk);
  void begin(int index, float* logits, const Sampling& sampling);
  bool find_maximum(int index);
  void change(ThreadPool& pool, int num_rows, const Sampling& sampling, const Sampled& out);
  void prepare(int index, const Sampling& sampling);
  void sum(int row, int chunk);
  void accumulate(int row, int chunk, int worker);
  void score(int row, int chunk);
  void cut(int row, int worker);
  Cut cut_top_k(int row, int worker) const;
  Cut cut_top_p(int row, int worker) const;
  Cut end_of_mass(const Row& row, const Candidates& kept, uint64_t mass, double wanted) const;
  void take_sum(int index);
  void finish(int index, const Sampling& sampling, const Sampled& out, int worker);
  int best_of(int row) const;
  float kth_bound(int index, int k, int worker) const;
  Candidates gather(int index, float least, float most, int worker) const;
  void fill_top(int index, int num, const Sampled& out, int worker);
  const float* maxima_of(int row) const { return group_maxima_ + static_cast<ptrdiff_t>(row) * num_groups_; }
  uint64_t* masses_of(int row, int worker) const {
    return masses_ + (static_cast<ptrdiff_t>(row) * num_threads_ + worker) * kMassDepths;
  }
  float logprob(int index, float logit) const;

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
