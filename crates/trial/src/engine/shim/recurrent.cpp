// LSTM layers by libtorch's own operators: in training by cuDNN's or oneDNN's, each with its own backward operator, called as libtorch's own
// formula calls it; where neither serves, through libtorch's autograd over a graph of this one operation, which is freed with it.
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <array>
#include <map>
#include <mutex>

#include "graph.h"

namespace {

// The same number for cuDNN (cudnnRNNMode_t) and oneDNN (ideep::rnn_kind).
const int64_t LSTM = 2;
const int64_t WEIGHTS_PER_LAYER = 4;

// What both keep: the dtypes of x and of the weights, in which their gradients are wanted.
struct SavedLayers : Saved {
  at::ScalarType input_kind, weight_kind;

  // Contiguous, as the optimizers want the gradients of weights.
  std::vector<Tensor> in_kinds(const Tensor &of_x, const std::vector<Tensor> &of_weights) const {
    std::vector<Tensor> found = {of_x.to(input_kind)};
    for (auto &of_weight : of_weights) found.push_back(of_weight.to(weight_kind).contiguous());
    return found;
  }
};

// Several tensors in one piece of memory, each at its own place.
struct Places {
  std::vector<int64_t> firsts;
  std::vector<std::vector<int64_t>> sizes;

  // Those of views.
  explicit Places(const std::vector<Tensor> &views) {
    for (auto &view : views) firsts.push_back(view.storage_offset()), sizes.push_back(view.sizes().vec());
  }

  std::vector<Tensor> of(const Tensor &whole) const {
    std::vector<Tensor> found;
    for (size_t at = 0; at < firsts.size(); at++) found.push_back(whole.narrow(0, firsts[at], c10::multiply_integers(sizes[at])).view(sizes[at]));
    return found;
  }
};

struct SavedCudnn : SavedLayers {
  Tensor x, buffer, hidden, cell, output, reserve;  // x and output [batch, time, ..]; `buffer` has all weights
  std::vector<Tensor> weights;                      // views of `buffer`

  int64_t layers() const { return weights.size() / WEIGHTS_PER_LAYER; }

  void run(Tensor &last_hidden, Tensor &last_cell) {
    std::tie(output, last_hidden, last_cell, reserve, buffer) =
        at::_cudnn_rnn(x, weights, WEIGHTS_PER_LAYER, buffer, hidden, cell, LSTM, hidden.size(2), /*proj_size=*/0, layers(), /*batch_first=*/true,
                       /*dropout=*/0.0, /*train=*/true, /*bidirectional=*/false, /*batch_sizes=*/{}, /*dropout_state=*/{});
  }

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto [of_x, of_hidden, of_cell, of_weights] =
        at::_cudnn_rnn_backward(x, weights, WEIGHTS_PER_LAYER, buffer, hidden, cell, output, gradient.to(output.scalar_type()), {}, {}, LSTM,
                                hidden.size(2), /*proj_size=*/0, layers(), /*batch_first=*/true, /*dropout=*/0.0, /*train=*/true,
                                /*bidirectional=*/false, /*batch_sizes=*/{}, /*dropout_state=*/{}, reserve, {true, false, false, true});
    if (of_weights[0].scalar_type() == weight_kind) return in_kinds(of_x, of_weights);
    // They lie in one piece of memory too, which is converted as a whole.
    auto whole = at::empty({0}, of_weights[0].options()).set_(of_weights[0].storage(), 0, buffer.sizes(), buffer.strides());
    std::vector<Tensor> found = {of_x.to(input_kind)};
    for (auto &of_weight : Places(of_weights).of(whole.to(weight_kind))) found.push_back(of_weight);
    return found;
  }
};

struct SavedOneDnn : SavedLayers {
  struct Layer {
    Tensor x, hidden, cell, output, last_hidden, last_cell, workspace;  // x and output [time, batch, ..], states [batch, hidden]
    std::vector<Tensor> weights;
  };
  std::vector<Layer> layers;

  // One more layer, on x or on the layer before.
  void run(const Tensor &x, std::vector<Tensor> weights, const Tensor &hidden, const Tensor &cell) {
    Layer layer{x, hidden, cell};
    // oneDNN's operator keeps what its backward pass reads only where gradients are on; no graph comes of it, since nothing wants any.
    c10::AutoGradMode keeps(true);
    std::tie(layer.output, layer.last_hidden, layer.last_cell, layer.workspace) =
        at::mkldnn_rnn_layer(x, weights[0], weights[1], weights[2], weights[3], hidden, cell, /*reverse=*/false, /*batch_sizes=*/{}, LSTM,
                             hidden.size(1), /*num_layers=*/1, /*has_biases=*/true, /*bidirectional=*/false, /*batch_first=*/false, /*train=*/true);
    layer.weights = std::move(weights);
    layers.push_back(std::move(layer));
  }

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto of_output = gradient.to(layers.back().output.scalar_type()).transpose(0, 1);
    std::vector<Tensor> of_weights(layers.size() * WEIGHTS_PER_LAYER);
    for (size_t at = layers.size(); at-- > 0;) {
      auto &layer = layers[at];
      auto &weights = layer.weights;
      auto own = &of_weights[at * WEIGHTS_PER_LAYER];
      std::tie(of_output, own[0], own[1], own[2], own[3], std::ignore, std::ignore) = at::mkldnn_rnn_layer_backward(
          layer.x, weights[0], weights[1], weights[2], weights[3], layer.hidden, layer.cell, layer.output, layer.last_hidden, layer.last_cell,
          of_output, {}, {}, /*reverse=*/false, LSTM, layer.hidden.size(1), /*num_layers=*/1, /*has_biases=*/true, /*train=*/true,
          /*bidirectional=*/false, /*batch_sizes=*/{}, /*batch_first=*/false, layer.workspace);
    }
    return in_kinds(of_output.transpose(0, 1), of_weights);
  }
};

// The places that cuDNN gives weights [layers of four] in this dtype, in a piece of memory of so many of them.
struct Layout {
  int64_t length;
  Places places;
};

const Layout &layout_of(const std::vector<Tensor> &weights, at::ScalarType kind) {
  static std::mutex mutex;
  static std::map<std::array<int64_t, 5>, Layout> known;
  int64_t inputs = weights[0].size(1), width = weights[1].size(1), layers = weights.size() / WEIGHTS_PER_LAYER;
  std::lock_guard<std::mutex> lock(mutex);
  std::array<int64_t, 5> of = {(int64_t)kind, weights[0].get_device(), inputs, width, layers};
  if (auto found = known.find(of); found != known.end()) return found->second;
  std::vector<Tensor> placed;
  for (auto &weight : weights) placed.push_back(at::empty(weight.sizes(), weight.options().dtype(kind)));
  // They become views of it.
  auto whole = at::_cudnn_rnn_flatten_weight(placed, WEIGHTS_PER_LAYER, inputs, LSTM, width, /*proj_size=*/0, layers, /*batch_first=*/true,
                                             /*bidirectional=*/false);
  return known.emplace(of, Layout{whole.numel(), Places(placed)}).first->second;
}

// All weights in one piece of memory, which is how cuDNN reads them, and in this dtype; they become views of it. libtorch would do so in
// each forward pass, with a warning and a copy of each.
Tensor lay_together(std::vector<Tensor> &weights, at::ScalarType kind) {
  auto &[length, places] = layout_of(weights, kind);
  auto whole = at::zeros({length}, weights[0].options().dtype(kind));
  auto placed = places.of(whole);
  at::_foreach_copy_(placed, weights);
  weights = std::move(placed);
  return whole;
}

// Whether libtorch would ask cuDNN for layers that compute on x in this dtype: for bf16 not on every GPU.
bool is_for_cudnn(const Tensor &x, at::ScalarType kind) {
  return x.is_cuda() && at::cudnn_is_acceptable(x) && (kind != at::kBFloat16 || at::detail::getCUDAHooks().supportsBFloat16RNNWithCuDNN());
}

// Whether oneDNN computes bf16 on this processor, by libtorch's own test.
bool has_one_dnn_bf16() {
  static const bool has = [] {
    auto schema = c10::Dispatcher::singleton().findSchema({"mkldnn::_is_mkldnn_bf16_supported", ""});
    return schema.has_value() && schema->typed<bool()>().call();
  }();
  return has;
}

// Whether libtorch would ask oneDNN for layers that compute on x in this dtype; in f16 it does not in training.
bool is_for_one_dnn(const Tensor &x, at::ScalarType kind) {
  bool computes = kind == at::kFloat || (kind == at::kBFloat16 && has_one_dnn_bf16());
  return x.is_cpu() && computes && x.numel() > 0 && at::globalContext().userEnabledMkldnn();
}

}  // namespace

extern "C" {

// inputs: x [batch, time, in], then per layer w_input [4 h, in], w_state [4 h, h], b_input [4 h], b_state [4 h], gates in PyTorch's
// order (input, forget, cell, output). hidden, cell: [layers, batch, h] before the first time. out [batch, time, h]; the two states
// after the last time are in f32 and belong to no graph.
int kiln_lstm(Tensor *const *inputs, int count, Tensor *hidden, Tensor *cell, int products, Tensor **out, Tensor **last_hidden, Tensor **last_cell,
              Saved **saved) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    auto kind = product_kind(products, *inputs[1]);
    bool by_cudnn = is_for_cudnn(*inputs[0], kind), by_one_dnn = is_for_one_dnn(*inputs[0], kind);
    bool by_graph = saved != nullptr && !by_cudnn && !by_one_dnn;
    // Tensors of their own: those of libtorch's graph are its leaves.
    std::vector<Tensor> leaves, used;
    for (int at = 0; at < count; at++) {
      c10::AutoGradMode mode(by_graph);
      leaves.push_back(inputs[at]->detach().set_requires_grad(by_graph));
      used.push_back(by_cudnn && at > 0 ? leaves.back() : as_kind(leaves.back(), kind));
    }
    auto x = used[0];
    std::vector<Tensor> weights(used.begin() + 1, used.end());
    int64_t layers = weights.size() / WEIGHTS_PER_LAYER;
    // cuDNN and oneDNN need a copy of the states of some of the rows.
    auto h = as_kind(*hidden, kind).contiguous(), c = as_kind(*cell, kind).contiguous();
    auto give_states = [&](const Tensor &hidden, const Tensor &cell) {
      give(last_hidden, hidden.to(at::kFloat)), give(last_cell, cell.to(at::kFloat));
    };
    auto buffer = by_cudnn ? lay_together(weights, kind) : Tensor();
    if (saved != nullptr && by_cudnn) {
      auto state = std::make_unique<SavedCudnn>();
      state->x = x, state->buffer = buffer, state->hidden = h, state->cell = c, state->weights = weights;
      state->input_kind = inputs[0]->scalar_type(), state->weight_kind = inputs[1]->scalar_type();
      Tensor after_hidden, after_cell;
      state->run(after_hidden, after_cell);
      give(out, state->output), give_states(after_hidden, after_cell);
      keep(saved, std::move(state));
      return;
    }
    if (saved != nullptr && by_one_dnn) {
      auto state = std::make_unique<SavedOneDnn>();
      state->input_kind = inputs[0]->scalar_type(), state->weight_kind = inputs[1]->scalar_type();
      std::vector<Tensor> after_hidden, after_cell;
      for (int64_t layer = 0; layer < layers; layer++) {
        auto below = layer == 0 ? x.transpose(0, 1).contiguous() : state->layers.back().output;
        auto first = weights.begin() + layer * WEIGHTS_PER_LAYER;
        state->run(below, {first, first + WEIGHTS_PER_LAYER}, h[layer], c[layer]);
        after_hidden.push_back(state->layers.back().last_hidden), after_cell.push_back(state->layers.back().last_cell);
      }
      auto of_all = [](const std::vector<Tensor> &states) { return states.size() == 1 ? states[0].unsqueeze(0) : at::stack(states); };
      give(out, state->layers.back().output.transpose(0, 1)), give_states(of_all(after_hidden), of_all(after_cell));
      keep(saved, std::move(state));
      return;
    }
    c10::AutoGradMode mode(by_graph);
    auto [output, after_hidden, after_cell] = at::lstm(x, {h, c}, weights, /*has_biases=*/true, layers, /*dropout=*/0.0, /*train=*/saved != nullptr,
                                                       /*bidirectional=*/false, /*batch_first=*/true);
    give(out, output.detach()), give_states(after_hidden.detach(), after_cell.detach());
    if (saved == nullptr) return;
    auto state = std::make_unique<SavedGraph>();
    state->inputs = std::move(leaves), state->output = output;
    keep(saved, std::move(state));
  });
}
}
