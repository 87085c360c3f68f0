// Operations whose backward pass is libtorch's own autograd.
#pragma once
#include <torch/csrc/autograd/autograd.h>

#include "shim.h"

// Operations recorded by libtorch's autograd.
struct SavedGraph : Saved {
  std::vector<Tensor> inputs;  // leaves of the graph, in the order of the forward's arguments
  Tensor output;

  std::vector<Tensor> backward(const Tensor &gradient) override {
    auto of_output = as_kind(gradient, output.scalar_type());
    std::vector<Tensor> wanted;
    for (auto &input : inputs)
      if (input.requires_grad()) wanted.push_back(input);
    auto found = torch::autograd::grad({output}, wanted, {of_output}, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    std::vector<Tensor> all;
    size_t next = 0;
    for (auto &input : inputs) all.push_back(input.requires_grad() ? found[next++] : Tensor());
    return all;
  }
};
