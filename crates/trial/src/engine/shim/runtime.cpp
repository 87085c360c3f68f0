// libtorch as a whole: its last error, allocator figures and switches. No CUDA header is needed: figures come through the
// device-independent allocator interface, so this file is the same for both flavors of libtorch.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "shim.h"

namespace {
thread_local std::string last_error;
// The environment forces them in the whole process.
thread_local bool cuda_branches_forced = [] {
  auto text = std::getenv("KILN_CUDA_BRANCHES");
  return text != nullptr && std::strcmp(text, "1") == 0;
}();

// Tells each of libtorch's warnings once: some come with every step.
struct Once : c10::WarningHandler {
  std::mutex mutex;
  std::set<std::string> told;

  void process(const c10::Warning &warning) override {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (!told.insert(warning.msg()).second) return;
    }
    c10::WarningHandler::process(warning);
  }
};
Once &once() {
  static Once handler;
  return handler;
}
}  // namespace

bool takes_cuda_branches(const Tensor &tensor) { return tensor.is_cuda() || cuda_branches_forced; }

int kiln_failed(const char *text) {
  last_error = text;
  return 1;
}

extern "C" {

const char *kiln_error() { return last_error.c_str(); }

// Whether this thread takes the ways that are meant for CUDA on the CPU too, as far as the CPU has them.
int kiln_cuda_branches_forced() { return cuda_branches_forced; }

void kiln_force_cuda_branches(int is_forced) { cuda_branches_forced = is_forced != 0; }

// From now on, this thread prints each warning of libtorch once in this process.
void kiln_warn_once() { c10::WarningUtils::set_warning_handler(&once()); }

// Number of warnings that were passed on, for tests.
int kiln_warnings_told() {
  std::lock_guard<std::mutex> lock(once().mutex);
  return (int)once().told.size();
}

// Whether cuDNN's attention may be chosen, for tests.
int kiln_cudnn_attention_allowed() { return at::globalContext().userEnabledCuDNNSDP(); }

// One warning, as libtorch's operations give them, for tests.
void kiln_warn(const char *text) { TORCH_WARN(text); }

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

// Its peaks are those from now on, and so are its counts of retries and of out of memory.
int kiln_reset_allocator_peaks(int device) {
  return guarded([&] {
    auto allocator = at::getDeviceAllocator(at::kCUDA);
    allocator->resetPeakStats((c10::DeviceIndex)device);
    allocator->resetAccumulatedStats((c10::DeviceIndex)device);
  });
}

// flags: TF32 in matrix products, TF32 in cuDNN's convolutions, cuDNN benchmark, cuDNN deterministic, deterministic algorithms.
int kiln_flags(int *flags) {
  return guarded([&] {
    auto &context = at::globalContext();
    flags[0] = context.allowTF32CuBLAS();
    flags[1] = context.allowTF32CuDNN(at::Float32Op::CONV);
    flags[2] = context.benchmarkCuDNN();
    flags[3] = context.deterministicCuDNN();
    flags[4] = context.deterministicAlgorithms();
  });
}

// Whether products and convolutions may make f32 results from TF32 factors (precision f32 means f32: they may not), and whether recurrent
// layers may use tensor cores: libtorch asks its switch for TF32 of those also where they are in bf16.
int kiln_allow_tf32(int is_allowed, int in_recurrent) {
  return guarded([&] {
    auto &context = at::globalContext();
    context.setAllowTF32CuBLAS(is_allowed != 0);
    context.setAllowTF32CuDNN(is_allowed != 0);
    context.setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::RNN,
                                in_recurrent != 0 ? at::Float32Precision::TF32 : at::Float32Precision::NONE);
  });
}

// Whether recurrent layers may use tensor cores, for tests.
int kiln_recurrent_tf32() { return at::globalContext().allowTF32CuDNN(at::Float32Op::RNN); }

// Whether cuDNN tries its convolutions on the first of each shape, and keeps the fastest.
int kiln_cudnn_benchmark(int is_wanted) {
  return guarded([&] { at::globalContext().setBenchmarkCuDNN(is_wanted != 0); });
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
