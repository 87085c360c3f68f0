// Causal attention as libtorch chooses it for the device (flash on CUDA and on the CPU, else plain), its backward taken from
// libtorch's autograd. Apart from the other operations because the autograd headers take long to compile.
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
}
