// The pool: every item of every phase is done once and before run() returns, whoever is slow.
// Always true: exits 0 only if every comparison held.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "threads.h"

using insitu::ThreadOptions;
using insitu::ThreadPool;

namespace {

int failures = 0, checks = 0;
void check(bool holds, const char* what, int threads, int items) {
  checks++;
  if (!holds && failures++ < 20) std::printf("FAIL %s: %d threads, %d items\n", what, threads, items);
}

void busy_for(std::chrono::microseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

// Plain ints: a second writer, or a reader before the phase is over, is also a data race.
void every_item_once(ThreadPool& pool, int items) {
  std::vector<int> times(items, 0);
  const int threads = pool.num_threads();
  std::atomic<bool> is_worker_known{true};
  pool.run(items, [&](int item, int worker) {
    times[item]++;
    if (worker < 0 || worker >= threads) is_worker_known = false;
  });
  bool once = true;
  for (int t : times) once &= t == 1;
  check(once, "an item ran other than once", threads, items);
  check(is_worker_known, "a worker has no number", threads, items);
}

// Phases whose bodies lie at other places of the stack: a worker that comes late to one must not call
// the body of another. Every second one takes long enough that it still has items then.
void at_depth(ThreadPool& pool, int round, int depth) {
  volatile char used[320] = {};
  if (depth > 0) return at_depth(pool, round, depth - 1);
  const int items = 2 + round * 7 % 11;
  std::vector<int> rounds(items, -1);
  pool.run(items, [&](int item, int) {
    rounds[item] = round;
    if (round % 2 == 0) busy_for(std::chrono::microseconds(20));
  });
  bool own = used[0] == 0;
  for (int r : rounds) own &= r == round;
  check(own, "a body ran that was another phase's", pool.num_threads(), items);
}

// The share of one worker is slow: the others must take from it, if the machine lets them run at all.
bool is_slow_share_shared(ThreadPool& pool) {
  const int items = 64, threads = pool.num_threads();
  std::vector<int> by(items, -1);
  pool.run(items, [&](int item, int worker) {
    by[item] = worker;
    if (item < items / threads) busy_for(std::chrono::microseconds(200));
  });
  bool helped = false;
  for (int item = 0; item < items / threads; item++) helped |= by[item] != by[0];
  return helped;
}

void phases(const ThreadOptions& options) {
  ThreadPool pool(options);
  for (int items : {0, 1, 2, 3, 7, 64, 1000, 70000, 200001}) every_item_once(pool, items);
  for (int round = 0; round < 2000; round++) every_item_once(pool, round % 37);
  for (int round = 0; round < 2000; round++) at_depth(pool, round, round * 5 % 7);
  bool is_shared = pool.num_threads() == 1;
  for (int round = 0; round < 50 && !is_shared; round++) is_shared = is_slow_share_shared(pool);
  check(is_shared, "nobody helped with a slow share", pool.num_threads(), 64);
  for (int round = 0; round < 20; round++) {  // workers park in between
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    every_item_once(pool, 50);
  }
}

// Whoever took something while it ran items has given it back when the phase is over.
std::atomic<int> num_holding{0};
thread_local bool holds = false;

void give_back() {
  if (holds) num_holding--;
  holds = false;
}

void everybody_leaves(ThreadOptions options) {
  options.leave = give_back;
  ThreadPool pool(options);
  for (int round = 0; round < 2000; round++) {
    std::atomic<int> most{0};
    pool.run(round % 37, [&](int, int) {
      if (!holds) num_holding++;
      holds = true;
      most = std::max(most.load(), num_holding.load());
    });
    check(round % 37 == 0 || most > 0, "nobody took anything", pool.num_threads(), round);
    check(num_holding == 0, "a worker holds on to something after its phase", pool.num_threads(), round);
  }
}

}  // namespace

int main() {
  for (int threads : {1, 2, 3, 8}) {
    ThreadOptions options(threads);
    phases(options);
    options.spins = false;
    phases(options);
    everybody_leaves(options);
    options.is_pinned = true;
    phases(options);
    options.spins = true;
    everybody_leaves(options);
  }
  std::atomic<int> num_idle{0};
  ThreadOptions options(2);
  options.idle = {[](void* count, int) { return ++*static_cast<std::atomic<int>*>(count) % 4 != 0; }, &num_idle};
  phases(options);
  check(num_idle > 0, "waiting threads did no idle work", 2, 0);
  std::printf("%d checks, %d failed\n", checks, failures);
  return failures ? 1 : 0;
}
