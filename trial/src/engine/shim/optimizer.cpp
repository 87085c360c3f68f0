// Updates of all parameters at once: libtorch's fused kernels and list operations. Where `found` is given and holds 1 on the device, an
// update leaves everything as it was. Nothing here waits for the device but Adafactor with `found`.
#include <cmath>

#include "shim.h"

namespace {
std::optional<Tensor> optional(Tensor *tensor) { return tensor == nullptr ? std::nullopt : std::optional<Tensor>(*tensor); }

// Mean of the squares along an axis, in f32.
Tensor mean_square(const Tensor &values, int64_t axis) {
  return at::linalg_vector_norm(values, 2, {axis}, /*keepdim=*/false, at::kFloat).square_().div_(values.size(axis));
}

// Exponential mean: `moving` keeps this share of itself.
void move(Tensor moving, Tensor latest, double kept) { moving.mul_(kept).add_(latest, 1.0 - kept); }
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

// Adafactor in place, without its own step sizes: `rows` and `columns` are the f32 means of the squared gradient along the last axis and
// the one before it; a parameter of one axis has the means themselves in `rows`, and nothing in `columns`. `steps` is a one-element f32
// counter on the host. Gradients are written over.
int kiln_adafactor(Tensor **parameters, Tensor **gradients, Tensor **rows, Tensor **columns, Tensor *steps, int count, double rate,
                   double decay_rate, double epsilon, double clip_threshold, double decay, Tensor *found) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    if (count == 0 || (found != nullptr && found->item<float>() != 0)) return;
    steps->add_(1);
    auto kept = 1.0 - std::pow(steps->item<double>(), -decay_rate);
    for (int at = 0; at < count; at++) {
      auto update = gradients[at]->to(at::kFloat);
      auto &moving = *rows[at];
      if (update.dim() >= 2) {
        move(moving, mean_square(update, -1).add_(epsilon), kept);
        move(*columns[at], mean_square(update, -2).add_(epsilon), kept);
        update.mul_(moving.div(moving.mean({-1}, /*keepdim=*/true)).rsqrt_().unsqueeze(-1)).mul_(columns[at]->rsqrt().unsqueeze(-2));
      } else {
        move(moving, update.square().add_(epsilon), kept);
        update.mul_(moving.rsqrt());
      }
      auto size = at::linalg_vector_norm(update).div_(std::sqrt((double)update.numel()));
      update.mul_(at::clamp_min(size.div_(clip_threshold), 1.0).reciprocal_());
      if (decay != 0) parameters[at]->mul_(1.0 - rate * decay);
      parameters[at]->add_(update, -rate);
    }
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
