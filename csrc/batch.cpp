// Range checks of a batch: every index that a kernel follows is proved to lie inside its memory.
#include "batch.h"

#include <stdexcept>
#include <string>

namespace insitu {

namespace {

[[noreturn]] void refuse(const char* array, int64_t index, int64_t value, const std::string& wanted) {
  throw std::invalid_argument(std::string(array) + "[" + std::to_string(index) + "] is " + std::to_string(value) +
                              ": " + wanted);
}

void check_size(const char* array, int64_t size, int64_t least, int64_t most) {
  if (size < least || size > most)
    throw std::invalid_argument(std::string(array) + " has " + std::to_string(size) + " entries: needs " +
                                std::to_string(least) + " to " + std::to_string(most));
}

void check_range(const char* array, const int32_t* values, int num, int64_t end) {
  for (int i = 0; i < num; i++)
    if (values[i] < 0 || values[i] >= end) refuse(array, i, values[i], "needs 0 to " + std::to_string(end - 1));
}

// Rows [first, last) of sequence `s`: positions end the sequence, slots are where its table says.
void check_sequence(const Batch& b, const KvSpec& kv, const Limits& limits, int s, int first, int last) {
  const int length = b.seq_lens[s];
  const int64_t capacity = int64_t{b.max_blocks} * kv.block_size;
  if (length < last - first || length > capacity)
    refuse("seq_lens", s, length,
           "needs " + std::to_string(last - first) + " to " + std::to_string(capacity) + " tokens");
  const int32_t* table = b.block_table + int64_t{s} * b.max_blocks;
  const int num_blocks = (length + kv.block_size - 1) / kv.block_size;
  for (int i = 0; i < num_blocks; i++)
    if (table[i] < 0 || table[i] >= limits.num_blocks)
      refuse("block_table", int64_t{s} * b.max_blocks + i, table[i],
             "needs 0 to " + std::to_string(limits.num_blocks - 1));
  for (int t = first; t < last; t++) {
    const int position = length - last + t;
    if (b.positions[t] != position)
      refuse("positions", t, b.positions[t],
             "sequence " + std::to_string(s) + " has " + std::to_string(position) + " there");
    const int64_t slot = int64_t{table[position / kv.block_size]} * kv.block_size + position % kv.block_size;
    if (b.slot_mapping[t] != slot)
      refuse("slot_mapping", t, b.slot_mapping[t], "the block table gives " + std::to_string(slot));
  }
}

}  // namespace

void check_batch(const Batch& b, const KvSpec& kv, const Limits& limits, int vocab_size, int num_positions) {
  check_size("token_ids", b.num_tokens, 1, limits.max_num_tokens);
  check_size("seq_lens", b.num_seqs, 1, limits.max_num_seqs);
  check_size("logit_rows", b.num_logit_rows, 0, limits.max_num_logit_rows);
  check_size("pooled_rows", b.num_pooled_rows, 0, limits.max_num_logit_rows);
  check_size("block_table's rows", b.max_blocks, 1, limits.max_blocks_per_seq);
  check_range("token_ids", b.token_ids, b.num_tokens, vocab_size);
  check_range("logit_rows", b.logit_rows, b.num_logit_rows, b.num_tokens);
  check_range("pooled_rows", b.pooled_rows, b.num_pooled_rows, b.num_tokens);
  check_range("slot_mapping", b.slot_mapping, b.num_tokens, int64_t{limits.num_blocks} * kv.block_size);
  if (b.query_start_loc[0] != 0) refuse("query_start_loc", 0, b.query_start_loc[0], "needs 0");
  for (int s = 0; s < b.num_seqs; s++) {
    const int first = b.query_start_loc[s], last = b.query_start_loc[s + 1];
    if (last <= first || last > b.num_tokens)
      refuse("query_start_loc", s + 1, last,
             "needs " + std::to_string(int64_t{first} + 1) + " to " + std::to_string(b.num_tokens));
  }
  if (b.query_start_loc[b.num_seqs] != b.num_tokens)
    refuse("query_start_loc", b.num_seqs, b.query_start_loc[b.num_seqs],
           "needs the number of tokens, " + std::to_string(b.num_tokens));
  for (int s = 0; s < b.num_seqs; s++) {
    if (b.seq_lens[s] > num_positions)
      refuse("seq_lens", s, b.seq_lens[s], "the model has " + std::to_string(num_positions) + " positions");
    check_sequence(b, kv, limits, s, b.query_start_loc[s], b.query_start_loc[s + 1]);
  }
}

}  // namespace insitu
