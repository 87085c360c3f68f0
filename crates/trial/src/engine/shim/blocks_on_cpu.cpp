#include "blocks_on_cpu.h"

#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <vector>

#ifdef WATCHED_BY_TSAN
// ThreadSanitizer takes each thread of a block for one of its own. This file is not compiled with it: it would find that the threads share the
// variables that make them take turns. What it is told of their order is what CUDA promises, which is that of __syncthreads alone.
#include <sanitizer/tsan_interface.h>
#else
static inline void *__tsan_create_fiber(unsigned) { return nullptr; }
static inline void *__tsan_get_current_fiber() { return nullptr; }
static inline void __tsan_destroy_fiber(void *) {}
static inline void __tsan_switch_to_fiber(void *, unsigned) {}
static inline void __tsan_acquire(void *) {}
static inline void __tsan_release(void *) {}
#endif

namespace kernels_on_cpu {

thread_local Place block_index, thread_index, block_size, grid_size;

namespace {

// Those who wait for one another: all threads of a block, or of a warp.
struct Group {
  unsigned members = 0, arrived = 0, round = 0;

  void release() {
    if (members > 0 && arrived == members) arrived = 0, round++;
  }
};

constexpr unsigned WARP = 32, MOST_THREADS = 1024, WITHOUT_ORDER = 1;
constexpr size_t STACK = 32 << 10;

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  unsigned index;
  bool is_done;
  int turn;  // of its exchanges: two share no slot
  void *known_as = nullptr;
};

struct Block {
  std::vector<Thread> threads;
  ucontext_t caller;
  void *caller_known_as = nullptr;
  Thread *current = nullptr;
  Group all, warps[MOST_THREADS / WARP];
  char rounds[2];
  float slots[2][MOST_THREADS];
  const std::function<void()> *kernel = nullptr;
  bool is_next_backward = false;

  void give_way() {
    __tsan_switch_to_fiber(caller_known_as, WITHOUT_ORDER);
    swapcontext(&current->context, &caller);
  }

  void go_on(Thread &thread) {
    current = &thread;
    thread_index = {thread.index, 0, 0};
    __tsan_switch_to_fiber(thread.known_as, WITHOUT_ORDER);
    swapcontext(&caller, &thread.context);
  }

  void wait_in(Group &group) {
    auto round = group.round;
    group.arrived++;
    group.release();
    while (group.round == round) give_way();
  }

  void leave(Group &group) {
    group.members--;
    group.release();
  }
};

thread_local Block block;

void enter() {
  (*block.kernel)();
  __tsan_release(&block);
  block.current->is_done = true;
  block.leave(block.all), block.leave(block.warps[block.current->index / WARP]);
  block.give_way();
}

}  // namespace

void run_block(Place index, Place grid, unsigned threads, const std::function<void()> &kernel) {
  block.kernel = &kernel;
  block_index = index, grid_size = grid, block_size = {threads, 1, 1};
  block.caller_known_as = __tsan_get_current_fiber();
  block.threads.resize(std::max<size_t>(block.threads.size(), threads));
  block.all = {threads};
  for (unsigned warp = 0; warp * WARP < threads; warp++) block.warps[warp] = {std::min(WARP, threads - warp * WARP)};
  for (unsigned at = 0; at < threads; at++) {
    auto &thread = block.threads[at];
    if (!thread.stack) thread.stack.reset(new char[STACK]);
    thread.index = at, thread.is_done = false, thread.turn = 0, thread.known_as = __tsan_create_fiber(0);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get(), thread.context.uc_stack.ss_size = STACK, thread.context.uc_link = nullptr;
    makecontext(&thread.context, enter, 0);
  }
  // Every second block from its last thread to its first: a thread that does not wait for an earlier one shows.
  bool is_backward = block.is_next_backward;
  block.is_next_backward = !is_backward;
  for (bool is_left = true; is_left;) {
    is_left = false;
    for (unsigned turn = 0; turn < threads; turn++) {
      auto &thread = block.threads[is_backward ? threads - 1 - turn : turn];
      if (thread.is_done) continue;
      is_left = true;
      block.go_on(thread);
    }
  }
  __tsan_acquire(&block);
  for (unsigned at = 0; at < threads; at++) __tsan_destroy_fiber(block.threads[at].known_as);
}

void wait_for_block() {
  // A thread that is one round ahead gives no order to those that leave this one.
  auto round = &block.rounds[block.all.round & 1];
  __tsan_release(round);
  block.wait_in(block.all);
  __tsan_acquire(round);
}

float exchanged(float value, int far) {
  auto thread = block.current;
  auto &slots = block.slots[thread->turn ^= 1];
  slots[thread->index] = value;
  block.wait_in(block.warps[thread->index / WARP]);
  return slots[thread->index ^ far];
}

}  // namespace kernels_on_cpu
