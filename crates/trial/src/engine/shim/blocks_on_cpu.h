// Blocks of threads as CUDA has them, on the CPU: the threads of a block take turns, each until it waits for others.
#pragma once
#include <functional>

namespace kernels_on_cpu {

struct Place {
  unsigned x = 1, y = 1, z = 1;
};

// As CUDA's blockIdx, threadIdx, blockDim and gridDim.
extern thread_local Place block_index, thread_index, block_size, grid_size;

// Calls `kernel` as each thread of one block.
void run_block(Place index, Place grid, unsigned threads, const std::function<void()> &kernel);

// Waits for all threads of the block.
void wait_for_block();

// The value that the thread of the same warp gives whose index differs by the bits of `far`.
float exchanged(float value, int far);

}  // namespace kernels_on_cpu
