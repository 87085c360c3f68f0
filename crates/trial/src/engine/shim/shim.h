// Shared declarations of this shim. Every entry point returns 0, or 1 with the text in kiln_error(): no C++ exception crosses
// into Rust. A `Tensor *` is tch's `C_tensor *`; tensors returned through `Tensor **` are new handles that the caller frees.
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <string>
#include <vector>

using at::Tensor;

// Work that is part of no graph of libtorch's: its dispatcher leaves out the layers that would record it.
struct OutsideOfGraphs {
  c10::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
};

// What an operation is for the stream of a residual network: a sum gives the stream's gradient on, a norm adds what its first input has got of
// its gradient already. The numbers are those of `Role` in kernels.rs.
enum class Role { OTHER, SUM, NORM };

// State that the forward pass of one operation saves for its backward pass, which may run once.
struct Saved {
  virtual ~Saved() = default;
  // Gradients of the inputs that are tensors of numbers, in the order of the forward's arguments; undefined where there is none. `gradient`
  // may come in another dtype than the output's; where that matters it is brought to it first, as libtorch's autograd would.
  virtual std::vector<Tensor> backward(const Tensor &gradient) = 0;
  virtual Role role() const { return Role::OTHER; }
  Tensor added;  // for a NORM; undefined where there is nothing
};

int kiln_failed(const char *text);

// Whether an operation takes the way that is meant for CUDA: it computes there, or kiln_force_cuda_branches() was called on this thread.
bool takes_cuda_branches(const Tensor &tensor);

inline Tensor as_kind(const Tensor &tensor, at::ScalarType kind) { return tensor.scalar_type() == kind ? tensor : tensor.to(kind); }

// Whether MKL's products are slow on this processor.
bool is_slow_in_mkl();
// rows [n, in] weightᵀ + bias: weight [out, in] of any strides, bias [out] or undefined; out [n, out].
Tensor product(const Tensor &rows, const Tensor &weight, const Tensor &bias = {});
// The same without a bias, in this dtype.
Tensor product_as(at::ScalarType kind, const Tensor &rows, const Tensor &weight);
// leftᵀ right in this dtype, contiguous: left [n, a], right [n, b]; out [a, b].
Tensor transposed_product(at::ScalarType kind, const Tensor &left, const Tensor &right);

// Runs `work`, catching what libtorch throws.
template <typename Work>
int guarded(Work work) {
  try {
    work();
    return 0;
  } catch (const c10::Error &error) {
    return kiln_failed(error.what_without_backtrace());
  } catch (const std::exception &error) {
    return kiln_failed(error.what());
  } catch (...) {
    return kiln_failed("an unknown C++ exception");
  }
}

// The dtype of matrix products: 0 that of the weights, 1 bf16, 2 f16. The numbers are those of `Products` in precision.rs.
inline at::ScalarType product_kind(int products, const Tensor &weight) {
  if (products == 1) return at::kBFloat16;
  return products == 2 ? at::kHalf : weight.scalar_type();
}

inline void give(Tensor **place, Tensor value) { *place = new Tensor(std::move(value)); }

inline void keep(Saved **place, std::unique_ptr<Saved> saved) {
  if (place != nullptr) *place = saved.release();
}

inline std::vector<Tensor> listed(Tensor *const *tensors, int count) {
  std::vector<Tensor> list;
  list.reserve(count);
  for (int at = 0; at < count; at++) list.push_back(*tensors[at]);
  return list;
}
