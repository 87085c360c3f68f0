// The kernels of kernels.cu on the CPU, each thread of a block in its turn, so that a machine without a GPU can test them and the code that starts
// them: kiln_emulate_cuda_kernels. Slow.
#pragma once
#include <functional>

namespace kernels_on_cpu {

// Whether this thread takes them where it takes the ways that are meant for CUDA.
bool are_wanted();

// The kernel at this place of `Kernel` for numbers of this kind, a function of the kernel's own arguments.
void *find(int kernel, int kind);

// Calls `kernel` as each thread of each block of this many.
void run(unsigned across, unsigned down, unsigned threads, const std::function<void()> &kernel);

}  // namespace kernels_on_cpu
