// Causal attention by libtorch's fused kernels, each with its own backward operator where kiln knows it, else through libtorch's
// autograd; and attention with a bias that is learned. Apart from the other operations because the autograd headers take long to
// compile.
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <cmath>

#include "cuda_kernels.h"
#include "known_sums.h"
#include "shim.h"

namespace {

using at::SDPBackend;

// Kernels that have run in this process, one bit each by libtorch's number.
std::atomic<int> ran{0};

SDPBackend remember(SDPBackend backend) {
  ran |= 1 << static_cast<int>(backend);
  return backend;
}

// cuDNN plans its attention anew for each shape and keeps every plan, and it drops in sixteenths: it may serve where shapes stay and the
// probability is an integer multiple of them. The switch is read by the next choice.
void allow_cudnn(bool shapes_stay, double dropout) {
  auto sixteenths = dropout * 16;
  at::globalContext().setSDPUseCuDNN(shapes_stay && sixteenths == std::floor(sixteenths));
}

// One call of a fused kernel, and what its backward operator reads. Queries, keys and values are [batch, heads, time, head_dim].
struct Attention {
  SDPBackend backend;
  Tensor queries, keys, values, mask;  // the mask [batch, heads, time, time'], or undefined
  double dropout;
  bool is_causal;
  std::optional<double> scale;
  Tensor output, log_sum, sums_of_queries, sums_of_keys, seed, offset;
  int64_t longest_queries = 0, longest_keys = 0;

  // Whether the kernel that libtorch chooses has a backward operator which is called here as libtorch's own formula calls it. Flash wants
  // heads of whole eights, and on some devices narrow ones for its backward.
  static bool is_known(SDPBackend backend, const Tensor &queries, bool has_mask) {
    auto width = queries.size(3);
    switch (backend) {
      case SDPBackend::flash_attention: return queries.is_cpu() ? !has_mask : width % 8 == 0 && width <= 192;
      case SDPBackend::cudnn_attention: return !has_mask && width % 8 == 0 && width <= 128;
      case SDPBackend::efficient_attention: return width % 8 == 0;
      default: return false;
    }
  }

  void run(bool save) {
    if (backend == SDPBackend::flash_attention && queries.is_cpu()) {
      std::tie(output, log_sum) = at::_scaled_dot_product_flash_attention_for_cpu(queries, keys, values, dropout, is_causal, {}, scale);
    } else if (backend == SDPBackend::flash_attention) {
      std::tie(output, log_sum, sums_of_queries, sums_of_keys, std::ignore, std::ignore, seed, offset, std::ignore) =
          at::_scaled_dot_product_flash_attention(queries, keys, values, dropout, is_causal, /*return_debug_mask=*/false, scale);
    } else if (backend == SDPBackend::cudnn_attention) {
      std::tie(output, log_sum, sums_of_queries, sums_of_keys, std::ignore, std::ignore, seed, offset, std::ignore) =
          at::_scaled_dot_product_cudnn_attention(queries, keys, values, {}, /*compute_log_sumexp=*/save, dropout, is_causal, false, scale);
    } else {
      auto bias = mask.defined() ? std::optional<Tensor>(mask) : std::nullopt;
      std::tie(output, log_sum, seed, offset) =
          at::_scaled_dot_product_efficient_attention(queries, keys, values, bias, /*compute_log_sumexp=*/save, dropout, is_causal, scale);
    }
    longest_queries = queries.size(2), longest_keys = keys.size(2);
  }

  // Gradients of queries, keys and values, and with `of_mask` the mask's.
  std::vector<Tensor> backward(const Tensor &gradient, bool of_mask) const {
    if (backend == SDPBackend::efficient_attention) {
      auto [q, k, v, m] = at::_scaled_dot_product_efficient_attention_backward(gradient, queries, keys, values, mask, output, log_sum, seed, offset,
                                                                              dropout, {true, true, true, of_mask}, is_causal, scale);
      return {q, k, v, m};
    }
    std::tuple<Tensor, Tensor, Tensor> found;
    if (backend == SDPBackend::cudnn_attention) {
      found = at::_scaled_dot_product_cudnn_attention_backward(gradient, queries, keys, values, output, log_sum, seed, offset, {}, sums_of_queries,
                                                               sums_of_keys, longest_queries, longest_keys, dropout, is_causal, scale);
    } else if (queries.is_cpu()) {
      found = at::_scaled_dot_product_flash_attention_for_cpu_backward(gradient, queries, keys, values, output, log_sum, dropout, is_causal, {}, scale);
    } else {
      found = at::_scaled_dot_product_flash_attention_backward(gradient, queries, keys, values, output, log_sum, sums_of_queries, sums_of_keys,
                                                               longest_queries, longest_keys, dropout, is_causal, seed, offset, scale);
    }
    auto [q, k, v] = found;
    return {q, k, v};
  }
};

// Parts [batch, heads, time, head_dim] side by side as they came in, [batch, time, parts × heads × head_dim].
Tensor joined(at::ArrayRef<Tensor> parts) {
  auto &first = parts[0];
  auto batch = first.size(0), heads = first.size(1), time = first.size(2), width = first.size(3), count = (int64_t)parts.size();
  if (count == 1) return first.transpose(1, 2).reshape({batch, time, heads * width});
  std::vector<Tensor> by_time;
  for (auto &part : parts) by_time.push_back(part.transpose(1, 2));
  return at::stack(by_time, 2).view({batch, time, count * heads * width});
}

// By its own backward operator.
struct SavedDirect : Saved {
  Attention attention;
  bool is_self = true, has_bias = false;

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto &queries = attention.queries;
    auto batch = queries.size(0), heads = queries.size(1), time = queries.size(2), width = queries.size(3);
    auto by_head = gradient.to(queries.scalar_type()).view({batch, time, heads, width}).transpose(1, 2);
    auto of_parts = attention.backward(by_head, has_bias);
    std::vector<Tensor> found;
    auto of_self = at::ArrayRef<Tensor>(of_parts).slice(0, 3);
    if (is_self && cuda_kernels::has_heads_side_by_side(of_self)) {
      auto [of_all, sums] = cuda_kernels::heads_side_by_side(of_self);
      know_sums(of_all, sums);
      found = {of_all};
    } else if (is_self) {
      found = {joined(of_self)};
    } else {
      found = {joined({of_parts[0]}), joined({of_parts[1], of_parts[2]})};
    }
    if (has_bias) found.push_back(of_parts[3].sum({0}, false, at::kFloat));
    return found;
  }
};

// Queries, keys and values [batch, time, heads × head_dim] as parts of one tensor, or of two.
struct Parts {
  Tensor queries, keys, values;
  int64_t heads;

  Parts(const Tensor &first, const Tensor *second, int64_t heads) : heads(heads) {
    auto from_first = first.chunk(second == nullptr ? 3 : 1, 2);
    auto others = second == nullptr ? std::vector<Tensor>{from_first[1], from_first[2]} : second->chunk(2, 2);
    queries = from_first[0], keys = others[0], values = others[1];
  }

  // [batch, heads, time, head_dim]
  Tensor by_head(const Tensor &part) const { return part.view({part.size(0), part.size(1), heads, -1}).transpose(1, 2); }
  // [batch × heads, time, head_dim]
  Tensor flat(const Tensor &part) const { return by_head(part).reshape({part.size(0) * heads, part.size(1), -1}); }
};

// [batch × heads, time, head_dim] or [batch, heads, time, head_dim] as [batch, time, heads × head_dim]
Tensor together(const Tensor &by_head, int64_t batch, int64_t heads) {
  auto time = by_head.size(-2);
  return by_head.reshape({batch, heads, time, -1}).transpose(1, 2).reshape({batch, time, -1});
}

// Products and softmax one by one: what is kept is the weights, in the dtype of the products.
struct SavedPlain : Saved {
  Tensor queries, keys, values;  // [batch × heads, time, head_dim]
  Tensor weights, kept;          // [batch × heads, time, time]; `kept` is what dropout multiplied by, if it did
  int64_t batch, heads;
  bool is_self, has_bias;

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto kind = queries.scalar_type();
    auto of_mixed = gradient.to(kind).view({batch, queries.size(1), heads, -1}).transpose(1, 2).reshape(queries.sizes());
    auto of_values = at::bmm((kept.defined() ? weights.mul(kept) : weights).transpose(1, 2), of_mixed);
    auto of_weights = at::bmm(of_mixed, values.transpose(1, 2));
    if (kept.defined()) of_weights.mul_(kept);
    auto of_scores = at::_softmax_backward_data(of_weights, weights, -1, kind);
    auto of_queries = together(at::bmm(of_scores, keys), batch, heads);
    auto of_keys = together(at::bmm(of_scores.transpose(1, 2), queries), batch, heads);
    auto of_others = together(of_values, batch, heads);
    std::vector<Tensor> found;
    if (is_self) {
      found = {at::cat({of_queries, of_keys, of_others}, 2)};
    } else {
      found = {of_queries, at::cat({of_keys, of_others}, 2)};
    }
    if (has_bias) found.push_back(of_scores.view({batch, heads, of_scores.size(1), of_scores.size(2)}).sum({0}, false, at::kFloat));
    return found;
  }
};

Tensor plain(const Parts &parts, const Tensor *mask, double dropout, SavedPlain &state) {
  auto batch = parts.queries.size(0);
  state.queries = parts.flat(parts.queries), state.keys = parts.flat(parts.keys), state.values = parts.flat(parts.values);
  auto scores = at::bmm(state.queries, state.keys.transpose(1, 2));
  if (mask != nullptr) scores.view({batch, parts.heads, scores.size(1), scores.size(2)}).add_(*mask);
  state.weights = at::_softmax(scores, -1, false);
  if (dropout > 0) state.kept = at::empty_like(state.weights).bernoulli_(1.0 - dropout).mul_(1.0 / (1.0 - dropout));
  return together(at::bmm(dropout > 0 ? state.weights.mul(state.kept) : state.weights, state.values), batch, parts.heads);
}

// Recorded by libtorch's autograd.
struct SavedFused : Saved {
  std::vector<Tensor> leaves;  // one or two of queries, keys and values, and the mask if its gradient is the bias's
  Tensor output;
  bool has_bias;

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto found = torch::autograd::grad({output}, leaves, {gradient.to(output.scalar_type())});
    if (has_bias) found.back() = found.back().sum({0}, false, at::kFloat);
    for (auto &of_leaf : found) of_leaf = of_leaf.contiguous();
    return found;
  }
};

Tensor fused(const Parts &parts, const std::optional<Tensor> &mask, double dropout) {
  auto mixed = at::scaled_dot_product_attention(parts.by_head(parts.queries), parts.by_head(parts.keys), parts.by_head(parts.values), mask, dropout,
                                                /*is_causal=*/false, /*scale=*/1.0);
  return together(mixed, parts.queries.size(0), parts.heads);
}

bool is_in_eights(const Tensor &mask) {
  bool found = mask.stride(-1) == 1;
  for (int64_t axis = 0; axis + 1 < mask.dim(); axis++) found = found && mask.stride(axis) % 8 == 0;
  return found;
}

// The memory-efficient kernel reads a mask in rows without gaps that begin at every eighth place: the mask if it is one, or a copy that is.
Tensor aligned(const Tensor &mask) {
  if (is_in_eights(mask)) return mask;
  auto in_order = mask.contiguous();  // libtorch's padding keeps the order of the axes
  if (is_in_eights(in_order)) return in_order;
  auto width = mask.size(-1);
  return at::constant_pad_nd(in_order, {0, 8 - width % 8}).narrow(-1, 0, width);
}

}  // namespace

extern "C" {

// qkv [batch, time, 3 × width], queries, keys and values side by side; out [batch, time, width].
int kiln_causal_attention(Tensor *qkv, int64_t heads, double dropout, Tensor **out, Saved **saved) {
  return guarded([&] {
    allow_cudnn(/*shapes_stay=*/saved != nullptr, dropout);
    Parts parts(*qkv, nullptr, heads);
    auto queries = parts.by_head(parts.queries), keys = parts.by_head(parts.keys), values = parts.by_head(parts.values);
    auto choice = (SDPBackend)at::_fused_sdp_choice(queries, keys, values, {}, dropout, /*is_causal=*/true);
    remember(choice);
    if (Attention::is_known(choice, queries, false)) {
      OutsideOfGraphs outside;
      auto state = std::make_unique<SavedDirect>();
      state->attention = Attention{choice, queries, keys, values, {}, dropout, /*is_causal=*/true, {}};
      state->attention.run(saved != nullptr);
      give(out, joined({state->attention.output}));
      keep(saved, std::move(state));
      return;
    }
    c10::AutoGradMode gradients(saved != nullptr);
    auto state = std::make_unique<SavedFused>();
    state->leaves.push_back(qkv->detach().set_requires_grad(saved != nullptr));
    state->has_bias = false;
    Parts leaf(state->leaves[0], nullptr, heads);
    state->output = joined({at::scaled_dot_product_attention(leaf.by_head(leaf.queries), leaf.by_head(leaf.keys), leaf.by_head(leaf.values), {},
                                                             dropout, /*is_causal=*/true)});
    give(out, state->output.detach());
    keep(saved, std::move(state));
  });
}

// The kernels of attention that have run in this process, one bit each by libtorch's number: 0 products and softmax, 1 flash, 2 memory
// efficient, 3 cuDNN.
int kiln_attention_kernels() { return ran; }

// Attention whose scores are not scaled. `first` holds queries, keys and values side by side [batch, time, 3 × inner], or with `second`
// the queries [batch, time, inner] alone and `second` keys and values [batch, time', 2 × inner]; out [batch, time, inner]. `mask`
// is added to the scores and fits [batch, heads, time, time'] when it is spread out; it may be null. With `bias` the
// last gradient is that of a bias [heads, time, time'] whose values are in the mask already. `way` is 0 as the device has it best, 1
// for products and softmax one by one, 2 for libtorch's own attention.
int kiln_biased_attention(Tensor *first, Tensor *second, Tensor *mask, int bias, int64_t heads, double dropout, int way, Tensor **out, Saved **saved) {
  return guarded([&] {
    if (way == 1 || (way == 0 && !takes_cuda_branches(*first))) {
      OutsideOfGraphs outside;
      auto state = std::make_unique<SavedPlain>();
      Parts parts(*first, second, heads);
      give(out, plain(parts, mask, dropout, *state));
      state->batch = first->size(0), state->heads = heads;
      state->is_self = second == nullptr, state->has_bias = bias != 0;
      keep(saved, std::move(state));
      return;
    }
    allow_cudnn(/*shapes_stay=*/false, dropout);
    auto added = mask == nullptr ? std::nullopt : std::optional<Tensor>(mask->detach().to(first->scalar_type()));
    {
      OutsideOfGraphs outside;
      Parts parts(*first, second, heads);
      auto queries = parts.by_head(parts.queries), keys = parts.by_head(parts.keys), values = parts.by_head(parts.values);
      Tensor spread;  // A view: no layer has its own mask.
      if (added.has_value()) spread = aligned(*added).expand({queries.size(0), heads, queries.size(2), keys.size(2)});
      auto seen = spread.defined() ? std::optional<Tensor>(spread) : std::nullopt;
      auto choice = (SDPBackend)at::_fused_sdp_choice(queries, keys, values, seen, dropout, /*is_causal=*/false, /*scale=*/1.0);
      remember(choice);
      if (way == 0 && queries.is_cuda() && Attention::is_known(choice, queries, spread.defined())) {
        auto state = std::make_unique<SavedDirect>();
        state->attention = Attention{choice, queries, keys, values, spread, dropout, /*is_causal=*/false, /*scale=*/1.0};
        state->attention.run(saved != nullptr);
        state->is_self = second == nullptr, state->has_bias = bias != 0;
        give(out, joined({state->attention.output}));
        keep(saved, std::move(state));
        return;
      }
    }
    c10::AutoGradMode gradients(saved != nullptr);
    auto state = std::make_unique<SavedFused>();
    state->leaves.push_back(first->detach());
    if (second != nullptr) state->leaves.push_back(second->detach());
    if (bias != 0) state->leaves.push_back(*added);
    state->has_bias = bias != 0;
    if (saved != nullptr)
      for (auto &leaf : state->leaves) leaf.set_requires_grad(true);
    Parts parts(state->leaves[0], second == nullptr ? nullptr : &state->leaves[1], heads);
    if (bias != 0) added = state->leaves.back();
    state->output = fused(parts, added, dropout);
    give(out, state->output.detach());
    keep(saved, std::move(state));
  });
}
}
