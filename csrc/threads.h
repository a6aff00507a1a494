// A pool of worker threads that share out the items of one phase at a time; the caller is worker 0.
// Not here: what an item does. Which worker runs an item never shows in its result.
// Each worker starts on its own share, one item at a time, and then takes from the others' tails.
// Always true: run() returns when every item is DONE, whoever did them; a worker that was
// descheduled between two items holds nothing and can neither delay this phase nor touch a later one.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace insitu {

// Round to nearest, denormals kept, no traps; the caller's setting comes back at the end of scope.
class FloatControl {
 public:
  FloatControl();
  ~FloatControl();
  FloatControl(const FloatControl&) = delete;
  FloatControl& operator=(const FloatControl&) = delete;

 private:
  uint64_t saved_;
};

// Work for a thread that waits: called again and again until it returns false. May only prefetch.
struct Idle {
  bool (*call)(void* context, int worker) = nullptr;
  void* context = nullptr;
};

struct ThreadOptions {
  ThreadOptions(int num_threads = 1) : num_threads(num_threads) {}
  int num_threads;         // the caller included: num_threads - 1 are started
  bool spins = true;       // wait busily for some microseconds before parking; wrong under a CPU quota
  bool is_pinned = false;  // every started thread to one core of the process's affinity
  Idle idle = {};
  void (*leave)() = nullptr;  // called by a worker when it has run items of a phase and finds no more
};

class ThreadPool {
 public:
  explicit ThreadPool(const ThreadOptions& options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // body(item, worker) for every item in [0, num_items). One caller at a time. Worker w begins with
  // the w-th equal share of the items, in order, so that a repeated phase finds them in its caches.
  template <typename Body>
  void run(int num_items, Body&& body) {
    if (num_items <= 1 || num_threads_ == 1) {
      for (int item = 0; item < num_items; item++) body(item, 0);
      if (leave_) leave_();
      return;
    }
    const Chunks<std::remove_reference_t<Body>> chunks{body, num_items, std::min(num_items, kMaxItems)};
    run_phase(chunks.num, const_cast<void*>(static_cast<const void*>(&chunks)), &std::remove_cv_t<decltype(chunks)>::run);
  }

 private:
  using Call = void (*)(void* context, int item, int worker);
  static constexpr int kMaxItems = 0xffff;  // beyond, several items are claimed as one

  template <typename Body>
  struct Chunks {
    Body& body;
    int num_items, num;

    static void run(void* self, int chunk, int worker) {
      const Chunks& c = *static_cast<const Chunks*>(self);
      const auto end = static_cast<int>(int64_t{c.num_items} * (chunk + 1) / c.num);
      for (auto i = static_cast<int>(int64_t{c.num_items} * chunk / c.num); i < end; i++) c.body(i, worker);
    }
  };

  // A worker's own items: generation << 32 | first << 16 | end. Taking one is a compare-exchange on
  // the whole word, which fails if the phase it was read in is over: an unclaimed item keeps a phase
  // alive, and with it the body it points to.
  struct alignas(64) Slot {
    std::atomic<uint64_t> word{0};
    std::atomic<void*> context{nullptr};
    std::atomic<Call> call{nullptr};
    std::atomic<bool> is_parked{false};
    std::atomic<uint32_t> wake{0};  // what a parked worker waits on
  };

  void run_phase(int num_items, void* context, Call call);
  int run_claimed(int worker);
  bool steal(int worker, uint64_t own);
  void work(int worker);
  void park(Slot& slot);
  void close();
  template <typename Ready>
  bool wait_busily(int worker, Ready&& ready);

  const int num_threads_;
  const bool spins_;
  const Idle idle_;
  void (*const leave_)();
  uint32_t generation_ = 0;
  std::unique_ptr<Slot[]> slots_;  // one a worker
  alignas(64) std::atomic<uint32_t> num_done_{0};  // items of this phase that other threads finished
  std::atomic<bool> is_caller_parked_{false};
  alignas(64) std::atomic<bool> is_closing_{false};
  std::vector<std::thread> threads_;
};

}  // namespace insitu
