// The pool of threads.h: claims, the end of a phase, spinning and parking, the float control register.
#include "threads.h"

#include <algorithm>
#include <chrono>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace insitu {

namespace {

// Between the phases of a step the wait is shorter than this; between steps workers park.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kYield = std::chrono::microseconds(5);

bool has_items(uint64_t word) { return (word >> 16 & 0xffff) < (word & 0xffff); }
int first_of(uint64_t word) { return static_cast<int>(word >> 16 & 0xffff); }
int end_of(uint64_t word) { return static_cast<int>(word & 0xffff); }

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
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

// The worker-th core of the process's affinity; where that cannot be had, the thread stays free.
void pin([[maybe_unused]] std::thread& thread, [[maybe_unused]] int worker) {
#if defined(__linux__)
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int wanted = worker % std::max(1, CPU_COUNT(&allowed));
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed) || wanted-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_setaffinity_np(thread.native_handle(), sizeof one, &one);
    return;
  }
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

ThreadPool::ThreadPool(const ThreadOptions& options)
    : num_threads_(options.num_threads),
      spins_(options.spins),
      idle_(options.idle),
      leave_(options.leave),
      slots_(std::make_unique<Slot[]>(num_threads_)) {
  threads_.reserve(static_cast<size_t>(num_threads_ - 1));
  try {
    for (int worker = 1; worker < num_threads_; worker++) {
      threads_.emplace_back([this, worker] { work(worker); });
      if (options.is_pinned) pin(threads_.back(), worker);
    }
  } catch (...) {  // out of threads: the destructor will not run
    close();
    throw;
  }
}

ThreadPool::~ThreadPool() { close(); }

void ThreadPool::close() {
  is_closing_.store(true);
  for (int worker = 1; worker < num_threads_; worker++) {
    slots_[worker].wake.fetch_add(1);
    slots_[worker].wake.notify_one();
  }
  for (auto& thread : threads_) thread.join();
}

// True as soon as `ready()` is, false after kSpin. Idle work comes between two looks.
template <typename Ready>
bool ThreadPool::wait_busily(int worker, Ready&& ready) {
  if (ready()) return true;
  if (!spins_) return false;
  bool has_idle_work = idle_.call != nullptr;
  const auto start = std::chrono::steady_clock::now();
  for (auto now = start; now < start + kSpin; now = std::chrono::steady_clock::now()) {
    for (int i = 0; i < 32; i++) {
      if (ready()) return true;
      if (has_idle_work) has_idle_work = idle_.call(idle_.context, worker);
      else relax();
    }
    // On a core that two threads share, the one waited for may be queued behind this one.
    if (now > start + kYield) std::this_thread::yield();
  }
  return ready();
}

void ThreadPool::run_phase(int num_items, void* context, Call call) {
  num_done_.store(0, std::memory_order_relaxed);
  const uint64_t generation = uint64_t{++generation_} << 32;
  for (int worker = num_threads_ - 1; worker >= 0; worker--) {
    Slot& slot = slots_[worker];
    const auto first = static_cast<uint64_t>(int64_t{num_items} * worker / num_threads_);
    const auto end = static_cast<uint64_t>(int64_t{num_items} * (worker + 1) / num_threads_);
    slot.context.store(context, std::memory_order_relaxed);
    slot.call.store(call, std::memory_order_relaxed);
    slot.word.store(generation | first << 16 | end);
    if (first < end && slot.is_parked.load()) {
      slot.wake.fetch_add(1);
      slot.wake.notify_one();
    }
  }
  const auto others = static_cast<uint32_t>(num_items - run_claimed(0));
  if (wait_busily(0, [&] { return num_done_.load(std::memory_order_acquire) == others; })) return;
  is_caller_parked_.store(true);
  for (uint32_t done = num_done_.load(); done != others; done = num_done_.load()) num_done_.wait(done);
  is_caller_parked_.store(false);
}

// Runs items until none of this phase is left to claim; returns how many.
int ThreadPool::run_claimed(int worker) {
  Slot& slot = slots_[worker];
  int num_run = 0;
  uint64_t word = slot.word.load(std::memory_order_acquire);
  for (;;) {
    while (has_items(word)) {
      // Read anew with every word: one whose exchange failed may have come from a later phase.
      void* context = slot.context.load(std::memory_order_relaxed);
      const Call call = slot.call.load(std::memory_order_relaxed);
      if (!slot.word.compare_exchange_weak(word, word + (1 << 16), std::memory_order_acq_rel)) continue;
      call(context, first_of(word), worker);
      num_run++;
      word = slot.word.load(std::memory_order_acquire);
    }
    if (!steal(worker, word)) break;
    word = slot.word.load(std::memory_order_acquire);
  }
  if (num_run > 0 && leave_) leave_();
  return num_run;
}

// Moves the last quarter of another worker's items into this worker's empty slot. Both slots must be of
// one phase: only then has the caller written this one, and it writes it again only after that phase.
bool ThreadPool::steal(int worker, uint64_t own) {
  for (int i = 1; i < num_threads_; i++) {
    Slot& victim = slots_[(worker + i) % num_threads_];
    uint64_t word = victim.word.load(std::memory_order_acquire);
    while (word >> 32 == own >> 32 && has_items(word)) {
      const int first = first_of(word), end = end_of(word), taken = (end - first + 3) / 4;
      if (!victim.word.compare_exchange_weak(word, word - taken, std::memory_order_acq_rel)) continue;
      const uint64_t stolen = static_cast<uint64_t>(end - taken) << 16 | static_cast<uint64_t>(end);
      slots_[worker].word.store((word >> 32) << 32 | stolen, std::memory_order_release);
      return true;
    }
  }
  return false;
}

void ThreadPool::work(int worker) {
  const FloatControl control;
  Slot& slot = slots_[worker];
  while (!is_closing_.load()) {
    const int num_run = run_claimed(worker);
    if (num_run > 0) {
      num_done_.fetch_add(static_cast<uint32_t>(num_run));
      if (is_caller_parked_.load()) num_done_.notify_all();
    }
    const auto is_wanted = [&] {
      return has_items(slot.word.load(std::memory_order_acquire)) || is_closing_.load(std::memory_order_relaxed);
    };
    if (!wait_busily(worker, is_wanted)) park(slot);
  }
}

void ThreadPool::park(Slot& slot) {
  slot.is_parked.store(true);
  const uint32_t seen = slot.wake.load();
  // A phase posted before is_parked was raised shows in the word; one posted after changes wake.
  if (!has_items(slot.word.load()) && !is_closing_.load()) slot.wake.wait(seen);
  slot.is_parked.store(false);
}

}  // namespace insitu
