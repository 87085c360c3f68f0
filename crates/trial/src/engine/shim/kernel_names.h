// The kernels of kernels.cu: each(name) for every one.
#pragma once

#define EACH_KERNEL(each) \
  each(loss_forward) each(loss_backward) each(norm_statistics) each(norm_apply) each(norm_backward_sums) each(norm_backward_apply) each(column_sums) \
      each(heads_side_by_side) each(gelu_backward) each(layer_norm_forward) each(layer_norm_backward) each(sums_of_parts)

#define KERNEL_ENUMERATOR(name) name,
enum class Kernel { EACH_KERNEL(KERNEL_ENUMERATOR) };

#define KERNEL_NAME(name) #name,
constexpr const char *KERNEL_NAMES[] = {EACH_KERNEL(KERNEL_NAME)};
constexpr int KERNELS = sizeof KERNEL_NAMES / sizeof *KERNEL_NAMES;
