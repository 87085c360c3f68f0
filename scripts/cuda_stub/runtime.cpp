// The CUDA runtime: programs, devices, memory, streams, events, captures and graphs.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stub.h"

using namespace stub;

namespace {

std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

int64_t setting(const char *name, int64_t otherwise) {
  auto found = getenv(name);
  return found != nullptr ? atoll(found) : otherwise;
}

// Whether the device's own copies and fills are left out too, which the host would make.
bool takes_no_time() {
  static bool takes_none = setting("STUB_CUDA_INSTANT", 0) != 0;
  return takes_none;
}

const int MOST_DEVICES = 64;
thread_local int device = 0;
thread_local cudaError_t last_error = cudaSuccess;

size_t memory_of_device() {
  static size_t bytes = setting("STUB_CUDA_MEMORY", 80'000'000'000);
  return bytes;
}
int bus_of(int device) { return setting("STUB_CUDA_BUS", 129) + device; }

cudaError_t given(cudaError_t code) {
  if (code != cudaSuccess && code != cudaErrorNotReady) last_error = code;
  return code;
}

// Memory: pieces of a device's and page-locked ones of the host, by their first byte.
struct Piece {
  size_t bytes;
  int device;
  bool is_host;
  // Copies that read and write a page-locked piece and have not been done.
  int readers = 0, writers = 0;
};
std::map<char *, Piece> pieces;
size_t used[MOST_DEVICES];

// With the mutex held.
std::map<char *, Piece>::iterator find_piece(const void *place, size_t bytes) {
  auto at = pieces.upper_bound((char *)place);
  if (at == pieces.begin()) return pieces.end();
  --at;
  return (char *)place + bytes <= at->first + at->second.bytes ? at : pieces.end();
}
const Piece *piece_of(const void *place, size_t bytes) {
  Lock lock(mutex);
  auto at = find_piece(place, bytes);
  return at != pieces.end() ? &at->second : nullptr;
}

const uintptr_t PAGE = 4096;

// The pages come when they are touched, so that a model of real size fits.
void *pages(size_t bytes) {
  auto found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found == MAP_FAILED ? nullptr : found;
}

// Zeros give whole pages back to the system.
void fill(void *place, int value, size_t bytes) {
  auto first = ((uintptr_t)place + PAGE - 1) & ~(PAGE - 1), end = ((uintptr_t)place + bytes) & ~(PAGE - 1);
  if (value != 0 || end <= first) {
    memset(place, value, bytes);
    return;
  }
  memset(place, 0, first - (uintptr_t)place);
  madvise((void *)first, end - first, MADV_DONTNEED);
  memset((void *)end, 0, (uintptr_t)place + bytes - end);
}

struct Capture;
struct Stream;
// A place in a stream's work.
struct Moment {
  Stream *stream;
  bool is_past = false;
  double seconds = 0;
};
struct Work {
  std::function<void()> work;
  // Another stream's, which has to be past.
  std::shared_ptr<Moment> after;
};
struct Stream {
  int device;
  Capture *capture = nullptr;
  // What the device has not begun: it begins as late as CUDA allows.
  std::deque<Work> waiting;
};
struct Event {
  int device;
  bool has_time;
  std::shared_ptr<Moment> moment;
  Capture *capture = nullptr;
};
struct Graph {
  std::vector<std::function<void()>> nodes;
};
struct Capture {
  unsigned long long id;
  cudaStreamCaptureMode mode;
  pid_t thread;
  Graph *graph;
  bool is_valid = true;
};
Stream default_streams[MOST_DEVICES];
std::vector<Stream *> streams;
// Launches that CUDA takes before the next one waits for the device. Source: CUDA C++ Programming Guide 13, "Asynchronous Concurrent Execution".
const size_t MOST_WAITING = 1024;
std::set<Capture *> captures;
thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

bool is_default(cudaStream_t stream) { return (uintptr_t)stream <= 2; }
Stream *of(cudaStream_t stream) { return is_default(stream) ? &default_streams[device] : (Stream *)stream; }

void do_next(Stream *stream);

// Waits for all of a stream's work, or for a moment of it.
void finish(Stream *stream, const Moment *until = nullptr) {
  while (!stream->waiting.empty() && (until == nullptr || !until->is_past)) do_next(stream);
}
void do_next(Stream *stream) {
  auto next = std::move(stream->waiting.front());
  stream->waiting.pop_front();
  if (next.after != nullptr) finish(next.after->stream, next.after.get());
  if (next.work) next.work();
}
void finish_device(int device) {
  finish(&default_streams[device]);
  for (auto stream : streams)
    if (stream->device == device) finish(stream);
}
void finish_all() {
  for (int device = 0; device < device_count(); device++) finish_device(device);
}
// A host that looks again and again sees the device get on.
cudaError_t not_ready(Stream *stream) {
  static int looks = 0;
  if (++looks % 1000 == 0) do_next(stream);
  return cudaErrorNotReady;
}
void enqueue(Stream *stream, Work work) {
  stream->waiting.push_back(std::move(work));
  if (stream->waiting.size() > MOST_WAITING) do_next(stream);
}

bool captures_here() {
  return std::any_of(captures.begin(), captures.end(), [](auto capture) { return capture->thread == gettid(); });
}

cudaError_t invalid(Capture *capture, cudaError_t code, const std::string &what) {
  capture->is_valid = false;
  return fault(code, what);
}

// Programs: kernels by the address of their function on the host.
std::unordered_map<const void *, std::string> kernels;
std::unordered_map<const void *, size_t> shared_of_kernel;
std::unordered_map<const void *, std::pair<void *, size_t>> variables;
struct Launch {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Launch> launches;
const size_t SHARED = 48 << 10;

// Shared memory that a block may ask for. Source: CUDA C++ Programming Guide 13, "Compute Capabilities".
size_t most_shared() {
  switch (capability()) {
    case 75: return 64 << 10;
    case 80:
    case 87: return 163 << 10;
    case 86:
    case 89:
    case 120: return 99 << 10;
    default: return 227 << 10;
  }
}

cudaError_t launch(const void *function, const Launch &size) {
  Lock lock(mutex);
  auto known = kernels.find(function);
  if (known == kernels.end()) return fault(cudaErrorInvalidDeviceFunction, "a kernel that no program has");
  auto &[grid, block, shared, stream] = size;
  auto allowed = shared_of_kernel.count(function) != 0 ? shared_of_kernel[function] : SHARED;
  uint64_t threads = (uint64_t)block.x * block.y * block.z;
  bool fits = grid.x > 0 && grid.y > 0 && grid.z > 0 && threads > 0 && threads <= 1024 && block.z <= 64 && grid.x <= 2147483647u && grid.y <= 65535 &&
              grid.z <= 65535 && shared <= allowed;
  if (!fits)
    return fault(cudaErrorInvalidConfiguration, text("%s: grid %u %u %u, block %u %u %u, %zu bytes of %zu shared", known->second.c_str(), grid.x, grid.y,
                                                     grid.z, block.x, block.y, block.z, shared, allowed));
  return submit(stream, "kernel", known->second);
}

const char *kind_of(const Piece *piece) { return piece == nullptr ? "pageable" : piece->is_host ? "pinned" : "device"; }

// The host may not write what is to be copied from its page-locked memory, nor touch what is to be copied there.
void protect(char *first, const Piece &piece, bool is_open = false) {
  if (takes_no_time() || (uintptr_t)first % PAGE != 0) return;
  auto allowed = is_open || piece.readers + piece.writers == 0 ? PROT_READ | PROT_WRITE : piece.writers > 0 ? PROT_NONE : PROT_READ;
  if (mprotect(first, piece.bytes, allowed) != 0) perror("mprotect"), abort();
}
// Copies more or fewer from and to a place on the host; with the mutex held.
void hold(const void *place, int readers, int writers) {
  auto at = find_piece(place, 1);
  if (at == pieces.end() || !at->second.is_host) return;
  at->second.readers += readers, at->second.writers += writers;
  protect(at->first, at->second);
}
void unprotect(const void *place) {
  auto at = find_piece(place, 1);
  if (at != pieces.end() && at->second.is_host) protect(at->first, at->second, /*is_open=*/true);
}

struct sigaction handler_before;
void on_touch(int number, siginfo_t *signal, void *context) {
  {
    Lock lock(mutex);
    auto at = find_piece(signal->si_addr, 1);
    if (at != pieces.end() && at->second.is_host) {
      // Another thread may have waited for the copy since.
      trace("fault", at->second.readers > 0 && at->second.writers == 0 ? "the host writes page-locked memory before the copy from it is done"
                                                                       : "the host touches page-locked memory before the copy to it is done");
      return protect(at->first, at->second, /*is_open=*/true);
    }
  }
  if ((handler_before.sa_flags & SA_SIGINFO) != 0) return handler_before.sa_sigaction(number, signal, context);
  sigaction(SIGSEGV, &handler_before, nullptr);
}
void watch_touches() {
  static bool is_set = [] {
    struct sigaction handler = {};
    handler.sa_sigaction = on_touch, handler.sa_flags = SA_SIGINFO | SA_ONSTACK;
    return sigaction(SIGSEGV, &handler, &handler_before) == 0;
  }();
  if (!is_set) perror("sigaction"), abort();
}

// Losses that no kernel has computed are what the memory held before. One that is no number would end the trial.
const size_t MOST_OF_LOSSES = 256;
void without_nan(float *numbers, size_t count) {
  for (size_t at = 0; at < count; at++)
    if (numbers[at] != numbers[at]) numbers[at] = 0;
}

cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  Lock lock(mutex);
  auto source = piece_of(from, bytes), target = piece_of(to, bytes);
  bool from_device = source != nullptr && !source->is_host, to_device = target != nullptr && !target->is_host;
  auto what = text("%s\t%s\t%zu", kind_of(source), kind_of(target), bytes);
  bool should_come = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  bool should_go = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault && (from_device != should_come || to_device != should_go))
    return fault(cudaErrorInvalidValue, text("a copy of kind %d: %s", (int)kind, what.c_str()));
  // libtorch asks for page-locked memory there; CUDA would read the host's memory of now in each replay.
  if (of(stream)->capture != nullptr && (source == nullptr || target == nullptr))
    return invalid(of(stream)->capture, cudaErrorStreamCaptureUnsupported, "a captured copy: " + what);
  if (from_device && to_device && takes_no_time()) return submit(stream, "copy", what);
  if (of(stream)->capture != nullptr || (from_device && to_device)) return submit(stream, "copy", what, [=] { memmove(to, from, bytes); });
  // Source of what CUDA does with pageable memory: CUDA Runtime API 13, "API synchronization behavior".
  if (source == nullptr && to_device && bytes <= 64 << 10) {
    auto aside = std::make_shared<std::string>((const char *)from, bytes);
    return submit(stream, "copy", what, [=] { memcpy(to, aside->data(), bytes); });
  }
  auto code = submit(stream, "copy", what, [=] {
    unprotect(from), unprotect(to);
    memmove(to, from, bytes);
    if (from_device && !to_device && bytes <= MOST_OF_LOSSES) without_nan((float *)to, bytes / sizeof(float));
    hold(from, -1, 0), hold(to, 0, -1);
  });
  if (code != cudaSuccess) return code;
  hold(from, 1, 0), hold(to, 0, 1);
  if (source == nullptr || target == nullptr) finish(of(stream));
  return cudaSuccess;
}

bool is_refused(const Capture &capture) {
  static unsigned long long of = 0;
  static size_t at = 0;
  static bool is_set = [] {
    auto words = getenv("STUB_CUDA_CAPTURE");
    return words != nullptr && sscanf(words, "%llu:%zu", &of, &at) == 2;
  }();
  return is_set && capture.id == of && capture.graph->nodes.size() == at;
}

FILE *trace_file() {
  static FILE *file = [] {
    auto path = getenv("STUB_CUDA_TRACE");
    return path != nullptr && *path != 0 ? fopen(text("%s.%d", path, getpid()).c_str(), "w") : nullptr;
  }();
  return file;
}

}  // namespace

namespace stub {

std::string text(const char *format, ...) {
  va_list values;
  va_start(values, format);
  char *made = nullptr;
  auto length = vasprintf(&made, format, values);
  va_end(values);
  std::string found(length < 0 ? "" : made);
  free(made);
  return found;
}

void trace(const char *kind, const std::string &what) {
  Lock lock(mutex);
  auto file = trace_file();
  if (file == nullptr) return;
  fprintf(file, "%s\t%s\n", kind, what.c_str());
  // A process may end without its C library's farewell.
  fflush(file);
}

cudaError_t fault(cudaError_t code, const std::string &what) {
  trace("fault", what);
  return given(code);
}

void *compiled_kernel(const char *name) {
  static std::set<std::string> names;
  Lock lock(mutex);
  auto known = names.insert(name).first;
  kernels[known->c_str()] = *known;
  return (void *)known->c_str();
}

int capability() {
  static int found = setting("STUB_CUDA_CAPABILITY", 90);
  return found;
}

int device_count() {
  static int count = std::min<int64_t>(setting("STUB_CUDA_DEVICES", 1), MOST_DEVICES);
  return count;
}

bool on_device(const void *place, size_t bytes) {
  auto piece = piece_of(place, bytes);
  return piece != nullptr && !piece->is_host;
}

cudaError_t submit(cudaStream_t stream, const char *kind, const std::string &what, std::function<void()> work) {
  Lock lock(mutex);
  auto capture = of(stream)->capture;
  if (capture != nullptr) {
    if (!capture->is_valid) return given(cudaErrorStreamCaptureInvalidated);
    if (is_refused(*capture)) return invalid(capture, cudaErrorStreamCaptureUnsupported, "an operation that may not be captured");
    capture->graph->nodes.push_back(work);
    trace("captured", std::string(kind) + "\t" + what);
    return cudaSuccess;
  }
  if (captures_here()) return fault(cudaErrorStreamCaptureImplicit, std::string(kind) + " on another stream during a capture: " + what);
  trace(kind, what);
  enqueue(of(stream), {std::move(work), nullptr});
  return cudaSuccess;
}

cudaError_t outside_of_captures(const char *call) {
  Lock lock(mutex);
  if (mode_of_thread == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  for (auto capture : captures) {
    bool is_own = capture->thread == gettid() && capture->mode != cudaStreamCaptureModeRelaxed;
    bool is_everyones = capture->mode == cudaStreamCaptureModeGlobal && mode_of_thread == cudaStreamCaptureModeGlobal;
    if (is_own || is_everyones) return invalid(capture, cudaErrorStreamCaptureUnsupported, std::string(call) + " during a capture");
  }
  return cudaSuccess;
}

}  // namespace stub

#define OUTSIDE_OF_CAPTURES(call) \
  if (auto refused = outside_of_captures(call)) return refused

extern "C" {

// --- Programs -------------------------------------------------------------------------------------------------------------------------

void **__cudaRegisterFatBinary(void *) {
  static void *handle[4];
  return handle;
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterFunction(void **, const char *host, char *, const char *name, int, void *, void *, void *, void *, int *) {
  Lock lock(mutex);
  kernels[host] = name;
}
void __cudaRegisterVar(void **, char *host, char *, const char *, int, size_t bytes, int, int) {
  Lock lock(mutex);
  variables[host] = {nullptr, bytes};
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  launches.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  auto &last = launches.back();
  *grid = last.grid, *block = last.block, *shared = last.shared, *(cudaStream_t *)stream = last.stream;
  launches.pop_back();
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **, size_t shared, cudaStream_t stream) {
  return launch(kernel, {grid, block, shared, stream});
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **, size_t shared, cudaStream_t stream) {
  return launch(function, {grid, block, shared, stream});
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *size, const void *function, void **) {
  return launch(function, {size->gridDim, size->blockDim, size->dynamicSmemBytes, size->stream});
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *found, const void *) {
  memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024, found->numRegs = 32, found->ptxVersion = found->binaryVersion = capability();
  found->maxDynamicSharedSizeBytes = SHARED;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || (size_t)value > most_shared()) return fault(cudaErrorInvalidValue, text("%d bytes of shared memory", value));
  Lock lock(mutex);
  shared_of_kernel[function] = value;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *, int threads, size_t, unsigned) {
  *count = std::clamp(2048 / std::max(threads, 1), 1, 32);
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void **place, const void *symbol) {
  Lock lock(mutex);
  auto &[memory, bytes] = variables[symbol];
  if (memory == nullptr) memory = pages(std::max<size_t>(bytes, 1)), pieces[(char *)memory] = {std::max<size_t>(bytes, 1), device, false};
  *place = memory;
  return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, cudaMemcpyKind) {
  void *place;
  cudaGetSymbolAddress(&place, symbol);
  memcpy((char *)place + offset, from, bytes);
  return cudaSuccess;
}

// --- Devices --------------------------------------------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int *count) {
  *count = device_count();
  return *count > 0 ? cudaSuccess : given(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int *found) {
  *found = device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int wanted) {
  if (wanted < 0 || wanted >= device_count()) return fault(cudaErrorInvalidDevice, text("device %d of %d", wanted, device_count()));
  device = wanted;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
// Those that libtorch reads, of an H100 (NVIDIA H100 Tensor Core GPU Architecture, 2022, tables 2 and 3), but for what it asks of the
// compute capability.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *found, int of_device) {
  if (of_device < 0 || of_device >= device_count()) return fault(cudaErrorInvalidDevice, text("properties of device %d", of_device));
  memset(found, 0, sizeof *found);
  snprintf(found->name, sizeof found->name, "stub without a GPU");
  found->uuid.bytes[15] = of_device;
  found->totalGlobalMem = memory_of_device(), found->totalConstMem = 64 << 10, found->memPitch = INT32_MAX;
  found->major = capability() / 10, found->minor = capability() % 10, found->multiProcessorCount = 132, found->warpSize = 32, found->l2CacheSize = 50 << 20;
  found->sharedMemPerBlock = SHARED, found->sharedMemPerBlockOptin = most_shared(), found->sharedMemPerMultiprocessor = most_shared() + 1024;
  found->regsPerBlock = found->regsPerMultiprocessor = 65536, found->maxThreadsPerMultiProcessor = 2048, found->maxBlocksPerMultiProcessor = 32;
  found->maxThreadsPerBlock = found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024, found->maxThreadsDim[2] = 64;
  found->maxGridSize[0] = INT32_MAX, found->maxGridSize[1] = found->maxGridSize[2] = 65535;
  found->textureAlignment = 512, found->memoryBusWidth = 5120, found->asyncEngineCount = 3, found->pciBusID = bus_of(of_device);
  found->canMapHostMemory = found->concurrentKernels = found->unifiedAddressing = found->managedMemory = found->cooperativeLaunch = 1;
  found->streamPrioritiesSupported = found->memoryPoolsSupported = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int of_device) {
  cudaDeviceProp all;
  if (auto refused = cudaGetDeviceProperties(&all, of_device)) return refused;
  static const std::map<int, std::function<int(const cudaDeviceProp &)>> KNOWN = {
      {cudaDevAttrMaxThreadsPerBlock, [](auto &all) { return all.maxThreadsPerBlock; }},
      {cudaDevAttrMaxGridDimX, [](auto &all) { return all.maxGridSize[0]; }},
      {cudaDevAttrMaxGridDimY, [](auto &all) { return all.maxGridSize[1]; }},
      {cudaDevAttrMaxGridDimZ, [](auto &all) { return all.maxGridSize[2]; }},
      {cudaDevAttrMaxSharedMemoryPerBlock, [](auto &all) { return (int)all.sharedMemPerBlock; }},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, [](auto &all) { return (int)all.sharedMemPerBlockOptin; }},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, [](auto &all) { return (int)all.sharedMemPerMultiprocessor; }},
      {cudaDevAttrMaxThreadsPerMultiProcessor, [](auto &all) { return all.maxThreadsPerMultiProcessor; }},
      {cudaDevAttrMaxRegistersPerBlock, [](auto &all) { return all.regsPerBlock; }},
      {cudaDevAttrMultiProcessorCount, [](auto &all) { return all.multiProcessorCount; }},
      {cudaDevAttrWarpSize, [](auto &all) { return all.warpSize; }},
      {cudaDevAttrComputeCapabilityMajor, [](auto &all) { return all.major; }},
      {cudaDevAttrComputeCapabilityMinor, [](auto &all) { return all.minor; }},
      {cudaDevAttrUnifiedAddressing, [](auto &all) { return all.unifiedAddressing; }},
      {cudaDevAttrCooperativeLaunch, [](auto &all) { return all.cooperativeLaunch; }},
      {cudaDevAttrMemoryPoolsSupported, [](auto &all) { return all.memoryPoolsSupported; }},
  };
  auto known = KNOWN.find(attribute);
  if (known == KNOWN.end()) trace("unknown", text("device attribute %d", (int)attribute));
  *value = known == KNOWN.end() ? 0 : known->second(all);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *found, int room, int of_device) {
  snprintf(found, room, "0000:%02X:00.0", bus_of(of_device));
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) {
  *can = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0, *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  OUTSIDE_OF_CAPTURES("cudaDeviceSynchronize");
  Lock lock(mutex);
  finish_device(device);
  trace("wait", "device");
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

// --- Memory ---------------------------------------------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void **place, size_t bytes) {
  OUTSIDE_OF_CAPTURES("cudaMalloc");
  Lock lock(mutex);
  if (used[device] + bytes > memory_of_device() || (*place = pages(bytes)) == nullptr) {
    trace("out of memory", std::to_string(bytes));
    return given(cudaErrorMemoryAllocation);
  }
  used[device] += bytes, pieces[(char *)*place] = {bytes, device, false};
  trace("allocate", std::to_string(bytes));
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **place, size_t bytes, unsigned) {
  OUTSIDE_OF_CAPTURES("cudaHostAlloc");
  Lock lock(mutex);
  if ((*place = pages(bytes)) == nullptr) return given(cudaErrorMemoryAllocation);
  watch_touches();
  pieces[(char *)*place] = {bytes, device, true};
  return cudaSuccess;
}
static cudaError_t give_back(void *place, const char *call) {
  if (place == nullptr) return cudaSuccess;
  OUTSIDE_OF_CAPTURES(call);
  Lock lock(mutex);
  finish_all();
  auto found = pieces.find((char *)place);
  if (found == pieces.end()) return fault(cudaErrorInvalidValue, std::string(call) + " of memory that was not allocated");
  auto piece = found->second;
  if (!piece.is_host) used[piece.device] -= piece.bytes, trace("free", std::to_string(piece.bytes));
  pieces.erase(found);
  munmap(place, piece.bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void *place) { return give_back(place, "cudaFree"); }
cudaError_t cudaFreeHost(void *place) { return give_back(place, "cudaFreeHost"); }
cudaError_t cudaHostRegister(void *place, size_t bytes, unsigned) {
  Lock lock(mutex);
  pieces[(char *)place] = {bytes, device, true};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *place) {
  Lock lock(mutex);
  pieces.erase((char *)place);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  *total = memory_of_device(), *free = *total - used[device];
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *found, const void *place) {
  memset(found, 0, sizeof *found);
  auto piece = piece_of(place, 1);
  found->type = piece == nullptr ? cudaMemoryTypeUnregistered : piece->is_host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  found->device = piece == nullptr ? cudaInvalidDeviceId : piece->device;
  found->devicePointer = (void *)place, found->hostPointer = piece != nullptr && piece->is_host ? (void *)place : nullptr;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy(to, from, bytes, kind, stream);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream) {
  return copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
  OUTSIDE_OF_CAPTURES("cudaMemcpy");
  trace("wait", "copy");
  auto code = copy(to, from, bytes, kind, nullptr);
  Lock lock(mutex);
  finish(of(nullptr));
  return code;
}
cudaError_t cudaMemsetAsync(void *place, int value, size_t bytes, cudaStream_t stream) {
  if (!on_device(place, bytes)) return fault(cudaErrorInvalidValue, text("%zu bytes are set outside of the device's memory", bytes));
  if (takes_no_time()) return submit(stream, "fill", std::to_string(bytes));
  return submit(stream, "fill", std::to_string(bytes), [=] { fill(place, value, bytes); });
}
cudaError_t cudaMemset(void *place, int value, size_t bytes) {
  OUTSIDE_OF_CAPTURES("cudaMemset");
  return cudaMemsetAsync(place, value, bytes, nullptr);
}

// --- Streams and events ---------------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) {
  Lock lock(mutex);
  streams.push_back(new Stream{device});
  *stream = (cudaStream_t)streams.back();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (of(stream)->capture != nullptr) return invalid(of(stream)->capture, cudaErrorStreamCaptureUnsupported, "a query of a captured stream");
  OUTSIDE_OF_CAPTURES("cudaStreamQuery");
  Lock lock(mutex);
  return of(stream)->waiting.empty() ? cudaSuccess : not_ready(of(stream));
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (of(stream)->capture != nullptr) return invalid(of(stream)->capture, cudaErrorStreamCaptureUnsupported, "a wait for a captured stream");
  OUTSIDE_OF_CAPTURES("cudaStreamSynchronize");
  Lock lock(mutex);
  finish(of(stream));
  trace("wait", "stream");
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void *data, unsigned) {
  return submit(stream, "callback", "", [=] { call(stream, cudaSuccess, data); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  *event = (cudaEvent_t) new Event{device, (flags & cudaEventDisableTiming) == 0};
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete (Event *)event;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned) {
  Lock lock(mutex);
  auto event = (Event *)handle;
  if (!is_default(stream) && event->device != of(stream)->device)
    return fault(cudaErrorInvalidResourceHandle, text("an event of device %d on a stream of device %d", event->device, of(stream)->device));
  event->capture = of(stream)->capture;
  trace("event");
  auto moment = event->moment = std::make_shared<Moment>(Moment{of(stream)});
  if (event->capture != nullptr) return moment->is_past = true, cudaSuccess;
  enqueue(of(stream), {[=] {
    moment->is_past = true;
    moment->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }, nullptr});
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }
cudaError_t cudaEventQuery(cudaEvent_t event) {
  auto capture = ((Event *)event)->capture;
  if (capture != nullptr && captures.count(capture) != 0) return invalid(capture, cudaErrorCapturedEvent, "a query of a captured event");
  OUTSIDE_OF_CAPTURES("cudaEventQuery");
  Lock lock(mutex);
  auto moment = ((Event *)event)->moment;
  return moment == nullptr || moment->is_past ? cudaSuccess : not_ready(moment->stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  auto capture = ((Event *)event)->capture;
  if (capture != nullptr && captures.count(capture) != 0) return invalid(capture, cudaErrorCapturedEvent, "a wait for a captured event");
  OUTSIDE_OF_CAPTURES("cudaEventSynchronize");
  Lock lock(mutex);
  bool goes_on = false;
  if (auto moment = ((Event *)event)->moment) {
    finish(moment->stream, moment.get());
    goes_on = !moment->stream->waiting.empty();
  }
  // The device has work behind an earlier event, so this wait costs it nothing.
  trace("wait", goes_on ? "earlier event" : "event");
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
  auto first = (Event *)from, second = (Event *)to;
  if (!first->has_time || !second->has_time || first->moment == nullptr || second->moment == nullptr)
    return fault(cudaErrorInvalidResourceHandle, "the time between events that have none");
  if (first->capture != nullptr || second->capture != nullptr) return fault(cudaErrorCapturedEvent, "the time between captured events");
  if (!first->moment->is_past || !second->moment->is_past) return fault(cudaErrorNotReady, "the time between events that are not past");
  *milliseconds = (second->moment->seconds - first->moment->seconds) * 1e3;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
  Lock lock(mutex);
  auto event = (Event *)handle;
  auto capture = of(stream)->capture;
  bool is_captured = event->capture != nullptr && captures.count(event->capture) != 0;
  if (is_captured) of(stream)->capture = event->capture;
  if (!is_captured && capture != nullptr && event->moment != nullptr)
    return invalid(capture, cudaErrorStreamCaptureIsolation, "a captured stream waits for an event from before the capture");
  if (!is_captured && event->moment != nullptr && !event->moment->is_past) enqueue(of(stream), {{}, event->moment});
  return cudaSuccess;
}

// --- Captures and graphs --------------------------------------------------------------------------------------------------------------

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
  std::swap(*mode, mode_of_thread);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  Lock lock(mutex);
  if (is_default(stream)) return fault(cudaErrorStreamCaptureUnsupported, "a capture of the default stream");
  static unsigned long long ids = 0;
  of(stream)->capture = new Capture{++ids, mode, gettid(), new Graph};
  captures.insert(of(stream)->capture);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  Lock lock(mutex);
  *graph = nullptr;
  auto capture = std::exchange(of(stream)->capture, nullptr);
  if (capture == nullptr) return fault(cudaErrorIllegalState, "the end of a capture that was not begun");
  if (capture->thread != gettid()) return fault(cudaErrorStreamCaptureWrongThread, "a capture ends on another thread");
  captures.erase(capture);
  if (!capture->is_valid) return given(cudaErrorStreamCaptureInvalidated);
  *graph = (cudaGraph_t)capture->graph;
  trace("capture", std::to_string(capture->graph->nodes.size()));
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **before, const cudaGraphEdgeData **edges, size_t *count) {
  auto capture = of(stream)->capture;
  *status = capture == nullptr ? cudaStreamCaptureStatusNone : capture->is_valid ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
  if (id != nullptr) *id = capture == nullptr ? 0 : capture->id;
  if (graph != nullptr) *graph = capture == nullptr ? nullptr : (cudaGraph_t)capture->graph;
  if (before != nullptr) *before = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
  return cudaStreamGetCaptureInfo(stream, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *, size_t *count) {
  *count = ((Graph *)graph)->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t *, cudaGraphEdgeData *, size_t *count) {
  *count = 0;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long) {
  OUTSIDE_OF_CAPTURES("cudaGraphInstantiateWithFlags");
  // A replay that has not begun keeps it.
  *made = (cudaGraphExec_t) new std::shared_ptr<Graph>(new Graph(*(Graph *)graph));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t made, cudaStream_t stream) {
  auto graph = *(std::shared_ptr<Graph> *)made;
  return submit(stream, "graph", std::to_string(graph->nodes.size()), [=] {
    for (auto &node : graph->nodes)
      if (node) node();
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete (Graph *)graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t made) {
  delete (std::shared_ptr<Graph> *)made;
  return cudaSuccess;
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char *, unsigned) { return cudaSuccess; }
}
