// Records the operators that a thread calls in libtorch, in their order. For tests and counts; without a recording it does nothing.
#include <ATen/record_function.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>

#include "shim.h"

namespace {
struct Recording {
  at::CallbackHandle handle;
  std::ostringstream text;
  int64_t depth = 0;
};

thread_local std::unique_ptr<Recording> recording;
thread_local std::string recorded;

void describe(std::ostringstream &text, const Tensor &tensor) {
  if (!tensor.defined()) return;
  text << '\t' << tensor.scalar_type() << ' ' << tensor.device() << ' ' << (tensor.has_storage() ? (uintptr_t)tensor.data_ptr() : 0) << ' '
       << tensor.is_contiguous();
  for (auto size : tensor.sizes()) text << ' ' << size;
}

void describe(std::ostringstream &text, const c10::IValue &value) {
  if (value.isTensor()) {
    describe(text, value.toTensor());
  } else if (value.isTensorList() || value.isList()) {
    for (const c10::IValue &item : value.toListRef())
      if (item.isTensor()) describe(text, item.toTensor());
  }
}

// One line: depth, name, overload, and of each tensor that goes in its kind, device, address, whether it is contiguous, and shape.
std::unique_ptr<at::ObserverContext> began(const at::RecordFunction &function) {
  if (recording == nullptr) return nullptr;
  auto operation = function.operator_name();
  recording->text << recording->depth++ << '\t' << function.name() << '\t' << (operation.has_value() ? operation->overload_name : "");
  for (auto &input : function.inputs()) describe(recording->text, input);
  recording->text << '\n';
  return nullptr;
}

void ended(const at::RecordFunction &, at::ObserverContext *) {
  if (recording != nullptr) recording->depth--;
}
}  // namespace

extern "C" {

// From now on, the operators that this thread calls are recorded, including those that operators call themselves.
int kiln_begin_recording() {
  return guarded([&] {
    if (recording != nullptr) throw std::runtime_error("this thread records its operators already");
    auto callback = at::RecordFunctionCallback(began, ended).needsInputs(true).scopes({at::RecordScope::FUNCTION});
    recording = std::make_unique<Recording>();
    recording->handle = at::addThreadLocalCallback(callback);
  });
}

// Ends it; `text` lives until the thread's next recording ends.
int kiln_end_recording(const char **text) {
  return guarded([&] {
    if (recording == nullptr) throw std::runtime_error("this thread records no operators");
    at::removeCallback(recording->handle);
    recorded = recording->text.str();
    recording.reset();
    *text = recorded.c_str();
  });
}
}
