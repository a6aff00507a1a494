// One step's arrays as they come from the engine, and the check that none of them can hurt.
// Not here: copying. Always true: nothing indexes memory with a batch that was not checked.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace insitu {

struct KvSpec {
  int num_layers, num_kv_heads, head_dim, block_size;
  KvType type;
};

struct Limits {
  int max_num_tokens, max_num_logit_rows, max_num_seqs, num_blocks, max_blocks_per_seq;
};

// T tokens of S sequences, each sequence's tokens in consecutive rows; R rows want logits, P their pooled row.
struct Batch {
  int num_tokens, num_seqs, num_logit_rows, max_blocks;
  const int32_t* token_ids;        // [T]
  const int32_t* positions;        // [T]
  const int32_t* slot_mapping;     // [T] block_id * block_size + offset
  const int32_t* block_table;      // [S, max_blocks]
  const int32_t* query_start_loc;  // [S + 1]
  const int32_t* seq_lens;         // [S] tokens up to and including this step's
  const int32_t* logit_rows;       // [R] rows of T
  int num_pooled_rows = 0;
  const int32_t* pooled_rows = nullptr;  // [P] rows of T
  float* pooled = nullptr;               // [P, width of the program's pooled rows] where a step puts them
};

// Throws std::invalid_argument naming the array at fault.
void check_batch(const Batch& batch, const KvSpec& kv, const Limits& limits, int vocab_size, int num_positions);

}  // namespace insitu
