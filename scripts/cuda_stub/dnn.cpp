// cuDNN: recurrent layers, batch norm, and its backend interface, by which libtorch computes convolutions and attention.
#include <cudnn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "stub.h"

using namespace stub;

namespace {

const auto SUCCESS = CUDNN_STATUS_SUCCESS;
thread_local cudaStream_t stream_of_layers = nullptr;

size_t bytes_of(cudnnDataType_t kind) {
  switch (kind) {
    case CUDNN_DATA_DOUBLE: return 8;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16: return 2;
    default: return 4;
  }
}
const char *name_of(cudnnDataType_t kind) {
  switch (kind) {
    case CUDNN_DATA_FLOAT: return "f32";
    case CUDNN_DATA_HALF: return "f16";
    case CUDNN_DATA_BFLOAT16: return "bf16";
    default: return "other";
  }
}

struct Shape {
  cudnnDataType_t kind;
  std::vector<int> sizes, strides;

  size_t bytes() const {
    size_t last = 0;
    for (size_t axis = 0; axis < sizes.size(); axis++) last += (size_t)(sizes[axis] - 1) * strides[axis];
    return (last + 1) * bytes_of(kind);
  }
};
const Shape &shape(const void *descriptor) { return *(const Shape *)descriptor; }

// An LSTM. Its weights here: the matrices of all layers, gate after gate, those of the input first, then all biases.
struct Recurrent {
  cudnnDataType_t kind;
  cudnnMathType_t math;
  int inputs, width, layers;

  size_t inputs_of(int layer) const { return layer == 0 ? inputs : width; }
  size_t matrices_of(int layer) const { return 4 * width * (inputs_of(layer) + width); }
  size_t matrices_before(int layer) const {
    size_t count = 0;
    for (int at = 0; at < layer; at++) count += matrices_of(at);
    return count;
  }
  size_t weight_bytes() const { return (matrices_before(layers) + (size_t)layers * 8 * width) * bytes_of(kind); }
};
struct Sequences {
  cudnnDataType_t kind;
  int time, batch, width;

  size_t bytes() const { return (size_t)time * batch * width * bytes_of(kind); }
};

// The places of a call that have to be in the device's memory, with their bytes; those that may be left out are null.
struct Named {
  const char *name;
  const void *place;
  size_t bytes;
};
bool are_held(const char *call, const std::vector<Named> &all) {
  for (auto &[name, place, bytes] : all)
    if (!on_device(place, bytes)) return fault(cudaErrorInvalidValue, text("%s: %s is not in the device's memory", call, name)), false;
  return true;
}

cudnnStatus_t done(const std::string &what) {
  return submit(stream_of_layers, "cudnn", what) == cudaSuccess ? SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

bool layers_fit(const char *call, const Recurrent &layers, const Sequences &x, const Sequences &y, const Shape &state) {
  bool fits = x.kind == layers.kind && y.kind == layers.kind && state.kind == layers.kind && x.width == layers.inputs && y.width == layers.width &&
              x.time == y.time && x.batch == y.batch;
  std::vector<int> wanted = {layers.layers, x.batch, layers.width};
  fits = fits && state.sizes.size() >= wanted.size() && std::equal(wanted.begin(), wanted.end(), state.sizes.begin());
  if (!fits) fault(cudaErrorInvalidValue, text("%s: formats or sizes of input, output, states and weights do not fit", call));
  return fits;
}

// A descriptor of the backend interface: its attributes.
struct Descriptor {
  cudnnBackendDescriptorType_t type;
  int engine = 0;  // 0 has tensor cores, 1 has none
  std::map<int, std::pair<int64_t, std::vector<char>>> attributes;
};
const int ENGINES = 2;

size_t bytes_of_attribute(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_FRACTION: return 8;
    default: return 4;
  }
}

}  // namespace

extern "C" {

size_t cudnnGetVersion() { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
const char *cudnnGetErrorString(cudnnStatus_t) { return "an error of cuDNN's stub"; }
void cudnnGetLastErrorString(char *words, size_t room) { strncpy(words, "see the stub's trace", room); }
cudnnStatus_t cudnnCreate(cudnnHandle_t *made) {
  if (outside_of_captures("cudnnCreate")) return CUDNN_STATUS_NOT_INITIALIZED;
  *made = (cudnnHandle_t)malloc(64);
  return SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t stream) { return stream_of_layers = stream, SUCCESS; }
cudnnStatus_t cudnnGetStream(cudnnHandle_t, cudaStream_t *stream) { return *stream = stream_of_layers, SUCCESS; }

#define DESCRIPTOR(name, Type)                                                                                 \
  cudnnStatus_t cudnnCreate##name(cudnn##name##_t *made) { return *(void **)made = new Type(), SUCCESS; }       \
  cudnnStatus_t cudnnDestroy##name(cudnn##name##_t made) { return delete (Type *)made, SUCCESS; }
DESCRIPTOR(TensorDescriptor, Shape)
DESCRIPTOR(FilterDescriptor, Shape)
DESCRIPTOR(DropoutDescriptor, Shape)
DESCRIPTOR(ActivationDescriptor, Shape)
DESCRIPTOR(RNNDescriptor, Recurrent)
DESCRIPTOR(RNNDataDescriptor, Sequences)

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t made, cudnnDataType_t kind, int axes, const int sizes[], const int strides[]) {
  *(Shape *)made = {kind, {sizes, sizes + axes}, {strides, strides + axes}};
  return SUCCESS;
}
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t made, int wanted, cudnnDataType_t *kind, int *axes, int sizes[], int strides[]) {
  auto &known = shape(made);
  *kind = known.kind, *axes = known.sizes.size();
  for (int axis = 0; axis < std::min(wanted, *axes); axis++) sizes[axis] = known.sizes[axis], strides[axis] = known.strides[axis];
  return SUCCESS;
}
cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t, cudnnActivationMode_t, cudnnNanPropagation_t, double) { return SUCCESS; }
cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t, size_t *bytes) { return *bytes = 1 << 20, SUCCESS; }
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t, cudnnHandle_t, float, void *states, size_t bytes, unsigned long long) {
  return states == nullptr || are_held("cudnnSetDropoutDescriptor", {{"states", states, bytes}}) ? SUCCESS : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t made, cudnnHandle_t handle, float rate, void *states, size_t bytes,
                                            unsigned long long seed) {
  return cudnnSetDropoutDescriptor(made, handle, rate, states, bytes, seed);
}

// --- Recurrent layers -----------------------------------------------------------------------------------------------------------------

cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t made, cudnnRNNAlgo_t, cudnnRNNMode_t mode, cudnnRNNBiasMode_t, cudnnDirectionMode_t direction,
                                       cudnnRNNInputMode_t, cudnnDataType_t kind, cudnnDataType_t, cudnnMathType_t math, int32_t inputs, int32_t width,
                                       int32_t outputs, int32_t layers, cudnnDropoutDescriptor_t, uint32_t) {
  if (mode != CUDNN_LSTM || direction != CUDNN_UNIDIRECTIONAL || outputs != width)
    return fault(cudaErrorNotSupported, "recurrent layers other than an LSTM's of one direction"), CUDNN_STATUS_NOT_SUPPORTED;
  *(Recurrent *)made = {kind, math, inputs, width, layers};
  return SUCCESS;
}
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t made, cudnnDataType_t kind, cudnnRNNDataLayout_t, int time, int batch, int width,
                                        const int[], void *) {
  *(Sequences *)made = {kind, time, batch, width};
  return SUCCESS;
}
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t, cudnnRNNDescriptor_t made, size_t *bytes) {
  return *bytes = ((Recurrent *)made)->weight_bytes(), SUCCESS;
}
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t, cudnnRNNDescriptor_t made, cudnnForwardMode_t, cudnnRNNDataDescriptor_t x, size_t *work,
                                        size_t *reserve) {
  auto &layers = *(Recurrent *)made;
  size_t states = (size_t)((Sequences *)x)->batch * layers.width * layers.layers * bytes_of(layers.kind);
  *work = 8 * states;
  if (reserve != nullptr) *reserve = 6 * states * ((Sequences *)x)->time;
  return SUCCESS;
}
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t, cudnnRNNDescriptor_t made, int32_t layer, size_t bytes, const void *space, int32_t gate,
                                      cudnnTensorDescriptor_t of_matrix, void **matrix, cudnnTensorDescriptor_t of_bias, void **bias) {
  auto &layers = *(Recurrent *)made;
  if (bytes < layers.weight_bytes()) return fault(cudaErrorInvalidValue, text("%zu bytes of weights", bytes)), CUDNN_STATUS_BAD_PARAM;
  bool is_of_input = gate < 4;
  int inputs = layers.inputs_of(layer), columns = is_of_input ? inputs : layers.width;
  size_t first = layers.matrices_before(layer) + (size_t)layers.width * (is_of_input ? gate * inputs : 4 * inputs + (gate - 4) * layers.width);
  size_t first_bias = layers.matrices_before(layers.layers) + ((size_t)layer * 8 + gate) * layers.width;
  if (matrix != nullptr) *matrix = (char *)space + first * bytes_of(layers.kind);
  if (bias != nullptr) *bias = (char *)space + first_bias * bytes_of(layers.kind);
  if (of_matrix != nullptr) *(Shape *)of_matrix = {layers.kind, {1, layers.width, columns}, {layers.width * columns, columns, 1}};
  if (of_bias != nullptr) *(Shape *)of_bias = {layers.kind, {1, layers.width, 1}, {layers.width, 1, 1}};
  return SUCCESS;
}
static std::string named(const char *call, const Recurrent &layers) {
  bool by_tensor_cores = layers.math != CUDNN_FMA_MATH && layers.math != CUDNN_DEFAULT_MATH;
  auto math = layers.math == CUDNN_FMA_MATH ? "without tensor cores" : by_tensor_cores ? "by tensor cores" : "as it is best";
  return text("%s\t%s\t%s, %d layers", call, name_of(layers.kind), math, layers.layers);
}
cudnnStatus_t cudnnRNNForward(cudnnHandle_t, cudnnRNNDescriptor_t made, cudnnForwardMode_t, const int32_t[], cudnnRNNDataDescriptor_t of_x, const void *x,
                              cudnnRNNDataDescriptor_t of_y, void *y, cudnnTensorDescriptor_t of_state, const void *hidden, void *, cudnnTensorDescriptor_t,
                              const void *cell, void *, size_t weight_bytes, const void *weights, size_t work_bytes, void *work, size_t, void *) {
  auto call = "cudnnRNNForward";
  auto &layers = *(Recurrent *)made;
  auto &from = *(Sequences *)of_x, &to = *(Sequences *)of_y;
  auto states = shape(of_state).bytes();
  bool is_right = layers_fit(call, layers, from, to, shape(of_state)) && weight_bytes >= layers.weight_bytes() &&
                  are_held(call, {{"x", x, from.bytes()}, {"y", y, to.bytes()}, {"h", hidden, states}, {"c", cell, states},
                                  {"weights", weights, weight_bytes}, {"workspace", work, work_bytes}});
  return is_right ? done(named(call, layers)) : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t, cudnnRNNDescriptor_t made, const int32_t[], cudnnRNNDataDescriptor_t of_y, const void *y,
                                      const void *gradient, cudnnRNNDataDescriptor_t of_x, void *of_inputs, cudnnTensorDescriptor_t of_state,
                                      const void *hidden, const void *, void *, cudnnTensorDescriptor_t, const void *cell, const void *, void *,
                                      size_t weight_bytes, const void *weights, size_t work_bytes, void *work, size_t reserve_bytes, void *reserve) {
  auto call = "cudnnRNNBackwardData";
  auto &layers = *(Recurrent *)made;
  auto &from = *(Sequences *)of_x, &to = *(Sequences *)of_y;
  auto states = shape(of_state).bytes();
  bool is_right = layers_fit(call, layers, from, to, shape(of_state)) &&
                  are_held(call, {{"y", y, to.bytes()}, {"its gradient", gradient, to.bytes()}, {"the gradient of x", of_inputs, from.bytes()},
                                  {"h", hidden, states}, {"c", cell, states}, {"weights", weights, weight_bytes}, {"workspace", work, work_bytes},
                                  {"what the forward pass kept", reserve, reserve_bytes}});
  return is_right ? done(named(call, layers)) : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t, cudnnRNNDescriptor_t made, cudnnWgradMode_t, const int32_t[], cudnnRNNDataDescriptor_t of_x,
                                         const void *x, cudnnTensorDescriptor_t of_state, const void *hidden, cudnnRNNDataDescriptor_t of_y, const void *y,
                                         size_t weight_bytes, void *of_weights, size_t, void *, size_t reserve_bytes, void *reserve) {
  auto call = "cudnnRNNBackwardWeights";
  auto &layers = *(Recurrent *)made;
  auto &from = *(Sequences *)of_x, &to = *(Sequences *)of_y;
  bool is_right = layers_fit(call, layers, from, to, shape(of_state)) && weight_bytes >= layers.weight_bytes() &&
                  are_held(call, {{"x", x, from.bytes()}, {"y", y, to.bytes()}, {"h", hidden, shape(of_state).bytes()},
                                  {"the gradient of the weights", of_weights, weight_bytes}, {"what the forward pass kept", reserve, reserve_bytes}});
  return is_right ? done(named(call, layers)) : CUDNN_STATUS_BAD_PARAM;
}

// --- Batch norm -----------------------------------------------------------------------------------------------------------------------

cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t,
                                                                       const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
                                                                       const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
                                                                       const cudnnActivationDescriptor_t, size_t *bytes) {
  return *bytes = 1024, SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
                                                                const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
                                                                const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
                                                                const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t, size_t *bytes) {
  return *bytes = 1024, SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t,
                                                                   const cudnnActivationDescriptor_t, const cudnnTensorDescriptor_t, size_t *bytes) {
  return *bytes = 4096, SUCCESS;
}
cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const void *, const void *,
                                                       const cudnnTensorDescriptor_t of_x, const void *x, const cudnnTensorDescriptor_t, const void *,
                                                       const cudnnTensorDescriptor_t of_y, void *y, const cudnnTensorDescriptor_t of_scale,
                                                       const void *scale, const void *shift, double, void *mean, void *variance, double, void *saved_mean,
                                                       void *saved_deviation, const cudnnActivationDescriptor_t, void *, size_t, void *, size_t) {
  auto call = "cudnnBatchNormalizationForwardTrainingEx";
  auto channels = shape(of_scale).bytes();
  bool is_right = are_held(call, {{"x", x, shape(of_x).bytes()}, {"y", y, shape(of_y).bytes()}, {"scale", scale, channels}, {"shift", shift, channels},
                                  {"running mean", mean, channels}, {"running variance", variance, channels}, {"mean", saved_mean, channels},
                                  {"deviation", saved_deviation, channels}});
  return is_right ? done(text("%s\t%s", call, name_of(shape(of_x).kind))) : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnBatchNormalizationBackwardEx(cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const void *, const void *, const void *,
                                                const void *, const cudnnTensorDescriptor_t of_x, const void *x, const cudnnTensorDescriptor_t,
                                                const void *, const cudnnTensorDescriptor_t of_gradient, const void *gradient,
                                                const cudnnTensorDescriptor_t, void *, const cudnnTensorDescriptor_t of_inputs, void *inputs,
                                                const cudnnTensorDescriptor_t of_scale, const void *scale, const void *, void *scales, void *shifts, double,
                                                const void *mean, const void *deviation, const cudnnActivationDescriptor_t, void *, size_t, void *reserve,
                                                size_t reserve_bytes) {
  auto call = "cudnnBatchNormalizationBackwardEx";
  auto channels = shape(of_scale).bytes();
  if (shape(of_x).strides != shape(of_gradient).strides)
    return fault(cudaErrorInvalidValue, text("%s: x and the gradient are laid out in different ways", call)), CUDNN_STATUS_BAD_PARAM;
  bool is_right = are_held(call, {{"x", x, shape(of_x).bytes()}, {"the gradient", gradient, shape(of_gradient).bytes()},
                                  {"the gradient of x", inputs, shape(of_inputs).bytes()}, {"scale", scale, channels},
                                  {"the gradient of scale", scales, channels}, {"the gradient of shift", shifts, channels}, {"mean", mean, channels},
                                  {"deviation", deviation, channels}, {"what the forward pass kept", reserve, reserve_bytes}});
  return is_right ? done(text("%s\t%s", call, name_of(shape(of_x).kind))) : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnBatchNormalizationForwardInference(cudnnHandle_t, cudnnBatchNormMode_t, const void *, const void *, const cudnnTensorDescriptor_t of_x,
                                                      const void *x, const cudnnTensorDescriptor_t of_y, void *y, const cudnnTensorDescriptor_t,
                                                      const void *, const void *, const void *, const void *, double) {
  auto call = "cudnnBatchNormalizationForwardInference";
  bool is_right = are_held(call, {{"x", x, shape(of_x).bytes()}, {"y", y, shape(of_y).bytes()}});
  return is_right ? done(text("%s\t%s", call, name_of(shape(of_x).kind))) : CUDNN_STATUS_BAD_PARAM;
}

// --- Backend interface: convolutions and attention ------------------------------------------------------------------------------------

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *made) {
  return *made = (cudnnBackendDescriptor_t) new Descriptor{type, 0, {}}, SUCCESS;
}
// Others may still name it, as a plan that is kept its engine; but not the pointers of one execution.
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t made) {
  auto given = (Descriptor *)made;
  if (given->type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) delete given;
  return SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t) { return SUCCESS; }
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t made, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values) {
  auto first = (const char *)values;
  ((Descriptor *)made)->attributes[name] = {count, {first, first + count * bytes_of_attribute(type)}};
  return SUCCESS;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const made, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t room, int64_t *count, void *values) {
  auto &asked = *(Descriptor *)made;
  auto counted = [&](int64_t found) {
    if (count != nullptr) *count = found;
    return SUCCESS;
  };
  auto others = (Descriptor **)values;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      for (int at = 0; values != nullptr && at < std::min<int64_t>(room, ENGINES); at++) others[at]->engine = at;
      return counted(ENGINES);
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      if (values != nullptr) others[0]->engine = asked.engine;
      return counted(1);
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      if (values != nullptr && room > 0 && asked.engine == 0) *(int *)values = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
      return counted(asked.engine == 0 ? 1 : 0);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      if (values != nullptr) *(int64_t *)values = 1 << 20;
      return counted(1);
    default: break;
  }
  auto known = asked.attributes.find(name);
  if (known != asked.attributes.end()) {
    auto &[stored, bytes] = known->second;
    if (values != nullptr) memcpy(values, bytes.data(), std::min(bytes.size(), room * bytes_of_attribute(type)));
    return counted(stored);
  }
  // One number is 0; there is nothing else.
  bool is_number = values != nullptr && room == 1 && type != CUDNN_TYPE_BACKEND_DESCRIPTOR;
  if (is_number) memset(values, 0, bytes_of_attribute(type));
  return counted(is_number ? 1 : 0);
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t) {
  auto &found = ((Descriptor *)plan)->attributes[CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG].second;
  Descriptor *choice = nullptr;
  if (found.size() == sizeof choice) memcpy(&choice, found.data(), sizeof choice);
  return done(text("cudnnBackendExecute\t%s tensor cores", choice != nullptr && choice->engine == 0 ? "by" : "without"));
}
}
