// Updates of all parameters at once: libtorch's fused kernels and list operations. Where `found` is given and holds 1 on the device, an
// update leaves everything as it was. The learning rate is `rate`, or, where it is given, the number that `held` has on the device when the
// work is done: f32 without axes, on the CPU also f64. Nothing here waits for the device.
#include <algorithm>
#include <cmath>

#include "shim.h"

namespace {
std::optional<Tensor> optional(Tensor *tensor) { return tensor == nullptr ? std::nullopt : std::optional<Tensor>(*tensor); }

// All numbers become 0 where `made` holds 0, also those that are infinite or none.
void leave_out(std::vector<Tensor> &updates, const Tensor &made) {
  for (auto &update : updates) update.nan_to_num_(0, 0, 0);
  at::_foreach_mul_(updates, made);
}

// On the CPU libtorch's fused SGD of narrow numbers leaves all but a few as they were (PyTorch issue 191763, mended after 2.13).
bool fused_sgd_updates(const std::vector<Tensor> &parameters) {
  return std::none_of(parameters.begin(), parameters.end(), [](auto &one) { return one.is_cpu() && at::isReducedFloatingType(one.scalar_type()); });
}

// The same update in f32, rounded once.
void composed_sgd(Tensor parameter, const Tensor &gradient, Tensor buffer, const Tensor &rate, double momentum, bool nesterov, double decay,
                  bool first_step) {
  auto from = parameter.to(at::kFloat), by = gradient.to(at::kFloat);
  if (decay != 0) by = by.add(from, decay);
  if (momentum != 0) {
    auto moving = first_step ? by : buffer.to(at::kFloat).mul_(momentum).add_(by);
    buffer.copy_(moving);
    by = nesterov ? by.add(moving, momentum) : moving;
  }
  parameter.copy_(from.sub_(by.mul(rate)));
}
}  // namespace

extern "C" {

// AdamW in place; `steps` are one-element f32 counters beside each parameter.
int kiln_adamw(Tensor **parameters, Tensor **gradients, Tensor **first, Tensor **second, Tensor **steps, int count, double rate, Tensor *held,
               double beta1, double beta2, double decay, double epsilon, Tensor *found) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    if (count == 0) return;
    auto counters = listed(steps, count);
    at::_foreach_add_(counters, 1);
    auto update = [&](auto by) {
      at::_fused_adamw_(listed(parameters, count), listed(gradients, count), listed(first, count), listed(second, count), {}, counters, by, beta1,
                        beta2, decay, epsilon, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{}, optional(found));
    };
    held == nullptr ? update(rate) : update(*held);
    if (found != nullptr) at::_foreach_sub_(counters, std::vector<Tensor>(counters.size(), *found));
  });
}

// SGD in place; without momentum `buffers` is not read.
int kiln_sgd(Tensor **parameters, Tensor **gradients, Tensor **buffers, int count, double rate, Tensor *held, double momentum,
             int nesterov, double decay, int first_step, Tensor *found) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    if (count == 0) return;
    auto moving = momentum != 0 ? listed(buffers, count) : std::vector<Tensor>();
    if (!fused_sgd_updates(listed(parameters, count))) {
      if (found != nullptr && *found->const_data_ptr<float>() != 0) return;
      auto by = held != nullptr ? *held : at::scalar_tensor(rate, at::kDouble);
      for (int at = 0; at < count; at++) {
        composed_sgd(*parameters[at], *gradients[at], momentum != 0 ? moving[at] : Tensor(), by, momentum, nesterov != 0, decay, first_step != 0);
      }
      return;
    }
    auto update = [&](auto by) {
      at::_fused_sgd_(listed(parameters, count), listed(gradients, count), moving, decay, momentum, by, /*dampening=*/0.0, nesterov != 0,
                      /*maximize=*/false, momentum != 0 && first_step != 0, /*grad_scale=*/{}, optional(found));
    };
    held == nullptr ? update(rate) : update(*held);
  });
}

// Adafactor in place, without its own step sizes: `rows` and `columns` are the f32 means of the squared gradient along the last axis and
// the one before it; a parameter of one axis has the means themselves in `rows`, and nothing in `columns`. `steps` is a one-element f32
// counter beside the parameters. Gradients are written over.
int kiln_adafactor(Tensor **parameters, Tensor **gradients, Tensor **rows, Tensor **columns, Tensor *steps, int count, double rate,
                   Tensor *held, double decay_rate, double epsilon, double clip_threshold, double decay, Tensor *found) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    if (count == 0) return;
    // 1 if the update is made, 0 if it is skipped.
    auto made = found == nullptr ? Tensor() : at::rsub(found->reshape({}), 1.0);
    if (found == nullptr) {
      steps->add_(1.0);
    } else {
      steps->add_(made);
    }
    // The share of the latest squares in their means.
    auto moved = steps->pow(-decay_rate);
    if (made.defined()) moved = at::nan_to_num(moved, 0, 0, 0).mul_(made);
    auto kept = at::rsub(moved, 1.0);

    std::vector<Tensor> updates, matrices, vectors;
    for (auto &gradient : listed(gradients, count)) updates.push_back(gradient.to(at::kFloat));
    if (made.defined()) leave_out(updates, made);
    // Means of squares, first those of matrices along both axes, then those of vectors.
    std::vector<Tensor> moving, latest, of_rows, of_columns, of_vectors;
    std::vector<at::Scalar> lengths;
    for (int at = 0; at < count; at++) {
      if (updates[at].dim() < 2) continue;
      matrices.push_back(updates[at]), of_rows.push_back(*rows[at]), of_columns.push_back(*columns[at]);
      for (int64_t axis : {-1, -2}) {
        latest.push_back(at::linalg_vector_norm(updates[at], 2, {axis}, /*keepdim=*/false, at::kFloat));
        lengths.push_back(updates[at].size(axis));
        moving.push_back(axis == -1 ? *rows[at] : *columns[at]);
      }
    }
    if (!latest.empty()) {
      at::_foreach_mul_(latest, latest);
      at::_foreach_div_(latest, lengths);
    }
    for (int at = 0; at < count; at++)
      if (updates[at].dim() < 2) vectors.push_back(updates[at]), of_vectors.push_back(*rows[at]);
    if (!vectors.empty()) {
      for (auto &square : at::_foreach_mul(vectors, vectors)) latest.push_back(square);
      moving.insert(moving.end(), of_vectors.begin(), of_vectors.end());
    }
    at::_foreach_add_(latest, epsilon);
    at::_foreach_mul_(moving, kept);
    at::_foreach_mul_(latest, moved);
    at::_foreach_add_(moving, latest);

    if (!matrices.empty()) {
      std::vector<Tensor> by_row;
      for (auto &means : of_rows) by_row.push_back(means.div(means.mean({-1}, /*keepdim=*/true)));
      at::_foreach_rsqrt_(by_row);
      auto by_column = at::_foreach_rsqrt(of_columns);
      for (size_t at = 0; at < matrices.size(); at++) matrices[at].mul_(by_row[at].unsqueeze(-1)).mul_(by_column[at].unsqueeze(-2));
    }
    if (!vectors.empty()) at::_foreach_mul_(vectors, at::_foreach_rsqrt(of_vectors));

    // The root mean square of an update, of which `clip_threshold` is the most, becomes the factor of its length.
    auto factors = at::_foreach_norm(updates, 2);
    std::vector<at::Scalar> largest;
    for (auto &update : updates) largest.push_back(std::sqrt((double)update.numel()) * clip_threshold);
    at::_foreach_div_(factors, largest);
    at::_foreach_clamp_min_(factors, 1.0);
    at::_foreach_reciprocal_(factors);
    // As f32, which the number becomes too: two tensors without axes would be multiplied in the wider format.
    held == nullptr ? at::_foreach_mul_(factors, rate) : at::_foreach_mul_(factors, held->to(at::kFloat));
    at::_foreach_mul_(updates, factors);
    auto changed = listed(parameters, count);
    if (made.defined()) leave_out(updates, made);
    if (decay != 0 && held != nullptr) {
      auto lost = held->mul(decay);
      at::_foreach_mul_(changed, at::rsub(made.defined() ? lost.mul(made) : lost, 1.0));
    } else if (decay != 0 && made.defined()) {
      at::_foreach_mul_(changed, at::rsub(made.mul(rate * decay), 1.0));
    } else if (decay != 0) {
      at::_foreach_mul_(changed, 1.0 - rate * decay);
    }
    at::_foreach_sub_(changed, updates);
  });
}

// Scales all gradients so that their common norm is at most `largest`; `norm` gets the norm before that, on the device.
int kiln_clip(Tensor **gradients, int count, double largest, Tensor **norm) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    auto list = listed(gradients, count);
    auto total = at::linalg_vector_norm(at::stack(at::_foreach_norm(list, 2)), 2);
    at::_foreach_div_(list, total.add(1e-6).div_(largest).clamp_min_(1.0));
    give(norm, total);
  });
}

// The squared norm of each tensor, [count], f64, on their device; `norms` gets them.
int kiln_squared_norms(Tensor **tensors, int count, Tensor **norms) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    auto plain = at::stack(at::_foreach_norm(listed(tensors, count), 2, at::kFloat));
    give(norms, plain.to(at::kDouble).square());
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
