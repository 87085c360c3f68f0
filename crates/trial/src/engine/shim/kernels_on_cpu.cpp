#include "kernels_on_cpu.h"

#include <c10/util/Half.h>

#include <cmath>
#include <cstring>

#include "blocks_on_cpu.h"
#include "kernel_names.h"

namespace kernels_on_cpu {
namespace {

thread_local bool wanted = false;

// What CUDA has and C++ lacks.
template <typename To, typename From>
To same_bits(From from) {
  To to;
  static_assert(sizeof to == sizeof from);
  std::memcpy(&to, &from, sizeof to);
  return to;
}

struct float4 {
  float x, y, z, w;
};

}  // namespace

#define KERNEL(...) static void
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
#define atomicAdd(place, number) __atomic_fetch_add(place, number, __ATOMIC_ACQ_REL)
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
#undef COLUMNS
#undef BATCH
#undef SMALL_BATCH
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
  for (unsigned y = 0; y < down; y++)
    for (unsigned x = 0; x < across; x++) run_block({x, y, 0}, {across, down, 1}, threads, kernel);
}

}  // namespace kernels_on_cpu

extern "C" {

// Makes this thread take the kernels of kernels.cu on the CPU, where it takes the ways that are meant for CUDA, or no longer.
void kiln_emulate_cuda_kernels(int is_wanted) { kernels_on_cpu::wanted = is_wanted != 0; }
}
