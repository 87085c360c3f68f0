// Sums over the rows of a gradient: the kernel that makes the gradient has them for nothing, and the layer that gets it wants them for its bias.
#pragma once
#include "shim.h"

// These are the sums, f32, of the gradient [.., n] that the next layer of this thread gets.
void know_sums(const Tensor &gradient, const Tensor &sums);

// Those of this gradient, if they were told last, and nothing has been written to it since; undefined where not.
Tensor known_sums(const Tensor &gradient);

// None are known any more.
void forget_sums();
