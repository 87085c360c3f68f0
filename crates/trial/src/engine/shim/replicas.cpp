// Gradients of several replicas of one network become their sum, on every replica. On CUDA it is libtorch's own NCCL, which lies in
// its CUDA half: that is loaded when a trial wants it, so the function is looked up by its name, and no CUDA header is needed.
#include <dlfcn.h>

#include <optional>
#include <stdexcept>

#include "shim.h"
#include "symbols.h"

namespace {
// torch::cuda::nccl::all_reduce: the sum of the inputs, one on each device, into the outputs. Its operation 0 is the sum. Empty lists
// of streams and communicators mean each device's current stream, and communicators that libtorch keeps.
using Anything = std::vector<void *>;  // An empty list looks alike whatever it is a list of.
using AllReduce = void (*)(const std::vector<Tensor> &, std::vector<Tensor> &, int32_t, const Anything &, const Anything &);

// The same on the CPU.
void all_reduce_on_cpu(const std::vector<Tensor> &inputs, std::vector<Tensor> &outputs, int32_t, const Anything &, const Anything &) {
  auto sum = inputs[0].clone();
  for (size_t replica = 1; replica < inputs.size(); replica++) sum.add_(inputs[replica]);
  for (auto &output : outputs) output.copy_(sum);
}

AllReduce all_reduce_on_cuda() {
  auto found = dlsym(RTLD_DEFAULT, cuda_symbol::ALL_REDUCE);
  if (found == nullptr) throw std::runtime_error("the CUDA half of this libtorch has no torch::cuda::nccl::all_reduce, which sums gradients over GPUs");
  return (AllReduce)found;
}

using Lists = std::vector<std::vector<Tensor>>;  // [replica][tensor]

// The tensors from `begin` to `end` of each replica, laid side by side, summed, and put back.
void sum_together(AllReduce reduce, const Lists &lists, size_t begin, size_t end) {
  std::vector<Tensor> joined;
  for (auto &list : lists) {
    std::vector<Tensor> flat;
    for (size_t at = begin; at < end; at++) flat.push_back(list[at].reshape({-1}));
    joined.push_back(at::cat(flat));
  }
  reduce(joined, joined, 0, {}, {});
  for (size_t replica = 0; replica < lists.size(); replica++) {
    std::vector<Tensor> into, from;
    int64_t place = 0;
    for (size_t at = begin; at < end; at++) {
      auto &gradient = lists[replica][at];
      into.push_back(gradient);
      from.push_back(joined[replica].narrow(0, place, gradient.numel()).view(gradient.sizes()));
      place += gradient.numel();
    }
    at::_foreach_copy_(into, from);
  }
}

// As many tensors at once as have `together` elements in all; one that has more goes alone.
void sum_in_parts(const Lists &lists, int64_t together) {
  auto &first = lists[0];
  auto reduce = first[0].is_cuda() ? all_reduce_on_cuda() : all_reduce_on_cpu;
  for (size_t begin = 0, end; begin < first.size(); begin = end) {
    int64_t elements = first[begin].numel();
    for (end = begin + 1; end < first.size() && elements + first[end].numel() <= together; end++) elements += first[end].numel();
    sum_together(reduce, lists, begin, end);
  }
}
}  // namespace

extern "C" {

// gradients: `count` tensors of each replica, replica after replica, alike in shape. Each becomes the sum over the replicas; tensors of
// `together` elements in all travel at once. Does not wait.
int kiln_sum_over_replicas(Tensor **gradients, int replicas, int count, int64_t together) {
  return guarded([&] {
    OutsideOfGraphs outside;
    if (replicas < 2 || count == 0) return;
    Lists lists;
    for (int replica = 0; replica < replicas; replica++) lists.push_back(listed(gradients + (int64_t)replica * count, count));
    sum_in_parts(lists, together);
  });
}
}
