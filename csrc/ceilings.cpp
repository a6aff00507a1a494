// Raw reads and register peaks; each loop is compiled for the instruction set it is asked of.
#include "ceilings.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string_view>

namespace insitu {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr size_t kItemBytes = size_t{1} << 20;
constexpr size_t kStreams = 8;          // read side by side: more than one core's prefetcher gets from one
constexpr size_t kLineBytes = 64;
constexpr auto kWakeUp = std::chrono::milliseconds(2);

// Written to once a loop, so that what the loop computed is wanted.
volatile uint64_t g_sink;

// A cache line in 16-byte vectors (any target), 32 (AVX2) or 64 (AVX-512).
#define INSITU_READ(NAME, TARGET, BYTES)                                                    \
  TARGET __attribute__((noinline)) void NAME(const uint8_t* data, size_t num_bytes) {       \
    typedef uint64_t Lanes __attribute__((vector_size(BYTES), may_alias));                  \
    Lanes sums[kStreams] = {};                                                              \
    const size_t stream_bytes = num_bytes / kStreams / kLineBytes * kLineBytes;             \
    for (size_t at = 0; at < stream_bytes; at += kLineBytes)                                \
      for (size_t s = 0; s < kStreams; s++)                                                 \
        for (size_t part = 0; part < kLineBytes; part += BYTES)                             \
          sums[s] ^= *reinterpret_cast<const Lanes*>(data + s * stream_bytes + at + part);  \
    for (size_t at = stream_bytes * kStreams; at + BYTES <= num_bytes; at += BYTES)         \
      sums[0] ^= *reinterpret_cast<const Lanes*>(data + at);                                \
    for (size_t s = 1; s < kStreams; s++) sums[0] ^= sums[s];                               \
    g_sink = sums[0][0];                                                                    \
  }

INSITU_READ(read_16, , 16)
#if defined(__x86_64__)
INSITU_READ(read_32, __attribute__((target("avx2"))), 32)
INSITU_READ(read_64, __attribute__((target("avx512f"))), 64)
#endif

using Read = void (*)(const uint8_t*, size_t);

Read best_read() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return read_64;
  if (__builtin_cpu_supports("avx2")) return read_32;
#endif
  return read_16;
}

// Workers that parked are woken, and wait for each other a moment: a ceiling is no test of waking.
void gather(ThreadPool& pool) {
  std::atomic<int> num_here{0};
  const auto end = Clock::now() + kWakeUp;
  pool.run(pool.num_threads(), [&](int, int) {
    num_here.fetch_add(1);
    while (num_here.load() < pool.num_threads() && Clock::now() < end) {
    }
  });
}

// A loop of `count` rounds on registers; returns the operations of one round.
using Loop = double (*)(int64_t count);

constexpr int kChains = 12;  // independent sums: more than latency times the instructions begun a cycle

// BODY(k) works on `sums[k]` with `a` and `b`; ROUND is the operations one vector of it does.
#define INSITU_PEAK_OF(NAME, TARGET, TYPE, BYTES, ROUND, BODY) \
  TARGET double NAME(int64_t count) {                         \
    typedef TYPE Lanes __attribute__((vector_size(BYTES)));   \
    Lanes sums[kChains] = {}, a = {}, b = {};                 \
    asm volatile("" : "+m"(a), "+m"(b));                      \
    for (int64_t i = 0; i < count; i++) {                     \
      BODY(0) BODY(1) BODY(2) BODY(3) BODY(4) BODY(5)         \
      BODY(6) BODY(7) BODY(8) BODY(9) BODY(10) BODY(11)       \
    }                                                         \
    g_sink = static_cast<uint64_t>(sums[0][0]);               \
    return double{kChains} * (ROUND);                         \
  }
#define INSITU_PEAK(NAME, TARGET, BYTES, ROUND, BODY) INSITU_PEAK_OF(NAME, TARGET, int64_t, BYTES, ROUND, BODY)

#if defined(__aarch64__)
#define INSITU_ANEW(x) asm volatile("" : "+w"(x))
#else
#define INSITU_ANEW(x) asm volatile("" : "+x"(x))
#endif

// In plain C++ both are sums of products of lanes, bytes having been widened before.
#define INSITU_PLAIN(k) INSITU_ANEW(a); sums[k] += a * b; INSITU_ANEW(sums[k]);
INSITU_PEAK_OF(int8_generic, , int32_t, 16, 8, INSITU_PLAIN)
INSITU_PEAK_OF(float32_generic, , float, 16, 8, INSITU_PLAIN)

#if defined(__x86_64__)
#define INSITU_FOR(NAME) __attribute__((target(NAME)))
#define INSITU_DOT(k) asm volatile("vpdpbusd %2, %1, %0" : "+v"(sums[k]) : "v"(a), "v"(b));
#define INSITU_DOT_VEX(k) asm volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums[k]) : "x"(a), "x"(b));
#define INSITU_MADD(k)                                                      \
  {                                                                         \
    Lanes words;                                                            \
    asm volatile("vpmaddubsw %2, %1, %0" : "=v"(words) : "v"(a), "v"(b));   \
    asm volatile("vpaddw %1, %0, %0" : "+v"(sums[k]) : "v"(words));         \
  }
#define INSITU_FMA(k) asm volatile("vfmadd231ps %2, %1, %0" : "+v"(sums[k]) : "v"(a), "v"(b));

INSITU_PEAK(int8_avx2, INSITU_FOR("avx2"), 32, 64, INSITU_MADD)
INSITU_PEAK(int8_avx2_vnni, INSITU_FOR("avx2"), 32, 64, INSITU_DOT_VEX)
INSITU_PEAK(int8_avx512, INSITU_FOR("avx512bw"), 64, 128, INSITU_MADD)
INSITU_PEAK(int8_avx512_vnni, INSITU_FOR("avx512vnni"), 64, 128, INSITU_DOT)
INSITU_PEAK(float32_avx2, INSITU_FOR("avx2,fma"), 32, 16, INSITU_FMA)
INSITU_PEAK(float32_avx512, INSITU_FOR("avx512f"), 64, 32, INSITU_FMA)
#elif defined(__aarch64__)
#define INSITU_DOT(k) asm volatile("sdot %0.4s, %1.16b, %2.16b" : "+w"(sums[k]) : "w"(a), "w"(b));
#define INSITU_MADD(k)                                                        \
  {                                                                           \
    Lanes words;                                                              \
    asm volatile("smull %0.8h, %1.8b, %2.8b" : "=w"(words) : "w"(a), "w"(b)); \
    asm volatile("sadalp %0.4s, %1.8h" : "+w"(sums[k]) : "w"(words));         \
  }
#define INSITU_FMA(k) asm volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(sums[k]) : "w"(a), "w"(b));

INSITU_PEAK(int8_neon, , 16, 16, INSITU_MADD)
#if defined(__clang__)
#define INSITU_DOTPROD __attribute__((target("dotprod")))
#else
#define INSITU_DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
INSITU_PEAK(int8_neon_dotprod, INSITU_DOTPROD, 16, 32, INSITU_DOT)
INSITU_PEAK(float32_neon, , 16, 8, INSITU_FMA)
#endif

Loop loop_of([[maybe_unused]] std::string_view table, Peak peak) {
#if defined(__x86_64__)
  if (table.substr(0, 6) == "avx512") {
    if (peak == Peak::Float32) return float32_avx512;
    return table == "avx512base" ? int8_avx512 : int8_avx512_vnni;  // of vectors: AMX tiles may exceed it
  }
  if (table.substr(0, 4) == "avx2") {
    if (peak == Peak::Float32) return float32_avx2;
    return table == "avx2" ? int8_avx2 : int8_avx2_vnni;
  }
#elif defined(__aarch64__)
  if (table.substr(0, 4) == "neon") {
    if (peak == Peak::Float32) return float32_neon;
    return table == "neon" ? int8_neon : int8_neon_dotprod;
  }
#endif
  return peak == Peak::Float32 ? float32_generic : int8_generic;
}

}  // namespace

ReadBuffer::ReadBuffer(ThreadPool& pool, size_t num_bytes) : mapping_(num_bytes) {
  const int num_items = static_cast<int>((num_bytes + kItemBytes - 1) / kItemBytes);
  pool.run(num_items, [&](int item, int) {
    const size_t at = item * kItemBytes;
    std::memset(mapping_.data() + at, item | 1, std::min(kItemBytes, num_bytes - at));
  });
}

double ReadBuffer::read_seconds(ThreadPool& pool, size_t first, size_t num_bytes) const {
  if (first % kLineBytes != 0 || first > size() || num_bytes > size() - first)
    throw std::invalid_argument("a read lies outside the buffer, or does not begin with a line");
  const Read read = best_read();
  const int num_items = static_cast<int>((num_bytes + kItemBytes - 1) / kItemBytes);
  gather(pool);
  const auto start = Clock::now();
  pool.run(num_items, [&](int item, int) {
    const size_t at = item * kItemBytes;
    read(mapping_.data() + first + at, std::min(kItemBytes, num_bytes - at));
  });
  return seconds_since(start);
}

double peak_ops_per_second(ThreadPool& pool, const char* table, Peak peak, double seconds) {
  constexpr int64_t kCount = 20000;  // rounds an item: some tens of microseconds
  const Loop loop = loop_of(table, peak);
  const int num_items = 8 * pool.num_threads();
  std::atomic<double> ops_a_round{0};
  double best = 0;
  const auto start = Clock::now();
  do {
    gather(pool);
    const auto began = Clock::now();
    pool.run(num_items, [&](int, int) { ops_a_round.store(loop(kCount)); });
    best = std::max(best, ops_a_round.load() * kCount * num_items / seconds_since(began));
  } while (seconds_since(start) < seconds);
  return best;
}

}  // namespace insitu
