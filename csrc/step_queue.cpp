// The queue of step_queue.h: one mutex, held only between steps.
#include "step_queue.h"

#include <chrono>
#include <utility>

namespace insitu {

StepQueue::StepQueue() : thread_([this] { work(); }) {}

StepQueue::~StepQueue() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  pushed_.notify_all();
  thread_.join();
}

uint64_t StepQueue::push(std::function<void()> step) {
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    steps_.push_back(std::move(step));
    number = ++num_pushed_;
  }
  pushed_.notify_one();
  return number;
}

void StepQueue::wait(uint64_t number) {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return num_ended_ >= number; });
  const auto found = thrown_.extract(number);
  if (!found.empty()) std::rethrow_exception(found.mapped());
}

void StepQueue::drain() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return steps_.empty(); });
}

void StepQueue::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    pushed_.wait(lock, [&] { return is_closing_ || !steps_.empty(); });
    if (is_closing_) return;
    const auto& step = steps_.front();
    lock.unlock();
    std::exception_ptr thrown;
    const auto start = std::chrono::steady_clock::now();
    try {
      step();
    } catch (...) {
      thrown = std::current_exception();
    }
    const auto taken = std::chrono::steady_clock::now() - start;
    busy_ns_ += std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count();
    lock.lock();
    steps_.pop_front();
    num_ended_++;
    if (thrown) thrown_.emplace(num_ended_, thrown);
    ended_.notify_all();
  }
}

}  // namespace insitu
