// What the native benchmarks share: a crew of spinning threads, raw reads, the register-only integer peak.
// Not here: anything a served model uses. Always true: a figure is taken beside its ceilings, never alone.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "memory.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}
inline double most(const std::vector<double>& v) { return *std::max_element(v.begin(), v.end()); }

// Threads that spin between phases: a measurement pays no wake-up.
class Crew {
 public:
  explicit Crew(int size) : size_(size) {
    for (int i = 1; i < size; i++) threads_.emplace_back([this, i] { work(i); });
  }
  ~Crew() {
    is_closing_ = true;
    for (auto& t : threads_) t.join();
  }
  int size() const { return size_; }

  double seconds(const std::function<void(int, int)>& body) {
    body_ = &body;
    num_done_ = 0;
    const auto start = std::chrono::steady_clock::now();
    generation_++;
    body(0, size_);
    while (num_done_.load(std::memory_order_acquire) < size_ - 1) {
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  void work(int part) {
    for (int seen = 0; !is_closing_;) {
      if (generation_.load(std::memory_order_acquire) == seen) continue;
      seen++;
      (*body_)(part, size_);
      num_done_++;
    }
  }

  int size_;
  const std::function<void(int, int)>* body_ = nullptr;
  std::atomic<int> generation_{0}, num_done_{0};
  std::atomic<bool> is_closing_{false};
  std::vector<std::thread> threads_;
};

#if defined(__x86_64__)

__attribute__((target("avx2"), noinline)) inline void read_bytes(const uint8_t* at, const uint8_t* end) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (; at < end; at += 128) {
    const __m256i* line = reinterpret_cast<const __m256i*>(at);
    a = _mm256_or_si256(a, _mm256_loadu_si256(line));
    b = _mm256_or_si256(b, _mm256_loadu_si256(line + 1));
    c = _mm256_or_si256(c, _mm256_loadu_si256(line + 2));
    d = _mm256_or_si256(d, _mm256_loadu_si256(line + 3));
  }
  const __m256i all = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
  asm volatile("" ::"x"(all));
}

// Twelve independent chains of byte dot products: 12 x 128 operations a step with VNNI, else 12 x 32 (madd).
__attribute__((target("avx512f,avx512bw,avx512vnni"), noinline)) inline void integer_peak_vnni(long steps) {
  __m512i a[12];
  for (auto& x : a) x = _mm512_setzero_si512();
  __m512i u = _mm512_set1_epi8(1);
  asm volatile("" : "+v"(u));
  for (long i = 0; i < steps; i++)
    for (auto& x : a) asm volatile("vpdpbusd %1, %1, %0" : "+v"(x) : "v"(u));
}
__attribute__((target("avx2"), noinline)) inline void integer_peak_avx2(long steps) {
  __m256i a[12];
  for (auto& x : a) x = _mm256_setzero_si256();
  __m256i u = _mm256_set1_epi8(1);
  asm volatile("" : "+x"(u));
  for (long i = 0; i < steps; i++)
    for (auto& x : a) asm volatile("vpmaddubsw %1, %1, %0" : "=x"(x) : "x"(u));
}
inline bool has_vnni() { return __builtin_cpu_supports("avx512vnni"); }
inline void integer_peak(long steps) { has_vnni() ? integer_peak_vnni(steps) : integer_peak_avx2(steps); }
inline double integer_peak_ops(long steps) { return 12.0 * steps * (has_vnni() ? 128 : 64); }

#else
#error "the native benchmarks know the ceilings of x86-64 only"
#endif

}  // namespace insitu
