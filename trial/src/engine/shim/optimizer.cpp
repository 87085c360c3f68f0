// Updates of all parameters at once: libtorch's fused kernels and list operations. Nothing here waits for the device. Where
// `found` is given and holds 1 on the device, an update leaves everything as it was.
#include "shim.h"

namespace {
std::optional<Tensor> optional(Tensor *tensor) { return tensor == nullptr ? std::nullopt : std::optional<Tensor>(*tensor); }
}  // namespace

extern "C" {

// AdamW in place; `steps` are one-element f32 counters beside each parameter.
int kiln_adamw(Tensor **parameters, Tensor **gradients, Tensor **first, Tensor **second, Tensor **steps, int count, double rate, double beta1,
               double beta2, double decay, double epsilon, Tensor *found) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    if (count == 0) return;
    auto counters = listed(steps, count);
    at::_foreach_add_(counters, 1);
    at::_fused_adamw_(listed(parameters, count), listed(gradients, count), listed(first, count), listed(second, count), {}, counters, rate, beta1,
                      beta2, decay, epsilon, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{}, optional(found));
    if (found != nullptr) at::_foreach_sub_(counters, std::vector<Tensor>(counters.size(), *found));
  });
}

// SGD in place; without momentum `buffers` is not read.
int kiln_sgd(Tensor **parameters, Tensor **gradients, Tensor **buffers, int count, double rate, double momentum, int nesterov, double decay,
             int first_step, Tensor *found) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    if (count == 0) return;
    auto moving = momentum != 0 ? listed(buffers, count) : std::vector<Tensor>();
    at::_fused_sgd_(listed(parameters, count), listed(gradients, count), moving, decay, momentum, rate, /*dampening=*/0.0, nesterov != 0,
                    /*maximize=*/false, first_step != 0, /*grad_scale=*/{}, optional(found));
  });
}

// Scales all gradients so that their common norm is at most `largest`; `norm` gets the norm before that, on the device.
int kiln_clip(Tensor **gradients, int count, double largest, Tensor **norm) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    auto list = listed(gradients, count);
    auto total = at::linalg_vector_norm(at::stack(at::_foreach_norm(list, 2)), 2);
    auto factor = at::clamp_max(largest / (total + 1e-6), 1.0);
    at::_foreach_mul_(list, factor);
    give(norm, total);
  });
}

// sums[k] += terms[k].
int kiln_accumulate(Tensor **sums, Tensor **terms, int count) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    if (count != 0) at::_foreach_add_(listed(sums, count), listed(terms, count));
  });
}
}
