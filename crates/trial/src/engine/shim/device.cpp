// The device apart from its operations: libtorch's CUDA half is loaded, batches are copied to the device, moments are marked on its
// stream. No CUDA header is needed: everything goes through libtorch's device-independent interfaces, so this file is the same
// for both flavors of libtorch, and where there is no CUDA each call fails with libtorch's words.
#include <ATen/Context.h>
#include <c10/core/Event.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <iterator>
#include <mutex>
#include <stdexcept>

#include "shim.h"
#include "symbols.h"

// burn-tch names these two so that a program linked against CUDA's flavor cannot start without it. Answered here, hidden from
// every library, they tie the program to neither flavor; kiln_load_cuda loads the file when a trial needs it.
namespace at::cuda {
__attribute__((visibility("hidden"))) void *getCurrentCUDABlasHandle() { return nullptr; }
__attribute__((visibility("hidden"))) int warp_size() { return 0; }
}  // namespace at::cuda

namespace {
at::Device cuda(int device) { return at::Device(at::kCUDA, (c10::DeviceIndex)device); }
}  // namespace

extern "C" {

// Loads libtorch's CUDA half, which registers its kernels with the half that is loaded already. To be called before anything
// asks libtorch for CUDA: it remembers the first answer. is_real: 0 where it is an empty placeholder.
int kiln_load_cuda(const char *path, int *is_real) {
  return guarded([&] {
    auto library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    *is_real = dlsym(library, cuda_symbol::WARP_SIZE) != nullptr;
  });
}

// The functions that are looked up by name, by their position from 0: 1 past the last one, else 0 with the function's name and where it
// is, as the places that use it look it up. file: null where there is no such function.
int kiln_cuda_symbol(int at, const char **name, const char **file) {
  if (at < 0 || (size_t)at >= std::size(cuda_symbol::ALL)) return 1;
  *name = cuda_symbol::ALL[at];
  *file = nullptr;
  auto found = dlsym(RTLD_DEFAULT, *name);
  Dl_info place;
  if (found != nullptr) *file = dladdr(found, &place) != 0 && place.dli_fname != nullptr ? place.dli_fname : "";
  return 0;
}

// Seeds the generator of one CUDA device, or of the CPU if `device` is negative, and of no other.
int kiln_seed(int device, uint64_t seed) {
  return guarded([&] {
    auto generator = at::globalContext().defaultGenerator(device < 0 ? at::Device(at::kCPU) : cuda(device));
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  });
}

// `count` values (`number` is 0 for i64, 1 for f32, 2 for bytes) in a buffer [count] of libtorch's own on the host. 2 where there is no
// page-locked memory for it.
int kiln_stage(const void *values, int64_t count, int number, int pinned, Tensor **out) {
  OutsideOfGraphs outside;
  auto kind = number == 0 ? at::kLong : number == 1 ? at::kFloat : at::kByte;
  Tensor host;
  if (guarded([&] { host = at::empty({count}, at::TensorOptions().dtype(kind).pinned_memory(pinned != 0)); }) != 0) return pinned != 0 ? 2 : 1;
  return guarded([&] {
    if (count > 0) std::memcpy(host.data_ptr(), values, host.nbytes());
    give(out, host);
  });
}

// Staged values on a CUDA device. Does not wait for the copy. A pinned buffer goes back to libtorch's host allocator when its tensor
// goes, and that does not hand it out again before the copy is done: copies without waiting record an event with it. From pageable
// memory the driver copies aside before it returns, after a wait for the stream if the buffer is larger than 64 KiB.
int kiln_send(Tensor *host, int device, Tensor **out) {
  OutsideOfGraphs outside;
  return guarded([&] { give(out, host->to(cuda(device), host->scalar_type(), /*non_blocking=*/true)); });
}

// Marks a moment on the current stream of the first CUDA device, once the current streams of the first `devices` have come this far;
// does not wait.
int kiln_record_moment(int devices, c10::Event **moment) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl guard(at::kCUDA);
    auto first = guard.getStream(cuda(0));
    for (int device = 1; device < devices; device++) {
      c10::Event reached(at::kCUDA);
      reached.record(guard.getStream(cuda(device)));
      reached.block(first);
    }
    auto event = std::make_unique<c10::Event>(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    event->record(first);
    *moment = event.release();
  });
}

// Seconds on the device from one moment to a later one; waits for the later one.
int kiln_seconds_between(c10::Event *from, c10::Event *to, double *seconds) {
  return guarded([&] {
    to->synchronize();
    *seconds = from->elapsedTime(*to) / 1e3;
  });
}

// Whether the device has come as far as a moment; does not wait.
int kiln_is_reached(c10::Event *moment, int *is_reached) {
  return guarded([&] { *is_reached = moment->query(); });
}

void kiln_forget_moment(c10::Event *moment) { delete moment; }
}
