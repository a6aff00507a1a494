// The queue of steps: each runs once and in order, its end is waited for by whoever pushed it.
// Always true: exits 0 only if every comparison held.
#include <atomic>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "step_queue.h"

using insitu::StepQueue;

namespace {

int failures = 0;
void check(bool holds, const char* what) {
  if (!holds && failures++ < 20) std::printf("FAIL %s\n", what);
}

// Plain ints: a step that runs beside another, or that is not over when it was waited for, is a data race.
void steps_run_in_order() {
  StepQueue queue;
  std::vector<int> order;
  std::vector<uint64_t> numbers;
  for (int i = 0; i < 500; i++) {
    numbers.push_back(queue.push([&order, i] { order.push_back(i); }));
    if (i % 7 == 0) queue.wait(numbers.back());
  }
  for (const uint64_t number : numbers) queue.wait(number);  // those before are over
  bool in_order = order.size() == numbers.size();
  for (size_t i = 0; in_order && i < order.size(); i++) in_order = order[i] == static_cast<int>(i);
  check(in_order, "steps ran out of order");
}

void what_a_step_throws_comes_once() {
  StepQueue queue;
  const uint64_t bad = queue.push([] { throw std::runtime_error("bad"); });
  int num_run = 0;
  const uint64_t good = queue.push([&] { num_run++; });
  queue.wait(good);
  std::string thrown;
  try {
    queue.wait(bad);
  } catch (const std::runtime_error& error) {
    thrown = error.what();
  }
  check(thrown == "bad" && num_run == 1, "an error did not come where it was waited for, or stopped what followed");
  queue.wait(bad);
}

void several_threads_push_and_wait() {
  StepQueue queue;
  int sum = 0;  // of all threads: only steps touch it
  std::atomic<int> num_late{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; t++)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; i++) {
        bool is_over = false;
        queue.wait(queue.push([&] { sum++, is_over = true; }));
        if (!is_over) num_late++;
      }
    });
  for (std::thread& thread : threads) thread.join();
  queue.drain();
  check(sum == 600 && num_late == 0, "a step was lost, or waited for too briefly");
  check(queue.busy_ns() > 0, "no time was told");
}

// What has not begun is dropped; what runs is waited for.
void an_end_with_steps_left() {
  for (int round = 0; round < 50; round++) {
    int num_run = 0;
    {
      StepQueue queue;
      for (int i = 0; i < 20; i++) queue.push([&] { num_run++; });
    }
    check(num_run <= 20, "a step ran twice");
  }
}

}  // namespace

int main() {
  steps_run_in_order();
  what_a_step_throws_comes_once();
  several_threads_push_and_wait();
  an_end_with_steps_left();
  std::printf("%d failed\n", failures);
  return failures ? 1 : 0;
}
