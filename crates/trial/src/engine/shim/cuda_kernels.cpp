// Kernels of kiln's own on CUDA (kernels.cu): compiled by NVRTC for the device when they are first asked for, started through the driver's
// library on libtorch's stream. No CUDA header is needed.
#include "cuda_kernels.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "kernel_names.h"
#include "kernels_on_cpu.h"
#include "nvrtc.h"

namespace {

// The driver's library, as far as it is used here. It is loaded already where there is a GPU.
struct Driver {
  using Module = void *;
  using Function = void *;
  int (*attribute)(int *, int, int);
  int (*load)(Module *, const void *);
  int (*find)(Function *, Module, const char *);
  int (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  int (*context)(void **);
  int (*retain)(void **, int);
  int (*make_current)(void *);
  int (*words_of_error)(int, const char **);

  Driver() {
    auto library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    // A library that was loaded in its stead comes first.
    auto look_up = [&](const char *name) {
      auto function = dlsym(RTLD_DEFAULT, name);
      if (function == nullptr && library != nullptr) function = dlsym(library, name);
      if (function == nullptr) throw std::runtime_error(std::string("the driver has no ") + name);
      return function;
    };
    attribute = (decltype(attribute))look_up("cuDeviceGetAttribute");
    load = (decltype(load))look_up("cuModuleLoadData");
    find = (decltype(find))look_up("cuModuleGetFunction");
    launch = (decltype(launch))look_up("cuLaunchKernel");
    context = (decltype(context))look_up("cuCtxGetCurrent");
    retain = (decltype(retain))look_up("cuDevicePrimaryCtxRetain");
    make_current = (decltype(make_current))look_up("cuCtxSetCurrent");
    words_of_error = (decltype(words_of_error))look_up("cuGetErrorString");
  }

  void expect_success(const char *what, int status) const {
    if (status == 0) return;
    const char *words = nullptr;
    words_of_error(status, &words);
    // "out of memory" in libtorch's words, so that it is known as such.
    throw std::runtime_error(std::string("CUDA error: ") + (words ? words : "unknown") + " in " + what);
  }

  // The CUDA runtime makes its context current in a thread with its first call there, which may have come from this thread or not.
  void enter(int device) const {
    void *current = nullptr;
    if (context(&current) == 0 && current != nullptr) return;
    expect_success("cuDevicePrimaryCtxRetain", retain(&current, device));
    expect_success("cuCtxSetCurrent", make_current(current));
  }
};

const Driver &driver() {
  static const Driver found;
  return found;
}

// Kernels of one dtype on one device.
struct Compiled {
  std::array<Driver::Function, KERNELS> functions{};
  int processors = 0;
  bool is_usable = false;
  // Of blocks that have finished: kernels find and leave them 0. Kernels of one stream run one after the other, and a device has one stream for
  // them. Made before any recording of a CUDA graph, in whose memory they would lie. On the CPU each call has its own.
  Tensor counters;
};

// Where NVRTC is, and the source of the kernels; and why there are none where there are none.
struct Origin {
  std::mutex mutex;
  std::string compiler, source, fault;
};

Origin &origin() {
  static Origin one;
  return one;
}

int number_of(at::ScalarType kind) { return kind == at::kFloat ? 0 : kind == at::kHalf ? 1 : kind == at::kBFloat16 ? 2 : -1; }

// Blocks side by side that counters are there for.
constexpr int64_t MOST_COLUMNS_OF_BLOCKS = 1024;
constexpr int COMPUTE_CAPABILITY_MAJOR = 75, COMPUTE_CAPABILITY_MINOR = 76, MULTIPROCESSOR_COUNT = 16;

// kind: 0 is f32, 1 f16, 2 bf16. architecture: 90 is sm_90.
std::vector<char> compiled_code(int architecture, int kind, const char *compiler, const char *source) {
  auto option = "--gpu-architecture=sm_" + std::to_string(architecture), define = "-DKIND=" + std::to_string(kind);
  return compiled_by_nvrtc(compiler, source, {option.c_str(), define.c_str(), "--std=c++17"});
}

Compiled compiled_for(int device, int kind, const std::string &compiler, const std::string &source) {
  Compiled made;
  int major = 0, minor = 0;
  c10::DeviceGuard guard(at::Device(at::kCUDA, (c10::DeviceIndex)device));
  driver().enter(device);
  driver().expect_success("cuDeviceGetAttribute", driver().attribute(&major, COMPUTE_CAPABILITY_MAJOR, device));
  driver().expect_success("cuDeviceGetAttribute", driver().attribute(&minor, COMPUTE_CAPABILITY_MINOR, device));
  driver().expect_success("cuDeviceGetAttribute", driver().attribute(&made.processors, MULTIPROCESSOR_COUNT, device));
  auto code = compiled_code(major * 10 + minor, kind, compiler.c_str(), source.c_str());
  Driver::Module module = nullptr;
  driver().expect_success("cuModuleLoadData", driver().load(&module, code.data()));
  for (int at = 0; at < KERNELS; at++) driver().expect_success(KERNEL_NAMES[at], driver().find(&made.functions[at], module, KERNEL_NAMES[at]));
  made.counters = at::zeros({MOST_COLUMNS_OF_BLOCKS}, at::TensorOptions(at::Device(at::kCUDA, (c10::DeviceIndex)device)).dtype(at::kInt));
  made.is_usable = true;
  return made;
}

// A kernel that cannot be compiled is no fault of a trial, which libtorch's kernels can train.
const Compiled &kernels_on(int device, int kind) {
  // Never freed: at the end of the process CUDA may be gone before.
  static auto &known = *new std::map<std::pair<int, int>, Compiled>();
  auto &from = origin();
  std::lock_guard<std::mutex> lock(from.mutex);
  static const Compiled none;
  if (from.source.empty()) return none;
  auto [place, is_new] = known.try_emplace({device, kind});
  if (!is_new) return place->second;
  try {
    place->second = compiled_for(device, kind, from.compiler, from.source);
  } catch (const std::exception &error) {
    from.fault = error.what();
  }
  return place->second;
}

// Several blocks for matrices that are not large.
constexpr int PROCESSORS_ON_CPU = 4;

// Those on the CPU, for tests.
const Compiled &kernels_on_cpu_of(int kind) {
  static const auto all = [] {
    std::array<Compiled, 3> made;
    for (int kind = 0; kind < 3; kind++) {
      for (int at = 0; at < KERNELS; at++) made[kind].functions[at] = kernels_on_cpu::find(at, kind);
      made[kind].processors = PROCESSORS_ON_CPU, made[kind].is_usable = true;
    }
    return made;
  }();
  return all[kind];
}

const Compiled &kernels_of(const Tensor &tensor, at::ScalarType kind) {
  return tensor.is_cuda() ? kernels_on(tensor.get_device(), number_of(kind)) : kernels_on_cpu_of(number_of(kind));
}

// Kernels read 16 bytes at a time; a view may begin anywhere.
Tensor beginning_whole(const Tensor &tensor) { return (uintptr_t)tensor.const_data_ptr() % 16 == 0 ? tensor : tensor.clone(); }

template <typename Argument>
auto passed(const Argument &argument) {
  if constexpr (std::is_same_v<Argument, Tensor>)
    return argument.defined() ? argument.data_ptr() : nullptr;
  else
    return argument;
}

// Starts a kernel of the dtype `kind` on the current stream of the device that `on` is on.
template <typename... Arguments>
void start(Kernel kernel, at::ScalarType kind, const Tensor &on, int64_t across, int64_t down, int64_t threads, const Arguments &...arguments) {
  auto function = kernels_of(on, kind).functions[(int)kernel];
  auto values = std::make_tuple(passed(arguments)...);
  if (!on.is_cuda()) {
    auto call = [&] { std::apply([&](auto... value) { ((void (*)(decltype(value)...))function)(value...); }, values); };
    return kernels_on_cpu::run((unsigned)across, (unsigned)down, (unsigned)threads, call);
  }
  c10::DeviceGuard guard(on.device());
  driver().enter(on.get_device());
  auto stream = c10::impl::VirtualGuardImpl(at::kCUDA).getStream(on.device()).native_handle();
  auto places = std::apply([](auto &...value) { return std::array<void *, sizeof...(value)>{(void *)&value...}; }, values);
  driver().expect_success(KERNEL_NAMES[(int)kernel], driver().launch(function, (unsigned)across, (unsigned)down, 1, (unsigned)threads, 1, 1,
                                                                     /*shared=*/0, stream, places.data(), nullptr));
}

constexpr int WARP = 32, MOST_THREADS_OF_A_ROW = 512;
// As in kernels.cu.
constexpr int64_t ACROSS = 16, DOWN = 32, THREADS = ACROSS * DOWN, FOUR = 4;
// Threads of these kernels that a multiprocessor of any GPU has at a time, by their launch bounds: more blocks would wait for others to end.
constexpr int64_t THREADS_PER_PROCESSOR = 1024;

// As in kernels.cu.
enum class Rectifier { NONE, BY_OUTPUT, BY_NORM };

int64_t threads_for(int64_t items, int64_t most) { return std::min(most, std::max<int64_t>((items + WARP - 1) / WARP * WARP, WARP)); }

int64_t blocks_at_a_time(const Compiled &kernels, int64_t threads) { return kernels.processors * (THREADS_PER_PROCESSOR / threads); }

bool is_32_bits(int64_t number) { return number <= std::numeric_limits<int>::max(); }

// How a matrix is divided among blocks: each has ACROSS times four columns and every so many rows.
struct Division {
  int rows, columns;
  int64_t across, down;

  Division(const Tensor &x, int64_t rows, int64_t columns) : rows((int)rows), columns((int)columns) {
    across = (columns / FOUR + ACROSS - 1) / ACROSS;
    auto blocks = blocks_at_a_time(kernels_of(x, x.scalar_type()), THREADS);
    down = std::max<int64_t>(std::min((rows + DOWN - 1) / DOWN, blocks / across), 1);
  }

  static bool fits(const Tensor &x, int64_t rows, int64_t columns) {
    // Kernels count fours and rows in 32 bits, and look some rows ahead.
    return columns > 0 && columns % FOUR == 0 && columns <= MOST_COLUMNS_OF_BLOCKS * ACROSS * FOUR && rows > 0 && is_32_bits(2 * rows) &&
           is_32_bits(rows * (columns / FOUR)) && (uintptr_t)x.const_data_ptr() % 16 == 0;
  }

  // Room for `count` sums of each block and column.
  Tensor parts(const Tensor &x, int64_t count) const { return at::empty({down * count * columns}, x.options().dtype(at::kFloat)); }
};

Tensor counters(const Tensor &on) {
  return on.is_cuda() ? kernels_of(on, on.scalar_type()).counters : at::zeros({MOST_COLUMNS_OF_BLOCKS}, on.options().dtype(at::kInt));
}

Tensor numbers_of(const Tensor &x, int64_t count) { return at::empty({count}, x.options().dtype(at::kFloat)); }

int64_t rows_of(const Tensor &images) { return images.size(0) * images.size(2) * images.size(3); }

}  // namespace

bool has_cuda_kernels(const Tensor &tensor, at::ScalarType kind) {
  bool may_have = tensor.is_cuda() || (takes_cuda_branches(tensor) && kernels_on_cpu::are_wanted());
  return may_have && number_of(kind) >= 0 && kernels_of(tensor, kind).is_usable;
}

namespace cuda_kernels {

std::tuple<Tensor, Tensor> losses(const Tensor &logits, const Tensor &targets, double smoothing) {
  auto rows = logits.size(0), classes = logits.size(1);
  auto found = numbers_of(logits, rows), log_sums = numbers_of(logits, rows);
  auto threads = threads_for(classes / numbers_per_pack(logits.scalar_type()), MOST_THREADS_OF_A_ROW);
  if (rows > 0)
    start(Kernel::loss_forward, logits.scalar_type(), logits, rows, 1, threads, logits, (long long)logits.stride(0), (int)classes, targets,
          (float)smoothing, found, log_sums);
  return {found, log_sums};
}

Tensor of_logits(const Tensor &logits, const Tensor &targets, double smoothing, const Tensor &log_sums, const Tensor &gradient, bool reuse) {
  auto rows = logits.size(0), classes = logits.size(1), stride = logits.stride(0);
  auto whole = reuse ? logits : at::empty({rows, stride}, logits.options());
  auto threads = threads_for(classes / numbers_per_pack(logits.scalar_type()), MOST_THREADS_OF_A_ROW);
  // The last row of what is reused may end with its last class.
  auto columns = reuse ? classes : stride;
  if (rows > 0)
    start(Kernel::loss_backward, logits.scalar_type(), logits, rows, 1, threads, logits, (long long)stride, (int)classes, targets, (float)smoothing,
          log_sums, gradient, whole, (long long)stride, (int)columns);
  return reuse ? logits : whole.narrow(1, 0, classes);
}

bool has_batch_norm(const Tensor &x) {
  return has_cuda_kernels(x, x.scalar_type()) && x.is_contiguous(at::MemoryFormat::ChannelsLast) && Division::fits(x, rows_of(x), x.size(1));
}

BatchNorm batch_statistics(const Tensor &x, const Tensor &running_mean, const Tensor &running_variance, double epsilon, double momentum) {
  Division by(x, rows_of(x), x.size(1));
  BatchNorm norm{numbers_of(x, by.columns), numbers_of(x, by.columns)};
  start(Kernel::norm_statistics, x.scalar_type(), x, by.across, by.down, THREADS, x, by.rows, by.columns, by.parts(x, 2), counters(x), (float)epsilon,
        (float)momentum, norm.mean, norm.inverse, running_mean, running_variance);
  return norm;
}

Tensor batch_norm(const Tensor &x, const BatchNorm &norm, const Tensor &gain, const Tensor &shift, const Tensor &residual, bool relu) {
  Division by(x, rows_of(x), x.size(1));
  auto out = at::empty_like(x), added = residual.defined() ? beginning_whole(residual) : residual;
  start(Kernel::norm_apply, x.scalar_type(), x, by.across, by.down, THREADS, x, added, (int)relu, by.rows, by.columns, norm.mean, norm.inverse, gain,
        shift, out);
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_backward(const Tensor &of_output, const Tensor &output, const Tensor &x, const BatchNorm &norm,
                                                               const Tensor &gain, const Tensor &shift, bool relu, bool of_residual) {
  Division by(x, rows_of(x), x.size(1));
  auto of_gain = numbers_of(x, by.columns), of_shift = numbers_of(x, by.columns), of_x = at::empty_like(x);
  auto of_sum = of_residual ? at::empty_like(x) : Tensor(), gradient = beginning_whole(of_output);
  auto rectifier = (int)(!relu ? Rectifier::NONE : of_residual ? Rectifier::BY_OUTPUT : Rectifier::BY_NORM);
  start(Kernel::norm_backward_sums, x.scalar_type(), x, by.across, by.down, THREADS, gradient, output, x, rectifier, by.rows, by.columns,
        by.parts(x, 2), counters(x), norm.mean, norm.inverse, gain, shift, of_shift, of_gain);
  start(Kernel::norm_backward_apply, x.scalar_type(), x, by.across, by.down, THREADS, gradient, output, x, rectifier, by.rows, by.columns, norm.mean,
        norm.inverse, gain, shift, of_shift, of_gain, of_x, of_sum);
  return {of_x, of_gain, of_shift, of_sum};
}

bool has_column_sums(const Tensor &x) { return has_cuda_kernels(x, x.scalar_type()) && x.is_contiguous() && Division::fits(x, x.size(0), x.size(1)); }

Tensor column_sums(const Tensor &x) {
  Division by(x, x.size(0), x.size(1));
  auto sums = numbers_of(x, by.columns);
  start(Kernel::column_sums, x.scalar_type(), x, by.across, by.down, THREADS, x, by.rows, by.columns, by.parts(x, 1), counters(x), sums);
  return sums;
}

bool has_heads_side_by_side(at::ArrayRef<Tensor> parts) {
  auto &first = parts[0];
  auto width = 3 * first.size(1) * first.size(3), rows = first.size(0) * first.size(2);
  auto is_whole = [&](int64_t stride) { return stride % FOUR == 0; };
  auto is_alike = [&](const Tensor &part) {
    return part.sizes() == first.sizes() && part.strides() == first.strides() && (uintptr_t)part.const_data_ptr() % 16 == 0;
  };
  return has_cuda_kernels(first, first.scalar_type()) && std::all_of(parts.begin(), parts.end(), is_alike) && first.stride(3) == 1 &&
         is_whole(first.size(3)) && is_whole(first.stride(0)) && is_whole(first.stride(1)) && is_whole(first.stride(2)) &&
         Division::fits(first, rows, width);
}

std::tuple<Tensor, Tensor> heads_side_by_side(at::ArrayRef<Tensor> parts) {
  auto &first = parts[0];
  auto batch = first.size(0), heads = first.size(1), time = first.size(2), width = first.size(3);
  Division by(first, batch * time, 3 * heads * width);
  auto out = at::empty({batch, time, by.columns}, first.options()), sums = numbers_of(first, by.columns);
  start(Kernel::heads_side_by_side, first.scalar_type(), first, by.across, by.down, THREADS, parts[0], parts[1], parts[2], (long long)first.stride(0),
        (long long)first.stride(1), (long long)first.stride(2), by.rows, (int)time, (int)heads, (int)width, by.parts(first, 1), counters(first), out,
        sums);
  return {out, sums};
}

bool has_gelu_backward(const Tensor &x) {
  auto columns = x.dim() > 0 ? x.size(-1) : 0, rows = columns > 0 ? x.numel() / columns : 0;
  return has_cuda_kernels(x, x.scalar_type()) && x.is_contiguous() && Division::fits(x, rows, columns);
}

std::tuple<Tensor, Tensor> gelu_backward(const Tensor &gradient, const Tensor &x) {
  Division by(x, x.numel() / x.size(-1), x.size(-1));
  auto of_output = beginning_whole(gradient.contiguous()), of_x = at::empty_like(x), sums = numbers_of(x, by.columns);
  start(Kernel::gelu_backward, x.scalar_type(), x, by.across, by.down, THREADS, of_output, x, by.rows, by.columns, by.parts(x, 1), counters(x), of_x,
        sums);
  return {of_x, sums};
}

// A block has some rows, and a thread four numbers of each.
constexpr int64_t MOST_THREADS = 1024;

// Threads of a block and blocks for the rows of x [.., width].
std::pair<int64_t, int64_t> threads_and_blocks(const Tensor &x, at::ScalarType kind) {
  auto width = x.size(-1), threads = threads_for(width / FOUR, MOST_THREADS);
  return {threads, std::min(x.numel() / width, blocks_at_a_time(kernels_of(x, kind), threads))};
}

bool has_layer_norm(const Tensor &x, const Tensor &gain, const Tensor &shift, at::ScalarType kind) {
  auto is_plain = [](const Tensor &tensor) {
    return tensor.scalar_type() == at::kFloat && tensor.is_contiguous() && (uintptr_t)tensor.const_data_ptr() % 16 == 0;
  };
  auto width = x.size(-1), rows = width > 0 ? x.numel() / width : 0;
  return has_cuda_kernels(x, kind) && is_plain(x) && is_plain(gain) && is_plain(shift) && width % FOUR == 0 && width <= FOUR * MOST_THREADS &&
         rows > 0 && is_32_bits(rows);
}

LayerNorm layer_norm(const Tensor &x, const Tensor &branch, const Tensor &gain, const Tensor &shift, double epsilon, at::ScalarType kind) {
  auto width = x.size(-1), rows = x.numel() / width;
  auto added = branch.defined() ? beginning_whole(branch.contiguous()) : branch;
  auto sum = branch.defined() ? at::empty_like(x) : Tensor();
  auto out = at::empty_like(x, x.options().dtype(kind)), mean = numbers_of(x, rows), inverse = numbers_of(x, rows);
  auto [threads, blocks] = threads_and_blocks(x, kind);
  start(Kernel::layer_norm_forward, kind, x, blocks, 1, threads, x, added, gain, shift, (int)rows, (int)width, (float)epsilon, sum, out, mean,
        inverse);
  return {sum.defined() ? sum : x, mean, inverse, out};
}

LayerNormGradients layer_norm_backward(const Tensor &of_output, const LayerNorm &norm, const Tensor &gain, const Tensor &added, bool narrowed) {
  auto &x = norm.sum;
  auto width = x.size(-1), rows = x.numel() / width;
  auto gradient = beginning_whole(of_output);
  auto kind = gradient.scalar_type();
  auto [threads, blocks] = threads_and_blocks(x, kind);
  auto all = narrowed ? 3 : 2;
  auto of_sum = at::empty_like(x), rounded = narrowed ? at::empty_like(gradient) : Tensor(), parts = numbers_of(x, blocks * all * width);
  auto other = added.defined() ? beginning_whole(as_kind(added, at::kFloat).contiguous()) : added;
  start(Kernel::layer_norm_backward, kind, x, blocks, 1, threads, gradient, x, other, norm.mean, norm.inverse, gain, (int)rows, (int)width, of_sum,
        rounded, parts);
  auto sums = at::empty({all, width}, x.options());
  constexpr int64_t COLUMNS = 32;  // of a block, as in kernels.cu
  start(Kernel::sums_of_parts, kind, x, (all * width + COLUMNS - 1) / COLUMNS, 1, COLUMNS * COLUMNS, parts, (int)blocks, (int)(all * width), sums);
  return {of_sum, sums[0], sums[1], rounded, narrowed ? sums[2] : Tensor()};
}

}  // namespace cuda_kernels

extern "C" {

// From now on kernels are compiled from `source` by the libnvrtc at `compiler`, when they are first asked for.
void kiln_use_cuda_kernels(const char *compiler, const char *source) {
  auto &from = origin();
  std::lock_guard<std::mutex> lock(from.mutex);
  from.compiler = compiler, from.source = source;
}

// Compiles all of them for GPUs of `architecture` (90 is sm_90) with the libnvrtc at `compiler`, as a trial does; bytes of machine code. kind: 0 is
// f32, 1 f16, 2 bf16. Needs no driver.
int kiln_compile_cuda_kernels(const char *compiler, const char *source, int architecture, int kind, int64_t *cubin_bytes) {
  return guarded([&] { *cubin_bytes = (int64_t)compiled_code(architecture, kind, compiler, source).size(); });
}

// Why kernels could not be compiled, in kiln_error(); 0 where none failed.
int kiln_cuda_kernels_fault() {
  auto &from = origin();
  std::lock_guard<std::mutex> lock(from.mutex);
  return from.fault.empty() ? 0 : kiln_failed(from.fault.c_str());
}
}
