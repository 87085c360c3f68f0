// LSTM layers by libtorch's own kernels (cuDNN on CUDA). Their backward pass is libtorch's autograd over a graph of this one
// operation, which is freed with it.
#include <ATen/detail/CUDAHooksInterface.h>

#include "graph.h"

namespace {

const int64_t CUDNN_LSTM = 2;  // cudnnRNNMode_t

// cuDNN reads all weights from one piece of memory. Where they lie apart libtorch warns and makes that piece in each forward pass; here it
// is made without the warning, and the weights become views of it.
void lay_together(std::vector<Tensor> &weights, const Tensor &x, int64_t hidden, int64_t layers) {
  if (!x.is_cuda() || !at::detail::getCUDAHooks().compiledWithCuDNN()) return;
  c10::NoGradGuard no_grad;
  at::_cudnn_rnn_flatten_weight(weights, 4, x.size(-1), CUDNN_LSTM, hidden, /*proj_size=*/0, layers, /*batch_first=*/true, /*bidirectional=*/false);
}

}  // namespace

extern "C" {

// inputs: x [batch, time, in], then per layer w_input [4 h, in], w_state [4 h, h], b_input [4 h], b_state [4 h], gates in PyTorch's
// order (input, forget, cell, output). hidden, cell: [layers, batch, h] before the first time. out [batch, time, h]; the two states
// after the last time are in f32 and belong to no graph. Dropout between layers draws from the device's generator.
int kiln_lstm(Tensor *const *inputs, int count, Tensor *hidden, Tensor *cell, double dropout, int products, Tensor **out,
              Tensor **last_hidden, Tensor **last_cell, Saved **saved) {
  return guarded([&] {
    c10::AutoGradMode mode(saved != nullptr);
    auto kind = product_kind(products, *inputs[1]);
    auto cast = [&](const Tensor &tensor) { return tensor.scalar_type() == kind ? tensor : tensor.to(kind); };
    std::vector<Tensor> leaves, used;
    for (int at = 0; at < count; at++) {
      leaves.push_back(inputs[at]->detach().set_requires_grad(saved != nullptr));
      used.push_back(cast(leaves.back()));
    }
    std::vector<Tensor> weights(used.begin() + 1, used.end());
    int64_t layers = (count - 1) / 4;
    lay_together(weights, used[0], hidden->size(2), layers);
    // cuDNN needs a copy of the states of some of the rows.
    auto state_before = [&](const Tensor &tensor) { return cast(tensor).contiguous(); };
    auto [output, h, c] = at::lstm(used[0], {state_before(*hidden), state_before(*cell)}, weights, /*has_biases=*/true, layers, dropout,
                                   /*train=*/saved != nullptr, /*bidirectional=*/false, /*batch_first=*/true);
    give(out, output.detach());
    give(last_hidden, h.detach().to(at::kFloat));
    give(last_cell, c.detach().to(at::kFloat));
    if (saved == nullptr) return;
    auto state = std::make_unique<SavedGraph>();
    state->inputs = std::move(leaves);
    state->output = output;
    keep(saved, std::move(state));
  });
}
}
