// Work on a CUDA device is captured once and replayed: at::cuda::CUDAGraph, found by name in libtorch's CUDA half, which is loaded when a trial
// wants it. No CUDA header is needed. See ATen/cuda/CUDAGraph.h for what each call does.
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "shim.h"
#include "symbols.h"

namespace {
// cudaStreamCaptureMode of the CUDA runtime: calls of other threads do not break this capture.
constexpr unsigned THREAD_LOCAL = 1;

template <typename Function>
Function *found(const char *name) {
  auto function = dlsym(RTLD_DEFAULT, name);
  if (function == nullptr) throw std::runtime_error(std::string("this libtorch has no ") + name + ", which captures work on a GPU");
  return (Function *)function;
}

// A CUDAGraph, in more memory than one needs: its header, and so its size (some 160 bytes), takes CUDA's own headers.
struct Graph {
  alignas(64) unsigned char place[4096] = {};

  Graph() { found<void(void *, bool)>(cuda_symbol::GRAPH_CONSTRUCTOR)(place, /*keep_graph=*/false); }
  ~Graph() { found<void(void *)>(cuda_symbol::GRAPH_DESTRUCTOR)(place); }
  Graph(const Graph &) = delete;
  Graph &operator=(const Graph &) = delete;

  // Captures with one pool share its memory: they are to be replayed in the order in which they were captured.
  void begin(uint64_t pool) {
    using Begin = void(void *, std::pair<unsigned long long, unsigned long long>, unsigned);
    try {
      found<Begin>(cuda_symbol::GRAPH_CAPTURE_BEGIN)(place, {0, pool}, THREAD_LOCAL);
    } catch (...) {
      restore_generator();
      throw;
    }
  }

  void end() {
    auto end = found<void(void *)>(cuda_symbol::GRAPH_CAPTURE_END);
    try {
      end(place);
    } catch (...) {
      if (!ends_empty(end)) restore_generator();
      throw;
    }
  }

  // Where CUDA refuses the end of a capture, libtorch leaves what it has begun: its allocators would keep the memory of all captures and
  // what they have cached, and its generator would draw no more. The end of a capture of nothing leaves nothing behind.
  bool ends_empty(void (*end)(void *)) {
    struct Quiet : c10::WarningHandler {
      void process(const c10::Warning &) override {}  // that the graph is empty
    } quiet;
    c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    try {
      auto begin = found<int(void *, unsigned)>(cuda_symbol::BEGIN_CAPTURE);
      c10::impl::VirtualGuardImpl device(at::kCUDA);
      if (begin(device.getStream(device.getDevice()).native_handle(), THREAD_LOCAL) != 0) return false;
      end(place);
      return true;
    } catch (...) {
      return false;
    }
  }

  // A copy of its state is in no capture.
  static void restore_generator() {
    auto generator = at::globalContext().defaultGenerator(c10::impl::VirtualGuardImpl(at::kCUDA).getDevice());
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.graphsafe_set_state(generator.clone());
  }

  void replay() { found<void(void *)>(cuda_symbol::GRAPH_REPLAY)(place); }
};
}  // namespace

extern "C" {

// From now on, this thread's work on the device runs on its own stream: the default stream cannot be captured.
int kiln_use_side_stream(int device) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl guard(at::kCUDA);
    auto stream = guard.getStreamFromGlobalPool(at::Device(at::kCUDA, (c10::DeviceIndex)device), /*isHighPriority=*/false);
    guard.exchangeStream(stream);
  });
}

// Gives back what the allocator has cached: a capture has memory of its own, and an allocator that runs out during one may not. Waits for the device.
int kiln_empty_cache() {
  return guarded([&] { at::getDeviceAllocator(at::kCUDA)->emptyCache(); });
}

// From now on, work of this thread on its stream is captured instead of executed, until kiln_capture_end.
int kiln_capture_begin(uint64_t pool, Graph **out) {
  return guarded([&] {
    auto graph = std::make_unique<Graph>();
    graph->begin(pool);
    *out = graph.release();
  });
}

int kiln_capture_end(Graph *graph) {
  return guarded([&] { graph->end(); });
}

// Does all that was captured, with what its memory holds now. Does not wait.
int kiln_capture_replay(Graph *graph) {
  return guarded([&] { graph->replay(); });
}

void kiln_capture_forget(Graph *graph) {
  guarded([&] { delete graph; });
}
}
