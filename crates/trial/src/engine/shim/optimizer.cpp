// Updates of many parameters at once: libtorch's fused kernels and list operations. Where `found` is given and holds 1 on the device, an
// update leaves everything as it was. Where `divisor` is given, f32 without axes, gradients are divided by it, in place. The learning
// rate is `rate`, or, where it is given, the number that `held` has on the device when the work is done: f32 without axes, on the CPU
// also f64. Nothing here waits for the device.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "shim.h"

namespace {
std::optional<Tensor> optional(Tensor *tensor) { return tensor == nullptr ? std::nullopt : std::optional<Tensor>(*tensor); }

// All numbers become 0 where `made` holds 0, also those that are infinite or none.
void leave_out(Tensor &updates, const Tensor &made) { updates.nan_to_num_(0, 0, 0).mul_(made); }

// Parameters of one shape and what belongs to them.
struct Alike {
  std::vector<Tensor> parameters, gradients, rows, columns;
};

// Most numbers of parameters that are updated side by side: one kernel does what would be one for each, for a copy of their gradients. On the
// CPU they are those that stay in the cache.
int64_t most_side_by_side(const Tensor &gradient) { return takes_cuda_branches(gradient) ? 1 << 25 : 1 << 15; }

std::vector<Alike> of_one_shape(const std::vector<Tensor> &parameters, const std::vector<Tensor> &gradients, const std::vector<Tensor> &rows,
                                const std::vector<Tensor> &columns) {
  std::vector<Alike> found;
  for (size_t at = 0; at < parameters.size(); at++) {
    auto &gradient = gradients[at];
    auto fits = [&](const Alike &alike) {
      auto most = most_side_by_side(gradient) / std::max<int64_t>(gradient.numel(), 1);
      auto &first = alike.gradients[0];
      return first.sizes() == gradient.sizes() && first.dtype() == gradient.dtype() && (int64_t)alike.gradients.size() < most;
    };
    auto place = std::find_if(found.begin(), found.end(), fits);
    if (place == found.end()) place = found.insert(found.end(), Alike());
    place->parameters.push_back(parameters[at]), place->gradients.push_back(gradient);
    place->rows.push_back(rows[at]), place->columns.push_back(columns[at]);
  }
  return found;
}

// Tensors of one shape as [n, shape of each]; one alone stays where it is.
Tensor side_by_side(const std::vector<Tensor> &tensors) { return tensors.size() == 1 ? tensors[0].unsqueeze(0) : at::stack(tensors); }

Tensor mean_of_squares(const Tensor &numbers, int64_t axis) {
  return at::linalg_vector_norm(numbers, 2, {axis}, /*keepdim=*/false, at::kFloat).square_().div_(numbers.size(axis));
}

// Moves each of `means` by the share `moved` to the latest ones and `epsilon`; `kept` is the rest. latest, which is written over, and what
// it returns: [n, shape of each].
Tensor moving_means(std::vector<Tensor> &means, Tensor latest, double epsilon, const Tensor &moved, const Tensor &kept) {
  auto moving = side_by_side(means).mul_(kept).addcmul_(latest.add_(epsilon), moved);
  if (means.size() > 1) at::_foreach_copy_(means, moving.unbind());
  return moving;
}

// On the CPU libtorch's fused SGD of narrow numbers leaves all but a few as they were (PyTorch issue 191763, mended after 2.13).
bool fused_sgd_updates(const std::vector<Tensor> &parameters) {
  return std::none_of(parameters.begin(), parameters.end(), [](auto &one) { return one.is_cpu() && at::isReducedFloatingType(one.scalar_type()); });
}

void divide(Tensor **gradients, int count, Tensor *divisor) {
  if (divisor != nullptr) at::_foreach_div_(listed(gradients, count), *divisor);
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
               double beta1, double beta2, double decay, double epsilon, Tensor *divisor, Tensor *found) {
  return guarded([&] {
    OutsideOfGraphs outside;
    if (count == 0) return;
    auto counters = listed(steps, count);
    at::_foreach_add_(counters, 1);
    auto update = [&](auto by) {
      at::_fused_adamw_(listed(parameters, count), listed(gradients, count), listed(first, count), listed(second, count), {}, counters, by, beta1,
                        beta2, decay, epsilon, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/optional(divisor), optional(found));
    };
    held == nullptr ? update(rate) : update(*held);
    if (found != nullptr) at::_foreach_sub_(counters, std::vector<Tensor>(counters.size(), *found));
  });
}

// SGD in place; without momentum `buffers` is not read.
int kiln_sgd(Tensor **parameters, Tensor **gradients, Tensor **buffers, int count, double rate, Tensor *held, double momentum,
             int nesterov, double decay, int first_step, Tensor *divisor, Tensor *found) {
  return guarded([&] {
    OutsideOfGraphs outside;
    if (count == 0) return;
    auto moving = momentum != 0 ? listed(buffers, count) : std::vector<Tensor>();
    if (!fused_sgd_updates(listed(parameters, count))) {
      if (found != nullptr && *found->const_data_ptr<float>() != 0) return;
      divide(gradients, count, divisor);
      auto by = held != nullptr ? *held : at::scalar_tensor(rate, at::kDouble);
      for (int at = 0; at < count; at++) {
        composed_sgd(*parameters[at], *gradients[at], momentum != 0 ? moving[at] : Tensor(), by, momentum, nesterov != 0, decay, first_step != 0);
      }
      return;
    }
    auto update = [&](auto by) {
      at::_fused_sgd_(listed(parameters, count), listed(gradients, count), moving, decay, momentum, by, /*dampening=*/0.0, nesterov != 0,
                      /*maximize=*/false, momentum != 0 && first_step != 0, /*grad_scale=*/optional(divisor), optional(found));
    };
    held == nullptr ? update(rate) : update(*held);
  });
}

// Adafactor in place, without its own step sizes: `rows` and `columns` are the f32 means of the squared gradient along the last axis and
// the one before it; a parameter of one axis has the means themselves in `rows`, and nothing in `columns`. `steps` is a one-element f32
// counter beside the parameters. Gradients may be written over.
int kiln_adafactor(Tensor **parameters, Tensor **gradients, Tensor **rows, Tensor **columns, Tensor *steps, int count, double rate,
                   Tensor *held, double decay_rate, double epsilon, double clip_threshold, double decay, Tensor *divisor, Tensor *found) {
  return guarded([&] {
    OutsideOfGraphs outside;
    if (count == 0) return;
    divide(gradients, count, divisor);
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

    auto changed = listed(parameters, count);
    // Factor by which the decay multiplies the parameters; undefined where it is a plain number.
    at::Tensor left;
    if (decay != 0 && held != nullptr) {
      auto lost = held->mul(decay);
      left = at::rsub(made.defined() ? lost.mul(made) : lost, 1.0);
    } else if (decay != 0 && made.defined()) {
      left = at::rsub(made.mul(rate * decay), 1.0);
    }
    // bf16 parameters are rounded once, after decay and update: a small decay alone would be rounded away.
    auto is_narrow = [](const at::Tensor &parameter) { return parameter.scalar_type() != at::kFloat; };
    std::vector<at::Tensor> wide;
    std::copy_if(changed.begin(), changed.end(), std::back_inserter(wide), [&](auto &one) { return !is_narrow(one); });
    if (decay != 0 && !wide.empty()) {
      left.defined() ? at::_foreach_mul_(wide, left) : at::_foreach_mul_(wide, 1.0 - rate * decay);
    }

    for (auto &alike : of_one_shape(changed, listed(gradients, count), listed(rows, count), listed(columns, count))) {
      auto updates = side_by_side(alike.gradients).to(at::kFloat);
      if (made.defined()) leave_out(updates, made);
      if (updates.dim() > 2) {
        auto of_rows = moving_means(alike.rows, mean_of_squares(updates, -1), epsilon, moved, kept);
        auto of_columns = moving_means(alike.columns, mean_of_squares(updates, -2), epsilon, moved, kept);
        of_rows = of_rows.div(of_rows.mean({-1}, /*keepdim=*/true));
        updates.mul_(of_rows.rsqrt_().unsqueeze(-1)).mul_(of_columns.rsqrt().unsqueeze(-2));
      } else {
        updates.mul_(moving_means(alike.rows, updates.square(), epsilon, moved, kept).rsqrt());
      }
      // The root mean square of an update, of which `clip_threshold` is the most, becomes the factor of its length.
      std::vector<int64_t> axes(updates.dim() - 1);
      std::iota(axes.begin(), axes.end(), 1);
      auto factors = at::linalg_vector_norm(updates, 2, axes, /*keepdim=*/true);
      factors.div_(std::sqrt((double)updates[0].numel()) * clip_threshold).clamp_min_(1.0).reciprocal_();
      held == nullptr ? factors.mul_(rate) : factors.mul_(*held);
      updates.mul_(factors);
      if (made.defined()) leave_out(updates, made);
      if (decay != 0 && is_narrow(alike.parameters[0])) {
        auto decayed = side_by_side(alike.parameters).to(at::kFloat);
        left.defined() ? decayed.mul_(left) : decayed.mul_(1.0 - rate * decay);
        at::_foreach_copy_(alike.parameters, decayed.sub_(updates).unbind());
      } else {
        at::_foreach_sub_(alike.parameters, updates.unbind());
      }
    }
  });
}

// By what gradients are divided so that their common norm is at most `largest`: f32 without axes, on their device.
int kiln_clip_divisor(Tensor **gradients, int count, double largest, Tensor **divisor) {
  return guarded([&] {
    OutsideOfGraphs outside;
    auto norms = at::_foreach_norm(listed(gradients, count), 2, at::kFloat);
    give(divisor, at::linalg_vector_norm(at::stack(norms), 2).add_(1e-6).div_(largest).clamp_min_(1.0));
  });
}

// The squared norm of each tensor, [count], f64, on their device; `norms` gets them.
int kiln_squared_norms(Tensor **tensors, int count, Tensor **norms) {
  return guarded([&] {
    OutsideOfGraphs outside;
    auto plain = at::stack(at::_foreach_norm(listed(tensors, count), 2, at::kFloat));
    give(norms, plain.to(at::kDouble).square());
  });
}

// sums[k] += terms[k].
int kiln_accumulate(Tensor **sums, Tensor **terms, int count) {
  return guarded([&] {
    OutsideOfGraphs outside;
    if (count != 0) at::_foreach_add_(listed(sums, count), listed(terms, count));
  });
}
}
