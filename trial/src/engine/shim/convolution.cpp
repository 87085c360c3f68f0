// Convolution with what follows it in a residual network, and pooling, by libtorch's own kernels (cuDNN on CUDA). Their backward pass
// is libtorch's autograd over a graph of these operations, which is freed with it.
#include "graph.h"

namespace {

// Channels side by side: on the CPU twice as fast as channel after channel, on CUDA what tensor cores want in half precision. The
// weights themselves, and their gradients, stay as they are everywhere else, where kernels walk them side by side.
Tensor laid_out(const Tensor &tensor) {
  bool is_faster = tensor.is_cpu() || tensor.scalar_type() != at::kFloat;
  // Not contiguous(): of one channel it leaves the strides as they are, kernels read from them that channels come first, and so does
  // the convolution's output.
  return is_faster ? tensor.to(tensor.options(), /*non_blocking=*/false, /*copy=*/false, at::MemoryFormat::ChannelsLast) : tensor;
}

// A strided 1 x 1 convolution looks at every stride-th place alone. With few channels, side by side, the gradient of its weights as
// oneDNN 3.10 computes it on the CPU is wrong and written past its memory (its issue 6035): below 8 channels with AVX2, 16 with AVX-512.
const int64_t FEWEST_CHANNELS = 16;

bool must_be_thinned(const Tensor &image, const Tensor &filter, int64_t stride, int64_t padding) {
  return image.is_cpu() && stride > 1 && padding == 0 && filter.size(2) == 1 && filter.size(3) == 1 && filter.size(1) < FEWEST_CHANNELS;
}

Tensor convolution(Tensor image, const Tensor &filter, int64_t stride, int64_t padding) {
  if (must_be_thinned(image, filter, stride, padding)) {
    image = image.slice(2, 0, std::nullopt, stride).slice(3, 0, std::nullopt, stride);
    stride = 1;
  }
  return at::conv2d(laid_out(image), laid_out(filter), {}, {stride, stride}, {padding, padding});
}

struct SavedConvolution : SavedGraph {
  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto found = SavedGraph::backward(gradient.contiguous(output.suggest_memory_format()));
    found[1] = found[1].contiguous();
    return found;
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
    c10::AutoGradMode mode(saved != nullptr);
    auto graph = std::make_unique<SavedConvolution>();
    auto leaf = [&](Tensor *tensor, bool needs_gradient) {
      graph->inputs.push_back(tensor->detach().set_requires_grad(saved != nullptr && needs_gradient));
      return graph->inputs.back();
    };
    auto kind = product_kind(products, *weight);
    auto cast = [&](const Tensor &tensor) { return tensor.scalar_type() == kind ? tensor : tensor.to(kind); };
    // One after the other: the order of a call's arguments is nobody's promise.
    auto image = leaf(x, of_input);
    auto filter = leaf(weight, true);
    auto scale = leaf(gain, true);
    auto offset = leaf(shift, true);
    auto made = convolution(cast(image), cast(filter), stride, padding);
    auto f32 = [](const Tensor &tensor) { return tensor.to(at::kFloat); };
    auto normed = at::batch_norm(made, f32(scale), f32(offset), *running_mean, *running_variance, training != 0, /*momentum=*/0.1, /*eps=*/1e-5,
                                 /*cudnn_enabled=*/true);
    // Nobody else has the norm's output, so both may write over it, as PyTorch's models do.
    if (residual != nullptr) normed = normed.add_(cast(leaf(residual, true)));
    if (relu) normed = normed.relu_();
    give(out, normed.detach());
    if (saved == nullptr) return;
    graph->output = normed;
    keep(saved, std::move(graph));
  });
}

// The largest of each 3 × 3 piece, every second one: [batch, channels, height, width] to half its height and width.
int kiln_max_pool(Tensor *x, Tensor **out, Saved **saved) {
  return guarded([&] {
    c10::AutoGradMode mode(saved != nullptr);
    auto graph = std::make_unique<SavedGraph>();
    graph->inputs.push_back(x->detach().set_requires_grad(saved != nullptr));
    graph->output = at::max_pool2d(graph->inputs[0], {3, 3}, {2, 2}, {1, 1});
    give(out, graph->output.detach());
    if (saved != nullptr) keep(saved, std::move(graph));
  });
}
}
