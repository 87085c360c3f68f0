#include "known_sums.h"

#include <c10/util/intrusive_ptr.h>

#include <utility>

namespace {

struct Known {
  using Gradient = c10::weak_intrusive_ptr<c10::TensorImpl>;
  // It may be gone when the next one comes.
  Gradient gradient;
  uint32_t version;
  Tensor sums;
};

std::optional<Known> &latest() {
  thread_local std::optional<Known> one;
  return one;
}

}  // namespace

void know_sums(const Tensor &gradient, const Tensor &sums) {
  latest() = Known{Known::Gradient(gradient.getIntrusivePtr()), gradient._version(), sums};
}

Tensor known_sums(const Tensor &gradient) {
  auto known = std::exchange(latest(), std::nullopt);
  bool is_it = known.has_value() && known->gradient._unsafe_get_target() == gradient.unsafeGetTensorImpl() && known->version == gradient._version();
  return is_it ? known->sums : Tensor();
}

void forget_sums() { latest().reset(); }
