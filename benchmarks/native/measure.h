// What the native benchmarks share: data, clocks, and reads to set beside what is measured (ceilings.h).
// Not here: anything a served model uses. Always true: a figure is taken beside its ceilings, never alone.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "ceilings.h"
#include "kernels.h"
#include "memory.h"
#include "threads.h"

namespace insitu {

// Zero-filled, on huge pages where there are any.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : mapping_(bytes + 4096) { std::memset(mapping_.data(), 0, bytes + 4096); }
  uint8_t* at(size_t i) const { return mapping_.data() + i; }
  float* floats() const { return reinterpret_cast<float*>(mapping_.data()); }

 private:
  Mapping mapping_;
};

inline uint32_t random_word() {
  static uint64_t state = 7;
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<uint32_t>(state >> 33);
}

inline void fill_floats(const Buffer& b, size_t count) {
  for (size_t i = 0; i < count; i++) b.floats()[i] = static_cast<float>(random_word() & 0xffffff) / 8388608.0f - 1.0f;
}

// Any bytes do for integers; as halves and floats none may be subnormal, NaN or Inf.
inline std::vector<uint8_t> random_blocks(size_t bytes) {
  std::vector<uint8_t> raw(bytes);
  for (uint8_t& b : raw) b = static_cast<uint8_t>(0x28 | (random_word() & 0x97));
  return raw;
}

inline std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts(1);
  for (const char c : list)
    if (c == ',') parts.emplace_back();
    else parts.back() += c;
  return parts;
}

// The named table, or the best this machine can run.
inline const KernelTable* best_table(const char* isa) {
  if (isa && *isa) return kernel_table(isa);
  const KernelTable* best = kernel_table("generic");
  for (const char* better : {"neon", "neon-dotprod", "avx2", "avx2vnni", "avx512base", "avx512vnni", "avx512amx"})
    if (const KernelTable* table = kernel_table(better)) best = table;
  return best;
}

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}
// The first tenth: what disturbs a measurement only ever adds to it.
inline double decile(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 10];
}
inline double most(const std::vector<double>& v) { return *std::max_element(v.begin(), v.end()); }

// With one thread its own processor time, which other work on the machine does not add to.
class Clock {
 public:
  explicit Clock(int num_threads) : is_processor_time_(num_threads == 1) {}
  double now() const {
    timespec t;
    if (is_processor_time_ && clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0)
      return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

 private:
  bool is_processor_time_;
};

// Seconds that body(part, parts) takes, one part a thread; all of them are awake when it begins.
template <class Body>
double seconds(ThreadPool& pool, const Clock& clock, Body&& body) {
  const int parts = pool.num_threads();
  pool.run(parts, [](int, int) {});
  const double start = clock.now();
  pool.run(parts, [&](int part, int) { body(part, parts); });
  return clock.now() - start;
}

// Seconds to read `num_bytes`, in turn from all over the buffer: caches are cold.
inline double read_seconds(ThreadPool& pool, const Clock& clock, const ReadBuffer& buffer, size_t turn, size_t num_bytes) {
  const size_t first = turn % (buffer.size() / num_bytes) * num_bytes / 64 * 64;
  const double start = clock.now();
  buffer.read_seconds(pool, first, num_bytes);
  return clock.now() - start;
}

}  // namespace insitu
