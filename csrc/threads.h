// A pool of worker threads that share out the items of one phase at a time; the caller is worker 0.
// Not here: what an item does. Which worker runs an item never shows in its result.
// Always true: run() returns when every item is DONE, whoever did them; a worker that was
// descheduled between two phases holds nothing and can neither delay nor touch a later one.
#pragma once
#include <atomic>
#include <cstdint>
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

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // the caller included: num_threads - 1 are started
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // body(item, worker) for every item in [0, num_items). One caller at a time.
  template <typename Body>
  void run(int num_items, Body&& body) {
    if (num_items <= 1 || workers_.empty()) {
      for (int item = 0; item < num_items; item++) body(item, 0);
      return;
    }
    using Plain = std::remove_reference_t<Body>;
    run_phase(num_items, const_cast<void*>(static_cast<const void*>(&body)),
              [](void* context, int item, int worker) { (*static_cast<Plain*>(context))(item, worker); });
  }

 private:
  using Call = void (*)(void* context, int item, int worker);

  void run_phase(int num_items, void* context, Call call);
  bool claim_and_run(int worker);
  void work(int worker);
  void park();

  // generation << 32 | items not yet claimed. A claim is a compare-exchange on the whole word: if it
  // succeeds, the phase it was read in still has an unfinished item, so `phase_` was not rewritten.
  alignas(64) std::atomic<uint64_t> word_{0};
  struct {
    std::atomic<int> num_items{0};
    std::atomic<void*> context{nullptr};
    std::atomic<Call> call{nullptr};
  } phase_;
  alignas(64) std::atomic<uint32_t> num_done_{0};
  std::atomic<bool> is_caller_parked_{false};
  alignas(64) std::atomic<uint32_t> num_parked_{0};
  std::atomic<uint32_t> wake_{0};  // what parked workers wait on
  std::atomic<bool> is_closing_{false};
  std::vector<std::thread> workers_;
};

}  // namespace insitu
