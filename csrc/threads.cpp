// The pool of threads.h: claims, the end of a phase, spinning and parking, the float control register.
#include "threads.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace insitu {

namespace {

// Between the phases of a step the wait is shorter than this; between steps workers park.
constexpr auto kSpin = std::chrono::microseconds(50);

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// True as soon as `ready()` is, false after kSpin.
template <typename Ready>
bool spin_until(Ready&& ready) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; i++) {
      if (ready()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

uint64_t read_control() {
#if defined(__x86_64__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
#else
  return 0;
#endif
}

void write_control([[maybe_unused]] uint64_t value) {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<unsigned>(value));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" ::"r"(value));
#endif
}

#if defined(__x86_64__)
constexpr uint64_t kControl = 0x1f80;  // all exceptions masked, RNE, no FTZ, no DAZ
#else
constexpr uint64_t kControl = 0;
#endif

}  // namespace

FloatControl::FloatControl() : saved_(read_control()) { write_control(kControl); }
FloatControl::~FloatControl() { write_control(saved_); }

ThreadPool::ThreadPool(int num_threads) {
  workers_.reserve(static_cast<size_t>(num_threads > 1 ? num_threads - 1 : 0));
  try {
    for (int worker = 1; worker < num_threads; worker++)
      workers_.emplace_back([this, worker] { work(worker); });
  } catch (...) {  // out of threads: the destructor will not run
    is_closing_.store(true);
    wake_.fetch_add(1);
    wake_.notify_all();
    for (auto& thread : workers_) thread.join();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  is_closing_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (auto& thread : workers_) thread.join();
}

void ThreadPool::run_phase(int num_items, void* context, Call call) {
  num_done_.store(0, std::memory_order_relaxed);
  phase_.num_items.store(num_items, std::memory_order_relaxed);
  phase_.context.store(context, std::memory_order_relaxed);
  phase_.call.store(call, std::memory_order_relaxed);
  const uint64_t generation = (word_.load(std::memory_order_relaxed) >> 32) + 1;
  word_.store(generation << 32 | static_cast<uint32_t>(num_items));
  if (num_parked_.load() > 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  while (claim_and_run(0)) {
  }
  const auto wanted = static_cast<uint32_t>(num_items);
  if (spin_until([&] { return num_done_.load(std::memory_order_acquire) == wanted; })) return;
  is_caller_parked_.store(true);
  for (uint32_t done = num_done_.load(); done != wanted; done = num_done_.load()) num_done_.wait(done);
  is_caller_parked_.store(false);
}

bool ThreadPool::claim_and_run(int worker) {
  uint64_t word = word_.load(std::memory_order_acquire);
  for (;;) {
    const auto unclaimed = static_cast<uint32_t>(word);
    if (unclaimed == 0) return false;
    const int num_items = phase_.num_items.load(std::memory_order_relaxed);
    void* context = phase_.context.load(std::memory_order_relaxed);
    const Call call = phase_.call.load(std::memory_order_relaxed);
    if (!word_.compare_exchange_weak(word, word - 1, std::memory_order_acq_rel)) continue;
    call(context, num_items - static_cast<int>(unclaimed), worker);
    num_done_.fetch_add(1);
    if (is_caller_parked_.load()) num_done_.notify_all();
    return true;
  }
}

void ThreadPool::work(int worker) {
  const FloatControl control;
  while (!is_closing_.load()) {
    if (claim_and_run(worker)) continue;
    const auto has_work = [&] { return static_cast<uint32_t>(word_.load(std::memory_order_acquire)) != 0; };
    if (!spin_until([&] { return has_work() || is_closing_.load(std::memory_order_relaxed); })) park();
  }
}

void ThreadPool::park() {
  num_parked_.fetch_add(1);
  const uint32_t seen = wake_.load();
  // A phase posted before num_parked_ was raised shows in word_; one posted after changes wake_.
  if (static_cast<uint32_t>(word_.load()) == 0 && !is_closing_.load()) wake_.wait(seen);
  num_parked_.fetch_sub(1);
}

}  // namespace insitu
