// Scaling of the loss for f16, whose smallest numbers are larger than many gradients: libtorch's kernels behind PyTorch's
// GradScaler. Nothing here waits for the device; whether a step is skipped is a number that stays there.
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>

#include <cstdint>

#include "shim.h"

extern "C" {

// Divides the gradients by `scale`, in place. `found` becomes 1 if one of their numbers is infinite or none, else 0.
int kiln_unscale(Tensor **gradients, int count, Tensor *scale, Tensor *found) {
  return guarded([&] {
    OutsideOfGraphs outside;
    found->zero_();
    if (count == 0) return;
    // In f64, as GradScaler does: the reciprocal of a large scale is not an f32 of full precision.
    auto inverse = scale->to(at::kDouble).reciprocal().to(at::kFloat);
    at::_amp_foreach_non_finite_check_and_unscale_(listed(gradients, count), *found, inverse);
  });
}

// After a step: a skipped one is counted and shrinks the scale, `interval` good ones in a row let it grow.
int kiln_update_scale(Tensor *scale, Tensor *good_steps, Tensor *found, Tensor *skipped, double growth, double back_off, int64_t interval) {
  return guarded([&] {
    OutsideOfGraphs outside;
    skipped->add_(found->to(skipped->scalar_type()));
    at::_amp_update_scale_(*scale, *good_steps, *found, growth, back_off, interval);
  });
}
}
