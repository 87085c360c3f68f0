// Weights in the dtype of products. Inside of a pass those that earlier passes asked for are copied all at once: one kernel instead of one for each.
#pragma once
#include <vector>

#include "shim.h"

// The weights [out of each, ..], one below the other, in this dtype, and then rows of 0 up to `size` rows. A single one that is so already comes
// back itself.
Tensor weights_as(const std::vector<Tensor> &weights, int64_t size, at::ScalarType kind);
