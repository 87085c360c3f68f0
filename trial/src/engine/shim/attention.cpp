// Causal attention as libtorch chooses it for the device (flash on CUDA and on the CPU, else plain), its backward taken from
// libtorch's autograd; and attention with a bias that is learned. Apart from the other operations because the autograd headers take
// long to compile.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "shim.h"

namespace {

struct SavedAttention : Saved {
  Tensor leaf, output;

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto found = torch::autograd::grad({output}, {leaf}, {gradient.to(output.scalar_type())});
    return {found[0].contiguous()};
  }
};

Tensor attend(const Tensor &qkv, int64_t heads, double dropout) {
  auto batch = qkv.size(0), time = qkv.size(1), width = qkv.size(2) / 3;
  auto by_head = [&](const Tensor &part) { return part.view({batch, time, heads, width / heads}).transpose(1, 2); };  // [batch, heads, time, head_dim]
  auto parts = qkv.split(width, 2);
  auto mixed = at::scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), {}, dropout, /*is_causal=*/true);
  return mixed.transpose(1, 2).reshape({batch, time, width});
}

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
  auto all_heads = mask;
  if (mask.has_value()) all_heads = mask->expand({parts.queries.size(0), parts.heads, parts.queries.size(1), parts.keys.size(1)});
  auto mixed = at::scaled_dot_product_attention(parts.by_head(parts.queries), parts.by_head(parts.keys), parts.by_head(parts.values), all_heads,
                                                dropout, /*is_causal=*/false, /*scale=*/1.0);
  return together(mixed, parts.queries.size(0), parts.heads);
}

}  // namespace

extern "C" {

// qkv [batch, time, 3 × width], queries, keys and values side by side; out [batch, time, width].
int kiln_causal_attention(Tensor *qkv, int64_t heads, double dropout, Tensor **out, Saved **saved) {
  return guarded([&] {
    c10::AutoGradMode gradients(saved != nullptr);
    auto state = std::make_unique<SavedAttention>();
    state->leaf = qkv->detach();
    if (saved != nullptr) state->leaf.set_requires_grad(true);
    state->output = attend(state->leaf, heads, dropout);
    give(out, state->output.detach());
    keep(saved, std::move(state));
  });
}

// Attention whose scores are not scaled. `first` holds queries, keys and values side by side [batch, time, 3 × inner], or with `second`
// the queries [batch, time, inner] alone and `second` keys and values [batch, time', 2 × inner]; out [batch, time, inner]. `mask`
// is added to the scores and fits [batch, heads, time, time'] when it is spread out; it may be null. With `bias` the
// last gradient is that of a bias [heads, time, time'] whose values are in the mask already. `way` is 0 as the device has it best, 1
// for products and softmax one by one, 2 for libtorch's own attention.
int kiln_biased_attention(Tensor *first, Tensor *second, Tensor *mask, int bias, int64_t heads, double dropout, int way, Tensor **out, Saved **saved) {
  return guarded([&] {
    if (way == 1 || (way == 0 && !first->is_cuda())) {
      c10::NoGradGuard no_grad;
      auto state = std::make_unique<SavedPlain>();
      Parts parts(*first, second, heads);
      give(out, plain(parts, mask, dropout, *state));
      state->batch = first->size(0), state->heads = heads;
      state->is_self = second == nullptr, state->has_bias = bias != 0;
      keep(saved, std::move(state));
      return;
    }
    c10::AutoGradMode gradients(saved != nullptr);
    auto state = std::make_unique<SavedFused>();
    state->leaves.push_back(first->detach());
    if (second != nullptr) state->leaves.push_back(second->detach());
    auto added = mask == nullptr ? std::nullopt : std::optional<Tensor>(mask->detach().to(first->scalar_type()));
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
