// Steps that were given ahead, run one after the other on a thread of their own: the next begins the
// moment one ends, whatever Python is doing. Not here: what a step does.
// Always true: steps run in the order they were pushed; each one's end is waited for once, and what it
// threw is thrown there.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace insitu {

class StepQueue {
 public:
  StepQueue();
  ~StepQueue();  // what has not begun is dropped
  StepQueue(const StepQueue&) = delete;
  StepQueue& operator=(const StepQueue&) = delete;

  uint64_t push(std::function<void()> step);  // its number
  void wait(uint64_t number);                 // until that step has ended; throws what it threw
  void drain();                               // until every step has ended
  int64_t busy_ns() const { return busy_ns_; }  // time that steps ran

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable pushed_, ended_;
  std::deque<std::function<void()>> steps_;  // the first one is running
  uint64_t num_pushed_ = 0, num_ended_ = 0;
  std::map<uint64_t, std::exception_ptr> thrown_;
  bool is_closing_ = false;
  std::atomic<int64_t> busy_ns_ = 0;
  std::thread thread_;
};

}  // namespace insitu
