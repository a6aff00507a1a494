// What this machine can do at most: bytes read a second, operations a second on registers alone.
// Not here: what a model needs of either (bench counts that). Measured on a model's own threads, between
// its steps, so that a share of a ceiling compares two things the same minutes saw.
// Always true: every byte asked for is read, once, and nothing measured is optimised away.
#pragma once
#include <cstddef>
#include <cstdint>

#include "memory.h"
#include "threads.h"

namespace insitu {

// Bytes of its own, as weights are kept (anonymous, huge pages where allowed), every page committed.
class ReadBuffer {
 public:
  ReadBuffer(ThreadPool& pool, size_t num_bytes);
  size_t size() const { return mapping_.size(); }

  // Seconds to read [first, first + num_bytes), from when every worker is awake.
  double read_seconds(ThreadPool& pool, size_t first, size_t num_bytes) const;

 private:
  Mapping mapping_;
};

// Int8: products of bytes with additions, as matmul_dot.h makes them. Float32: fused multiply-adds.
enum class Peak { Int8, Float32 };

// Operations a second, a multiplication and an addition being two; `table` names a KernelTable.
double peak_ops_per_second(ThreadPool& pool, const char* table, Peak peak, double seconds);

}  // namespace insitu
