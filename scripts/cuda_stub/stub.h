// A CUDA without a GPU: the functions of the CUDA runtime and driver, cuBLAS, cuDNN and NCCL that libtorch's CUDA half calls, loaded before
// NVIDIA's (LD_PRELOAD). Memory of the device is memory of the host, copies copy, kernels and products do nothing. So libtorch's own code on
// the host runs as on a GPU: which kernels it starts, what it copies, waits for, allocates and captures. Numbers are meaningless.
//
// The device is as slow as CUDA lets it be: work begins when the host waits for it, has looked for it a thousand times, or has 1,024 pieces
// waiting in a stream. A host that writes page-locked memory before the copy from it is done, or touches it before the copy to it is done,
// is a fault. Copies that graphs make, and system calls that touch memory, are not watched.
//
// Calls that CUDA would refuse are refused: copies in the wrong direction, launches that are too large, products and cuDNN's tensors that
// lie outside of the device's memory, and in a capture all that may not be captured. So is what CUDA would do in another way than is meant:
// work on another stream during a capture, which no replay would repeat.
//
// STUB_CUDA_TRACE   a path: each process writes PATH.<pid>, one line per call, tab-separated: its kind and what belongs to it
// STUB_CUDA_MEMORY  bytes of each device (80 GB)
// STUB_CUDA_DEVICES how many there are (1)
// STUB_CUDA_CAPABILITY compute capability of each, times ten (90)
// STUB_CUDA_INSTANT 1: copies and fills of the device's memory do nothing either, and nothing is watched, to measure the host
// STUB_CUDA_CAPTURE a capture, from 1, in which an operation is refused, and which, from 0: 1:15 (none)
// STUB_CUDA_BUS     the PCI bus of the first (129), as NVML knows it
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>

namespace stub {

// One line of the trace.
void trace(const char *kind, const std::string &what = "");
// A call that CUDA would refuse. Returns the code that it would return.
cudaError_t fault(cudaError_t code, const std::string &what);
// printf into a string.
std::string text(const char *format, ...) __attribute__((format(printf, 1, 2)));

int device_count();
// Compute capability, times ten.
int capability();
// Whether all of these bytes are in one piece of a device's memory.
bool on_device(const void *place, size_t bytes);

// Work on a stream: done in its turn, or, if the stream is captured, in each replay.
cudaError_t submit(cudaStream_t stream, const char *kind, const std::string &what, std::function<void()> work = {});
// What launches take for a kernel of this name that no program brought.
void *compiled_kernel(const char *name);
// A call that may not be made during a capture.
cudaError_t outside_of_captures(const char *call);

}  // namespace stub
