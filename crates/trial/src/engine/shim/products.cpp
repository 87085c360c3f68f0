// Products of two matrices. On the CPU libtorch has those of f32 from MKL, which uses no AVX-512 on processors that are not Intel's: two
// cores of an AMD EPYC (family 26) make 210 GFLOP/s with it, and 450 with oneDNN, which libtorch has for convolutions.
// No thread that multiplies by oneDNN may handle a signal: see `train/interrupt.rs`.
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <algorithm>

#include "shim.h"

namespace {

// libtorch's linear layer by oneDNN, made for its compiler: x [n, in] wᵀ + b, of tensors with any strides.
using Scalars = c10::List<std::optional<at::Scalar>>;
using OneDnnLinear = Tensor(const Tensor &, const Tensor &, const std::optional<Tensor> &, std::string_view, Scalars,
                            std::optional<std::string_view>);

// That operator, where it is faster than MKL; null elsewhere.
const c10::TypedOperatorHandle<OneDnnLinear> *faster_than_mkl() {
#if defined(__x86_64__)
  static const auto found = []() -> std::optional<c10::TypedOperatorHandle<OneDnnLinear>> {
    if (!is_slow_in_mkl() || !__builtin_cpu_supports("avx512f") || !at::globalContext().userEnabledMkldnn()) return std::nullopt;
    auto schema = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    return schema.has_value() ? std::optional(schema->typed<OneDnnLinear>()) : std::nullopt;
  }();
  return found.has_value() ? &*found : nullptr;
#else
  return nullptr;
#endif
}

// oneDNN needs 10 µs to find the kernel of a size, longer to make it the first time, and packs the weights anew for each product, which few rows
// do not repay.
const int64_t FEWEST_ROWS = 64, FEWEST_COLUMNS = 16, FEWEST_MULTIPLICATIONS = 1 << 22;

bool is_for_one_dnn(const Tensor &rows, const Tensor &weight) {
  auto is_plain = [](const Tensor &tensor) { return tensor.is_cpu() && tensor.scalar_type() == at::kFloat; };
  auto n = rows.size(0), in = rows.size(1), out = weight.size(0);
  return is_plain(rows) && is_plain(weight) && !takes_cuda_branches(rows) && in == weight.size(1) && n >= FEWEST_ROWS &&
         std::min(in, out) >= FEWEST_COLUMNS && n * in * out >= FEWEST_MULTIPLICATIONS && faster_than_mkl() != nullptr;
}

// With gaps in it, or expanded, oneDNN multiplies a matrix by its slow reference (`ref:any` in ONEDNN_VERBOSE=1).
Tensor without_gaps(const Tensor &matrix) { return matrix.is_contiguous() || matrix.t().is_contiguous() ? matrix : matrix.contiguous(); }

// Whether libtorch has products of these narrow rows whose results are in f32: of bf16 from compute capability 8.0 on, as it has cuDNN's
// recurrent layers.
bool can_write_f32(const Tensor &rows) {
  if (!rows.is_cuda()) return false;
  return rows.scalar_type() == at::kHalf || (rows.scalar_type() == at::kBFloat16 && at::detail::getCUDAHooks().supportsBFloat16RNNWithCuDNN());
}

}  // namespace

// Whether MKL's products are slow here: not one of Intel's processors.
bool is_slow_in_mkl() {
#if defined(__x86_64__)
  static const bool is_slow = [] { return __builtin_cpu_init(), !__builtin_cpu_is("intel"); }();
  return is_slow;
#else
  return false;
#endif
}

Tensor product(const Tensor &rows, const Tensor &weight, const Tensor &bias) {
  if (is_for_one_dnn(rows, weight)) {
    auto added = bias.defined() ? std::optional<Tensor>(bias) : std::nullopt;
    return faster_than_mkl()->call(rows, without_gaps(weight), added, "none", Scalars(), std::nullopt);
  }
  return bias.defined() ? at::addmm(bias, rows, weight.t()) : at::mm(rows, weight.t());
}

Tensor product_as(at::ScalarType kind, const Tensor &rows, const Tensor &weight) {
  // Tensor cores add up narrow numbers in f32: cuBLAS writes the sums as they are, and no kernel has to convert what it had rounded.
  if (kind == at::kFloat && can_write_f32(rows)) return at::mm(rows, weight.t(), kind);
  return as_kind(product(rows, weight), kind);
}

Tensor transposed_product(at::ScalarType kind, const Tensor &left, const Tensor &right) {
  auto a = left.t(), b = right.t();
  // The operator copies what is scattered in its first factor. The smaller copy wins, even if the product is to be transposed then.
  if (left.size(1) > 2 * right.size(1) && is_for_one_dnn(b, a)) return product_as(kind, b, a).t().contiguous();
  return product_as(kind, a, b);
}

extern "C" {

// left [n, k] right [k, m], part of no graph.
int kiln_product(Tensor *left, Tensor *right, Tensor **out) {
  return guarded([&] {
    OutsideOfGraphs outside;
    give(out, product(*left, right->t()));
  });
}
}
