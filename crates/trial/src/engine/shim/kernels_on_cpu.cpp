#include "kernels_on_cpu.h"

#include <c10/util/Half.h>
#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernel_names.h"

namespace kernels_on_cpu {
namespace {

struct Place {
  unsigned x = 1, y = 1, z = 1;
};

// Those who wait for one another: all threads of a block, or of a warp.
struct Group {
  unsigned members = 0, arrived = 0, round = 0;

  void release() {
    if (members > 0 && arrived == members) arrived = 0, round++;
  }
};

constexpr unsigned WARP = 32, MOST_THREADS = 1024;
constexpr size_t STACK = 64 << 10;

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  unsigned index;
  bool is_done;
  int turn;  // of its exchanges: two share no slot
};

struct Block {
  std::vector<Thread> threads;
  ucontext_t caller;
  Thread *current = nullptr;
  Group all, warps[MOST_THREADS / WARP];
  unsigned slots[2][MOST_THREADS];
  const std::function<void()> *kernel = nullptr;
  bool is_next_backward = false;

  void give_way() { swapcontext(&current->context, &caller); }

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
thread_local Place block_index, thread_index, block_size, grid_size;
thread_local bool wanted = false;

void enter() {
  (*block.kernel)();
  block.current->is_done = true;
  block.leave(block.all), block.leave(block.warps[block.current->index / WARP]);
  block.give_way();
}

void run_block(unsigned threads) {
  block.threads.resize(std::max<size_t>(block.threads.size(), threads));
  block.all = {threads};
  for (unsigned warp = 0; warp * WARP < threads; warp++) block.warps[warp] = {std::min(WARP, threads - warp * WARP)};
  for (unsigned at = 0; at < threads; at++) {
    auto &thread = block.threads[at];
    if (!thread.stack) thread.stack = std::make_unique<char[]>(STACK);
    thread.index = at, thread.is_done = false, thread.turn = 0;
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
      auto at = is_backward ? threads - 1 - turn : turn;
      if (block.threads[at].is_done) continue;
      is_left = true;
      block.current = &block.threads[at];
      thread_index = {at, 0, 0};
      swapcontext(&block.caller, &block.current->context);
    }
  }
}

// What CUDA has and C++ lacks.
void wait_for_block() { block.wait_in(block.all); }

float exchanged(float value, int far) {
  auto thread = block.current;
  auto &slots = block.slots[thread->turn ^= 1];
  std::memcpy(&slots[thread->index], &value, sizeof value);
  block.wait_in(block.warps[thread->index / WARP]);
  std::memcpy(&value, &slots[thread->index ^ far], sizeof value);
  return value;
}

template <typename To, typename From>
To same_bits(From from) {
  To to;
  static_assert(sizeof to == sizeof from);
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <typename Number>
Number added(Number *place, Number number) {
  auto before = *place;
  *place += number;
  return before;
}

}  // namespace

#define KERNEL(threads) static void
#define __device__
#define __shared__ static thread_local
#define threadIdx thread_index
#define blockIdx block_index
#define blockDim block_size
#define gridDim grid_size
#define __syncthreads wait_for_block
#define __threadfence()
#define __shfl_xor_sync(mask, value, far) exchanged(value, far)
#define __expf expf
#define rsqrtf(x) (1.0f / sqrtf(x))
#define atomicAdd added
#define __ldcg(place) (*(place))
#define __int_as_float(bits) same_bits<float>((int)(bits))
#define __uint_as_float(bits) same_bits<float>((unsigned)(bits))
#define __float_as_uint(x) same_bits<unsigned>((float)(x))

#define KIND 0
namespace of_f32 {
#include "kernels.cu"
}
#undef KIND
#undef PER_PACK
#define KIND 1
namespace of_f16 {
#include "kernels.cu"
}
#undef KIND
#undef PER_PACK
#define KIND 2
namespace of_bf16 {
#include "kernels.cu"
}

#undef KERNEL
#undef __device__
#undef __shared__
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#undef __syncthreads
#undef __threadfence
#undef __shfl_xor_sync
#undef __expf
#undef rsqrtf
#undef atomicAdd
#undef __ldcg
#undef __int_as_float
#undef __uint_as_float
#undef __float_as_uint
#undef KIND
#undef PER_PACK
#undef ACROSS
#undef DOWN
#undef THREADS
#undef IGNORED
#undef LEAST

bool are_wanted() { return wanted; }

#define OF_F32(name) (void *)of_f32::name,
#define OF_F16(name) (void *)of_f16::name,
#define OF_BF16(name) (void *)of_bf16::name,

void *find(int kernel, int kind) {
  static void *const all[3][KERNELS] = {{EACH_KERNEL(OF_F32)}, {EACH_KERNEL(OF_F16)}, {EACH_KERNEL(OF_BF16)}};
  return all[kind][kernel];
}

void run(unsigned across, unsigned down, unsigned threads, const std::function<void()> &kernel) {
  block.kernel = &kernel;
  block_size = {threads, 1, 1}, grid_size = {across, down, 1};
  for (unsigned y = 0; y < down; y++)
    for (unsigned x = 0; x < across; x++) {
      block_index = {x, y, 0};
      run_block(threads);
    }
}

}  // namespace kernels_on_cpu

extern "C" {

// Makes this thread take the kernels of kernels.cu on the CPU, where it takes the ways that are meant for CUDA, or no longer.
void kiln_emulate_cuda_kernels(int is_wanted) { kernels_on_cpu::wanted = is_wanted != 0; }
}
