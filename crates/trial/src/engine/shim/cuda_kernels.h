// Kernels of kiln's own on CUDA (kernels.cu). Every function takes contiguous tensors of one CUDA device, gives new ones, and may be called only
// where `has_cuda_kernels` says that there are kernels.
#pragma once
#include <tuple>

#include "shim.h"

// Whether kernels for numbers of this dtype run on this tensor's device: they are compiled when they are first asked for.
bool has_cuda_kernels(const Tensor &tensor, at::ScalarType kind);

// Numbers side by side that kernels read at a time: rows begin at multiples of so many.
inline int64_t numbers_per_pack(at::ScalarType kind) { return 16 / (int64_t)at::elementSize(kind); }

namespace cuda_kernels {

// Cross entropies [n] and logarithms of the sums of exponentials [n], f32, of logits [n, classes], whose rows may be apart, and targets [n].
std::tuple<Tensor, Tensor> losses(const Tensor &logits, const Tensor &targets, double smoothing);
// The gradient of the logits for the sum of those losses, whose gradient is `gradient`, f32. With `reuse` in the logits' memory.
Tensor of_logits(const Tensor &logits, const Tensor &targets, double smoothing, const Tensor &log_sums, const Tensor &gradient, bool reuse);

// x [batch, channels, height, width], channels side by side; the other numbers [channels] in f32.
struct BatchNorm {
  Tensor mean, inverse;  // of the batch; inverse of the deviation
};
bool has_batch_norm(const Tensor &x);
BatchNorm batch_statistics(const Tensor &x, const Tensor &running_mean, const Tensor &running_variance, double epsilon, double momentum);
// relu(norm of x + residual), the two where asked for: `residual` may be undefined.
Tensor batch_norm(const Tensor &x, const BatchNorm &norm, const Tensor &gain, const Tensor &shift, const Tensor &residual, bool relu);
// Gradients of x, gain, shift, and of the residual if it is wanted. A rectifier's output is needed only where a residual was added before it.
std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_backward(const Tensor &of_output, const Tensor &output, const Tensor &x, const BatchNorm &norm,
                                                               const Tensor &gain, const Tensor &shift, bool relu, bool of_residual);

// Sums over the rows of x [rows, columns], f32.
bool has_column_sums(const Tensor &x);
Tensor column_sums(const Tensor &x);

// Three tensors [batch, heads, time, head_width] as [batch, time, 3 × heads × head_width], and its sums over batch and time, f32.
bool has_heads_side_by_side(at::ArrayRef<Tensor> parts);
std::tuple<Tensor, Tensor> heads_side_by_side(at::ArrayRef<Tensor> parts);

// The gradient of x [.., columns] for `gradient`, that of its Gaussian error linear unit, and its sums over all axes but the last, f32.
bool has_gelu_backward(const Tensor &x);
std::tuple<Tensor, Tensor> gelu_backward(const Tensor &gradient, const Tensor &x);

// Layer norm of x [.., width], f32, in this dtype; of x + branch, if `branch` is defined, which has this dtype.
struct LayerNorm {
  Tensor sum;            // what was normed: x, or the sum
  Tensor mean, inverse;  // of each row; inverse of the deviation
  Tensor normed;
};
bool has_layer_norm(const Tensor &x, const Tensor &gain, const Tensor &shift, at::ScalarType kind);
LayerNorm layer_norm(const Tensor &x, const Tensor &branch, const Tensor &gain, const Tensor &shift, double epsilon, at::ScalarType kind);
struct LayerNormGradients {
  Tensor of_sum, of_gain, of_shift;  // f32
  Tensor narrowed;                   // of_sum in the dtype of the output's gradient, where it is wanted
  Tensor sums;                       // of the rows of that, f32
};
// `added` is what else the sum has got of a gradient, or undefined.
LayerNormGradients layer_norm_backward(const Tensor &of_output, const LayerNorm &norm, const Tensor &gain, const Tensor &added, bool narrowed);

}  // namespace cuda_kernels
