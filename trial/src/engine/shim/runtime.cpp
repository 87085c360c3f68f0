// libtorch as a whole: its last error, allocator figures and switches. No CUDA header is needed: figures come through the
// device-independent allocator interface, so this file is the same for both flavours of libtorch.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>

#include <cstdint>

#include "shim.h"

namespace {
thread_local std::string last_error;
}

int kiln_failed(const char *text) {
  last_error = text;
  return 1;
}

extern "C" {

const char *kiln_error() { return last_error.c_str(); }

// figures: allocated now, allocated peak, reserved now, reserved peak, retries, out-of-memory count.
int kiln_allocator(int device, int64_t *figures) {
  return guarded([&] {
    auto found = at::getDeviceAllocator(at::kCUDA)->getDeviceStats((c10::DeviceIndex)device);
    auto allocated = found.allocated_bytes[0], reserved = found.reserved_bytes[0];  // [0] is the aggregate
    figures[0] = allocated.current;
    figures[1] = allocated.peak;
    figures[2] = reserved.current;
    figures[3] = reserved.peak;
    figures[4] = found.num_alloc_retries;
    figures[5] = found.num_ooms;
  });
}

int kiln_reset_allocator_peaks(int device) {
  return guarded([&] { at::getDeviceAllocator(at::kCUDA)->resetPeakStats((c10::DeviceIndex)device); });
}

// flags: TF32 in matrix products, TF32 in cuDNN, cuDNN benchmark, cuDNN deterministic, deterministic algorithms.
int kiln_flags(int *flags) {
  return guarded([&] {
    auto &context = at::globalContext();
    flags[0] = context.allowTF32CuBLAS();
    flags[1] = context.allowTF32CuDNN();
    flags[2] = context.benchmarkCuDNN();
    flags[3] = context.deterministicCuDNN();
    flags[4] = context.deterministicAlgorithms();
  });
}

// Whether products and cuDNN may make f32 results from TF32 factors. Precision f32 means f32: they may not.
int kiln_allow_tf32(int is_allowed) {
  return guarded([&] {
    at::globalContext().setAllowTF32CuBLAS(is_allowed != 0);
    at::globalContext().setAllowTF32CuDNN(is_allowed != 0);
  });
}

// Memory that tensors on the CPU give back stays with the process: the system would hand it out again in the next step, page by
// page, zeroed. Blocks above 32 MiB, the most that glibc ever raises this threshold to by itself, still come and go, so the peak
// is nearly what it was.
void kiln_keep_host_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, -1);
#endif
}
}
