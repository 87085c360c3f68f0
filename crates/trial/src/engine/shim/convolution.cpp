// Convolution with what follows it in a residual network, and pooling, by libtorch's own kernels of both directions (cuDNN on CUDA).
#include <ATen/Context.h>

#include "cuda_kernels.h"
#include "shim.h"

namespace {

// Channels side by side: on the CPU twice as fast as channel after channel, on CUDA what tensor cores want (half precision and TF32). The
// weights themselves, and their gradients, stay as they are everywhere else, where kernels walk them side by side.
bool is_side_by_side(const Tensor &tensor, at::ScalarType kind) {
  return tensor.is_cpu() || kind != at::kFloat || at::globalContext().allowTF32CuDNN(at::Float32Op::CONV);
}

// In the dtype and the layout of the convolution, by one copy or none.
Tensor laid_out(const Tensor &tensor, at::ScalarType kind) {
  // Not contiguous(): of one channel it leaves the strides as they are, kernels read from them that channels come first, and so does
  // the convolution's output.
  auto format = is_side_by_side(tensor, kind) ? std::optional<at::MemoryFormat>(at::MemoryFormat::ChannelsLast) : std::nullopt;
  return tensor.to(tensor.options().dtype(kind), /*non_blocking=*/false, /*copy=*/false, format);
}

// The gradient of weights as they are everywhere else, by one copy or none.
Tensor side_after_side(const Tensor &gradient, at::ScalarType kind) {
  return gradient.scalar_type() == kind ? gradient.contiguous() : gradient.to(kind, false, false, at::MemoryFormat::Contiguous);
}

// A strided 1 x 1 convolution looks at every stride-th place alone. With few channels, side by side, the gradient of its weights as
// oneDNN 3.10 computes it on the CPU is wrong and written past its memory (its issue 6035): below 8 channels with AVX2, 16 with AVX-512.
const int64_t FEWEST_CHANNELS = 16;

bool must_be_thinned(const Tensor &image, const Tensor &filter, int64_t stride, int64_t padding) {
  return image.is_cpu() && stride > 1 && padding == 0 && filter.size(2) == 1 && filter.size(3) == 1 && filter.size(1) < FEWEST_CHANNELS;
}

constexpr double EPSILON = 1e-5, MOMENTUM = 0.1;

// Whether the norm of the batch, and what follows it, are made by kernels of kiln's own.
bool has_own_norm(const Tensor &made, const Tensor &running_mean, const Tensor &running_variance) {
  auto is_plain = [](const Tensor &tensor) { return tensor.scalar_type() == at::kFloat && tensor.is_contiguous(); };
  return is_plain(running_mean) && is_plain(running_variance) && cuda_kernels::has_batch_norm(made);
}

struct SavedConvolution : Saved {
  Tensor image, filter;                   // as the convolution read them
  Tensor made, scale, offset;             // the convolution's output; the norm's gain and shift in f32
  Tensor running_mean, running_variance;  // [channels]
  Tensor mean, deviation, reserve;        // what the norm keeps of its batch; with kernels of kiln's own `deviation` is its inverse
  Tensor output;                          // what the rectifier gave; undefined without one
  int64_t norm, stride, padding;
  bool training, relu, has_residual, of_input, thinned, by_kernels;
  std::vector<int64_t> input_sizes;  // of x, before it was thinned
  at::ScalarType input_kind, weight_kind, gain_kind, residual_kind;
  int64_t given_stride;

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto of_output = gradient.to(made.scalar_type()).contiguous(made.suggest_memory_format());
    Tensor of_sum, of_made, of_scale, of_offset;
    if (by_kernels) {
      // With no rectifier the residual's gradient is what came.
      std::tie(of_made, of_scale, of_offset, of_sum) =
          cuda_kernels::batch_norm_backward(of_output, output, made, {mean, deviation}, scale, offset, relu, /*of_residual=*/has_residual && relu);
      if (!relu) of_sum = of_output;
    } else {
      of_sum = relu ? at::threshold_backward(of_output, output, 0) : of_output;
      std::tie(of_made, of_scale, of_offset) =
          at::_batch_norm_impl_index_backward(norm, made, of_sum, scale, running_mean, running_variance, mean, deviation, training, EPSILON,
                                              {true, true, true}, reserve);
    }
    auto [of_image, of_filter, none] = at::convolution_backward(of_made, image, filter, at::OptionalIntArrayRef(), {stride, stride}, {padding, padding},
                                                                {1, 1}, /*transposed=*/false, {0, 0}, /*groups=*/1, {of_input, true, false});
    Tensor of_x;
    if (of_input && thinned) {
      auto whole = at::zeros(input_sizes, of_image.options());
      whole.slice(2, 0, std::nullopt, given_stride).slice(3, 0, std::nullopt, given_stride).copy_(of_image);
      of_x = whole.to(input_kind);
    } else if (of_input) {
      of_x = of_image.to(input_kind);
    }
    std::vector<Tensor> found = {of_x, side_after_side(of_filter, weight_kind), of_scale.to(gain_kind), of_offset.to(gain_kind)};
    if (has_residual) found.push_back(of_sum.to(residual_kind));
    return found;
  }
};

struct SavedMaxPool : Saved {
  Tensor input, places;

  std::vector<Tensor> backward(const Tensor &gradient) override {
    return {at::max_pool2d_with_indices_backward(gradient.to(input.scalar_type()), input, {3, 3}, {2, 2}, {1, 1}, {1, 1}, /*ceil_mode=*/false, places)};
  }
};

}  // namespace

extern "C" {

// relu(norm(convolution of x) + residual), each of the two last where asked for. x [batch, in, height, width], weight [out, in, k, k],
// gain and shift [out], residual as the output or null; the running mean and variance [out] are used in evaluation, moved in
// training. `products` names the dtype of the convolution and of the output; the norm's own numbers are f32 in any case.
int kiln_conv_norm(Tensor *x, Tensor *weight, Tensor *gain, Tensor *shift, Tensor *residual, Tensor *running_mean, Tensor *running_variance,
                   int64_t stride, int64_t padding, int relu, int training, int products, int of_input, Tensor **out, Saved **saved) {
  return guarded([&] {
    OutsideOfGraphs outside;
    auto state = std::make_unique<SavedConvolution>();
    auto kind = product_kind(products, *weight);
    auto image = *x;
    state->thinned = must_be_thinned(image, *weight, stride, padding);
    state->given_stride = stride;
    if (state->thinned) {
      image = image.slice(2, 0, std::nullopt, stride).slice(3, 0, std::nullopt, stride);
      stride = 1;
    }
    state->image = laid_out(image, kind), state->filter = laid_out(*weight, kind);
    state->made = at::convolution(state->image, state->filter, {}, {stride, stride}, {padding, padding}, {1, 1}, /*transposed=*/false, {0, 0}, 1);
    state->scale = gain->to(at::kFloat).contiguous(), state->offset = shift->to(at::kFloat).contiguous();
    state->running_mean = *running_mean, state->running_variance = *running_variance;
    auto &made = state->made;
    state->by_kernels = training != 0 && has_own_norm(made, *running_mean, *running_variance);
    Tensor normed;
    if (state->by_kernels) {
      auto norm = cuda_kernels::batch_statistics(made, *running_mean, *running_variance, EPSILON, MOMENTUM);
      auto added = residual == nullptr ? Tensor() : residual->to(kind).contiguous(made.suggest_memory_format());
      normed = cuda_kernels::batch_norm(made, norm, state->scale, state->offset, added, relu != 0);
      state->mean = norm.mean, state->deviation = norm.inverse;
    } else {
      std::tie(normed, state->mean, state->deviation, state->reserve, state->norm) =
          at::_batch_norm_impl_index(made, state->scale, state->offset, *running_mean, *running_variance, training != 0, MOMENTUM, EPSILON,
                                     /*cudnn_enabled=*/true);
      // Nobody else has the norm's output, so both may write over it, as PyTorch's models do.
      if (residual != nullptr) normed = normed.add_(residual->to(kind));
      if (relu) normed = normed.relu_();
    }
    give(out, normed);
    if (saved == nullptr) return;
    if (relu && (residual != nullptr || !state->by_kernels)) state->output = normed;
    state->stride = stride, state->padding = padding;
    state->training = training != 0, state->relu = relu != 0, state->has_residual = residual != nullptr, state->of_input = of_input != 0;
    state->input_sizes = x->sizes().vec();
    state->input_kind = x->scalar_type(), state->weight_kind = weight->scalar_type(), state->gain_kind = gain->scalar_type();
    if (residual != nullptr) state->residual_kind = residual->scalar_type();
    keep(saved, std::move(state));
  });
}

// The largest of each 3 × 3 piece, every second one: [batch, channels, height, width] to half its height and width.
int kiln_max_pool(Tensor *x, Tensor **out, Saved **saved) {
  return guarded([&] {
    OutsideOfGraphs outside;
    auto state = std::make_unique<SavedMaxPool>();
    Tensor largest;
    std::tie(largest, state->places) = at::max_pool2d_with_indices(*x, {3, 3}, {2, 2}, {1, 1});
    state->input = *x;
    give(out, largest);
    keep(saved, std::move(state));
  });
}
}
