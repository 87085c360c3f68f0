// cuBLAS and cuBLASLt, NCCL, and the driver. Products check their layouts and that their matrices are memory of the device. libtorch's types
// of cuBLAS are plain numbers and pointers here: NVIDIA's headers of it need nvcc's.
#include <library_types.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "stub.h"

using namespace stub;

namespace {

const int SUCCESS = 0, INVALID = 7, FAILED = 13;  // cublasStatus_t
const int TF32_MODE = 3, TF32_COMPUTE = 77;     // CUBLAS_TF32_TENSOR_OP_MATH, CUBLAS_COMPUTE_32F_FAST_TF32
thread_local cudaStream_t stream_of_products = nullptr;
thread_local int mode_of_products = 0;

int64_t bytes_of(int kind) {
  switch (kind) {
    case CUDA_R_64F: return 8;
    case CUDA_R_32F: return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF: return 2;
    default: return 1;
  }
}
const char *name_of(int kind) {
  switch (kind) {
    case CUDA_R_64F: return "f64";
    case CUDA_R_32F: return "f32";
    case CUDA_R_16F: return "f16";
    case CUDA_R_16BF: return "bf16";
    default: return "other";
  }
}

// Of columns side by side, as cuBLAS has them; `stride` elements lie between one and the next of a batch.
struct Matrix {
  const char *name;
  const void *place;
  int kind;
  int64_t rows, columns, leading, stride;

  bool fits(const char *call, int64_t batch) const {
    if (rows == 0 || columns == 0) return true;
    if (leading < rows) return fault(cudaErrorInvalidValue, text("%s: %s has %ld rows and a leading dimension of %ld", call, name, rows, leading)), false;
    auto bytes = ((columns - 1) * leading + rows + (batch - 1) * stride) * bytes_of(kind);
    if (!on_device(place, bytes))
      return fault(cudaErrorInvalidValue, text("%s: %s, %ld × %ld, is not in the device's memory", call, name, rows, columns)), false;
    return true;
  }
};

// `is_tf32`: whether factors of f32 may be rounded to TF32.
int product(const char *call, int64_t depth, const Matrix &a, const Matrix &b, const Matrix &c, int64_t batch, bool is_tf32, cudaStream_t stream) {
  bool reads = depth > 0;
  if ((reads && (!a.fits(call, batch) || !b.fits(call, batch))) || !c.fits(call, batch)) return INVALID;
  auto kind = a.kind == CUDA_R_32F && is_tf32 ? "tf32" : name_of(a.kind);
  auto what = text("%s\t%s\t%ld × %ld × %ld, %ld", call, kind, c.rows, c.columns, depth, batch);
  return submit(stream, "product", what) == cudaSuccess ? SUCCESS : FAILED;
}

// With the shapes of a call of cuBLAS: op(A) is m × k, op(B) is k × n.
int product(const char *call, int ta, int tb, int64_t m, int64_t n, int64_t k, const void *a, int a_kind, int64_t lda, int64_t a_stride, const void *b,
            int b_kind, int64_t ldb, int64_t b_stride, const void *c, int c_kind, int64_t ldc, int64_t c_stride, int64_t batch) {
  return product(call, k, {"A", a, a_kind, ta != 0 ? k : m, ta != 0 ? m : k, lda, a_stride}, {"B", b, b_kind, tb != 0 ? n : k, tb != 0 ? k : n, ldb, b_stride},
                 {"C", c, c_kind, m, n, ldc, c_stride}, batch, (mode_of_products & 15) == TF32_MODE, stream_of_products);
}

void *handle() { return malloc(64); }

}  // namespace

extern "C" {

// --- cuBLAS ---------------------------------------------------------------------------------------------------------------------------

int cublasCreate_v2(void **made) {
  if (outside_of_captures("cublasCreate")) return FAILED;
  *made = handle();
  return SUCCESS;
}
int cublasDestroy_v2(void *) { return SUCCESS; }
int cublasSetStream_v2(void *, cudaStream_t stream) {
  stream_of_products = stream;
  return SUCCESS;
}
int cublasSetWorkspace_v2(void *, void *place, size_t bytes) {
  if (bytes > 0 && !on_device(place, bytes)) return fault(cudaErrorInvalidValue, "cuBLAS's workspace is not in the device's memory"), INVALID;
  return SUCCESS;
}
int cublasGetMathMode(void *, int *mode) { return *mode = mode_of_products, SUCCESS; }
int cublasSetMathMode(void *, int mode) { return mode_of_products = mode, SUCCESS; }
int cublasGetPointerMode_v2(void *, int *mode) { return *mode = 0; }
int cublasSetPointerMode_v2(void *, int) { return SUCCESS; }

int cublasSgemm_v2(void *, int ta, int tb, int m, int n, int k, const void *, const void *a, int lda, const void *b, int ldb, const void *, void *c, int ldc) {
  return product("cublasSgemm", ta, tb, m, n, k, a, CUDA_R_32F, lda, 0, b, CUDA_R_32F, ldb, 0, c, CUDA_R_32F, ldc, 0, 1);
}
int cublasDgemm_v2(void *, int ta, int tb, int m, int n, int k, const void *, const void *a, int lda, const void *b, int ldb, const void *, void *c, int ldc) {
  return product("cublasDgemm", ta, tb, m, n, k, a, CUDA_R_64F, lda, 0, b, CUDA_R_64F, ldb, 0, c, CUDA_R_64F, ldc, 0, 1);
}
int cublasGemmEx(void *, int ta, int tb, int m, int n, int k, const void *, const void *a, int a_kind, int lda, const void *b, int b_kind, int ldb,
                 const void *, void *c, int c_kind, int ldc, int, int) {
  return product("cublasGemmEx", ta, tb, m, n, k, a, a_kind, lda, 0, b, b_kind, ldb, 0, c, c_kind, ldc, 0, 1);
}
int cublasSgemmStridedBatched(void *, int ta, int tb, int m, int n, int k, const void *, const void *a, int lda, long long a_stride, const void *b, int ldb,
                              long long b_stride, const void *, void *c, int ldc, long long c_stride, int batch) {
  return product("cublasSgemmStridedBatched", ta, tb, m, n, k, a, CUDA_R_32F, lda, a_stride, b, CUDA_R_32F, ldb, b_stride, c, CUDA_R_32F, ldc, c_stride,
                 batch);
}
int cublasGemmStridedBatchedEx(void *, int ta, int tb, int m, int n, int k, const void *, const void *a, int a_kind, int lda, long long a_stride,
                               const void *b, int b_kind, int ldb, long long b_stride, const void *, void *c, int c_kind, int ldc, long long c_stride,
                               int batch, int, int) {
  return product("cublasGemmStridedBatchedEx", ta, tb, m, n, k, a, a_kind, lda, a_stride, b, b_kind, ldb, b_stride, c, c_kind, ldc, c_stride, batch);
}
int cublasSgemv_v2(void *, int, int m, int n, const void *, const void *a, int lda, const void *, int, const void *, void *, int) {
  if (!Matrix{"A", a, CUDA_R_32F, m, n, lda, 0}.fits("cublasSgemv", 1)) return INVALID;
  return submit(stream_of_products, "product", text("cublasSgemv\tf32\t%d × %d", m, n)) == cudaSuccess ? SUCCESS : FAILED;
}
int cublasSdot_v2(void *, int n, const void *, int, const void *, int, void *) {
  return submit(stream_of_products, "product", text("cublasSdot\tf32\t%d", n)) == cudaSuccess ? SUCCESS : FAILED;
}

struct Layout {
  int kind;
  int64_t rows, columns, leading, stride = 0;
  int batch = 1;

  Matrix of(const char *name, const void *place) const { return {name, place, kind, rows, columns, leading, stride}; }
};
struct ProductOf {
  int compute, transposes_a = 0;
};
// cublasLtMatmulHeuristicResult_t
struct Choice {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
size_t cublasLtGetVersion() { return 130000; }
int cublasLtMatmulDescCreate(ProductOf **made, int compute, int) { return *made = new ProductOf{compute}, SUCCESS; }
int cublasLtMatmulDescDestroy(ProductOf *made) { return delete made, SUCCESS; }
int cublasLtMatmulDescSetAttribute(ProductOf *made, int attribute, const void *value, size_t) {
  const int TRANSPOSES_A = 3;  // CUBLASLT_MATMUL_DESC_TRANSA
  if (attribute == TRANSPOSES_A) memcpy(&made->transposes_a, value, sizeof made->transposes_a);
  return SUCCESS;
}
int cublasLtMatmulPreferenceCreate(void **made) { return *made = handle(), SUCCESS; }
int cublasLtMatmulPreferenceDestroy(void *made) { return free(made), SUCCESS; }
int cublasLtMatmulPreferenceSetAttribute(void *, int, const void *, size_t) { return SUCCESS; }
int cublasLtMatrixLayoutCreate(Layout **made, int kind, uint64_t rows, uint64_t columns, int64_t leading) {
  return *made = new Layout{kind, (int64_t)rows, (int64_t)columns, leading}, SUCCESS;
}
int cublasLtMatrixLayoutDestroy(Layout *made) { return delete made, SUCCESS; }
int cublasLtMatrixLayoutSetAttribute(Layout *made, int attribute, const void *value, size_t) {
  const int BATCH = 5, STRIDE = 6;  // CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, .._STRIDED_BATCH_OFFSET
  if (attribute == BATCH) memcpy(&made->batch, value, sizeof made->batch);
  if (attribute == STRIDE) memcpy(&made->stride, value, sizeof made->stride);
  return SUCCESS;
}
int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int, Choice *first, int *count) {
  *first = {}, *count = 1;
  return SUCCESS;
}
int cublasLtMatmul(void *, ProductOf *made, const void *, const void *a, Layout *of_a, const void *b, Layout *of_b, const void *, const void *, Layout *,
                   void *out, Layout *of_out, const void *, void *workspace, size_t bytes, cudaStream_t stream) {
  if (bytes > 0 && !on_device(workspace, bytes)) return fault(cudaErrorInvalidValue, "cuBLASLt's workspace is not in the device's memory"), INVALID;
  auto depth = made->transposes_a != 0 ? of_a->rows : of_a->columns;
  return product("cublasLtMatmul", depth, of_a->of("A", a), of_b->of("B", b), of_out->of("D", out), of_out->batch, made->compute == TF32_COMPUTE, stream);
}

// --- NCCL -----------------------------------------------------------------------------------------------------------------------------

int ncclCommInitAll(void **made, int count, const int *) {
  for (int at = 0; at < count; at++) made[at] = handle();
  return SUCCESS;
}
int ncclCommDestroy(void *) { return SUCCESS; }
int ncclGroupStart() { return SUCCESS; }
int ncclGroupEnd() { return SUCCESS; }
int ncclAllReduce(const void *from, void *to, size_t count, int, int, void *, cudaStream_t stream) {
  if (!on_device(from, count) || !on_device(to, count)) return fault(cudaErrorInvalidValue, "ncclAllReduce outside of the device's memory"), 4;
  return submit(stream, "nccl", text("ncclAllReduce\t%zu", count)) == cudaSuccess ? SUCCESS : 1;
}
int ncclBcast(void *place, size_t count, int, int, void *, cudaStream_t stream) {
  if (!on_device(place, count)) return fault(cudaErrorInvalidValue, "ncclBcast outside of the device's memory"), 4;
  return submit(stream, "nccl", text("ncclBcast\t%zu", count)) == cudaSuccess ? SUCCESS : 1;
}

// --- Driver: what libtorch asks libcuda.so.1 itself for -------------------------------------------------------------------------------

int cuInit(unsigned) { return SUCCESS; }
int cuDriverGetVersion(int *version) { return *version = CUDART_VERSION, SUCCESS; }
int cuGetErrorString(int, const char **words) { return *words = "an error of the driver's stub", SUCCESS; }
int cuDevicePrimaryCtxGetState(int, unsigned *flags, int *is_active) { return *flags = 0, *is_active = 1, SUCCESS; }
int cuCtxGetCurrent(void **context) { return *context = (void *)1, SUCCESS; }
int cuCtxSetCurrent(void *) { return SUCCESS; }
int cuDevicePrimaryCtxRetain(void **context, int) { return *context = (void *)1, SUCCESS; }
int cuGetErrorName(int, const char **name) { return *name = "an error of the driver's stub", SUCCESS; }
// NVRTC asks for tables of the driver's own, and compiles without them.
int cuGetExportTable(const void **table, const void *) { return *table = nullptr, 500; }
// Kernels that kiln has compiled: a module is its code, and a function its name.
int cuModuleLoadData(void **module, const void *code) {
  if (memcmp(code, "\x7f" "ELF", 4) != 0) return fault(cudaErrorInvalidKernelImage, "a module is no machine code"), 200;
  return *module = (void *)code, SUCCESS;
}
int cuModuleGetFunction(void **function, void *, const char *name) { return *function = compiled_kernel(name), SUCCESS; }
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned width, unsigned height, unsigned depth, unsigned shared, void *stream, void **,
                   void **) {
  return cudaLaunchKernel(function, {x, y, z}, {width, height, depth}, nullptr, shared, (cudaStream_t)stream);
}
// libcaffe2_nvrtc.so is linked against these, and libtorch's run-time compiled kernels alone call them.
#define NOT_SUPPORTED(function) \
  int function() { return fault(cudaErrorNotSupported, #function), 801; }
NOT_SUPPORTED(cuFuncGetAttribute)
NOT_SUPPORTED(cuFuncSetAttribute)
NOT_SUPPORTED(cuFuncSetCacheConfig)
NOT_SUPPORTED(cuLaunchCooperativeKernel)
NOT_SUPPORTED(cuLinkAddData_v2)
NOT_SUPPORTED(cuLinkComplete)
NOT_SUPPORTED(cuLinkCreate_v2)
NOT_SUPPORTED(cuModuleLoad)
NOT_SUPPORTED(cuModuleLoadDataEx)
NOT_SUPPORTED(cuModuleUnload)
NOT_SUPPORTED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NOT_SUPPORTED(cuPointerGetAttribute)
NOT_SUPPORTED(cuTensorMapEncodeTiled)
int cuDeviceGet(int *found, int ordinal) { return *found = ordinal, SUCCESS; }
int cuDeviceGetCount(int *count) { return *count = device_count(), SUCCESS; }
int cuDeviceGetName(char *name, int room, int) { return strncpy(name, "stub without a GPU", room), SUCCESS; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { return memset(uuid, 0, 16), uuid[15] = device, SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int) {
  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR and _MULTIPROCESSOR_COUNT
  const int MAJOR = 75, MINOR = 76, PROCESSORS = 16;
  return *value = attribute == MAJOR ? capability() / 10 : attribute == MINOR ? capability() % 10 : attribute == PROCESSORS ? 132 : 0, SUCCESS;
}

static int succeed() { return SUCCESS; }
// libtorch looks up twenty functions at once, and calls one of them when memory has run out.
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned, unsigned long long, cudaDriverEntryPointQueryResult *result) {
  *found = strcmp(name, "cuDeviceGet") == 0 ? (void *)cuDeviceGet : (void *)succeed;
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
}
